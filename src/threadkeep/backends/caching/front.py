"""A backend with what is kept at hand in front of it.

Only what is looked for where, and kept when, lives here. Invariants: which checkpoint is the
head, and what is pending on it, is always the store's to say; only what was read under a
generation, or committed under one, is kept; what cannot be put together is asked for whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    DualBackend,
    GroupingAsyncBackend,
    GroupingBackend,
    IdentifiedAsyncBackend,
    IdentifiedBackend,
    MigratingAsyncBackend,
)
from threadkeep.backends.caching.hot import Hot, HotStore
from threadkeep.backends.caching.kept import Fresh, Kept
from threadkeep.backends.caching.shelf import Cache
from threadkeep.backends.logs import Log, add, between, missing
from threadkeep.backends.scrubbed import Scrubbed
from threadkeep.backends.straight import Front, finish, straight
from threadkeep.engine.model import Batch, Change, Read, ReadSegments, Segment
from threadkeep.errors import InvalidArgumentError, ThreadkeepError

Hots: TypeAlias = tuple[HotStore, HotStore]
"""A hot store, for blocking and for awaiting calls."""


class AsyncCached:
    """An async backend with segments kept in front of it, nearest first."""

    def __init__(self, backend: AsyncBackend, kept: Kept | None, hot: Hot | None) -> None:
        self._backend = backend
        self._kept = kept
        self._hot = hot

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        if len(reads) == 1 and isinstance(reads[0], ReadSegments):
            read = reads[0]
            if read.generation is not None:
                return [await self._segments(read, read.generation)]
        return await self._backend.fetch(reads)

    async def _segments(self, read: ReadSegments, generation: int) -> list[Segment]:
        logs: dict[int, Log] = {}
        add(logs, self._kept.find(read) if self._kept is not None else ())
        rest = missing(logs, read.spans)
        if rest and self._hot is not None:
            found = await self._hot.find(replace(read, spans=rest))
            self._keep_near(Fresh(read.thread, generation, found))
            add(logs, found)
            rest = missing(logs, read.spans)
        if rest:
            (found,) = await self._backend.fetch([replace(read, spans=rest)])
            await self._keep(Fresh(read.thread, generation, found))
            add(logs, found)
        if missing(logs, read.spans):
            (whole,) = await self._backend.fetch([read])
            return list(whole)
        return between(logs, read.spans)

    async def commit(self, change: Change) -> None:
        """See `AsyncBackend.commit`."""
        await self._backend.commit(change)
        await self._note(change)

    async def _note(self, change: Change) -> None:
        """Keep what was just stored; let go of what is there no more."""
        if not isinstance(change, Batch) or change.bump:
            await self._let_go(change.thread)
        elif change.generation is not None and (change.segments or change.drop_segments):
            segments, drops = change.segments, change.drop_segments
            await self._keep(Fresh(change.thread, change.generation, segments, drops))

    async def _keep(self, fresh: Fresh) -> None:
        self._keep_near(fresh)
        if self._hot is not None and (fresh.segments or fresh.drops):
            await self._hot.keep(fresh)

    def _keep_near(self, fresh: Fresh) -> None:
        if self._kept is not None:
            self._kept.keep(fresh)

    async def _let_go(self, thread: str) -> None:
        if self._kept is not None:
            self._kept.clear(thread)
        if self._hot is not None:
            await self._hot.let_go(thread)

    async def clear(self, thread: str | None = None) -> None:
        """Keep nothing of a thread, or of any. Raises as `Hot.clear`."""
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
    """

    def __init__(self, backend: Backend, cache: Cache | None, hots: Hots | None) -> None:
        kept = None if cache is None else Kept(cache)
        hot = None if hots is None else Hot(hots[0], _blocking_identity(backend))
        native = backend.asynchronous if isinstance(backend, DualBackend) else None
        awaiting = None if native is None else _awaiting(native, kept, hots)
        super().__init__(backend, _face(straight(backend), kept, hot), awaiting)

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


def _blocking_identity(backend: Backend) -> Callable[[], Awaitable[str]]:
    if not isinstance(backend, IdentifiedBackend):
        raise _unknown(backend)

    async def identity() -> str:
        return backend.identity()

    return identity


def _unknown(backend: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"hot= cannot stand in front of {type(backend).__name__}, which has no name that all"
        " processes know.",
        hint="Use it in front of PostgreSQL, or leave it out.",
    )


def _awaiting(backend: AsyncBackend, kept: Kept | None, hots: Hots | None) -> AsyncCached:
    hot = None
    if hots is not None:
        if not isinstance(backend, IdentifiedAsyncBackend):
            raise _unknown(backend)
        hot = Hot(hots[1], backend.identity)
    return _face(backend, kept, hot)


def _face(backend: AsyncBackend, kept: Kept | None, hot: Hot | None) -> AsyncCached:
    kind = AsyncCachedGroups if isinstance(backend, GroupingAsyncBackend) else AsyncCached
    return kind(backend, kept, hot)


def cached(
    backend: Backend | AsyncBackend, cache: Cache | None, hots: Hots | None, *, is_async: bool
) -> Cached | AsyncCached:
    """The backend with segments kept in front of it."""
    if is_async:
        return _awaiting(backend, None if cache is None else Kept(cache), hots)  # type: ignore[arg-type] # as is said
    kind = CachedGroups if isinstance(backend, GroupingBackend) else Cached
    return kind(backend, cache, hots)  # type: ignore[arg-type] # as is said
