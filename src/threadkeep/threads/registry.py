"""Finding threads, and what is known of each: state, times, size, metadata, tags.

Only the face lives here; what is asked is checked in `asked`, done in
`engine.registration`. Invariant: each method is one operation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from threadkeep.engine import registration
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
)
from threadkeep.engine.thread_entry import ThreadEntry, label_prefix
from threadkeep.errors import ThreadExistsError
from threadkeep.threads import queries
from threadkeep.threads.info import ThreadInfo, ThreadPage, info
from threadkeep.threads.queries import (
    OrderName,
    When,
)
from threadkeep.threads.running import Running


class Filters(TypedDict, total=False):
    """Which threads are meant: those that are as each given part says.

    state: one state, or several of which it is one; without, all but deleted threads.
    metadata: pieces of metadata that it has, compared as JSON (1 is not 1.0).
    tags: tags that it has.
    created_after, updated_after: not before this moment, or not longer ago than that.
    created_before, updated_before: before this moment, or longer ago than that.
    has_interrupt: whether an interrupt waits for an answer.
    pinned: whether it is pinned.
    min_bytes: how many bytes it holds at least.
    forked_from: the thread that it was forked from.
    """

    state: str | Iterable[str] | None
    metadata: Mapping[str, Any] | None
    tags: Iterable[str]
    created_after: When | None
    created_before: When | None
    updated_after: When | None
    updated_before: When | None
    has_interrupt: bool | None
    pinned: bool | None
    min_bytes: int | None
    forked_from: str | None


class Registry(Running):
    """What is known of the threads of a store."""

    # -- one thread ------------------------------------------------------------------

    def create(
        self,
        thread: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        ttl: timedelta | float | None = None,
        exist_ok: bool = False,
    ) -> ThreadInfo:
        """Register a thread before anything is saved in it (the first save does so too).

        Args:
            thread: its name.
            metadata: what it can be found by: JSON values, up to 1,000 bytes each with its key.
            tags: words that it can be found by.
            ttl: seconds that it may rest before retention removes it; None for ever.
            exist_ok: whether a thread that is there is taken as it is.

        Raises:
            ThreadExistsError: it is there.
            InvalidArgumentError: an argument has no meaning.
        """
        return self._run(self._create(thread, metadata, tags, ttl, exist_ok=exist_ok))

    async def acreate(
        self,
        thread: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        ttl: timedelta | float | None = None,
        exist_ok: bool = False,
    ) -> ThreadInfo:
        """See `create`."""
        return await self._arun(self._create(thread, metadata, tags, ttl, exist_ok=exist_ok))

    def _create(
        self,
        thread: str,
        metadata: Mapping[str, Any] | None,
        tags: Iterable[str],
        ttl: timedelta | float | None,
        *,
        exist_ok: bool,
    ) -> Operation[ThreadInfo]:
        name = queries.thread(thread)
        labels = queries.metadata_labels(metadata or {}) + queries.tag_labels(tags)
        labels, rest = queries.checked_labels(labels, name), queries.ttl(ttl)
        try:
            entry = yield from registration.create(self._engine, name, labels, rest)
        except ThreadExistsError:
            found = (yield from registration.read(name)) if exist_ok else None
            if found is None:
                raise
            entry = found
        return info(entry)

    def get(self, thread: str) -> ThreadInfo | None:
        """What is known of a thread; None of one that never was. Deleted threads say so."""
        return self._run(self._get(thread))

    async def aget(self, thread: str) -> ThreadInfo | None:
        """See `get`."""
        return await self._arun(self._get(thread))

    def _get(self, thread: str) -> Operation[ThreadInfo | None]:
        entry = yield from registration.read(queries.thread(thread))
        return None if entry is None else info(entry)

    def update(
        self,
        thread: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | float | None = None,
    ) -> ThreadInfo:
        """Add metadata, in place of what has the same keys (None removes), or set the ttl.

        Args:
            thread: its name.
            metadata: see `create`; a value of None removes its key.
            ttl: see `create`; 0 for ever, None as it is.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: an argument has no meaning.
        """
        return self._run(self._update(thread, metadata or {}, ttl))

    async def aupdate(
        self,
        thread: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | float | None = None,
    ) -> ThreadInfo:
        """See `update`."""
        return await self._arun(self._update(thread, metadata or {}, ttl))

    def _update(
        self, thread: str, metadata: Mapping[str, Any], ttl: timedelta | float | None
    ) -> Operation[ThreadInfo]:
        removed = queries.metadata_labels({k: v for k, v in metadata.items() if v is None})
        added = queries.metadata_labels({k: v for k, v in metadata.items() if v is not None})
        rest = queries.ttl(ttl) if ttl else None

        def how(entry: ThreadEntry) -> ThreadEntry:
            gone = set(map(label_prefix, removed))
            stay = [label for label in entry.labels if label_prefix(label) not in gone]
            labels = queries.checked_labels((*stay, *added), entry.thread)
            return entry._replace(labels=labels, ttl=entry.ttl if ttl is None else rest)

        return self._changed(thread, how)

    def tag(
        self, thread: str, *tags: str, checkpoint: str | None = None, ns: str = ""
    ) -> ThreadInfo:
        """Add tags to a thread, or to one of its checkpoints.

        Args:
            thread: its name.
            tags: words. Those of a thread can be searched for; all of them protect (see
                `Retention`).
            checkpoint: the checkpoint's id; None for the thread.
            ns: its namespace; "" is the graph's own.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it is not there.
            InvalidArgumentError: a tag is no text, or too long, or there are too many.
        """
        return self._run(self._tag(thread, tags, checkpoint, ns, add=True))

    async def atag(
        self, thread: str, *tags: str, checkpoint: str | None = None, ns: str = ""
    ) -> ThreadInfo:
        """See `tag`."""
        return await self._arun(self._tag(thread, tags, checkpoint, ns, add=True))

    def untag(
        self, thread: str, *tags: str, checkpoint: str | None = None, ns: str = ""
    ) -> ThreadInfo:
        """Remove tags; those that are not there do not matter. Takes what `tag` does.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: a tag is no text.
        """
        return self._run(self._tag(thread, tags, checkpoint, ns, add=False))

    async def auntag(
        self, thread: str, *tags: str, checkpoint: str | None = None, ns: str = ""
    ) -> ThreadInfo:
        """See `untag`."""
        return await self._arun(self._tag(thread, tags, checkpoint, ns, add=False))

    def _tag(
        self, thread: str, tags: tuple[str, ...], checkpoint: str | None, ns: str, *, add: bool
    ) -> Operation[ThreadInfo]:
        if checkpoint is None:
            return self._labelled(thread, queries.tag_labels(tags), add=add)
        place = self._place(queries.thread(thread), ns, checkpoint)
        return self._labelled(thread, queries.mark_labels(place, tags), place, add=add)

    def pin(self, thread: str, *, checkpoint: str | None = None, ns: str = "") -> ThreadInfo:
        """Let retention leave a thread alone, or one of its checkpoints.

        Args:
            thread: its name.
            checkpoint: the checkpoint's id; None for the thread.
            ns: its namespace; "" is the graph's own.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it is not there.
        """
        return self._run(self._pin(thread, checkpoint, ns, pinned=True))

    async def apin(self, thread: str, *, checkpoint: str | None = None, ns: str = "") -> ThreadInfo:
        """See `pin`."""
        return await self._arun(self._pin(thread, checkpoint, ns, pinned=True))

    def unpin(self, thread: str, *, checkpoint: str | None = None, ns: str = "") -> ThreadInfo:
        """The opposite of `pin`; the checkpoint need not be there any more."""
        return self._run(self._pin(thread, checkpoint, ns, pinned=False))

    async def aunpin(
        self, thread: str, *, checkpoint: str | None = None, ns: str = ""
    ) -> ThreadInfo:
        """See `unpin`."""
        return await self._arun(self._pin(thread, checkpoint, ns, pinned=False))

    def _pin(
        self, thread: str, checkpoint: str | None, ns: str, *, pinned: bool
    ) -> Operation[ThreadInfo]:
        if checkpoint is None:
            return self._changed(thread, lambda entry: entry._replace(pinned=pinned))
        place = self._place(queries.thread(thread), ns, checkpoint)
        return self._labelled(thread, queries.mark_labels(place, None), place, add=pinned)

    def _labelled(
        self, thread: str, given: tuple[str, ...], at: CheckpointRef | None = None, *, add: bool
    ) -> Operation[ThreadInfo]:
        """Add labels, of a checkpoint that is there, or remove them."""

        def how(entry: ThreadEntry) -> ThreadEntry:
            others = [label for label in entry.labels if label not in given]
            labels = queries.checked_labels((*others, *(given if add else ())), entry.thread)
            return entry._replace(labels=labels)

        return self._changed(thread, how, at if add else None)

    def _changed(
        self,
        thread: str,
        how: Callable[[ThreadEntry], ThreadEntry],
        at: CheckpointRef | None = None,
    ) -> Operation[ThreadInfo]:
        entry = yield from registration.change(self._engine, queries.thread(thread), how, at)
        return info(entry)

    # -- many ------------------------------------------------------------------------

    def search(
        self,
        *,
        order: OrderName = "-updated_at",
        limit: int = 50,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> ThreadPage:
        """A page of the threads that are meant.

        Args:
            order: by what; with a minus the greatest first. Of equal ones the name decides.
            limit: how many at most, up to 1,000.
            cursor: of the page before, to go on behind it: with the same order and filters.
                A thread that changes its place meanwhile may be met twice, or not at all.
            filters: see `Filters`.

        Raises:
            InvalidArgumentError: an argument has no meaning.
        """
        return self._run(self._search(order, limit, cursor, filters))

    async def asearch(
        self,
        *,
        order: OrderName = "-updated_at",
        limit: int = 50,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> ThreadPage:
        """See `search`."""
        return await self._arun(self._search(order, limit, cursor, filters))

    def _search(
        self, order: OrderName, limit: int, cursor: str | None, filters: Filters
    ) -> Operation[ThreadPage]:
        query = queries.query(self._engine.now(), **filters)
        entries = yield from registration.search(queries.page(query, order, limit, cursor))
        more = queries.cursor_after(entries[-1], order) if len(entries) == limit else None
        return ThreadPage(tuple(map(info, entries)), more)

    def scan(self, **filters: Unpack[Filters]) -> Iterator[ThreadInfo]:
        """All threads that are meant, in the order of their names; read page by page.

        Raises:
            InvalidArgumentError: a filter has no meaning.
        """
        page = self._run(self._search("thread", queries.MOST, None, filters))
        yield from page.threads
        while page.cursor is not None:
            page = self._run(self._search("thread", queries.MOST, page.cursor, filters))
            yield from page.threads

    async def ascan(self, **filters: Unpack[Filters]) -> AsyncIterator[ThreadInfo]:
        """See `scan`."""
        cursor: str | None = None
        while True:
            page = await self._arun(self._search("thread", queries.MOST, cursor, filters))
            for one in page.threads:
                yield one
            if page.cursor is None:
                return
            cursor = page.cursor

    def count(self, **filters: Unpack[Filters]) -> int:
        """How many threads are meant; see `Filters`.

        Raises:
            InvalidArgumentError: a filter has no meaning.
        """
        return self._run(self._count(filters))

    async def acount(self, **filters: Unpack[Filters]) -> int:
        """See `count`."""
        return await self._arun(self._count(filters))

    def _count(self, filters: Filters) -> Operation[int]:
        return registration.count(queries.query(self._engine.now(), **filters))
