"""What is kept by thread within limits: how many threads, how many bytes, for how long.

Only the limits live here; what is kept of a thread is its owner's. Invariant: after `trim`
all that is kept stays within the limits, and what was used last is there.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from threadkeep.backends.given import is_count, is_time
from threadkeep.errors import invalid

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
class _Entry(Generic[Thing]):
    thing: Thing
    size: int = 0
    used: float = 0.0


class Shelf(Generic[Thing]):
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
