"""Which ancestors the DeltaChannels of some checkpoints are rebuilt through.

Only looking at rows that were read lives here. Invariant: however many checkpoints are
asked about, a manifest is decoded at most once and a step up the parent chain is taken
at most once for each channel; where no channel is looked for, nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.codec.format import OBJECT, Tag
from threadkeep.engine import thread_summary
from threadkeep.engine.context import NO_CODEC, Engine, Keyframes, read_manifest
from threadkeep.engine.elements import Elements
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import CheckpointRow, Child, StoredCheckpoint
from threadkeep.engine.operation import Operation, fetch_segments
from threadkeep.engine.refs import Cell, Inline, Ref, covering
from threadkeep.engine.rows import counting, unpack_metadata
from threadkeep.engine.snapshots import Keyframe
from threadkeep.errors import ThreadkeepError, UnknownTypeError
from threadkeep.langgraph_internals import DELTA_COUNTERS, is_internal

CheckpointKey: TypeAlias = tuple[str, str]  # namespace and checkpoint id
Search: TypeAlias = tuple[CheckpointKey, str]  # a checkpoint, and a channel that has no value there

# How the bytes of a snapshot begin: ours, and those of a serializer that was brought.
_SNAPSHOT_MARKS = (bytes((OBJECT, Tag.NAMEDTUPLE)), bytes((OBJECT, Tag.SERDE)))


class _Origin(NamedTuple):
    """What a channel without a value goes back to: its nearest ancestor's value, if any.

    `written`: on the way a write to the channel led to a checkpoint without a value.
    """

    written: bool
    seed: Ref | None


_NOWHERE = _Origin(written=False, seed=None)


class Lineage:
    """The checkpoints of one thread by key, with what was decoded of them so far."""

    def __init__(self, checkpoints: Iterable[StoredCheckpoint]) -> None:
        self.stored: dict[CheckpointKey, StoredCheckpoint] = {
            (s.row.ns, s.row.id): s for s in checkpoints
        }
        self._manifests: dict[CheckpointKey, tuple[Manifest, Keyframe]] = {}
        self._keyframes: Keyframes = {}
        self._led: dict[CheckpointKey, frozenset[str]] = {}
        self._origins: dict[Search, _Origin] = {}

    def manifest(self, key: CheckpointKey) -> tuple[Manifest, Keyframe]:
        """The checkpoint's manifest and its keyframe. Raises CorruptionError."""
        if key not in self._manifests:
            stored = self.stored[key]
            try:
                self._manifests[key] = read_manifest(stored, self._keyframes)
            except ThreadkeepError as exc:
                exc.at(thread=stored.thread, namespace=key[0] or None, checkpoint=key[1])
                raise
        return self._manifests[key]

    def above(self, key: CheckpointKey) -> CheckpointKey | None:
        """The parent, if it is there."""
        parent = self.stored[key].row.parent
        above = None if parent is None else (key[0], parent)
        return above if above in self.stored else None

    def children(self) -> dict[CheckpointKey, list[CheckpointRow]]:
        """The rows below each checkpoint that has any, in the order of the thread's rows."""
        found: dict[CheckpointKey, list[CheckpointRow]] = {}
        for key, stored in self.stored.items():
            above = self.above(key)
            if above is not None:
                found.setdefault(above, []).append(stored.row)
        return found

    def origin(self, search: Search) -> _Origin:
        """Go up to the nearest value of the channel, or to the root."""
        channel, passed, at = search[1], [], search[0]
        while (at, channel) not in self._origins:
            passed.append(at)
            # A checkpoint may be its own ancestor: the way ends where it was before.
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
            written = written or channel in self._led_to(key)
            self._origins[key, channel] = _Origin(written, seed)
        return self._origins[search]

    def ancestors(self, searches: Iterable[Search]) -> set[CheckpointKey]:
        """All ancestors up to the nearest that has a value of the channel, or to the root."""
        found: set[CheckpointKey] = set()
        met: set[Search] = set()
        for key, channel in searches:
            above = self.above(key)
            while above is not None and (above, channel) not in met:
                met.add((above, channel))
                found.add(above)
                above = None if self.value(above, channel) is not None else self.above(above)
        return found

    def value(self, key: CheckpointKey, channel: str) -> Ref | None:
        """Where the channel's value lies; None where it has none there."""
        entry = self.manifest(key)[0].entries.get(channel)
        return None if entry is None else entry.ref

    def _led_to(self, key: CheckpointKey) -> frozenset[str]:
        """The channels of the parent's writes that led to this checkpoint."""
        if key not in self._led:
            above, row = self.above(key), self.stored[key].row
            writes = self.stored[above].writes if above is not None else ()
            counted = counting(writes, Child(row.id, row.run, row.seen))
            self._led[key] = frozenset([write.channel for write in counted])
        return self._led[key]


def needed(
    engine: Engine, thread: str, lineage: Lineage, keep: Iterable[CheckpointKey]
) -> Operation[set[CheckpointKey]]:
    """The ancestors that DeltaChannels of the kept checkpoints are rebuilt through.

    Raises:
        CorruptionError, UnknownTypeError: a row that tells cannot be read.
    """
    return lineage.ancestors((yield from searches(engine, thread, lineage, keep)))


def searches(
    engine: Engine,
    thread: str,
    lineage: Lineage,
    keep: Iterable[CheckpointKey],
    elements: Elements | None = None,
) -> Operation[list[Search]]:
    """The DeltaChannels of some checkpoints that have no value there.

    A channel without a value may be a DeltaChannel or just empty. It is one if the
    metadata counts it (LangGraph does, from its first write to its next snapshot). Where
    nothing is counted, it is one if a write to it led to a checkpoint without a value,
    which no other channel does, or if the nearest value on its path is a snapshot.

    Args:
        engine: the parts.
        thread: its id.
        lineage: its checkpoints.
        keep: those that are asked about.
        elements: the thread's elements as far as they are sound; None: they are read, and one
            that cannot be read may be a snapshot.

    Raises:
        CorruptionError, UnknownTypeError: a row that tells cannot be read.
    """
    sure: list[Search] = []
    origins: dict[Search, _Origin] = {}
    for key in keep:
        empty = _empty_channels(lineage, key)
        counted = counted_channels(engine, lineage.stored[key]) if empty else set()
        for channel in empty:
            if channel in counted:
                sure.append((key, channel))
            elif not is_internal(channel):
                origins[key, channel] = lineage.origin((key, channel))
    seeds = {o.seed for o in origins.values() if o.seed is not None and not o.written}
    snapshots = yield from snapshots_among(engine, thread, seeds, elements)
    return sure + [search for search, o in origins.items() if o.written or o.seed in snapshots]


def _empty_channels(lineage: Lineage, key: CheckpointKey) -> list[str]:
    """The channels that have a version but no value, where there was an ancestor to look at."""
    if lineage.stored[key].row.parent is None:
        return []
    entries = lineage.manifest(key)[0].entries
    return [channel for channel, entry in entries.items() if entry.is_empty]


def counted_channels(engine: Engine, stored: StoredCheckpoint) -> set[str]:
    """The DeltaChannels that the checkpoint's metadata counts."""
    row = stored.row
    try:
        metadata = unpack_metadata(row.metadata, row.exact, engine.codec)
    except UnknownTypeError:
        metadata = thread_summary.shown(row)  # (something else in it is of a class of the program)
    return set(metadata.get(DELTA_COUNTERS) or ())


def snapshots_among(
    engine: Engine, thread: str, seeds: set[Ref], elements: Elements | None = None
) -> Operation[set[Ref]]:
    """Which of the values are a DeltaChannel's snapshots; see `searches` for `elements`."""
    doubtful = elements is None
    if elements is None:
        elements = yield from _elements(thread, seeds)
    return {seed for seed in seeds if _may_be_snapshot(engine, seed, elements, doubtful)}


def _elements(thread: str, seeds: set[Ref]) -> Operation[Elements]:
    """The elements that the values need, as far as they can be read."""
    cells = [seed for seed in seeds if isinstance(seed, Cell)]
    spans = covering([span for cell in cells for span in cell.needs])
    segments = yield from fetch_segments(thread, spans)
    try:
        return Elements(NO_CODEC, segments)
    except ThreadkeepError:
        return Elements(NO_CODEC)  # then no cell can be read


def _may_be_snapshot(
    engine: Engine,
    seed: Ref,
    elements: Elements,
    doubtful: bool,  # noqa: FBT001 - what is told of one that cannot be read
) -> bool:
    """Whether the value is a DeltaChannel's snapshot."""
    try:
        return _is_snapshot(engine, seed, elements)
    except ThreadkeepError:
        return doubtful


def _is_snapshot(engine: Engine, seed: Ref, elements: Elements) -> bool:
    if isinstance(seed, Inline):
        data = seed.data
    elif isinstance(seed, Cell):
        data = elements.raw(seed.log, seed.pos)
    else:
        return False
    if not data.startswith(_SNAPSHOT_MARKS):
        return False
    return isinstance(engine.codec.decode(data, _unread), _DeltaSnapshot)


def _unread(log: int, pos: int) -> Any:
    """In place of what the value refers to: its own type is all that is asked for."""
    del log, pos
