"""A thread: its conversation, and its steps."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import ThreadNotFoundError
from threadkeep.ui.page import needed, page_of, render
from threadkeep.ui.pages import steps


async def thread(request: Request) -> Response:
    """Show a thread."""
    saver, name = page_of(request).saver, needed(request, "id")
    info = await saver.threads.aget(name)
    if info is None:
        raise ThreadNotFoundError(thread=name)
    return render(request, "thread.html", info=info, **await steps.window(request, name))


ROUTES = [Route("/thread", thread)]
