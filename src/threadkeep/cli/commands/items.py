"""Commands for stores of items and caches of node results: items, cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

from rich.console import RenderableType

from threadkeep._core.codec.codecs import RawCodec
from threadkeep._core.engine.operation import call
from threadkeep._core.texts import size
from threadkeep._run.layered_backend import store_of
from threadkeep._stores.items.records import ItemPacker
from threadkeep.cache import NodeCache
from threadkeep.cli.app import command
from threadkeep.cli.parameters import FULL, PLAIN, YES, argument, flag, option
from threadkeep.cli.readable import cut
from threadkeep.cli.stores import Session
from threadkeep.cli.terminal import compact, line, moment, plural, table
from threadkeep.errors import InvalidArgumentError, NotFoundError, NotSetUpError
from threadkeep.store import InMemoryStore, Store
from threadkeep.threads.diff import plain

_SEPARATOR = "."  # (LangGraph allows it in no label)
_WIDTH = 60  # characters of a value in a list


@contextmanager
def _opened(session: Session, *, read_only: bool) -> Iterator[Store]:
    """Open the store's items, or an empty store if a read-only file has no tables for them."""
    with session.open(read_only=read_only) as saver:
        try:
            store = Store(saver.backend, migrations=session.migrations)
        except NotSetUpError:
            store = InMemoryStore()
        if session.raw:
            packer = ItemPacker(codec=RawCodec())
            store._engine = replace(store._engine, packer=packer)  # noqa: SLF001 - only to show
        with store:
            yield store


@command("threadkeep items threads.db users.ann drink", imports=True, raw=True, tenant=False)
def items(  # noqa: PLR0913 - they are given by name
    session: Session,
    namespace: str | None = argument(
        "NAMESPACE", "Labels joined by dots: users.ann. Default: list the namespaces.", None
    ),
    key: str | None = argument("KEY", "Only this item, in full.", None),
    *,
    limit: int = option("--limit N", "List the first N.", 50, min=1),
    delete: bool = flag("--delete", "Delete the item."),
    export: Path | None = option("--export FILE", "Write the items to a file, for import_items."),
    plain: bool = PLAIN,
    yes: bool = YES,
    full: bool = FULL,
) -> None:
    """List, show, export or delete items of long-term memory."""
    labels = tuple(namespace.split(_SEPARATOR)) if namespace else ()
    if delete and (key is None or export):
        raise InvalidArgumentError("Nothing was deleted.", hint="Use NAMESPACE KEY --delete.")
    if export and key is not None:
        raise InvalidArgumentError("Nothing was exported.", hint="Leave out KEY.")
    with _opened(session, read_only=not delete) as store:
        if export:
            count = store.export_items(export, labels, plain=plain)
            document = {"file": str(export), "items": count}
            session.print(document, f"Exported {plural(count, 'item')} to {export}")
        elif key is not None:
            _item(session, store, labels, key, delete=delete, yes=yes, full=full)
        elif labels:
            _list(session, store, labels, limit, full=full)
        else:
            _namespaces(session, store, limit)


def _item(
    session: Session,
    store: Store,
    labels: tuple[str, ...],
    key: str,
    *,
    delete: bool,
    yes: bool,
    full: bool,
) -> None:
    found: Any = store.get(labels, key, refresh_ttl=False)
    name = _SEPARATOR.join(labels)
    if found is None:
        raise NotFoundError(f"There is no item {key!r} in the namespace {name!r}.")
    if delete:
        if not yes:
            session.confirm("delete", f"Delete {key} of {name}? This cannot be undone.")
        store.delete(labels, key)
        session.print({"item": _document(found), "deleted": True}, "Deleted 1 item")
        return
    head = line(
        (key, "bold"),
        name,
        f"version {found.version}",
        f"updated {moment(found.updated_at.isoformat())}",
        f"created {moment(found.created_at.isoformat())}",
    )
    shown = json.dumps(plain(found.value), ensure_ascii=False, indent=2)
    session.print({"item": _document(found)}, head, cut(shown, full=full))


def _document(found: Any) -> dict[str, Any]:
    return {
        "namespace": list(found.namespace),
        "key": found.key,
        "value": plain(found.value),
        "version": found.version,
        "created_at": found.created_at.isoformat(),
        "updated_at": found.updated_at.isoformat(),
    }


def _list(
    session: Session, store: Store, labels: tuple[str, ...], limit: int, *, full: bool
) -> None:
    found: list[Any] = store.search(labels, limit=limit + 1, refresh_ttl=False)
    shown, more = found[:limit], len(found) > limit
    rows = []
    for one in shown:
        value = compact(plain(one.value))
        is_long = len(value) > _WIDTH and not full
        time = moment(one.updated_at.isoformat())
        name = _SEPARATOR.join(one.namespace)
        rows.append((name, one.key, time, f"{value[:_WIDTH]}..." if is_long else value))
    drawn: RenderableType = table(("namespace", "key", "updated", "value"), rows) or "No items"
    session.print(
        {"items": [_document(one) for one in shown], "more": more},
        drawn,
        "... more items not shown (--limit)" if more else None,
    )


def _namespaces(session: Session, store: Store, limit: int) -> None:
    found = store.list_namespaces(limit=limit + 1)
    more = len(found) > limit
    names = [_SEPARATOR.join(one) for one in found[:limit]]
    session.print(
        {"namespaces": [list(one) for one in found[:limit]], "more": more},
        *(names or ["No items"]),
        "... more namespaces not shown (--limit)" if more else None,
    )


@command("threadkeep cache threads.db", tenant=False)
def cache(
    session: Session,
    *,
    clear: bool = flag("--clear", "Remove all results."),
    yes: bool = YES,
) -> None:
    """Show the size of the cache of node results, or clear it."""
    if clear and not yes:
        session.confirm("clear", "Clear the cache? Nodes will compute their results again.")
    with session.open(read_only=not clear) as saver:
        used = store_of(saver).run(call("item_usage", round(time() * 1e6)))
        if clear:
            with NodeCache(saver.backend) as results:
                results.clear()
    count = plural(used.cache_entries, "result")
    counted = f"{count} ({size(used.cache_bytes)})"
    document = {"entries": used.cache_entries, "bytes": used.cache_bytes, "cleared": clear}
    session.print(document, f"Cleared {counted}" if clear else counted)
