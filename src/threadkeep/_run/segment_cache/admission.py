"""Chooses the threads to cache, by size, age and number of reads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from threadkeep._core.engine.model import Batch, Segment
from threadkeep._core.lru import Lru
from threadkeep._core.policies import HotTier
from threadkeep._core.validation import micros
from threadkeep._stores.process_forks import ResetInChild

_THREADS = 10_000  # threads with statistics


class Verdict(Enum):
    """Decision about segments of a thread that were just read or stored."""

    CACHE = auto()
    SKIP = auto()
    EVICT = auto()
    """Do not cache the segments, and evict the thread."""


@dataclass(slots=True)
class _Thread:
    reads: deque[int]  # times of the latest reads
    written: int = 0  # microseconds since 1970
    size: int = 0  # cached bytes, or the bytes that caching would take
    is_cached: bool = False


class Admission(ResetInChild):
    """Statistics of threads, and caching decisions by a `HotTier`."""

    def __init__(self, how: HotTier, clock: Callable[[], float] = time.time) -> None:
        self._age, self._most = micros(how.max_age), how.max_bytes
        self._min_reads = how.min_reads or 0
        self._clock = clock
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: Lru[str, _Thread] = Lru(_THREADS)

    def note_checkpoint(self, thread: str, ts: int | str) -> None:
        """Record the time of a checkpoint that was read."""
        with self._lock:
            _note_time(self._known(thread), ts)

    def read(self, thread: str, whole: Sequence[Segment], fresh: Sequence[Segment]) -> Verdict:
        """Record a read: all its segments, and those that were not cached."""
        with self._lock:
            known = self._known(thread)
            known.reads.append(self._now())
            alone = _size(whole)
            if not known.is_cached or not self._fits(alone):
                known.size = alone
                return self._judge(known)
            known.size = max(known.size + _size(fresh), alone)
            return self._judge(known)

    def stored(self, batch: Batch) -> Verdict:
        """Record a stored batch.

        With `min_reads`, a store adds no statistics for a new thread. Otherwise a large import
        would push out the statistics of all other threads.
        """
        with self._lock:
            if self._min_reads and self._threads.get(batch.thread) is None:
                return Verdict.SKIP
            known = self._known(batch.thread)
            for row in batch.checkpoints:
                _note_time(known, row.ts)
            if batch.writes and not batch.checkpoints:
                _note_time(known, batch.now)
            known.size += _size(batch.segments)
            return self._judge(known)

    def evicted(self, thread: str) -> None:
        """Record that a thread was evicted."""
        with self._lock:
            known = self._threads.get(thread)
            if known is not None:
                known.size, known.is_cached = 0, False

    def forget(self, thread: str | None) -> None:
        """Drop the statistics of a thread, or of all threads (None)."""
        with self._lock:
            self._threads.drop(thread)

    def may_be_shared(self, thread: str) -> bool:
        """Return True if another process with the same statistics may cache the thread."""
        with self._lock:
            known = self._threads.get(thread)
            return known is None or (self._is_young(known) and self._fits(known.size))

    def _judge(self, known: _Thread) -> Verdict:
        was_cached = known.is_cached
        if not self._is_young(known) or not self._fits(known.size):
            known.is_cached = False
            return Verdict.EVICT if was_cached else Verdict.SKIP
        if not self._is_read_often(known):  # no eviction: other processes may read it more often
            return Verdict.SKIP
        known.is_cached = True
        return Verdict.CACHE

    def _fits(self, size: int) -> bool:
        return self._most is None or size <= self._most

    def _is_young(self, known: _Thread) -> bool:
        return self._age is None or self._now() - known.written < self._age

    def _is_read_often(self, known: _Thread) -> bool:
        if len(known.reads) < self._min_reads:
            return False
        return self._age is None or not known.reads or self._now() - known.reads[0] < self._age

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    def _known(self, thread: str) -> _Thread:
        known = self._threads.get(thread)
        return known or self._threads.put(thread, _Thread(deque(maxlen=self._min_reads)))


def _note_time(known: _Thread, ts: int | str) -> None:
    known.written = max(known.written, 0 if isinstance(ts, str) else ts)


def _size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) for segment in segments])
