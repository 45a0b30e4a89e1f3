"""Reads of many threads in a sealed store: searches by digests, and what listings leave out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
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
    is_archived,
    without_labels,
)
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import (
    DestroyedKeyError,
    TamperedDataError,
)

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

    async def to_store(self, read: model.Read) -> tuple[model.Read, tuple[str, ...]]:
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

    async def from_store(self, read: model.Read, labels: tuple[str, ...], reply: Any) -> Any:
        """Return the opened reply to a read, with the result of `asked`.

        Lists leave out threads whose key was destroyed: a program that knew it wrote late.
        """
        match read:
            case model.FindThreads():
                return await self._kept(read, reply, str, self._shown)
            case model.ReadSizes():
                threads = await self._kept(read, reply.threads, _thread, self._shown)
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
                reply = await self._kept(read, reply, _place, self._shown)
        return await self._open(read, reply)

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
            (reply,) = await result(self.below.fetch([read._replace(after=after(page[-1]))]))
            page = reply.threads if isinstance(reply, model.Sizes) else reply

    async def _shown(self, page: Sequence[Any]) -> list[Any]:
        names = [one if isinstance(one, str) else one.thread for one in page]
        gone = {name for name in await self._loaded(names) if await self.is_gone(name)}
        shown = zip(page, names, strict=True)
        return [one for one, name in shown if name not in gone and not tenants.is_hidden(name)]

    async def _loaded(self, names: Sequence[str]) -> dict[str, None]:
        """Return threads, whose keys were read at once."""
        own = dict.fromkeys([name for name in names if not tenants.is_hidden(name)])
        if not self.keys.are_derived:
            await self.keys.load([*own])
        return own

    async def is_gone(self, thread: str) -> bool:
        """Return True if a thread's key was destroyed."""
        if self.keys.are_derived:
            return False
        try:
            await self.keys.of(thread, is_thread=True)
        except DestroyedKeyError:
            return True
        return False

    async def _entry(self, entry: ThreadEntry) -> ThreadEntry:
        """Open an entry. Labels that do not open are damage."""
        try:
            opened = await self._open(ReadEntry(entry.thread), entry)
        except TamperedDataError:
            return without_labels(entry)
        return cast("ThreadEntry", opened)

    async def _entries(
        self, labels: Collection[str], page: Sequence[ThreadEntry]
    ) -> list[ThreadEntry]:
        """Open entries, without those that lack one of these labels, or whose key was destroyed."""
        await self._loaded([one.thread for one in page])
        found = []
        for entry in page:
            with suppress(DestroyedKeyError):
                found.append(await self._entry(entry))
        return [one for one in found if {*labels} <= {*one.labels} or one.damage]

    async def _count(self, read: CountThreads, labels: tuple[str, ...]) -> int:
        search = SearchThreads(read.query, "thread", descending=False, after=None, limit=_PAGE)
        number = 0
        while True:
            (page,) = await result(self.below.fetch([search]))
            entries = await self._entries(labels, page)
            number += len([one for one in entries if not one.damage])
            if len(page) < _PAGE:
                return number
            search = search._replace(after=(page[-1].thread, page[-1].thread))


_thread = attrgetter("thread")


def _place(one: model.StoredCheckpoint) -> tuple[str, str, str]:
    return one.row.id, one.thread, one.row.ns
