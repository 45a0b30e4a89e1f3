"""The list of threads: a search, pages of its results, previews, and counts."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from starlette.responses import HTMLResponse, Response

from threadkeep.errors import InvalidArgumentError, ThreadkeepError
from threadkeep.threads import ThreadInfo, ThreadPage, ThreadStatus, queries
from threadkeep.ui.page import MOST, WAITING, Asked, StorePage, route
from threadkeep.ui.previews import Preview, Previews

_PAGE = 50  # threads
_COUNTED = ("failed", "unfinished", "waiting", "held", "running")  # (all others are done)
_TOLD = {ThreadStatus.FAILED, ThreadStatus.WAITING}  # by LangGraph's entries


@route("/")
async def threads(request: Asked) -> Response:
    """Show threads that match a query, newest first or by another order."""
    found, looked, error = ThreadPage((), None), 0, None
    try:
        found, looked = await _find(request)
    except InvalidArgumentError as refused:
        error = refused
    previews: Previews = request.app.state.previews
    query, order = _asked(request)
    values: dict[str, Any] = {"query": query, "order": order, "error": error}
    return request.render(
        "threads.html",
        largest=max([one.archived_bytes or one.bytes for one in found], default=0),
        rows=_rows(request, found),
        cursor=found.cursor,
        looked=looked,
        words=not error and "cursor" not in request.query_params and words_of(query),
        is_read=all(map(previews.is_current, found)),
        part="page",
        **values,
    )


@route("/previews")
async def previews(request: Asked) -> Response:
    """Show the first question and the last message of the threads of a page, or of one thread."""
    try:
        if (name := request.query_params.get("id")) is not None:
            found = ThreadPage((await request.thread(name),), None)
        else:
            found, _ = await _find(request)
        await request.app.state.previews.read(found)
    except ThreadkeepError:  # (the list says so)
        return Response(status_code=204)
    return request.render("previews.html", rows=_rows(request, found), part="previews")


def _rows(request: Asked, found: ThreadPage) -> list[tuple[ThreadInfo, Preview | None]]:
    known: Previews = request.app.state.previews
    return [(known.shown(one), known.of(one)) for one in found]


def _asked(request: Asked) -> tuple[str, Any]:
    """Return the query and the order."""
    asked = request.query_params
    return asked.get("q", "").strip(), asked.get("order", "-updated_at")


async def _find(request: Asked) -> tuple[ThreadPage, int]:
    """Return a page of threads, and how many were looked at if the store has no such filter.

    A thread with exactly the query as its id is the first.
    """
    (query, order), cursor = _asked(request), request.query_params.get("cursor")
    search, place = request.page.saver.threads.asearch, {"order": order, "cursor": cursor}
    exact = await request.page.saver.threads.aget(query) if query and not cursor else None
    first = () if exact is None else (exact,)
    try:
        filters = filters_of(request.page, query)
    except InvalidArgumentError:
        if first:
            return ThreadPage(first, None), 0
        raise
    if filters and not request.page.is_own:
        if "status" not in filters:
            return ThreadPage(first, None), 0
        return await _by_status(request.app.state.previews, filters["status"], search, place)
    found = await search(limit=_PAGE, **place, **filters)
    return ThreadPage((*first, *[one for one in found if one != exact]), found.cursor), 0


def filters_of(page: StorePage, query: str) -> dict[str, Any]:
    """Return the filters of a query that the store has. Words become the beginning of ids."""
    found: dict[str, Any] = {**queries.filters_of(query)}
    if not page.is_own and (found.keys() - {"status", "id_prefix"} or len(found) > 1):
        hint = "Use words, or an id, or statuses such as status:failed."
        raise InvalidArgumentError("A store of LangGraph's own has no such filter.", hint=hint)
    return found


def words_of(query: str) -> str:
    """Return the words of a query that may be in messages, or an empty text."""
    with suppress(InvalidArgumentError):
        if not any(one.startswith("id:") for one in queries.terms(query)):
            return queries.filters_of(query).get("id_prefix", "")
    return ""


async def _by_status(
    known: Previews, statuses: list[str], search: Any, place: dict[str, Any]
) -> tuple[ThreadPage, int]:
    """Return those of the next threads of a store of LangGraph's that have one of the statuses."""
    found = await search(limit=MOST, **place)
    if not _TOLD.issuperset(statuses):
        await known.read([one for one in found if one.status is None])
    told = [(one, known.shown(one).status) for one in found]
    chosen = [one for one, status in told if status in statuses]
    return ThreadPage(tuple(chosen), found.cursor), sum(status is not None for _, status in told)


@route("/count")
async def count(request: Asked) -> Response:
    """Return the number of threads that match a query, which may take longer than a page."""
    filters = queries.filters_of(request.query_params.get("q", "").strip())
    return HTMLResponse(f"{await request.own.saver.threads.acount(**filters):,}")


@route("/counts")
async def counts(request: Asked) -> Response:
    """Return the numbers of threads by status, the same for all viewers for some seconds."""
    await request.app.state.counts.look()
    return request.render("counts.html")


async def counts_of(page: StorePage) -> dict[str, int]:
    """Count threads by status, and as "inbox" those that wait for an answer.

    Of a store of LangGraph's, the newest threads count, and "among" is their number.
    """
    threads = page.saver.threads
    if not page.is_own:
        found = await threads.asearch(limit=MOST)
        told = Counter(one.status for one in found)
        numbers = {str(one): told[one] for one in _TOLD}
        among = {"among": len(found)} if found.cursor else {}
        return {**numbers, **among, "inbox": told[ThreadStatus.WAITING]}
    filters = {name: {"status": name} for name in _COUNTED} | {"inbox": WAITING}
    return {name: await threads.acount(**one) for name, one in filters.items()}
