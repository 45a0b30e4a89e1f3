"""Edit values of a checkpoint: a new checkpoint after it, which starts the same nodes.

This is `graph.update_state` without a graph: no reducer runs, and no node's edges are followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep._core import arguments, validation
from threadkeep._core.engine import load, put
from threadkeep._core.engine.calls import Put
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import LAYERS_KEY, LAYERS_NS
from threadkeep._core.engine.operation import CheckpointRef, Operation
from threadkeep._core.engine.registration import retry
from threadkeep._core.langgraph_internals import DELTA_COUNTERS, JOIN, is_internal
from threadkeep._core.versions import compare_versions, next_version
from threadkeep.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ThreadNotFoundError,
    invalid,
)

NOTHING: Any = object()
"""Stands for the value of a channel without one."""


def edit(
    engine: Engine,
    thread: str,
    values: Mapping[str, Any],
    checkpoint: str | None,
    *,
    if_head: bool,
) -> Operation[RunnableConfig]:
    at = validation.place(thread, "", checkpoint)
    new = dict(validation.mapping("values", values, at))
    if not new:
        raise invalid("values", None, "Give the new value of one channel or more.")
    if if_head and at.id is None:
        raise invalid("if_head", if_head, "Give the checkpoint_id that must be the newest one.")

    def attempt() -> Operation[RunnableConfig]:
        state = yield from _state(engine, at if not if_head else at._replace(id=None), new)
        if if_head and state.id != at.id:
            raise ConflictError(
                "The thread has a newer checkpoint.",
                hint="Read it, and edit that one.",
                thread=at.thread,
                checkpoint=state.id,
            )
        yield from _check(engine, state, new)
        call = child(state, new, {})
        # (with any option of the saver: no run may have continued meanwhile)
        yield from put.save(engine._replace(conflicts="raise"), call)
        return arguments.stored(call)

    return attempt() if if_head else retry(at.thread, attempt, ConflictError)


def _state(engine: Engine, at: CheckpointRef, names: Mapping[str, Any]) -> Operation[load.Loaded]:
    """Load the edited channels, all of them if the program has changed their shapes."""
    call = load.Load(at)
    if engine.shapes is None:
        found = yield from load.part(engine, call, [*names])
    else:
        found = yield from load.load(engine, call)
    if found is None and at.id is None:
        raise ThreadNotFoundError(thread=at.thread)
    if found is None:
        raise CheckpointNotFoundError(thread=at.thread, checkpoint=at.id)
    return found


def _check(engine: Engine, state: load.Loaded, names: Mapping[str, Any]) -> Operation[None]:
    place = {"thread": state.thread, "checkpoint": state.id}
    check_no_deltas(state, "Set it with graph.update_state.")
    for name in names:
        if name not in state.checkpoint["channel_versions"]:
            hint = "Set it with graph.update_state, which knows the channels of the graph."
            raise invalid("channel", name, hint, channel=name, **place)
        if is_internal(name) or name.startswith(JOIN):
            hint = "It decides which nodes run next: use graph.update_state."
            raise invalid("channel", name, hint, channel=name, **place)
    record = archived(state)
    if record:
        channel = (yield from record_of(engine, state.thread, record)).checkpoint["channel_values"][
            "record"
        ]["channel"]
        if channel in names:
            raise InvalidArgumentError(
                f"Layered memory has archived messages of {channel!r}.",
                hint="Edit it with the LayeredCheckpointSaver of the program.",
                channel=channel,
                **place,
            )


# -- parts that merging uses too -------------------------------------------------------


def check_no_deltas(state: load.Loaded, hint: str) -> None:
    """Refuse DeltaChannels, whose values are not in the checkpoints."""
    deltas = set(state.metadata.get(DELTA_COUNTERS) or ())
    values = state.checkpoint["channel_values"]
    deltas |= {name for name, value in values.items() if isinstance(value, _DeltaSnapshot)}
    if deltas:
        raise InvalidArgumentError(
            f"{min(deltas)} is a DeltaChannel: only the graph can compute its value.",
            hint=hint,
            thread=state.thread,
            channel=min(deltas),
        )


def archived(state: load.Loaded) -> str | None:
    """Name the record of archived messages: "" if there are none, None if saved without layers."""
    found = state.metadata.get(LAYERS_KEY)
    return found if isinstance(found, str) else None


def record_of(engine: Engine, thread: str, key: str) -> Operation[Any]:
    """Load a record of archived messages."""
    found = yield from load.load(engine, load.Load(CheckpointRef(thread, LAYERS_NS, key)))
    if found is None:
        raise CorruptionError(f"Record {key} of archived messages is missing.", thread=thread)
    return found


def child(state: load.Loaded, values: Mapping[str, Any], metadata: Mapping[str, Any]) -> Put:
    """Build a checkpoint after `state` with new values, with the same nodes to run next."""
    checkpoint, step = state.checkpoint, int(state.metadata.get("step", 0)) + 1
    versions = checkpoint["channel_versions"]
    newest = max(versions.values(), key=cmp_to_key(compare_versions), default=None)
    version, id = next_version(newest), str(uuid6(clock_seq=step))
    seen = {
        node: {c: version if c in values and v == versions.get(c) else v for c, v in known.items()}
        for node, known in checkpoint["versions_seen"].items()
    }
    merged = {**checkpoint["channel_values"], **values}
    new = {
        **checkpoint,
        "id": id,
        "ts": datetime.now(UTC).isoformat(),
        "channel_values": {c: v for c, v in merged.items() if v is not NOTHING},
        "channel_versions": {**versions, **dict.fromkeys(values, version)},
        "versions_seen": seen,
        "updated_channels": None,  # (otherwise LangGraph looks only at these for the next nodes)
    }
    parents = state.metadata.get("parents", {})
    said: dict[str, Any] = {"source": "update", "step": step, "parents": parents, **metadata}
    record = archived(state)
    if record is not None:
        said.setdefault(LAYERS_KEY, record)
    place = CheckpointRef(state.thread, state.ns, id)
    return Put(place, state.id, new, said, frozenset(values), edits=True)
