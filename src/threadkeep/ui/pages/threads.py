"""The list of threads: a search, and pages of what it finds."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import Filters, queries
from threadkeep.ui.page import page_of, render

_PAGE = 50  # threads
_CHIPS = (
    *("is:waiting", "is:pinned", "state:active", "state:archived", "state:deleted"),
    *("updated:<1d", "updated:<7d", "updated:>30d", "size:>1MB"),
)


async def threads(request: Request) -> Response:
    """Show threads that match a query, newest first or by another order."""
    asked = request.query_params
    query, order = asked.get("q", "").strip(), asked.get("order", "-updated_at")
    found: list[Any] = []
    cursor = error = None
    try:
        found, cursor = await _find(request, query, order)
    except InvalidArgumentError as refused:
        error = refused
    return render(
        *(request, "threads.html"),
        query=query,
        order=order,
        found=found,
        cursor=cursor,
        error=error,
        largest=max([one.archived_bytes or one.bytes for one in found], default=0),
        chips=_CHIPS,
        chosen=queries.terms(query),
        queries=queries,
    )


async def _find(request: Request, query: str, order: Any) -> tuple[list[Any], str | None]:
    """Return a page of threads and the cursor of the next one; an exact id is the first."""
    page, cursor = page_of(request), request.query_params.get("cursor")
    exact = await page.saver.threads.aget(query) if query and not cursor else None
    first = [] if exact is None else [exact]
    try:
        filters = queries.filters_of(query) if page.is_own else _none_of(query)
    except InvalidArgumentError:
        if first:
            return first, None
        raise
    found = await page.saver.threads.asearch(order=order, limit=_PAGE, cursor=cursor, **filters)
    return [*first, *[one for one in found if one.id != query or not first]], found.cursor


def _none_of(query: str) -> Filters:
    if query:
        raise InvalidArgumentError("A store of LangGraph's own is searched by exact ids.")
    return {}


async def count(request: Request) -> Response:
    """Return the number of threads that match a query, which may take longer than a page."""
    filters = queries.filters_of(request.query_params.get("q", "").strip())
    return HTMLResponse(f"{await page_of(request).saver.threads.acount(**filters):,}")


ROUTES = [Route("/", threads), Route("/count", count)]
