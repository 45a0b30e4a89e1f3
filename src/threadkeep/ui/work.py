"""Long work of the page: it runs once at a time, and its result is shown again for a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from starlette.requests import Request

_KEPT = 60  # seconds for which a result is shown again
_LEAST = 2  # seconds for which an error is, and between two runs
_MOST = 20  # results that are kept
_WAIT = 1.5  # seconds for the result


class Work:
    """Work under way, or its result or error. A total of 0 means unknown."""

    def __init__(self, make: Make) -> None:
        self.began = self.ended = time.monotonic()
        self.done = self.total = 0
        self.result: Any = None
        self.error: Exception | None = None
        self.task = asyncio.create_task(self._run(make))

    async def _run(self, make: Make) -> None:
        try:
            self.result = await make(self)
        except Exception as error:  # noqa: BLE001 - it is shown
            self.error = error
        self.ended = time.monotonic()

    @property
    def seconds(self) -> int:
        """Seconds since it began."""
        return round(time.monotonic() - self.began)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Note the progress (see `Saver.check`)."""
        del stage
        self.done, self.total = done, total


Make: TypeAlias = Callable[[Work], Coroutine[Any, Any, Any]]


async def work(
    request: Request, name: str, make: Make | None, *, again: bool = False
) -> Work | None:
    """Return work of this application by its name if it is under way, or was done recently.

    Else a part that loads later starts it, or with `again` even then, and waits a moment for it.
    The page itself does not: it is drawn first, and links of other pages cannot start any work.
    Work continues without a waiting request. Without `make`, this only looks for it.
    """
    every: dict[str, Work] = request.app.state.work
    found = every.get(name)
    if found is not None and make is not None and found.task.done():
        kept = _LEAST if again or found.error is not None else _KEPT
        found = found if time.monotonic() - found.ended < kept else None
    if "hx-request" in request.headers:
        if found is None and make is not None:
            every.pop(name, None)
            found = every[name] = Work(make)
            for old in [key for key, one in every.items() if one.task.done()][:-_MOST]:
                del every[old]
        if found is not None:
            await asyncio.wait({found.task}, timeout=_WAIT)
    return found
