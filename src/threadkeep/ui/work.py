"""Long work of the page: it runs once at a time, and its result is shown again for a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

_KEPT = 60  # seconds for which a result is shown again
_LEAST = 2  # seconds between two runs
_MOST = 20  # results that are kept
_FIRST, _LATER = 0.1, 1.5  # seconds that a page, and a part that loads later, waits


@dataclass(eq=False)
class Work:
    """Work under way, or its result.

    Attributes:
        began: `time.monotonic()` of its start.
        done, total: its progress; a total of 0 means unknown.
    """

    began: float
    task: asyncio.Task[Any] | None = None
    done: int = 0
    total: int = 0

    @property
    def is_done(self) -> bool:
        """True if there is a result, or an error."""
        return self.task is not None and self.task.done()

    @property
    def has_failed(self) -> bool:
        """True if it ended with an error."""
        task = self.task
        return task is not None and task.done() and (task.cancelled() or bool(task.exception()))

    @property
    def error(self) -> str:
        """The text of its error; "" without one."""
        return f"{self.task.exception()}" if self.task is not None and self.has_failed else ""

    @property
    def result(self) -> Any:
        """The result; None before. Raises its error."""
        return self.task.result() if self.task is not None and self.is_done else None

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
        found = Work(time.monotonic())
        found.task = asyncio.create_task(make(found))
        every.pop(name, None)
        every[name] = found
        for old in [key for key, one in every.items() if one.is_done][:-_MOST]:
            del every[old]
    if found is not None and found.task is not None:
        is_part = "hx-request" in request.headers
        await asyncio.wait({found.task}, timeout=_LATER if is_part else _FIRST)
        if found.has_failed and not is_part:
            found.task.result()
    return found


def _is_over(found: Work, *, again: bool) -> bool:
    if not found.is_done:
        return False
    return found.has_failed or found.seconds >= (_LEAST if again else _KEPT)
