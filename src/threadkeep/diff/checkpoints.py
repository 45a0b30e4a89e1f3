"""Comparison of two checkpoints, channel by channel.

A channel that both hold by the same reference is not decoded. The values of all others are read
in one round trip.

Versions of a channel, up the chain of parents: manifests are read, values never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep import arguments, validation
from threadkeep.diff.records import Change, ChannelDiff, DiffSide, StateDiff
from threadkeep.diff.values import Effort, differences
from threadkeep.engine import listing
from threadkeep.engine.context import (
    Engine,
    Keyframes,
    named,
    not_found,
    read_manifest,
    unless_hidden,
)
from threadkeep.engine.elements import Elements
from threadkeep.engine.listing import FIRST_STRETCH, LONGEST_STRETCH, ChannelHistory, stretch
from threadkeep.engine.manifest import ChannelEntry, Manifest, Version, same_version
from threadkeep.engine.model import (
    HIDDEN,
    ReadCheckpoint,
    ReadSegments,
    Span,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep.engine.operation import CheckpointRef, Fetch, Operation, fetch_checkpoint
from threadkeep.engine.refs import Inline, Ref, covering
from threadkeep.engine.rows import unpack_metadata, unpack_time
from threadkeep.errors import CorruptionError, StaleThreadError, ThreadkeepError, invalid
from threadkeep.langgraph_internals import DELTA_COUNTERS, is_internal
from threadkeep.store.driver import Runner, Workflow, aside, on

ConfigOrPair: TypeAlias = RunnableConfig | tuple[str, str | None]
"""A config, or the id of a thread and that of a checkpoint (None: the head)."""


class Value(NamedTuple):
    """Value of a channel in one checkpoint; `exists` is False where it is empty or unknown."""

    version: Version
    exists: bool
    value: Any = None


class Pair(NamedTuple):
    """A channel in both checkpoints; values that are the same are not decoded.

    `is_delta`: the values are dicts of the last whole value and the writes since.
    """

    before: Value
    after: Value
    is_same: bool
    is_delta: bool = False


class Side(NamedTuple):
    """One of the two checkpoints."""

    stored: StoredCheckpoint
    manifest: Manifest
    metadata: dict[str, Any]
    state: ThreadState

    def entry(self, channel: str) -> ChannelEntry:
        """Return the manifest's entry of a channel."""
        return self.manifest.entries.get(channel, _UNKNOWN)


_UNKNOWN = ChannelEntry(None, None)


def place_of(value: ConfigOrPair) -> CheckpointRef:
    """Return the place that a config or a pair names."""
    if isinstance(value, Mapping):
        return arguments.place(value)
    if isinstance(value, tuple | list) and len(value) == 2:  # noqa: PLR2004 - a pair
        return validation.place(value[0], "", value[1])
    hint = "Use state.config, or (thread id, checkpoint id or None)."
    raise invalid("place to compare", value, hint)


def diff(
    store: Runner, engine: Engine, before: CheckpointRef, after: CheckpointRef
) -> Workflow[StateDiff]:
    """Compare two checkpoints, of one thread or of two.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: one does not exist.
        CorruptionError, UnknownTypeError: a value cannot be read.
    """
    a, b, pairs = yield from on(store, compare(engine, before, after))
    # (Where much differs this takes long enough to hold up an event loop.)
    return (yield from aside(partial(_state_diff, engine, a, b, pairs)))


def compare(
    engine: Engine, before: CheckpointRef, after: CheckpointRef
) -> Operation[tuple[Side, Side, dict[str, Pair]]]:
    """Read two checkpoints, and their channels sorted by name; see `diff`."""
    generations: tuple[int, int] | None = None
    while True:
        states: list[ThreadState] = yield Fetch([ReadCheckpoint(*p) for p in (before, after)])
        try:
            a = _side(engine, before, states[0])
            b = _side(engine, after, states[1])
            channels = yield from _pairs(engine, a, b)
        except (CorruptionError, StaleThreadError):
            # Checkpoints or segments may have been removed meanwhile: then read again.
            current = states[0].generation, states[1].generation
            if current == generations:
                raise
            generations = current
        else:
            return a, b, channels


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
    deltas = (yield from _deltas(a, channels)), (yield from _deltas(b, channels))
    refs: dict[str, tuple[_Refs, _Refs]] = {}
    for channel in channels:
        is_delta = any(channel in found for found in deltas)
        refs[channel] = (
            _refs(a.entry(channel), deltas[0].get(channel), is_delta=is_delta),
            _refs(b.entry(channel), deltas[1].get(channel), is_delta=is_delta),
        )
    one_thread = a.stored.thread == b.stored.thread
    same = {c for c, (x, y) in refs.items() if _is_same(x, y, one_thread=one_thread)}
    changed = [pair for channel, pair in refs.items() if channel not in same]
    a_elements, b_elements = yield from _elements(engine, a, b, changed)
    pairs: dict[str, Pair] = {}
    for channel, (x, y) in refs.items():
        is_same = channel in same
        with named(a.stored):
            before = _value(a, channel, x, None if is_same else a_elements)
        with named(b.stored):
            after = _value(b, channel, y, None if is_same else b_elements)
        pairs[channel] = Pair(before, after, is_same, x.is_delta or y.is_delta)
    return pairs


# -- references of a channel -----------------------------------------------------------


class _Refs(NamedTuple):
    """References that a channel's value, or a DeltaChannel's history, is read from."""

    seed: Ref | None
    writes: tuple[Ref, ...] = ()
    is_delta: bool = False

    def all(self) -> Iterable[Ref]:
        return self.writes if self.seed is None else (self.seed, *self.writes)


def _refs(entry: ChannelEntry, delta: ChannelHistory | None, *, is_delta: bool) -> _Refs:
    if delta is None:
        return _Refs(entry.ref, (), is_delta and entry.ref is not None)
    return _Refs(delta.seed, tuple([write.ref for write in delta.writes]), is_delta=True)


def _deltas(side: Side, channels: Iterable[str]) -> Operation[dict[str, ChannelHistory]]:
    """Read the histories of DeltaChannels without a value in a checkpoint.

    An empty channel may be just that: a DeltaChannel is counted in the metadata, or a write to
    it led to a checkpoint without a value (see `lineage.needed`).
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
    histories = yield from listing.walk(place, empty, side.state)
    counted = side.metadata.get(DELTA_COUNTERS)
    known = counted if isinstance(counted, dict) else {}
    return {c: one for c, one in histories.items() if one.writes or c in known}


def _is_same(a: _Refs, b: _Refs, *, one_thread: bool) -> bool:
    """Return True if the references alone show that both values are the same."""
    if a != b:
        return False
    return one_thread or all(isinstance(ref, Inline) and not ref.uses for ref in a.all())


# -- values ----------------------------------------------------------------------------


def _elements(
    engine: Engine, a: Side, b: Side, pairs: Iterable[tuple[_Refs, _Refs]]
) -> Operation[tuple[Elements, Elements]]:
    """Read the elements of both sides' values; the sides of one thread share them."""
    a_spans, b_spans = set[Span](), set[Span]()
    for x, y in pairs:
        a_spans.update(*[ref.needs for ref in x.all()])
        b_spans.update(*[ref.needs for ref in y.all()])
    one_thread = a.stored.thread == b.stored.thread
    if one_thread:
        a_spans, b_spans = a_spans | b_spans, set()
    reads = [
        ReadSegments(side.stored.thread, covering(spans), side.state.generation)
        for side, spans in ((a, a_spans), (b, b_spans))
        if spans
    ]
    replies = iter((yield Fetch(reads)) if reads else ())
    first = Elements(engine.codec, next(replies) if a_spans else ())
    if one_thread:
        return first, first
    return first, Elements(engine.codec, next(replies) if b_spans else ())


def _value(side: Side, channel: str, refs: _Refs, elements: Elements | None) -> Value:
    """Return a channel's value, decoded if there are elements."""
    version = side.entry(channel).version
    exists = refs.is_delta or refs.seed is not None
    if elements is None or not exists:
        return Value(version, exists)
    elements.reader = channel
    try:
        return Value(version, exists, _decoded(refs, elements))
    except ThreadkeepError as exc:
        exc.at(channel=channel)
        raise


def _decoded(refs: _Refs, elements: Elements) -> Any:
    seed = None if refs.seed is None else elements.value(refs.seed)
    if isinstance(seed, _DeltaSnapshot):
        seed = seed.value
    if not refs.is_delta:
        return seed
    writes = [elements.value(ref) for ref in refs.writes]
    return {"writes": writes} if refs.seed is None else {"snapshot": seed, "writes": writes}


# -- records ---------------------------------------------------------------------------


def _state_diff(engine: Engine, a: Side, b: Side, pairs: dict[str, Pair]) -> StateDiff:
    effort = Effort()
    channels = {name: _channel_diff(engine, name, pair, effort) for name, pair in pairs.items()}
    return StateDiff(_diff_side(a), _diff_side(b), channels)


def _diff_side(side: Side) -> DiffSide:
    row, metadata = side.stored.row, side.metadata
    return DiffSide(
        thread=side.stored.thread,
        ns=row.ns,
        checkpoint=row.id,
        time=unpack_time(row.ts),
        step=metadata.get("step"),
        source=metadata.get("source"),
    )


def _channel_diff(engine: Engine, name: str, pair: Pair, effort: Effort) -> ChannelDiff:
    before, after = pair.before, pair.after
    changes = () if pair.is_same else _changes(engine, pair, effort)
    same_version = (before.version, type(before.version)) == (after.version, type(after.version))
    kind: Any = "unchanged" if same_version else "version"
    if changes:
        whole = changes[0].kind if not changes[0].after_at and len(changes) == 1 else "changed"
        kind = whole if whole in ("added", "removed") else "changed"
    return ChannelDiff(
        channel=name,
        kind=kind,
        before_version=before.version,
        after_version=after.version,
        changes=changes,
        is_delta=pair.is_delta,
        is_internal=is_internal(name),
    )


def _changes(engine: Engine, pair: Pair, effort: Effort) -> tuple[Change, ...]:
    before, after = pair.before, pair.after
    if not before.exists:
        return (Change("added", (), (), after=after.value),) if after.exists else ()
    if not after.exists:
        return (Change("removed", (), (), before.value),)
    return differences(before.value, after.value, engine.codec.encode, effort)


@dataclass(frozen=True, slots=True)
class ChannelVersion:
    """Version of a channel, and the checkpoint that first had it.

    Attributes:
        version: the version.
        checkpoint: the checkpoint's id.
        time: its ISO time.
        step: of its metadata; None where that has none.
        source: likewise.
        has_value: the channel was not empty there. A DeltaChannel is, except at its snapshots.
        is_first: False where an older checkpoint with this version was pruned; then this is the
            oldest that is left.
    """

    version: Version
    checkpoint: str
    time: str
    step: int | None
    source: str | None
    has_value: bool
    is_first: bool


def versions(
    engine: Engine, thread: str, channel: str, ns: str, limit: int | None, checkpoint: str | None
) -> Operation[list[ChannelVersion]]:
    """Check the arguments of `Threads.versions`, and read the versions."""
    place = validation.place(thread, ns, checkpoint)
    name = validation.text("channel", channel, place)
    return _versions(engine, place, name, validation.limit(limit))


def _versions(
    engine: Engine, place: CheckpointRef, channel: str, limit: int | None
) -> Operation[list[ChannelVersion]]:
    generation = -1
    while True:
        target = yield from fetch_checkpoint(place.thread, place.ns, place.id)
        stored = unless_hidden(target.found)
        if stored is None:
            raise not_found(place)
        try:
            found = yield from _trace(place._replace(id=stored.row.id), channel, limit, target)
        except StaleThreadError:
            # Ancestors were removed meanwhile: the path may have been cut short.
            if target.generation == generation:
                raise
            generation = target.generation
        else:
            return [_version(engine, since) for since in found[:limit]]


class _Since(NamedTuple):
    """Oldest visible checkpoint so far with a version."""

    stored: StoredCheckpoint
    entry: ChannelEntry
    is_first: bool


class _Trace:
    """Versions found on the way up; `goes_on`: the last one may be older still."""

    def __init__(self, channel: str) -> None:
        self.found: list[_Since] = []
        self.goes_on = False
        self._channel = channel
        self._known: Keyframes = {}

    def add(self, stored: StoredCheckpoint) -> None:
        """Add the next ancestor."""
        with named(stored):
            entry = read_manifest(stored, self._known)[0].entries.get(self._channel)
        hidden = bool(stored.row.flags & HIDDEN)
        if entry is None or entry.version is None:
            self.goes_on = False
        elif self.goes_on and same_version(entry.version, self.found[-1].entry.version):
            if hidden:
                self.end_unseen()
            else:
                self.found[-1] = _Since(stored, entry, is_first=True)
        else:
            self.goes_on = not hidden
            if not hidden:
                self.found.append(_Since(stored, entry, is_first=True))

    def end_unseen(self) -> None:
        """Note that the last version began where nothing can be read any more."""
        if self.goes_on:
            self.found[-1] = self.found[-1]._replace(is_first=False)

    def has(self, limit: int | None) -> bool:
        """Return True if so many versions are found with their beginnings."""
        return limit is not None and len(self.found) - self.goes_on >= limit


def _trace(
    place: CheckpointRef, channel: str, limit: int | None, target: ThreadState
) -> Operation[list[_Since]]:
    trace, met = _Trace(channel), set[str]()
    at, size = place.id, FIRST_STRETCH
    while at is not None and not trace.has(limit):
        rows, state = yield from stretch(place, at, size)
        if state.generation != target.generation:
            raise StaleThreadError(thread=place.thread)
        before = len(met)
        for stored in rows:
            if stored.row.id not in met:  # (a stretch begins with the last one of the one before)
                met.add(stored.row.id)
                trace.add(stored)
        cut = len(rows) < size
        if cut and rows and rows[-1].row.parent is not None:
            trace.end_unseen()
        at = None if cut or len(met) == before else rows[-1].row.id
        size = min(size * 2, LONGEST_STRETCH)
    return trace.found


def _version(engine: Engine, since: _Since) -> ChannelVersion:
    row = since.stored.row
    with named(since.stored):
        metadata = unpack_metadata(row.metadata, row.exact, engine.codec)
    return ChannelVersion(
        version=since.entry.version,
        checkpoint=row.id,
        time=unpack_time(row.ts),
        step=metadata.get("step"),
        source=metadata.get("source"),
        has_value=since.entry.ref is not None,
        is_first=since.is_first,
    )
