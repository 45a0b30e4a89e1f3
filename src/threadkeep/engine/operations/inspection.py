"""Looking into the store: what takes how much.

Only that lives here; whether it is sound is `checking`'s to say. Invariant: it goes thread by
thread, so that nothing large is held.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import cast

from threadkeep.codec.frame import unpack
from threadkeep.codec.references import references
from threadkeep.engine import elements
from threadkeep.engine.calls import Operation, fetch
from threadkeep.engine.elements import Elements
from threadkeep.engine.model import (
    FindThreads,
    ReadSegments,
    ReadSizes,
    ReadThread,
    Segment,
    Sizes,
    Span,
    ThreadRows,
    ThreadSize,
)
from threadkeep.engine.offloaded import STUB, place_of
from threadkeep.engine.operations.context import NO_CODEC, Keyframes, read_manifest
from threadkeep.engine.refs import Cell, Inline, Ref, Run, covering
from threadkeep.engine.rows import unpack_writes, visible

_PAGE = 256
EVERYTHING = 2**62
"""Behind every position of a log."""


# -- how much ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThreadStats:
    """One thread: its rows, its bytes, and what storing whole states would have taken.

    `channels` gives the bytes of values by channel, "" for the manifests' keyframes;
    a segment that several channels share counts for each by its elements. All in bytes.
    """

    thread: str
    checkpoints: int
    writes: int
    bytes: int
    full_copy_bytes: int
    channels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats:
    """The whole store, in bytes.

    `bytes_on_disk` includes the store's own overhead and free space; `full_copy_bytes` is
    what one whole, uncompressed copy of the state per checkpoint takes.
    """

    threads: int
    checkpoints: int
    bytes_on_disk: int
    full_copy_bytes: int
    by_thread: tuple[ThreadStats, ...]


def sizes(after: str | None) -> Operation[Sizes]:
    """A page of threads and their sizes."""
    reply = yield from fetch(ReadSizes(after, _PAGE))
    return cast("Sizes", reply)


def thread_names(after: str | None, limit: int) -> Operation[list[str]]:
    """The first ids, in their order, of threads that hold checkpoints, behind this one."""
    reply = yield from fetch(FindThreads(after, limit))
    return cast("list[str]", reply)


def all_sizes() -> Operation[Sizes]:
    """The sizes of all threads."""
    page = yield from sizes(None)
    threads = list(page.threads)
    while len(page.threads) == _PAGE:
        page = yield from sizes(threads[-1].thread)
        threads += page.threads
    return Sizes(page.total, tuple(threads))


def stats() -> Operation[Stats]:
    """What takes how much."""
    found = yield from all_sizes()
    threads: list[ThreadStats] = []
    for size in found.threads:
        one = yield from _thread_stats(size)
        threads.append(one)
    return Stats(
        threads=len(threads),
        checkpoints=sum([t.checkpoints for t in threads]),
        bytes_on_disk=found.total,
        full_copy_bytes=sum([t.full_copy_bytes for t in threads]),
        by_thread=tuple(threads),
    )


def _thread_stats(size: ThreadSize) -> Operation[ThreadStats]:
    reply = yield from fetch(ReadThread(size.thread))
    rows = cast("ThreadRows", reply)
    # (what was offloaded counts as the bytes that it takes in the cold store: nobody fetches all
    # of it to count)
    segments = yield from _all_segments(size.thread, rows)
    logs = _Logs(segments)
    channels: dict[str, set[Span]] = {}
    known: Keyframes = {}
    copies = 0
    for stored in rows.checkpoints:
        read, key = read_manifest(stored, known)
        channels.setdefault("", set()).add(Span(key.log, key.pos, key.pos + 1))
        for name, entry in read.entries.items():
            if entry.ref is not None:
                copies += logs.full_size(entry.ref)
                channels.setdefault(name, set()).update(entry.ref.needs)
        for row in stored.writes:
            for write in unpack_writes(row):
                channels.setdefault(write.channel, set()).update(write.ref.needs)
    return ThreadStats(
        thread=size.thread,
        checkpoints=len(visible(rows.checkpoints)),
        writes=size.writes,
        bytes=size.row_bytes + size.segment_bytes,
        full_copy_bytes=copies,
        channels={name: logs.stored_size(spans) for name, spans in channels.items() if spans},
    )


def _all_segments(thread: str, rows: ThreadRows) -> Operation[list[Segment]]:
    """The segments of all logs of a thread, with their data; of offloaded ones the stubs."""
    spans = tuple(Span(log, 0, EVERYTHING) for log in sorted({s.log for s in rows.segments}))
    if not spans:
        return []
    reply = yield from fetch(ReadSegments(thread, spans, stub=True))
    return cast("list[Segment]", reply)


class _Logs:
    """The sizes of all elements of a thread, summed up along each log; 0 for missing ones."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        full: dict[int, dict[int, int]] = {}
        stored: dict[int, dict[int, int]] = {}
        for segment in segments:
            share = len(segment.data) // segment.count
            for pos, size in enumerate(_full_sizes(segment), segment.start):
                full.setdefault(segment.log, {})[pos] = size
                stored.setdefault(segment.log, {})[pos] = share
        self._segments = [s for s in segments if not s.data.startswith(STUB)]
        self._full = {log: _Sums(sizes) for log, sizes in full.items()}
        self._stored = {log: _Sums(sizes) for log, sizes in stored.items()}
        self._known: dict[Ref, int] = {}

    @cached_property
    def _elements(self) -> Elements:
        return Elements(NO_CODEC, self._segments)

    def full_size(self, ref: Ref) -> int:
        """The bytes of a whole copy of the value, with what it refers to."""
        if isinstance(ref, Run):
            return _sum(self._full, ref.spans)
        if ref not in self._known:  # many checkpoints hold the same value
            self._known[ref] = self._single_size(ref)
        return self._known[ref]

    def _single_size(self, ref: Inline | Cell) -> int:
        if isinstance(ref, Cell):
            own = Span(ref.log, ref.pos, ref.pos + 1)
            if not ref.uses or self._elements.missing(ref.needs):
                return _sum(self._full, (own,))
            data = self._elements.raw(ref.log, ref.pos)
        else:
            data = ref.data
        # (`uses` would not do: patches need elements too, and they are not part of the value.)
        size = len(data)
        for log, pos, length, _ in references(data) if ref.uses else ():
            if _covers(ref.uses, log, pos):
                size += _sum(self._full, (Span(log, pos, pos + 1),)) - length
        return size

    def stored_size(self, spans: Iterable[Span]) -> int:
        """About how many stored bytes these positions take, each counted once."""
        return _sum(self._stored, covering(spans))


def _full_sizes(segment: Segment) -> list[int]:
    """The bytes of each element as it was made; of a stub's, those that are stored for it."""
    place = place_of(segment)
    if place is not None:
        return [place.size // segment.count] * segment.count
    return [elements.full_size(part) for part in unpack(segment.data)]


class _Sums:
    """Sums over ranges of positions."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self._places = sorted(sizes)
        self._sums = [0, *accumulate(sizes[pos] for pos in self._places)]

    def between(self, start: int, stop: int) -> int:
        first, last = bisect_left(self._places, start), bisect_left(self._places, stop)
        return self._sums[last] - self._sums[first]


_NOTHING = _Sums({})


def _sum(logs: Mapping[int, _Sums], spans: Iterable[Span]) -> int:
    return sum([logs.get(log, _NOTHING).between(start, stop) for log, start, stop in spans])


def _covers(spans: Sequence[Span], log: int, pos: int) -> bool:
    """Whether one of the spans, which are in order and apart, holds the position."""
    at = bisect_right(spans, (log, pos, EVERYTHING)) - 1
    return at >= 0 and spans[at].log == log and pos < spans[at].stop
