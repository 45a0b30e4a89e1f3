"""Public methods on the threads of a store: `saver.threads`.

Modules that a save does not need are imported when an operation of theirs runs (`lazy`), so
`saver.threads` imports nothing in an event loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from threadkeep._core import validation
from threadkeep._core.engine.cold_references import OFFLOAD_OVER
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._core.known_names import KnownNames
from threadkeep._run.driver import on, sync_and_async
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.threads import lazy
from threadkeep.threads.entries import ThreadTransfers
from threadkeep.threads.erasure_report import Account

if TYPE_CHECKING:
    from threadkeep._core.policies import Retention, Tiering
    from threadkeep.threads.archives.offload import OffloadReport
    from threadkeep.threads.archives.tiering import TierReport
    from threadkeep.threads.diff import StateDiff
    from threadkeep.threads.diff.checkpoints import ChannelVersion, ConfigOrPair
    from threadkeep.threads.erasure_report import AccountReport, EraseReport
    from threadkeep.threads.forks import Branches
    from threadkeep.threads.growth import ThreadGrowth
    from threadkeep.threads.merging import MergeReport, MergeStrategy
    from threadkeep.threads.registry import ThreadInfo
    from threadkeep.threads.repair.repair import RepairReport
    from threadkeep.threads.retention.gc import GcReport
    from threadkeep.threads.upgrading import UpgradeReport


class Threads(ThreadTransfers, KnownNames):
    """The threads of a store. Each method has an async variant: `afork` of `fork`, and so on."""

    def __init__(self, store: LayeredBackend, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    # -- branches and differences ----------------------------------------------------

    def _branches(self, thread_id: str, checkpoint_ns: str = "") -> Operation[Branches]:
        """Return the tree of a thread's checkpoints in a namespace. "" is the graph's own.

        Raises:
            ThreadNotFoundError: the thread has no checkpoints in this namespace.
            InvalidArgumentError: a name is no text.
            CorruptionError, UnknownTypeError: a checkpoint's row or writes cannot be read.
        """
        return self._on(lazy.forks.branches, thread_id, checkpoint_ns)

    branches, abranches = sync_and_async(_branches)

    def _branches_by_ns(self, thread_id: str) -> Operation[dict[str, Branches]]:
        """Return the trees of all checkpoint namespaces, by namespace. "" is the graph's own.

        Raises:
            ThreadNotFoundError: the thread has no checkpoints.
            ThreadkeepError: as `branches`.
        """
        return self._on(lazy.forks.all_branches, thread_id)

    branches_by_ns, abranches_by_ns = sync_and_async(_branches_by_ns)

    def _diff(
        self,
        thread_id: str,
        before_id: str | None,
        after_id: str | None = None,
        checkpoint_ns: str = "",
        *,
        channels: Sequence[str] | None = None,
    ) -> Operation[StateDiff]:
        """Compare two checkpoints of a thread and namespace by their ids. None is the head.

        Args:
            thread_id: the thread's id.
            before_id: the id of the first checkpoint.
            after_id: the id of the second checkpoint.
            checkpoint_ns: the checkpoint namespace. "" is the graph's own, a subgraph has another.
            channels: compare and read only these channels. None for all. The result has no others.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: a checkpoint does not exist.
            InvalidArgumentError: an argument is no text, or `channels` is no list of names.
            CorruptionError, UnknownTypeError: a value cannot be read.
        """
        a = validation.place(thread_id, checkpoint_ns, before_id)
        b = validation.place(thread_id, checkpoint_ns, after_id)
        return self._over(lazy.checkpoints.diff, a, b, channels)

    diff, adiff = sync_and_async(_diff)

    def _diff_checkpoints(
        self,
        before: ConfigOrPair,
        after: ConfigOrPair,
        *,
        channels: Sequence[str] | None = None,
    ) -> Operation[StateDiff]:
        """Compare two checkpoints of any threads, channel by channel.

        Pass a config, as `get_state` and `list` return it, or a pair of the thread's id and the
        checkpoint's id (None for the head). `channels` are as in `diff`.

        Raises:
            InvalidConfigError: a config has no thread_id.
            ThreadkeepError: as `diff`.
        """
        return self._over(lazy.checkpoints.diff, before, after, channels)

    diff_checkpoints, adiff_checkpoints = sync_and_async(_diff_checkpoints)

    def _versions(
        self,
        thread_id: str,
        channel: str,
        checkpoint_ns: str = "",
        limit: int | None = 10,
        *,
        checkpoint_id: str | None = None,
    ) -> Operation[list[ChannelVersion]]:
        """Return the versions of a channel in a checkpoint and its ancestors, newest first.

        A channel that the thread never had has no versions: the list is empty.

        Args:
            thread_id: the thread's id.
            channel: the channel's name.
            checkpoint_ns: the checkpoint namespace. "" is the graph's own, a subgraph has another.
            limit: the maximum number of versions, or None for all.
            checkpoint_id: the id of the checkpoint to begin with, or None for the head.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it does not exist.
            InvalidArgumentError: a name or the limit is invalid.
            CorruptionError: a checkpoint's manifest is damaged.
        """
        return self._on(
            lazy.checkpoints.versions, thread_id, channel, checkpoint_ns, limit, checkpoint_id
        )

    versions, aversions = sync_and_async(_versions)

    def _growth(
        self, thread_id: str, *, progress: Progress | None = None
    ) -> Operation[ThreadGrowth]:
        """Return the bytes that each checkpoint of a thread added, by channel.

        Reads the thread's rows and its values, some megabytes at a time, but makes no objects of
        them. Rows of all its checkpoints are in memory meanwhile.

        Args:
            thread_id: the thread's id.
            progress: called as `progress(stage, done, total)`.

        Raises:
            ThreadNotFoundError: the thread has no checkpoints.
            InvalidArgumentError: the thread's id is invalid.
            CorruptionError: the thread is damaged.
        """
        return on(self._store, lazy.growth.growth(thread_id, progress))

    growth, agrowth = sync_and_async(_growth)

    # -- forks -----------------------------------------------------------------------

    def _fork(
        self, thread_id: str, checkpoint_id: str | None = None, new_thread_id: str | None = None
    ) -> Operation[ThreadInfo]:
        """Fork a thread at any of its checkpoints.

        The fork starts in the state right after that checkpoint. Interrupts pending there are
        pending in the fork, and later nodes run again. The two threads are independent from then
        on. Values are copied only on Redis.

        Args:
            thread_id: the id of the thread to fork, which is not changed.
            checkpoint_id: a checkpoint of its root namespace, or None for its head.
            new_thread_id: the fork's id, or None for a new UUID.

        Returns:
            The fork's entry: state `forked`, the metadata of the original, no tags.

        Raises:
            ThreadNotFoundError: the thread has no checkpoints.
            CheckpointNotFoundError: it has no such checkpoint.
            ThreadExistsError: the thread `new_thread_id` has checkpoints.
        """
        return self._on(lazy.forks.fork, thread_id, checkpoint_id, new_thread_id)

    fork, afork = sync_and_async(_fork)

    def _merge_fork(
        self,
        fork_id: str,
        target_thread_id: str,
        strategy: MergeStrategy | None = None,
        *,
        dry_run: bool = False,
    ) -> Operation[MergeReport]:
        """Merge a fork into the thread that it was forked from (the target).

        If only the fork has changed a channel since the fork, the target gets the fork's value. If
        only the target has changed it, its value stays. The result is a new checkpoint after the
        target's head, with source "update", and the nodes to run next stay the same. The fork is
        not changed.

        Args:
            fork_id: the id of the fork.
            target_thread_id: the id of the thread that the fork was made from.
            strategy: for channels that both threads have changed:

                - "theirs" takes the fork's value, "ours" the target's.
                - A function gets the channel's name and three values: at the fork, in the target,
                  in the fork (None if the channel has no value). It returns the new value.
                - A graph: its reducers get the values written in the fork.
                - None refuses the merge.
            dry_run: change nothing, and return the channels to merge, and the conflicts.

        Raises:
            MergeConflictError: both have changed a channel, and there is no strategy.
            InvalidArgumentError: the thread is no fork of the target, or a channel is a
                DeltaChannel, which only a graph can merge, or layered memory has archived
                messages of both since, which only "theirs" and "ours" resolve.
            CheckpointNotFoundError: the checkpoint that the fork began with was pruned.
            ThreadNotFoundError: a thread has no checkpoints.
        """
        return self._on(lazy.merging.merge, fork_id, target_thread_id, strategy, dry_run=dry_run)

    merge_fork, amerge_fork = sync_and_async(_merge_fork)

    def _discard_fork(self, fork_id: str, *, delete: bool = False) -> Operation[ThreadInfo]:
        """Archive an unused fork, or `delete` it.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            StateError: it is no fork, or is archived already.
            ThreadkeepError: as `archive`.
        """
        return self._over(lazy.tiering.discard_fork, fork_id, delete=delete)

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
        """Apply retention to all threads: remove the checkpoints that it does not keep.

        Runs may be under way. You can repeat an interrupted call. A thread that was not written
        since the last call is not read again.

        Args:
            policy: for threads without a policy of their own (`retain`), or None for the saver's
                own (`retention=`), or else to keep everything.
            thread_ids: only these threads, and `max_count` does not apply then.
            dry_run: only report the removals.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError: the policy or the list of threads is invalid.
            ThreadNotFoundError: a thread does not exist, and nothing was removed.
            BackendError: the store failed, and earlier threads were already cleaned up.
        """
        own = self._store.retention if policy is None else policy
        names = None if thread_ids is None else validation.each_thread(thread_ids)
        return on(self._store, self._over(lazy.gc.gc, own, names, progress, dry_run=dry_run))

    gc, agc = sync_and_async(_gc)

    def _upgrade(
        self,
        thread_ids: Iterable[str] | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[UpgradeReport]:
        """Rewrite stored values in the shapes of the saver's `migrations=`, also archived threads.

        Ids, times, metadata and pending writes of checkpoints stay, and so do values that forks
        share. Runs may be under way, of programs that know these shapes. You can repeat an
        interrupted call. A thread that cannot be migrated stays as it is, and is reported.

        Args:
            thread_ids: only these threads, or None for all.
            dry_run: only report the rewrites.
            progress: called as `progress(stage, done, total)`.

        Raises:
            InvalidArgumentError: the saver was opened without `migrations=`.
            ThreadNotFoundError: a thread does not exist, and nothing was changed.
            BackendError: the store failed, and earlier threads are upgraded.
        """
        return self._over(lazy.upgrading.upgrade, thread_ids, progress, dry_run=dry_run)

    upgrade, aupgrade = sync_and_async(_upgrade)

    def _retain(self, thread_id: str, policy: Retention | None) -> Operation[ThreadInfo]:
        """Set a thread's own retention, which replaces the saver's. None removes it.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            InvalidArgumentError: it is no Retention, or has `max_count`, which is for stores.
        """
        return self._on(lazy.registry.retain, thread_id, policy)

    retain, aretain = sync_and_async(_retain)

    def _index(self, *, progress: Progress | None = None, again: bool = False) -> Operation[int]:
        """Index the messages of all threads that are not indexed, for `find`.

        A saver with `search="messages"` indexes what it saves. This indexes earlier threads, forks,
        and what other savers have saved. Runs may be under way. You can repeat an interrupted call.

        Args:
            progress: called as `progress(stage, done, total)`.
            again: True removes the index before, as if it is damaged.

        Returns:
            The number of threads that were indexed. A thread that cannot be read is left out.

        Raises:
            InvalidArgumentError: the store has no index of messages, or is encrypted.
            BackendError: the store failed. Some threads may be indexed.
        """
        return self._over(lazy.finding.index, progress, again=again)

    index, aindex = sync_and_async(_index)

    def _archive(self, thread_id: str) -> Operation[ThreadInfo]:
        """Move a thread into the cold store (`cold=`), as one immutable, checked object.

        Its entry stays in the store, in the state "archived". Any read restores the thread, in any
        process whose saver has the same `cold=`.

        Raises:
            ThreadNotFoundError: the thread does not exist, or has no checkpoints.
            StateError: it is archived already.
            InvalidArgumentError: the saver was opened without `cold=`.
            ConflictError: other programs keep writing the thread.
            CorruptionError: it is damaged, or the cold store lost or changed an object.
            OpenError, BackendError: the cold store refused or failed, and the thread was not moved.
        """
        return self._over(lazy.tiering.archive, thread_id)

    archive, aarchive = sync_and_async(_archive)

    def _restore(self, thread_id: str) -> Operation[ThreadInfo]:
        """Restore an archived thread, or a thread's offloaded values, from the cold store.

        Reading an archived thread does the same.

        Raises:
            ThreadNotFoundError: the thread does not exist.
            StateError: nothing of it is in the cold store.
            ThreadArchivedError: the saver was opened without `cold=`.
            ConflictError: other programs keep writing the thread.
            CorruptionError: the cold store lost or changed an object.
            OpenError, BackendError: the cold store refused or failed.
        """
        return self._on(lazy.tiering.restore, thread_id)

    restore, arestore = sync_and_async(_restore)

    def _offload(
        self,
        thread_id: str,
        *,
        over: int = OFFLOAD_OVER,
        older_than: timedelta | float | None = None,
    ) -> Operation[OffloadReport]:
        """Move old values of a thread that is in use into the cold store (`cold=`).

        Moves only large values that no head and no waiting task needs. Runs continue as before.
        Reading an older checkpoint fetches its values. A thread that shares values with forks is
        not changed.

        Args:
            thread_id: the thread's id.
            over: size in bytes, 1024 or more. Larger segments are moved.
            older_than: seconds or a timedelta. Values that younger checkpoints need stay too.
                None: only values that the heads need stay.

        Raises:
            ThreadNotFoundError: the thread does not exist, or has no checkpoints.
            StateError: it is archived.
            InvalidArgumentError: the saver was opened without `cold=`, or a limit is invalid.
            ConflictError: other programs keep writing the thread.
            CorruptionError: it is damaged, or the cold store lost or changed an object.
            OpenError, BackendError: the cold store refused or failed.
        """
        return self._over(lazy.tiering.offload, thread_id, over, older_than)

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

        Runs may be under way. You can repeat an interrupted call. Pinned threads stay.

        Args:
            tiering: the limits, or None for the saver's own (`tiering=`), or else the defaults:
                threads neither written nor restored for a day are archived, and values over 64 KB
                of other threads are offloaded if only checkpoints older than a day need them.
            thread_ids: only these threads.
            dry_run: only report the moves.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError: it is no Tiering, or the saver was opened without `cold=`.
            ThreadNotFoundError: a thread does not exist, and nothing was moved.
            OpenError, BackendError: the cold store refused or failed. Some threads may be moved.
        """
        return self._over(lazy.tiering.tier, tiering, thread_ids, progress, dry_run=dry_run)

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
        """Move unreadable data of threads into a quarantine file, so that the rest loads.

        A checkpoint with any unreadable part is moved as a whole. The newest readable checkpoint
        becomes the head, and a thread without any becomes empty. Data is removed from the store
        only after the file is synced to disk. The saver's keys, if it has any, encrypt the file.
        Read it by `read_quarantine`. Sound threads are not changed. Programs may use the store
        meanwhile. After an interrupted call, repeat it with another file.

        Args:
            thread_ids: one id or several, or None for all threads.
            file: the quarantine file (`.tkq`), which must not exist. It is created if any data is
                moved. Not needed for a dry run.
            dry_run: only report the changes.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError: no file was given, or an id is invalid.
            ThreadNotFoundError: a thread does not exist, and nothing was changed.
            OpenError, DiskFullError: the file exists, or cannot be written.
            ConflictError: other programs keep writing a thread.
        """
        return self._over(lazy.repair.repair, thread_ids, file, progress, dry_run=dry_run)

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
        """Delete threads, and erase every byte of them from this store and this process.

        As after `delete_thread`, a tombstone with the id stays. Then caches are cleared, and the
        store's files are scrubbed, also of data deleted earlier. Repeat an interrupted call with
        the same arguments: it scrubs the files even if no rows are left to remove.

        Args:
            thread_id: the id of one thread. Give either this or `metadata`.
            metadata: erase all threads with this metadata, compared as in `search`.
            forks: also erase all forks of these threads, and forks of forks, which contain values
                of the original. If False, the report names them.
            rewrite: on PostgreSQL, rewrite the tables (VACUUM FULL), which locks them. SQLite's
                file is always rewritten, while others keep reading.
            dry_run: only report the erasures.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError: neither or both were given, or metadata that is empty.
            ThreadNotFoundError: the thread never existed, and nothing was done.
            UnfinishedErasureError: a place was not cleared, or a thread of several was not removed.
                `report` lists the completed steps. Do what the message says, then erase again.
            ConflictError, CorruptionError: the thread shares segments with a thread that others
                keep writing, or that is damaged, and no place was cleared.
            BackendError: the store failed. Erase again.
        """
        return self._over(
            lazy.erasure.erase,
            thread_id,
            metadata,
            progress,
            forks=forks,
            rewrite=rewrite,
            dry_run=dry_run,
        )

    erase, aerase = sync_and_async(_erase)

    def _delete_account(
        self,
        metadata: Mapping[str, Any],
        *,
        thread_ids: Iterable[str] = (),
        namespaces: Iterable[Sequence[str]] = (),
        results: bool = True,
        forks: bool = True,
        rewrite: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operation[AccountReport]:
        """Erase all that this store holds of a user: threads, items, and cached results.

        Threads are removed first, with their archives, partial output and layers, so runs under way
        end at their next save. Threads that runs make meanwhile are found too. Then the items and
        results are removed, and the store's files are scrubbed once, as by `erase`. Repeat an
        interrupted call with the same arguments: the store records the threads until the end.

        Args:
            metadata: erase all threads with this metadata, such as {"user_id": "u1"}, compared as
                in `search`.
            thread_ids: more threads, and ids of sessions. Ids that do not exist are ignored.
            namespaces: erase all items of stores whose namespaces begin with any of these, such as
                [("users", "u1")].
            results: also remove all cached results of nodes, as a cache does not know whose they
                are. Nodes compute them again.
            forks: also erase the forks of these threads, which contain the same values.
            rewrite: as in `erase`.
            dry_run: only report the erasures.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError, InvalidNamespaceError: an argument is invalid, or the metadata is
                empty.
            UnfinishedErasureError: a place was not cleared. `report` lists the completed steps. Do
                what the message says, then call this again.
            ConflictError, CorruptionError, BackendError: as `erase`.
        """
        account = Account(metadata, thread_ids, namespaces, results, forks)
        return self._over(
            lazy.accounts.delete_account, account, progress, rewrite=rewrite, dry_run=dry_run
        )

    delete_account, adelete_account = sync_and_async(_delete_account)
