"""Retries of calls over a network, with pauses in between (needs tenacity)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

T = TypeVar("T")

_PATIENCE = 45.0  # seconds: a server restarts, or another takes over, in less


async def again(
    call: Callable[[], Awaitable[T]],
    passes: Callable[[BaseException], bool],
    pause: Callable[[float], Awaitable[None]],
) -> T:
    """Call until it succeeds, pausing where an error `passes`; return the result."""
    tries = AsyncRetrying(
        sleep=pause,
        retry=retry_if_exception(passes),
        wait=wait_random_exponential(multiplier=0.1, max=2.0),
        stop=stop_after_delay(_PATIENCE),
        reraise=True,
    )
    return await tries(call)
