"""Long-term memory: namespaces, items, and the versions of an item."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import InvalidArgumentError, NotFoundError, NotSetUpError
from threadkeep.store.items import ItemVersion
from threadkeep.store.showing import items_of
from threadkeep.threads.diff import brief, path_text, plain
from threadkeep.threads.diff.values import differences
from threadkeep.ui import text
from threadkeep.ui.page import MOST, needed, number, page_of, render
from threadkeep.ui.pages.store import own

_ROWS = 50
_SHOWN = 160  # characters of a value in a list
_SEPARATOR = "."  # (LangGraph allows it in no label)


async def items(request: Request) -> Response:
    """Show namespaces, and the items below one."""
    ns, at = request.query_params.get("ns", ""), number(request, "at", 0, 10**9)
    labels, wanted = _labels(ns), request.query_params.get("filter", "")
    found, spaces = [], []
    if (store := await _store(request)) is not None:
        options = {"filter": _filter(wanted), "limit": _ROWS + 1, "offset": at}
        if ns or wanted:
            found = await store.asearch(labels, refresh_ttl=False, **options)
        if not at or not (ns or wanted):
            spaces = await store.alist_namespaces(
                prefix=labels or None, limit=_ROWS + 1, offset=0 if ns else at
            )
    rows = await to_thread.run_sync(
        lambda: [(one, brief(plain(one.value), _SHOWN)) for one in found[:_ROWS]]
    )
    names = [one for one in map(_SEPARATOR.join, spaces[:_ROWS]) if one != ns]
    more = at + _ROWS if len(found if ns or wanted else spaces) > _ROWS else 0
    shown: dict[str, Any] = {"ns": ns, "wanted": wanted, "rows": rows, "names": names, "more": more}
    return render(request, "items.html", **shown, has_more_names=len(spaces) > _ROWS)


async def item(request: Request) -> Response:
    """Show an item's value and versions, and the differences between two of them."""
    ns, key = needed(request, "ns"), needed(request, "key")
    store = await _store(request)
    found: list[ItemVersion] = [] if store is None else await store.aversions(_labels(ns), key)
    if not found:
        raise NotFoundError(f"There is no item {key!r} in the namespace {ns!r}.")
    by_number = {one.version: one for one in found}
    chosen = by_number.get(number(request, "version", found[0].version, 2**62), found[0])
    value = await to_thread.run_sync(partial(text.as_json, chosen.value))
    if "save" in request.query_params:
        headers = {"content-disposition": 'attachment; filename="item.json"'}
        return Response(value, media_type="application/json", headers=headers)
    older = [one for one in found if one.version < chosen.version]
    against = number(request, "against", older[0].version if older else chosen.version, 2**62)
    before = by_number.get(against, chosen)
    changes = await to_thread.run_sync(partial(_changes, before.value, chosen.value))
    shown: dict[str, Any] = {"ns": ns, "key": key, "versions": found[:MOST], "chosen": chosen}
    return render(request, "item.html", **shown, before=before, value=value, changes=changes)


def _changes(before: Any, after: Any) -> list[dict[str, str]]:
    """Return the changes between two values, as texts."""
    found = differences(plain(before), plain(after), lambda value: json.dumps(value).encode())
    return [
        {
            "kind": one.kind,
            "place": path_text(one.after_at if one.kind == "added" else one.before_at),
            "before": "" if one.kind == "added" else text.cut(text.as_json(one.before), 2000),
            "after": "" if one.kind == "removed" else text.cut(text.as_json(one.after), 2000),
        }
        for one in found[:MOST]
    ]


async def _store(request: Request) -> Any:
    """Return the items of the store; None if it has no tables for them."""
    own(request)
    kept = request.app.state
    if not hasattr(kept, "items"):
        try:
            kept.items = await to_thread.run_sync(items_of, page_of(request).saver)
        except NotSetUpError:
            return None
    return kept.items


def _labels(name: str) -> tuple[str, ...]:
    return tuple(name.split(_SEPARATOR)) if name else ()


def _filter(given: str) -> dict[str, Any] | None:
    if not given.strip():
        return None
    try:
        found = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"The filter is not JSON: {error}.", hint='Write {"kind": "fact"}.'
        ) from error
    if not isinstance(found, dict):
        raise InvalidArgumentError("The filter is no object.", hint='Write {"kind": "fact"}.')
    return found


ROUTES = [Route("/store/items", items), Route("/store/item", item)]
