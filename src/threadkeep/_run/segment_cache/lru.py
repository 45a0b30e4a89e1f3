"""LRU caches by thread, bounded by threads, bytes and age.

To evict anything costs one read of the store.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from threadkeep._core.engine.model import ReadSegments, Segment
from threadkeep._core.policies.caching import ReadCache
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.records import Log, between

T = TypeVar("T")
_OVERHEAD = 200  # bytes that a segment takes beside its data, about


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    size: int = 0
    used: float = 0.0


class LruCache(Generic[T]):
    """LRU cache of one value for each thread. Its owner holds a lock."""

    def __init__(self, how: ReadCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self.size = 0
        """About how many bytes are cached."""

    def get(self, thread: str) -> T | None:
        """Return the value of a thread, which counts as a use of it."""
        self._trim()
        entry = self._entries.get(thread)
        if entry is None:
            return None
        entry.used = self._clock()
        self._entries.move_to_end(thread)
        return entry.value

    def put(self, thread: str, value: T) -> T:
        """Cache a value, of no size yet, in place of the thread's last one."""
        self.drop(thread)
        self._entries[thread] = _Entry(value, used=self._clock())
        self._trim()
        return value

    def weigh(self, thread: str, size: int) -> None:
        """Note that the value of a thread takes so many bytes more."""
        self._entries[thread].size += size
        self.size += size
        self._trim()

    def _trim(self) -> None:
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

    def __init__(self, how: ReadCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: LruCache[_Thread] = LruCache(self._how, self._clock)

    def find(self, read: ReadSegments) -> list[Segment]:
        """Return the cached segments that overlap the spans."""
        with self._lock:
            cached = self._threads.get(read.thread)
            if cached is None or cached.generation != read.generation:
                return []
            return between(cached.logs, read.spans)

    def keep(self, fresh: Fresh) -> None:
        """Cache segments, and evict those that are gone."""
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
        """Evict a thread, or all."""
        with self._lock:
            self._threads.drop(thread)

    @property
    def size(self) -> int:
        """About how many bytes are cached."""
        return self._threads.size


def _size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) + _OVERHEAD for segment in segments])
