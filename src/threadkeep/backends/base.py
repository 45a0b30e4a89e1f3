"""The backend protocol: where rows live.

Only the protocols live here. A backend is dumb: it stores, finds and removes the
records of `engine.model` and knows nothing of values, spans' meaning or runs. The
contract, tested for every backend by `threadkeep.testing`:

1. Replies come in request order. Calls are thread-safe. No lock outlives a call.
2. A commit is atomic and durable as promised by the backend's options: what it raised
   for changed nothing, what it returned for survives a crash.
3. A retry of a commit is harmless (see `Batch`); write rows may then be there twice,
   which the engine tolerates.
4. Driver errors are mapped once per backend, `raise ... from`, to `threadkeep.errors`.
5. A reply is a consistent view: one `fetch` sees no half of a commit within one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from threadkeep.engine.model import Change, Read
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    from threadkeep.backends.scrubbed import Scrubbed


class Backend(Protocol):
    """A synchronous store of thread rows."""

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order, in one round trip where the store can.

        Each read's docstring names its reply. Idempotent.
        """

    def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing; return when it is durable.

        Raises:
            ThreadDeletedError, StaleThreadError, ConflictError, SegmentTakenError,
            ThreadExistsError: as the change's docstring says; nothing was changed.
            LockedError, ReadOnlyError, DiskFullError, BackendError: the store failed;
            nothing was changed.
        """

    def close(self) -> None:
        """Release everything. Idempotent; later calls raise `ClosedError`."""


class AsyncBackend(Protocol):
    """The same protocol for a store with a native async driver."""

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""

    async def commit(self, change: Change) -> None:
        """See `Backend.commit`."""

    async def close(self) -> None:
        """See `Backend.close`."""


class DualBackend(Backend, Protocol):
    """A store with a driver of each kind: blocking calls go here, awaiting ones to the other."""

    @property
    def asynchronous(self) -> AsyncBackend | None:
        """The other face, over the same store; None where it was given one connection only."""


# Capabilities: what a store may have besides. A store that is awaited has the same method as a
# coroutine. Whether a store has one is asked by its name (`drive.Faces.has`).


class GroupingBackend(Protocol):
    """A store that can carry out several changes in one transaction. Awaited: a coroutine."""

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out each change, in order, as `commit` would; durable on return.

        Reply: for each change None, or the error that it was refused with, which leaves the
        others alone.

        Raises:
            LockedError, ReadOnlyError, DiskFullError, BackendError: the store failed;
            nothing was changed.
        """


class InstantBackend(Protocol):
    """A store whose calls never wait, if `instant` is true: no disk, no server, no other process.

    It has no writer in front of it, and awaiting callers use it directly in the event loop.
    """

    instant: bool


@runtime_checkable
class LocalBackend(Backend, Protocol):
    """A blocking store on a local disk, if `reads_hot_in_memory` is true.

    Awaiting callers read rows that this process has just used in the event loop: they come from
    the system's cache, sooner than a worker thread would have begun.
    """

    reads_hot_in_memory: bool


@runtime_checkable
class MigratingBackend(Protocol):
    """A store whose tables are not made by opening it, but on demand. Awaited: a coroutine."""

    def migrate(self) -> None:
        """Make the tables, or bring them to this release's version. Idempotent.

        Raises:
            NewerDatabaseError: they are of a later release.
        """


class IdentifiedBackend(Protocol):
    """A store with a name of its own, needed for a cold store. Awaited: a coroutine."""

    def identity(self) -> str:
        """Name of the store: letters, digits and "-", the same for all who use it.

        A copy of the store has another one, and so has the store after its tables were made anew.

        Raises:
            UnreachableError, ReadOnlyError, BackendError: it has none yet, and the store failed.
        """


class CountingBackend(IdentifiedBackend, Protocol):
    """A store in front of which a hot one can stand, for all processes that use it.

    `counts_for_all`: a thread's generation is the same number in all of them.
    """

    counts_for_all: bool


class ScrubbingBackend(Protocol):
    """A store that can remove from its files what was deleted. Awaited: a coroutine."""

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """Leave nothing of removed rows in the store's files, whenever they were removed.

        Others may use the store meanwhile. Idempotent; harmless where it is cut off.

        Args:
            rewrite: also where it keeps others from using the store while it lasts.

        Raises:
            LockedError: what others are doing keeps it from that: the hint says what.
            ReadOnlyError, DiskFullError, BackendError: it could not be done.
        """
