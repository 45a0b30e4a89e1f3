"""A store that is open: what stands in front of it, running operations on it, its end.

Nothing here knows LangGraph. Invariant: each request passes what was asked for, from the
outside in: the list of relaxed saves or the queue of group commits, what brings back archived
threads, what is kept at hand, the backend.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import partial
from random import SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from threadkeep import bulk, drive, process_forks
from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    IdentifiedAsyncBackend,
    IdentifiedBackend,
    MigratingAsyncBackend,
    MigratingBackend,
    ScrubbingAsyncBackend,
    ScrubbingBackend,
)
from threadkeep.backends.caching import AsyncCached, Cache, Cached, cached
from threadkeep.backends.grouping import grouped
from threadkeep.backends.open import open_hot
from threadkeep.backends.scrubbed import Scrubbed
from threadkeep.backends.writer import GroupCommit
from threadkeep.drive import Hops
from threadkeep.engine.calls import Operation
from threadkeep.engine.working_set import WorkingSet
from threadkeep.forked_runs import ForkedRuns
from threadkeep.relaxed import Relaxed, relaxed
from threadkeep.tiers.front import tiered
from threadkeep.tiers.tiering import Tiering

if TYPE_CHECKING:
    from threadkeep.plans import Plan
    from threadkeep.tiers.cold import ColdStore

T = TypeVar("T")

RANDOM = SystemRandom()  # tokens must differ even where a program seeds its random numbers


class _Done:
    """What `setup()` returns: nothing is left to do, awaited or not."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class Runs:
    """A backend that operations run on, waiting or awaited."""

    def __init__(self, backend: Backend | AsyncBackend) -> None:
        self._backend = backend
        self._awaited = drive.awaited(backend)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of the engine on this store."""
        return drive.run(operation, drive.blocking(self._backend))

    async def arun(self, operation: Operation[T]) -> T:
        """See `run`."""
        if self._awaited is not None:
            return await drive.arun(operation, self._awaited)
        return await drive.in_thread(partial(self.run, operation))

    async def arun_here(self, operation: Operation[T]) -> T:
        """Run an operation in the event loop, and only its requests elsewhere.

        Values are looked at before this first suspends, as the program goes on then.
        """
        return await drive.arun(operation, self._awaited or Hops(drive.blocking(self._backend)))

    def run_together(self, operations: Iterable[Operation[T]]) -> list[T] | None:
        """The result of each operation, in order, their commits in few transactions.

        None where the store cannot do that, or has refused some of it: see `bulk`.
        """
        return bulk.run(operations, drive.blocking(self._backend))

    async def arun_together(self, operations: Iterable[Operation[T]]) -> list[T] | None:
        """See `run_together`."""
        if self._awaited is not None:
            return await bulk.arun(operations, self._awaited)
        return await drive.in_thread(partial(self.run_together, operations))


class OpenStore(Runs):
    """A backend, what stands in front of it, and what is remembered of its threads.

    Args:
        backend: where rows live; closed at the end.
        group_commit, cache, hot, cold, tiering, working_set_bytes: see `Saver`.

    Raises:
        InvalidArgumentError, OpenError: the backend cannot do that.
    """

    def __init__(
        self,
        backend: Backend | AsyncBackend,
        group_commit: GroupCommit | None,
        cache: Cache | None,
        hot: str | None,
        cold: str | None,
        tiering: Tiering | None,
        working_set_bytes: int,
    ) -> None:
        is_async = drive.is_async(backend)
        is_relaxed = group_commit is not None and group_commit.ack == "relaxed"
        self._innermost = backend
        self._front: Cached | AsyncCached | None = None
        if cache is not None or hot is not None:
            hots = None if hot is None else open_hot(hot)
            hot_tier = None if tiering is None else tiering.hot
            backend = self._front = cached(
                backend, cache, hots, is_async=is_async, hot_tier=hot_tier
            )
        self.cold = None if cold is None else _opened(cold)
        self.tiering = tiering
        backend = tiered(backend, self._innermost, self.cold)
        if group_commit is not None and is_relaxed:
            backend = relaxed(backend, group_commit)
        elif group_commit is not None:
            backend = grouped(backend, group_commit, is_async=is_async)
        super().__init__(backend)
        self._working_set = WorkingSet(
            working_set_bytes, threading.Lock, RANDOM.getrandbits, exclusive=is_relaxed
        )
        process_forks.watch(self._working_set)
        self._forked = ForkedRuns()

    @property
    def forked_runs(self) -> int:
        """Runs that left the head of another one behind, since this was opened, as far as known.

        That is: both used this saver, or a run of it had loaded what the other one put. Each was
        logged as a warning.
        """
        return self._forked.count

    def setup(self) -> _Done:
        """Make the tables, or bring them to this release's version, where opening does not.

        May be awaited; `asetup` waits without holding up the event loop.

        Raises:
            NewerDatabaseError: the tables are of a later release.
            UnreachableError, BackendError: the server failed, or may not do that.
        """
        backend = drive.blocking(self._backend)
        if isinstance(backend, MigratingBackend):
            backend.migrate()
        return _Done()

    async def asetup(self) -> None:
        """See `setup`."""
        native = self._awaited
        if isinstance(native, MigratingAsyncBackend):
            await native.migrate()
        elif native is None:
            await drive.in_thread(self.setup)

    def flush(self) -> None:
        """Store whatever was saved with `GroupCommit(ack="relaxed")`; durable on return.

        Raises:
            LostSavesError: some of it was refused, as it says, and is lost.
            BackendError: the store failed; what it did not store is kept, and tried again.
        """
        if isinstance(self._backend, Relaxed):
            self._backend.unstored.flush()

    async def aflush(self) -> None:
        """See `flush`."""
        if isinstance(self._backend, Relaxed):
            await self._backend.unstored.aflush()

    def close(self) -> None:
        """Release everything. Idempotent; later calls raise `ClosedError`."""
        drive.blocking(self._backend).close()

    async def aclose(self) -> None:
        """See `close`."""
        if self._awaited is not None:
            await self._awaited.close()
        if not drive.is_async(self._backend):
            await drive.in_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def beneath(self) -> Runs:
        """The store for what must be durable on return, whatever `ack` says."""
        return Runs(self._backend.beneath()) if isinstance(self._backend, Relaxed) else self

    def is_same_store(self, other: OpenStore) -> bool:
        """Whether both use the same backend object."""
        return self._backend is other._backend

    # -- what is kept at hand ----------------------------------------------------------

    def clear_cache(self, thread: str | None = None) -> None:
        """Keep nothing at hand of exactly this thread, or (None) of any; stored is all as before.

        It clears what this process remembers and the `cache`, and of this store the `hot` one.

        Raises:
            ThreadkeepError: the hot store could not be reached, and has it still.
        """
        self._working_set.forget(thread)
        if isinstance(self._front, Cached):
            self._front.clear(thread)
        elif self._front is not None:
            drive.blocking(self._front)  # raises: only awaiting calls can use it

    async def aclear_cache(self, thread: str | None = None) -> None:
        """See `clear_cache`."""
        self._working_set.forget(thread)
        front = self._front.asynchronous if isinstance(self._front, Cached) else self._front
        if front is not None:
            await front.clear(thread)
        elif self._front is not None:
            await drive.in_thread(partial(self.clear_cache, thread))

    # -- which store it is ---------------------------------------------------------------

    def identity(self) -> str:
        """Return the store's name. See `IdentifiedBackend.identity`."""
        backend = drive.blocking(self._innermost)
        assert isinstance(backend, IdentifiedBackend)  # noqa: S101 - else `cold` was refused
        return backend.identity()

    async def aidentity(self) -> str:
        """See `identity`."""
        native = drive.awaited(self._innermost)
        if native is None:
            return await drive.in_thread(self.identity)
        assert isinstance(native, IdentifiedAsyncBackend)  # noqa: S101 - as above
        return await native.identity()

    # -- what files hold of what was removed ---------------------------------------------

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """Leave nothing of removed rows in the store's files. See `ScrubbingBackend.scrub`."""
        # (no layer in front holds anything that files are made of: it is the store's alone)
        backend = drive.blocking(self._innermost)
        if isinstance(backend, ScrubbingBackend):
            return backend.scrub(rewrite=rewrite)
        return _unknown(backend)

    async def ascrub(self, *, rewrite: bool) -> Scrubbed:
        """See `scrub`."""
        native = drive.awaited(self._innermost)
        if native is None:
            return await drive.in_thread(partial(self.scrub, rewrite=rewrite))
        if isinstance(native, ScrubbingAsyncBackend):
            return await native.scrub(rewrite=rewrite)
        return _unknown(native)

    def scrub_hot(self) -> Scrubbed:
        """The same of the files of the `hot` store, if there is one."""
        if isinstance(self._front, Cached):
            return self._front.scrub_hot()
        return Scrubbed()

    async def ascrub_hot(self) -> Scrubbed:
        """See `scrub_hot`."""
        front = self._front.asynchronous if isinstance(self._front, Cached) else self._front
        return Scrubbed() if front is None else await front.scrub_hot()


def _opened(cold: str) -> ColdStore:
    from threadkeep.tiers.cold import ColdStore  # noqa: PLC0415 - much, and seldom needed

    return ColdStore(cold)


def own_cold(store: OpenStore) -> Plan[ColdStore | None]:
    """The cold store of a store, if it has one, as that one uses it."""
    from threadkeep.plans import either  # noqa: PLC0415 - whoever calls this has it

    if store.cold is None:
        return None
    return store.cold.of((yield from either(store.identity, store.aidentity)))


def _unknown(backend: object) -> Scrubbed:
    name = type(backend).__name__
    return Scrubbed(remains=(f"{name} does not say what its files hold of removed rows.",))
