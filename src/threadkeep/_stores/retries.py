"""Retries of calls over a network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

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
    tries = tenacity.AsyncRetrying(
        sleep=pause,
        before=lambda _: count(),
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
        stop=tenacity.stop_after_delay(_PATIENCE),
        reraise=True,
    )
    return await tries(call)
