"""Workflows behind `saver.threads`: differences of checkpoints, versions of a channel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from threadkeep import arguments, validation
from threadkeep.diff import (
    Change,
    ChannelDiff,
    DiffSide,
    StateDiff,
    checkpoints,
    differences,
    trace,
)
from threadkeep.diff.checkpoints import Compared, Pair, Side
from threadkeep.diff.effort import Effort
from threadkeep.diff.trace import ChannelVersion
from threadkeep.engine.context import Engine
from threadkeep.engine.operation import (
    CheckpointRef,
    Operation,
)
from threadkeep.engine.rows import unpack_time
from threadkeep.errors import invalid
from threadkeep.langgraph_internals import is_internal
from threadkeep.store.workflows import Plan, Store, aside, on

Where: TypeAlias = RunnableConfig | tuple[str, str | None]
"""A config, or the id of a thread and that of a checkpoint (None: the head)."""


def compare(
    store: Store, engine: Engine, before: CheckpointRef, after: CheckpointRef
) -> Plan[StateDiff]:
    """See `Threads.diff`."""
    found = yield from on(store, checkpoints.compare(engine, before, after))
    # (Where much differs this takes long enough to hold up an event loop.)
    return (yield from aside(partial(_state_diff, engine, found)))


def place(where: Where) -> CheckpointRef:
    """Return the place that a caller of `Threads.diff_places` names."""
    if isinstance(where, Mapping):
        return arguments.place(where)
    if isinstance(where, tuple | list) and len(where) == 2:  # noqa: PLR2004 - a pair
        return validation.place(where[0], "", where[1])
    hint = "Use state.config, or (thread id, checkpoint id or None)."
    raise invalid("place to compare", where, hint)


def versions(
    engine: Engine, thread: str, channel: str, ns: str, limit: int | None, checkpoint: str | None
) -> Operation[list[ChannelVersion]]:
    """See `Threads.versions`."""
    at = validation.place(thread, ns, checkpoint)
    name = validation.text("channel", channel, at)
    return trace.versions(engine, at, name, validation.limit(limit))


def _state_diff(engine: Engine, found: Compared) -> StateDiff:
    effort = Effort()
    channels = {name: _channel(engine, name, pair, effort) for name, pair in found.channels.items()}
    return StateDiff(_side(found.before), _side(found.after), channels)


def _side(side: Side) -> DiffSide:
    row, metadata = side.stored.row, side.metadata
    return DiffSide(
        thread=side.stored.thread,
        ns=row.ns,
        checkpoint=row.id,
        time=unpack_time(row.ts),
        step=metadata.get("step"),
        source=metadata.get("source"),
    )


def _channel(engine: Engine, name: str, pair: Pair, effort: Effort) -> ChannelDiff:
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
    if not before.is_there:
        return (Change("added", (), (), after=after.value),) if after.is_there else ()
    if not after.is_there:
        return (Change("removed", (), (), before.value),)
    return differences(before.value, after.value, engine.codec.encode, effort)
