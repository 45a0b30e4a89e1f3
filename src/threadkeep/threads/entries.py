"""Public methods that find threads and change what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Unpack

from threadkeep.engine.context import Engine
from threadkeep.registry import api as registry
from threadkeep.registry.filters import MOST, Filters, OrderName
from threadkeep.registry.info import ThreadInfo, ThreadPage
from threadkeep.store.store import LayeredStore


class ThreadEntries:
    """Entries of the threads of a store."""

    _store: LayeredStore
    _engine: Engine

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
            ttl: seconds that it may be idle before retention removes it; None for ever.
            exist_ok: return a thread that exists instead of raising.

        Raises:
            ThreadExistsError: it exists.
            InvalidArgumentError: an argument is invalid.
        """
        return self._store.run(
            registry.create(self._engine, thread, metadata, tags, ttl, exist_ok=exist_ok)
        )

    def get(self, thread: str) -> ThreadInfo | None:
        """Return what is known of a thread, also of a deleted one; None if there never was one."""
        return self._store.run(registry.get(thread))

    def update(
        self,
        thread: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | float | None = None,
    ) -> ThreadInfo:
        """Change the metadata of a thread, or its ttl.

        Args:
            thread: its name.
            metadata: replaces what has the same keys; a value of None removes its key.
            ttl: see `create`; 0 for ever, None leaves it as it is.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: an argument is invalid.
        """
        return self._store.run(registry.update(self._engine, thread, metadata or {}, ttl))

    def tag(
        self, thread: str, *tags: str, checkpoint: str | None = None, ns: str = ""
    ) -> ThreadInfo:
        """Add tags to a thread, or to one of its checkpoints.

        Args:
            thread: its name.
            tags: words. Those of a thread can be searched for; all protect (see `Retention`).
            checkpoint: the checkpoint's id; None for the thread.
            ns: its namespace; "" is the graph's own.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
            InvalidArgumentError: a tag is no text, or too long, or there are too many.
        """
        return self._store.run(registry.tag(self._engine, thread, tags, checkpoint, ns, add=True))

    def untag(
        self, thread: str, *tags: str, checkpoint: str | None = None, ns: str = ""
    ) -> ThreadInfo:
        """Remove tags; those that are not there do not matter. Takes the arguments of `tag`.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: a tag is no text.
        """
        return self._store.run(registry.tag(self._engine, thread, tags, checkpoint, ns, add=False))

    def pin(self, thread: str, *, checkpoint: str | None = None, ns: str = "") -> ThreadInfo:
        """Protect a thread, or one of its checkpoints, from retention.

        Args:
            thread: its name.
            checkpoint: the checkpoint's id; None for the thread.
            ns: its namespace; "" is the graph's own.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
        """
        return self._store.run(registry.pin(self._engine, thread, checkpoint, ns, pinned=True))

    def unpin(self, thread: str, *, checkpoint: str | None = None, ns: str = "") -> ThreadInfo:
        """Undo `pin`; the checkpoint need not exist any more."""
        return self._store.run(registry.pin(self._engine, thread, checkpoint, ns, pinned=False))

    def search(
        self,
        *,
        order: OrderName = "-updated_at",
        limit: int = 50,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> ThreadPage:
        """Return a page of the threads that match all filters.

        Args:
            order: the field to sort by; with a minus the greatest first. Ties are sorted by name.
            limit: the size of the page, 1 to 1,000.
            cursor: the cursor of the page before, with the same order and filters. A thread that
                changes its place meanwhile may be met twice, or not at all.
            filters: see `Filters`.

        Raises:
            InvalidArgumentError: an argument is invalid.
        """
        return self._store.run(registry.search(self._engine, order, limit, cursor, filters))

    def scan(self, **filters: Unpack[Filters]) -> Iterator[ThreadInfo]:
        """Yield all threads that match, sorted by name; read page by page.

        Raises:
            InvalidArgumentError: a filter is invalid.
        """
        cursor: str | None = None
        while True:
            page = self._store.run(registry.search(self._engine, "thread", MOST, cursor, filters))
            for one in page.threads:  # noqa: UP028 - the async variant cannot `yield from`
                yield one
            if (cursor := page.cursor) is None:
                return

    def count(self, **filters: Unpack[Filters]) -> int:
        """Return the number of threads that match; see `Filters`.

        Raises:
            InvalidArgumentError: a filter is invalid.
        """
        return self._store.run(registry.count(self._engine, filters))
