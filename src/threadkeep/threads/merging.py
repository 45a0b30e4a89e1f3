"""Merge a fork into its origin, channel by channel, as one new checkpoint of the origin.

A channel that only one side has changed since the fork is not a conflict. A checkpoint with layered
memory names the record of the messages archived before those that it stores, so a merge takes the
record and the messages of one side together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from threadkeep._core import validation
from threadkeep._core.codec import comparable
from threadkeep._core.engine import load, put, registration
from threadkeep._core.engine.calls import Put
from threadkeep._core.engine.context import Engine, read_writes
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import Lineage
from threadkeep._core.engine.model import LAYERS_KEY, LAYERS_NS, Child, ReadThread, ThreadRows
from threadkeep._core.engine.operation import CheckpointRef, Operation, fetch, fetch_segments
from threadkeep._core.engine.refs import covering
from threadkeep._core.engine.registration import retry
from threadkeep._core.engine.rows import Write
from threadkeep._core.langgraph_internals import is_internal
from threadkeep.errors import (
    CheckpointNotFoundError,
    ConflictError,
    InvalidArgumentError,
    MergeConflictError,
    ThreadNotFoundError,
    invalid,
)
from threadkeep.threads.editing import NOTHING, archived, check_no_deltas, child, record_of

_Written: TypeAlias = Mapping[str, Sequence[Sequence[Any]]]  # by channel, of each superstep

MergeStrategy: TypeAlias = Literal["theirs", "ours"] | Callable[[str, Any, Any, Any], Any] | Any
"""The value of a channel that both threads have changed: see `Threads.merge_fork`."""


class MergeConflict(NamedTuple):
    """A channel that both sides have changed, and how the conflict was resolved."""

    channel: str
    resolution: str


@dataclass(frozen=True, slots=True)
class MergeReport:
    """Result of a merge, or of a dry run.

    Args:
        fork, into: ids of the threads.
        base: the checkpoint that was forked.
        channels: channels that only the fork has changed.
        conflicts: channels that both have changed.
        checkpoint: the new checkpoint of `into`, or None if nothing was written.
    """

    fork: str
    into: str
    base: str
    channels: tuple[str, ...]
    conflicts: tuple[MergeConflict, ...]
    checkpoint: str | None = None


def merge(
    engine: Engine, fork: str, into: str, strategy: MergeStrategy | None, *, dry_run: bool
) -> Operation[MergeReport]:
    fork, into = validation.thread_id(fork), validation.thread_id(into)
    _check_strategy(strategy)

    def attempt() -> Operation[MergeReport]:
        base_id = yield from _base(fork, into)
        base = yield from _loaded(engine, into, base_id)
        ours = yield from _loaded(engine, into, None)
        theirs = yield from _loaded(engine, fork, None)
        for one in (base, ours, theirs):
            check_no_deltas(one, "Set it with graph.update_state, and delete the fork.")
        written: _Written = {}
        if _reducers(strategy) is not None:
            written = yield from _written(engine, fork, base_id)
        states: Sequence[load.Loaded] = (base, ours, theirs)
        layered = yield from _layered_channel(engine, states)
        if layered is not None:
            states = [_joined(state, layered) for state in states]
        how = _How(strategy, written, layered)
        values, channels, conflicts = _merged(engine, states, how)
        if conflicts and strategy is None and not dry_run:
            raise MergeConflictError(
                f"Both threads have changed {', '.join([one.channel for one in conflicts])}.",
                hint='Resolve it: strategy="theirs", "ours", a function, or the graph.',
            )
        report = MergeReport(fork, into, base_id, channels, conflicts)
        if dry_run or not values:
            return report
        said = {"merged_from": theirs.thread, "merged_checkpoint": theirs.id}
        if layered in values:
            said[LAYERS_KEY], values[layered] = values[layered]
            yield from _carry(engine, fork, ours, said[LAYERS_KEY])
        call = child(ours, values, said)
        # (with any option of the saver: no run may have continued meanwhile)
        yield from put.save(engine._replace(conflicts="raise"), call)
        return replace(report, checkpoint=call.place.id)

    return retry(into, attempt, ConflictError)


class _How(NamedTuple):
    """Rules for channels that both have changed.

    `written` holds the fork's writes. `layered` is a channel whose values are `[record, messages]`.
    """

    strategy: MergeStrategy | None
    written: _Written
    layered: str | None


def _check_strategy(value: MergeStrategy | None) -> None:
    is_side = isinstance(value, str) and value in ("theirs", "ours")
    if value is not None and not is_side and not callable(value) and _reducers(value) is None:
        hint = 'Use "theirs", "ours", a function, or the compiled graph.'
        raise invalid("strategy", value, hint)


def _reducers(strategy: MergeStrategy | None) -> Mapping[str, Any] | None:
    """The channels of a compiled graph, or None for other strategies."""
    channels = getattr(strategy, "channels", None)
    return channels if isinstance(channels, Mapping) else None


# -- the three states ------------------------------------------------------------------


def _base(fork: str, into: str) -> Operation[str]:
    entry = yield from registration.read(fork)
    if entry is None:
        raise ThreadNotFoundError(thread=fork)
    if entry.origin is None or fork == into:
        raise InvalidArgumentError(
            "This thread is not a fork.", hint="Merge a thread that threads.fork made.", thread=fork
        )
    return entry.origin[1]


def _loaded(engine: Engine, thread: str, checkpoint: str | None) -> Operation[load.Loaded]:
    found = yield from load.load(engine, load.Load(CheckpointRef(thread, "", checkpoint)))
    if found is None and checkpoint is None:
        raise ThreadNotFoundError(thread=thread)
    if found is None:
        raise CheckpointNotFoundError(
            "The forked checkpoint is not in this thread.",
            hint="It was pruned, or another thread was forked: see forked_from of the fork.",
            thread=thread,
            checkpoint=checkpoint,
        )
    return found


# -- channel by channel ------------------------------------------------------------------


def _merged(
    engine: Engine, states: Sequence[load.Loaded], how: _How
) -> tuple[dict[str, Any], tuple[str, ...], tuple[MergeConflict, ...]]:
    """Merge the states base, ours and theirs: new values, channels of the fork, conflicts."""

    def same(one: Any, other: Any) -> bool:
        """Compare values and types."""
        if one is NOTHING or other is NOTHING:
            return one is other
        return comparable(engine.codec, one) == comparable(engine.codec, other)

    values: dict[str, Any] = {}
    channels: list[str] = []
    conflicts: list[MergeConflict] = []
    sides = [state.checkpoint["channel_values"] for state in states]
    for channel in dict.fromkeys([name for side in sides for name in side]):
        base, ours, theirs = (side.get(channel, NOTHING) for side in sides)
        if is_internal(channel) or same(theirs, base):
            continue  # (LangGraph's own channels decide which nodes run next)
        if same(ours, base):
            channels.append(channel)
            values[channel] = theirs
        elif _reducers(how.strategy) is not None or not same(theirs, ours):
            # (a reducer may add up equal values)
            value, resolution = _resolved(how, channel, (base, ours, theirs))
            conflicts.append(MergeConflict(channel, resolution))
            if not same(value, ours):
                values[channel] = value
    return values, tuple(channels), tuple(conflicts)


def _resolved(how: _How, channel: str, values: tuple[Any, Any, Any]) -> tuple[Any, str]:
    """Resolve a channel that both have changed: its value, and the name of the resolution."""
    strategy, (_, ours, theirs) = how.strategy, values
    if strategy is None or isinstance(strategy, str):
        return (theirs, "theirs") if strategy == "theirs" else (ours, "ours")
    if channel == how.layered:
        raise InvalidArgumentError(
            f"Both threads have added to {channel!r} and archived messages of it.",
            hint='Use strategy="theirs" or "ours", which take one conversation whole.',
            channel=channel,
        )
    reducers = _reducers(strategy)
    if reducers is None:
        shown = [None if value is NOTHING else value for value in values]
        return strategy(channel, *shown), "function"
    if channel not in reducers:
        raise InvalidArgumentError(
            f"Both threads have changed channel {channel!r}, which the graph lacks.",
            hint="Use the graph that ran these threads, or another strategy.",
            channel=channel,
        )
    if ours is NOTHING:
        return theirs, "theirs"
    reducer = reducers[channel].from_checkpoint(ours)
    for step in how.written.get(channel, ()):
        reducer.update(list(step))
    return reducer.checkpoint(), "reducer"


# -- writes of the fork ------------------------------------------------------------------


def _written(engine: Engine, fork: str, base: str) -> Operation[_Written]:
    """Read the values that each superstep of the fork wrote to each channel."""
    rows = cast("ThreadRows", (yield from fetch(ReadThread(fork))))
    steps = list(_steps(engine, rows, base))
    spans = covering([span for step in steps for write in step for span in write.ref.needs])
    segments = yield from fetch_segments(fork, spans)
    elements = Elements(engine.codec, segments)
    found: dict[str, list[list[Any]]] = {}
    for step in steps:
        values: dict[str, list[Any]] = {}
        for write in step:
            values.setdefault(write.channel, []).append(elements.value(write.ref))
        for channel, some in values.items():
            found.setdefault(channel, []).append(some)
    return found


def _steps(engine: Engine, rows: ThreadRows, base: str) -> Iterator[list[Write]]:
    """Iterate over the writes between checkpoints of the fork, from the base on."""
    lineage = Lineage(rows.checkpoints)
    head = max(key for key in lineage.stored if not key[0])
    ids = list(lineage.path(head))
    if ("", base) not in ids:
        raise CheckpointNotFoundError(
            "The forked checkpoint was pruned from the fork.",
            hint="Reducers need its values. Use another strategy.",
            checkpoint=base,
        )
    ids = ids[: ids.index(("", base)) + 1]
    for above, below in zip(ids[:0:-1], ids[-2::-1], strict=True):
        row = lineage.stored[below].row
        child = Child(row.id, row.run, row.seen)
        yield read_writes(engine, row.ns, lineage.stored[above].writes, child)


# -- layered memory ----------------------------------------------------------------------


def _layered_channel(engine: Engine, states: Sequence[load.Loaded]) -> Operation[str | None]:
    """Find the channel with different archived messages in base, ours and theirs, if any.

    Raises InvalidArgumentError if a head was saved without layers.
    """
    records = [archived(state) for state in states]
    heads = list(zip(states, records, strict=True))[1:]
    if not any(records):
        return None
    for state, record in heads:
        if record is None:
            raise InvalidArgumentError(
                "The newest checkpoint of this thread was saved without layers.",
                hint="Save one with them first: LayeredCheckpointSaver(saver).save(config, [...]).",
                thread=state.thread,
            )
    if len({record or "" for record in records}) == 1:
        return None
    state, record = next(one for one in heads if one[1])
    found = yield from record_of(engine, state.thread, str(record))
    return str(found.checkpoint["channel_values"]["record"]["channel"])


def _joined(state: load.Loaded, channel: str) -> load.Loaded:
    """Replace a channel's value in a state by `[record, messages]`."""
    values = state.checkpoint["channel_values"]
    both = [archived(state) or "", values.get(channel, [])]
    return state._replace(
        checkpoint={**state.checkpoint, "channel_values": {**values, channel: both}}
    )


def _carry(engine: Engine, fork: str, ours: load.Loaded, key: str) -> Operation[None]:
    """Copy a record of a fork, and the records before it, unless the thread has them.

    The copies belong to our checkpoint: the thread does not have the fork's.
    """
    into = ours.thread
    lacking: list[str] = []
    at: str | None = key or None
    while at is not None and (yield from load.load(engine, _place(into, at))) is None:
        lacking.append(at)
        at = (yield from record_of(engine, fork, at)).parent
    for one in reversed(lacking):
        record = yield from record_of(engine, fork, one)
        new = frozenset(record.checkpoint["channel_values"])
        place = CheckpointRef(into, LAYERS_NS, one)
        metadata = {**record.metadata, "parents": {"": ours.id}}
        call = Put(place, record.parent, record.checkpoint, metadata, new)
        yield from put.save(engine, call)


def _place(thread: str, record: str) -> load.Load:
    return load.Load(CheckpointRef(thread, LAYERS_NS, record))
