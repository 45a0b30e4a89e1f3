"""`archive`, `offload` and `restore`: threads into the cold store, and back; `discard_fork`.

Only the checks of what is asked for live here; the steps are `tiers.archiving`'s, and the way
back is taken by whatever reads the thread (`tiers.front`).
"""

from __future__ import annotations

from datetime import timedelta

from threadkeep.cold import (
    archive_workflow,
    offload_workflow,
)
from threadkeep.cold import offload as offloads
from threadkeep.cold.archive import archive_of
from threadkeep.cold.offload_workflow import (
    Offloaded,
    Wish,
)
from threadkeep.cold.tiering import (
    OFFLOAD_OVER,
    check_over,
)
from threadkeep.engine import registration
from threadkeep.engine.operation import (
    Operation,
    fetch_checkpoint,
)
from threadkeep.engine.thread_entry import is_archived
from threadkeep.errors import StateError
from threadkeep.retention import prune
from threadkeep.retention.policy import (
    MICROSECOND,
    duration,
)
from threadkeep.store import workflows
from threadkeep.store.workflows import (
    Plan,
    on,
)
from threadkeep.threads import queries
from threadkeep.threads.info import ThreadInfo, info
from threadkeep.threads.running import Running


class Archiving(Running):
    """Threads into the cold store, and back."""

    def archive(self, thread: str) -> ThreadInfo:
        """Move a thread into the cold store (`cold=`), as one immutable, checked object.

        What is known of it stays: it is found as before, in the state "archived". Whoever reads
        it brings it back, by whatever call and in whatever process that knows the cold store.

        Args:
            thread: its name.

        Raises:
            ThreadNotFoundError: there is no such thread, or it holds no checkpoints.
            StateError: it is archived already.
            InvalidArgumentError: the saver was opened without `cold=`.
            ConflictError: it is being written all the time.
            CorruptionError: it is damaged; or what the cold store has is not what was put there.
            OpenError, BackendError: the cold store refused, or failed; the thread is in the store.
        """
        return workflows.run(self._archive(thread))

    async def aarchive(self, thread: str) -> ThreadInfo:
        """See `archive`."""
        return await workflows.arun(self._archive(thread))

    def _archive(self, thread: str) -> Plan[ThreadInfo]:
        name, cold = queries.thread(thread), (yield from self._cold("archive a thread"))
        entry = yield from archive_workflow.archive(self._store.beneath(), cold, self._engine, name)
        return info(entry)

    def restore(self, thread: str) -> ThreadInfo:
        """Bring an archived thread back, as reading it would; or all that was offloaded of one.

        Args:
            thread: its name.

        Raises:
            ThreadNotFoundError: there is no such thread.
            StateError: nothing of it is in the cold store.
            ThreadArchivedError: the saver was opened without `cold=`.
            ConflictError: it is being written all the time.
            CorruptionError: the cold store does not have what was put there.
            OpenError, BackendError: the cold store refused, or failed.
        """
        return self._run(self._restore(thread))

    async def arestore(self, thread: str) -> ThreadInfo:
        """See `restore`."""
        return await self._arun(self._restore(thread))

    def _restore(self, thread: str) -> Operation[ThreadInfo]:
        name = queries.thread(thread)
        entry = yield from registration.known(name)
        archive = archive_of(entry)
        if is_archived(entry):
            yield from fetch_checkpoint(name, "", None)
        elif archive is not None and archive.offloaded:
            yield from offloads.restore(self._engine, name)
        else:
            problem = f"A thread that is {entry.state} is not archived."
            raise StateError(problem, hint="Nothing of it was offloaded.", thread=name)
        return info((yield from registration.known(name)))

    def offload(
        self,
        thread: str,
        *,
        over: int = OFFLOAD_OVER,
        older_than: timedelta | float | None = None,
    ) -> Offloaded:
        """Move old values of a thread that is in use into the cold store (`cold=`).

        What goes is what only older checkpoints need: the head of each namespace, what waits
        there, and all that is small stay. A run goes on as before; who reads an older checkpoint
        has its values fetched. A thread that shares values with forks is left as it is.

        Args:
            thread: its name.
            over: bytes; stored runs of values that are larger go, 1024 or more.
            older_than: what checkpoints need that are younger stays too, in seconds or as a
                timedelta; None: only what the heads need.

        Raises:
            ThreadNotFoundError: there is no such thread, or it holds no checkpoints.
            StateError: it is archived.
            InvalidArgumentError: the saver was opened without `cold=`, or a limit has no meaning.
            ConflictError: it is being written all the time.
            CorruptionError: it is damaged; or what the cold store has is not what was put there.
            OpenError, BackendError: the cold store refused, or failed.
        """
        return workflows.run(self._offload(thread, over, older_than))

    async def aoffload(
        self,
        thread: str,
        *,
        over: int = OFFLOAD_OVER,
        older_than: timedelta | float | None = None,
    ) -> Offloaded:
        """See `offload`."""
        return await workflows.arun(self._offload(thread, over, older_than))

    def _offload(
        self, thread: str, over: int, older_than: timedelta | float | None
    ) -> Plan[Offloaded]:
        name, cold = queries.thread(thread), (yield from self._cold("offload values of a thread"))
        wish = Wish(check_over("over", over))
        if older_than is not None:
            rest = duration("older_than", older_than) // MICROSECOND
            wish = Wish(over, self._engine.now() - rest)
        store = self._store.beneath()
        yield from offload_workflow.tidy(store, cold, self._engine, name)
        return (yield from offload_workflow.offload(store, cold, self._engine, name, wish))

    def discard_fork(self, fork: str, *, delete: bool = False) -> ThreadInfo:
        """Put a fork aside that is of no more use: archive it, or delete it.

        Args:
            fork: its name.
            delete: whether it is deleted, for good.

        Raises:
            ThreadNotFoundError: there is no such thread.
            StateError: it is no fork, or is archived already.
            ThreadkeepError: as `archive` does.
        """
        return workflows.run(self._discard(fork, delete=delete))

    async def adiscard_fork(self, fork: str, *, delete: bool = False) -> ThreadInfo:
        """See `discard_fork`."""
        return await workflows.arun(self._discard(fork, delete=delete))

    def _discard(self, fork: str, *, delete: bool) -> Plan[ThreadInfo]:
        name = queries.thread(fork)
        entry = yield from on(self._store, registration.known(name))
        if entry.origin is None:
            hint = "delete_thread removes it, threads.archive puts it into the cold store."
            raise StateError("This thread is no fork of another.", hint=hint, thread=name)
        if not delete:
            return (yield from self._archive(name))
        yield from on(self._store, prune.delete_thread(self._engine, name))
        gone = yield from on(self._store, registration.read(name))
        return info(entry if gone is None else gone)
