"""Statistics of the store: what takes how much, thread by thread."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias, cast

from threadkeep.codec.frame import unpack
from threadkeep.codec.introspection import references
from threadkeep.engine import elements
from threadkeep.engine.cold_references import (
    STUB,
    location_of,
)
from threadkeep.engine.context import NO_CODEC, Keyframes, read_manifest
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
)
from threadkeep.engine.operation import Operation, fetch
from threadkeep.engine.refs import Cell, Inline, Ref, Run, covering
from threadkeep.engine.rows import unpack_writes, visible

_PAGE = 256
EVERYTHING = 2**62
"""Behind every position of a log."""


# -- how much ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThreadStats:
    """One thread: the number of its rows, and the bytes of their contents and its segments.

    Bytes are counted as in `ThreadInfo.bytes`: without what the store adds (ids, indexes, pages).
    What several parts share counts for the first of them, and what several threads share (forks)
    for the first that refers to it.

    Attributes:
        thread: its id.
        checkpoints: how many it has, without hidden ones.
        writes: how many rows of pending writes.
        bytes: the sum of all parts.
        full_copy_bytes: what one whole, uncompressed copy of the state per checkpoint takes.
        channels: stored values, by channel.
        manifests: what checkpoints say of channels, with the small values among them.
        pending_writes: pending writes, and the values that only they refer to.
        metadata: the checkpoints' metadata.
        unreferenced: what nothing refers to any more.
    """

    thread: str
    checkpoints: int
    writes: int
    bytes: int
    full_copy_bytes: int
    channels: dict[str, int] = field(default_factory=dict)
    manifests: int = 0
    pending_writes: int = 0
    metadata: int = 0
    unreferenced: int = 0


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
    """Return a page of threads and their sizes."""
    reply = yield from fetch(ReadSizes(after, _PAGE))
    return cast("Sizes", reply)


def thread_names(after: str | None, limit: int) -> Operation[list[str]]:
    """Return the first ids behind this one, in order, of threads that hold checkpoints."""
    reply = yield from fetch(FindThreads(after, limit))
    return cast("list[str]", reply)


def all_sizes() -> Operation[Sizes]:
    """Return the sizes of all threads."""
    page = yield from sizes(None)
    threads = list(page.threads)
    while len(page.threads) == _PAGE:
        page = yield from sizes(threads[-1].thread)
        threads += page.threads
    return Sizes(page.total, tuple(threads))


def stats() -> Operation[Stats]:
    """Return the statistics of the store."""
    found = yield from all_sizes()
    threads: list[ThreadStats] = []
    families: dict[frozenset[str], list[Span]] = {}
    for size in found.threads:
        one = yield from _thread_stats(size.thread, families)
        threads.append(one)
    return Stats(
        threads=len(threads),
        checkpoints=sum([t.checkpoints for t in threads]),
        bytes_on_disk=found.total,
        full_copy_bytes=sum([t.full_copy_bytes for t in threads]),
        by_thread=tuple(threads),
    )


def _thread_stats(
    thread: str, families: dict[frozenset[str], list[Span]]
) -> Operation[ThreadStats]:
    """Count one thread; add to `families` what it refers to of what it shares with others."""
    reply = yield from fetch(ReadThread(thread))
    rows = cast("ThreadRows", reply)
    # (what was offloaded counts as the bytes that it takes in the cold store: nobody fetches all
    # of it to count)
    spans = tuple(Span(log, 0, EVERYTHING) for log in sorted({s.log for s in rows.segments}))
    segments: list[Segment] = []
    if spans:
        segments = yield from fetch(ReadSegments(thread, spans, stub=True))
    logs = _Logs(segments)
    taken = families.setdefault(frozenset((thread, *rows.family)), []) if rows.family else []
    logs.take(taken)
    needs, copies = _needs(rows, logs)
    parts = {name: logs.take(spans) for name, spans in needs.items()}
    taken += covering([span for spans in needs.values() for span in spans])
    is_last = all(thread > other for other in rows.family)
    checkpoints = [stored.row for stored in rows.checkpoints]
    writes = [*rows.orphans, *(row for stored in rows.checkpoints for row in stored.writes)]
    sizes = {
        "manifests": parts.pop(_KEYFRAMES) + sum([len(row.manifest) for row in checkpoints]),
        "pending_writes": parts.pop(_WRITES) + sum([len(row.body) for row in writes]),
        "metadata": sum([len(row.metadata) + len(row.exact or b"") for row in checkpoints]),
        "unreferenced": logs.rest() if is_last else 0,
    }
    return ThreadStats(
        thread=thread,
        checkpoints=len(visible(rows.checkpoints)),
        writes=len(writes),
        bytes=sum([*parts.values(), *sizes.values()]),
        full_copy_bytes=copies,
        channels={name: size for (name,), size in parts.items() if size},
        **sizes,
    )


_Part: TypeAlias = tuple[str, ...]  # of a channel its name
_KEYFRAMES: _Part = ()
_WRITES: _Part = ("", "")


def _needs(rows: ThreadRows, logs: _Logs) -> tuple[dict[_Part, set[Span]], int]:
    """Return the positions that each part of a thread refers to, and the size of whole copies.

    In the order in which they are counted: LangGraph's own channels after those of the graph.
    """
    channels: dict[str, set[Span]] = {}
    keyframes: set[Span] = set()
    known: Keyframes = {}
    copies = 0
    for stored in rows.checkpoints:
        read, key = read_manifest(stored, known)
        keyframes.add(Span(key.log, key.pos, key.pos + 1))
        for name, entry in read.entries.items():
            if entry.ref is not None:
                copies += logs.full_size(entry.ref)
                channels.setdefault(name, set()).update(entry.ref.needs)
    writes = [*rows.orphans, *(row for stored in rows.checkpoints for row in stored.writes)]
    ordered = sorted(channels, key=lambda name: (name.startswith("__"), name))
    return {
        _KEYFRAMES: keyframes,
        **{(name,): channels[name] for name in ordered},
        _WRITES: {span for row in writes for w in unpack_writes(row) for span in w.ref.needs},
    }, copies


class _Logs:
    """The sizes of all elements of a thread, summed up along each log; 0 for missing ones."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        full: dict[int, dict[int, int]] = {}
        self._left: dict[int, dict[int, int]] = {}
        for segment in segments:
            sizes = full.setdefault(segment.log, {})
            sizes.update(enumerate(_full_sizes(segment), segment.start))
            # (the stored bytes, in equal shares for its positions)
            size, count = len(segment.data), segment.count
            shares = [size * (at + 1) // count - size * at // count for at in range(count)]
            self._left.setdefault(segment.log, {}).update(enumerate(shares, segment.start))
        self._places = {log: sorted(sizes) for log, sizes in self._left.items()}
        self._segments = [s for s in segments if not s.data.startswith(STUB)]
        self._full = {log: _Sums(sizes) for log, sizes in full.items()}
        self._known: dict[Ref, int] = {}

    @cached_property
    def _elements(self) -> Elements:
        return Elements(NO_CODEC, self._segments)

    def full_size(self, ref: Ref) -> int:
        """Return the bytes of a whole copy of the value, with what it refers to."""
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

    def take(self, spans: Iterable[Span]) -> int:
        """Return the stored bytes of these positions, about, as far as they were not taken yet."""
        taken = 0
        for log, start, stop in covering(spans):
            places, left = self._places.get(log, []), self._left.get(log, {})
            for pos in places[bisect_left(places, start) : bisect_left(places, stop)]:
                taken += left.pop(pos, 0)
        return taken

    def rest(self) -> int:
        """Return how many bytes were not taken."""
        return sum([sum(left.values()) for left in self._left.values()])


def _full_sizes(segment: Segment) -> list[int]:
    """Return the bytes of each element as it was made; of a stub, those stored for it."""
    place = location_of(segment)
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


def _sum(logs: Mapping[int, _Sums], spans: Iterable[Span]) -> int:
    return sum([logs[log].between(start, stop) for log, start, stop in spans if log in logs])


def _covers(spans: Sequence[Span], log: int, pos: int) -> bool:
    """Return True if one of the spans, which are in order and apart, holds the position."""
    at = bisect_right(spans, (log, pos, EVERYTHING)) - 1
    return at >= 0 and spans[at].log == log and pos < spans[at].stop
