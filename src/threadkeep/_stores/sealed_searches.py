"""Reads of many threads in a sealed store: searches by digests, and what listings leave out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, cast

from threadkeep._core import tenants
from threadkeep._core.engine import model
from threadkeep._core.engine.sealed_rows import Searchable
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    without_labels,
)
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.key_store import DestroyedKeyError
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import TamperedDataError

_PAGE = 500


class SealedSearches:
    """Asks a store that holds only sealed rows.

    Args:
        below: the store.
        keys: its keys.
        open_: opens the rows of a reply to a read.
    """

    def __init__(
        self,
        below: Backend | AsyncBackend,
        keys: StoreKeys,
        open_: Callable[[model.Read, Any], Awaitable[Any]],
    ) -> None:
        self.below: Any = below
        self.keys = keys
        self._open = open_

    async def asked(self, read: model.Read) -> tuple[model.Read, tuple[str, ...]]:
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
            return read._replace(query=read.query._replace(labels=indexed)), left
        return read, ()

    async def _searchable(self, tenant: str) -> Searchable:
        name = tenants.prefix(tenant) if tenant else ""
        return Searchable(await self.keys.of(name), tenant, self.keys.indexed)

    async def _has_tenants(self) -> bool:
        """Return True if searches by digests of the store itself may miss threads."""
        first = model.FindThreads(tenants.FIRST, 1, empty=True)
        (found,) = await result(self.below.fetch([first]))
        return any(map(tenants.tenant_of, found))

    async def told(
        self, read: model.Read, labels: tuple[str, ...], reply: Any, *, skip: bool = False
    ) -> Any:
        """Return the opened reply to a read, with what `asked` returned.

        With `skip`, an entry whose key was destroyed comes without labels.
        """
        if isinstance(read, model.FindThreads):
            return await self._without_hidden(read, reply, str)
        if isinstance(read, model.ReadSizes):
            threads = await self._without_hidden(read, reply.threads, attrgetter("thread"))
            return reply._replace(threads=tuple(threads))
        if labels and isinstance(read, CountThreads):
            return await self._count(read, labels)
        if isinstance(read, SearchThreads):
            return await self._search(read, labels, reply)
        if isinstance(read, ReadEntry):
            if reply is None:
                return None
            if skip and await self.is_gone(reply.thread):
                return reply._replace(labels=())
            return await self._entry(reply)
        if isinstance(read, model.ScanCheckpoints) and read.thread is None:
            reply = await self._without_destroyed(read, reply)
        return await self._open(read, reply)

    async def _entry(self, entry: ThreadEntry) -> ThreadEntry:
        """Open an entry. Labels that do not open are damage."""
        try:
            opened = await self._open(ReadEntry(entry.thread), entry)
        except TamperedDataError:
            return without_labels(entry)
        return cast("ThreadEntry", opened)

    async def _entries(self, entries: Sequence[ThreadEntry]) -> list[ThreadEntry]:
        """Open entries, without those whose key was destroyed."""
        found = []
        for entry in entries:
            with suppress(DestroyedKeyError):
                found.append(await self._entry(entry))
        return found

    async def _without_destroyed(
        self, read: model.ScanCheckpoints, page: Sequence[model.StoredCheckpoint]
    ) -> list[model.StoredCheckpoint]:
        """Leave out rows whose key was destroyed, with the next ones in their place."""
        found: list[model.StoredCheckpoint] = []
        while True:
            gone = {name for name in {one.thread for one in page} if await self.is_gone(name)}
            found += [one for one in page if one.thread not in gone]
            if len(page) < read.limit or len(found) >= read.limit:
                return found[: read.limit]
            after = (page[-1].row.id, page[-1].thread, page[-1].row.ns)
            (page,) = await result(self.below.fetch([read._replace(after=after)]))

    async def is_gone(self, thread: str) -> bool:
        """Return True if a thread's key was destroyed: a program that knew it wrote late."""
        if self.keys.are_derived:
            return False
        try:
            await self.keys.of(thread, is_thread=True)
        except DestroyedKeyError:
            return True
        return False

    async def _without_hidden(
        self,
        read: model.FindThreads | model.ReadSizes,
        page: Sequence[Any],
        name: Callable[[Any], str],
    ) -> list[Any]:
        """Leave out hidden threads, and those whose key was destroyed; read more instead."""
        found: list[Any] = []
        while True:
            shown = [one for one in page if not tenants.is_hidden(name(one))]
            found += [one for one in shown if not await self.is_gone(name(one))]
            if len(page) < read.limit or len(found) >= read.limit:
                return found[: read.limit]
            (reply,) = await result(self.below.fetch([read._replace(after=name(page[-1]))]))
            page = reply.threads if isinstance(reply, model.Sizes) else reply

    async def _search(
        self, read: SearchThreads, labels: tuple[str, ...], page: Sequence[ThreadEntry]
    ) -> list[ThreadEntry]:
        """Leave out entries without these labels, with the next ones in their place."""
        found: list[ThreadEntry] = []
        while True:
            entries = await self._entries(page)
            found += [one for one in entries if {*labels} <= {*one.labels} or one.damage]
            if len(page) < read.limit or len(found) >= read.limit:
                return found[: read.limit]
            after = getattr(page[-1], read.order), page[-1].thread
            (page,) = await result(self.below.fetch([read._replace(after=after)]))

    async def _count(self, read: CountThreads, labels: tuple[str, ...]) -> int:
        search = SearchThreads(read.query, "thread", descending=False, after=None, limit=_PAGE)
        number = 0
        while True:
            (page,) = await result(self.below.fetch([search]))
            entries = await self._entries(page)
            number += len([one for one in entries if {*labels} <= {*one.labels}])
            if len(page) < _PAGE:
                return number
            search = search._replace(after=(page[-1].thread, page[-1].thread))
