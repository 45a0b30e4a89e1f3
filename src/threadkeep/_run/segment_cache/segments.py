"""LRU cache of segments by thread. An evicted segment costs one read of the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from threadkeep._core.engine.model import ReadSegments, Segment
from threadkeep._core.lru import Lru
from threadkeep._core.policies import ReadCache
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.records import Log, between

_OVERHEAD = 200  # approximate bytes per segment in addition to its data


class Fresh(NamedTuple):
    """Segments of a thread that were just read or stored, and places of removed segments."""

    thread: str
    generation: int
    segments: Sequence[Segment]
    drops: Sequence[tuple[int, int, int]] = ()  # log, start, count


@dataclass(slots=True)
class _Thread:
    generation: int
    logs: dict[int, Log] = field(default_factory=dict)


class SegmentCache(ResetInChild):
    """LRU cache of segments. Each thread has cached segments of only one generation."""

    def __init__(self, how: ReadCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        how = self._how
        self._threads: Lru[str, _Thread] = Lru(how.threads, how.bytes, how.ttl, self._clock)

    def find(self, read: ReadSegments) -> list[Segment]:
        """Return the cached segments that overlap the spans."""
        with self._lock:
            cached = self._threads.get(read.thread)
            if cached is None or cached.generation != read.generation:
                return []
            return between(cached.logs, read.spans)

    def keep(self, fresh: Fresh) -> None:
        """Cache segments, and evict removed ones."""
        thread, generation, segments, drops = fresh
        with self._lock:
            cached = self._threads.get(thread)
            if cached is None or cached.generation != generation:
                cached = self._threads.put(thread, _Thread(generation))
            gone: list[Segment] = []
            for log, start, count in drops:
                dropped = cached.logs[log].drop(start, count) if log in cached.logs else None
                gone += [dropped] if dropped is not None else []
            for segment in segments:
                gone += cached.logs.setdefault(segment.log, Log()).replace(segment)
            self._threads.weigh(thread, _size(segments) - _size(gone))

    def clear(self, thread: str | None = None) -> None:
        """Evict a thread, or all threads (None)."""
        with self._lock:
            self._threads.drop(thread)

    @property
    def size(self) -> int:
        """Approximate number of cached bytes."""
        return self._threads.size


def _size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) + _OVERHEAD for segment in segments])
