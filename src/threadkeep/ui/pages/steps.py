"""The steps of a thread: a window of its checkpoints, with their branches."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from threadkeep.ui.page import page_of

_STEPS = 50


async def window(request: Request, thread: str) -> dict[str, Any]:
    """Return the values of `steps.html` for the newest checkpoints of a thread."""
    saver = page_of(request).saver
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return {"steps": [one async for one in saver.alist(config, limit=_STEPS, values="lazy")]}


ROUTES: list[Route] = []
