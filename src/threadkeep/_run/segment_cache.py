"""Cache layer: segments in memory and in a hot store, in front of a backend.

Invariants:

- The head and its pending writes always come from the backend.
- Only segments that were read or committed under a generation are cached.
- Cached segments are used only if the thread's row proves that the store still has them (see
  `_core.engine.tips`): the read names the tips that the row has just named.
- If cached and fetched segments do not cover a read, the backend answers the whole read.

The hot store is a Redis server that all processes share. It may be flushed, restarted, full or
down, and may evict any key. A missing segment, or one of another generation, is a cache miss. Only
`clear` and `scrub` raise errors of the hot store. After a failure it is not used for a few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from threadkeep._core.codec.frame import is_intact
from threadkeep._core.engine.cold_references import STUB
from threadkeep._core.engine.model import (
    Batch,
    Change,
    DropThread,
    ReadCheckpoint,
    ReadSegments,
    Segment,
    Span,
)
from threadkeep._core.engine.operation import Commit, CommitMany, Fetch, Operation, call, fetch
from threadkeep._core.engine.thread_summary import bytes_of
from threadkeep._core.engine.tips import BITS, MOST
from threadkeep._core.lru import Lru
from threadkeep._core.policies import HotTier, ReadCache
from threadkeep._core.validation import micros
from threadkeep._run.driver import CHANGES, Runner
from threadkeep._run.sealers import sealer_of
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.records import Log, add, between, missing
from threadkeep.errors import CodecError, SegmentTakenError, ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._core.sealing import Sealer
    from threadkeep._stores.store_keys import StoreKeys

_OVERHEAD = 200  # approximate bytes per segment in addition to its data


class Fresh(NamedTuple):
    """Segments of a thread that were just read or stored, and places of removed segments."""

    thread: str
    generation: int
    segments: Sequence[Segment]
    drops: Sequence[tuple[int, int, int]] = ()  # log, start, count
    base: Collection[int] = ()  # tips that the thread's row was seen to name
    tip: int = 0  # the last one; 0: unknown, so that nothing may be cached


@dataclass(slots=True)
class _CachedThread:
    generation: int
    tips: set[int] = field(default_factory=set)
    logs: dict[int, Log] = field(default_factory=dict)


class SegmentCache(ResetInChild):
    """LRU cache of segments. Each thread has cached segments of only one generation."""

    def __init__(self, how: ReadCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._how = how
        self._clock = clock
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        how = self._how
        self._threads: Lru[str, _CachedThread] = Lru(how.threads, how.bytes, how.ttl, self._clock)

    def find(self, read: ReadSegments) -> list[Segment]:
        """Return the cached segments that overlap the spans."""
        with self._lock:
            cached = self._threads.get(read.thread)
            if cached is None or cached.generation != read.generation:
                return []
            if not cached.tips.issubset(read.named):
                self._threads.drop(read.thread)
                return []
            cached.tips = {*read.named[:1]}
            return between(cached.logs, read.spans)

    def keep(self, fresh: Fresh) -> None:
        """Cache segments, and evict removed ones."""
        thread, generation, segments, drops, *_ = fresh
        with self._lock:
            cached = self._threads.get(thread)
            if cached is None or cached.generation != generation or len(cached.tips) > MOST:
                cached = self._threads.put(thread, _CachedThread(generation))
            # A tip that was not seen here stays, and `find` asks for it.
            cached.tips = cached.tips.difference(fresh.base) | {fresh.tip}
            gone: list[Segment] = []
            for log, start, count in drops:
                dropped = cached.logs[log].drop(start, count) if log in cached.logs else None
                gone += [dropped] if dropped is not None else []
            for segment in segments:
                gone += cached.logs.setdefault(segment.log, Log()).replace(segment)
            self._threads.weigh(thread, _size(segments) - _size(gone))

    def clear(self, thread: str | None = None, prefix: str = "") -> None:
        """Evict a thread, or all threads (None) that begin with `prefix`."""
        with self._lock:
            _drop(self._threads, thread, prefix)

    @property
    def size(self) -> int:
        """Approximate number of cached bytes."""
        return self._threads.size


def _drop(cached: Lru[str, Any], thread: str | None, prefix: str) -> None:
    """Drop a thread, or all threads (None) that begin with `prefix`."""
    for name in [*cached] if thread is None else [thread]:
        if name.startswith(prefix):
            cached.drop(name)


def _size(segments: Iterable[Segment]) -> int:
    return sum([len(segment.data) + _OVERHEAD for segment in segments])


class CacheLayer:
    """Cache of segments in front of a store: memory first, then the hot store."""

    handles = CHANGES | {Fetch, CommitMany}

    def __init__(
        self,
        cache: ReadCache | None,
        hot: Hot | None = None,
        hot_tier: HotTier | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._memory = None if cache is None else SegmentCache(cache)
        self._hot = hot
        self._admission = None if hot_tier is None else Admission(hot_tier, clock)
        self.hits = self.misses = 0  # segment reads without and with the store

    def answer(self, request: Fetch | Commit | CommitMany) -> Operation[Any]:
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

    def _fetch(self, request: Fetch) -> Operation[Sequence[Any]]:
        reads = request.reads
        if len(reads) == 1 and isinstance(reads[0], ReadSegments):
            read = reads[0]
            if read.generation is not None:
                return [(yield from self._segments(read, read.generation))]
        replies: Sequence[Any] = yield request
        if self._admission is not None:
            for one, reply in zip(reads, replies, strict=True):
                if isinstance(one, ReadCheckpoint) and reply.found is not None:
                    self._admission.note_checkpoint(one.thread, reply.found.row.ts)
        return replies

    def _segments(self, read: ReadSegments, generation: int) -> Operation[list[Segment]]:
        logs: dict[int, Log] = {}
        from_hot: Sequence[Segment] = ()
        fetched: Sequence[Segment] = ()
        add(logs, self._memory.find(read) if self._memory is not None else ())
        rest = missing(logs, read.spans)
        rule = self._admission
        if rest and self._hot is not None and (rule is None or rule.may_be_shared(read.thread)):
            from_hot = yield from self._hot.find(read._replace(spans=rest))
            add(logs, from_hot)
            rest = missing(logs, read.spans)
        if not rest:
            self.hits += 1
        else:
            self.misses += 1
            fetched = yield from fetch(read._replace(spans=rest))
            add(logs, fetched)
        whole = between(logs, read.spans)
        if missing(logs, read.spans):
            whole = yield from fetch(read)
        verdict = Verdict.CACHE if rule is None else rule.read(read.thread, whole, fetched)
        tip = read.named[0] if read.named else 0
        fresh = Fresh(read.thread, generation, [*from_hot, *fetched], (), read.named, tip)
        yield from self._keep(verdict, fresh, fetched)
        return list(whole)

    def _note(self, change: Change) -> Operation[None]:
        """Cache segments of a change that was just stored; evict removed segments."""
        # If segments are dropped without a generation, the whole thread must be evicted.
        rule = self._admission
        drops_unknown = isinstance(change, Batch) and (
            change.bump_generation or (change.drop_segments and change.generation is None)
        )
        if not isinstance(change, Batch) or drops_unknown:
            if rule is not None:
                (rule.forget if isinstance(change, DropThread) else rule.evicted)(change.thread)
            yield from self._evict(change.thread)
            return
        verdict = Verdict.CACHE if rule is None else rule.stored(change)
        fresh = Fresh(change.thread, 0, ())
        if change.generation is not None:
            own = (change.thread, change.generation, change.segments, change.drop_segments)
            fresh = Fresh(*own, change.base, change.tip)
        yield from self._keep(verdict, fresh, fresh.segments)

    def _keep(self, verdict: Verdict, near: Fresh, shared: Sequence[Segment]) -> Operation[None]:
        """Apply the verdict: `near` is cached in memory, `shared` in the hot store."""
        if verdict is Verdict.EVICT or (near.drops and not near.tip):
            yield from self._evict(near.thread)
        if verdict is not Verdict.CACHE or not near.tip:
            return
        near, shared = near._replace(segments=_without_stubs(near.segments)), _without_stubs(shared)
        if self._memory is not None and (near.segments or near.drops):
            self._memory.keep(near)
        if self._hot is not None and (shared or near.drops):
            yield from self._hot.keep(near._replace(segments=shared))

    def _evict(self, thread: str) -> Operation[None]:
        if self._memory is not None:
            self._memory.clear(thread)
        if self._hot is not None:
            yield from self._hot.evict(thread)

    def clear(self, thread: str | None = None, prefix: str = "") -> Operation[None]:
        """Evict a thread, or all threads (None) that begin with `prefix`.

        Raises if the hot store fails.
        """
        if self._admission is not None:
            self._admission.forget(thread, prefix)
        if self._memory is not None:
            self._memory.clear(thread, prefix)
        if self._hot is not None:
            yield from self._hot.clear(thread, prefix)

    def scrub_hot(self) -> Operation[ScrubReport]:
        """Scrub the hot store, if configured. Raises if the hot store fails."""
        return ScrubReport() if self._hot is None else (yield from self._hot.scrub())


def _without_stubs(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Return the segments without stubs: the object that a stub names may be deleted later."""
    return [segment for segment in segments if not segment.data.startswith(STUB)]


_PAUSE = 5.0  # seconds without calls to a server after it failed
_MARK_LOG = 2**62  # no log of a thread has this number
_MARKS = Span(_MARK_LOG, 0, 2**BITS)
_NO_MARK = Segment(_MARK_LOG, 0, 1, b"")
_log = logging.getLogger("threadkeep")


class Hot:
    """Segments by thread, with marks in each thread that name its generation and tips.

    A mark is a segment, stored together with the others; its position is the tip. Segments are used
    only if the thread's row names all marks, see `_core.engine.tips`. Each key begins with the
    identity of the main store, because several stores may use the same server.

    The keys of the main store seal the segments, for their place and generation.
    """

    def __init__(
        self,
        store: Runner,
        clock: Callable[[], float] = time.monotonic,
        keys: StoreKeys | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._keys = keys
        self._again_at = 0.0
        self._known = ""

    def _name(self, thread: str = "") -> Operation[str]:
        """Return the name of the thread in the hot store."""
        self._known = self._known or (yield from call("identity"))
        return f"{self._known}/{thread}"

    def find(self, read: ReadSegments) -> Operation[list[Segment]]:
        """Return the segments that overlap the spans, or none if any of them is damaged."""
        found: list[Segment] = (yield from self._reply(self._fetch(read))) or []
        marks = [segment for segment in found if segment.log == _MARK_LOG]
        if not all(one == _mark(read.generation, one.start) for one in marks) or not {
            one.start for one in marks
        }.issubset(read.named):
            yield from self.evict(read.thread)
            marks = []
        if not marks:
            return []
        # A server that is short of memory may have evicted the data but not the index entry.
        segments = [segment for segment in found if segment.data and segment.log != _MARK_LOG]
        try:
            seal = yield from self._seal(read.thread, read.generation)
            segments = [one._replace(data=seal.open(one)) for one in segments]
        except CodecError:
            segments = [_NO_MARK]
        if not all(is_intact(segment.data) for segment in segments):
            yield from self.evict(read.thread)
            return []
        yield from self._renew(read, [one.start for one in marks])
        return segments

    def _renew(self, read: ReadSegments, tips: Sequence[int]) -> Operation[None]:
        """Replace marks that the thread's row will soon no longer name."""
        if read.generation is not None and not {*tips}.issubset(read.named[: MOST // 2]):
            fresh = Fresh(read.thread, read.generation, (), (), tips, read.named[0])
            yield from self.keep(fresh)

    def _seal(self, thread: str, generation: int | None) -> Operation[_HotSeal]:
        name = yield from self._name(thread)
        sealer = None
        if self._keys is not None:
            sealer = yield from sealer_of(self._keys, "of", thread, is_thread=True)
        return _HotSeal(sealer, name, str(generation))

    def _fetch(self, read: ReadSegments) -> Operation[list[Segment]]:
        name = yield from self._name(read.thread)
        (found,) = yield self._store.external("fetch", [ReadSegments(name, (_MARKS, *read.spans))])
        return list(found)

    def keep(self, fresh: Fresh) -> Operation[None]:
        """Store segments, and evict removed ones."""
        if (yield from self._reply(self._commit(fresh))) is False:
            yield from self.evict(fresh.thread)
            yield from self._reply(self._commit(fresh))

    def _commit(self, fresh: Fresh) -> Operation[bool]:
        """Store segments; return False if other data is in their place."""
        name = yield from self._name(fresh.thread)
        seal = yield from self._seal(fresh.thread, fresh.generation)
        sealed = [one._replace(data=seal.seal(one)) for one in fresh.segments]
        marked = (_mark(fresh.generation, fresh.tip), *sealed)
        old = [(_MARK_LOG, tip, 1) for tip in fresh.base if tip != fresh.tip]
        batch = Batch(name, 0, segments=marked, drop_segments=(*old, *fresh.drops))
        try:
            yield self._store.external("commit", batch)
        except SegmentTakenError:
            return False
        return True

    def evict(self, thread: str) -> Operation[None]:
        """Evict a thread if the server is reachable; if not, its mark makes it stale."""
        yield from self._reply(self.clear(thread))

    def clear(self, thread: str | None = None, prefix: str = "") -> Operation[None]:
        """Evict a thread, or all threads (None) that begin with `prefix`."""
        name = yield from self._name(prefix if thread is None else thread)
        if thread is None:
            yield self._store.external("clear", name)
        else:
            yield self._store.external("commit", DropThread(name, 0))

    def scrub(self) -> Operation[ScrubReport]:
        """Scrub the files of the server. Raises if the server fails."""
        found = yield self._store.external("scrub", rewrite=False)
        return ScrubReport(
            tuple([f"the hot store: {one}" for one in found.cleared]),
            tuple([f"The hot store: {one}" for one in found.remains]),
        )

    def _reply(self, requests: Operation[Any]) -> Operation[Any]:
        """Return the server's reply, or None if the server fails now or failed recently."""
        if self._clock() < self._again_at:
            return None
        try:
            return (yield from requests)
        except ThreadkeepError as error:
            is_first = self._clock() >= self._again_at  # of several concurrent calls
            self._again_at = self._clock() + _PAUSE  # before logging, which takes time
            if is_first:
                _log.warning("Hot store disabled for %g seconds: %s", _PAUSE, error)
            return None


class _HotSeal(NamedTuple):
    """Seals and opens segments of a thread and generation in the hot store."""

    sealer: Sealer | None
    name: str
    generation: str

    def seal(self, segment: Segment) -> bytes:
        if self.sealer is None:
            return segment.data
        return self.sealer.seal(segment.data, self._place(segment), self.sealer.group(self.name))

    def open(self, segment: Segment) -> bytes:
        if self.sealer is None:
            return segment.data
        return self.sealer.open(segment.data, self._place(segment), [self.sealer.group(self.name)])

    def _place(self, segment: Segment) -> bytes:
        assert self.sealer is not None  # noqa: S101 - see above
        return self.sealer.place("hot", self.name, self.generation, *segment[:3])


def _mark(generation: int | None, tip: int) -> Segment:
    return Segment(_MARK_LOG, tip, 1, str(generation).encode())


# -- Which threads the hot store keeps -----------------------------------------------


_THREADS = 10_000  # threads with statistics


class Verdict(Enum):
    """Decision about segments of a thread that were just read or stored."""

    CACHE = auto()
    SKIP = auto()
    EVICT = auto()
    """Do not cache the segments, and evict the thread."""


@dataclass(slots=True)
class _Counts:
    reads: deque[int]  # times of the latest reads
    written: int = 0  # microseconds since 1970
    size: int = 0  # cached bytes, or the bytes that caching would take
    is_cached: bool = False


class Admission(ResetInChild):
    """Statistics of threads, and caching decisions by a `HotTier`."""

    def __init__(self, how: HotTier, clock: Callable[[], float] = time.time) -> None:
        self._age, self._most = micros(how.max_age), how.max_bytes
        self._min_reads = how.min_reads or 0
        self._clock = clock
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._threads: Lru[str, _Counts] = Lru(_THREADS)

    def note_checkpoint(self, thread: str, ts: int | str) -> None:
        """Record the time of a checkpoint that was read."""
        with self._lock:
            _note_time(self._known(thread), ts)

    def read(self, thread: str, whole: Sequence[Segment], fresh: Sequence[Segment]) -> Verdict:
        """Record a read: all its segments, and those that were not cached."""
        with self._lock:
            known = self._known(thread)
            known.reads.append(self._now())
            alone = bytes_of(whole)
            if not known.is_cached or not self._fits(alone):
                known.size = alone
                return self._judge(known)
            known.size = max(known.size + bytes_of(fresh), alone)
            return self._judge(known)

    def stored(self, batch: Batch) -> Verdict:
        """Record a stored batch.

        With `min_reads`, a store adds no statistics for a new thread. Otherwise a large import
        would push out the statistics of all other threads.
        """
        with self._lock:
            if self._min_reads and self._threads.get(batch.thread) is None:
                return Verdict.SKIP
            known = self._known(batch.thread)
            for row in batch.checkpoints:
                _note_time(known, row.ts)
            if batch.writes and not batch.checkpoints:
                _note_time(known, batch.now)
            known.size += bytes_of(batch.segments)
            return self._judge(known)

    def evicted(self, thread: str) -> None:
        """Record that a thread was evicted."""
        with self._lock:
            known = self._threads.get(thread)
            if known is not None:
                known.size, known.is_cached = 0, False

    def forget(self, thread: str | None, prefix: str = "") -> None:
        """Drop the statistics of a thread, or of all threads (None) that begin with `prefix`."""
        with self._lock:
            _drop(self._threads, thread, prefix)

    def may_be_shared(self, thread: str) -> bool:
        """Return True if another process with the same statistics may cache the thread."""
        with self._lock:
            known = self._threads.get(thread)
            return known is None or (self._is_young(known) and self._fits(known.size))

    def _judge(self, known: _Counts) -> Verdict:
        was_cached = known.is_cached
        if not self._is_young(known) or not self._fits(known.size):
            known.is_cached = False
            return Verdict.EVICT if was_cached else Verdict.SKIP
        if not self._is_read_often(known):  # no eviction: other processes may read it more often
            return Verdict.SKIP
        known.is_cached = True
        return Verdict.CACHE

    def _fits(self, size: int) -> bool:
        return self._most is None or size <= self._most

    def _is_young(self, known: _Counts) -> bool:
        return self._age is None or self._now() - known.written < self._age

    def _is_read_often(self, known: _Counts) -> bool:
        if len(known.reads) < self._min_reads:
            return False
        return self._age is None or not known.reads or self._now() - known.reads[0] < self._age

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    def _known(self, thread: str) -> _Counts:
        known = self._threads.get(thread)
        return known or self._threads.put(thread, _Counts(deque(maxlen=self._min_reads)))


def _note_time(known: _Counts, ts: int | str) -> None:
    known.written = max(known.written, 0 if isinstance(ts, str) else ts)
