"""Segments kept in a Redis that all processes share.

Only what is asked of it, and when it is left alone, lives here. Invariants: the server may be
flushed, restarted, full or absent, and may drop any key by itself: what it does not have, or
has of another generation, is not there, and nothing is raised for it (but to who clears it
on purpose); one that failed is left alone for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol
from zlib import crc32

from threadkeep.backends.base import Backend, ScrubbingBackend
from threadkeep.backends.scrubbed import Scrubbed
from threadkeep.cache.segments import Fresh
from threadkeep.engine.model import Batch, DropThread, ReadSegments, Segment, Span
from threadkeep.engine.operation import (
    Requests,
    call,
)
from threadkeep.errors import SegmentTakenError, ThreadkeepError

_PAUSE = 5.0  # seconds that a server which failed is left alone
_MARK_LOG = 2**62  # no log of a thread has this number
_CHECKSUM = 4  # bytes
_MARK = Span(_MARK_LOG, 0, 1)
_log = logging.getLogger("threadkeep")


class HotStore(Backend, ScrubbingBackend, Protocol):
    """A store that can be emptied."""

    def clear(self, beginning: str) -> None:
        """Remove all threads whose id begins so."""


class Hot:
    """Segments by thread, each thread under a mark that says of which generation they are.

    The mark is a segment too, stored together with others: where one of another generation
    is there, the store refuses them all. A thread's id begins with the name of the store that
    it is of, as others may use the same server.

    Args:
        store: the faces of a `HotStore`.
        clock: gives seconds.
    """

    def __init__(self, store: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._again_at = 0.0
        self._known = ""

    def _name(self, thread: str = "") -> Requests[str]:
        """Name of the thread here."""
        self._known = self._known or (yield from call("identity"))
        return f"{self._known}/{thread}"

    def find(self, read: ReadSegments) -> Requests[list[Segment]]:
        """Those kept that overlap the spans; nothing where anything of them is damaged."""
        found = (yield from self._said(self._asked(read))) or []
        # (A server that is short of memory may have dropped the bytes and not the place.)
        opened = [_opened(s) for s in found if s.data]
        if None in opened:
            yield from self.let_go(read.thread)
            return []
        segments = [s for s in opened if s is not None]
        if _mark(read.generation) not in segments:
            return []
        return [s for s in segments if s.log != _MARK_LOG]

    def _asked(self, read: ReadSegments) -> Requests[list[Segment]]:
        asked = ReadSegments((yield from self._name(read.thread)), (_MARK, *read.spans))
        (found,) = yield from call("fetch", [asked], of=self._store)
        return list(found)

    def keep(self, fresh: Fresh) -> Requests[None]:
        """Keep segments, and let go of those that are gone."""
        if (yield from self._said(self._stored(fresh))) is False:
            yield from self.let_go(fresh.thread)
            yield from self._said(self._stored(fresh))

    def _stored(self, fresh: Fresh) -> Requests[bool]:
        """Whether it was; not where something else is in its place."""
        marked = tuple(map(_sealed, (_mark(fresh.generation), *fresh.segments)))
        name = yield from self._name(fresh.thread)
        batch = Batch(name, 0, segments=marked, drop_segments=tuple(fresh.drops))
        try:
            yield from call("commit", batch, of=self._store)
        except SegmentTakenError:
            return False
        return True

    def let_go(self, thread: str) -> Requests[None]:
        """Let go of a thread, if the server can be reached: what it has is stale by its mark."""
        yield from self._said(self.clear(thread))

    def clear(self, thread: str | None = None) -> Requests[None]:
        """Let go of a thread, or of all of them.

        Raises:
            ThreadkeepError: the server, or the store that it stands in front of, failed.
        """
        name = yield from self._name(thread or "")
        if thread is None:
            yield from call("clear", name, of=self._store)
        else:
            yield from call("commit", DropThread(name, 0), of=self._store)

    def scrub(self) -> Requests[Scrubbed]:
        """Leave nothing in its files of what it has let go. Raises as it does."""
        found = yield from call("scrub", of=self._store, rewrite=False)
        return Scrubbed(
            tuple([f"the hot store: {one}" for one in found.cleared]),
            tuple([f"The hot store: {one}" for one in found.remains]),
        )

    def _said(self, asked: Requests[Any]) -> Requests[Any]:
        """The server's reply; None where it has none."""
        if self._clock() < self._again_at:
            return None
        try:
            return (yield from asked)
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
    return segment._replace(data=segment.data + _checksum(segment, segment.data))


def _opened(kept: Segment) -> Segment | None:
    """The segment that was kept; None where it is damaged."""
    data, checksum = kept.data[:-_CHECKSUM], kept.data[-_CHECKSUM:]
    return kept._replace(data=data) if checksum == _checksum(kept, data) else None


def _checksum(segment: Segment, data: bytes) -> bytes:
    place = f"{segment.log} {segment.start} {segment.count}".encode()
    return crc32(data, crc32(place)).to_bytes(_CHECKSUM, "big")
