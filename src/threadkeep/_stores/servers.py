"""Shared by stores on a server: connections and retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import tenacity

from threadkeep._stores import sync_bridge
from threadkeep.errors import ClosedError

T = TypeVar("T")

_PATIENCE = 45.0  # seconds: long enough for a server to restart or fail over


class Source:
    """Connections to a server, blocking or awaited, of our own or the program's."""

    awaited = False
    _open = True

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(hint="Open a new one.")

    async def pause(self, seconds: float) -> None:
        """Wait before a retry."""
        await (asyncio.sleep if self.awaited else sync_bridge.sleep)(seconds)

    async def mend(self) -> None:
        """Replace lost connections, after a call met one."""

    async def close(self) -> None:
        """Close our own connections, and stop using the program's. Idempotent."""
        self._open = False


S = TypeVar("S", bound=Source)


class Retrying(Generic[S]):
    """Calls over a source, repeated after failures that pass.

    Args:
        source: the connections.
        errors: the driver's errors.
        passes: returns True if a repeated call may succeed.
        lost: returns True if a call that failed like this may have succeeded.
    """

    def __init__(
        self,
        source: S,
        errors: tuple[type[Exception], ...],
        passes: Callable[[BaseException], bool],
        lost: Callable[[BaseException], bool],
    ) -> None:
        self._source = source
        self._errors = errors
        self._passes = passes
        self._lost = lost
        self._retries = 0

    @property
    def retries(self) -> int:
        """The number of repeated calls since the store was opened."""
        return self._retries

    def count_retry(self, _: object = None) -> None:
        """Count a repeated call."""
        self._retries += 1

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await self._source.pause(seconds)

    def _is_final(self, error: Exception) -> bool:
        """Return True if a first failure is reported at once."""
        return not self._passes(error)

    async def retried(
        self, call: Callable[[], Awaitable[T]], losses: list[Exception] | None = None
    ) -> T:
        """Repeat a call until it succeeds, or fails for a reason that does not pass.

        A first failure after which the call may have succeeded is added to `losses`.
        """
        try:
            return await call()
        except self._errors as error:
            if self._is_final(error):
                raise
            lost = [error] if self._lost(error) else []
        if lost:
            await self._source.mend()
        if losses is not None:
            losses += lost
        tries = tenacity.AsyncRetrying(
            sleep=self._source.pause,
            before=self.count_retry,
            retry=tenacity.retry_if_exception(self._passes),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
            stop=tenacity.stop_after_delay(_PATIENCE),
            reraise=True,
        )
        return await tries(call)
