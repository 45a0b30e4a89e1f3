"""The list of threads: a search, and pages of its results."""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse, Response

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import ThreadPage, queries
from threadkeep.ui.page import Asked, route

_PAGE = 50  # threads


@route("/")
async def threads(request: Asked) -> Response:
    """Show threads that match a query, newest first or by another order."""
    asked = request.query_params
    query, order = asked.get("q", "").strip(), asked.get("order", "-updated_at")
    found, error = ThreadPage((), None), None
    try:
        found = await _find(request, query, order)
    except InvalidArgumentError as refused:
        error = refused
    largest = max([one.archived_bytes or one.bytes for one in found], default=0)
    values: dict[str, Any] = {"query": query, "order": order, "found": found, "error": error}
    return request.render("threads.html", largest=largest, **values)


async def _find(request: Asked, query: str, order: Any) -> ThreadPage:
    """Return a page of threads. One with exactly the query as its id is the first."""
    page, cursor = request.page, request.query_params.get("cursor")
    exact = await page.saver.threads.aget(query) if query and not cursor else None
    first = () if exact is None else (exact,)
    if query and not page.is_own:
        if first:
            return ThreadPage(first, None)
        raise InvalidArgumentError("A store of LangGraph's own is searched by exact ids.")
    try:
        filters = queries.filters_of(query)
    except InvalidArgumentError:
        if first:
            return ThreadPage(first, None)
        raise
    found = await page.saver.threads.asearch(order=order, limit=_PAGE, cursor=cursor, **filters)
    return ThreadPage((*first, *[one for one in found if one != exact]), found.cursor)


@route("/count")
async def count(request: Asked) -> Response:
    """Return the number of threads that match a query, which may take longer than a page."""
    filters = queries.filters_of(request.query_params.get("q", "").strip())
    return HTMLResponse(f"{await request.own.saver.threads.acount(**filters):,}")
