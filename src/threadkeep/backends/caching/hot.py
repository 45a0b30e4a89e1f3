"""Segments kept in a Redis that all processes share.

Only what is asked of it, and when it is left alone, lives here. Invariants: the server may be
flushed, restarted, full or absent, and may drop any key by itself: what it does not have, or
has of another generation, is not there, and nothing is raised for it (but to who clears it
on purpose); one that failed is left alone for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol
from zlib import crc32

from threadkeep.backends.base import ScrubbingAsyncBackend
from threadkeep.backends.caching.kept import Fresh
from threadkeep.backends.scrubbed import Scrubbed
from threadkeep.engine.model import Batch, DropThread, ReadSegments, Segment, Span
from threadkeep.errors import SegmentTakenError, ThreadkeepError

_PAUSE = 5.0  # seconds that a server which failed is left alone
_MARK_LOG = 2**62  # no log of a thread has this number
_CHECKSUM = 4  # bytes
_MARK = Span(_MARK_LOG, 0, 1)
_log = logging.getLogger("threadkeep")


class HotStore(ScrubbingAsyncBackend, Protocol):
    """A store that can be emptied."""

    async def clear(self, beginning: str) -> None:
        """Remove all threads whose id begins so."""


class Hot:
    """Segments by thread, each thread under a mark that says of which generation they are.

    The mark is a segment too, stored together with others: where one of another generation
    is there, the store refuses them all. A thread's id begins with the name of the store that
    it is of, as others may use the same server.
    """

    def __init__(
        self,
        store: HotStore,
        identity: Callable[[], Awaitable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._identity = identity
        self._clock = clock
        self._again_at = 0.0
        self._known = ""

    async def _name(self, thread: str = "") -> str:
        """What the thread is called here."""
        self._known = self._known or await self._identity()
        return f"{self._known}/{thread}"

    async def find(self, read: ReadSegments) -> list[Segment]:
        """Those kept that overlap the spans; nothing where anything of them is damaged."""

        async def ask() -> list[Segment]:
            asked = ReadSegments(await self._name(read.thread), (_MARK, *read.spans))
            (found,) = await self._store.fetch([asked])
            return list(found)

        found = await self._said(ask) or []
        # (A server that is short of memory may have dropped the bytes and not the place.)
        opened = [_opened(s) for s in found if s.data]
        if None in opened:
            await self.let_go(read.thread)
            return []
        segments = [s for s in opened if s is not None]
        if _mark(read.generation) not in segments:
            return []
        return [s for s in segments if s.log != _MARK_LOG]

    async def keep(self, fresh: Fresh) -> None:
        """Keep segments, and let go of those that are gone."""
        thread, generation, segments, drops = fresh
        marked = tuple(map(_sealed, (_mark(generation), *segments)))

        async def store() -> bool:
            name = await self._name(thread)
            return await self._stored(Batch(name, 0, segments=marked, drop_segments=tuple(drops)))

        if await self._said(store) is False:
            await self.let_go(thread)
            await self._said(store)

    async def _stored(self, batch: Batch) -> bool:
        """Whether it was; not where something else is in its place."""
        try:
            await self._store.commit(batch)
        except SegmentTakenError:
            return False
        return True

    async def let_go(self, thread: str) -> None:
        """Let go of a thread, if the server can be reached: what it has is stale by its mark."""
        await self._said(lambda: self.clear(thread))

    async def clear(self, thread: str | None = None) -> None:
        """Let go of a thread, or of all of them.

        Raises:
            ThreadkeepError: the server, or the store that it stands in front of, failed.
        """
        name = await self._name(thread or "")
        if thread is None:
            await self._store.clear(name)
        else:
            await self._store.commit(DropThread(name, 0))

    async def scrub(self) -> Scrubbed:
        """Leave nothing in its files of what it has let go. Raises as it does."""
        found = await self._store.scrub(rewrite=False)
        return Scrubbed(
            tuple([f"the hot store: {one}" for one in found.cleared]),
            tuple([f"The hot store: {one}" for one in found.remains]),
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._store.close()

    async def _said(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What the server says; None where it does not."""
        if self._clock() < self._again_at:
            return None
        try:
            return await ask()
        except ThreadkeepError as error:
            is_first = self._clock() >= self._again_at  # of those that were under way
            self._again_at = self._clock() + _PAUSE  # (before it is logged, which takes time)
            if is_first:
                _log.warning("The hot store is left alone for %g seconds: %s", _PAUSE, error)
            return None


def _mark(generation: int | None) -> Segment:
    return Segment(_MARK_LOG, 0, 1, str(generation).encode())


def _sealed(segment: Segment) -> Segment:
    """As it is kept: with a checksum, as nobody else looks at what a cache has made of it."""
    return replace(segment, data=segment.data + _checksum(segment, segment.data))


def _opened(kept: Segment) -> Segment | None:
    """The segment that was kept; None where it is damaged."""
    data, checksum = kept.data[:-_CHECKSUM], kept.data[-_CHECKSUM:]
    return replace(kept, data=data) if checksum == _checksum(kept, data) else None


def _checksum(segment: Segment, data: bytes) -> bytes:
    place = f"{segment.log} {segment.start} {segment.count}".encode()
    return crc32(data, crc32(place)).to_bytes(_CHECKSUM, "big")
