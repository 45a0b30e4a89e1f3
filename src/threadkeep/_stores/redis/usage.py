"""Counts of the whole store: one script counts many threads (of one on a cluster)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import chain
from typing import NamedTuple

from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.thread_entry import LARGEST, WITH_CHECKPOINTS, is_time
from threadkeep._core.engine.usage import (
    DAY,
    HOUR,
    ReadUsage,
    StoreUsage,
    ThreadUsage,
    usage_of,
)
from threadkeep._stores.redis.rows import key_of, keys_of
from threadkeep._stores.redis.scripts import Question, call
from threadkeep._stores.redis.server import Server

_PAGE = 2048  # threads of one round trip
_STATES, _THREADS = 256, 32  # of one script, which takes about a millisecond
_MANY = 64  # questions of one round trip
_MOST_RECENT = 10_000  # checkpoints
_WITH_CHECKPOINTS = {state.encode() for state in WITH_CHECKPOINTS}
_LAG = 1_000_000  # microseconds that `updated_at` may be late


class Counted(NamedTuple):
    """Counts of some threads as `census.lua` returns them, without rows, states alone."""

    states: list[bytes]
    sizes: list[bytes]
    updates: list[bytes]
    checkpoints: list[int]
    writes: list[int]
    memory: list[int]


async def counted(server: Server, *, rows: bool) -> AsyncIterator[tuple[list[str], Counted]]:
    """Yield pages of all threads, with their `rows` counted or only their states."""
    step = 1 if server.is_cluster else _THREADS if rows else _STATES
    width = len(Counted._fields) if rows else 1
    async for names in server.pages(_PAGE):
        keys = [
            keys_of(server.prefix, name) if rows else [key_of(server.prefix, name)]
            for name in names
        ]
        calls = [
            call("census", [*chain.from_iterable(part)], (len(part[0]),))
            for part in [keys[at : at + step] for at in range(0, len(keys), step)]
        ]
        answers = [word for answer in await server.sent(calls) for word in answer]
        columns = [answers[at::width] for at in range(width)]
        yield names, Counted(*columns, *[[]] * (6 - width))


async def memory(server: Server) -> int:
    """Return the bytes of all threads in the server's memory."""
    return sum([sum(page.memory) async for _, page in counted(server, rows=True)])


async def usage(read: ReadUsage, server: Server) -> StoreUsage:
    """Answer a `ReadUsage`. At most the newest checkpoints of the last 24 hours are counted."""
    total = 0
    threads: list[ThreadUsage] = []
    async for names, page in counted(server, rows=True):
        total += sum(page.memory)
        found = map(_used, names, *page[:-1])
        threads += [one for one in found if one is not None]
    recent, notes = await _recent(read.now - DAY, threads, server)
    threads = [one._replace(recent=len(recent.get(one.thread, ()))) for one in threads]
    times = [(name, at) for name, times in recent.items() for at in times]
    return usage_of(read, total, threads, times, notes)


def _used(
    thread: str, state: bytes, size: bytes, updated_at: bytes, checkpoints: int, writes: int
) -> ThreadUsage | None:
    """Return the counts of a thread, or None if it does not count, or its entry is damaged."""
    if state not in _WITH_CHECKPOINTS or thread.startswith(OWN_NS):
        return None
    try:
        numbers = int(size or 0), int(updated_at)
    except ValueError:
        return None
    if abs(numbers[0]) > LARGEST or not is_time(numbers[1]):
        return None
    return ThreadUsage(thread, numbers[0], checkpoints, writes, 0, numbers[1])


async def _recent(
    since: int, threads: Sequence[ThreadUsage], server: Server
) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """Return the beginnings of the hours of each thread's checkpoints since a time.

    The threads written last come first. If others are left out, the second result is a note.
    """
    late = [one for one in threads if one.updated_at >= since - _LAG]
    late.sort(key=lambda one: (-one.updated_at, one.thread))
    found: dict[str, list[int]] = {}
    total = 0
    for at in range(0, len(late), _MANY):
        if total >= _MOST_RECENT:
            return found, (f"of the last 24 hours, {total:,} checkpoints of the newest threads",)
        names = [one.thread for one in late[at : at + _MANY]]
        answers = await server.ask([(name, Question("hours", (since, HOUR))) for name in names])
        for name, flat in zip(names, answers, strict=True):
            found[name] = [
                since + hour * HOUR
                for hour, count in zip(flat[::2], flat[1::2], strict=True)
                for _ in range(count)
            ]
            total += len(found[name])
    return found, ()
