"""An async backend behind the synchronous protocol, so that one suite tests both.

Every call runs on one event loop, whichever thread it comes from.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep.backends.base import Backend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from threadkeep.backends.base import AsyncBackend, Scrubbed
    from threadkeep.engine.model import Change, Read
    from threadkeep.errors import ThreadkeepError

_T = TypeVar("_T")


class Blocking(Backend):
    """Runs an `AsyncBackend` on an event loop in a thread of its own.

    Args:
        make: opens the backend; awaited on that loop.
    """

    def __init__(self, make: Callable[[], Awaitable[AsyncBackend]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._backend = self._run(_awaited(make))

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        return self._run(self._backend.fetch(reads))

    def commit(self, change: Change) -> None:
        """See `Backend.commit`."""
        self._run(self._backend.commit(change))

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `Backend.commit_many`."""
        return self._run(self._backend.commit_many(changes))

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """See `Backend.scrub`."""
        return self._run(self._backend.scrub(rewrite=rewrite))

    def close(self) -> None:
        """See `Backend.close`. The loop runs on, so that later calls can be refused."""
        self._run(self._backend.close())

    def stop(self) -> None:
        """End the loop; nothing can be called after."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def _awaited(make: Callable[[], Awaitable[AsyncBackend]]) -> AsyncBackend:
    return await make()
