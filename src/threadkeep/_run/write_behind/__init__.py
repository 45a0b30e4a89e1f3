"""Write-behind: saves return before they are durable; a background thread stores them."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep._core.validation import is_count, is_time
from threadkeep.errors import invalid

_MAX_INTERVAL = 60.0  # seconds


@dataclass(frozen=True)
class WriteBehind:
    """Saves return immediately and are stored soon after.

    Saves are stored after `flush_interval`, before a read of their thread, by `flush()`, on close
    and at exit of the program. If the process crashes, saves that are not stored yet are lost.

    Args:
        flush_interval: maximum seconds before a save is stored.
        max_pending_bytes: limit for queued saves and the values they were built from, in bytes.
            When the queue is full, the next save waits for room.

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    flush_interval: float = 1.0
    max_pending_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if not is_time(self.flush_interval) or self.flush_interval > _MAX_INTERVAL:
            hint = f"Use seconds, more than 0 and at most {_MAX_INTERVAL:g}."
            raise invalid("flush_interval", self.flush_interval, hint)
        if not is_count(self.max_pending_bytes, 1):
            hint = "Use a number of bytes, 1 or more."
            raise invalid("max_pending_bytes", self.max_pending_bytes, hint)
