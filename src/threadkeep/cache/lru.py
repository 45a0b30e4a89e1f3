"""LRU caches by thread, bounded by threads, bytes and age, and the choice of threads to cache.

To evict anything costs one read of the store.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, NamedTuple, TypeVar

from threadkeep.backends.process_forks import ResetInChild
from threadkeep.backends.records import (
    Log,
    between,
)
from threadkeep.engine.model import Batch, CheckpointRow, ReadCheckpoint, ReadSegments, Segment
from threadkeep.errors import invalid
from threadkeep.validation import duration, is_count, is_time, micros

T = TypeVar("T")


@dataclass(frozen=True)
class Cache:
    """Limits of the cache that a process keeps in memory in front of a store.

    The cache is never stale: each read asks the store which checkpoint is the head, and takes
    from memory only what that checkpoint refers to.

    Args:
        threads: number of threads at most; the least recently used are evicted first.
        bytes: number of bytes at most.
        ttl: seconds after which an idle thread is evicted; None for never.

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    threads: int = 1000
    bytes: int = 256 * 1024 * 1024
    ttl: float | None = 300.0

    def __post_init__(self) -> None:
        if not is_count(self.threads, 1):
            raise invalid("threads", self.threads, "Use 1 or more.")
        if not is_count(self.bytes, 1):
            raise invalid("bytes", self.bytes, "Use a number of bytes, 1 or more.")
        if self.ttl is not None and not is_time(self.ttl):
            raise invalid("ttl", self.ttl, "Use seconds, more than 0, or None.")


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    size: int = 0
    used: float = 0.0


class LruCache(Generic[T]):
    """LRU cache of one value for each thread. Its owner holds a lock.

    Args:
        how: the limits.
        clock: gives seconds.
    """

    def __init__(self, how: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self.size = 0
        """About how many bytes are cached."""

    def get(self, thread: str) -> T | None:
        """Return the value of a thread."""
        entry = self._entries.get(thread)
        return None if entry is None else entry.value

    def put(self, thread: str, value: T) -> T:
        """Cache a value, of no size yet, in place of the thread's last one."""
        self.drop(thread)
        self._entries[thread] = _Entry(value)
        self.use(thread)
        return value

    def use(self, thread: str) -> None:
        """Note that a thread was used."""
        self._entries[thread].used = self._clock()
        self._entries.move_to_end(thread)

    def weigh(self, thread: str, size: int) -> None:
        """Note that the value of a thread takes so many bytes more."""
        self._entries[thread].size += size
        self.size += size

    def trim(self) -> None:
        """Evict until all is within the limits."""
        while self._entries and self._is_over():
            self.drop(next(iter(self._entries)))

    def _is_over(self) -> bool:
        how = self._how
        if len(self._entries) > how.threads or self.size > how.bytes:
            return True
        oldest = next(iter(self._entries.values()))
        return how.ttl is not None and oldest.used < self._clock() - how.ttl

    def drop(self, thread: str | None) -> None:
        """Evict a thread, or (None) all."""
        for name in [*self._entries] if thread is None else [thread]:
            entry = self._entries.pop(name, None)
            if entry is not None:
                self.size -= entry.size


_OVERHEAD = 200  # bytes that a segment takes beside its data, about


class Fresh(NamedTuple):
    """Segments of a thread that were just read or stored, and places of those that are gone."""

    thread: str
    generation: int
    segments: Sequence[Segment]
    drops: Sequence[tuple[int, int, int]] = ()  # log, start, count


@dataclass(slots=True)
class _Thread:
    generation: int
    logs: dict[int, Log] = field(default_factory=dict)


class SegmentCache(ResetInChild):
    """LRU cache of segments; of a thread, only those of one generation."""

    def __init__(self, how: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: LruCache[_Thread] = LruCache(self._how, self._clock)

    def find(self, read: ReadSegments) -> list[Segment]:
        """Return the cached segments that overlap the spans."""
        with self._lock:
            self._threads.trim()
            kept = self._threads.get(read.thread)
            if kept is None or kept.generation != read.generation:
                return []
            self._threads.use(read.thread)
            return between(kept.logs, read.spans)

    def keep(self, fresh: Fresh) -> None:
        """Cache segments, and evict those that are gone."""
        thread, generation, segments, drops = fresh
        with self._lock:
            kept = self._threads.get(thread)
            if kept is None or kept.generation != generation:
                kept = self._threads.put(thread, _Thread(generation))
            for log, start, count in drops:
                gone = kept.logs[log].drop(start, count) if log in kept.logs else None
                self._threads.weigh(thread, -_size([gone] if gone is not None else []))
            for segment in segments:
                log_of = kept.logs.setdefault(segment.log, Log())
                self._threads.weigh(thread, -_size(log_of.replace(segment)))
                self._threads.weigh(thread, _size([segment]))
            self._threads.use(thread)
            self._threads.trim()

    def clear(self, thread: str | None = None) -> None:
        """Evict a thread, or all."""
        with self._lock:
            self._threads.drop(thread)

    @property
    def size(self) -> int:
        """About how many bytes are cached."""
        return self._threads.size


def _size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) + _OVERHEAD for segment in segments])


_THREADS = 10_000  # that are remembered
_NEVER = 0  # microseconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTier:
    """Limits on the threads to cache: small ones, written recently, and read often.

    A thread is cached while it meets all limits. One that no longer does is evicted when that is
    noticed: at the next read or save of it in this process.

    Args:
        max_bytes: size of the thread at most, in bytes of its values as they are stored: what a
            read needs and what is saved after it, as this process sees them.
        max_age: seconds, or a timedelta, since the thread was written last, by the time in its
            newest checkpoint. One whose time cannot be read is not cached.
        min_reads: how often this process must have read the thread within `max_age`. A load
            counts once.

    None means no limit.

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    max_bytes: int | None = 10_000
    max_age: timedelta | float | None = timedelta(hours=1)
    min_reads: int | None = 3

    def __post_init__(self) -> None:
        if self.max_bytes is not None and not is_count(self.max_bytes, 1):
            raise invalid("max_bytes", self.max_bytes, "Use a number of bytes, 1 or more, or None.")
        if self.min_reads is not None and not is_count(self.min_reads, 0):
            raise invalid("min_reads", self.min_reads, "Use a whole number, 0 or more, or None.")
        if self.max_age is not None:
            object.__setattr__(self, "max_age", duration("max_age", self.max_age))


class Verdict(NamedTuple):
    """Decision about bytes of a thread. If they are not kept, memory evicts the thread.

    Args:
        keep: cache them.
        anew: memory evicts what it has of the thread first.
        let_go: the hot store evicts what it has of it first.
    """

    keep: bool
    anew: bool = False
    let_go: bool = False


KEEP = Verdict(keep=True)


@dataclass(slots=True)
class _AdmittedThread:
    """Statistics of a thread; `size` is that of its cached segments, or would be."""

    written: int | None = _NEVER  # None: the newest checkpoint is of no known age
    generation: int = -1
    size: int = 0
    is_kept: bool = False
    is_load: bool = False  # a head was read, whose segments may be asked for next
    period: int = 0  # in which there were so many `reads`, and `before` in the one before it
    reads: int = 0
    before: int = 0


class Admission(ResetInChild):
    """Statistics of threads, and the decision to cache them by a `HotTier`.

    Args:
        how: the rule.
        clock: gives seconds since 1970.
    """

    def __init__(self, how: HotTier, clock: Callable[[], float] = time.time) -> None:
        self._age, self._most = micros(how.max_age), how.max_bytes
        self._min_reads = how.min_reads or 0
        self._clock = clock
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: LruCache[_AdmittedThread] = LruCache(Cache(threads=_THREADS, ttl=None))

    # -- what is seen ------------------------------------------------------------------

    def met(self, read: ReadCheckpoint, row: CheckpointRow) -> bool:
        """Note a checkpoint that was read; return True if its thread is to be evicted now."""
        with self._lock:
            known = self._known(read.thread)
            if read.id is None:
                self._count(known)
                known.is_load = True
                _date(known, row.ts)
            elif not isinstance(row.ts, str):
                _touch(known, row.ts)
            if not known.is_kept or self._is_young(known):
                return False
            known.is_kept = False
            return True

    def read(self, fresh: Fresh, whole: Sequence[Segment]) -> Verdict:
        """Note all that a read has found, and what of that was not cached."""
        with self._lock:
            known = self._known(fresh.thread)
            if not known.is_load:
                self._count(known)
            known.is_load = False
            _enter(known, fresh.generation)
            alone = _thread_size(whole)
            together = _kept_size(known) + _thread_size(fresh.segments)
            return self._judge(known, alone, max(together, alone))

    def stored(self, batch: Batch) -> Verdict:
        """Note what was stored.

        It makes no thread known that must be read to be kept: who imports many threads would
        have the reads of all others forgotten.
        """
        with self._lock:
            known = self._threads.get(batch.thread)
            if known is None:
                if self._min_reads:
                    return Verdict(keep=False)
                known = self._known(batch.thread)
            if batch.checkpoints:
                _date(known, max(batch.checkpoints, key=lambda row: row.id).ts)
            elif batch.writes:
                _touch(known, batch.now)
            if batch.generation is not None:
                _enter(known, batch.generation)
            more = _thread_size(batch.segments)
            return self._judge(known, known.size + more, _kept_size(known) + more)

    def forget(self, thread: str | None) -> None:
        """Forget a thread, or (None) all."""
        with self._lock:
            self._threads.drop(thread)

    # -- what is decided ---------------------------------------------------------------

    def may_be_shared(self, thread: str) -> bool:
        """Return True if other processes, which know as much of it, may cache it."""
        with self._lock:
            known = self._threads.get(thread)
            return known is None or (self._is_young(known) and self._fits(known.size))

    def _judge(self, known: _AdmittedThread, alone: int, together: int) -> Verdict:
        """Decide about a thread that needs `alone` bytes.

        `together` are those that would be cached, with those that are already.
        """
        was_kept = known.is_kept
        if not self._fits(alone) or not self._is_young(known):
            known.size, known.is_kept = alone, False
            return Verdict(keep=False, let_go=was_kept)
        if self._reads(known) < self._min_reads:  # (others may read it more often)
            known.size = together if was_kept else alone
            return Verdict(keep=False)
        is_full = not self._fits(together)
        known.size, known.is_kept = alone if is_full else together, True
        return Verdict(keep=True, anew=is_full or not was_kept, let_go=is_full and was_kept)

    def _fits(self, size: int) -> bool:
        return self._most is None or size <= self._most

    def _is_young(self, known: _AdmittedThread) -> bool:
        if self._age is None:
            return True
        return known.written is not None and self._now() - known.written < self._age

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    # -- what is remembered ------------------------------------------------------------

    def _known(self, thread: str) -> _AdmittedThread:
        known = self._threads.get(thread)
        if known is None:
            known = self._threads.put(thread, _AdmittedThread())
            self._threads.trim()
        self._threads.use(thread)
        return known

    def _count(self, known: _AdmittedThread) -> None:
        self._turn(known)
        known.reads += 1

    def _reads(self, known: _AdmittedThread) -> int:
        self._turn(known)
        return known.reads + known.before

    def _turn(self, known: _AdmittedThread) -> None:
        """Two periods, each half of `max_age`: no read counts that is longer ago than that."""
        period = 0 if self._age is None else self._now() * 2 // self._age
        if period != known.period:
            known.before = known.reads if period == known.period + 1 else 0
            known.period, known.reads = period, 0


def _date(known: _AdmittedThread, ts: int | str) -> None:
    """Note the time of the newest checkpoint."""
    known.written = None if isinstance(ts, str) else max(known.written or _NEVER, ts)


def _touch(known: _AdmittedThread, now: int) -> None:
    if known.written is not None:
        known.written = max(known.written, now)


def _enter(known: _AdmittedThread, generation: int) -> None:
    """Note the generation; segments of another one are not there for it."""
    if known.generation != generation:
        known.generation, known.size = generation, 0


def _kept_size(known: _AdmittedThread) -> int:
    return known.size if known.is_kept else 0


def _thread_size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) for segment in segments])
