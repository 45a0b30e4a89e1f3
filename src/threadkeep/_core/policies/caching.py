"""Limits of the cache of reads."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep._core.validation import is_count, is_time
from threadkeep.errors import invalid


@dataclass(frozen=True)
class ReadCache:
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
