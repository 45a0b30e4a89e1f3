"""The steps of a thread: a window of its checkpoints, with their branches, and their timeline."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import ThreadNotFoundError
from threadkeep.threads import ThreadInfo, ThreadStatus
from threadkeep.ui import history, lanes
from threadkeep.ui.page import needed, page_of, render
from threadkeep.ui.pages.live import seen

_STEPS = 60  # checkpoints of a window
_AWAY = (ThreadStatus.ARCHIVED, ThreadStatus.DELETED)  # (reading steps would restore the thread)


async def window(request: Request, thread: str) -> dict[str, Any]:
    """Return the values of `steps.html`: the newest steps of a thread, or those that are asked."""
    saver = page_of(request).saver
    info = await saver.threads.aget(thread)  # (before the steps: a later change is an event)
    if info is None:
        raise ThreadNotFoundError(thread=thread)
    return {"steps": await _window(request, info)}


async def _window(request: Request, info: ThreadInfo) -> dict[str, Any]:
    asked = request.query_params
    before, found = asked.get("before", ""), None
    if info.state not in _AWAY:
        found = await history.read(
            page_of(request).saver,
            info,
            _STEPS,
            before=before,
            waiting=_lanes(asked.get("lanes", "")),
            inner={"no": False, "yes": True}.get(asked.get("inner", "")),
        )
    return {
        "info": info,
        "found": found,
        "before": before,
        "inner": "" if found is None else "yes" if found.inner else "no",
        "lanes": json.dumps(found.waiting) if found else "",
        "seen": seen(info),
        "lasting": lasting,
    }


def _lanes(given: str) -> list[str | None]:
    """Read the parents that lanes wait for above a window."""
    try:
        found = json.loads(given or "[]")
    except (ValueError, RecursionError):
        return []
    is_right = isinstance(found, list) and len(found) <= lanes.MOST
    return found if is_right and all(one is None or type(one) is str for one in found) else []


def lasting(seconds: float) -> str:
    """Return a duration with its unit: "120 ms", "4.2 s", "3 min", "5 h", "2 d"."""
    if 0 < seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return "<1 ms"
    for most, size, unit in ((1, 0.001, "ms"), (60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < most:
            count = seconds / size
            return f"{count:.{1 if unit != 'ms' and count < 10 else 0}f} {unit}"  # noqa: PLR2004 - digits
    return f"{seconds / 86400:,.0f} d"


async def _steps(request: Request) -> Response:
    """Answer with a window of steps, to be put into a page."""
    return render(request, "steps_window.html", **await window(request, needed(request, "id")))


ROUTES = [Route("/thread/steps", _steps)]
