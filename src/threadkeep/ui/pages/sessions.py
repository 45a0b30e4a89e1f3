"""Sessions of `threadkeep.sessions`, and their checkpoints."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.sessions.records import workflow_of
from threadkeep.ui.page import needed, page_of, render
from threadkeep.ui.pages.store import own

_ROWS = 50


async def sessions(request: Request) -> Response:
    """Show the sessions among a page of threads, with the newest checkpoint of each."""
    own(request)
    saver = page_of(request).saver
    found = await saver.threads.asearch(
        state=["active", "forked", "suspended"],
        limit=_ROWS,
        cursor=request.query_params.get("cursor"),
    )
    rows = []
    for one in found.threads:
        newest = await _checkpoints(saver, one.id, 1)
        if newest and (workflow := workflow_of(newest[0])) is not None:
            rows.append((one, workflow))
    return render(request, "sessions.html", found=found, rows=rows)


async def session(request: Request) -> Response:
    """Show the checkpoints of a session."""
    own(request)
    id, before = needed(request, "id"), request.query_params.get("before")
    found = await _checkpoints(page_of(request).saver, id, _ROWS + 1, before)
    rows = [(one, workflow_of(one)) for one in found[:_ROWS]]
    more = found[_ROWS - 1].checkpoint["id"] if len(found) > _ROWS else ""
    return render(request, "session.html", id=id, rows=rows, more=more)


async def _checkpoints(saver: Any, id: str, limit: int, before: str | None = None) -> list[Any]:
    end = None if before is None else {"configurable": {"thread_id": id, "checkpoint_id": before}}
    config = {"configurable": {"thread_id": id}}
    listed = saver.alist(config, limit=limit, before=end, values="lazy")
    return [one async for one in listed]


ROUTES = [Route("/store/sessions", sessions), Route("/store/session", session)]
