"""What is kept by thread within limits: how many threads, how many bytes, for how long.

Only the limits live here; what is kept of a thread is its owner's. Invariant: after `trim`
all that is kept stays within the limits, and what was used last is there.

Segments kept in this process's memory.

Only what is kept lives here, not for how long. Invariants: of a thread only segments of one
generation are kept; the lock guards moments.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from threadkeep.backends import process_forks
from threadkeep.backends.given import is_count, is_time, refuse
from threadkeep.backends.records import (
    Log,
    between,
)
from threadkeep.engine.model import ReadSegments, Segment

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Cache:
    """How much of a store a process keeps in memory, as bytes that it need not ask for again.

    What is kept is never stale: each read asks the store which checkpoint is the head, and
    takes from memory only what that checkpoint refers to.

    Args:
        threads: of how many threads at most; those not used for longest go first.
        bytes: how many bytes at most.
        ttl: seconds after which a thread that was not used is let go; None for never.

    Raises:
        InvalidArgumentError: one of them has no meaning.
    """

    threads: int = 1000
    bytes: int = 256 * 1024 * 1024
    ttl: float | None = 300.0

    def __post_init__(self) -> None:
        if not is_count(self.threads, 1):
            refuse("threads", self.threads, "Give 1 or more.")
        if not is_count(self.bytes, 1):
            refuse("bytes", self.bytes, "Give a number of bytes, 1 or more.")
        if self.ttl is not None and not is_time(self.ttl):
            refuse("ttl", self.ttl, "Give seconds, more than 0, or None.")


@dataclass(slots=True)
class _Entry(Generic[Thing]):
    thing: Thing
    size: int = 0
    used: float = 0.0


class LruCache(Generic[Thing]):
    """One thing of each thread, those used last at the end. Its owner holds a lock.

    Args:
        how: the limits.
        clock: gives seconds.
    """

    def __init__(self, how: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[Thing]] = OrderedDict()
        self.size = 0
        """About how many bytes are kept."""

    def get(self, thread: str) -> Thing | None:
        """What is kept of a thread."""
        entry = self._entries.get(thread)
        return None if entry is None else entry.thing

    def put(self, thread: str, thing: Thing) -> Thing:
        """Keep this of a thread, of no size yet, and nothing else."""
        self.drop(thread)
        self._entries[thread] = _Entry(thing)
        self.use(thread)
        return thing

    def use(self, thread: str) -> None:
        """Note that what is kept of a thread was used."""
        self._entries[thread].used = self._clock()
        self._entries.move_to_end(thread)

    def weigh(self, thread: str, size: int) -> None:
        """Note that what is kept of a thread takes so many bytes more."""
        self._entries[thread].size += size
        self.size += size

    def trim(self) -> None:
        """Let go of what was not used for long, and make room."""
        while self._entries and self._is_too_much():
            self.drop(next(iter(self._entries)))

    def _is_too_much(self) -> bool:
        how = self._how
        if len(self._entries) > how.threads or self.size > how.bytes:
            return True
        oldest = next(iter(self._entries.values()))
        return how.ttl is not None and oldest.used < self._clock() - how.ttl

    def drop(self, thread: str | None) -> None:
        """Let go of a thread, or (None) of all of them."""
        for name in [*self._entries] if thread is None else [thread]:
            entry = self._entries.pop(name, None)
            if entry is not None:
                self.size -= entry.size


_OVERHEAD = 200  # bytes that a segment takes beside its data, about


class Fresh(NamedTuple):
    """What was just read or stored of a thread: segments, and places of those that are gone."""

    thread: str
    generation: int
    segments: Sequence[Segment]
    drops: Sequence[tuple[int, int, int]] = ()  # log, start, count


@dataclass(slots=True)
class _Thread:
    generation: int
    logs: dict[int, Log] = field(default_factory=dict)


class SegmentCache:
    """Segments by thread, within the limits of a `Cache`."""

    def __init__(self, how: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._shelf: LruCache[_Thread] = LruCache(self._how, self._clock)

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: another thread may have been in the middle of a change."""
        if in_child:
            self._start()

    def find(self, read: ReadSegments) -> list[Segment]:
        """Those kept that overlap the spans."""
        with self._lock:
            self._shelf.trim()
            kept = self._shelf.get(read.thread)
            if kept is None or kept.generation != read.generation:
                return []
            self._shelf.use(read.thread)
            return between(kept.logs, read.spans)

    def keep(self, fresh: Fresh) -> None:
        """Keep segments, and let go of those that are gone."""
        thread, generation, segments, drops = fresh
        with self._lock:
            kept = self._shelf.get(thread)
            if kept is None or kept.generation != generation:
                kept = self._shelf.put(thread, _Thread(generation))
            for log, start, count in drops:
                gone = kept.logs[log].drop(start, count) if log in kept.logs else None
                self._shelf.weigh(thread, -_size([gone] if gone is not None else []))
            for segment in segments:
                log_of = kept.logs.setdefault(segment.log, Log())
                self._shelf.weigh(thread, -_size(log_of.replace(segment)))
                self._shelf.weigh(thread, _size([segment]))
            self._shelf.use(thread)
            self._shelf.trim()

    def clear(self, thread: str | None = None) -> None:
        """Let go of a thread, or of all of them."""
        with self._lock:
            self._shelf.drop(thread)

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return self._shelf.size


def _size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) + _OVERHEAD for segment in segments])
