"""Counts of a store, reported by its backend, and counters of savers, stores and caches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from heapq import nsmallest
from typing import NamedTuple, Self
from zlib import crc32

HOURS = 24
HOUR = 3600 * 1_000_000
DAY = HOURS * HOUR
"""Microseconds."""


class ReadUsage(NamedTuple):
    """Counts of the whole store, without its payloads. Reply: one `StoreUsage`.

    Sent only to a backend with `counts_usage`. `largest`, `busiest` (by checkpoints of the 24 hours
    before `now`, microseconds since 1970) and `sample` (any threads, the same ones each time) have
    at most `most` threads each. Threads last written before `idle_since` count as idle.
    """

    now: int
    idle_since: int
    most: int


class ThreadUsage(NamedTuple):
    """Counts of one thread. `bytes` and `updated_at` are its entry's."""

    thread: str
    bytes: int
    checkpoints: int  # hidden ones count
    writes: int
    recent: int  # checkpoints of the last 24 hours
    updated_at: int


class Hour(NamedTuple):
    """One hour: its saved checkpoints that still exist, and their bytes.

    The bytes of a thread are divided equally among its checkpoints.
    """

    checkpoints: int
    bytes: int


class StoreUsage(NamedTuple):
    """Counts of a store: of the threads that hold checkpoints according to the registry.

    Threadkeep's own threads and their rows do not count.
    """

    total: int  # bytes of the whole store, with its own overhead and free space
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
    missing_indexes: tuple[str, ...] = ()  # statements that create the missing indexes
    notes: tuple[str, ...] = ()  # counts that do not cover the whole store


class ItemUsage(NamedTuple):
    """Counts of the other contents of a database: items of stores, and cached node results."""

    items: int = 0  # expired ones count
    item_bytes: int = 0  # of their values and earlier versions
    expired_items: int = 0  # that are still stored
    waiting_items: int = 0  # without vectors, as the embedding model failed
    vector_bytes: int = 0
    cache_entries: int = 0
    cache_bytes: int = 0
    items_sampled: bool = False  # bytes are estimated from some rows

    def plus(self, others: Iterable["ItemUsage"]) -> "ItemUsage":
        """Return the sums."""
        columns = zip(self, *others, strict=True)
        *counts, samples = [sum(column) for column in columns]
        return ItemUsage._make([*counts, samples > 0])


STATUSES = ("running", "waiting", "failed", "held", "unfinished")
"""Statuses of threads that are not done."""


@dataclass(frozen=True, slots=True)
class ThreadStatuses:
    """Threads by status, without archived threads. All others are done.

    Args:
        running, waiting, failed, held, unfinished: numbers of threads.
        failures_per_minute: threads that failed in the last minute.
        oldest_unfinished: seconds since the last write of the unfinished thread that is idle
            longest, or None without one.
        oldest_thread: its id.
    """

    running: int
    waiting: int
    failed: int
    held: int
    unfinished: int
    failures_per_minute: int
    oldest_unfinished: float | None = None
    oldest_thread: str | None = None


SAMPLED_ITEMS = 1000
"""Rows whose bytes are read if a backend cannot sum up all rows."""


def hours_of(counts: Iterable[tuple[int, int, float]]) -> tuple[Hour, ...]:
    """Return 24 hours of counts, from (number of the hour, checkpoints, bytes)."""
    checkpoints, sizes = [0] * HOURS, [0.0] * HOURS
    for number, count, size in counts:
        at = min(max(number, 0), HOURS - 1)  # (clocks may be ahead)
        checkpoints[at] += count
        sizes[at] += size
    return tuple([Hour(*one) for one in zip(checkpoints, map(round, sizes), strict=True)])


def usage_of(
    read: ReadUsage,
    total: int,
    threads: Sequence[ThreadUsage],
    recent: Iterable[tuple[str, int]],
    notes: tuple[str, ...] = (),
) -> StoreUsage:
    """Return the counts of a store from the counts of all its threads.

    `recent` holds the thread and time of each checkpoint of the last 24 hours.
    """
    since = read.now - DAY
    shares = {one.thread: one.bytes / max(one.checkpoints, 1) for one in threads}
    idle = [one.bytes for one in threads if one.updated_at < read.idle_since]
    busy = [one for one in threads if one.recent]
    return StoreUsage(
        total=total,
        threads=len(threads),
        bytes=sum([one.bytes for one in threads]),
        checkpoints=sum([one.checkpoints for one in threads]),
        writes=sum([one.writes for one in threads]),
        idle_threads=len(idle),
        idle_bytes=sum(idle),
        hours=hours_of([((at - since) // HOUR, 1, shares.get(name, 0)) for name, at in recent]),
        largest=tuple(nsmallest(read.most, threads, key=lambda one: (-one.bytes, one.thread))),
        busiest=tuple(nsmallest(read.most, busy, key=lambda one: (-one.recent, one.thread))),
        sample=tuple(
            nsmallest(read.most, threads, key=lambda one: crc32(ascii(one.thread).encode()))
        ),
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a saver, store or cache since it was opened, in this process.

    See `Saver.counters`, `Store.counters` and `NodeCache.counters`. Counters of the other kinds are
    0.

    Attributes:
        written_bytes: bytes stored by saves.
        saved_bytes: estimated bytes saved compared with storing each full state uncompressed.
        working_set_hits: loads of runs that found values of their thread in memory.
        working_set_misses: loads of runs that did not.
        conflicts: runs that forked a thread (`Saver.forked_runs`), and saves refused for that.
        retries: calls of the store repeated after a temporary failure, and saves built again
            because another process had saved in between.
        result_hits: keys whose value a `NodeCache` of node results had.
        result_misses: keys whose value it did not have.
        result_evictions: values that a `NodeCache` removed to stay within its limits, without
            expired ones.
        vector_hits: texts whose vector a `Store` had in memory.
        vector_misses: texts that it had to embed.
        embedding_calls: calls of the embedding model, counting each attempt.
        embedding_failures: calls that failed, or returned no usable vectors.
    """

    written_bytes: int = 0
    saved_bytes: int = 0
    working_set_hits: int = 0
    working_set_misses: int = 0
    conflicts: int = 0
    retries: int = 0
    result_hits: int = 0
    result_misses: int = 0
    result_evictions: int = 0
    vector_hits: int = 0
    vector_misses: int = 0
    embedding_calls: int = 0
    embedding_failures: int = 0

    def __add__(self, other: Self) -> Self:
        """Return the sums."""
        names = [one.name for one in fields(self)]
        return type(self)(*[getattr(self, name) + getattr(other, name) for name in names])
