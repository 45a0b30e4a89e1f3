"""The backend protocol: where rows are stored.

A backend is dumb: it stores, finds and removes the records of `_core.engine.model` and knows
nothing of values or runs. The contract, tested for every backend by `threadkeep.testing`:

1. Replies come in request order. Calls are thread-safe. No lock outlives a call.
2. A commit is atomic, and durable as the backend's options say: one that raised changed nothing,
   one that returned survives a crash.
3. A retry of a commit is harmless (see `Batch`); write rows may then be there twice,
   which the engine tolerates.
4. Driver errors are mapped once per backend, `raise ... from`, to `threadkeep.errors`.
5. A reply is a consistent view: one `fetch` sees no half of a commit within one read.

Three methods are required. All others have defaults; a backend overrides those that it supports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep._core.engine.model import Change, Read
from threadkeep._core.engine.usage import ItemUsage
from threadkeep.errors import InvalidArgumentError, ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.message_index import ArchiveIndex


class ScrubReport(NamedTuple):
    """Places that hold nothing of what was removed, and places that may.

    Args:
        cleared: places that hold nothing of it any more.
        remains: places that may, over which the store has no power, each with what to do.
    """

    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()

    def __add__(self, other: ScrubReport) -> ScrubReport:  # type: ignore[override] # adds places
        return ScrubReport(self.cleared + other.cleared, self.remains + other.remains)


class _Supports:
    """Abilities of a backend beside its methods."""

    instant = False
    """Calls never wait: no disk, no server, no other process. Awaiting callers use the backend
    in the event loop, and it has no writer in front of it."""

    commits_groups = False
    """`commit_many` uses one transaction."""

    has_identity = False
    """`identity` names the store. `cold=` needs it."""

    counts_for_all = False
    """A thread's generation is the same number in all processes. `hot=` needs it."""

    counts_usage = False
    """`ReadUsage` is answered. Statistics of another store are counted from its other reads."""

    @property
    def retries(self) -> int:
        """Number of calls that were made again, since the store was opened."""
        return 0

    def items(self, options: SearchOptions) -> Backend | AsyncBackend:
        """Return the backend of a store's items, over the connections of this one.

        It has the methods of `ItemBackend`. Override it if the database has room for items.

        Raises:
            InvalidArgumentError: it has none.
            OpenError: the tables cannot be made.
        """
        del options
        raise no_room(self, "stores no items")

    def cache(self) -> Backend | AsyncBackend:
        """Return the backend of a cache of nodes, over the connections of this one.

        It has the methods of `CacheBackend`. Override it if the database has room for a cache.

        Raises:
            InvalidArgumentError: it has none.
            OpenError: the tables cannot be made.
        """
        raise no_room(self, "has no room for a cache")

    def message_index(self) -> ArchiveIndex | None:
        """Return a full-text index of archived messages, over connections of its own.

        Override it if the database has one. The default returns None: the index is in memory.
        """
        return None


class Backend(_Supports, ABC):
    """A store of thread rows, for blocking calls."""

    asynchronous: AsyncBackend | None = None
    """The same store for awaiting calls, if it has a driver for them."""

    @abstractmethod
    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order, in one round trip where the store can.

        Each read's docstring names its reply. Idempotent.
        """

    @abstractmethod
    def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing; return when it is durable.

        Raises:
            ThreadDeletedError, StaleThreadError, ConflictError, SegmentTakenError,
            ThreadExistsError: as the change's docstring says; nothing was changed.
            LockedError, ReadOnlyError, DiskFullError, BackendError: the store failed;
            nothing was changed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent; later calls raise `ClosedError`."""

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out each change, in order, as `commit` would; durable on return.

        Override it, and set `commits_groups`, if the store can do so in one transaction.

        Returns:
            For each change None, or the error that it was refused with, which leaves the others
            alone.

        Raises:
            LockedError, ReadOnlyError, DiskFullError, BackendError: the store failed;
            nothing was changed.
        """
        refusals: list[ThreadkeepError | None] = []
        for change in changes:
            try:
                self.commit(change)
                refusals.append(None)
            except ThreadkeepError as error:
                refusals.append(error)
        return refusals

    def at_hand(self, read: Read) -> Any:
        """Return what `fetch` would reply to a read, if memory has it; else None.

        It is called in event loops for heads that this process has just used, and waits for
        nothing: no statement, no file, no lock. Override it if you know that nobody else has
        written.
        """
        del read
        return None

    def open(self) -> None:
        """Open the store, if it is not open: `with` and `async with` do so first. Idempotent.

        Override it if the store opens when it is constructed, but in event loops at its first use.

        Raises:
            OpenError: it cannot be opened.
        """

    def migrate(self) -> None:
        """Make the tables, or bring them to this release's version. Idempotent.

        Override it if opening the store does not do that.

        Raises:
            NewerDatabaseError: they are of a later release.
        """
        self.open()

    def identity(self) -> str:
        """Return the store's name: letters, digits and "-", the same for all who use it.

        A copy of the store has another one, and so has the store after its tables were made again.
        Override it, and set `has_identity`.

        Raises:
            UnreachableError, ReadOnlyError, BackendError: it has none yet, and the store failed.
        """
        raise NotImplementedError

    def item_usage(self, now: int) -> ItemUsage:
        """Count the items and cached results that share the database, without reading all of them.

        Override it if the database holds any.

        Args:
            now: the time by which items have expired, in microseconds since 1970.
        """
        del now
        return ItemUsage()

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        """Leave nothing of removed rows in the store's files, whenever they were removed.

        Others may use the store meanwhile. Idempotent; harmless where it is interrupted.

        Args:
            rewrite: also where it keeps others from using the store while it lasts.

        Raises:
            LockedError: what others are doing keeps it from that: the hint says what.
            ReadOnlyError, DiskFullError, BackendError: it could not be done.
        """
        del rewrite
        return _unknown_remains(self)


class AsyncBackend(_Supports, ABC):
    """A store of thread rows that is awaited. Each method is that of `Backend`."""

    @abstractmethod
    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""

    @abstractmethod
    async def commit(self, change: Change) -> None:
        """See `Backend.commit`."""

    @abstractmethod
    async def close(self) -> None:
        """See `Backend.close`."""

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `Backend.commit_many`."""
        refusals: list[ThreadkeepError | None] = []
        for change in changes:
            try:
                await self.commit(change)
                refusals.append(None)
            except ThreadkeepError as error:
                refusals.append(error)
        return refusals

    async def migrate(self) -> None:
        """See `Backend.migrate`."""

    async def identity(self) -> str:
        """See `Backend.identity`."""
        raise NotImplementedError

    async def item_usage(self, now: int) -> ItemUsage:
        """See `Backend.item_usage`."""
        del now
        return ItemUsage()

    async def scrub(self, *, rewrite: bool) -> ScrubReport:
        """See `Backend.scrub`."""
        del rewrite
        return _unknown_remains(self)


def no_room(backend: object, what: str) -> InvalidArgumentError:
    """Return the error for a backend that holds threads only."""
    return InvalidArgumentError(
        f"{type(backend).__name__} {what}.",
        hint="Use the `backend` of a saver that `threadkeep.open_saver` opened.",
    )


def _unknown_remains(backend: object) -> ScrubReport:
    name = type(backend).__name__
    return ScrubReport(remains=(f"{name} does not say what its files hold of removed rows.",))
