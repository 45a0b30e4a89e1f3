"""`archive` and `restore`: threads into the cold store, and back; `discard_fork`.

Only the checks of what is asked for live here; the steps are `tiers.archiving`'s, and the way
back is taken by whatever reads the thread (`tiers.front`).
"""

from __future__ import annotations

from threadkeep import plans
from threadkeep.engine.calls import Operation, fetch_checkpoint
from threadkeep.engine.lifecycle import is_archived
from threadkeep.engine.operations import housekeeping, registration
from threadkeep.errors import InvalidArgumentError, StateError
from threadkeep.plans import Plan, on
from threadkeep.threads import asked
from threadkeep.threads.info import ThreadInfo, info
from threadkeep.threads.running import Running
from threadkeep.tiers import archiving
from threadkeep.tiers.cold import ColdStore


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
        return plans.run(self._archive(thread))

    async def aarchive(self, thread: str) -> ThreadInfo:
        """See `archive`."""
        return await plans.arun(self._archive(thread))

    def _archive(self, thread: str) -> Plan[ThreadInfo]:
        name, cold = asked.thread(thread), self._cold("archive")
        entry = yield from archiving.archive(self._store.beneath(), cold, self._engine, name)
        return info(entry)

    def restore(self, thread: str) -> ThreadInfo:
        """Bring an archived thread back, as reading it would.

        Args:
            thread: its name.

        Raises:
            ThreadNotFoundError: there is no such thread.
            StateError: it is not archived.
            ThreadArchivedError: the saver was opened without `cold=`.
            CorruptionError: the archive is not there, or is not what was put there.
            OpenError, BackendError: the cold store refused, or failed.
        """
        return self._run(self._restore(thread))

    async def arestore(self, thread: str) -> ThreadInfo:
        """See `restore`."""
        return await self._arun(self._restore(thread))

    def _restore(self, thread: str) -> Operation[ThreadInfo]:
        name = asked.thread(thread)
        entry = yield from registration.known(name)
        if not is_archived(entry):
            raise StateError(f"A thread that is {entry.state} is not archived.", thread=name)
        yield from fetch_checkpoint(name, "", None)
        return info((yield from registration.known(name)))

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
        return plans.run(self._discard(fork, delete=delete))

    async def adiscard_fork(self, fork: str, *, delete: bool = False) -> ThreadInfo:
        """See `discard_fork`."""
        return await plans.arun(self._discard(fork, delete=delete))

    def _discard(self, fork: str, *, delete: bool) -> Plan[ThreadInfo]:
        name = asked.thread(fork)
        entry = yield from on(self._store, registration.known(name))
        if entry.origin is None:
            hint = "delete_thread removes it, threads.archive puts it into the cold store."
            raise StateError("This thread is no fork of another.", hint=hint, thread=name)
        if not delete:
            return (yield from self._archive(name))
        yield from on(self._store, housekeeping.delete_thread(self._engine, name))
        gone = yield from on(self._store, registration.read(name))
        return info(entry if gone is None else gone)

    def _cold(self, what: str) -> ColdStore:
        """The cold store.

        Raises:
            InvalidArgumentError: the saver was opened without one.
        """
        if self._store.cold is None:
            raise InvalidArgumentError(
                f"To {what} a thread needs a cold store.",
                hint="Open the saver with cold=, such as cold='file:///folder'.",
            )
        return self._store.cold
