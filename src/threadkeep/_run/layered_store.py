"""A backend with the layers that were asked for in front of it.

From the outside in: write-behind, tiering, the cache; then the backend.
"""

from __future__ import annotations

import threading
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Protocol

from threadkeep._core.engine.operation import External, Requests, call
from threadkeep._core.engine.usage import Counters
from threadkeep._core.engine.working_set import WorkingSet
from threadkeep._run.group_commit import AT_ONCE, GroupCommit
from threadkeep._run.layers.driver import (
    BackendPair,
    BottomStore,
    Stack,
    Workflow,
    on,
    sync_or_async,
)
from threadkeep._run.layers.layer import StoreLayer
from threadkeep._stores import process_forks
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.open import open_hot
from threadkeep.errors import InvalidArgumentError, ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._core.policies import ReadCache, Retention, Tiering
    from threadkeep._run.segment_cache.layer import CacheLayer
    from threadkeep._run.write_behind import WriteBehind
    from threadkeep._run.write_behind.layer import WriteBehindLayer
    from threadkeep._stores.base import AsyncBackend, Backend
    from threadkeep._stores.cold_store import ColdStore

RANDOM = SystemRandom()  # tokens must differ even where a program seeds its random numbers


class ColdLayer(StoreLayer, Protocol):
    """The layer that brings back what is in the cold store, if there is one."""

    cold: ColdStore | None


class LayeredStore(Stack):
    """A backend, the layers in front of it, and the working set of its threads."""

    def __init__(
        self,
        backend: Backend | AsyncBackend,
        tier: ColdLayer,
        *,
        group_commit: GroupCommit | None = None,
        write_behind: WriteBehind | None = None,
        cache: ReadCache | None = None,
        hot: str | None = None,
        tiering: Tiering | None = None,
        working_set_bytes: int = 0,
    ) -> None:
        # (what is seldom needed is imported where it is)
        store = BottomStore(backend, group_commit or AT_ONCE)
        self.cold = tier.cold
        self.tiering = tiering
        self.retention: Retention | None = None  # of threads without a policy of their own
        self._hot = None if hot is None else BackendPair(open_hot(hot))
        self._cache: CacheLayer | None = None
        self._write_behind: WriteBehindLayer | None = None
        self._check(store, group_commit, write_behind)
        layers: list[StoreLayer] = []
        if cache is not None or self._hot is not None:
            from threadkeep._run.segment_cache.layer import (  # noqa: PLC0415
                CacheLayer,
                Hot,
            )

            hot_tier = None if tiering is None else tiering.hot
            self._cache = CacheLayer(cache, None if self._hot is None else Hot(self._hot), hot_tier)
            layers.insert(0, self._cache)
        layers.insert(0, tier)
        self._beneath = Stack(store, layers)
        if write_behind is not None:
            from threadkeep._run.write_behind.layer import WriteBehindLayer  # noqa: PLC0415

            self._write_behind = WriteBehindLayer(
                self._beneath, write_behind, group_commit or AT_ONCE
            )
            layers.insert(0, self._write_behind)
        super().__init__(store, layers)
        self.working_set = WorkingSet(
            working_set_bytes,
            threading.Lock,
            RANDOM.getrandbits,
            exclusive=write_behind is not None,
        )
        process_forks.watch(self.working_set)

    def _check(
        self, store: BottomStore, group_commit: GroupCommit | None, write_behind: WriteBehind | None
    ) -> None:
        """Refuse options that the backend does not support."""
        backend = store.backend
        name = type(backend).__name__
        hint = ""
        if self._hot is not None and not backend.counts_for_all:
            refused = (
                f"hot= cannot stand in front of {name}, which does not count for all processes."
            )
            hint = "Use it in front of PostgreSQL, or leave it out."
        elif self.cold is not None and not backend.has_identity:
            refused = (
                f"cold= cannot be used with {name}, which has no name of its own: stores that share"
                " a cold store are told apart by that."
            )
            hint = "Override `identity` in the backend, and set `has_identity`."
        elif write_behind is not None and backend is store.awaited:
            refused = "write_behind= needs connections of its own, to store what waits at any time."
            hint = "Use a URL instead of an async pool, connection or client."
        elif group_commit is not None and not backend.commits_groups:
            refused = f"{name} cannot commit in groups."
            hint = "Leave group_commit out, or override `commit_many` and set `commits_groups`."
        if hint:
            raise InvalidArgumentError(refused, hint=hint)

    @property
    def backend(self) -> Backend | AsyncBackend:
        """The backend."""
        return self._store.backend

    def beneath(self) -> Stack:
        """Return the store for what must be durable on return."""
        if self._write_behind is None:
            return self
        return self._beneath.under(self._write_behind.durable())

    def own_cold(self) -> Workflow[ColdStore | None]:
        """Return the cold store, if there is one, as this store uses it."""
        if self.cold is None:
            return None
        return self.cold.of((yield from on(self, call("identity"))))

    # -- operations ----------------------------------------------------------------------

    def clear_cache(self, thread: str | None) -> Requests[None]:
        """Evict a thread, or (None) all, from the working set, the cache and the hot store."""
        self.working_set.forget(thread)
        if self._cache is not None:
            yield from self._cache.clear(thread)

    def scrub(self, *, rewrite: bool) -> Requests[ScrubReport]:
        """Leave nothing of removed rows in the backend's files. See `Backend.scrub`."""
        # (no layer in front holds anything that files are made of: it is the backend's alone)
        scrubbed: ScrubReport = yield from call("scrub", rewrite=rewrite)
        return scrubbed

    def scrub_hot(self) -> Requests[ScrubReport]:
        """Do the same with the files of the hot store, if there is one."""
        return ScrubReport() if self._cache is None else (yield from self._cache.scrub_hot())

    def counters(self, forked_runs: int) -> Counters:
        """Return the counters of a saver on this store. See `Saver.counters`."""
        counts, cache = self.working_set.counts, self._cache
        behind = self._write_behind
        queued, size, used = (0, 0, 0.0) if behind is None else behind.queue.queued
        return Counters(
            written_bytes=counts.written,
            saved_bytes=counts.saved,
            working_set_hits=counts.hits,
            working_set_misses=counts.loads - counts.hits,
            cache_hits=0 if cache is None else cache.hits,
            cache_misses=0 if cache is None else cache.misses,
            conflicts=forked_runs + counts.conflicts,
            retries=counts.retries + self.backend.retries,
            queued=queued,
            queued_bytes=size,
            queue_used=used,
        )

    # -- write-behind --------------------------------------------------------------------

    def flush(self) -> Workflow[None]:
        """Store what waits. See `Saver.flush`."""
        if self._write_behind is not None:
            queue = self._write_behind.queue
            yield External(queue.flush, queue.aflush)

    def close(self) -> Workflow[None]:
        """Store what waits, and close the backend."""
        failure = None
        if self._write_behind is not None:
            queue = self._write_behind.queue
            try:
                yield from sync_or_async(queue.close, partial(queue.in_turn, queue.close))
            except ThreadkeepError as error:
                failure = error
            # (Where it was interrupted, nothing is closed: what waits is stored at the program's
            # end.)
        for pair in (self._store, self._hot):
            if pair is not None:
                yield from sync_or_async(pair.close, pair.aclose)
        if failure is not None:
            raise failure


class OfAStore(Protocol):
    """A saver of threadkeep."""

    _store: LayeredStore


def store_of(saver: object) -> LayeredStore:
    """Return the store of a threadkeep saver.

    Raises:
        InvalidArgumentError: it is none.
    """
    store = getattr(saver, "_store", None)
    if not isinstance(store, LayeredStore):
        raise InvalidArgumentError(
            f"{type(saver).__name__} is no saver of threadkeep.",
            hint="Open the other store: threadkeep.open_saver(url).",
        )
    return store
