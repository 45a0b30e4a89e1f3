"""The backend protocol: where rows are stored.

A backend stores, finds and removes the records of `_core.engine.model`. It knows nothing of values
or runs. `threadkeep.testing` tests this contract for every backend:

1. Replies come in request order. Calls are thread-safe. No lock outlives a call.
2. A commit is atomic, and as durable as the backend's options say. A commit that raised changed
   nothing, and a commit that returned survives a crash.
3. Repeating a commit is harmless (see `Batch`). It may duplicate write rows, which the engine
   tolerates.
4. Driver errors are mapped once per backend, with `raise ... from`, to `threadkeep.errors`.
5. A read never sees half of a commit.

Three methods are required. A backend overrides the others that it supports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from threadkeep._core.engine.model import Change, Read
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.records import confirm, tie
from threadkeep.errors import InvalidArgumentError, ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.message_index import ArchiveIndex


class ScrubReport(NamedTuple):
    """The places without removed data, and places where copies of it may remain.

    Args:
        cleared: places without removed data.
        remains: places outside the store's control that may hold it, each with a remedy.
    """

    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()

    def __add__(self, other: ScrubReport) -> ScrubReport:  # type: ignore[override] # adds places
        return ScrubReport(self.cleared + other.cleared, self.remains + other.remains)


class _Supports:
    """Optional features of a backend, blocking or awaited."""

    instant = False
    """Calls never wait for a disk, a server or another process. Awaiting callers use the backend
    in the event loop, without a writer thread."""

    commits_groups = False
    """`commit_many` uses one transaction."""

    has_identity = False
    """`identity` names the store. `cold=` needs it."""

    counts_usage = False
    """`ReadUsage` is answered. Otherwise, statistics are counted from other reads."""

    indexes_messages = False
    """The `words` of batches are indexed, and a `ThreadQuery` can ask for them."""

    keys: Any = None
    """The `StoreKeys` of a face that seals rows for the store below it."""

    @property
    def retries(self) -> int:
        """The number of repeated calls since the store was opened."""
        return 0

    def items(self, options: SearchOptions) -> Backend | AsyncBackend:
        """Return the `ItemBackend` of a store, over the connections of this backend.

        Raises:
            InvalidArgumentError: the database stores no items (the default).
            OpenError: the tables cannot be made.
        """
        del options
        raise no_room(self, "stores no items")

    def cache(self) -> Backend | AsyncBackend:
        """Return the `CacheBackend` of a node cache, over the connections of this backend.

        Raises:
            InvalidArgumentError: the database stores no cached results (the default).
            OpenError: the tables cannot be made.
        """
        raise no_room(self, "has no room for a cache")

    def message_index(self) -> ArchiveIndex | None:
        """Return a full-text index of archived messages.

        The default returns None: the index is kept in memory.
        """
        return None


class Backend(_Supports, ABC):
    """A store of thread rows, for blocking calls."""

    asynchronous: AsyncBackend | None = None
    """The same store for awaiting calls, if it has an async driver."""

    @abstractmethod
    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order, in one round trip if the store can.

        Each read's docstring names its reply. Idempotent.
        """

    @abstractmethod
    def commit(self, change: Change) -> None:
        """Make the change, all or nothing, and return when it is durable.

        An error means that nothing was changed.

        Raises:
            ThreadDeletedError, StaleThreadError, ConflictError, SegmentTakenError,
            ThreadExistsError: the change was refused, as its docstring says.
            LockedError, ReadOnlyError, DiskFullError, BackendError: the store failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent. Later calls raise `ClosedError`."""

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Make each change, in order, as `commit` would, durable on return.

        Override it, and set `commits_groups`, if the store can use one transaction.

        Returns:
            For each change None, or the error that refused it. The others are still made.

        Raises:
            LockedError, ReadOnlyError, DiskFullError, BackendError: the store failed, and
            nothing was changed.
        """
        refusals: list[ThreadkeepError | None] = []
        for change in changes:
            tie([change])
            try:
                self.commit(change)
                refusals.append(None)
            except ThreadkeepError as error:
                refusals.append(error)
            confirm([change], refusals[-1:])
        return refusals

    def open(self) -> None:
        """Open the store if it is not open, as `with` and `async with` do. Idempotent.

        Override it if the store opens at construction, or in event loops at its first use.

        Raises:
            OpenError: it cannot be opened.
        """

    def migrate(self) -> None:
        """Create the tables, or migrate them to this release's version. Idempotent.

        Override it if opening the store does not.

        Raises:
            NewerDatabaseError: the tables are of a later release.
        """
        self.open()

    def keep_words(self, *, kept: bool) -> None:
        """Create or remove the index of messages (see `model.Words`). The default has none."""

    def identity(self) -> str:
        """Return the store's name, the same in all processes: letters, digits and "-".

        A copy of the store has another name, and so has the store after its tables were recreated.
        Override it, and set `has_identity`.

        Raises:
            UnreachableError, ReadOnlyError, BackendError: it has no name yet, and the store failed.
        """
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """Return sentences for the notes of a check, such as on another program's tables."""
        return ()

    def item_usage(self, now: int) -> ItemUsage:
        """Count the items and cached results in the database, without reading all of them.

        Override it if the database holds any.

        Args:
            now: the time that decides which items have expired, in microseconds since 1970.
        """
        del now
        return ItemUsage()

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        """Clear the store's files of all rows that were ever removed.

        Others may use the store meanwhile. Idempotent, harmless if interrupted.

        Args:
            rewrite: also do work that blocks other users of the store.

        Raises:
            LockedError: another user of the store prevents it, and the hint says how.
            ReadOnlyError, DiskFullError, BackendError: the store failed.
        """
        del rewrite
        return _unknown_remains(self)


class AsyncBackend(_Supports, ABC):
    """A store of thread rows for awaiting calls, with the methods of `Backend`."""

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
            tie([change])
            try:
                await self.commit(change)
                refusals.append(None)
            except ThreadkeepError as error:
                refusals.append(error)
            confirm([change], refusals[-1:])
        return refusals

    async def migrate(self) -> None:
        """See `Backend.migrate`."""

    async def keep_words(self, *, kept: bool) -> None:
        """See `Backend.keep_words`."""

    async def identity(self) -> str:
        """See `Backend.identity`."""
        raise NotImplementedError

    async def notes(self) -> Sequence[str]:
        """See `Backend.notes`."""
        return ()

    async def item_usage(self, now: int) -> ItemUsage:
        """See `Backend.item_usage`."""
        del now
        return ItemUsage()

    async def scrub(self, *, rewrite: bool) -> ScrubReport:
        """See `Backend.scrub`."""
        del rewrite
        return _unknown_remains(self)


def no_room(backend: object, what: str, hint: str = "") -> InvalidArgumentError:
    """Return the error for a backend that stores only threads."""
    return InvalidArgumentError(
        f"{type(backend).__name__} {what}.",
        hint=hint or "Use the `backend` of a saver that `threadkeep.open_saver` opened.",
    )


def _unknown_remains(backend: object) -> ScrubReport:
    name = type(backend).__name__
    return ScrubReport(remains=(f"{name} cannot report removed rows left in its files.",))


Meaning: TypeAlias = tuple[type[ThreadkeepError], str]
"""The class of an error, and its hint."""


def store_error(meaning: Meaning, store: str, message: str, text: str = "") -> ThreadkeepError:
    """Return the error for a store's message. `text` replaces the default text before it."""
    kind, hint = meaning
    text = text or kind().message
    return kind(f"{text.rstrip('.')}: {store} says {message!r}.", hint=hint)
