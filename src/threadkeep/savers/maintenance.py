"""Methods of a saver that look after its store: delete, copy, prune, check, set up, close."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from threadkeep._core import validation
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.operation import call
from threadkeep._run import driver
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import invalid
from threadkeep.savers.awaited import AwaitedMaintenance
from threadkeep.threads import lazy

if TYPE_CHECKING:
    from threadkeep._core.engine.operation import Progress
    from threadkeep.threads.partial_output import PartialStream
    from threadkeep.threads.repair.check import CheckReport
    from threadkeep.threads.retention.background import Collector
    from threadkeep.threads.statistics import Stats


class Done:
    """Result of `setup()`, which may be awaited."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class Maintenance(AwaitedMaintenance, driver.Closing):
    """Methods of a saver that look after its store."""

    _store: LayeredBackend
    _engine: Engine
    _collector: Collector | None

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread. Late writes of runs under way are refused, not resurrected.

        A thread that does not exist is no error, as with LangGraph's savers.

        Args:
            thread_id: the thread's id, or a config that names it.

        Raises:
            InvalidArgumentError: it is neither.
        """
        name = validation.thread_id(thread_id)
        self._store.run(lazy.apply.delete_thread(self._engine, name))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs (metadata `run_id`), in every thread.

        What DeltaChannels of other checkpoints are rebuilt through stays, hidden.

        Raises:
            InvalidArgumentError: the ids are invalid.
        """
        self._store.run(
            lazy.apply.delete_for_runs(self._engine, validation.ids("run_ids", run_ids))
        )

    def delete_checkpoints(
        self,
        thread_id: str,
        checkpoint_ids: Sequence[str],
        ns: str | None = "",
        *,
        sweep: bool = True,
    ) -> int:
        """Remove single checkpoints of a namespace (None: of any), with their writes.

        Others keep their values. What DeltaChannels of others are rebuilt through stays, hidden.
        Reads all rows of the thread, and a run under way reads its thread again: pass many ids at
        once.

        Args:
            thread_id: the thread.
            checkpoint_ids: the checkpoints.
            ns: their namespace; None for any.
            sweep: False removes the rows alone, and reads no others. Their values stay until
                something else is removed from the thread. Only in namespaces of threadkeep's own.

        Returns:
            The number of checkpoints removed; ids that do not exist are ignored.

        Raises:
            InvalidArgumentError: the ids, the namespace or `sweep` are invalid.
        """
        ids = validation.ids("checkpoint_ids", checkpoint_ids)
        space = None if ns is None else validation.text("ns", ns)
        name = validation.thread_id(thread_id)
        if not sweep and not (space or "").startswith(OWN_NS):
            raise invalid("sweep", sweep, f"Use True, or a namespace that begins with {OWN_NS}.")
        return self._store.run(
            lazy.apply.delete_checkpoints(self._engine, name, ids, space, sweep=sweep)
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread inside the store.

        Raises:
            ThreadExistsError: the target holds checkpoints.
            InvalidArgumentError: an id is invalid.
        """
        source, target = validation.each_thread("thread_ids", (source_thread_id, target_thread_id))
        self._store.run(lazy.forks.copy_thread(self._engine, source, target))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace ("keep_latest"), or none ("delete").

        "keep_latest" also keeps checkpoints that have a pin or a tag, and leaves pinned threads
        whole.

        Raises:
            InvalidArgumentError: another strategy, or the ids are invalid.
        """
        ids = validation.each_thread("thread_ids", thread_ids)
        self._store.run(lazy.apply.prune(self._engine, ids, strategy))

    def partial(self, thread_id: str) -> list[PartialStream]:
        """Return the streams of a thread, newest first, with what those that did not end left.

        Of ended streams, the newest 20 are there. See `streaming`.

        Raises:
            InvalidArgumentError: the thread's id is invalid.
        """
        return driver.run(lazy.partial_output.partial_of(self, thread_id))

    def discard_partial(self, thread_id: str, stream: str | None = None) -> int:
        """Discard what pending streams of a thread left; return how many there were.

        A stream that is still under way is pending again when it is saved the next time.

        Args:
            thread_id: the thread's id.
            stream: the id of one stream; None for all.

        Raises:
            InvalidArgumentError: the thread's id is invalid.
        """
        return driver.run(lazy.partial_output.discard_of(self, thread_id, stream))

    def stats(self, *, exact: bool = False) -> Stats:
        """Return statistics: totals, growth, the largest and busiest threads, bytes by channel.

        On SQLite and PostgreSQL the database counts, and no values are read but those of some 50
        threads, whose channels stand for those of all.

        Args:
            exact: count the parts of every thread. Reads the whole store: slow on a large one.
        """
        return self._store.run(
            lazy.statistics.count(
                self._engine.now(), counts_usage=self._store.backend.counts_usage, exact=exact
            )
        )

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Verify every checksum, reference and span of every thread. Changes nothing.

        Args:
            progress: called as `progress(stage, done, total)`; total 0 is unknown.
        """
        return driver.run(lazy.check.check(self._store, self._engine, progress))

    def clear_cache(self, thread_id: str | None = None) -> None:
        """Evict a thread, or all of them (None), from memory. Nothing stored is removed.

        Clears the memory of this process, `cache`, and `hot` for this store.

        Raises:
            ThreadkeepError: the hot store could not be reached, and was not cleared.
        """
        name = None if thread_id is None else validation.thread_id(thread_id)
        self._store.run(self._store.clear_cache(name))

    # -- life ------------------------------------------------------------------------

    def setup(self) -> Done:
        """Make the tables, or migrate them to this release, where opening does not.

        May be awaited; `asetup` waits without holding up the event loop.

        Raises:
            NewerDatabaseError: the tables are of a later release.
            UnreachableError, BackendError: the server failed, or refused.
        """
        self._store.run(call("migrate"))
        return Done()

    async def asetup(self) -> None:
        """Async variant of `setup`."""
        await self._store.arun(call("migrate"))

    def flush(self) -> None:
        """Store the saves that `write_behind` has not stored yet; durable on return.

        Raises:
            LostSavesError: some of it was refused, as it says, and is lost.
            BackendError: the store failed; what it did not store is kept, and tried again.
        """
        driver.run(self._store.flush())

    def _opening(self) -> driver.Workflow[None]:
        return self._store.opening()

    def close(self) -> None:
        """Shut down and release everything. Idempotent; later calls raise `ClosedError`."""
        driver.run(self._close())

    async def aclose(self) -> None:
        """Async variant of `close`."""
        await driver.arun(self._close())

    def _close(self) -> driver.Workflow[None]:
        if self._collector is not None:
            yield from driver.external(self._collector.close)
        yield from self._store.closing()
