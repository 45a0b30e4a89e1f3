"""Sizes of threads, part by part, and counts of stores that do not count themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import cast

from threadkeep._core.codec.frame import MAX_BODY, unpack
from threadkeep._core.codec.introspection import references
from threadkeep._core.engine import elements
from threadkeep._core.engine.cold_references import STUB, location_of
from threadkeep._core.engine.context import NO_CODEC, Keyframes, read_manifest
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import by_log, touches
from threadkeep._core.engine.model import (
    OWN_NS,
    ReadSegments,
    ReadSizes,
    ReadThread,
    ScanCheckpoints,
    Segment,
    Sizes,
    Span,
    StoredCheckpoint,
    StoredThreadSize,
    ThreadRows,
)
from threadkeep._core.engine.operation import Operation, fetch
from threadkeep._core.engine.refs import Cell, Inline, Ref, Run, covering, length
from threadkeep._core.engine.registration import of_all
from threadkeep._core.engine.rows import unpack_writes, visible
from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS, ThreadQuery
from threadkeep._core.engine.usage import DAY, ReadUsage, StoreUsage, ThreadUsage, usage_of
from threadkeep.errors import CorruptionError

_PAGE = 5000
_MAX_SCANNED = 10_000
EVERYTHING = 2**62
"""Greater than every position of a log."""


@dataclass(frozen=True, slots=True)
class ThreadStats:
    """One thread: the number of its rows, and the bytes of their contents and its segments.

    Bytes are counted as in `ThreadInfo.bytes`, without the store's overhead (ids, indexes, pages).
    Bytes shared by several parts count for the first of them; bytes shared by several threads
    (forks) count for the first thread that refers to them.

    Attributes:
        thread: its id.
        checkpoints: their number, without hidden ones.
        writes: rows of pending writes.
        bytes: the sum of all parts.
        full_copy_bytes: bytes of one whole, uncompressed copy of the state per checkpoint.
        compression_saved: bytes that compression saves in its segments.
        channels: bytes of stored values, by channel.
        manifests: bytes of the checkpoints' manifests, with the small values in them.
        pending_writes: bytes of pending writes, and of values that only they refer to.
        metadata: bytes of the checkpoints' metadata.
        unreferenced: bytes that nothing refers to.
        weight: the number of threads of its size that it represents, in a sample.
    """

    thread: str
    checkpoints: int
    writes: int
    bytes: int
    full_copy_bytes: int
    compression_saved: int = 0
    channels: dict[str, int] = field(default_factory=dict)
    manifests: int = 0
    pending_writes: int = 0
    metadata: int = 0
    unreferenced: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel, of all threads and namespaces.

    Attributes:
        name: the channel.
        bytes: bytes of its stored values, without small ones (they are in the manifests).
        full_copy_bytes: bytes of one whole, uncompressed copy of its value per checkpoint.
        changes: number of changes of its value.
        longest: the largest number of items of its value; 0 if it is stored as one value.
    """

    name: str
    bytes: int = 0
    full_copy_bytes: int = 0
    changes: int = 0
    longest: int = 0


def all_sizes() -> Operation[Sizes]:
    """Return the sizes of all threads except threadkeep's own."""
    found: list[StoredThreadSize] = []
    total = 0
    while True:
        after = found[-1].thread if found else None
        page = cast("Sizes", (yield from fetch(ReadSizes(after, _PAGE))))
        found += page.threads
        total = max(total, page.total)
        if len(page.threads) < _PAGE:
            total = max(total, sum([one.row_bytes + one.segment_bytes for one in found]))
            others = [one for one in found if not one.thread.startswith(OWN_NS)]
            return Sizes(total, tuple(others))


def usage(read: ReadUsage, *, counts_usage: bool) -> Operation[StoreUsage]:
    """Count a store: by the backend if it `counts_usage`, else from its other reads."""
    if counts_usage:
        return cast("StoreUsage", (yield from fetch(read)))
    found = yield from all_sizes()
    in_use = yield from of_all(ThreadQuery(states=WITH_CHECKPOINTS), lambda entry: entry)
    entries = {entry.thread: entry for entry in in_use}
    recent, notes = yield from _recent(read.now - DAY)
    per_thread = Counter([thread for thread, _ in recent])
    threads = [
        ThreadUsage(
            one.thread,
            entry.size,
            one.checkpoints,
            one.writes,
            per_thread[one.thread],
            entry.updated_at,
        )
        for one in found.threads
        if (entry := entries.get(one.thread)) is not None
    ]
    return usage_of(read, found.total, threads, recent, notes)


def _recent(since: int) -> Operation[tuple[list[tuple[str, int]], tuple[str, ...]]]:
    """Return the threads and times of checkpoints since a time, and a note if there are more.

    Ids grow with time, so a page of older ones is the last.
    """
    found: list[tuple[str, int]] = []
    after: tuple[str, str, str] | None = None
    while True:
        reply = yield from fetch(ScanCheckpoints(None, None, None, None, {}, after, _PAGE))
        page = [(one.thread, one.row) for one in cast("list[StoredCheckpoint]", reply)]
        new = [
            (thread, row.ts) for thread, row in page if isinstance(row.ts, int) and row.ts >= since
        ]
        found += new
        if not new or len(page) < _PAGE:
            return found, ()
        if len(found) >= _MAX_SCANNED:
            return found, (f"of the last 24 hours, the newest {_MAX_SCANNED:,} checkpoints",)
        after = page[-1][1].id, page[-1][0], page[-1][1].ns


def thread_stats(
    thread: str, families: dict[frozenset[str], tuple[Span, ...]]
) -> Operation[tuple[ThreadStats, list[ChannelStats]]]:
    """Count one thread; add the shared spans that it refers to to `families`."""
    rows = cast("ThreadRows", (yield from fetch(ReadThread(thread))))
    # (offloaded bytes are counted by their stubs, without fetching them from the cold store)
    spans = tuple([Span(log, 0, EVERYTHING) for log in sorted({s.log for s in rows.segments})])
    segments: list[Segment] = []
    if spans:
        segments = yield from fetch(ReadSegments(thread, spans, stub=True))
    logs = _Logs(segments)
    family = frozenset((thread, *rows.family))
    logs.count(families.get(family, ()))
    checkpoints = [stored.row for stored in rows.checkpoints]
    writes = [*rows.orphans, *(row for stored in rows.checkpoints for row in stored.writes)]
    keyframes, channels = _channels(rows.checkpoints, logs)
    manifests = keyframes + sum([len(row.manifest) for row in checkpoints])
    pending = logs.count(
        [span for row in writes for w in unpack_writes(row) for span in w.ref.needs]
    )
    pending += sum([len(row.body) for row in writes])
    metadata = sum([len(row.metadata) + len(row.exact or b"") for row in checkpoints])
    unreferenced = logs.rest() if thread == max(family) else 0
    if rows.family:
        families[family] = logs.counted
    stored = {one.name: one.bytes for one in channels if one.bytes}
    found = ThreadStats(
        thread,
        checkpoints=len(visible(rows.checkpoints)),
        writes=len(writes),
        bytes=manifests + sum(stored.values()) + pending + metadata + unreferenced,
        full_copy_bytes=sum([one.full_copy_bytes for one in channels]),
        compression_saved=max(logs.compressed, 0) if thread == min(family) else 0,
        channels=stored,
        manifests=manifests,
        pending_writes=pending,
        metadata=metadata,
        unreferenced=unreferenced,
    )
    return found, channels


def _channels(
    checkpoints: Iterable[StoredCheckpoint], logs: _Logs
) -> tuple[int, list[ChannelStats]]:
    """Count the bytes of the keyframes, and the channels (LangGraph's own last)."""
    needs: defaultdict[str, set[Span]] = defaultdict(set)
    full, changes, longest = Counter[str](), Counter[str](), Counter[str]()
    last: dict[tuple[str, str], Ref] = {}
    keyframes: set[Span] = set()
    known: Keyframes = {}
    for stored in checkpoints:
        read, key = read_manifest(stored, known)
        keyframes.add(Span(key.log, key.pos, key.pos + 1))
        for name, entry in read.entries.items():
            if (ref := entry.ref) is None:
                continue
            needs[name].update(ref.needs)
            full[name] += logs.full_size(ref)
            if last.get((stored.row.ns, name)) != ref:
                last[stored.row.ns, name] = ref
                changes[name] += 1
                if isinstance(ref, Run):
                    longest[name] = max(longest[name], length(ref.spans))
    names = sorted(needs, key=lambda name: (name.startswith("__"), name))
    # Bytes shared by several parts count for the first of them.
    return logs.count(keyframes), [
        ChannelStats(name, logs.count(needs[name]), full[name], changes[name], longest[name])
        for name in names
    ]


class _Logs:
    """The sizes of all elements of a thread, summed up along each log; 0 for missing ones."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        full: defaultdict[int, dict[int, int]] = defaultdict(dict)
        shares: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.compressed = 0
        for segment in segments:
            own, uncompressed = _full_sizes(segment)
            full[segment.log].update(enumerate(own, segment.start))
            self.compressed += uncompressed - len(segment.data)
            # (the stored bytes, divided equally among its positions)
            size, count = len(segment.data), segment.count
            equal = [size * (at + 1) // count - size * at // count for at in range(count)]
            shares[segment.log].update(enumerate(equal, segment.start))
        self._segments = [s for s in segments if not s.data.startswith(STUB)]
        self._full = _Sums(full)
        self._shares = _Sums(shares)
        self._known: dict[Ref, int] = {}
        self.counted: tuple[Span, ...] = ()
        self._bytes = 0  # of these

    @cached_property
    def _elements(self) -> Elements:
        return Elements(NO_CODEC, self._segments)

    def full_size(self, ref: Ref) -> int:
        """Return the bytes of a whole copy of the value, with the elements it refers to."""
        if isinstance(ref, Run):
            return self._full.over(ref.spans)
        if ref not in self._known:  # many checkpoints hold the same value
            self._known[ref] = self._single_size(ref)
        return self._known[ref]

    def _single_size(self, ref: Inline | Cell) -> int:
        if isinstance(ref, Cell):
            own = Span(ref.log, ref.pos, ref.pos + 1)
            if not ref.uses or self._elements.missing(ref.needs):
                return self._full.over((own,))
            data = self._elements.raw(ref.log, ref.pos)
        else:
            data = ref.data
        # (Not just `uses`: patches need elements that are not part of the value.)
        size, used = len(data), by_log(ref.uses)
        for log, pos, marker, _ in references(data) if used else ():
            part = Span(log, pos, pos + 1)
            if touches(used, part):
                size += self._full.over((part,)) - marker
        return size

    def count(self, spans: Iterable[Span]) -> int:
        """Estimate the stored bytes of these positions, without those counted before."""
        before = self._bytes
        self.counted = covering((*self.counted, *spans))
        self._bytes = self._shares.over(self.counted)
        return self._bytes - before

    def rest(self) -> int:
        """Return the stored bytes that were not counted."""
        return self._shares.total - self._bytes


def _full_sizes(segment: Segment) -> tuple[list[int], int]:
    """Return the uncompressed bytes of each element, and of all of them as stored.

    For a stub, the bytes of its segment in the cold store.
    """
    place = location_of(segment)
    if place is not None:
        if not 0 < segment.count <= MAX_BODY:  # (an element has a byte or more)
            raise CorruptionError("A stored segment holds a wrong number of elements.")
        return [place.size // segment.count] * segment.count, len(segment.data)
    parts = unpack(segment.data, segment.count)
    return [elements.full_size(part) for part in parts], sum(map(len, parts))


class _Sums:
    """Sums over ranges of positions, by log."""

    def __init__(self, sizes: Mapping[int, dict[int, int]]) -> None:
        self._places = {log: sorted(own) for log, own in sizes.items()}
        self._sums = {
            log: [0, *accumulate([sizes[log][pos] for pos in places])]
            for log, places in self._places.items()
        }
        self.total = sum([sums[-1] for sums in self._sums.values()])

    def over(self, spans: Iterable[Span]) -> int:
        total = 0
        for log, start, stop in spans:
            places, sums = self._places.get(log, ()), self._sums.get(log, (0,))
            total += sums[bisect_left(places, stop)] - sums[bisect_left(places, start)]
        return total
