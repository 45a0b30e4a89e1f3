"""Segments kept in this process's memory.

Only what is kept lives here, not for how long. Invariants: of a thread only segments of one
generation are kept; the lock guards moments.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from threadkeep.backends import process_forks
from threadkeep.backends.logs import Log, between
from threadkeep.cache.lru import (
    Cache,
    Shelf,
)
from threadkeep.engine.model import ReadSegments, Segment

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


class Kept:
    """Segments by thread, within the limits of a `Cache`."""

    def __init__(self, how: Cache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._shelf: Shelf[_Thread] = Shelf(self._how, self._clock)

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
