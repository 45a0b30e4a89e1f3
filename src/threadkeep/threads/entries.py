"""Public methods that find and change threads, and copy them to files and other stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._run.driver import each_and_aeach, on, sync_and_async
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.threads import lazy

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from threadkeep._run.layered_backend import OfAStore
    from threadkeep.threads.answering import PendingInterrupt
    from threadkeep.threads.finding import FoundThreads
    from threadkeep.threads.registry import Filters, OrderName, ThreadInfo, ThreadPage
    from threadkeep.threads.transfer.adopt import AdoptReport
    from threadkeep.threads.transfer.bundles import ExportReport, ImportReport
    from threadkeep.threads.transfer.leave import LeaveReport
    from threadkeep.threads.transfer.mirror import MirrorReport

P = ParamSpec("P")
T = TypeVar("T")


class ThreadEntries:
    """Entries of threads in the registry of a store, and their newest values."""

    _store: LayeredBackend
    _engine: Engine

    def _on(
        self,
        operation: Callable[Concatenate[Engine, P], Operation[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> Operation[T]:
        """Run an operation of the engine on the store."""
        return on(self._store, operation(self._engine, *args, **options))

    def _over(
        self,
        workflow: Callable[Concatenate[LayeredBackend, Engine, P], Operation[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> Operation[T]:
        """Run a workflow that runs its own operations on the store."""
        return workflow(self._store, self._engine, *args, **options)

    def _create(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        ttl: timedelta | float | None = None,
        exist_ok: bool = False,
    ) -> Operation[ThreadInfo]:
        """Register a thread before its first save, which would also register it.

        Args:
            thread_id: the thread's id.
            metadata: JSON values to search by, up to 1,000 bytes each with its key.
            tags: words to search by.
            ttl: idle seconds after which retention removes the thread, or None for no limit.
            exist_ok: return an existing thread instead of raising.

        Raises:
            ThreadExistsError: the thread exists.
            InvalidArgumentError: an argument is invalid.
        """
        return self._on(lazy.registry.create, thread_id, metadata, tags, ttl, exist_ok=exist_ok)

    create, acreate = sync_and_async(_create)

    def _get(self, thread_id: str) -> Operation[ThreadInfo | None]:
        """Return the entry of a thread, also of a deleted thread, or None if it never existed."""
        return on(self._store, lazy.registry.get(thread_id))

    get, aget = sync_and_async(_get)

    def _update(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        ttl: timedelta | float | None = None,
    ) -> Operation[ThreadInfo]:
        """Change the metadata or the ttl of a thread.

        Metadata replaces values of the same keys, and None removes a key. A ttl of 0 means no
        limit, and None leaves the ttl unchanged.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: an argument is invalid.
        """
        return self._on(lazy.registry.update, thread_id, metadata or {}, ttl)

    update, aupdate = sync_and_async(_update)

    def _tag(
        self, thread_id: str, *tags: str, checkpoint_id: str | None = None, checkpoint_ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Add tags to a thread, or to a checkpoint of it.

        Args:
            thread_id: the thread's id.
            tags: words. You can search for a thread's tags, and they protect it from deletion by
                `ttl` and `max_count`. A checkpoint's tags protect that checkpoint from retention.
                `pin` protects a whole thread.
            checkpoint_id: the checkpoint's id, or None for the thread.
            checkpoint_ns: the checkpoint's namespace. "" is the graph's own.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
            InvalidArgumentError: a tag is not text or too long, or there are too many.
        """
        return self._on(lazy.registry.tag, thread_id, tags, checkpoint_id, checkpoint_ns, add=True)

    tag, atag = sync_and_async(_tag)

    def _untag(
        self, thread_id: str, *tags: str, checkpoint_id: str | None = None, checkpoint_ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Remove tags. Missing tags are ignored. Arguments as for `tag`.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: a tag is not text.
        """
        return self._on(lazy.registry.tag, thread_id, tags, checkpoint_id, checkpoint_ns, add=False)

    untag, auntag = sync_and_async(_untag)

    def _pin(
        self, thread_id: str, *, checkpoint_id: str | None = None, checkpoint_ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Protect a thread, or a checkpoint of it, from retention. Arguments as for `tag`.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
        """
        return self._on(lazy.registry.pin, thread_id, checkpoint_id, checkpoint_ns, pinned=True)

    pin, apin = sync_and_async(_pin)

    def _unpin(
        self, thread_id: str, *, checkpoint_id: str | None = None, checkpoint_ns: str = ""
    ) -> Operation[ThreadInfo]:
        """Undo `pin`, also for a checkpoint that no longer exists."""
        return self._on(lazy.registry.pin, thread_id, checkpoint_id, checkpoint_ns, pinned=False)

    unpin, aunpin = sync_and_async(_unpin)

    def _edit(
        self,
        thread_id: str,
        values: Mapping[str, Any],
        *,
        checkpoint_id: str | None = None,
        if_head: bool = False,
    ) -> Operation[RunnableConfig]:
        """Replace values of channels in a new checkpoint, as `graph.update_state` without a graph.

        The new checkpoint has the source "update", and the nodes to run next stay the same. As with
        `update_state`, pending writes stay at the old checkpoint: interrupts ask again.
        Reducers do not run: each value is the channel's whole new value, as with `Overwrite`.

        Args:
            thread_id: the thread's id.
            values: new values by channel. The checkpoint has these channels.
            checkpoint_id: the checkpoint of the graph itself to edit, or None for the head. After
                an older one, the thread branches, as with `update_state`.
            if_head: refuse the edit if `checkpoint_id` is not the head any more.

        Returns:
            The config of the new checkpoint.

        Raises:
            ConflictError: the thread has a newer checkpoint, with `if_head`.
            InvalidArgumentError: the checkpoint lacks a channel, or the channel decides which nodes
                run next, or the thread has DeltaChannels, which only a graph can compute, or
                layered memory has archived messages of the channel.
            UnserializableError: a value could not be read back exactly.
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
            ThreadArchivedError: the thread is archived, and this saver has no `cold=`.
        """
        return self._on(lazy.editing.edit, thread_id, values, checkpoint_id, if_head=if_head)

    edit, aedit = sync_and_async(_edit)

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
            order: the field to sort by. A minus sorts in descending order. Ties are sorted by id.
            limit: the size of the page, 1 to 1,000.
            cursor: the cursor of the previous page, with the same order and filters. A thread whose
                position changes between two pages may appear twice, or not at all.
            filters: see `Filters`.

        Raises:
            InvalidArgumentError: an argument is invalid.
        """
        return self._on(lazy.registry.search, order, limit, cursor, filters)

    search, asearch = sync_and_async(_search)

    def _find(
        self,
        query: str,
        *,
        limit: int = 20,
        seconds: timedelta | float = 2.0,
        **filters: Unpack[Filters],
    ) -> Operation[FoundThreads]:
        """Find threads by words of their messages, ids and metadata, newest threads first.

        A message must have all words: in its text, or in the names and arguments of its tools. Case
        does not matter. Parts of ids are words, so 1041 finds "late-parcel-1041". Characters of
        Chinese, Japanese or Korean that you write together must be together.

        Without an index, it reads the heads of the newest threads until the time is over. The
        result says how far it got. Archived threads are found by their ids and metadata only.

        Args:
            query: the words.
            limit: the maximum number of threads to find.
            seconds: time for reading, in seconds or as a timedelta.
            filters: only these threads (see `Filters`).

        Raises:
            InvalidArgumentError: an argument is invalid, or the query has no words.
        """
        return lazy.finding.in_store(self._store, self._engine, query, limit, seconds, filters)

    find, afind = sync_and_async(_find)

    def _scan(self, **filters: Unpack[Filters]) -> Iterator[Operation[Iterable[ThreadInfo]]]:
        """Yield all threads that match, sorted by id, reading page by page.

        Raises:
            InvalidArgumentError: a filter is invalid.
        """
        cursor: str | None = None
        is_last = False

        def page() -> Operation[Iterable[ThreadInfo]]:
            nonlocal cursor, is_last
            found = yield from self._on(lazy.registry.by_name, cursor, filters)
            cursor, is_last = found.cursor, found.cursor is None
            return found.threads

        while not is_last:
            yield page()

    scan, ascan = each_and_aeach(_scan)

    def _count(self, **filters: Unpack[Filters]) -> Operation[int]:
        """Return the number of threads that match (see `Filters`).

        Raises:
            InvalidArgumentError: a filter is invalid.
        """
        return self._on(lazy.registry.count, filters)

    count, acount = sync_and_async(_count)

    def _heads(self, progress: Progress | None = None) -> Operation[dict[str, str]]:
        """Return the id of the newest checkpoint of each thread, without archived threads.

        Only checkpoints of the graph itself count. Record them outside the store: `rolled_back`
        compares them later.

        Raises:
            CorruptionError: the newest checkpoint of a thread is damaged.
        """
        return on(self._store, lazy.heads.heads(progress))

    heads, aheads = sync_and_async(_heads)

    def _rolled_back(
        self, heads: Mapping[str, str], progress: Progress | None = None
    ) -> Operation[dict[str, str | None]]:
        """Return the threads whose newest checkpoint is older than a recorded one.

        Somebody with access to the store may have put back older rows, or a backup. Each has the id
        of its newest checkpoint, or None if it has none, such as after a deletion. Archived threads
        are left out.

        Args:
            heads: as `heads` returned them earlier.
            progress: called as `progress(stage, done, total)` with a total of 0 (unknown).
        """
        return on(self._store, lazy.heads.rolled_back(heads, progress))

    rolled_back, arolled_back = sync_and_async(_rolled_back)

    def _interrupts(self, thread_id: str) -> Operation[list[PendingInterrupt]]:
        """Return the interrupts that wait at a thread's head, also in subgraphs.

        Reads only these questions and their answers, not the state. An interrupt stays in the list
        until its task has ended. Raises UnknownTypeError if a question cannot be read.
        """
        return self._on(lazy.answering.interrupts, thread_id)

    interrupts, ainterrupts = sync_and_async(_interrupts)

    def _answer(
        self,
        thread_id: str,
        answers: Mapping[str, Any],
        checkpoint_id: str | None = None,
        *,
        replace: bool = False,
        resume: bool = False,
        by: str | None = None,
    ) -> Operation[None]:
        """Store answers to interrupts. The next run without input continues with them.

        It runs no node: your program continues by `graph.invoke(None, config)`, where the config
        names no checkpoint. The answers are stored as LangGraph's runs store them, task by task.

        Args:
            thread_id: the thread's id.
            answers: values by interrupt id, as in `Command(resume=answers)`.
            checkpoint_id: the head that was answered, from `interrupts`, or None for any.
            replace: True changes an answer that no run has used yet.
            resume: True lists the thread in `saver.runs.unfinished`, so that a worker resumes it.
            by: the name of the person who answers, for `PendingInterrupt.answered_by`.

        Raises:
            StateError: the thread has a newer head, or an interrupt does not wait, or is answered
                already, or was raised in a graph without checkpoints.
            ThreadNotFoundError: the thread has no checkpoints.
            InvalidArgumentError: `answers` is no dict of values.
            UnserializableError, ConflictError: as for saves.
        """
        options: Any = {"replace": replace, "resume": resume, "by": by}
        return self._on(lazy.answering.answer, thread_id, answers, checkpoint_id, **options)

    answer, aanswer = sync_and_async(_answer)


class ThreadTransfers(ThreadEntries):
    """Copies of threads to and from files and other stores."""

    def _export_bundle(
        self,
        thread_ids: str | Iterable[str] | None,
        file: str | os.PathLike[str],
        *,
        plain: bool = False,
        progress: Progress | None = None,
    ) -> Operation[ExportReport]:
        """Write threads to a bundle, which you can import into any store.

        The bundle has each thread as one state, with a digest of every checkpoint. The file is
        read back before it gets its name. If the saver has keys, they encrypt it.

        Args:
            thread_ids: one id or several, or None for all threads with checkpoints.
            file: the bundle (`.tkb`). Replaces an older bundle, but no other file.
            plain: never encrypt the bundle, so that it can be imported without the keys.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            ThreadNotFoundError: a thread has no checkpoints.
            InvalidArgumentError: an id is invalid.
            OpenError, DiskFullError: the file cannot be written, or is no bundle.
            ConflictError: other programs keep writing a thread.
            CorruptionError: a thread that you named is damaged. With None, damaged threads are
                `skipped`.
        """
        return lazy.bundles.export_bundle(self._store, thread_ids, file, progress, plain=plain)

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
        """Import the threads of a bundle into this store, under their ids or a new one.

        First the whole bundle is verified. If the store has a part of a thread, the rest is added.
        Then each thread is read back, and the digest of every checkpoint is compared.

        Args:
            file: a bundle from any store.
            thread_id: a new id, if the bundle has one thread.
            replace: replace threads of the same ids that differ.
            dry_run: verify the bundle, and only report the changes.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            ThreadExistsError: a thread of the same id would be lost, and nothing was changed.
            InvalidArgumentError: a new id was given, and the bundle has several threads.
            OpenError, NotOursError, NewerFormatError, CorruptionError, WrongKeyError: the bundle
                cannot be read, and nothing was changed.
            ThreadkeepError: the store failed. A note of the error lists the imported threads.
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

        Copies namespaces, parents, metadata, versions and pending writes. The source is only read,
        each thread as one state, and may be written meanwhile. A repeated call copies newer
        checkpoints, or continues an interrupted call.

        A thread that has diverged from the source, or has another state of a checkpoint,
        is not changed and listed in `conflicts`, unless you give `replace` or `as_fork`.

        Args:
            source: the URL or path of LangGraph's database, or the saver.
            thread_ids: one id or several, or None for all threads that were not deleted here.
            replace: replace a diverged thread with the source's.
            as_fork: copy a diverged thread into a fork, "<thread>-adopted", which begins with the
                newest common checkpoint.
            dry_run: only report the changes, judged by ids.
            verify: compare every checkpoint as LangGraph's saver and this saver return it. Needs
                the library of LangGraph's saver.
            key: the key of encrypted values (LANGGRAPH_AES_KEY), 16, 24 or 32 bytes. By default,
                the keys of this saver are tried, and a saver as `source` has its own. Values that
                are not encrypted are read, and counted in `plain`.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            NotLangGraphError: the source belongs to another program, or to threadkeep.
            OpenError, InvalidArgumentError: the source cannot be opened, or both `replace` and
                `as_fork` are given.
            ThreadNotFoundError: the source has no such thread.
            WrongKeyError: a value is encrypted, and the key is missing or wrong.
            UnknownTypeError: a value has a class that this program has not imported or allowed.
                The error names the checkpoint and the line to add.
            CorruptionError: data of a named thread is damaged, or, with `verify`, differs from the
                result of LangGraph's saver. Without names, `skipped` lists damaged threads.
        """
        flags = {"replace": replace, "as_fork": as_fork, "dry_run": dry_run, "verify": verify}
        return self._over(lazy.adopt.adopt, source, thread_ids, key, progress, **flags)

    adopt, aadopt = sync_and_async(_adopt)

    def _leave(
        self,
        target: str | os.PathLike[str] | BaseCheckpointSaver[Any],
        thread_ids: str | Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        verify: bool = False,
        key: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> Operation[LeaveReport]:
        """Copy threads into the tables of LangGraph's SqliteSaver, PostgresSaver or InMemorySaver.

        LangGraph's own saver writes the threads and continues them. Copies namespaces, parents,
        metadata, versions and pending writes. `not_held` of the report lists data that LangGraph's
        tables cannot hold. Nothing is changed here, except that archived threads are restored. A
        repeated call copies newer checkpoints, or continues an interrupted call.

        A thread that has changed on both sides is not copied and listed in `conflicts`.

        Args:
            target: the URL or path of LangGraph's database, or the saver. Missing files and tables
                are created.
            thread_ids: one id or several, or None for all threads.
            dry_run: only report the changes, judged by ids.
            verify: compare every checkpoint as LangGraph's saver and this saver return it.
            key: a key to encrypt values with LangGraph's EncryptedSerializer (LANGGRAPH_AES_KEY),
                16, 24 or 32 bytes. A saver as `target` has its own serializer.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            NotLangGraphError: the target belongs to another program, or to threadkeep.
            OpenError, InvalidArgumentError: the target cannot be opened.
            ThreadNotFoundError: this store has no such thread.
            UnknownTypeError: a value has a class that this program has not imported or allowed.
            BackendError: a store failed. Repeat the call.
        """
        return self._over(
            lazy.leave.leave, target, thread_ids, key, progress, verify=verify, dry_run=dry_run
        )

    leave, aleave = sync_and_async(_leave)

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
        """Copy the threads of this store to another store of any kind.

        Writes only missing data: new threads, checkpoints and pending writes. Each written thread
        is compared in both stores, by the digest of every checkpoint. A repeated call continues an
        interrupted one. Stored inputs (`saver.runs.submit`) are not copied.

        Args:
            other: the saver of the other store.
            thread_ids: one id or several, or None for all threads.
            replace: replace a thread that has diverged in the other store with this store's.
            delete: delete threads in the other store that were deleted in this one.
            dry_run: only report the changes.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError: `other` is no saver of threadkeep, or has the same store.
            ThreadNotFoundError: this store has no such thread.
            CorruptionError: a thread that you named is damaged (with None it is `skipped`), or its
                copy differs.
            ConflictError: other programs keep writing a thread in the other store.
        """
        flags = {"replace": replace, "delete": delete, "dry_run": dry_run}
        return self._over(lazy.mirror.mirror, other, thread_ids, progress, **flags)

    mirror, amirror = sync_and_async(_mirror)
