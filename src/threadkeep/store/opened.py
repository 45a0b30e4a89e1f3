"""A store that is open: what stands in front of it, running operations on it, its end.

Nothing here knows LangGraph. Invariant: each request passes the layers that were asked for, from
the outside in: relaxed saves, tiering, the cache; then the store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from random import SystemRandom
from types import TracebackType
from typing import TYPE_CHECKING, Self

from threadkeep.backends import process_forks
from threadkeep.backends.group_commit import (
    AT_ONCE,
    GroupCommit,
)
from threadkeep.backends.open import open_hot
from threadkeep.cold.layer import TierLayer
from threadkeep.engine.operation import (
    Requests,
    call,
)
from threadkeep.engine.working_set import WorkingSet
from threadkeep.errors import InvalidArgumentError, ThreadkeepError
from threadkeep.store import workflows
from threadkeep.store.driver import (
    Faces,
    Stack,
    Store,
)
from threadkeep.store.forked_runs import ForkedRuns
from threadkeep.store.layer import (
    Layer,
    OneByOne,
)
from threadkeep.store.workflows import (
    Plan,
    either,
    on,
)

if TYPE_CHECKING:
    from threadkeep.backends.base import AsyncBackend, Backend
    from threadkeep.backends.scrubbed import Scrubbed
    from threadkeep.cache import (
        Cache,
        CacheLayer,
        HotTier,
    )
    from threadkeep.cold.store import ColdStore
    from threadkeep.cold.tiering import Tiering
    from threadkeep.write_behind import RelaxedLayer

RANDOM = SystemRandom()  # tokens must differ even where a program seeds its random numbers


class _Done:
    """What `setup()` returns: nothing is left to do, awaited or not."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class OpenStore(Stack):
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
        is_relaxed = group_commit is not None and group_commit.ack == "relaxed"
        store = Store(backend, AT_ONCE if group_commit is None or is_relaxed else group_commit)
        self.cold = None if cold is None else _opened(cold)
        self.tiering = tiering
        self._hot = None if hot is None else Faces(open_hot(hot))
        _check(store, group_commit, self._hot, self.cold)
        hot_tier = None if tiering is None else tiering.hot
        self._cache: CacheLayer | None = None
        self._relaxed: RelaxedLayer | None = None
        layers: list[Layer] = [] if store.has("commit_many") else [OneByOne()]
        if cache is not None or self._hot is not None:
            self._cache = _cache_layer(cache, self._hot, hot_tier)
            layers.insert(0, self._cache)
        layers.insert(0, TierLayer(self.cold))
        self._beneath = Stack(store, layers)
        if group_commit is not None and is_relaxed:
            from threadkeep.write_behind import RelaxedLayer  # noqa: PLC0415 - much, and seldom needed

            self._relaxed = RelaxedLayer(self._beneath, group_commit)
            layers.insert(0, self._relaxed)
        super().__init__(store, layers)
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
        self.run(self._migrate())
        return _Done()

    async def asetup(self) -> None:
        """See `setup`."""
        await self.arun(self._migrate())

    def _migrate(self) -> Requests[None]:
        if self._store.has("migrate"):
            yield from call("migrate")

    def flush(self) -> None:
        """Store whatever was saved with `GroupCommit(ack="relaxed")`; durable on return.

        Raises:
            LostSavesError: some of it was refused, as it says, and is lost.
            BackendError: the store failed; what it did not store is kept, and tried again.
        """
        if self._relaxed is not None:
            self._relaxed.unstored.flush()

    async def aflush(self) -> None:
        """See `flush`."""
        if self._relaxed is not None:
            await self._relaxed.unstored.aflush()

    def close(self) -> None:
        """Release everything. Idempotent; later calls raise `ClosedError`."""
        self._store.blocking  # noqa: B018 - raises
        workflows.run(self._close())

    async def aclose(self) -> None:
        """See `close`."""
        await workflows.arun(self._close())

    def _close(self) -> Plan[None]:
        failure = None
        if self._relaxed is not None:
            unstored = self._relaxed.unstored
            try:
                yield from either(unstored.close, partial(unstored.alone, unstored.close))
            except ThreadkeepError as error:
                failure = error
            # (Where it was interrupted, nothing is closed: what waits is stored at the program's
            # end.)
        for faces in (self._store, self._hot):
            if faces is not None:
                yield from either(faces.close, faces.aclose)
        if failure is not None:
            raise failure

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

    def beneath(self) -> Stack:
        """The store for what must be durable on return, whatever `ack` says."""
        if self._relaxed is None:
            return self
        return self._beneath.under(self._relaxed.durable())

    def is_same_store(self, other: OpenStore) -> bool:
        """Whether both use the same backend object."""
        return self._store.backend is other._store.backend

    # -- what is kept at hand ----------------------------------------------------------

    def clear_cache(self, thread: str | None = None) -> None:
        """Keep nothing at hand of exactly this thread, or (None) of any; stored is all as before.

        It clears what this process remembers and the `cache`, and of this store the `hot` one.

        Raises:
            ThreadkeepError: the hot store could not be reached, and has it still.
        """
        self.run(self._clear_cache(thread))

    async def aclear_cache(self, thread: str | None = None) -> None:
        """See `clear_cache`."""
        await self.arun_here(self._clear_cache(thread))

    def _clear_cache(self, thread: str | None) -> Requests[None]:
        self._working_set.forget(thread)
        if self._cache is not None:
            yield from self._cache.clear(thread)

    # -- what files hold of what was removed ---------------------------------------------

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """Leave nothing of removed rows in the store's files. See `ScrubbingBackend.scrub`."""
        return self.run(self._scrub(rewrite=rewrite))

    async def ascrub(self, *, rewrite: bool) -> Scrubbed:
        """See `scrub`."""
        return await self.arun_here(self._scrub(rewrite=rewrite))

    def _scrub(self, *, rewrite: bool) -> Requests[Scrubbed]:
        # (no layer in front holds anything that files are made of: it is the store's alone)
        if self._store.has("scrub"):
            scrubbed: Scrubbed = yield from call("scrub", rewrite=rewrite)
            return scrubbed
        name = type(self._store.backend).__name__
        return _scrubbed(f"{name} does not say what its files hold of removed rows.")

    def scrub_hot(self) -> Scrubbed:
        """The same of the files of the `hot` store, if there is one."""
        return self.run(self._scrub_hot())

    async def ascrub_hot(self) -> Scrubbed:
        """See `scrub_hot`."""
        return await self.arun_here(self._scrub_hot())

    def _scrub_hot(self) -> Requests[Scrubbed]:
        return _scrubbed() if self._cache is None else (yield from self._cache.scrub_hot())


def _cache_layer(cache: Cache | None, hot: Faces | None, tier: HotTier | None) -> CacheLayer:
    from threadkeep.cache import CacheLayer  # noqa: PLC0415 - much, and seldom needed
    from threadkeep.cache.hot import Hot  # noqa: PLC0415 - see above

    return CacheLayer(cache, None if hot is None else Hot(hot), tier)


def _scrubbed(*remains: str) -> Scrubbed:
    from threadkeep.backends.scrubbed import Scrubbed  # noqa: PLC0415 - seldom needed

    return Scrubbed(remains=remains)


def _opened(cold: str) -> ColdStore:
    from threadkeep.cold.store import ColdStore  # noqa: PLC0415 - much, and seldom needed

    return ColdStore(cold)


def own_cold(store: OpenStore) -> Plan[ColdStore | None]:
    """The cold store of a store, if it has one, as that one uses it."""
    if store.cold is None:
        return None
    return store.cold.of((yield from on(store, call("identity"))))


def _check(
    store: Store, group_commit: GroupCommit | None, hot: Faces | None, cold: ColdStore | None
) -> None:
    """Refuse what the store cannot do.

    Raises:
        InvalidArgumentError: as it says.
    """
    name = type(store.backend).__name__
    if hot is not None and not store.has("counts_for_all"):
        raise InvalidArgumentError(
            f"hot= cannot stand in front of {name}, which does not count for all processes.",
            hint="Use it in front of PostgreSQL, or leave it out.",
        )
    if cold is not None and not store.has("identity"):
        raise InvalidArgumentError(
            f"cold= cannot be used with {name}, which has no name of its own: stores that share a"
            " cold store are told apart by that.",
            hint="Let the backend have `identity` (threadkeep.backends.base.IdentifiedBackend).",
        )
    if group_commit is None:
        return
    if group_commit.ack == "relaxed":
        if store.backend is store.awaited:
            raise InvalidArgumentError(
                'ack="relaxed" needs connections of its own, to store what waits at any time.',
                hint="Give a URL instead of an async pool, connection or client.",
            )
    elif not store.has("commit_many"):
        raise InvalidArgumentError(
            f"{name} cannot commit in groups.",
            hint="Leave group_commit out, or give the backend a method commit_many.",
        )
