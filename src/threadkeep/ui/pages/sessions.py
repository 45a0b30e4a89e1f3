"""Sessions of `threadkeep.sessions`, and their checkpoints."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import CorruptionError, WrongKeyError
from threadkeep.sessions.records import workflow_of
from threadkeep.ui.page import check_is_here, needed, page_of, render
from threadkeep.ui.pages.store import own

_ROWS = 50
_STATES = ("active", "forked", "suspended")


async def sessions(request: Request) -> Response:
    """Show the sessions among a page of threads, with the newest checkpoint of each."""
    own(request)
    search, cursor = page_of(request).saver.threads.asearch, request.query_params.get("cursor")
    found = await search(state=_STATES, limit=_ROWS, cursor=cursor)
    rows = []
    for one in found.threads:
        newest: list[Any] = []
        with suppress(CorruptionError, WrongKeyError):  # (its own page says so)
            newest = await _checkpoints(request, one.id, 1)
        if newest and (workflow := workflow_of(newest[0])) is not None:
            rows.append((one, workflow))
    return render(request, "sessions.html", cursor=found.cursor, rows=rows)


async def session(request: Request) -> Response:
    """Show the checkpoints of a session."""
    own(request)
    id = needed(request, "id")
    await check_is_here(request, id)
    found = await _checkpoints(request, id, _ROWS, request.query_params.get("before"))
    more = found[-1].checkpoint["id"] if len(found) == _ROWS else ""
    return render(request, "session.html", id=id, found=found, more=more, workflow=workflow_of)


async def _checkpoints(
    request: Request, id: str, limit: int, before: str | None = None
) -> list[Any]:
    config = {"configurable": {"thread_id": id}}
    end = {"configurable": {"thread_id": id, "checkpoint_id": before}} if before else None
    listed = page_of(request).saver.alist(config, limit=limit, before=end, values="lazy")
    return [one async for one in listed]


ROUTES = [Route("/store/sessions", sessions), Route("/store/session", session)]
