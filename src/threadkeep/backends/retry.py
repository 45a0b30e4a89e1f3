"""Doing something again that failed, where the failure passes.

Only how long and how often lives here; which failures pass is each store's to say. For
stores behind a network: needs tenacity, which their extras bring.
"""

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
    """What the call returns, made again with pauses in between.

    Args:
        call: what is done; once at least.
        passes: whether a failure may be gone the next time.
        pause: waits for some seconds, in the caller's own way.
    """
    tries = AsyncRetrying(
        sleep=pause,
        retry=retry_if_exception(passes),
        wait=wait_random_exponential(multiplier=0.1, max=2.0),
        stop=stop_after_delay(_PATIENCE),
        reraise=True,
    )
    return await tries(call)
