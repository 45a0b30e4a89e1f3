"""LRU cache, bounded by entries, bytes and idle time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    value: T
    used: float
    size: int = 0


class Lru(Generic[K, T]):
    """LRU cache. Its owner holds a lock.

    Args:
        entries: limit of entries.
        bytes: limit of bytes, as reported to `weigh`.
        ttl: seconds after which an unused entry is evicted, or None for never.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        entries: int,
        bytes: float = inf,
        ttl: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_bytes, self._ttl = entries, bytes, ttl
        self._clock: Callable[[], float] = clock if ttl is not None else float
        self._entries: OrderedDict[K, _Entry[T]] = OrderedDict()
        self.size = 0
        """Estimated bytes in the cache."""

    def get(self, key: K) -> T | None:
        """Return a value, which counts as a use of it, or None."""
        if self._ttl is not None:
            self._trim()
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = self._clock()
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: K, value: T) -> T:
        """Cache a value, of no size yet, replacing the old one."""
        self.drop(key)
        self._entries[key] = _Entry(value, self._clock())
        self._trim()
        return value

    def weigh(self, key: K, size: int) -> None:
        """Add bytes to the size of a value."""
        self._entries[key].size += size
        self.size += size
        self._trim()

    def drop(self, key: K | None) -> None:
        """Evict a value if it is cached, or (None) all values."""
        for each in [*self._entries] if key is None else [key]:
            entry = self._entries.pop(each, None)
            if entry is not None:
                self.size -= entry.size

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def _trim(self) -> None:
        """Evict until everything is within the limits."""
        entries = self._entries
        while entries and (len(entries) > self._most or self.size > self._most_bytes):
            self.drop(next(iter(entries)))
        while self._ttl is not None and entries:
            oldest = next(iter(entries))
            if entries[oldest].used >= self._clock() - self._ttl:
                return
            self.drop(oldest)
