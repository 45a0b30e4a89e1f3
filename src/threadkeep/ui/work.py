"""Long work of the page: it runs once at a time, and its result is shown again for a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

_KEPT = 60  # seconds for which a result is shown again
_LEAST = 2  # seconds between two runs
_MOST = 20  # results that are kept
_FIRST, _LATER = 0.1, 1.5  # seconds that a page, and a part that loads later, waits


@dataclass(eq=False)
class Work:
    """Work under way, or its result or error.

    Attributes:
        done, total: its progress; a total of 0 means unknown.
    """

    began: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None
    done: int = 0
    total: int = 0
    result: Any = None
    error: Exception | None = None

    async def run(self, make: Callable[[Work], Coroutine[Any, Any, Any]]) -> None:
        """Do the work."""
        try:
            self.result = await make(self)
        except Exception as error:  # noqa: BLE001 - it is shown
            self.error = error

    @property
    def is_done(self) -> bool:
        """True if there is a result, or an error."""
        return self.task is not None and self.task.done()

    @property
    def seconds(self) -> int:
        """Seconds since it began."""
        return round(time.monotonic() - self.began)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Note the progress; see `Saver.check`."""
        del stage
        self.done, self.total = done, total


async def work(
    request: Request,
    name: str,
    make: Callable[[Work], Coroutine[Any, Any, Any]] | None,
    *,
    again: bool = False,
) -> Work | None:
    """Return work by its name: start it if it is not running and has no recent result.

    Waits a moment for the result. The work continues without a waiting request. Its error is
    raised, except in a part that loads later, which shows it.

    Args:
        request: the request. Each application has its own work.
        name: the name of the work.
        make: does the work; None only looks for it.
        again: start it also if there is a recent result.
    """
    every: dict[str, Work] = request.app.state.work
    found = every.get(name)
    if make is not None and (found is None or _is_over(found, again=again)):
        found = Work()
        found.task = asyncio.create_task(found.run(make))
        every.pop(name, None)
        every[name] = found
        for old in [key for key, one in every.items() if one.is_done][:-_MOST]:
            del every[old]
    if found is not None and found.task is not None:
        is_part = "hx-request" in request.headers
        await asyncio.wait({found.task}, timeout=_LATER if is_part else _FIRST)
        if found.error is not None and not is_part:
            raise found.error
    return found


def _is_over(found: Work, *, again: bool) -> bool:
    least = 0 if found.error is not None else _LEAST if again else _KEPT
    return found.is_done and found.seconds >= least
