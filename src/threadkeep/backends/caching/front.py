"""A backend with what is kept at hand in front of it.

Only what is looked for where, and kept when, lives here. Invariants: which checkpoint is the
head, and what is pending on it, is always the store's to say; only what was read under a
generation, or committed under one, is kept; what cannot be put together is asked for whole;
without a `HotTier` all threads are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    CountingAsyncBackend,
    CountingBackend,
    DualBackend,
    GroupingAsyncBackend,
    GroupingBackend,
    MigratingAsyncBackend,
)
from threadkeep.backends.caching.admission import KEEP, Admission, HotTier, Verdict
from threadkeep.backends.caching.hot import Hot, HotStore
from threadkeep.backends.caching.kept import Fresh, Kept
from threadkeep.backends.caching.shelf import Cache
from threadkeep.backends.logs import Log, add, between, missing
from threadkeep.backends.scrubbed import Scrubbed
from threadkeep.backends.straight import Front, finish, identity_of, straight
from threadkeep.engine.model import (
    Batch,
    Change,
    DropThread,
    Read,
    ReadCheckpoint,
    ReadSegments,
    Segment,
)
from threadkeep.engine.offloaded import STUB
from threadkeep.errors import InvalidArgumentError, ThreadkeepError

Hots: TypeAlias = tuple[HotStore, HotStore]
"""A hot store, for blocking and for awaiting calls."""


class AsyncCached:
    """An async backend with segments kept in front of it, nearest first.

    Args:
        backend: the store.
        kept: what this process keeps in memory, if anything.
        hot: what all processes keep, if there is such a store.
        admission: which threads are kept; None for all.
    """

    def __init__(
        self,
        backend: AsyncBackend,
        kept: Kept | None,
        hot: Hot | None,
        admission: Admission | None = None,
    ) -> None:
        self._backend = backend
        self._kept = kept
        self._hot = hot
        self._admission = admission

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        if len(reads) == 1 and isinstance(reads[0], ReadSegments):
            read = reads[0]
            if read.generation is not None:
                return [await self._segments(read, read.generation)]
        replies = await self._backend.fetch(reads)
        if self._admission is not None:
            await self._meet(self._admission, reads, replies)
        return replies

    async def _meet(
        self, admission: Admission, reads: Sequence[Read], replies: Sequence[Any]
    ) -> None:
        """Note which checkpoints were read."""
        for read, reply in zip(reads, replies, strict=True):
            if not isinstance(read, ReadCheckpoint) or reply.found is None:
                continue
            if admission.met(read, reply.found.row):
                await self._let_go(read.thread)

    async def _segments(self, read: ReadSegments, generation: int) -> list[Segment]:
        logs: dict[int, Log] = {}
        taken: Sequence[Segment] = ()
        fetched: Sequence[Segment] = ()
        add(logs, self._kept.find(read) if self._kept is not None else ())
        rest = missing(logs, read.spans)
        if rest and self._hot is not None and self._may_be_shared(read.thread):
            taken = await self._hot.find(replace(read, spans=rest))
            add(logs, taken)
            rest = missing(logs, read.spans)
        if rest:
            (fetched,) = await self._backend.fetch([replace(read, spans=rest)])
            add(logs, fetched)
        whole = between(logs, read.spans)
        if missing(logs, read.spans):
            (whole,) = await self._backend.fetch([read])
        await self._keep_read(Fresh(read.thread, generation, fetched), taken, whole)
        return list(whole)

    def _may_be_shared(self, thread: str) -> bool:
        return self._admission is None or self._admission.may_be_shared(thread)

    async def _keep_read(
        self, fetched: Fresh, taken: Sequence[Segment], whole: Sequence[Segment]
    ) -> None:
        """Keep what a read got from the store, and near what it took from the hot one."""
        verdict = KEEP if self._admission is None else self._admission.read(fetched, whole)
        near = whole if verdict.anew else [*taken, *fetched.segments]
        shared = whole if verdict.let_go else fetched.segments
        await self._keep(verdict, fetched._replace(segments=near), shared)

    async def commit(self, change: Change) -> None:
        """See `AsyncBackend.commit`."""
        await self._backend.commit(change)
        await self._note(change)

    async def _note(self, change: Change) -> None:
        """Keep what was just stored; let go of what is there no more."""
        if not isinstance(change, Batch) or change.bump:
            if self._admission is not None and isinstance(change, DropThread):
                self._admission.forget(change.thread)
            await self._let_go(change.thread)
            return
        verdict = KEEP if self._admission is None else self._admission.stored(change)
        fresh = Fresh(change.thread, 0, ())
        if change.generation is not None:
            segments, drops = change.segments, change.drop_segments
            fresh = Fresh(change.thread, change.generation, segments, drops)
        await self._keep(verdict, fresh, fresh.segments)

    async def _keep(self, verdict: Verdict, near: Fresh, shared: Sequence[Segment]) -> None:
        """Do as the verdict says with what is for memory and what is for the hot store."""
        thread = near.thread
        if self._kept is not None and (verdict.anew or not verdict.keep):
            self._kept.clear(thread)
        if self._hot is not None and verdict.let_go:
            await self._hot.let_go(thread)
        if not verdict.keep:
            return
        near, shared = near._replace(segments=_without_stubs(near.segments)), _without_stubs(shared)
        if self._kept is not None and (near.segments or near.drops):
            self._kept.keep(near)
        if self._hot is not None and (shared or near.drops):
            await self._hot.keep(near._replace(segments=shared))

    async def _let_go(self, thread: str) -> None:
        if self._kept is not None:
            self._kept.clear(thread)
        if self._hot is not None:
            await self._hot.let_go(thread)

    async def clear(self, thread: str | None = None) -> None:
        """Keep nothing of a thread, or of any. Raises as `Hot.clear`."""
        if self._admission is not None:
            self._admission.forget(thread)
        if self._kept is not None:
            self._kept.clear(thread)
        if self._hot is not None:
            await self._hot.clear(thread)

    async def scrub_hot(self) -> Scrubbed:
        """Leave nothing in the files of the hot store, if there is one. Raises as it does."""
        return Scrubbed() if self._hot is None else await self._hot.scrub()

    async def close(self) -> None:
        """See `AsyncBackend.close`."""
        await self._backend.close()
        if self._hot is not None:
            await self._hot.close()

    async def migrate(self) -> None:
        """See `MigratingAsyncBackend.migrate`."""
        if isinstance(self._backend, MigratingAsyncBackend):
            await self._backend.migrate()


def _without_stubs(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Those that hold their own bytes: what a stub names may be gone once it stands no more."""
    return [segment for segment in segments if not segment.data.startswith(STUB)]


class AsyncCachedGroups(AsyncCached):
    """The same of a store that commits in groups."""

    _backend: GroupingAsyncBackend

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingAsyncBackend.commit_many`."""
        results = await self._backend.commit_many(changes)
        for change, refusal in zip(changes, results, strict=True):
            if refusal is None:
                await self._note(change)
        return results


class Cached(Front[AsyncCached]):
    """A blocking backend with segments kept in front of it.

    Args:
        backend: the store.
        cache: what this process keeps in memory, if anything.
        hots: a hot store, if there is one.
        admission: which threads are kept; None for all.
    """

    def __init__(
        self,
        backend: Backend,
        cache: Cache | None,
        hots: Hots | None,
        admission: Admission | None = None,
    ) -> None:
        kept = None if cache is None else Kept(cache)
        hot = None
        if hots is not None:
            if not isinstance(backend, CountingBackend):
                raise _unknown(backend)
            hot = Hot(hots[0], identity_of(backend))
        native = backend.asynchronous if isinstance(backend, DualBackend) else None
        awaiting = None if native is None else _awaiting(native, kept, hots, admission)
        super().__init__(backend, _face(straight(backend), kept, hot, admission), awaiting)

    def clear(self, thread: str | None = None) -> None:
        """Keep nothing of a thread, or of any."""
        finish(self._face.clear(thread))

    def scrub_hot(self) -> Scrubbed:
        """See `AsyncCached.scrub_hot`."""
        return finish(self._face.scrub_hot())


class CachedGroups(Cached):
    """The same of a store that commits in groups."""

    _face: AsyncCachedGroups

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingBackend.commit_many`."""
        return finish(self._face.commit_many(changes))


def _unknown(backend: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"hot= cannot stand in front of {type(backend).__name__}, which does not count for all"
        " processes.",
        hint="Use it in front of PostgreSQL, or leave it out.",
    )


def _awaiting(
    backend: AsyncBackend, kept: Kept | None, hots: Hots | None, admission: Admission | None
) -> AsyncCached:
    hot = None
    if hots is not None:
        if not isinstance(backend, CountingAsyncBackend):
            raise _unknown(backend)
        hot = Hot(hots[1], backend.identity)
    return _face(backend, kept, hot, admission)


def _face(
    backend: AsyncBackend, kept: Kept | None, hot: Hot | None, admission: Admission | None
) -> AsyncCached:
    kind = AsyncCachedGroups if isinstance(backend, GroupingAsyncBackend) else AsyncCached
    return kind(backend, kept, hot, admission)


def cached(
    backend: Backend | AsyncBackend,
    cache: Cache | None,
    hots: Hots | None,
    *,
    is_async: bool,
    hot_tier: HotTier | None = None,
    clock: Callable[[], float] = time.time,
) -> Cached | AsyncCached:
    """The backend with segments kept in front of it.

    Args:
        backend: the store.
        cache: what this process keeps in memory, if anything.
        hots: a hot store, if there is one.
        is_async: whether the backend is one for awaiting calls.
        hot_tier: which threads are kept; None for all.
        clock: gives seconds since 1970, for `hot_tier`.

    Raises:
        InvalidArgumentError: no hot store can stand in front of this one.
    """
    admission = None if hot_tier is None else Admission(hot_tier, clock)
    if is_async:
        kept = None if cache is None else Kept(cache)
        return _awaiting(backend, kept, hots, admission)  # type: ignore[arg-type] # as is said
    kind = CachedGroups if isinstance(backend, GroupingBackend) else Cached
    return kind(backend, cache, hots, admission)  # type: ignore[arg-type] # as is said
