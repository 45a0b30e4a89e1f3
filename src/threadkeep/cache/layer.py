"""Cache layer: segments in memory and in a hot store, in front of a backend.

Invariants: the head, and what is pending on it, always comes from the backend; only what was read
or committed under a generation is cached; a read that cannot be put together goes to the backend
whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from threadkeep.backends.base import Scrubbed
from threadkeep.backends.records import (
    Log,
    add,
    between,
    missing,
)
from threadkeep.cache.admission import (
    KEEP,
    Admission,
    HotTier,
    Verdict,
)
from threadkeep.cache.hot import Hot
from threadkeep.cache.lru import (
    Cache,
    Fresh,
    SegmentCache,
)
from threadkeep.cold.stubs import STUB
from threadkeep.engine.model import (
    Batch,
    Change,
    DropThread,
    Read,
    ReadCheckpoint,
    ReadSegments,
    Segment,
)
from threadkeep.engine.operation import (
    Commit,
    CommitMany,
    Fetch,
    Requests,
    fetch,
)
from threadkeep.errors import ThreadkeepError
from threadkeep.store.layer import CHANGES


class CacheLayer:
    """Cache of segments in front of a store: memory first, then the hot store.

    Args:
        cache: limits of the cache in memory, if there is one.
        hot: the cache that all processes share, if there is one.
        hot_tier: limits on the threads to cache; None for all threads.
        clock: gives seconds since 1970, for `hot_tier`.
    """

    handles = CHANGES | {Fetch, CommitMany}

    def __init__(
        self,
        cache: Cache | None,
        hot: Hot | None = None,
        hot_tier: HotTier | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._memory = None if cache is None else SegmentCache(cache)
        self._hot = hot
        self._admission = None if hot_tier is None else Admission(hot_tier, clock)

    def answer(self, request: Fetch | Commit | CommitMany) -> Requests[Any]:
        """See `Layer.answer`."""
        if isinstance(request, Fetch):
            return (yield from self._fetch(request))
        if isinstance(request, Commit):
            yield request
            yield from self._note(request.change)
            return None
        refusals: Sequence[ThreadkeepError | None] = yield request
        for change, refusal in zip(request.changes, refusals, strict=True):
            if refusal is None:
                yield from self._note(change)
        return refusals

    def _fetch(self, request: Fetch) -> Requests[Sequence[Any]]:
        reads = request.reads
        if len(reads) == 1 and isinstance(reads[0], ReadSegments):
            read = reads[0]
            if read.generation is not None:
                return [(yield from self._segments(read, read.generation))]
        replies: Sequence[Any] = yield request
        if self._admission is not None:
            yield from self._meet(self._admission, reads, replies)
        return replies

    def _meet(
        self, admission: Admission, reads: Sequence[Read], replies: Sequence[Any]
    ) -> Requests[None]:
        """Note which checkpoints were read."""
        for read, reply in zip(reads, replies, strict=True):
            if not isinstance(read, ReadCheckpoint) or reply.found is None:
                continue
            if admission.met(read, reply.found.row):
                yield from self._evict(read.thread)

    def _segments(self, read: ReadSegments, generation: int) -> Requests[list[Segment]]:
        logs: dict[int, Log] = {}
        taken: Sequence[Segment] = ()
        fetched: Sequence[Segment] = ()
        add(logs, self._memory.find(read) if self._memory is not None else ())
        rest = missing(logs, read.spans)
        if rest and self._hot is not None and self._may_be_shared(read.thread):
            taken = yield from self._hot.find(read._replace(spans=rest))
            add(logs, taken)
            rest = missing(logs, read.spans)
        if rest:
            fetched = yield from fetch(read._replace(spans=rest))
            add(logs, fetched)
        whole = between(logs, read.spans)
        if missing(logs, read.spans):
            whole = yield from fetch(read)
        yield from self._keep_read(Fresh(read.thread, generation, fetched), taken, whole)
        return list(whole)

    def _may_be_shared(self, thread: str) -> bool:
        return self._admission is None or self._admission.may_be_shared(thread)

    def _keep_read(
        self, fetched: Fresh, taken: Sequence[Segment], whole: Sequence[Segment]
    ) -> Requests[None]:
        """Cache what a read got from the store, and in memory what it got from the hot store."""
        verdict = KEEP if self._admission is None else self._admission.read(fetched, whole)
        near = whole if verdict.anew else [*taken, *fetched.segments]
        shared = whole if verdict.let_go else fetched.segments
        yield from self._keep(verdict, fetched._replace(segments=near), shared)

    def _note(self, change: Change) -> Requests[None]:
        """Cache what was just stored; evict what is gone."""
        if not isinstance(change, Batch) or change.bump or _drops_unnamed(change):
            if self._admission is not None and isinstance(change, DropThread):
                self._admission.forget(change.thread)
            yield from self._evict(change.thread)
            return
        verdict = KEEP if self._admission is None else self._admission.stored(change)
        fresh = Fresh(change.thread, 0, ())
        if change.generation is not None:
            segments, drops = change.segments, change.drop_segments
            fresh = Fresh(change.thread, change.generation, segments, drops)
        yield from self._keep(verdict, fresh, fresh.segments)

    def _keep(self, verdict: Verdict, near: Fresh, shared: Sequence[Segment]) -> Requests[None]:
        """Apply the verdict to segments for memory and for the hot store."""
        thread = near.thread
        if self._memory is not None and (verdict.anew or not verdict.keep):
            self._memory.clear(thread)
        if self._hot is not None and verdict.let_go:
            yield from self._hot.evict(thread)
        if not verdict.keep:
            return
        near, shared = near._replace(segments=_without_stubs(near.segments)), _without_stubs(shared)
        if self._memory is not None and (near.segments or near.drops):
            self._memory.keep(near)
        if self._hot is not None and (shared or near.drops):
            yield from self._hot.keep(near._replace(segments=shared))

    def _evict(self, thread: str) -> Requests[None]:
        if self._memory is not None:
            self._memory.clear(thread)
        if self._hot is not None:
            yield from self._hot.evict(thread)

    def clear(self, thread: str | None = None) -> Requests[None]:
        """Evict a thread, or all. Raises as `Hot.clear`."""
        if self._admission is not None:
            self._admission.forget(thread)
        if self._memory is not None:
            self._memory.clear(thread)
        if self._hot is not None:
            yield from self._hot.clear(thread)

    def scrub_hot(self) -> Requests[Scrubbed]:
        """Scrub the hot store, if there is one. Raises as it does."""
        return Scrubbed() if self._hot is None else (yield from self._hot.scrub())


def _drops_unnamed(batch: Batch) -> bool:
    """Return True if it drops segments under no generation: which are cached is unknown then."""
    return bool(batch.drop_segments) and batch.generation is None


def _without_stubs(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Return the segments that hold their own bytes: what a stub names may go when it does."""
    return [segment for segment in segments if not segment.data.startswith(STUB)]
