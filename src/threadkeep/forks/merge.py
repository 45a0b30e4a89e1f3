"""Merging a fork back into its origin, channel by channel, as one new checkpoint there.

A channel that only one side has changed since the fork began is never a conflict.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep import validation
from threadkeep.arguments import compare_versions, next_version
from threadkeep.engine import load, put, registration
from threadkeep.engine.context import Engine
from threadkeep.engine.elements import Elements
from threadkeep.engine.lineage import Lineage
from threadkeep.engine.model import Child, ReadThread, ThreadRows
from threadkeep.engine.operation import CheckpointRef, Operation, fetch, fetch_segments
from threadkeep.engine.optimistic import retry
from threadkeep.engine.refs import covering
from threadkeep.engine.rows import Write, counting
from threadkeep.errors import (
    CheckpointNotFoundError,
    ConflictError,
    InvalidArgumentError,
    MergeConflictError,
    ThreadNotFoundError,
    invalid,
)
from threadkeep.forks import branches as trees
from threadkeep.forks import fork as forking
from threadkeep.forks.branches import Branches
from threadkeep.langgraph_internals import DELTA_COUNTERS, is_internal
from threadkeep.registry.info import ThreadInfo, info

NOTHING: Any = object()
"""Stands for the value of a channel without one."""

Resolve: TypeAlias = Callable[[str, Any, Any, Any], Any]
"""Called with a channel's name and its value at the beginning, here and in the fork; returns the
new value."""


class Reducer(Protocol):
    """A channel of LangGraph, as a graph has it in its `channels`."""

    def from_checkpoint(self, checkpoint: Any) -> Any:
        """Return a channel with this value."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Resolution of a channel that both sides have changed: one of these.

    A side, a function, or the channels of the graph, whose reducers take the fork's writes.
    """

    side: Literal["theirs", "ours"] | None = None
    resolve: Resolve | None = None
    reducers: Mapping[str, Reducer] | None = None


class MergeConflict(NamedTuple):
    """A channel that both sides have changed, and how that was resolved."""

    channel: str
    resolution: str


@dataclass(frozen=True, slots=True)
class Merge:
    """The result of a merge, or of a dry run.

    Args:
        fork, into: the threads.
        base: the checkpoint that the fork began with.
        taken: channels that only the fork has changed.
        conflicts: channels that both have changed.
        checkpoint: the new checkpoint of `into`; None where nothing was written.
    """

    fork: str
    into: str
    base: str
    taken: tuple[str, ...]
    conflicts: tuple[MergeConflict, ...]
    checkpoint: str | None = None


class New(NamedTuple):
    """Id and time of the checkpoint that a merge makes, and the version of its new values."""

    id: str
    ts: str
    version: float | str


Making: TypeAlias = Callable[[int, Iterable[float | str]], New]
"""Makes that of the checkpoint's step and the versions so far."""


def merge_threads(
    engine: Engine, fork: str, into: str, strategy: Strategy | None, making: Making | None
) -> Operation[Merge]:
    """Merge a fork into another thread, which holds the checkpoint that it began with.

    Args:
        engine: the engine's parts.
        fork: the fork, which is not changed.
        into: the other thread.
        strategy: for conflicts; None to refuse where there is one.
        making: makes the id, time and version of the new checkpoint; None for a dry run.

    Raises:
        ThreadNotFoundError: one of them holds nothing.
        CheckpointNotFoundError: the checkpoint that the fork began with is not there any more.
        InvalidArgumentError: the fork is none of this thread, or a channel cannot be merged.
        MergeConflictError: both have changed a channel, and there is no strategy.
        ConflictError: others keep writing to the thread.
    """

    def attempt() -> Operation[Merge]:
        base_id = yield from _base(fork, into)
        base = yield from _loaded(engine, into, base_id)
        ours = yield from _loaded(engine, into, None)
        theirs = yield from _loaded(engine, fork, None)
        _check_channels(base, ours, theirs)
        written = yield from _written(engine, fork, base_id, strategy)
        values, taken, conflicts = _merged(engine, (base, ours, theirs), strategy, written)
        report = Merge(fork, into, base_id, taken, conflicts)
        if making is None or not values:
            return report
        known = ours.checkpoint["channel_versions"].values()
        made = making(int(ours.metadata.get("step", 0)) + 1, known)
        # (whatever else is promised of this saver: nobody may have moved on meanwhile)
        fenced = engine._replace(conflicts="raise")
        yield from put.put(fenced, _checkpoint(into, ours, theirs, values, made))
        return replace(report, checkpoint=made.id)

    return retry(into, attempt, ConflictError)


# -- the three states ------------------------------------------------------------------


def _base(fork: str, into: str) -> Operation[str]:
    entry = yield from registration.read(fork)
    if entry is None:
        raise ThreadNotFoundError(thread=fork)
    if entry.origin is None or fork == into:
        raise InvalidArgumentError(
            "This thread is no fork.", hint="Merge a thread that threads.fork made.", thread=fork
        )
    return entry.origin[1]


def _loaded(engine: Engine, thread: str, checkpoint: str | None) -> Operation[load.Loaded]:
    found = yield from load.load(engine, load.Load(CheckpointRef(thread, "", checkpoint)))
    if found is None and checkpoint is None:
        raise ThreadNotFoundError(thread=thread)
    if found is None:
        raise CheckpointNotFoundError(
            "The checkpoint that the fork began with is not in this thread.",
            hint="It may have been pruned, or the fork be another thread's: see its forked_from.",
            thread=thread,
            checkpoint=checkpoint,
        )
    return found


def _check_channels(*states: load.Loaded) -> None:
    """Refuse channels whose values are not in their checkpoints."""
    for state in states:
        deltas = set(state.metadata.get(DELTA_COUNTERS) or ())
        values = state.checkpoint["channel_values"]
        deltas |= {name for name, value in values.items() if isinstance(value, _DeltaSnapshot)}
        if deltas:
            raise InvalidArgumentError(
                f"{min(deltas)} is a DeltaChannel, whose value only the graph can put together.",
                hint="Set it with graph.update_state, and delete the fork.",
                thread=state.thread,
                channel=min(deltas),
            )


# -- channel by channel ------------------------------------------------------------------


def _merged(
    engine: Engine,
    states: Sequence[load.Loaded],
    strategy: Strategy | None,
    written: Mapping[str, Sequence[Sequence[Any]]],
) -> tuple[dict[str, Any], tuple[str, ...], tuple[MergeConflict, ...]]:
    """The new values, the channels taken and the conflicts of: the beginning, here, the fork."""

    def same(one: Any, other: Any) -> bool:
        """Return True if they are stored as the same bytes."""
        if one is NOTHING or other is NOTHING:
            return one is other
        return engine.codec.encode(one) == engine.codec.encode(other)

    values: dict[str, Any] = {}
    taken: list[str] = []
    conflicts: list[MergeConflict] = []
    sides = [state.checkpoint["channel_values"] for state in states]
    for channel in dict.fromkeys([name for side in sides for name in side]):
        base, ours, theirs = (side.get(channel, NOTHING) for side in sides)
        if is_internal(channel) or same(theirs, base):
            continue  # (LangGraph's own channels say what runs next)
        if same(ours, base):
            taken.append(channel)
            values[channel] = theirs
            continue
        if same(theirs, ours) and not (strategy and strategy.reducers):
            continue  # (a reducer may count both)
        value, resolution = _resolved(strategy, channel, (base, ours, theirs), written)
        conflicts.append(MergeConflict(channel, resolution))
        if not same(value, ours):
            values[channel] = value
    if strategy is None and conflicts:
        raise MergeConflictError(
            f"Both have changed {', '.join([one.channel for one in conflicts])}.",
            hint='Resolve it: strategy="theirs", "ours", a function, or the graph.',
        )
    return values, tuple(taken), tuple(conflicts)


def _resolved(
    strategy: Strategy | None,
    channel: str,
    values: tuple[Any, Any, Any],
    written: Mapping[str, Sequence[Sequence[Any]]],
) -> tuple[Any, str]:
    """The value of a channel that both have changed, and how it was resolved."""
    base, ours, theirs = values
    if strategy is None:
        return ours, ""
    if strategy.side is not None:
        return (theirs, "theirs") if strategy.side == "theirs" else (ours, "ours")
    if strategy.resolve is not None:
        shown = [None if value is NOTHING else value for value in (base, ours, theirs)]
        return strategy.resolve(channel, *shown), "function"
    reducers = strategy.reducers or {}
    if channel not in reducers:
        raise InvalidArgumentError(
            f"The graph has no channel {channel!r}, which both have changed.",
            hint="Use the graph that these threads were run with, or another strategy.",
            channel=channel,
        )
    reducer = reducers[channel].from_checkpoint(ours) if ours is not NOTHING else None
    if reducer is None:
        return theirs, "theirs"
    for step in written.get(channel, ()):
        reducer.update(list(step))
    return reducer.checkpoint(), "reducer"


# -- what was written in the fork --------------------------------------------------------


def _written(
    engine: Engine, fork: str, base: str, strategy: Strategy | None
) -> Operation[dict[str, list[list[Any]]]]:
    """The values that each superstep of the fork wrote to each channel, if reducers need them."""
    if strategy is None or strategy.reducers is None:
        return {}
    rows = cast("ThreadRows", (yield from fetch(ReadThread(fork))))
    steps = list(_steps(rows, base))
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


def _steps(rows: ThreadRows, base: str) -> Iterator[list[Write]]:
    """The writes that led from each checkpoint to the next, oldest first, from the base on."""
    lineage = Lineage(rows.checkpoints)
    head = max(key for key in lineage.stored if not key[0])
    ids = list(lineage.path(head))
    if ("", base) not in ids:
        raise CheckpointNotFoundError(
            "The checkpoint that the fork began with is not in the fork any more.",
            hint="It was pruned, so reducers lack its values. Use another strategy.",
            checkpoint=base,
        )
    ids = ids[: ids.index(("", base)) + 1]
    for above, below in zip(ids[:0:-1], ids[-2::-1], strict=True):
        row = lineage.stored[below].row
        yield counting(lineage.stored[above].writes, Child(row.id, row.run, row.seen))


# -- the new checkpoint ------------------------------------------------------------------


def _checkpoint(
    into: str, ours: load.Loaded, theirs: load.Loaded, values: Mapping[str, Any], made: New
) -> put.Put:
    """A checkpoint behind ours with some new values, which no node is started by."""
    checkpoint = dict(ours.checkpoint)
    versions = {**checkpoint["channel_versions"], **dict.fromkeys(values, made.version)}
    seen = {
        node: {c: made.version if c in values else v for c, v in known.items()}
        for node, known in checkpoint["versions_seen"].items()
    }
    merged = {**checkpoint["channel_values"], **values}
    checkpoint |= {
        "id": made.id,
        "ts": made.ts,
        "channel_values": {c: v for c, v in merged.items() if v is not NOTHING},
        "channel_versions": versions,
        "versions_seen": seen,
        "updated_channels": None,  # (what is named here alone would be looked at for what is next)
    }
    metadata = {
        "source": "update",
        "step": int(ours.metadata.get("step", 0)) + 1,
        "parents": {},
        "merged_from": theirs.thread,
        "merged_checkpoint": theirs.id,
    }
    place = CheckpointRef(into, "", made.id)
    return put.Put(place, ours.id, checkpoint, metadata, frozenset(values))


MergeStrategy: TypeAlias = Literal["theirs", "ours"] | Callable[[str, Any, Any, Any], Any] | Any
"""The value of a channel that both threads have changed: see `Threads.merge_fork`."""


def fork(
    engine: Engine, thread: str, checkpoint_id: str | None, new_thread_id: str | None
) -> Operation[ThreadInfo]:
    """See `Threads.fork`."""
    source = validation.thread_id(thread)
    target = str(uuid.uuid4()) if new_thread_id is None else validation.thread_id(new_thread_id)
    at = validation.checkpoint_id(checkpoint_id)
    return info((yield from forking.fork(engine, source, at, target)))


def merge(
    engine: Engine, fork: str, into: str, strategy: MergeStrategy | None, *, dry_run: bool
) -> Operation[Merge]:
    """See `Threads.merge_fork`."""
    how = _strategy(strategy)
    if dry_run and how is None:
        how = Strategy(side="ours")
    making = None if dry_run else _new_checkpoint
    return merge_threads(
        engine, validation.thread_id(fork), validation.thread_id(into), how, making
    )


def _strategy(value: MergeStrategy | None) -> Strategy | None:
    if value is None:
        return None
    if isinstance(value, str) and value in ("theirs", "ours"):
        return Strategy(side="theirs" if value == "theirs" else "ours")
    channels = getattr(value, "channels", None)
    if isinstance(channels, Mapping):  # (a graph can be called, too)
        return Strategy(reducers=channels)
    if not callable(value):
        hint = 'Use "theirs", "ours", a function, or the compiled graph.'
        raise invalid("strategy", value, hint)
    return Strategy(resolve=value)


def _new_checkpoint(step: int, versions: Iterable[float | str]) -> New:
    """Return a checkpoint's id and time, and a version after all of these."""
    newest = max(versions, key=cmp_to_key(compare_versions), default=None)
    now = datetime.now(UTC).isoformat()
    return New(str(uuid6(clock_seq=step)), now, next_version(newest))


def branches(engine: Engine, thread: str, ns: str) -> Operation[Branches]:
    """See `Threads.branches`."""
    place = validation.place(thread, ns)
    return trees.branches(engine, place.thread, place.ns)


def all_branches(engine: Engine, thread: str) -> Operation[dict[str, Branches]]:
    """See `Threads.branches_by_ns`."""
    return trees.all_branches(engine, validation.place(thread).thread)
