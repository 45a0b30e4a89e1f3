"""Which threads are worth keeping at hand: `HotTier`, and what that is decided by.

Only the decision lives here, and what is remembered for it; the bytes are their keepers'.
Invariants: what is remembered is bounded, and to forget any of it costs a read of the store and
makes nothing wrong; the lock guards moments.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from threadkeep.backends import process_forks
from threadkeep.backends.given import is_count, refuse
from threadkeep.cache.lru import (
    Cache,
    Fresh,
    LruCache,
)
from threadkeep.engine.model import Batch, CheckpointRow, ReadCheckpoint, Segment
from threadkeep.retention.policy import (
    MICROSECOND,
    duration,
)

_THREADS = 10_000  # that are remembered
_NEVER = 0  # microseconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTier:
    """Which threads are kept at hand at all: small ones, written of late, and read often.

    All that is said must hold. A thread for which something does not hold any more is let go of
    when that is noticed: at the next read or save of it in this process.

    Args:
        max_bytes: how much may be kept of a thread, as bytes of its values as they are stored.
            Counted is what a read needs and what is saved after it, as this process sees them.
        max_age: how long ago the thread may have been written last, in seconds or as a timedelta,
            by the time in its newest checkpoint. One whose time cannot be read is not kept.
        min_reads: how often this process must have read the thread within `max_age`. A load
            counts once.

    None means that there is no such limit.

    Raises:
        InvalidArgumentError: one of them has no meaning.
    """

    max_bytes: int | None = 10_000
    max_age: timedelta | float | None = timedelta(hours=1)
    min_reads: int | None = 3

    def __post_init__(self) -> None:
        if self.max_bytes is not None and not is_count(self.max_bytes, 1):
            refuse("max_bytes", self.max_bytes, "Give a number of bytes, 1 or more, or None.")
        if self.min_reads is not None and not is_count(self.min_reads, 0):
            refuse("min_reads", self.min_reads, "Give a whole number, 0 or more, or None.")
        if self.max_age is not None:
            object.__setattr__(self, "max_age", duration("max_age", self.max_age))

    @property
    def age(self) -> int | None:
        """`max_age` in microseconds."""
        return self.max_age // MICROSECOND if isinstance(self.max_age, timedelta) else None


class Verdict(NamedTuple):
    """What is to be done with bytes of a thread.

    Where they are not kept, nothing of the thread stays in memory.
    """

    keep: bool
    anew: bool = False  # what memory holds of the thread goes first
    let_go: bool = False  # what the hot store holds of it goes first


KEEP = Verdict(keep=True)


@dataclass(slots=True)
class _Thread:
    """What is remembered of a thread; `size` is that of what is kept of it, or would be."""

    written: int | None = _NEVER  # None: the newest checkpoint is of no known age
    generation: int = -1
    size: int = 0
    is_kept: bool = False
    is_load: bool = False  # a head was read, whose segments may be asked for next
    period: int = 0  # in which there were so many `reads`, and `before` in the one before it
    reads: int = 0
    before: int = 0


class Admission:
    """What was seen of threads, and whether they are kept by a `HotTier`.

    Args:
        how: the rule.
        clock: gives seconds since 1970.
    """

    def __init__(self, how: HotTier, clock: Callable[[], float] = time.time) -> None:
        self._age, self._most = how.age, how.max_bytes
        self._min_reads = how.min_reads or 0
        self._clock = clock
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._shelf: LruCache[_Thread] = LruCache(Cache(threads=_THREADS, ttl=None))

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: another thread may have been in the middle of a change."""
        if in_child:
            self._start()

    # -- what is seen ------------------------------------------------------------------

    def met(self, read: ReadCheckpoint, row: CheckpointRow) -> bool:
        """Note a checkpoint that was read; whether all of its thread is to be let go of now."""
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
        """Note what a read has found in all, and what of that was not at hand."""
        with self._lock:
            known = self._known(fresh.thread)
            if not known.is_load:
                self._count(known)
            known.is_load = False
            _enter(known, fresh.generation)
            alone = _size(whole)
            together = _kept_size(known) + _size(fresh.segments)
            return self._judge(known, alone, max(together, alone))

    def stored(self, batch: Batch) -> Verdict:
        """Note what was stored.

        It makes no thread known that must be read to be kept: who imports many threads would
        have the reads of all others forgotten.
        """
        with self._lock:
            known = self._shelf.get(batch.thread)
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
            more = _size(batch.segments)
            return self._judge(known, known.size + more, _kept_size(known) + more)

    def forget(self, thread: str | None) -> None:
        """Remember nothing of a thread, or (None) of any."""
        with self._lock:
            self._shelf.drop(thread)

    # -- what is decided ---------------------------------------------------------------

    def may_be_shared(self, thread: str) -> bool:
        """Whether other processes may keep it, who know of it as much as this one."""
        with self._lock:
            known = self._shelf.get(thread)
            return known is None or (self._is_young(known) and self._fits(known.size))

    def _judge(self, known: _Thread, alone: int, together: int) -> Verdict:
        """Whether bytes are kept, of a thread that needs so many `alone`.

        `together` are those at hand then, with what is kept already.
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

    def _is_young(self, known: _Thread) -> bool:
        if self._age is None:
            return True
        return known.written is not None and self._now() - known.written < self._age

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    # -- what is remembered ------------------------------------------------------------

    def _known(self, thread: str) -> _Thread:
        known = self._shelf.get(thread)
        if known is None:
            known = self._shelf.put(thread, _Thread())
            self._shelf.trim()
        self._shelf.use(thread)
        return known

    def _count(self, known: _Thread) -> None:
        self._turn(known)
        known.reads += 1

    def _reads(self, known: _Thread) -> int:
        self._turn(known)
        return known.reads + known.before

    def _turn(self, known: _Thread) -> None:
        """Two periods, each half of `max_age`: no read counts that is longer ago than that."""
        period = 0 if self._age is None else self._now() * 2 // self._age
        if period != known.period:
            known.before = known.reads if period == known.period + 1 else 0
            known.period, known.reads = period, 0


def _date(known: _Thread, ts: int | str) -> None:
    """Note the time of the newest checkpoint."""
    known.written = None if isinstance(ts, str) else max(known.written or _NEVER, ts)


def _touch(known: _Thread, now: int) -> None:
    if known.written is not None:
        known.written = max(known.written, now)


def _enter(known: _Thread, generation: int) -> None:
    """What was kept under another generation is not there for this one."""
    if known.generation != generation:
        known.generation, known.size = generation, 0


def _kept_size(known: _Thread) -> int:
    return known.size if known.is_kept else 0


def _size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) for segment in segments])
