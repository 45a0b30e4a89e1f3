"""Compare two checkpoints channel by channel, and list the versions of a channel.

A value that both checkpoints hold by the same reference is not decoded, and neither are the shared
elements at the start of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep._core import arguments, validation
from threadkeep._core.engine import load
from threadkeep._core.engine.context import (
    Engine,
    Keyframes,
    named,
    not_found,
    read_channels,
    read_elements,
    unless_hidden,
)
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.load import FIRST_STRETCH, LONGEST_STRETCH, ChannelHistory, stretch
from threadkeep._core.engine.model import (
    HIDDEN,
    ReadCheckpoint,
    Span,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep._core.engine.operation import CheckpointRef, Fetch, Operation
from threadkeep._core.engine.refs import (
    DICT,
    ChannelEntry,
    Inline,
    Manifest,
    Ref,
    Run,
    Version,
    cut,
    length,
    same_version,
)
from threadkeep._core.engine.rows import unpack_metadata, unpack_time
from threadkeep._core.engine.tips import Look, Proof
from threadkeep._core.langgraph_internals import DELTA_COUNTERS, is_internal
from threadkeep._run.driver import Runner, external, on
from threadkeep.errors import CorruptionError, StaleThreadError, ThreadkeepError, invalid
from threadkeep.threads.diff import Change, ChannelDiff, DiffSide, StateDiff
from threadkeep.threads.diff.values import Effort, differences

T = TypeVar("T")

ConfigOrPair: TypeAlias = RunnableConfig | tuple[str, str | None]
"""A config, or a thread id and a checkpoint id (None for the newest checkpoint)."""

_EMPTY = ChannelEntry(None, None)
NOTHING: Any = object()
"""The value of a channel without a value."""


class Side(NamedTuple):
    """One of two checkpoints to compare."""

    stored: StoredCheckpoint
    manifest: Manifest
    metadata: dict[str, Any]
    state: ThreadState

    def entry(self, channel: str) -> ChannelEntry:
        """Look up the manifest's entry of a channel."""
        return self.manifest.entries.get(channel, _EMPTY)


class Pair(NamedTuple):
    """A channel's values in both checkpoints, or nothing on both sides if they are the same.

    With `is_delta` they are dicts of the last whole value and the writes since. Of two lists,
    `skipped` elements at the start are left out: both store them by the same references.
    """

    before: Any
    after: Any
    is_delta: bool
    skipped: int = 0


def place_of(value: ConfigOrPair | CheckpointRef) -> CheckpointRef:
    """Convert a config or a pair to a place."""
    if isinstance(value, CheckpointRef):
        return value
    if isinstance(value, Mapping):
        return arguments.place(value)
    if isinstance(value, tuple | list) and len(value) == 2:  # noqa: PLR2004 - a pair
        return validation.place(value[0], "", value[1])
    hint = "Use state.config, or (thread id, checkpoint id or None)."
    raise invalid("place to compare", value, hint)


def diff(
    store: Runner,
    engine: Engine,
    before: ConfigOrPair | CheckpointRef,
    after: ConfigOrPair | CheckpointRef,
    channels: Sequence[str] | None = None,
) -> Operation[StateDiff]:
    """Compare two checkpoints, of one thread or of two, in only some channels, or (None) all."""
    wanted = None if channels is None else validation.channels(channels)
    a, b, pairs = yield from on(store, compare(engine, place_of(before), place_of(after), wanted))
    # (a large difference would block an event loop for too long)
    return (yield from external(partial(_state_diff, engine, a, b, pairs)))


def compare(
    engine: Engine,
    before: CheckpointRef,
    after: CheckpointRef,
    wanted: Collection[str] | None = None,
) -> Operation[tuple[Side, Side, dict[str, Pair]]]:
    """Read two checkpoints, and both values of each channel, sorted by name."""

    def read(states: list[ThreadState]) -> Operation[tuple[Side, Side, dict[str, Pair]]]:
        a, b = _side(engine, before, states[0]), _side(engine, after, states[1])
        every = {*a.manifest.entries, *b.manifest.entries}
        channels = sorted(every if wanted is None else every.intersection(wanted))
        return a, b, (yield from _pairs(engine, a, b, channels))

    return _read_stable((before, after), read)


def _read_stable(
    places: Sequence[CheckpointRef], read: Callable[[list[ThreadState]], Operation[T]]
) -> Operation[T]:
    """Read again if checkpoints or segments were removed meanwhile."""
    looks: list[Look] | None = None
    while True:
        states: list[ThreadState] = yield Fetch([ReadCheckpoint(*place) for place in places])
        try:
            return (yield from read(states))
        except (CorruptionError, StaleThreadError):
            current = [Look.of(state) for state in states]
            if current == looks:
                raise
            looks = current


def _found(place: CheckpointRef, state: ThreadState) -> StoredCheckpoint:
    stored = unless_hidden(state.found)
    if stored is None:
        raise not_found(place)
    return stored


def _side(engine: Engine, place: CheckpointRef, state: ThreadState) -> Side:
    stored = _found(place, state)
    with named(stored):
        manifest, _ = read_channels(engine, stored)
        metadata = unpack_metadata(stored.row.metadata, stored.row.exact, engine.codec)
    return Side(stored, manifest, metadata, state)


# -- values ----------------------------------------------------------------------------


class _Refs(NamedTuple):
    """References of a channel's value, or of a DeltaChannel's history."""

    seed: Ref | None
    writes: tuple[Ref, ...] = ()
    is_delta: bool = False

    def all(self) -> Iterable[Ref]:
        return self.writes if self.seed is None else (self.seed, *self.writes)

    def spans(self) -> Iterator[Span]:
        for ref in self.all():
            yield from ref.needs


def _pairs(engine: Engine, a: Side, b: Side, channels: Sequence[str]) -> Operation[dict[str, Pair]]:
    a_deltas, b_deltas = (
        (yield from _deltas(engine, a, channels)),
        (yield from _deltas(engine, b, channels)),
    )
    deltas = a_deltas.keys() | b_deltas.keys()
    one_thread = a.stored.thread == b.stored.thread
    a_refs = {c: _refs(a.entry(c), a_deltas.get(c), is_delta=c in deltas) for c in channels}
    b_refs = {c: _refs(b.entry(c), b_deltas.get(c), is_delta=c in deltas) for c in channels}
    changed = [c for c in channels if not _is_same(a_refs[c], b_refs[c], one_thread=one_thread)]
    skipped: dict[str, int] = {}
    for c in changed if one_thread else ():
        a_refs[c], b_refs[c], skipped[c] = _without_shared(a_refs[c], b_refs[c])
    a_spans = [span for c in changed for span in a_refs[c].spans()]
    b_spans = [span for c in changed for span in b_refs[c].spans()]
    if one_thread:  # (one read for both)
        a_spans, b_spans = a_spans + b_spans, []
    a_elements = yield from _elements(engine, a, a_spans)
    b_elements = a_elements if one_thread else (yield from _elements(engine, b, b_spans))
    pairs = {c: Pair(NOTHING, NOTHING, a_refs[c].is_delta) for c in channels}
    for c in changed:
        before, after = _value(a, c, a_refs[c], a_elements), _value(b, c, b_refs[c], b_elements)
        is_delta = a_refs[c].is_delta or b_refs[c].is_delta
        pairs[c] = Pair(before, after, is_delta, skipped.get(c, 0))
    return pairs


def _refs(entry: ChannelEntry, delta: ChannelHistory | None, *, is_delta: bool) -> _Refs:
    if delta is None:
        return _Refs(entry.ref, (), is_delta and entry.ref is not None)
    return _Refs(delta.seed, tuple([write.ref for write in delta.writes]), is_delta=True)


def _deltas(
    engine: Engine, side: Side, channels: Iterable[str]
) -> Operation[dict[str, ChannelHistory]]:
    """Read the histories of DeltaChannels without a value in a checkpoint.

    An empty channel is a DeltaChannel if the metadata counts it, or if a write to it led to a
    checkpoint without a value (see `lineage.needed`).
    """
    entries = {channel: side.entry(channel) for channel in channels if not is_internal(channel)}
    empty = [c for c, entry in entries.items() if entry.is_empty and entry.version is not None]
    if not empty:
        return {}
    row = side.stored.row
    place = CheckpointRef(side.stored.thread, row.ns, row.id)
    histories = yield from load.walk(engine, place, dict.fromkeys(empty), side.state)
    counted = side.metadata.get(DELTA_COUNTERS)
    known = counted if isinstance(counted, dict) else {}
    return {c: one for c, one in histories.items() if one.writes or c in known}


def _is_same(a: _Refs, b: _Refs, *, one_thread: bool) -> bool:
    """Return True if the references alone prove that both values are the same."""
    whole = one_thread or all(isinstance(ref, Inline) and not ref.uses for ref in a.all())
    return whole and a == b


def _without_shared(a: _Refs, b: _Refs) -> tuple[_Refs, _Refs, int]:
    """Leave out the elements that two lists of one thread share at their start. Return how many.

    `differences` would pair them, so the result is the same.
    """
    x, y = a.seed, b.seed
    if not isinstance(x, Run) or not isinstance(y, Run) or x.kind != y.kind or x.kind == DICT:
        return a, b, 0
    count = 0
    for one, other in zip(x.spans, y.spans, strict=False):
        if one[:2] != other[:2]:
            break
        count += min(one.stop, other.stop) - one.start
        if one != other:
            break
    rest = [Run(r.kind, tuple(cut(r.spans, count, length(r.spans)))) for r in (x, y)]
    return a._replace(seed=rest[0]), b._replace(seed=rest[1]), count


def _elements(engine: Engine, side: Side, spans: Iterable[Span]) -> Operation[Elements]:
    found, _ = yield from read_elements(engine, side.stored.thread, spans, Look.of(side.state))
    return found


def _value(side: Side, channel: str, refs: _Refs, elements: Elements) -> Any:
    if refs.seed is None and not refs.is_delta:
        return NOTHING
    elements.reader = channel
    with named(side.stored):
        try:
            return _decoded(refs, elements)
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
    effort, encode = Effort(), engine.codec.encode
    channels = {
        name: channel_diff(
            name, pair, (a.entry(name).version, b.entry(name).version), encode, effort
        )
        for name, pair in pairs.items()
    }
    return StateDiff(_diff_side(a), _diff_side(b), channels)


def channel_diff(
    name: str,
    pair: Pair,
    versions: tuple[Version | None, Version | None],
    encode: Callable[[Any], bytes],
    effort: Effort,
) -> ChannelDiff:
    """Compare the values of a channel (see `differences`)."""
    changes = _changes(pair, encode, effort)
    kind: Any = "unchanged" if same_version(*versions) else "version"
    if changes:
        whole = len(changes) == 1 and changes[0].kind in ("added", "removed")
        kind = changes[0].kind if whole and not changes[0].after_at else "changed"
    return ChannelDiff(name, kind, *versions, changes, pair.is_delta, is_internal(name))


def _diff_side(side: Side) -> DiffSide:
    row, metadata = side.stored.row, side.metadata
    return DiffSide(
        thread=side.stored.thread,
        checkpoint_ns=row.ns,
        checkpoint=row.id,
        time=unpack_time(row.ts),
        step=metadata.get("step"),
        source=metadata.get("source"),
    )


def _changes(pair: Pair, encode: Callable[[Any], bytes], effort: Effort) -> tuple[Change, ...]:
    before, after = pair.before, pair.after
    if before is after:
        return ()
    if before is NOTHING:
        return (Change("added", (), (), after=after),)
    if after is NOTHING:
        return (Change("removed", (), (), before),)
    changes = differences(before, after, encode, effort)
    return tuple([_moved(change, pair.skipped) for change in changes]) if pair.skipped else changes


def _moved(change: Change, by: int) -> Change:
    """Return a change of a list after `by` elements."""
    (i, *before), (j, *after) = change.before_at, change.after_at
    return replace(change, before_at=(i + by, *before), after_at=(j + by, *after))


# -- versions of a channel -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelVersion:
    """Version of a channel, and the checkpoint that first had it.

    Attributes:
        version: the version.
        checkpoint: the checkpoint's id.
        time: the checkpoint's time, as ISO text.
        step: `step` of its metadata, if any.
        source: `source` of its metadata, if any.
        has_value: True if the channel had a value. A DeltaChannel has one only at its snapshots.
        is_first: False if an older checkpoint with this version was pruned.
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
    place = validation.place(thread, ns, checkpoint)
    name, most = validation.text("channel", channel, place), validation.limit(limit)

    def read(states: list[ThreadState]) -> Operation[list[_Since]]:
        (state,) = states
        start = place._replace(id=_found(place, state).row.id)
        return (yield from _trace(engine, start, name, most, state))

    found = yield from _read_stable((place,), read)
    return [_version(engine, since) for since in found[:most]]


class _Since(NamedTuple):
    """The oldest visible checkpoint with a version, so far."""

    stored: StoredCheckpoint
    entry: ChannelEntry
    is_first: bool = True


class _Trace:
    """Versions found on the way up. If `is_open`, the last one may have begun earlier."""

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine = engine
        self.found: list[_Since] = []
        self.is_open = False
        self._channel = channel
        self._known: Keyframes = {}

    def add(self, stored: StoredCheckpoint) -> None:
        """Add the next ancestor."""
        with named(stored):
            entry = read_channels(self._engine, stored, self._known)[0].entries.get(self._channel)
        hidden = bool(stored.row.flags & HIDDEN)
        if entry is None or entry.version is None:
            self.is_open = False
        elif self.is_open and same_version(entry.version, self.found[-1].entry.version):
            if hidden:
                self.cut()
            else:
                self.found[-1] = _Since(stored, entry)
        else:
            self.is_open = not hidden
            if not hidden:
                self.found.append(_Since(stored, entry))

    def cut(self) -> None:
        """Note that earlier checkpoints were pruned."""
        if self.is_open:
            self.found[-1] = self.found[-1]._replace(is_first=False)

    def has(self, limit: int | None) -> bool:
        """Return True if `limit` versions are found with their first checkpoints."""
        return limit is not None and len(self.found) - self.is_open >= limit


def _trace(
    engine: Engine, place: CheckpointRef, channel: str, limit: int | None, start: ThreadState
) -> Operation[list[_Since]]:
    trace, met = _Trace(engine, channel), set[str]()
    at, size = place.id, FIRST_STRETCH
    while at is not None and not trace.has(limit):
        rows, state = yield from stretch(place, at, size)
        if not Proof.of(start).holds(state.generation, state.tips):
            raise StaleThreadError(thread=place.thread)
        # (a stretch begins with the last row of the previous one. Damaged rows may form a circle)
        new = {stored.row.id: stored for stored in rows if stored.row.id not in met}
        met |= new.keys()
        for stored in new.values():
            trace.add(stored)
        if len(rows) < size and rows and rows[-1].row.parent is not None:
            trace.cut()
        at = rows[-1].row.id if len(rows) == size and new else None
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
