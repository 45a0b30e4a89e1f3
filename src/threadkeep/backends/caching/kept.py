"""Segments kept in this process's memory.

Only what is kept, and for how long, lives here. Invariants: of a thread only segments of one
generation are kept; all that is kept stays within the limits; the lock guards moments.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from threadkeep import forks
from threadkeep.backends.given import is_count, is_time, refuse
from threadkeep.backends.logs import Log, between
from threadkeep.engine.model import ReadSegments, Segment

_OVERHEAD = 200  # bytes that a segment takes beside its data, about


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
    size: int = 0
    used: float = 0.0


class Kept:
    """Segments by thread, those used last at the end."""

    def __init__(self, how: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._threads: OrderedDict[str, _Thread] = OrderedDict()
        self._size = 0

    def before_fork(self) -> None:
        """See `Forks.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Forks.after_fork`: another thread may have been in the middle of a change."""
        if in_child:
            self._start()

    def find(self, read: ReadSegments) -> list[Segment]:
        """Those kept that overlap the spans."""
        with self._lock:
            self._let_go()
            kept = self._threads.get(read.thread)
            if kept is None or kept.generation != read.generation:
                return []
            self._use(read.thread, kept)
            return between(kept.logs, read.spans)

    def keep(self, fresh: Fresh) -> None:
        """Keep segments, and let go of those that are gone."""
        thread, generation, segments, drops = fresh
        with self._lock:
            kept = self._threads.get(thread)
            if kept is None or kept.generation != generation:
                self._drop(thread)
                kept = self._threads[thread] = _Thread(generation)
            for log, start, count in drops:
                gone = kept.logs[log].drop(start, count) if log in kept.logs else None
                self._weigh(kept, [gone] if gone is not None else [], -1)
            for segment in segments:
                log_of = kept.logs.setdefault(segment.log, Log())
                self._weigh(kept, log_of.replace(segment), -1)
                self._weigh(kept, [segment], 1)
            self._use(thread, kept)
            self._let_go()

    def clear(self, thread: str | None = None) -> None:
        """Let go of a thread, or of all of them."""
        with self._lock:
            for name in [*self._threads] if thread is None else [thread]:
                self._drop(name)

    def _use(self, thread: str, kept: _Thread) -> None:
        kept.used = self._clock()
        self._threads.move_to_end(thread)

    def _weigh(self, kept: _Thread, segments: Iterable[Segment], sign: int) -> None:
        size = sign * sum([len(segment.data) + _OVERHEAD for segment in segments])
        kept.size += size
        self._size += size

    def _let_go(self) -> None:
        """Let go of what was not used for long, and make room."""
        while self._threads and self._is_too_much():
            self._drop(next(iter(self._threads)))

    def _is_too_much(self) -> bool:
        how = self._how
        if len(self._threads) > how.threads or self._size > how.bytes:
            return True
        oldest = next(iter(self._threads.values()))
        return how.ttl is not None and oldest.used < self._clock() - how.ttl

    def _drop(self, thread: str) -> None:
        kept = self._threads.pop(thread, None)
        if kept is not None:
            self._size -= kept.size

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return self._size
