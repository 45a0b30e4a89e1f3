"""The checkpoints of one thread: ancestors, and the segments they refer to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep._core.codec.format import OBJECT, Tag
from threadkeep._core.codec.frame import Compression, pack, unpack
from threadkeep._core.engine import thread_summary
from threadkeep._core.engine.context import NO_CODEC, Engine, Keyframes, named, read_manifest
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.model import (
    CheckpointRow,
    Child,
    Segment,
    SegmentInfo,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Operation, fetch_segments
from threadkeep._core.engine.refs import Cell, Inline, Manifest, Ref, Run, covering
from threadkeep._core.engine.rows import counting, unpack_metadata, unpack_writes
from threadkeep._core.engine.snapshots import Keyframe
from threadkeep._core.langgraph_internals import DELTA_COUNTERS, is_internal
from threadkeep.errors import ThreadkeepError, UnknownTypeError

CheckpointKey: TypeAlias = tuple[str, str]  # namespace, checkpoint id
WriteKey: TypeAlias = tuple[str, str, int]  # namespace, checkpoint id, seq
SegmentKey: TypeAlias = tuple[int, int, int]  # log, start, count
ChannelSearch: TypeAlias = tuple[CheckpointKey, str]
"""A checkpoint, and a channel without a value there."""
Positions: TypeAlias = Mapping[int, Sequence[Span]]
"""Positions by log: spans in order that do not touch."""

# First bytes of a snapshot: from our codec, and from another serializer.
_SNAPSHOT_MARKS = (bytes((OBJECT, Tag.NAMEDTUPLE)), bytes((OBJECT, Tag.SERDE)))


def checkpoint_key(stored: StoredCheckpoint) -> CheckpointKey:
    return stored.row.ns, stored.row.id


def write_key(row: WriteRow) -> WriteKey:
    return row.ns, row.checkpoint_id, row.seq


def segment_key(segment: Segment | SegmentInfo) -> SegmentKey:
    return segment.log, segment.start, segment.count


class _Origin(NamedTuple):
    """The value of an empty channel, from its nearest ancestor with one."""

    written: bool  # on the path, a write to the channel led to a checkpoint without a value
    seed: Ref | None


_NOWHERE = _Origin(written=False, seed=None)


class Lineage:
    """The checkpoints of one thread by key, decoded as needed."""

    def __init__(self, checkpoints: Iterable[StoredCheckpoint]) -> None:
        self.stored = {checkpoint_key(stored): stored for stored in checkpoints}
        self._manifests: dict[CheckpointKey, tuple[Manifest, Keyframe]] = {}
        self._keyframes: Keyframes = {}
        self._written: dict[CheckpointKey, frozenset[str]] = {}
        self._origins: dict[ChannelSearch, _Origin] = {}

    def manifest(self, key: CheckpointKey) -> tuple[Manifest, Keyframe]:
        """Return the checkpoint's manifest and its keyframe. Raises CorruptionError."""
        if key not in self._manifests:
            stored = self.stored[key]
            with named(stored):
                self._manifests[key] = read_manifest(stored, self._keyframes)
        return self._manifests[key]

    def value(self, key: CheckpointKey, channel: str) -> Ref | None:
        """Return the reference of the channel's value, or None if it has no value there."""
        entry = self.manifest(key)[0].entries.get(channel)
        return None if entry is None else entry.ref

    def above(self, key: CheckpointKey) -> CheckpointKey | None:
        """Return the parent, if it exists."""
        parent = self.stored[key].row.parent
        above = None if parent is None else (key[0], parent)
        return above if above in self.stored else None

    def path(self, key: CheckpointKey) -> Iterator[CheckpointKey]:
        """Iterate over the checkpoint and its ancestors, hidden ones included."""
        met: set[CheckpointKey] = set()
        step: CheckpointKey | None = key
        while step is not None and step not in met:
            met.add(step)
            yield step
            step = self.above(step)

    def children(self) -> dict[CheckpointKey, list[CheckpointRow]]:
        """Return the children of each checkpoint, in the order of the thread's rows."""
        found: dict[CheckpointKey, list[CheckpointRow]] = {}
        for key, stored in self.stored.items():
            above = self.above(key)
            if above is not None:
                found.setdefault(above, []).append(stored.row)
        return found

    def origin(self, search: ChannelSearch) -> _Origin:
        """Go up to the nearest value of the channel, or to the root."""
        channel, passed, at = search[1], [], search[0]
        while (at, channel) not in self._origins:
            passed.append(at)
            # A checkpoint may be its own ancestor: the path ends at one met before.
            self._origins[at, channel] = _NOWHERE
            above = self.above(at)
            if above is None:
                break
            seed = self.value(above, channel)
            if seed is not None:
                self._origins[at, channel] = _Origin(written=False, seed=seed)
                break
            at = above
        written, seed = self._origins[at, channel]
        for key in reversed(passed):
            written = written or channel in self._written_before(key)
            self._origins[key, channel] = _Origin(written, seed)
        return self._origins[search]

    def ancestors(self, searches: Iterable[ChannelSearch]) -> set[CheckpointKey]:
        """Return all ancestors up to the nearest with a value of the channel, or to the root."""
        found: set[CheckpointKey] = set()
        met: set[ChannelSearch] = set()
        for key, channel in searches:
            above = self.above(key)
            while above is not None and (above, channel) not in met:
                met.add((above, channel))
                found.add(above)
                above = None if self.value(above, channel) is not None else self.above(above)
        return found

    def _written_before(self, key: CheckpointKey) -> frozenset[str]:
        if key not in self._written:
            above, row = self.above(key), self.stored[key].row
            writes = self.stored[above].writes if above is not None else ()
            counted = counting(writes, Child(row.id, row.run, row.seen))
            self._written[key] = frozenset([write.channel for write in counted])
        return self._written[key]


def needed(
    engine: Engine, thread: str, lineage: Lineage, keep: Iterable[CheckpointKey]
) -> Operation[set[CheckpointKey]]:
    """Return the ancestors through which DeltaChannels of the kept checkpoints are rebuilt."""
    return lineage.ancestors((yield from searches(engine, thread, lineage, keep)))


def searches(
    engine: Engine,
    thread: str,
    lineage: Lineage,
    keep: Iterable[CheckpointKey],
    elements: Elements | None = None,
) -> Operation[list[ChannelSearch]]:
    """Return the DeltaChannels of some checkpoints that have no value there.

    A channel without a value is a DeltaChannel if the metadata counts it (as LangGraph does, from
    its first write to its next snapshot). Without counters, it is one if a write to it led to a
    checkpoint without a value, or if the nearest value on its path is a snapshot. `elements` are
    the thread's sound ones. Without them they are read, and an unreadable value counts as a
    snapshot.
    """
    sure: list[ChannelSearch] = []
    origins: dict[ChannelSearch, _Origin] = {}
    for key in keep:
        entries = lineage.manifest(key)[0].entries if lineage.stored[key].row.parent else {}
        empty = [channel for channel, entry in entries.items() if entry.is_empty]
        counted = counted_channels(engine, lineage.stored[key]) if empty else set()
        for channel in empty:
            if channel in counted:
                sure.append((key, channel))
            elif not is_internal(channel):
                origins[key, channel] = lineage.origin((key, channel))
    seeds = {o.seed for o in origins.values() if o.seed is not None and not o.written}
    snapshots = yield from snapshots_among(engine, thread, seeds, elements)
    return sure + [search for search, o in origins.items() if o.written or o.seed in snapshots]


def counted_channels(engine: Engine, stored: StoredCheckpoint) -> set[str]:
    """Return the DeltaChannels that the checkpoint's metadata counts."""
    row = stored.row
    try:
        metadata = unpack_metadata(row.metadata, row.exact, engine.codec)
    except UnknownTypeError:
        metadata = thread_summary.shown(row)  # (another value in it has a class of the program)
    return set(metadata.get(DELTA_COUNTERS) or ())


def snapshots_among(
    engine: Engine, thread: str, seeds: set[Ref], elements: Elements | None = None
) -> Operation[set[Ref]]:
    """Return the values that are snapshots of a DeltaChannel (see `searches`)."""
    found, known = set[Ref](), elements
    single = [seed for seed in seeds if not isinstance(seed, Run)]
    if known is None:
        known, cells = Elements(NO_CODEC), [seed for seed in single if isinstance(seed, Cell)]
        spans = covering([span for cell in cells for span in cell.needs])
        segments = yield from fetch_segments(thread, spans)
        with suppress(ThreadkeepError):  # (then no cell can be read)
            known.add(segments)
    for seed in single:
        try:
            data = seed.data if isinstance(seed, Inline) else known.raw(seed.log, seed.pos)
            if data.startswith(_SNAPSHOT_MARKS):
                # (Only its own type matters, not its references.)
                value = engine.codec.decode(data, lambda log, pos: (log, pos))
                found |= {seed} if isinstance(value, _DeltaSnapshot) else set()
        except ThreadkeepError:
            if elements is None:
                found.add(seed)
    return found


def spans_of(
    lineage: Lineage, keys: Iterable[CheckpointKey], orphans: Iterable[WriteRow]
) -> Iterator[Span]:
    """Iterate over the spans that checkpoints and writes refer to. Raises CorruptionError."""
    for key in keys:
        read, keyframe = lineage.manifest(key)
        yield Span(keyframe.log, keyframe.pos, keyframe.pos + 1)
        yield from read.needs()
        for row in lineage.stored[key].writes:
            yield from write_spans(row)
    for row in orphans:
        yield from write_spans(row)


def write_spans(row: WriteRow) -> list[Span]:
    """Return the spans that pending writes refer to. Raises CorruptionError."""
    return [span for write in unpack_writes(row) for span in write.ref.needs]


def positions(
    lineage: Lineage,
    keys: Iterable[CheckpointKey],
    orphans: Iterable[WriteRow],
    others: Iterable[ThreadRows] = (),
) -> dict[int, list[Span]]:
    """Return the positions that checkpoints, writes and all rows of other threads need."""
    spans = list(spans_of(lineage, keys, orphans))
    for rows in others:
        theirs = Lineage(rows.checkpoints)
        spans += spans_of(theirs, theirs.stored, rows.orphans)
    return by_log(spans)


def by_log(spans: Iterable[Span]) -> dict[int, list[Span]]:
    """Return the spans as `Positions`."""
    found: dict[int, list[Span]] = {}
    for span in covering(spans):
        found.setdefault(span.log, []).append(span)
    return found


def overlap(used: Positions, span: Span) -> list[Span]:
    """Return the used parts of the span, in order."""
    spans = used.get(span.log, ())
    first = max(bisect_right(spans, span.start, key=lambda s: s.start) - 1, 0)
    found = []
    for one in spans[first:]:
        if one.start >= span.stop:
            break
        start, stop = max(one.start, span.start), min(one.stop, span.stop)
        if start < stop:
            found.append(Span(span.log, start, stop))
    return found


def touches(used: Positions, span: Span) -> bool:
    """Return True if a position of the span is used."""
    return bool(overlap(used, span))


def parts(segment: Segment, spans: Iterable[Span], compression: Compression) -> list[Segment]:
    """Return new segments of these spans of a segment."""
    elements = unpack(segment.data)
    return [
        Segment(log, start, stop - start, pack(data, compression))
        for log, start, stop in spans
        for data in (elements[start - segment.start : stop - segment.start],)
    ]
