"""Hot store: segments in a Redis that all processes share.

The server may be flushed, restarted, full or down, and may evict any key by itself. What it lacks,
or has of another generation, is not there; only `clear` and `scrub` raise errors for it. After a
failure it is not used for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

from threadkeep.backends.base import Scrubbed
from threadkeep.cache.lru import Fresh
from threadkeep.engine.model import Batch, DropThread, ReadSegments, Segment, Span
from threadkeep.engine.operation import (
    Requests,
    call,
)
from threadkeep.errors import SegmentTakenError, ThreadkeepError
from threadkeep.store.driver import BackendPair

_PAUSE = 5.0  # seconds that a server which failed is left alone
_MARK_LOG = 2**62  # no log of a thread has this number
_CHECKSUM = 4  # bytes
_MARK = Span(_MARK_LOG, 0, 1)
_log = logging.getLogger("threadkeep")


class Hot:
    """Segments by thread, each thread under a mark that names their generation.

    The mark is a segment too, stored together with others: where one of another generation
    is there, the store refuses them all. A thread's id begins with the name of the store that
    it is of, as others may use the same server.

    Args:
        store: the Redis (`backends.redis.HotRedis`).
        clock: gives seconds.
    """

    def __init__(self, store: BackendPair, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._again_at = 0.0
        self._known = ""

    def _name(self, thread: str = "") -> Requests[str]:
        """Return the name of the thread in the hot store."""
        self._known = self._known or (yield from call("identity"))
        return f"{self._known}/{thread}"

    def find(self, read: ReadSegments) -> Requests[list[Segment]]:
        """Return the segments that overlap the spans; none if any of them is damaged."""
        found = (yield from self._said(self._asked(read))) or []
        # (A server that is short of memory may have dropped the bytes and not the place.)
        opened = [_opened(s) for s in found if s.data]
        if None in opened:
            yield from self.evict(read.thread)
            return []
        segments = [s for s in opened if s is not None]
        if _mark(read.generation) not in segments:
            return []
        return [s for s in segments if s.log != _MARK_LOG]

    def _asked(self, read: ReadSegments) -> Requests[list[Segment]]:
        asked = ReadSegments((yield from self._name(read.thread)), (_MARK, *read.spans))
        (found,) = yield self._store.aside("fetch", [asked])
        return list(found)

    def keep(self, fresh: Fresh) -> Requests[None]:
        """Store segments, and evict those that are gone."""
        if (yield from self._said(self._stored(fresh))) is False:
            yield from self.evict(fresh.thread)
            yield from self._said(self._stored(fresh))

    def _stored(self, fresh: Fresh) -> Requests[bool]:
        """Return False if something else is in their place."""
        marked = tuple(map(_sealed, (_mark(fresh.generation), *fresh.segments)))
        name = yield from self._name(fresh.thread)
        batch = Batch(name, 0, segments=marked, drop_segments=tuple(fresh.drops))
        try:
            yield self._store.aside("commit", batch)
        except SegmentTakenError:
            return False
        return True

    def evict(self, thread: str) -> Requests[None]:
        """Evict a thread, if the server can be reached; if not, its mark makes it stale."""
        yield from self._said(self.clear(thread))

    def clear(self, thread: str | None = None) -> Requests[None]:
        """Evict a thread, or all.

        Raises:
            ThreadkeepError: the server, or the store that it stands in front of, failed.
        """
        name = yield from self._name(thread or "")
        if thread is None:
            yield self._store.aside("clear", name)
        else:
            yield self._store.aside("commit", DropThread(name, 0))

    def scrub(self) -> Requests[Scrubbed]:
        """Scrub the files of the server. Raises as it does."""
        found = yield self._store.aside("scrub", rewrite=False)
        return Scrubbed(
            tuple([f"the hot store: {one}" for one in found.cleared]),
            tuple([f"The hot store: {one}" for one in found.remains]),
        )

    def _said(self, asked: Requests[Any]) -> Requests[Any]:
        """Return the server's reply; None if it failed, or is not used for now."""
        if self._clock() < self._again_at:
            return None
        try:
            return (yield from asked)
        except ThreadkeepError as error:
            is_first = self._clock() >= self._again_at  # of those that were under way
            self._again_at = self._clock() + _PAUSE  # (before it is logged, which takes time)
            if is_first:
                _log.warning("The hot store is not used for %g seconds: %s", _PAUSE, error)
            return None


def _mark(generation: int | None) -> Segment:
    return Segment(_MARK_LOG, 0, 1, str(generation).encode())


def _sealed(segment: Segment) -> Segment:
    """Return the segment with a checksum: nobody else checks what a cache has made of it."""
    return segment._replace(data=segment.data + _checksum(segment, segment.data))


def _opened(kept: Segment) -> Segment | None:
    """Return the segment without its checksum; None if it is damaged."""
    data, checksum = kept.data[:-_CHECKSUM], kept.data[-_CHECKSUM:]
    return kept._replace(data=data) if checksum == _checksum(kept, data) else None


def _checksum(segment: Segment, data: bytes) -> bytes:
    place = f"{segment.log} {segment.start} {segment.count}".encode()
    return crc32(data, crc32(place)).to_bytes(_CHECKSUM, "big")
