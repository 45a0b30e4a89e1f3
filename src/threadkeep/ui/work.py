"""Long work of the page: it runs once at a time, and its result is shown again for a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from starlette.requests import Request

_KEPT = 60  # seconds for which a result is shown again
_LEAST = 2  # seconds between two runs
_MOST = 20  # results that are kept
_FIRST, _LATER = 0.1, 1.5  # seconds that a page, and a part that loads later, waits


class Work:
    """Work under way, or its result or error. A total of 0 means unknown."""

    def __init__(self, make: Make) -> None:
        self.began = time.monotonic()
        self.done = self.total = 0
        self.result: Any = None
        self.error: Exception | None = None
        self.task = asyncio.create_task(self._run(make))

    async def _run(self, make: Make) -> None:
        try:
            self.result = await make(self)
        except Exception as error:  # noqa: BLE001 - it is shown
            self.error = error

    @property
    def is_done(self) -> bool:
        """True if there is a result, or an error."""
        return self.task.done()

    @property
    def seconds(self) -> int:
        """Seconds since it began."""
        return round(time.monotonic() - self.began)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Note the progress; see `Saver.check`."""
        del stage
        self.done, self.total = done, total


Make: TypeAlias = Callable[[Work], Coroutine[Any, Any, Any]]


async def work(
    request: Request, name: str, make: Make | None, *, again: bool = False
) -> Work | None:
    """Return work of this application by its name, after a moment for its result.

    Starts it if it is not running and has no recent result, or with `again` even then; without
    `make`, only looks for it. It continues without a waiting request. Its error is raised, except
    in a part that loads later, which shows it.
    """
    every: dict[str, Work] = request.app.state.work
    found = every.get(name)
    if make is not None and (found is None or _is_over(found, again=again)):
        every.pop(name, None)
        found = every[name] = Work(make)
        for old in [key for key, one in every.items() if one.is_done][:-_MOST]:
            del every[old]
    if found is not None:
        is_part = "hx-request" in request.headers
        await asyncio.wait({found.task}, timeout=_LATER if is_part else _FIRST)
        if found.error is not None and not is_part:
            raise found.error
    return found


def _is_over(found: Work, *, again: bool) -> bool:
    least = 0 if found.error is not None else _LEAST if again else _KEPT
    return found.is_done and found.seconds >= least
