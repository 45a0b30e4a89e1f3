"""Reading a checkpoint with its values and pending writes.

A run may be lent the very objects that the thread's last run left in the working set. Every other
reader gets fresh objects, and no object is in two places of what a load gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from threadkeep._core.engine import refs
from threadkeep._core.engine.context import (
    TOKEN_BITS,
    Engine,
    keyframe_of,
    read_elements,
    resume_logs,
    unless_hidden,
    watched_value,
)
from threadkeep._core.engine.elements import Elements, gc_paused
from threadkeep._core.engine.manifest import Manifest
from threadkeep._core.engine.model import FREE, NESTED, StoredCheckpoint
from threadkeep._core.engine.operation import CheckpointRef, Operation, fetch_checkpoint
from threadkeep._core.engine.rows import Write, counting, unpack_metadata, unpack_time
from threadkeep._core.engine.shadow import Shadow, disjoint
from threadkeep._core.engine.snapshots import (
    LOADS,
    CellValue,
    ChannelValue,
    CheckpointSnapshot,
    RunValue,
)
from threadkeep.errors import CorruptionError, ThreadkeepError


class Load(NamedTuple):
    """A `get_tuple` call: by a run (`run`), or from inside a running task (`nested`)."""

    place: CheckpointRef
    run: bool = False
    nested: bool = False


class Loaded(NamedTuple):
    """A checkpoint as a caller may have it: it shares only elements lent to a run."""

    thread: str
    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[tuple[str, str, Any]]


def is_hot(engine: Engine, call: Load) -> bool:
    """Return True if a run loads the head of a thread that this process has just used."""
    place = call.place
    return call.run and engine.memory(place.thread).newest(place.ns) is not None


def load(engine: Engine, call: Load) -> Operation[Loaded | None]:
    """Return the checkpoint, or None if it is not there."""
    place, generation = call.place, -1
    while True:
        hot = is_hot(engine, call)
        reply = yield from fetch_checkpoint(place.thread, place.ns, place.id, hot=hot)
        is_new = reply.found is None and not place.ns and place.id is None
        engine.memory(place.thread).meet(reply.generation, is_new=is_new)
        stored = unless_hidden(reply.found)
        if stored is None:
            return None
        try:
            return (yield from _read(engine, call, stored, reply.generation))
        except ThreadkeepError as exc:
            # Segments may have been removed between the two reads: then look again.
            if not isinstance(exc, CorruptionError) or reply.generation == generation:
                exc.at(thread=place.thread, namespace=place.ns or None, checkpoint=stored.row.id)
                raise
            generation = reply.generation


def _read(
    engine: Engine, call: Load, stored: StoredCheckpoint, generation: int
) -> Operation[Loaded]:
    memory = engine.memory(stored.thread)
    ns, row = stored.row.ns, stored.row
    state = memory.state(ns, row.id)
    read, key = keyframe_of(stored, state)
    current = state is not None and state.manifest is read
    lent = _lendable(engine, state) if call.run and current and state is not None else {}
    writes = counting(stored.writes, stored.child)
    spans = [span for write in writes for span in write.ref.needs]
    for name, entry in read.entries.items():
        if entry.ref is not None and name not in lent:
            spans += entry.ref.needs
    found, segments = yield from read_elements(engine, stored.thread, spans, generation)
    values = {}  # fresh containers of what is lent
    for name, held in lent.items():
        if isinstance(held, CellValue):
            values[name] = held.value
        elif held.seen.keys is not None:
            values[name] = dict(zip(held.seen.keys, held.seen.items, strict=True))
        else:
            items = held.seen.items
            values[name] = tuple(items) if held.kind == refs.TUPLE else items
    flags = (FREE if call.place.id else 0) | (NESTED if call.nested else 0)
    with gc_paused():
        loaded = assemble(engine, stored, read, found, writes, values, flags)
    if call.run:
        known = {**lent}
        for name, entry in read.entries.items():
            if entry.ref is not None and name not in lent:
                value = loaded.checkpoint["channel_values"][name]
                known[name] = watched_value(entry.ref, found, value)
        if not current:  # (else they are open already)
            resume_logs(memory, ns, read, key, segments, found)
        owner = LOADS.of(loaded.id)
        data, codec = row.manifest, engine.codec
        fresh = sum([held.weight for name, held in known.items() if name not in lent])
        new = CheckpointSnapshot(ns, row.id, row.flags, read, key, known, data, codec, owner, fresh)
        memory.publish(new, generation)
        engine.working_set.settle(stored.thread, memory)
        counts = engine.working_set.counts
        counts.loads += 1
        counts.hits += bool(lent)
    return loaded


def _lendable(engine: Engine, state: CheckpointSnapshot) -> dict[str, ChannelValue]:
    if state.owner is None or not state.owner.ended or state.codec != engine.codec:
        return {}
    intact = {name: held for name, held in state.values.items() if _shadow(held).holds()}
    # What is met twice is stored twice: a change to it must not show in both places.
    once = disjoint([_shadow(held) for held in intact.values()])
    return {name: held for (name, held), alone in zip(intact.items(), once, strict=True) if alone}


def _shadow(held: ChannelValue) -> Shadow:
    return held.seen.shadow if isinstance(held, RunValue) else held.shadow


def assemble(
    engine: Engine,
    stored: StoredCheckpoint,
    read: Manifest,
    found: Elements,
    writes: Iterable[Write],
    values: dict[str, Any],
    flags: int,
) -> Loaded:
    """Make a checkpoint of the values given, and of the others decoded from `found`."""
    row = stored.row
    channel_values = {}
    for name, entry in read.entries.items():
        if name in values:
            channel_values[name] = values[name]
        elif entry.ref is not None:
            found.reader = name
            channel_values[name] = _decoded(found, entry.ref, name)
    seen = max([write.seq for write in stored.writes], default=0)
    loaded_id = LOADS.add(row.id, engine.token(TOKEN_BITS) + 1, seen, flags)
    checkpoint = {
        "v": read.v,
        "ts": unpack_time(row.ts),
        "id": loaded_id,
        "channel_values": channel_values,
        "channel_versions": {
            name: entry.version for name, entry in read.entries.items() if entry.version is not None
        },
        "versions_seen": {node: dict(versions) for node, versions in read.seen.items()},
    }
    if read.updated is not False:
        checkpoint["updated_channels"] = (
            list(read.updated) if isinstance(read.updated, list) else None
        )
    if read.extra is not None:
        checkpoint |= engine.codec.decode(read.extra)
    parent = None
    if row.parent is not None:
        # A sibling (a copy) descends from what this checkpoint descends from.
        parent = LOADS.add(row.parent, row.run, row.seen, FREE)
    return Loaded(
        thread=stored.thread,
        ns=row.ns,
        id=loaded_id,
        parent=parent,
        checkpoint=checkpoint,
        metadata=unpack_metadata(row.metadata, row.exact, engine.codec),
        writes=[_written(found, write) for write in writes],
    )


def _written(found: Elements, write: Write) -> tuple[str, str, Any]:
    found.reader = write  # (who applies a write may change its value)
    return write.task_id, write.channel, _decoded(found, write.ref, write.channel)


def _decoded(found: Elements, ref: refs.Ref, channel: str) -> Any:
    try:
        return found.value(ref)
    except ThreadkeepError as exc:
        exc.at(channel=channel)
        raise
