"""Layered memory in merges: archived messages go with the messages that come after them.

A checkpoint with layers names, in its metadata, the record of what is archived before the messages
that it stores. So of two sides a merge takes both or neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep._core.engine import load, put
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import LAYERS_KEY, LAYERS_NS
from threadkeep._core.engine.operation import CheckpointRef, Operation
from threadkeep.errors import CorruptionError, InvalidArgumentError


def archived(state: load.Loaded) -> str | None:
    """Return the record of what is archived: "" for nothing, None if saved without layers."""
    found = state.metadata.get(LAYERS_KEY)
    return found if isinstance(found, str) else None


def channel(engine: Engine, states: Sequence[load.Loaded]) -> Operation[str | None]:
    """Return the channel of which the base, ours and theirs have archived different messages.

    None if they have archived the same: then it is merged as any other.

    Raises:
        InvalidArgumentError: a head does not say what is archived.
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
    found = yield from _record(engine, state.thread, str(record))
    return str(found.checkpoint["channel_values"]["record"]["channel"])


def joined(state: load.Loaded, channel: str) -> load.Loaded:
    """Return a state with a channel's value as `[record, messages]`."""
    values = state.checkpoint["channel_values"]
    both = [archived(state) or "", values.get(channel, [])]
    return state._replace(
        checkpoint={**state.checkpoint, "channel_values": {**values, channel: both}}
    )


def carry(engine: Engine, fork: str, into: str, key: str) -> Operation[None]:
    """Copy a record of a fork, and those that it continues, as far as a thread lacks them."""
    lacking: list[str] = []
    at: str | None = key or None
    while at is not None and (yield from _loaded(engine, into, at)) is None:
        lacking.append(at)
        at = (yield from _record(engine, fork, at)).parent
    for one in reversed(lacking):
        record = yield from _record(engine, fork, one)
        new = frozenset(record.checkpoint["channel_values"])
        place = CheckpointRef(into, LAYERS_NS, one)
        call = put.Put(place, record.parent, record.checkpoint, record.metadata, new)
        yield from put.save(engine, call)


def _loaded(engine: Engine, thread: str, key: str) -> Operation[load.Loaded | None]:
    return (yield from load.load(engine, load.Load(CheckpointRef(thread, LAYERS_NS, key))))


def _record(engine: Engine, thread: str, key: str) -> Operation[Any]:
    found = yield from _loaded(engine, thread, key)
    if found is None:
        raise CorruptionError(f"The record {key} of archived messages is missing.", thread=thread)
    return found
