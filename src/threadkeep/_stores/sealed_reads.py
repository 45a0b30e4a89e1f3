"""Reads of a store that holds only sealed rows (design note 0026).

A checkpoint is read with the `run` and `seen` of its first child, which say which of its writes
count. They are authenticated with the child's row alone, so that row is opened too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter, call
from typing import Any

from threadkeep._core import tenants
from threadkeep._core.engine import model
from threadkeep._core.engine.sealed_rows import RowSealer, Searchable
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    is_archived,
    without_labels,
)
from threadkeep._core.sealing import OVERHEAD
from threadkeep._stores.families import Families
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    DestroyedKeyError,
    TamperedDataError,
    WrongKeyError,
)

_PAGE = 500


class SealedReads:
    """Asks a store, and opens its replies.

    Args:
        below: the store.
        keys: its keys.
        families: the sealers of its threads.
    """

    def __init__(self, below: Any, keys: StoreKeys, families: Families) -> None:
        self._below, self._keys, self._families = below, keys, families

    async def fetch(self, reads: Sequence[model.Read]) -> list[Any]:
        first = reads[0] if len(reads) == 1 else None
        if isinstance(first, model.ReadCheckpoint):
            (reply,) = await result(self._below.fetch(reads))
            return [self.opened_from_memory(first, reply) or await self._opened(first, reply)]
        asked = [await self._to_store(read) for read in reads]
        replies = await result(self._below.fetch([read for read, _ in asked]))
        return [
            await self._from_store(*pair, reply) for pair, reply in zip(asked, replies, strict=True)
        ]

    async def _ask(self, read: Any) -> Any:
        (reply,) = await result(self._below.fetch([read]))
        return reply

    # -- rows --------------------------------------------------------------------------

    def opened_from_memory(
        self, read: model.ReadCheckpoint, reply: model.ThreadState
    ) -> model.ThreadState | None:
        """Return the opened reply to a read if no other read is needed, else None."""
        if reply.found is None:
            return reply
        if _depends_on_child(read, reply.found) or not self._keys.is_known:
            return None
        known = self._families.memory.get(read.thread)
        if known is None or known.rows is None:
            return None
        known.note(reply.tips)
        try:
            return reply._replace(found=known.rows.opened(reply.found))
        except CodecError:
            return None

    async def _opened(self, read: model.Read, reply: Any) -> Any:
        """Open a reply, and the children that say which of its writes count."""
        opened = await self._opened_rows(read, reply)
        unread = _unread_children(read, opened)
        if unread:
            states = await result(self._below.fetch([asked for asked, _ in unread]))
            for (asked, parent), state in zip(unread, states, strict=True):
                if state.found is not None:  # (else it was removed meanwhile)
                    row = state.found._replace(keyframe=None, writes=())
                    child = await self._opened_rows(asked, state._replace(found=row))
                    _check_child(parent, child.found.row)
        return opened

    async def _opened_rows(self, read: model.Read, reply: Any) -> Any:
        """Open the rows of a reply. Few threads have rows of others."""
        names = _threads_of(read, reply)
        skip = isinstance(read, model.ReadThread) and read.skip
        if isinstance(read, model.ReadCheckpoint) and (known := self._families.get(read.thread)):
            known.note(reply.tips)
        for name in names:
            try:
                await self._keys.of(name, is_thread=True)
            except DestroyedKeyError:
                if not skip:
                    raise
                return _opened_with(self._families.rows, read, reply, _damaged)
        try:
            return _opened_with(self._families.rows, read, reply)
        except (TamperedDataError, WrongKeyError):
            named = getattr(reply, "tips", ())
            families = [await self._families.read(name, named) for name in names]
            if not any(family.relatives for family in families) and not skip:
                raise
        each = _or_damaged if skip else call
        return _opened_with(self._families.rows, read, reply, each)

    # -- searches by digests -----------------------------------------------------------

    async def _to_store(self, read: model.Read) -> tuple[model.Read, tuple[str, ...]]:
        """Return a read that the store can answer, and labels that only opened entries have."""
        if isinstance(read, model.FindThreads) and read.run_ids:
            words = await self._searchable(tenants.tenant_of(read.prefix))
            return read._replace(run_ids=tuple(map(words.run, read.run_ids))), ()
        if isinstance(read, model.ScanCheckpoints) and read.filter:
            name = read.thread or read.prefix
            if not name and await self._has_tenants():
                return read._replace(filter={}), ()
            words = await self._searchable(tenants.tenant_of(name))
            return read._replace(filter=words.metadata(read.filter)), ()
        if isinstance(read, SearchThreads | CountThreads) and read.query.labels:
            labels, prefix = read.query.labels, read.query.prefix
            if not prefix and await self._has_tenants():
                return read._replace(query=read.query._replace(labels=())), labels
            words = await self._searchable(tenants.tenant_of(prefix))
            found = {label: words.label(label) for label in labels}
            indexed = tuple([one for one in found.values() if one is not None])
            left = tuple([label for label in labels if found[label] is None])
            # (an index may have digests of earlier values, and a search opens its entries)
            checked = labels if isinstance(read, SearchThreads) else left
            return read._replace(query=read.query._replace(labels=indexed)), checked
        return read, ()

    async def _searchable(self, tenant: str) -> Searchable:
        name = tenants.prefix(tenant) if tenant else ""
        return Searchable(await self._keys.of(name), tenant, self._keys.indexed)

    async def _has_tenants(self) -> bool:
        """Return True if searches by digests of the store itself may miss threads."""
        found = await self._ask(model.FindThreads(tenants.FIRST, 1, empty=True))
        return any(map(tenants.tenant_of, found))

    # -- what listings leave out -------------------------------------------------------

    async def _from_store(self, read: model.Read, labels: tuple[str, ...], reply: Any) -> Any:
        """Return the opened reply to a read, with the result of `_to_store`.

        Lists leave out threads whose key was destroyed: a program that knew it wrote late.
        """
        match read:
            case model.FindThreads():
                return await self._kept(read, reply, str, self._shown)
            case model.ReadSizes():
                threads = await self._kept(read, reply.threads, attrgetter("thread"), self._shown)
                return reply._replace(threads=tuple(threads))
            case CountThreads() if labels:
                return await self._count(read, labels)
            case SearchThreads():
                after = attrgetter(read.order, "thread")
                return await self._kept(read, reply, after, partial(self._entries, labels))
            case ReadEntry():
                if reply is None or is_archived(reply) or not await self.is_gone(reply.thread):
                    return reply and await self._entry(reply)
                return reply._replace(labels=())
            case model.ScanCheckpoints() if read.thread is None:
                place = attrgetter("row.id", "thread", "row.ns")
                reply = await self._kept(read, reply, place, self._shown)
        return await self._opened(read, reply)

    async def _kept(
        self,
        read: Any,
        page: Sequence[Any],
        after: Callable[[Any], Any],
        keep: Callable[[Sequence[Any]], Awaitable[list[Any]]],
    ) -> list[Any]:
        """Return rows of a page that `keep` returns, with the next ones in place of others."""
        found: list[Any] = []
        while True:
            found += await keep(page)
            if len(page) < read.limit or len(found) >= read.limit:
                return found[: read.limit]
            reply = await self._ask(read._replace(after=after(page[-1])))
            page = reply.threads if isinstance(reply, model.Sizes) else reply

    async def _shown(self, page: Sequence[Any]) -> list[Any]:
        names = [one if isinstance(one, str) else one.thread for one in page]
        own = dict.fromkeys([name for name in names if not tenants.is_hidden(name)])
        await self._keys.load([*own])
        kept = {name for name in own if not await self.is_gone(name)}
        return [one for one, name in zip(page, names, strict=True) if name in kept]

    async def is_gone(self, thread: str) -> bool:
        """Return True if a thread's key was destroyed."""
        if not self._keys.are_derived:
            try:
                await self._keys.of(thread, is_thread=True)
            except DestroyedKeyError:
                return True
        return False

    async def _entry(self, entry: ThreadEntry) -> ThreadEntry:
        """Open an entry. Labels that do not open are damage."""
        try:
            opened: ThreadEntry = await self._opened(ReadEntry(entry.thread), entry)
        except TamperedDataError:
            return without_labels(entry)
        return opened

    async def _entries(
        self, labels: Collection[str], page: Sequence[ThreadEntry]
    ) -> list[ThreadEntry]:
        """Open entries, without those that lack one of these labels, or whose key was destroyed."""
        await self._keys.load([one.thread for one in page])
        found = []
        for entry in page:
            with suppress(DestroyedKeyError):
                found.append(await self._entry(entry))
        return [one for one in found if {*labels} <= {*one.labels} or one.damage]

    async def _count(self, read: CountThreads, labels: tuple[str, ...]) -> int:
        search = SearchThreads(read.query, "thread", descending=False, after=None, limit=_PAGE)
        number = 0
        while True:
            page = await self._ask(search)
            entries = await self._entries(labels, page)
            number += len([one for one in entries if not one.damage])
            if len(page) < _PAGE:
                return number
            search = search._replace(after=(page[-1].thread, page[-1].thread))


# -- the rows of a reply -----------------------------------------------------------------


def _threads_of(read: model.Read, reply: Any) -> set[str]:
    """Return the threads of the rows that a reply has."""
    if isinstance(read, model.ReadPath | model.ScanCheckpoints):
        return {one.thread for one in reply}
    if isinstance(read, model.ReadSegments):
        return {read.thread} if reply else set()
    rows = [getattr(reply, name, None) for name in ("found", "checkpoints", "orphans", "labels")]
    return {str(getattr(read, "thread", ""))} if any(rows) else set()


def _opened_with(
    make: Callable[[str], RowSealer], read: model.Read, reply: Any, each: Callable[..., Any] = call
) -> Any:
    """Return a reply with opened rows. `each` calls a function to open a row with the row."""
    rows = cache(make)
    if isinstance(read, model.ReadPath | model.ScanCheckpoints):
        return [rows(one.thread).opened(one) for one in reply]
    if isinstance(read, model.ReadCheckpoint) and reply.found is not None:
        return reply._replace(found=rows(read.thread).opened(reply.found))
    if isinstance(read, model.ReadSegments):
        return [*map(rows(read.thread).opened_segment, reply)]
    if isinstance(read, ReadEntry):
        return rows(read.thread).opened_entry(reply)
    if isinstance(read, model.ReadThread):
        own = rows(read.thread)
        return reply._replace(
            checkpoints=tuple([own.opened(one, each) for one in reply.checkpoints]),
            orphans=tuple([each(own.opened_write, one) for one in reply.orphans]),
            segments=tuple(
                [one._replace(size=max(one.size - OVERHEAD, 0)) for one in reply.segments]
            ),
        )
    return reply


def _or_damaged(opened: Callable[[Any], Any], row: Any) -> Any:
    """Open a row, or return it as damage."""
    try:
        return opened(row)
    except CorruptionError:
        return _damaged(opened, row)


def _damaged(_: Callable[[Any], Any], row: Any) -> Any:
    """Return a row that does not begin as an encrypted one any more."""
    name = next(name for name in ("manifest", "body", "data") if hasattr(row, name))
    return row._replace(**{name: b"\0" + getattr(row, name)[1:]})


# -- first children ----------------------------------------------------------------------


def _depends_on_child(read: model.Read, stored: model.StoredCheckpoint) -> bool:
    """Return True if the first child decides a reply's meaning.

    The child of a head is hidden: a changed flag would make an older checkpoint the head.
    """
    is_head = isinstance(read, model.ReadCheckpoint) and read.id is None
    return stored.child is not None and (is_head or bool(stored.writes))


def _unread_children(
    read: model.Read, reply: Any
) -> list[tuple[model.ReadCheckpoint, model.StoredCheckpoint]]:
    """Return reads of children that are not in an opened reply, each with the parent.

    Raises TamperedDataError if a child in the reply is not as its parent was read.
    """
    found = [*_checkpoints(read, reply)]
    rows = {(one.thread, one.row.ns, one.row.id): one.row for one in found}
    unread = []
    for one in found:
        if one.child is not None and _depends_on_child(read, one):
            child = model.ReadCheckpoint(one.thread, one.row.ns, one.child.id)
            if child in rows:
                _check_child(one, rows[child])
            else:
                unread.append((child, one))
    return unread


def _check_child(parent: model.StoredCheckpoint, row: model.CheckpointRow) -> None:
    """Raise TamperedDataError if a parent was read with another child than this one."""
    if parent.child != (row.id, row.run, row.seen) or row.parent != parent.row.id:
        raise TamperedDataError(thread=parent.thread, namespace=row.ns, checkpoint=row.id)


def _checkpoints(read: model.Read, reply: Any) -> Iterator[model.StoredCheckpoint]:
    if isinstance(read, model.ReadPath | model.ScanCheckpoints):
        yield from reply
    elif isinstance(read, model.ReadCheckpoint) and reply.found is not None:
        yield reply.found
    elif isinstance(read, model.ReadThread) and not read.skip:
        yield from reply.checkpoints
