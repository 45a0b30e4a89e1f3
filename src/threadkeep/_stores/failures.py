"""Failures of stores: as errors of threadkeep."""

from __future__ import annotations

from typing import TypeAlias

from threadkeep.errors import (
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadkeepError,
)

Meaning: TypeAlias = tuple[type[ThreadkeepError], str]
"""The class of an error, and its hint."""

REFUSALS: dict[str, type[ThreadkeepError]] = {
    "deleted": ThreadDeletedError,
    "stale": StaleThreadError,
    "conflict": ConflictError,
    "taken": SegmentTakenError,
    "exists": ThreadExistsError,
}
"""Errors by the word with which functions and scripts in a server refuse a change."""


def store_error(meaning: Meaning, store: str, message: str, text: str = "") -> ThreadkeepError:
    """Return the error for a store's message; `text` goes before it in place of the default."""
    kind, hint = meaning
    text = text or kind().message
    return kind(f"{text.rstrip('.')}: {store} says {message!r}.", hint=hint)
