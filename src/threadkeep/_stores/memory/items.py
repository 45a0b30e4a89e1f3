"""Items in this process's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from threading import Lock
from typing import Any, NamedTuple

from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.items import ItemBackend, records
from threadkeep._stores.items.filters import best_texts, nearest, numpy
from threadkeep._stores.items.records import ItemKey, ItemPut, ItemRow, Namespace, VersionRow
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import ConflictError


class _Item(NamedTuple):
    row: ItemRow
    vectors: tuple[records.Vector, ...]
    words: str | None


class MemoryItems(ItemBackend, ResetInChild):
    """Rows behind one lock. Hints of filters are left to the caller."""

    instant = True
    commits_groups = True

    def __init__(self, options: records.SearchOptions) -> None:
        if options.dims:
            numpy()
        self._metric = options.metric
        self._items: dict[Namespace, dict[str, _Item]] = {}
        self._numbers: dict[Namespace, int] = {}  # of namespaces, in the order of their first put
        self._versions: dict[ItemKey, list[VersionRow]] = {}
        self._counter = count(1)
        super().__init__()

    def _reset(self) -> None:
        self._lock = Lock()

    # -- reads ---------------------------------------------------------------------------

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        with self._lock:
            return [self._reply(read) for read in reads]

    def _reply(self, read: records.ItemRead) -> Any:
        match read:
            case records.GetItems():
                return [self._get(key, read.now) for key in read.keys]
            case records.FindItems():
                under = self._under(read.prefix, read.now)
                rows = (one.row for one in under if not (read.bare and one.vectors))
                if read.pending:
                    rows = (row for row in rows if row.pending is not None)
                if read.after is not None:
                    rows = (row for row in rows if row.place > read.after)
                first = 0 if read.where else read.offset
                return list(islice(rows, first, first + read.limit))
            case records.FindNamespaces():
                return list(dict.fromkeys(each.row.namespace for each in self._under(*read)))
            case records.FindNearest():
                some = list(self._under(read.prefix, read.now))
                vectors = [(one.row.place, each.data) for one in some for each in one.vectors]
                return _scored(some, nearest(self._metric, vectors, read.vector, read.limit))
            case records.FindText():
                some = list(self._under(read.prefix, read.now))
                texts = {one.row.place: one.words for one in some if one.words}
                return _scored(some, best_texts(texts, read.words, read.limit))
            case records.FindVersions(limit, item, after):
                names = sorted(self._versions) if item is None else [item]
                every = [
                    records.StoredVersion(*name, row)
                    for name in names
                    for row in self._versions.get(name, ())
                ]
                return [one for one in every if after is None or one > after][:limit]

    def _get(self, key: ItemKey, now: int | None) -> ItemRow | None:
        one = self._items.get(key[0], {}).get(key[1])
        return one.row if one is not None and one.row.is_there(now) else None

    def _under(self, prefix: Namespace, now: int | None) -> Iterator[_Item]:
        size = len(prefix)
        for namespace in self._numbers:
            if namespace[:size] == prefix:
                for one in self._items.get(namespace, {}).values():
                    if one.row.is_there(now):
                        yield one

    # -- changes -------------------------------------------------------------------------

    def commit(self, change: Any) -> None:
        with self._lock:
            self._carry_out(change)

    def _carry_out(self, change: records.ItemChange) -> None:
        match change:
            case records.PutItems():
                for put in change.puts:
                    self._check(put)
                for put in change.puts:
                    self._put(put, change.now)
            case records.RefreshItems():
                for namespace, key in change.keys:
                    one = self._items.get(namespace, {}).get(key)
                    if one is not None and one.row.ttl is not None:
                        row = one.row._replace(expires_at=change.now + one.row.ttl)
                        self._items[namespace][key] = one._replace(row=row)
            case records.EmbedItems():
                for each in change.items:
                    self._embed(each)
            case records.ReplacePatches(versions):
                self._repatch(versions)

    def _repatch(self, versions: Sequence[tuple[records.StoredVersion, bytes]]) -> None:
        for one, patch in versions:
            rows = self._versions.get((one.namespace, one.key), [])
            rows[:] = [
                row._replace(patch=patch) if row.version == one.row.version else row for row in rows
            ]

    def _check(self, put: ItemPut) -> None:
        row = self._get((put.namespace, put.key), None)
        if put.expects is not None and put.expects != (row.version if row else 0):
            raise ConflictError("The item has another version.")

    def _put(self, put: ItemPut, now: int) -> None:
        if put.earlier is not None:
            versions = self._versions.setdefault((put.namespace, put.key), [])
            versions.append(put.earlier.row)
            del versions[: -put.earlier.keep]
        items = self._items.setdefault(put.namespace, {})
        if put.value is None:
            items.pop(put.key, None)
            if not items:
                del self._items[put.namespace]
            return
        old = items.get(put.key)
        version = next(self._counter)
        number = self._numbers.setdefault(put.namespace, version)
        first = now if old is None else old.row.created_at
        created, updated, expires = put.times_at(now, first)
        row = ItemRow(
            *(put.namespace, put.key, put.value),
            *(created, updated, version),
            (number, version) if old is None else old.row.place,
            *(put.ttl, expires, put.pending),
        )
        items[put.key] = _Item(row, put.vectors, put.words)

    def _embed(self, each: records.EmbedItem) -> None:
        one = self._items.get(each.namespace, {}).get(each.key)
        if one is not None and one.row.version == each.version:
            done = one._replace(row=one.row._replace(pending=None), vectors=each.vectors)
            self._items[each.namespace][each.key] = done

    def usage(self, now: int) -> ItemUsage:
        """Count the items. See `Backend.item_usage`."""
        with self._lock:
            found = list(self._under((), None))
            versions = [one for some in self._versions.values() for one in some]
            return ItemUsage(
                items=len(found),
                item_bytes=sum([_length(one.row.value) for one in found])
                + sum([len(one.patch) for one in versions]),
                expired_items=len([one for one in found if not one.row.is_there(now)]),
                waiting_items=len([one for one in found if one.row.pending is not None]),
                vector_bytes=sum([len(each.data) for one in found for each in one.vectors]),
            )

    def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        with self._lock:
            expired = (one.row for one in self._under(prefix, None) if not one.row.is_there(now))
            gone = list(islice(expired, limit))
            for row in gone:
                self._put(ItemPut(row.namespace, row.key, None), now)
                self._versions.pop((row.namespace, row.key), None)
            for namespace in {row.namespace for row in gone} - self._items.keys():
                del self._numbers[namespace]
            return len(gone)

    def erase(self, prefix: Namespace) -> int:
        with self._lock:
            gone = [one.row for one in self._under(prefix, None)]
            for row in gone:
                self._put(ItemPut(row.namespace, row.key, None), 0)
            for key in [key for key in self._versions if key[0][: len(prefix)] == prefix]:
                del self._versions[key]
            for name in [name for name in self._numbers if name[: len(prefix)] == prefix]:
                del self._numbers[name]
            return len(gone)


def _length(value: records.Packed) -> int:
    return len(value if isinstance(value, bytes) else value.encode())


def _scored(
    some: Sequence[_Item], found: Sequence[tuple[records.ItemPlace, float]]
) -> list[records.Scored]:
    rows = {one.row.place: one.row for one in some}
    return [records.Scored(rows[place], score) for place, score in found]
