"""Reading two checkpoints side by side: of each channel whether it changed, or both values.

Invariant: a channel that both hold by the same reference is not decoded, and however many
channels there are, their values are one round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine import listing
from threadkeep.engine.context import (
    Engine,
    named,
    not_found,
    read_manifest,
    unless_hidden,
)
from threadkeep.engine.elements import Elements
from threadkeep.engine.listing import ChannelHistory
from threadkeep.engine.manifest import ChannelEntry, Manifest, Version
from threadkeep.engine.model import (
    ReadCheckpoint,
    ReadSegments,
    Span,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep.engine.operation import (
    CheckpointRef,
    Fetch,
    Operation,
)
from threadkeep.engine.refs import Inline, Ref, covering
from threadkeep.engine.rows import unpack_metadata
from threadkeep.errors import CorruptionError, StaleThreadError, ThreadkeepError
from threadkeep.langgraph_internals import (
    DELTA_COUNTERS,
    is_internal,
)


class Value(NamedTuple):
    """A channel's value in one checkpoint; `is_there` False where it is empty or unknown."""

    version: Version
    is_there: bool
    value: Any = None


class Pair(NamedTuple):
    """A channel in both checkpoints; of one that is the same in both no value is decoded.

    `is_delta`: the values are those of `_stored_instead`.
    """

    before: Value
    after: Value
    is_same: bool
    is_delta: bool = False


class Side(NamedTuple):
    """One of the two checkpoints: its row, manifest and metadata."""

    stored: StoredCheckpoint
    manifest: Manifest
    metadata: dict[str, Any]
    state: ThreadState

    def entry(self, channel: str) -> ChannelEntry:
        """What it says of a channel."""
        return self.manifest.entries.get(channel, _UNKNOWN)


_UNKNOWN = ChannelEntry(None, None)


class Compared(NamedTuple):
    """Two checkpoints, and their channels by name, in order."""

    before: Side
    after: Side
    channels: dict[str, Pair]


def compare(engine: Engine, before: CheckpointRef, after: CheckpointRef) -> Operation[Compared]:
    """Two checkpoints, of one thread or of two.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: one is not there.
        CorruptionError, UnknownTypeError: a value cannot be read.
    """
    generations: tuple[int, int] | None = None
    while True:
        reads = [ReadCheckpoint(*place) for place in (before, after)]
        states: list[ThreadState] = yield Fetch(reads)
        try:
            a = _side(engine, before, states[0])
            b = _side(engine, after, states[1])
            channels = yield from _pairs(engine, a, b)
        except (CorruptionError, StaleThreadError):
            # Checkpoints or segments may have been removed meanwhile: then look again.
            found = states[0].generation, states[1].generation
            if found == generations:
                raise
            generations = found
        else:
            return Compared(a, b, channels)


def _side(engine: Engine, place: CheckpointRef, state: ThreadState) -> Side:
    stored = unless_hidden(state.found)
    if stored is None:
        raise not_found(place)
    with named(stored):
        manifest, _ = read_manifest(stored)
        metadata = unpack_metadata(stored.row.metadata, stored.row.exact, engine.codec)
    return Side(stored, manifest, metadata, state)


def _pairs(engine: Engine, a: Side, b: Side) -> Operation[dict[str, Pair]]:
    channels = sorted({*a.manifest.entries, *b.manifest.entries})
    a_deltas = yield from _deltas(a, channels)
    b_deltas = yield from _deltas(b, channels)
    kept: dict[str, tuple[_Kept, _Kept]] = {}
    for channel in channels:
        is_delta = channel in a_deltas or channel in b_deltas
        kept[channel] = (
            _kept(a.entry(channel), a_deltas.get(channel), is_delta=is_delta),
            _kept(b.entry(channel), b_deltas.get(channel), is_delta=is_delta),
        )
    one_thread = a.stored.thread == b.stored.thread
    same = {c for c, (x, y) in kept.items() if _is_same(x, y, one_thread=one_thread)}
    wanted = {c: both for c, both in kept.items() if c not in same}
    a_found, b_found = yield from _elements(engine, a, b, wanted.values())
    found: dict[str, Pair] = {}
    for channel, (x, y) in kept.items():
        is_same = channel in same
        with named(a.stored):
            before = _value(a, channel, x, None if is_same else a_found)
        with named(b.stored):
            after = _value(b, channel, y, None if is_same else b_found)
        found[channel] = Pair(before, after, is_same, x.is_delta or y.is_delta)
    return found


# -- what is stored of a channel -----------------------------------------------------


class _Kept(NamedTuple):
    """The references that a channel's value, or a DeltaChannel's history, is read from."""

    seed: Ref | None
    writes: tuple[Ref, ...] = ()
    is_delta: bool = False

    def refs(self) -> Iterable[Ref]:
        return self.writes if self.seed is None else (self.seed, *self.writes)


def _kept(entry: ChannelEntry, delta: ChannelHistory | None, *, is_delta: bool) -> _Kept:
    if delta is None:
        return _Kept(entry.ref, (), is_delta and entry.ref is not None)
    return _Kept(delta.seed, tuple([write.ref for write in delta.writes]), is_delta=True)


def _deltas(side: Side, channels: Iterable[str]) -> Operation[dict[str, ChannelHistory]]:
    """The histories of those channels that are DeltaChannels without a value here.

    One that is empty may be just that: a DeltaChannel is counted in the metadata, or a
    write to it led to a checkpoint without a value (see `lineage.needed`).
    """
    empty = {
        channel: None
        for channel in channels
        if (entry := side.entry(channel)).is_empty
        and entry.version is not None
        and not is_internal(channel)
    }
    if not empty:
        return {}
    row = side.stored.row
    place = CheckpointRef(side.stored.thread, row.ns, row.id)
    found = yield from listing.walk(place, empty, side.state)
    counted = side.metadata.get(DELTA_COUNTERS)
    known = counted if isinstance(counted, dict) else {}
    return {c: one for c, one in found.items() if one.writes or c in known}


def _is_same(a: _Kept, b: _Kept, *, one_thread: bool) -> bool:
    """Whether the references alone tell that both values are the same."""
    if a != b:
        return False
    return one_thread or all(isinstance(ref, Inline) and not ref.uses for ref in a.refs())


# -- values --------------------------------------------------------------------------


def _elements(
    engine: Engine, a: Side, b: Side, wanted: Iterable[tuple[_Kept, _Kept]]
) -> Operation[tuple[Elements, Elements]]:
    """The elements that both sides' values are made of, which one thread's share."""
    a_spans, b_spans = set[Span](), set[Span]()
    for x, y in wanted:
        a_spans.update(*[ref.needs for ref in x.refs()])
        b_spans.update(*[ref.needs for ref in y.refs()])
    if a.stored.thread == b.stored.thread:
        a_spans, b_spans = a_spans | b_spans, set()
    reads = [
        ReadSegments(side.stored.thread, covering(spans), side.state.generation)
        for side, spans in ((a, a_spans), (b, b_spans))
        if spans
    ]
    replies = iter((yield Fetch(reads)) if reads else ())
    first = Elements(engine.codec, next(replies) if a_spans else ())
    if a.stored.thread == b.stored.thread:
        return first, first
    return first, Elements(engine.codec, next(replies) if b_spans else ())


def _value(side: Side, channel: str, kept: _Kept, found: Elements | None) -> Value:
    """The channel's value, decoded if there are elements to read it from."""
    version = side.entry(channel).version
    is_there = kept.is_delta or kept.seed is not None
    if found is None or not is_there:
        return Value(version, is_there)
    found.reader = channel
    try:
        return Value(version, is_there, _decoded(kept, found))
    except ThreadkeepError as exc:
        exc.at(channel=channel)
        raise


def _decoded(kept: _Kept, found: Elements) -> Any:
    seed = None if kept.seed is None else found.value(kept.seed)
    if isinstance(seed, _DeltaSnapshot):
        seed = seed.value
    if not kept.is_delta:
        return seed
    return _stored_instead(kept, seed, [found.value(ref) for ref in kept.writes])


def _stored_instead(kept: _Kept, seed: Any, writes: list[Any]) -> Mapping[str, Any]:
    """What is stored of a DeltaChannel without a value: its last whole value, and the writes."""
    return {"writes": writes} if kept.seed is None else {"snapshot": seed, "writes": writes}
