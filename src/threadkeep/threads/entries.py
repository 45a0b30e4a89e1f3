"""Public methods that find and change threads, and copy them to files and other stores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._run.driver import each_and_aeach, on, sync_and_async
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.threads import lazy

if TYPE_CHECKING:
    from threadkeep._run.layered_backend import OfAStore
    from threadkeep.threads.registry import Filters, OrderName, ThreadInfo, ThreadPage
    from threadkeep.threads.transfer.adopt import AdoptReport
    from threadkeep.threads.transfer.bundles import ExportReport, ImportReport
    from threadkeep.threads.transfer.mirror import MirrorReport


class ThreadEntries:
    """Entries of the threads of a store."""

    _store: LayeredBackend
    _engine: Engine

    def _create(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        ttl: timedelta | float | None = None,
        exist_ok: bool = False,
    ) -> Operation[ThreadInfo]:
        """Register a thread before anything is saved in it (the first save does so too).

        Args:
            thread_id: the thread's id.
            metadata: what it can be found by: JSON values, up to 1,000 bytes each with its key.
            tags: words that it can be found by.
            ttl: seconds that it may be idle before retention removes it; None for ever.
            exist_ok: return a thread that exists instead of raising.

        Raises:
            ThreadExistsError: it exists.
            InvalidArgumentError: an argument is invalid.
        """
        return on(
            self._store,
            lazy.registry.create(self._engine, thread_id, metadata, tags, ttl, exist_ok=exist_ok),
        )

    create, acreate = sync_and_async(_create)

    def _get(self, thread_id: str) -> Operation[ThreadInfo | None]:
        """Return the entry of a thread, also of a deleted one; None if it never existed."""
        return on(self._store, lazy.registry.get(thread_id))

    get, aget = sync_and_async(_get)

    def _update(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | float | None = None,
    ) -> Operation[ThreadInfo]:
        """Change the metadata of a thread, or its ttl.

        Metadata replaces what has the same keys; a value of None removes its key. A ttl of 0 is
        for ever, None leaves it as it is.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: an argument is invalid.
        """
        return on(self._store, lazy.registry.update(self._engine, thread_id, metadata or {}, ttl))

    update, aupdate = sync_and_async(_update)

    def _tag(
        self, thread_id: str, *tags: str, checkpoint_id: str | None = None, ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Add tags to a thread, or to one of its checkpoints.

        Args:
            thread_id: the thread's id.
            tags: words. Those of a thread can be searched for, and protect it from deletion by
                `ttl` and `max_count`; those of a checkpoint protect that checkpoint. `pin`
                protects a whole thread.
            checkpoint_id: the checkpoint's id; None for the thread.
            ns: the checkpoint's namespace; "" is the graph's own.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
            InvalidArgumentError: a tag is no text, or too long, or there are too many.
        """
        return on(
            self._store,
            lazy.registry.tag(self._engine, thread_id, tags, checkpoint_id, ns, add=True),
        )

    tag, atag = sync_and_async(_tag)

    def _untag(
        self, thread_id: str, *tags: str, checkpoint_id: str | None = None, ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Remove tags; those that are not there do not matter. Arguments as of `tag`.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: a tag is no text.
        """
        return on(
            self._store,
            lazy.registry.tag(self._engine, thread_id, tags, checkpoint_id, ns, add=False),
        )

    untag, auntag = sync_and_async(_untag)

    def _pin(
        self, thread_id: str, *, checkpoint_id: str | None = None, ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Protect a thread, or one of its checkpoints, from retention; arguments as of `tag`.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
        """
        return on(
            self._store, lazy.registry.pin(self._engine, thread_id, checkpoint_id, ns, pinned=True)
        )

    pin, apin = sync_and_async(_pin)

    def _unpin(
        self, thread_id: str, *, checkpoint_id: str | None = None, ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Undo `pin`; the checkpoint need not exist any more."""
        return on(
            self._store, lazy.registry.pin(self._engine, thread_id, checkpoint_id, ns, pinned=False)
        )

    unpin, aunpin = sync_and_async(_unpin)

    def _search(
        self,
        *,
        order: OrderName = "-updated_at",
        limit: int = 50,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> Operation[ThreadPage]:
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
        return on(self._store, lazy.registry.search(self._engine, order, limit, cursor, filters))

    search, asearch = sync_and_async(_search)

    def _scan(self, **filters: Unpack[Filters]) -> Iterator[Operation[Iterable[ThreadInfo]]]:
        """Yield all threads that match, sorted by name; read page by page.

        Raises:
            InvalidArgumentError: a filter is invalid.
        """
        cursor: str | None = None
        is_last = False

        def page() -> Operation[Iterable[ThreadInfo]]:
            nonlocal cursor, is_last
            found = yield from on(self._store, lazy.registry.by_name(self._engine, cursor, filters))
            cursor, is_last = found.cursor, found.cursor is None
            return cast("Iterable[ThreadInfo]", found.threads)

        while not is_last:
            yield page()

    scan, ascan = each_and_aeach(_scan)

    def _count(self, **filters: Unpack[Filters]) -> Operation[int]:
        """Return the number of threads that match; see `Filters`.

        Raises:
            InvalidArgumentError: a filter is invalid.
        """
        return on(self._store, lazy.registry.count(self._engine, filters))

    count, acount = sync_and_async(_count)


class ThreadTransfers:
    """Threads of a store that are copied elsewhere, and from there."""

    _store: LayeredBackend
    _engine: Engine

    def _export_bundle(
        self,
        thread_ids: str | Iterable[str] | None,
        file: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> Operation[ExportReport]:
        """Write threads to a bundle, which can be imported into any store.

        Each is written as it is when its turn comes, with the digest of every checkpoint, and
        the file is read back before it takes its name.

        Args:
            thread_ids: the id of one or the ids of several; None for all that hold checkpoints.
            file: the bundle (`.tkb`). An older bundle is replaced, anything else is not.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            ThreadNotFoundError: one of them holds no checkpoint.
            InvalidArgumentError: an id is invalid.
            OpenError, DiskFullError: the file cannot be written, or is no bundle.
            ConflictError: a thread is written all the time.
            CorruptionError: a thread that was named is damaged. Others are `skipped`.
        """
        return lazy.bundles.export_bundle(self._store, thread_ids, file, progress)

    export_bundle, aexport_bundle = sync_and_async(_export_bundle)

    def _import_bundle(
        self,
        file: str | os.PathLike[str],
        thread_id: str | None = None,
        *,
        replace: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[ImportReport]:
        """Put the threads of a bundle into this store, under their ids or a new one.

        All of the bundle is verified first. A thread that exists, whole or in part, is
        completed. Then each is read back, and the digest of every checkpoint compared.

        Args:
            file: the bundle, of any store.
            thread_id: another id, where the bundle has one thread.
            replace: remove threads that are in the way.
            dry_run: verify the bundle, change nothing, and return what would be done.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            ThreadExistsError: a thread that is in the way would be lost; nothing was changed.
            InvalidArgumentError: a new id was given, and the bundle has several threads.
            OpenError, NotOursError, NewerFormatError, CorruptionError: the bundle cannot be
                read; nothing was changed.
            ThreadkeepError: the store failed; a note of the error says what is there.
        """
        return lazy.bundles.import_bundle(
            self._store, file, thread_id, progress, replace=replace, dry_run=dry_run
        )

    import_bundle, aimport_bundle = sync_and_async(_import_bundle)

    def _adopt(
        self,
        source: str | os.PathLike[str] | BaseCheckpointSaver[Any],
        thread_ids: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        as_fork: bool = False,
        dry_run: bool = False,
        verify: bool = False,
        key: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> Operation[AdoptReport]:
        """Copy threads from LangGraph's SqliteSaver, PostgresSaver or InMemorySaver.

        All of them: namespaces, parents, metadata, versions, pending writes. The source is
        only read, each thread as one state, also while it is written. A repeated call copies
        what has come since, or continues where the last one was cut off.

        A thread that has diverged here and in the source, or holds one of its checkpoints in
        another state, is left alone and listed in `conflicts`, unless one of `replace` and
        `as_fork` is given.

        Args:
            source: the URL or path of LangGraph's database, or the saver.
            thread_ids: the id of one or the ids of several; None for all but those that were
                deleted here.
            replace: replace a thread that has diverged with the source's.
            as_fork: copy a thread that has diverged into a fork, "<thread>-adopted", which
                begins with the newest checkpoint that both have.
            dry_run: change nothing, and return what would be done, as far as ids tell.
            verify: compare every checkpoint as LangGraph's saver gives it with what this one
                gives. Needs that saver's library.
            key: the key of encrypted values (LANGGRAPH_AES_KEY), 16, 24 or 32 bytes; a saver
                brings its own.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            NotLangGraphError: the source is another program's, or threadkeep's own.
            OpenError, InvalidArgumentError: the source cannot be opened; or both of `replace`
                and `as_fork` are given.
            ThreadNotFoundError: the source has no such thread.
            WrongKeyError: a value is encrypted, and the key is missing or another one.
            UnknownTypeError: a value is of a class that this program has not imported or
                allowed; the error names the checkpoint and the line that helps.
            CorruptionError: something is damaged, or not what LangGraph's saver gives.
        """
        return lazy.adopt.adopt(
            self._store,
            self._engine,
            source,
            thread_ids,
            key,
            progress,
            verify=verify,
            replace=replace,
            as_fork=as_fork,
            dry_run=dry_run,
        )

    adopt, aadopt = sync_and_async(_adopt)

    def _mirror(
        self,
        other: OfAStore,
        thread_ids: str | Iterable[str] | None = None,
        *,
        replace: bool = False,
        delete: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[MirrorReport]:
        """Copy the threads of this store to another one of any kind.

        Only what is missing there is written: new threads, and the checkpoints and pending
        writes that came since. Each thread that was written is compared on both sides, by the
        digest of every checkpoint. A repeated call continues where the last one was cut off.

        Args:
            other: the saver of the other store.
            thread_ids: the id of one or the ids of several; None for all.
            replace: replace a thread that has diverged there with this store's.
            delete: delete threads there that were deleted here.
            dry_run: change nothing, and return what would be done.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            InvalidArgumentError: the other is no saver of threadkeep, or is this store.
            ThreadNotFoundError: there is no such thread here.
            CorruptionError: a thread that was named is damaged (others are `skipped`), or did
                not arrive as it is here.
            ConflictError: a thread is written there all the time.
        """
        return lazy.mirror.mirror(
            self._store,
            other,
            thread_ids,
            progress,
            replace=replace,
            delete=delete,
            dry_run=dry_run,
        )

    mirror, amirror = sync_and_async(_mirror)
