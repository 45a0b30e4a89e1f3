"""Caches of node results beside LangGraph's, in one run: `python -m bench.caches`.

Servers are those of `scripts/services`; without them, memory and SQLite are measured alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import redis
from langchain_core.messages import AIMessage
from langgraph.cache.base import BaseCache, FullKey
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.redis import RedisCache
from langgraph.cache.sqlite import SqliteCache

from threadkeep.cache import PostgresCache, open_cache

ROUNDS = 100
NAMESPACE = ("writes", "node")


def value(number: int) -> deque[tuple[str, Any]]:
    """Return the writes of an agent's node, as LangGraph caches them."""
    text = f"answer {number}: " + " ".join(f"word{number * word % 997}" for word in range(150))
    return deque([("messages", [AIMessage(text, id=str(number))]), ("step", number)])


def keys_of(name: str, count: int) -> list[FullKey]:
    """Return keys as LangGraph makes them."""
    digests = [blake2b(f"{name} {n}".encode(), digest_size=16) for n in range(count)]
    return [(NAMESPACE, digest.hexdigest()) for digest in digests]


def blocking(call: Callable[[], object]) -> tuple[float, float]:
    """Return the time and the CPU time of a call, in ms."""
    begun, cpu = time.perf_counter(), time.process_time()
    call()
    return 1e3 * (time.perf_counter() - begun), 1e3 * (time.process_time() - cpu)


async def awaiting(call: Coroutine[Any, Any, object]) -> tuple[float, float]:
    """Return the time and the CPU time of an awaited call, in ms."""
    begun, cpu = time.perf_counter(), time.process_time()
    await call
    return 1e3 * (time.perf_counter() - begun), 1e3 * (time.process_time() - cpu)


async def measure(
    caches: Sequence[BaseCache[Any]], count: int, *, is_async: bool
) -> list[list[float]]:
    """Return, for each cache, the medians of set and get: time, CPU time. They take turns."""
    times: list[list[tuple[float, ...]]] = [[] for _ in caches]
    for number in range(ROUNDS):
        keys = keys_of(f"{is_async} {number}", count)
        pairs: Any = {key: (value(n), 3600) for n, key in enumerate(keys)}
        turns = list(zip(caches, times, strict=True))
        for cache, found in turns if number % 2 else reversed(turns):
            if is_async:
                set_, get = await awaiting(cache.aset(pairs)), await awaiting(cache.aget(keys))
            else:
                set_, get = blocking(partial(cache.set, pairs)), blocking(partial(cache.get, keys))
            found.append((*set_, *get))
            if len(cache.get(keys)) != count:
                raise AssertionError(f"{cache} has lost a value")
    return [[median(column) for column in zip(*found, strict=True)] for found in times]


def compare(name: str, caches: Sequence[BaseCache[Any]]) -> None:
    """Print the figures of a cache, and of LangGraph's where there is one."""
    for is_async in (False, True):
        for count in (1, 100):
            ours, *others = asyncio.run(measure(caches, count, is_async=is_async))
            line = f"{name:11}{'async' if is_async else 'sync ':6}{count:4} keys:"
            for at, word in ((0, "set"), (2, "get")):
                line += f" {word} {ours[at]:7.3f} ms (CPU {ours[at + 1]:6.3f})"
                for theirs in others:
                    line += f" LangGraph {theirs[at]:7.3f} ({theirs[at + 1]:6.3f})"
                    ratio, cpu = theirs[at] / ours[at], theirs[at + 1] / ours[at + 1]
                    line += f": {ratio:5.2f} x (CPU {cpu:5.2f} x);"
            print(line)


def main() -> None:
    with TemporaryDirectory() as folder:
        ours, theirs = open_cache("memory://"), InMemoryCache[Any]()
        compare("memory", [ours, theirs])
        with open_cache(f"sqlite:///{Path(folder, 'ours.db')}") as ours:
            compare("SQLite", [ours, SqliteCache[Any](path=str(Path(folder, "theirs.db")))])
    if url := os.environ.get("TK_TEST_REDIS"):
        with redis.Redis.from_url(url) as client, open_cache(url, prefix="bench") as ours:
            compare("Redis", [ours, RedisCache[Any](client, prefix="bench-theirs:")])
            ours.clear()
            client.delete(*client.scan_iter("bench-theirs:*"))
    if url := os.environ.get("TK_TEST_POSTGRES"):
        with PostgresCache(url, schema="bench_cache") as ours:
            ours.setup()
            compare("PostgreSQL", [ours])
            ours.clear()


if __name__ == "__main__":
    main()
