"""A thread: its conversation, and its steps."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import ThreadNotFoundError
from threadkeep.ui.page import needed, page_of, render

_STEPS = 50


async def thread(request: Request) -> Response:
    """Show a thread."""
    saver, name = page_of(request).saver, needed(request, "id")
    info = await saver.threads.aget(name)
    if info is None:
        raise ThreadNotFoundError(thread=name)
    config = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
    steps = [one async for one in saver.alist(config, limit=_STEPS, values="lazy")]
    return render(request, "thread.html", info=info, steps=steps)


ROUTES = [Route("/thread", thread)]
