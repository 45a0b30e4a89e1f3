"""Counts of a store, as backends with `counts_usage` give them."""

from collections.abc import Iterable
from typing import NamedTuple

HOURS = 24
HOUR = 3600 * 1_000_000
DAY = HOURS * HOUR
"""Microseconds."""


class ReadUsage(NamedTuple):
    """Counts of the whole store, without its payloads. Reply: one `Usage`.

    Only a backend with `counts_usage` is asked. `largest`, `busiest` (by checkpoints of the last 24
    hours before `now`, microseconds since 1970) and `sample` (any threads, the same ones each time)
    have at most `most` threads each. `idle_since`: threads last written before count as idle.
    """

    now: int
    idle_since: int
    most: int


class ThreadUsage(NamedTuple):
    """Counts of one thread; `bytes` and `updated_at` are its entry's."""

    thread: str
    bytes: int
    checkpoints: int  # hidden ones count
    writes: int
    recent: int  # checkpoints of the last 24 hours
    updated_at: int


class Hour(NamedTuple):
    """One hour: the checkpoints that were saved in it and are still there, and their bytes.

    A thread's bytes are taken in equal shares by its checkpoints.
    """

    checkpoints: int
    bytes: int


class Usage(NamedTuple):
    """Counts of a store: of the threads that the registry knows to hold checkpoints."""

    total: int  # bytes that the whole store takes, with its own overhead and free space
    threads: int
    bytes: int
    checkpoints: int  # hidden ones count
    writes: int  # rows
    idle_threads: int
    idle_bytes: int
    hours: tuple[Hour, ...]  # the last 24, oldest first
    largest: tuple[ThreadUsage, ...]
    busiest: tuple[ThreadUsage, ...]
    sample: tuple[ThreadUsage, ...]
    missing_indexes: tuple[str, ...] = ()  # of the store's tables: the statements that make them
    notes: tuple[str, ...] = ()  # counts that are not of the whole store


def hours_of(counts: Iterable[tuple[int, int, float]]) -> tuple[Hour, ...]:
    """Return 24 hours of counts: number of the hour, checkpoints, bytes."""
    found = [Hour(0, 0)] * HOURS
    for number, checkpoints, size in counts:
        at = min(max(number, 0), HOURS - 1)  # (a clock may be ahead)
        found[at] = Hour(found[at].checkpoints + checkpoints, found[at].bytes + round(size))
    return tuple(found)
