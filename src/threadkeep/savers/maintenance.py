"""Maintenance methods of a saver: delete, copy, prune, check, set up, close."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from threadkeep._core import validation
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import Operation, call
from threadkeep._run.driver import Closing, external, on, sync_and_async
from threadkeep._run.first_change import check_is_plain
from threadkeep.errors import invalid
from threadkeep.savers.tenants import ForTenants
from threadkeep.threads import lazy
from threadkeep.threads.retention import apply

if TYPE_CHECKING:
    from threadkeep._core.engine.operation import Progress
    from threadkeep.threads.partial_output import PartialStream
    from threadkeep.threads.repair.check import CheckReport
    from threadkeep.threads.rotation import RotationReport
    from threadkeep.threads.shredding import ShredReport
    from threadkeep.threads.statistics_report import Stats


class Done:
    """Result of `setup()`, which may be awaited."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class Maintenance(ForTenants, Closing):
    """Maintenance methods of a saver."""

    def _delete_thread(self, thread_id: str) -> Operation[None]:
        """Delete a thread. Later writes of runs under way are refused.

        Deleting a thread that does not exist is no error, as with LangGraph's savers.

        Args:
            thread_id: the thread's id, or a config that names it.

        Raises:
            InvalidArgumentError: `thread_id` is neither.
        """
        name = validation.thread_id(thread_id)
        yield from on(self._store, apply.delete_thread(self._engine, name))
        if self._rolling is not None:
            yield from self._rolling.mirror(name, "delete_thread", name)

    delete_thread, adelete_thread = sync_and_async(_delete_thread)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Operation[None]:
        """Remove the checkpoints of these runs (metadata `run_id`), in every thread.

        Checkpoints that DeltaChannels of other checkpoints need stay, hidden.

        Raises:
            InvalidArgumentError: the ids are invalid.
        """
        names = validation.ids("run_ids", run_ids)
        yield from check_is_plain(self._store)  # (a search by digest would find none)
        yield from on(self._store, apply.delete_for_runs(self._engine, names))

    delete_for_runs, adelete_for_runs = sync_and_async(_delete_for_runs)

    def _delete_checkpoints(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str],
        checkpoint_ns: str | None = "",
        *,
        sweep: bool = True,
    ) -> Operation[int]:
        """Remove single checkpoints and their writes.

        Other checkpoints keep their values. Checkpoints that their DeltaChannels need stay, hidden.
        Pass many ids at once: a call reads all rows of the thread, and a run under way then reads
        its thread again.

        Args:
            thread_id: the thread's id.
            checkpoint_ids: the ids of the checkpoints.
            checkpoint_ns: their namespace, or None for any.
            sweep: False removes only the rows, and reads no others. Their values stay until
                something else is removed from the thread. Only in threadkeep's own namespaces.

        Returns:
            The number of checkpoints removed. Ids that do not exist are ignored.

        Raises:
            InvalidArgumentError: the ids, the namespace or `sweep` are invalid.
        """
        ids = validation.ids("checkpoint_ids", checkpoint_ids)
        space = None if checkpoint_ns is None else validation.text("checkpoint_ns", checkpoint_ns)
        name = validation.thread_id(thread_id)
        if not sweep and not (space or "").startswith(OWN_NS):
            raise invalid("sweep", sweep, f"Use True, or a namespace that begins with {OWN_NS}.")
        return on(
            self._store, apply.delete_checkpoints(self._engine, name, ids, space, sweep=sweep)
        )

    delete_checkpoints, adelete_checkpoints = sync_and_async(_delete_checkpoints)

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> Operation[None]:
        """Copy a whole thread inside the store.

        Raises:
            ThreadExistsError: the target has checkpoints.
            InvalidArgumentError: an id is invalid.
        """
        source, target = validation.each_thread((source_thread_id, target_thread_id))
        if self._rolling is not None:
            for name in (source, target):
                yield from self._rolling.take(self._store, self._engine, name)
        yield from on(self._store, lazy.forks.copy_thread(self._engine, source, target))

    copy_thread, acopy_thread = sync_and_async(_copy_thread)

    def _prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest"
    ) -> Operation[None]:
        """Keep the newest checkpoint of each namespace ("keep_latest"), or none ("delete").

        "keep_latest" also keeps checkpoints with a pin or a tag, and all of a pinned thread.

        Raises:
            InvalidArgumentError: another strategy, or the ids are invalid.
        """
        ids = validation.each_thread(thread_ids)
        yield from on(self._store, apply.prune(self._engine, ids, strategy))
        if self._rolling is not None and strategy == "delete":
            for name in ids:
                yield from self._rolling.mirror(name, "delete_thread", name)

    prune, aprune = sync_and_async(_prune)

    def _partial(self, thread_id: str) -> Operation[list[PartialStream]]:
        """Return the streams of a thread, newest first, with the partial output of pending ones.

        Includes the newest 20 ended streams. See `streaming`.

        Raises:
            InvalidArgumentError: the thread's id is invalid.
        """
        return lazy.partial_output.partial_of(self, thread_id)

    partial, apartial = sync_and_async(_partial)

    def _discard_partial(self, thread_id: str, stream: str | None = None) -> Operation[int]:
        """Discard the partial output of a thread's pending streams, and return their number.

        A stream that is still under way is pending again at its next save.

        Args:
            thread_id: the thread's id.
            stream: the id of one stream, or None for all.

        Raises:
            InvalidArgumentError: the thread's id is invalid.
        """
        return lazy.partial_output.discard_of(self, thread_id, stream)

    discard_partial, adiscard_partial = sync_and_async(_discard_partial)

    def _stats(
        self, *, exact: bool = False, max_age: timedelta | float | None = None
    ) -> Operation[Stats]:
        """Return statistics: totals, growth, the largest and busiest threads, bytes by channel.

        On SQLite and PostgreSQL the database counts. Bytes by channel are an estimate from the
        values of some 50 threads.

        Args:
            exact: count the parts of every thread. Reads the whole store: slow if it is large.
            max_age: return the last statistics of any process that passed `max_age=`, if they were
                counted at most this long ago, as a timedelta or seconds. Otherwise they are
                counted, and stored for the next call. `at` is the time of the count. By default,
                and for a tenant's saver, always count, and store nothing.

        Raises:
            InvalidArgumentError: `max_age` is not a length of time, or is given with `exact`.
        """
        counts_usage = self._store.backend.counts_usage
        if max_age is None or self.tenant is not None:
            count = lazy.statistics.count
            asked = count(self._engine.now(), counts_usage=counts_usage, exact=exact)
        else:
            age = validation.duration("max_age", max_age)
            if exact:
                raise invalid("max_age", max_age, "Leave it out with exact=True.")
            asked = lazy.last_statistics.stats(self._engine, age, counts_usage=counts_usage)
        found = on(self._store, asked)
        return lazy.rotation.with_keys(self._store, self._engine, found) if exact else found

    stats, astats = sync_and_async(_stats)

    def _check(self, progress: Progress | None = None) -> Operation[CheckReport]:
        """Verify every checksum, reference and span of every thread. Changes nothing.

        Args:
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.
        """
        return lazy.check.check(self._store, self._engine, progress)

    check, acheck = sync_and_async(_check)

    def _rotate_keys(
        self, *, dry_run: bool = False, rewrite: bool = False, progress: Progress | None = None
    ) -> Operation[RotationReport]:
        """Encrypt all stored values with the current key, in small commits.

        Programs may keep running, if all of them have the current key. An interrupted rotation
        continues where it ended. Afterwards the older keys can be removed from the ring, except for
        backups. Also makes metadata of existing threads `searchable`. Items of stores get new
        versions (`item.version`). Cached results stay as they are: a result whose key is removed is
        a miss.

        With `allow_plaintext="migrate"` and `serde=EncryptedSerializer...`, first decrypts the
        values of that serializer: leave out `serde=` afterwards.

        With `allow_plaintext="migrate"`, also encrypts plain values, then removes the plain text
        that is left: cached results, full-text and vector indexes, and removed rows in the store's
        files, as `threads.erase` does. The report names places that may still hold some.

        Args:
            dry_run: only count.
            rewrite: PostgreSQL, with `allow_plaintext`: rewrite the tables, which locks them.
            progress: called as `progress(stage, done, total)` with a total of 0 (unknown).

        Raises:
            InvalidArgumentError: the saver has no keys, or has a tenant.
            WrongKeyError, TamperedDataError: a value cannot be decrypted.
            ConflictError: other programs still write with an older key, or change a thread all
                the time.
        """
        self._check_is_whole("rotate_keys")
        return lazy.rotation.rotate(
            self._store, self._engine, progress, dry_run=dry_run, rewrite=rewrite
        )

    rotate_keys, arotate_keys = sync_and_async(_rotate_keys)

    def _shred(
        self, thread_id: str, *, forks: bool = False, progress: Progress | None = None
    ) -> Operation[ShredReport]:
        """Destroy a thread's own key, and erase the thread.

        Its rows, archives and backups cannot be read any more, by anyone. Its id is never used
        again. If the call is interrupted, repeat it.

        Args:
            thread_id: the thread's id.
            forks: also shred its forks, which share its key.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError: threads have no keys of their own: see `thread_keys`.
            StateError: it has forks, and `forks` is False, and nothing was done.
            ThreadNotFoundError, UnfinishedErasureError, ConflictError, BackendError: as
                `Threads.erase`.
        """
        return lazy.shredding.shred_thread(
            self._store, self._engine, thread_id, progress, forks=forks
        )

    shred, ashred = sync_and_async(_shred)

    def _shred_tenant(
        self, tenant: str, *, progress: Progress | None = None
    ) -> Operation[ShredReport]:
        """Destroy a tenant's key, and remove its threads, items and cached results.

        Its rows, archives, bundles and backups cannot be read any more, by anyone. The tenant's
        name is never used again. If the call is interrupted, repeat it.

        Args:
            tenant: its name, as given to `for_tenant`.
            progress: called as `progress(stage, done, total)`. A total of 0 means unknown.

        Raises:
            InvalidArgumentError: the name is invalid, this saver is a tenant's, or tenants have no
                keys of their own: see `key_store`.
            UnfinishedErasureError, ConflictError, BackendError: as `Threads.erase`.
        """
        self._check_is_whole("shred_tenant")
        return lazy.shredding.shred_tenant(self._store, self._engine, tenant, progress)

    shred_tenant, ashred_tenant = sync_and_async(_shred_tenant)

    def _clear_cache(self, thread_id: str | None = None) -> Operation[None]:
        """Evict a thread, or all threads (None), from the memory of this process.

        Nothing stored is removed.
        """
        self._store.clear_cache(None if thread_id is None else validation.thread_id(thread_id))
        yield from ()

    clear_cache, aclear_cache = sync_and_async(_clear_cache)

    # -- life ------------------------------------------------------------------------

    def setup(self) -> Done:
        """Create the tables, or migrate them to this release, if opening does not.

        You may await the result, but only `asetup` does not block the event loop.

        Raises:
            NewerDatabaseError: the tables are of a later release.
            UnreachableError, BackendError: the server failed, or refused.
        """
        self._store.run(self._setup())
        return Done()

    async def asetup(self) -> None:  # (`setup` has another result: an awaitable)
        """Async variant of `setup`."""
        await self._store.arun(self._setup())

    def _setup(self) -> Operation[None]:
        yield from call("migrate")
        if self._engine.words is not None:
            yield from call("keep_words", kept=True)

    def _opening(self) -> Operation[None]:
        yield from self._store.opening()
        if self._rolling is not None:
            yield from external(self._rolling.open)

    def _close(self) -> Operation[None]:
        """Close the saver and its store. Idempotent. Later calls raise `ClosedError`."""
        if self._collector is not None:
            yield from external(self._collector.close)
        if self._rolling is not None:
            yield from external(self._rolling.close)
        yield from self._store.closing()

    close, aclose = sync_and_async(_close)
