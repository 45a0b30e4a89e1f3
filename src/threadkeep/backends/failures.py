"""Failures of stores: as errors of threadkeep, and retries of calls over a network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

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


T = TypeVar("T")

_PATIENCE = 45.0  # seconds: a server restarts, or another takes over, in less


async def again(
    call: Callable[[], Awaitable[T]],
    passes: Callable[[BaseException], bool],
    pause: Callable[[float], Awaitable[None]],
    count: Callable[[], None],
) -> T:
    """Call until it succeeds, pausing where an error `passes`; return the result.

    `count` is called before each call.
    """
    import tenacity  # noqa: PLC0415 - of the extras, and seldom needed

    tries = tenacity.AsyncRetrying(
        sleep=pause,
        before=lambda _: count(),
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
        stop=tenacity.stop_after_delay(_PATIENCE),
        reraise=True,
    )
    return await tries(call)
