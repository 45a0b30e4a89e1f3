"""Write-behind: saves return before they are durable, and are stored in the background."""

from __future__ import annotations

from dataclasses import dataclass

from threadkeep._core.validation import is_count, is_time
from threadkeep.errors import invalid

_MAX_INTERVAL = 60.0  # seconds


@dataclass(frozen=True)
class WriteBehind:
    """Saves return at once, and are stored soon after.

    They are stored after `flush_interval`, before their thread is read, by `flush()`, on close
    and at the program's end. A crash of the process loses what was not stored yet.

    Args:
        flush_interval: seconds after which saves are stored at the latest.
        max_pending_bytes: how much may wait to be stored: bytes of saves and of the values that
            they were made of. A save beyond this waits until there is room.

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
