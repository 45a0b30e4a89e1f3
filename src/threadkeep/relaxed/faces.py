"""What stands in front of a store whose saves return before they are durable.

Only the backends that the engine sees live here. Invariant: a read of a thread sees everything
that was saved in it before, and a change that removes anything comes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from threadkeep import drive
from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    DualBackend,
    MigratingAsyncBackend,
    MigratingBackend,
)
from threadkeep.backends.writer import GroupCommit
from threadkeep.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadThread,
    ThreadRows,
)
from threadkeep.errors import InvalidArgumentError, ThreadkeepError
from threadkeep.relaxed.batches import Batches
from threadkeep.relaxed.merging import only_adds
from threadkeep.relaxed.waiting import Threads, Waiting


class Relaxed:
    """A blocking backend whose saves return before they are durable."""

    def __init__(self, backend: Backend, how: GroupCommit) -> None:
        self._backend = backend
        self.batches = Batches(backend, how.max_batch)
        self.unstored = Waiting(how, self.batches)
        self._is_reached = False
        native = backend.asynchronous if isinstance(backend, DualBackend) else None
        self.asynchronous = None if native is None else AsyncRelaxed(native, self)

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        threads = _threads_read(reads)
        if not self.unstored.clean(threads):
            self.unstored.flush(threads)
        asked = self.batches.asked(reads)
        return asked.named(self._backend.fetch(asked.reads))

    def commit(self, change: Change) -> None:
        """Note the change to be stored soon; one that removes anything is carried out."""
        if isinstance(change, Batch) and only_adds(change):
            self.unstored.add(change.thread, change)
            return
        threads = _concerned(self._backend, change)
        with self.unstored.holding(threads, forget=_dropped(change)):
            self.batches.change(change, threads)

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingBackend.commit_many`: they go together when they are stored."""
        for change in changes:
            self.commit(change)
        return [None] * len(changes)

    def close(self) -> None:
        """See `Backend.close`: what waits is stored first."""
        try:
            self.unstored.close()
        except ThreadkeepError:
            self._backend.close()
            raise
        # (Not where it was interrupted: what waits is stored at the program's end.)
        self._backend.close()

    def beneath(self) -> Beneath:
        """See `Beneath`."""
        return Beneath(self, self._backend)

    def reach(self) -> None:
        """Ask the store for nothing in particular."""
        if not self._is_reached:
            self._backend.fetch([ReadCheckpoint("", "")])
            self._is_reached = True

    def migrate(self) -> None:
        """See `MigratingBackend.migrate`."""
        if isinstance(self._backend, MigratingBackend):
            self._backend.migrate()


class Beneath:
    """The same store for what must be durable on return, with the store's own generations.

    Several changes in a row may expect one generation here: above, each change that does not
    wait gives the generation another name.
    """

    def __init__(self, above: Relaxed, backend: Backend) -> None:
        self._above = above
        self._backend = backend

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        threads = _threads_read(reads)
        if not self._above.unstored.clean(threads):
            self._above.unstored.flush(threads)
        return self._backend.fetch(reads)

    def commit(self, change: Change) -> None:
        """Carry out the change, behind everything that waits in its threads."""
        threads = _concerned(self._backend, change)
        with self._above.unstored.holding(threads, forget=_dropped(change)):
            self._above.batches.directly(change, threads)

    def close(self) -> None:
        """Nothing of its own is open."""


class AsyncRelaxed:
    """The same for awaiting calls: where something has to be stored, a thread waits for it."""

    def __init__(self, backend: AsyncBackend, blocking: Relaxed) -> None:
        self._backend = backend
        self._blocking = blocking
        self._batches = blocking.batches
        self._unstored = blocking.unstored
        self._is_ready = False

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        await self._ready()
        await self._unstored.aflush(_threads_read(reads))
        asked = self._batches.asked(reads)
        return asked.named(await self._backend.fetch(asked.reads))

    async def commit(self, change: Change) -> None:
        """See `Relaxed.commit`."""
        await self._ready()
        if isinstance(change, Batch) and only_adds(change):
            await self._unstored.aadd(change.thread, change)
        else:
            await self._unstored.alone(partial(self._blocking.commit, change))

    async def _ready(self) -> None:
        """Reach the store once as the flusher will.

        At the program's end it may be too late: threads, which a pool of connections has,
        cannot be started any more from Python 3.12 on.
        """
        if not self._is_ready:
            await self._unstored.alone(self._blocking.reach)
            self._is_ready = True

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `Relaxed.commit_many`."""
        for change in changes:
            await self.commit(change)
        return [None] * len(changes)

    async def close(self) -> None:
        """See `Relaxed.close`."""
        try:
            await self._unstored.alone(self._unstored.close)
        except ThreadkeepError:
            await self._backend.close()
            raise
        await self._backend.close()

    async def migrate(self) -> None:
        """See `MigratingAsyncBackend.migrate`."""
        if isinstance(self._backend, MigratingAsyncBackend):
            await self._backend.migrate()


def relaxed(backend: Backend | AsyncBackend, how: GroupCommit) -> Relaxed:
    """The backend with saves that return before they are durable.

    Raises:
        InvalidArgumentError: it can only be awaited.
    """
    if drive.is_async(backend):
        raise InvalidArgumentError(
            'ack="relaxed" needs connections of its own, to store what waits at any time.',
            hint="Give a URL instead of an async pool, connection or client.",
        )
    return Relaxed(backend, how)


def _dropped(change: Change) -> list[str]:
    # (one that expects something expects what waits, too)
    is_free = isinstance(change, DropThread) and change.generation is None and not change.fences
    return [change.thread] if is_free else []


def _concerned(backend: Backend, change: Change) -> set[str]:
    """The threads of a change, and those that share segments with them."""
    own = _threads_of(change)
    found: list[ThreadRows] = backend.fetch([ReadThread(name, stub=True) for name in sorted(own)])
    return own.union(*[rows.family for rows in found])


def _threads_of(change: Change) -> set[str]:
    if isinstance(change, CopyThread | ForkThread):
        return {change.source, change.target}
    return {change.thread}


def _threads_read(reads: Sequence[Read]) -> Threads:
    threads = {getattr(read, "thread", None) for read in reads}
    return None if None in threads else {str(thread) for thread in threads}
