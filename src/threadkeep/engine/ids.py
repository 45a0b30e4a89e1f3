"""What a checkpoint id tells by itself: when it was made."""

from __future__ import annotations

from functools import lru_cache

# Microseconds between 1582-10-15 (the epoch of UUID version 6) and 1970-01-01.
UUID6_OFFSET = 0x01B21DD213814000 // 10
_VERSION_AT = 14
_UUID_LENGTH = 36


@lru_cache(maxsize=4096)  # (asked for each checkpoint, and again for its first child)
def created_at(checkpoint_id: str | None) -> int | None:
    """When the id was made, in microseconds since 1970; None if it does not tell.

    LangGraph's ids are UUIDs of version 6 (RFC 9562, section 5.6).
    """
    if (
        checkpoint_id is None
        or len(checkpoint_id) != _UUID_LENGTH
        or checkpoint_id[_VERSION_AT] != "6"
    ):
        return None
    digits = checkpoint_id[:8] + checkpoint_id[9:13] + checkpoint_id[15:18]
    try:
        return int(digits, 16) // 10 - UUID6_OFFSET
    except ValueError:
        return None
