"""Long-term memory: namespaces, items, and the versions of an item."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from starlette.responses import Response

from threadkeep.errors import InvalidArgumentError, NotFoundError, NotSetUpError
from threadkeep.store.showing import items_of
from threadkeep.ui.page import MOST, Asked, route
from threadkeep.ui.text import as_json

_ROWS = 50


@route("/store/items")
async def items(request: Asked) -> Response:
    """Show namespaces, and the items below one."""
    ns, at = request.query_params.get("ns", ""), request.number("at")
    store, labels, found, spaces = await _store(request), _labels(ns), [], []
    if store is not None and ns:
        found = await store.asearch(labels, refresh_ttl=False, limit=_ROWS + 1, offset=at)
    if store is not None and not (ns and at):
        spaces = await store.alist_namespaces(prefix=labels or None, limit=_ROWS + 1, offset=at)
    names = [".".join(one) for one in spaces[:_ROWS] if one != labels]
    more = at + _ROWS if len(found if ns else spaces) > _ROWS else 0
    return request.render("items.html", ns=ns, names=names, found=found[:_ROWS], more=more)


@route("/store/item")
async def item(request: Asked) -> Response:
    """Show an item's versions, and the value of one."""
    ns, key, store = request.needed("ns"), request.needed("key"), await _store(request)
    found = [] if store is None else await store.aversions(_labels(ns), key)
    if not found:
        raise NotFoundError(f"There is no item {key!r} in the namespace {ns!r}.")
    wanted = request.number("version", 0, 2**62)
    chosen = next((one for one in found if one.version == wanted), found[0])
    value = await to_thread.run_sync(as_json, chosen.value)
    if "save" in request.query_params:
        headers = {"content-disposition": 'attachment; filename="item.json"'}
        return Response(value, media_type="application/json", headers=headers)
    shown: dict[str, Any] = {"ns": ns, "key": key, "versions": found[:MOST], "chosen": chosen}
    return request.render("item.html", **shown, value=value)


async def _store(request: Asked) -> Any:
    """Return the items of the store, or None if it has no tables for them."""
    try:
        return await to_thread.run_sync(items_of, request.own.saver)
    except NotSetUpError:
        return None


def _labels(name: str) -> tuple[str, ...]:
    labels = name.split(".") if name else []  # (LangGraph allows "." in no label)
    if "" in labels:
        raise InvalidArgumentError("A label of the namespace is empty.")
    return tuple(labels)
