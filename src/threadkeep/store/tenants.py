"""A layer that shows a store the items of one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep._core.engine.operation import Call, Commit, Fetch, Operation
from threadkeep._stores.items import records
from threadkeep._stores.items.records import ItemKey, ItemRow


class TenantItems:
    """Layer that puts a tenant's label in front of each namespace, and removes it from replies.

    So no request names an item of another tenant.
    """

    handles = frozenset({Fetch, Call, records.PutItems, records.RefreshItems, records.EmbedItems})

    def __init__(self, label: str) -> None:
        self._root = (label,)

    def answer(self, request: Fetch | Commit | Call) -> Operation[Any]:
        if isinstance(request, Fetch):
            reads: Any = request.reads
            replies = yield Fetch([self._read(read) for read in reads])
            return [self._from_store(*pair) for pair in zip(reads, replies, strict=True)]
        if isinstance(request, Commit):
            return (yield Commit(self._change(request.change)))
        return (yield self._call(request))

    def _call(self, request: Call) -> Call:
        method, (first, *rest) = request.method, request.args or (None,)
        match method:
            case "commit":
                return request._replace(args=(self._change(first),))
            case "erase":
                return request._replace(args=((*self._root, *first),))
            case "sweep":
                return request._replace(args=(first, *rest, self._root))
            case _:
                return request

    # -- reads ---------------------------------------------------------------------------

    def _read(self, read: Any) -> Any:
        match read:
            case records.GetItems(keys):
                return read._replace(keys=self._keys(keys))
            case records.FindVersions(_, (namespace, key)):
                return read._replace(item=((*self._root, *namespace), key))
            case _:
                return read._replace(prefix=(*self._root, *read.prefix))

    def _from_store(self, read: Any, reply: Any) -> Any:
        match read:
            case records.GetItems() | records.FindItems():
                return [None if row is None else _plain(row) for row in reply]
            case records.FindNamespaces():
                return [namespace[1:] for namespace in reply]
            case records.FindNearest() | records.FindText():
                return [one._replace(row=_plain(one.row)) for one in reply]
            case _:
                return reply

    def _keys(self, keys: Sequence[ItemKey]) -> tuple[ItemKey, ...]:
        return tuple([((*self._root, *namespace), key) for namespace, key in keys])

    # -- changes -------------------------------------------------------------------------

    def _change(self, change: Any) -> Any:
        match change:
            case records.PutItems(puts):
                return change._replace(puts=self._named(puts))
            case records.EmbedItems(items):
                return change._replace(items=self._named(items))
            case _:
                return change._replace(keys=self._keys(change.keys))

    def _named(self, some: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([one._replace(namespace=(*self._root, *one.namespace)) for one in some])


def _plain(row: ItemRow) -> ItemRow:
    return row._replace(namespace=row.namespace[1:])
