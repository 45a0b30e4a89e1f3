"""Threads by words of their messages, below those whose ids match."""

from __future__ import annotations

from starlette.responses import Response

from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import FoundThread, FoundThreads
from threadkeep.threads.diff import printable
from threadkeep.ui.messages import SIDES
from threadkeep.ui.page import Asked, route
from threadkeep.ui.pages.threads import filters_of, words_of

_MOST, _SECONDS = 20, 2.0  # threads, and time for reading


@route("/found")
async def found(request: Asked) -> Response:
    """Show threads with all words of a query in a message, as far as the time allows."""
    result, error, is_new = FoundThreads(), None, list[FoundThread]()
    query = request.query_params.get("q", "").strip()
    try:
        filters, words = filters_of(request.page, query), words_of(query)
        prefix = filters.pop("id_prefix", "")
        given = filters if request.page.is_own else {}  # (else there are none)
        find = request.page.saver.threads.afind
        result = await find(words, limit=_MOST, seconds=_SECONDS, **given)
        # (the list above has threads whose ids begin so)
        is_new = [one for one in result.hits if one.role or not one.thread.id.startswith(prefix)]
    except InvalidArgumentError as refused:
        error = refused
    hits = [(one, _parts(one), SIDES.get(one.role or "", one.role)) for one in is_new]
    return request.render("found.html", found=result, hits=hits, error=error, query=query)


def _parts(hit: FoundThread) -> list[tuple[str, bool]]:
    """Return the excerpt in parts, with True for those that match."""
    parts, end = [], 0
    for start, stop in hit.matches:
        parts += [(hit.excerpt[end:start], False), (hit.excerpt[start:stop], True)]
        end = stop
    return [(printable(text), is_match) for text, is_match in [*parts, (hit.excerpt[end:], False)]]
