"""Times that messages state."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

_NAMES = ("timestamp", "created_at")
_MILLISECONDS = 1e11  # Unix times from here on, the year 5138, are in milliseconds


def time_of(message: BaseMessage) -> datetime | None:
    """Return the time that a message or its provider states; None if there is none.

    It is `timestamp` or `created_at`: a field of the message, of its `additional_kwargs` or its
    `response_metadata`. A datetime, a text in ISO format, or Unix time in seconds or milliseconds.
    """
    own: dict[str, Any] = message.model_extra or {}
    for data in (own, message.additional_kwargs, message.response_metadata):
        for name in _NAMES:
            if (time := _parsed(data.get(name))) is not None:
                return time
    return None


def with_zone(time: datetime) -> datetime:
    """Return a time with its zone: without one, it is local time."""
    return time if time.tzinfo is not None else time.astimezone()


def _parsed(value: object) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):
        if isinstance(value, datetime):
            return with_zone(value)
        if isinstance(value, str):
            return with_zone(datetime.fromisoformat(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value >= _MILLISECONDS else value, UTC)
    return None
