"""Caches of node results beside LangGraph's, in one run: `python -m bench.caches`.

Servers are those of `scripts/services`; without them, memory and SQLite are measured alone.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
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

ROUNDS = 60
NAMESPACE = ("writes", "node")


def value(number: int) -> deque[tuple[str, Any]]:
    """Return what a node of an agent writes, as LangGraph caches it."""
    text = f"answer {number}: " + " ".join(f"word{number * word % 997}" for word in range(150))
    return deque([("messages", [AIMessage(text, id=str(number))]), ("step", number)])


def timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure(caches: Sequence[BaseCache[Any]], count: int) -> list[tuple[float, float]]:
    """Return the medians of setting and of getting so many keys, in ms; rounds alternate."""
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in caches]
    for number in range(ROUNDS):
        keys: list[FullKey] = [(NAMESPACE, f"{number:016x}{n:016x}") for n in range(count)]
        pairs: Any = {key: (value(n), 3600) for n, key in enumerate(keys)}
        for cache, (sets, gets) in zip(caches, times, strict=True):
            sets.append(timed(partial(cache.set, pairs)))
            gets.append(timed(partial(cache.get, keys)))
            if len(cache.get(keys)) != count:
                raise AssertionError(f"{cache} has lost a value")
    return [(1e3 * median(sets), 1e3 * median(gets)) for sets, gets in times]


def compare(name: str, caches: Sequence[BaseCache[Any]]) -> None:
    """Print the figures of a cache, and of LangGraph's where there is one."""
    for count in (1, 100):
        (set_, get), *theirs = measure(caches, count)
        line = f"{name:10} {count:4} keys: set {set_:7.3f} ms, get {get:7.3f} ms"
        for their_set, their_get in theirs:
            line += f"; LangGraph {their_set:7.3f} and {their_get:7.3f} ms"
            line += f": {their_set / set_:5.2f} x and {their_get / get:5.2f} x"
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
