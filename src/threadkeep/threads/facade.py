"""Public methods on the threads of a store: `saver.threads`.

Modules that a save does not need are imported when one of their operations runs (`lazy`), so
`saver.threads` imports nothing in an event loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from threadkeep._core import validation
from threadkeep._core.engine.cold_references import OFFLOAD_OVER
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._run.driver import on, sync_and_async
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.threads import lazy
from threadkeep.threads.entries import ThreadEntries, ThreadTransfers

if TYPE_CHECKING:
    from threadkeep._core.policies import Retention, Tiering
    from threadkeep.threads.archives.offload import OffloadReport
    from threadkeep.threads.archives.tiering import TierReport
    from threadkeep.threads.diff import StateDiff
    from threadkeep.threads.diff.checkpoints import ChannelVersion, ConfigOrPair
    from threadkeep.threads.erasure import EraseReport
    from threadkeep.threads.forks import Branches
    from threadkeep.threads.merging import MergeReport, MergeStrategy
    from threadkeep.threads.registry import ThreadInfo
    from threadkeep.threads.repair.repair import RepairReport
    from threadkeep.threads.retention.gc import GcReport


class Threads(ThreadEntries, ThreadTransfers):
    """The threads of a store. Each method has an async variant: `afork` of `fork`, and so on."""

    def __init__(self, store: LayeredBackend, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    # -- branches and differences ----------------------------------------------------

    def _branches(self, thread_id: str, ns: str = "") -> Operation[Branches]:
        """Return the tree of a thread's checkpoints in a namespace; "" is the graph's own.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoints in this namespace.
            InvalidArgumentError: a name is no text.
            CorruptionError, UnknownTypeError: a checkpoint's row or writes cannot be read.
        """
        return on(self._store, lazy.forks.branches(self._engine, thread_id, ns))

    branches, abranches = sync_and_async(_branches)

    def _branches_by_ns(self, thread_id: str) -> Operation[dict[str, Branches]]:
        """Return the trees of all checkpoint namespaces, by namespace; "" is the graph's own.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoints.
            ThreadkeepError: as `branches`.
        """
        return on(self._store, lazy.forks.all_branches(self._engine, thread_id))

    branches_by_ns, abranches_by_ns = sync_and_async(_branches_by_ns)

    def _diff(
        self, thread_id: str, before_id: str | None, after_id: str | None = None, ns: str = ""
    ) -> Operation[StateDiff]:
        """Compare two checkpoints of a thread and namespace by their ids; None is the head.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: one does not exist.
            InvalidArgumentError: an argument is no text.
            CorruptionError, UnknownTypeError: a value cannot be read.
        """
        a, b = validation.place(thread_id, ns, before_id), validation.place(thread_id, ns, after_id)
        return lazy.checkpoints.diff(self._store, self._engine, a, b)

    diff, adiff = sync_and_async(_diff)

    def _diff_checkpoints(self, before: ConfigOrPair, after: ConfigOrPair) -> Operation[StateDiff]:
        """Compare two checkpoints of any threads, channel by channel.

        Each is a config, as `get_state` and `list` return it, or a pair: the thread's id and the
        checkpoint's (None for the head).

        Raises:
            InvalidConfigError: a config has no thread_id.
            ThreadkeepError: as `diff`.
        """
        return lazy.checkpoints.diff(self._store, self._engine, before, after)

    diff_checkpoints, adiff_checkpoints = sync_and_async(_diff_checkpoints)

    def _versions(
        self,
        thread_id: str,
        channel: str,
        ns: str = "",
        limit: int | None = 10,
        *,
        checkpoint_id: str | None = None,
    ) -> Operation[list[ChannelVersion]]:
        """Return the versions of a channel on the way to a checkpoint, newest first.

        Other branches of the thread do not count. A channel that the thread never had has no
        versions: an empty list.

        Args:
            thread_id: the thread's id.
            channel: the channel's name.
            ns: the checkpoint namespace; "" is the graph's own, a subgraph has another.
            limit: the most versions to return; None for all.
            checkpoint_id: the checkpoint to begin with, by id; None for the head.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
            InvalidArgumentError: a name or the limit is invalid.
            CorruptionError: a manifest on the way is damaged.
        """
        return on(
            self._store,
            lazy.checkpoints.versions(self._engine, thread_id, channel, ns, limit, checkpoint_id),
        )

    versions, aversions = sync_and_async(_versions)

    # -- forks -----------------------------------------------------------------------

    def _fork(
        self, thread_id: str, checkpoint_id: str | None = None, new_thread_id: str | None = None
    ) -> Operation[ThreadInfo]:
        """Fork a thread at one of its checkpoints.

        The fork starts in the state right after that checkpoint. Interrupts pending there are
        pending in the fork; later nodes run again. The two threads are independent from then on.
        Values are copied only on Redis.

        Args:
            thread_id: the other thread; it is not changed.
            checkpoint_id: a checkpoint of its root namespace; None for its head.
            new_thread_id: the fork's id; None for a new UUID.

        Returns:
            What is known of the fork: `forked`, with the other's metadata, without its tags.

        Raises:
            ThreadNotFoundError: the thread holds no checkpoints.
            CheckpointNotFoundError: it has no such checkpoint.
            ThreadExistsError: a thread of the new name holds checkpoints.
        """
        return on(
            self._store, lazy.forks.fork(self._engine, thread_id, checkpoint_id, new_thread_id)
        )

    fork, afork = sync_and_async(_fork)

    def _merge_fork(
        self,
        fork_id: str,
        target_thread_id: str,
        strategy: MergeStrategy | None = None,
        *,
        dry_run: bool = False,
    ) -> Operation[MergeReport]:
        """Merge a fork into the thread that it was forked from.

        A channel that only the fork has changed since it began is taken from it; one that only
        the other has changed stays. The result is a new checkpoint behind the other's head, with
        source "update", which starts no node: what was to run next there is to run next still.
        The fork stays as it is.

        Args:
            fork_id: the id of the fork.
            target_thread_id: the thread that holds the checkpoint that the fork began with.
            strategy: for channels that both have changed: "theirs" (the fork's value), "ours", a
                function that is given the channel's name and its value at the beginning, here and
                in the fork (None where there is none) and returns the new one, or the graph, whose
                reducers are given what was written in the fork. None refuses.
            dry_run: change nothing; return what would be merged, and the conflicts.

        Raises:
            MergeConflictError: both have changed a channel, and there is no strategy.
            InvalidArgumentError: it is no fork of this thread; or a channel is a DeltaChannel,
                whose value only the graph can put together; or layered memory has archived messages
                of both since, which only "theirs" and "ours" resolve.
            CheckpointNotFoundError: the checkpoint that the fork began with was pruned.
            ThreadNotFoundError: one of the threads holds nothing.
        """
        return on(
            self._store,
            lazy.merging.merge(self._engine, fork_id, target_thread_id, strategy, dry_run=dry_run),
        )

    merge_fork, amerge_fork = sync_and_async(_merge_fork)

    def _discard_fork(self, fork_id: str, *, delete: bool = False) -> Operation[ThreadInfo]:
        """Archive a fork that is of no more use, or `delete` it.

        Raises:
            ThreadNotFoundError: there is no such thread.
            StateError: it is no fork, or is archived already.
            ThreadkeepError: as `archive` does.
        """
        return lazy.tiering.discard_fork(self._store, self._engine, fork_id, delete=delete)

    discard_fork, adiscard_fork = sync_and_async(_discard_fork)

    # -- retention and tiers ---------------------------------------------------------

    def _gc(
        self,
        policy: Retention | None = None,
        *,
        thread_ids: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[GcReport]:
        """Remove from all threads what retention does not keep.

        Runs may be under way. An interrupted call can be repeated. A thread that was not written
        since the last call is not read again.

        Args:
            policy: for threads without a policy of their own (`retain`); None for the saver's
                own (`retention=`), or else to keep everything.
            thread_ids: only these; `max_count` does not apply then.
            dry_run: change nothing, and return what would go.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            InvalidArgumentError: the policy or the list of threads is invalid.
            ThreadNotFoundError: one of the threads does not exist; nothing was done.
            BackendError: the store failed; what went before is gone.
        """
        own = self._store.retention if policy is None else policy
        names = None if thread_ids is None else validation.each_thread("thread_ids", thread_ids)
        return on(self._store, lazy.gc.gc(self._engine, own, names, progress, dry_run=dry_run))

    gc, agc = sync_and_async(_gc)

    def _retain(self, thread_id: str, policy: Retention | None) -> Operation[ThreadInfo]:
        """Set the retention of one thread, in place of the store's; None for the store's again.

        Raises:
            ThreadNotFoundError: there is no such thread.
            InvalidArgumentError: it is no Retention, or one with `max_count`, which is of a store.
        """
        return on(self._store, lazy.registry.retain(self._engine, thread_id, policy))

    retain, aretain = sync_and_async(_retain)

    def _archive(self, thread_id: str) -> Operation[ThreadInfo]:
        """Move a thread into the cold store (`cold=`), as one immutable, checked object.

        Its entry stays: it is found as before, in the state "archived". Any read brings it back,
        by whatever call and in whatever process that knows the cold store.

        Raises:
            ThreadNotFoundError: there is no such thread, or it holds no checkpoints.
            StateError: it is archived already.
            InvalidArgumentError: the saver was opened without `cold=`.
            ConflictError: it is being written all the time.
            CorruptionError: it is damaged; or the cold store does not have what was put there.
            OpenError, BackendError: the cold store refused, or failed; the thread is in the store.
        """
        return lazy.tiering.archive(self._store, self._engine, thread_id)

    archive, aarchive = sync_and_async(_archive)

    def _restore(self, thread_id: str) -> Operation[ThreadInfo]:
        """Move a thread back from the cold store: all of it if archived, else offloaded values.

        Reading an archived thread does the same.

        Raises:
            ThreadNotFoundError: there is no such thread.
            StateError: nothing of it is in the cold store.
            ThreadArchivedError: the saver was opened without `cold=`.
            ConflictError: it is being written all the time.
            CorruptionError: the cold store does not have what was put there.
            OpenError, BackendError: the cold store refused, or failed.
        """
        return on(self._store, lazy.tiering.restore(self._engine, thread_id))

    restore, arestore = sync_and_async(_restore)

    def _offload(
        self,
        thread_id: str,
        *,
        over: int = OFFLOAD_OVER,
        older_than: timedelta | float | None = None,
    ) -> Operation[OffloadReport]:
        """Move old values of a thread that is in use into the cold store (`cold=`).

        Only values that no head and no waiting task needs go, and only large ones. A run continues
        as before; a read of an older checkpoint fetches its values. A thread that shares values
        with forks is left as it is.

        Args:
            thread_id: the thread's id.
            over: bytes; stored runs of values that are larger go, 1024 or more.
            older_than: seconds or a timedelta; values that younger checkpoints need stay too.
                None: only what the heads need.

        Raises:
            ThreadNotFoundError: there is no such thread, or it holds no checkpoints.
            StateError: it is archived.
            InvalidArgumentError: the saver was opened without `cold=`, or a limit is invalid.
            ConflictError: it is being written all the time.
            CorruptionError: it is damaged; or the cold store does not have what was put there.
            OpenError, BackendError: the cold store refused, or failed.
        """
        return lazy.tiering.offload(self._store, self._engine, thread_id, over, older_than)

    offload, aoffload = sync_and_async(_offload)

    def _tier(
        self,
        tiering: Tiering | None = None,
        *,
        thread_ids: Iterable[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[TierReport]:
        """Move idle threads, and old values of threads in use, into the cold store (`cold=`).

        Runs may be under way. An interrupted call can be repeated. Pinned threads stay.

        Args:
            tiering: the limits; None for the saver's own (`tiering=`), or else the defaults: a
                thread that was neither written nor brought back for a day is archived; of others
                go values of more than 64 KB that only checkpoints older than a day need.
            thread_ids: only these.
            dry_run: move nothing, and return what would go.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            InvalidArgumentError: it is no Tiering, or the saver was opened without `cold=`.
            ThreadNotFoundError: one of the threads does not exist; nothing was moved.
            OpenError, BackendError: the cold store refused, or failed; what was moved is moved.
        """
        return lazy.tiering.tier(
            self._store, self._engine, tiering, thread_ids, progress, dry_run=dry_run
        )

    tier, atier = sync_and_async(_tier)

    # -- damage and erasure ----------------------------------------------------------

    def _repair(
        self,
        thread_ids: str | Iterable[str] | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[RepairReport]:
        """Move what cannot be read out of threads, into a file, so that the rest of them loads.

        A checkpoint with any unreadable part is moved out whole. The newest readable checkpoint
        becomes the head; a thread with none left is empty. Data is removed from the store only
        after the file is synced to disk. Sound threads are not written to. Programs may use the
        store meanwhile; after an interrupted call, repeat it with another file.

        Args:
            thread_ids: the id of one or the ids of several; None for all.
            file: the quarantine file (`.tkq`), which must not exist; it is made if anything is
                moved out. Not needed for a dry run.
            dry_run: change nothing, and return what would be done.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            InvalidArgumentError: no file was given, or an id is invalid.
            ThreadNotFoundError: one of them does not exist; nothing was changed.
            OpenError, DiskFullError: the file exists, or cannot be written.
            ConflictError: a thread is written all the time.
        """
        return lazy.repair.repair(
            self._store, self._engine, thread_ids, file, progress, dry_run=dry_run
        )

    repair, arepair = sync_and_async(_repair)

    def _erase(
        self,
        thread_id: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        forks: bool = False,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[EraseReport]:
        """Remove threads, and every byte of them that this store and this program hold.

        As after `delete_thread`, a tombstone stays. Then caches are cleared, and the store's
        files are scrubbed, also of what was removed before. A call that was cut off is repeated
        as it was: files are scrubbed also where no rows are left to remove.

        Args:
            thread_id: the name of one; or
            metadata: what all of them have, as `search` compares it. One of the two.
            forks: erase also the threads that were forked from these, and theirs, which hold what
                they took. Without it the report names them.
            rewrite: on PostgreSQL, rewrite the tables (VACUUM FULL), which are locked
                meanwhile. SQLite's file always is, while others keep reading.
            dry_run: change nothing, and return what would go.
            progress: called as `progress(stage, done, total)`; total 0 is unknown.

        Raises:
            InvalidArgumentError: neither or both were given, or metadata that is empty.
            ThreadNotFoundError: there never was such a thread; nothing was done.
            UnfinishedErasureError: a place was not cleared, or a thread among several was not
                removed: `report` says what was done, the message what to do before erasing again.
            ConflictError, CorruptionError: it shares segments with a thread that is written all
                the time, or damaged; no place was cleared.
            BackendError: the store failed; erase again.
        """
        return lazy.erasure.erase(
            self._store,
            self._engine,
            thread_id,
            metadata,
            progress,
            forks=forks,
            rewrite=rewrite,
            dry_run=dry_run,
        )

    erase, aerase = sync_and_async(_erase)
