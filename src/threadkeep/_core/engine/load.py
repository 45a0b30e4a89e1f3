"""Reading checkpoints with their values and pending writes: one, several, or their history.

A run may be lent the objects that the last run of the thread left in the working set. All other
readers get fresh objects, and no object occurs in two places of one load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from threadkeep._core.engine import model, refs
from threadkeep._core.engine.context import (
    TOKEN_BITS,
    Engine,
    Keyframes,
    keyframe_of,
    look,
    named,
    read_channels,
    read_elements,
    read_writes,
    resume_logs,
    unless_hidden,
    watched_value,
)
from threadkeep._core.engine.elements import Elements, gc_paused
from threadkeep._core.engine.lending import Grown, in_fresh_container, longer, to_lend
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Fetch,
    Operation,
    fetch_checkpoint,
)
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.refs import Manifest, Ref
from threadkeep._core.engine.rows import Write, counting, unpack_metadata, unpack_time
from threadkeep._core.engine.shapes import refuse_marked, settled
from threadkeep._core.engine.snapshots import (
    ITSELF,
    LOADS,
    RUNS,
    ChannelValue,
    CheckpointSnapshot,
)
from threadkeep._core.engine.thread_memory import ThreadMemory
from threadkeep._core.engine.tips import Look, Proof
from threadkeep.errors import ConflictError, CorruptionError, StaleThreadError, ThreadkeepError

_task = attrgetter("task_id", "run")


@quick
class Load(NamedTuple):
    """A `get_tuple` call by a run (`run`), or from inside a running task (`nested`)."""

    place: CheckpointRef
    run: bool = False
    nested: bool = False
    by: Any = None  # identifies the run of the graph


@quick
class Loaded(NamedTuple):
    """A checkpoint as a caller gets it. Only elements lent to a run are shared."""

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
    """Return the checkpoint, or None if it does not exist."""
    place, before = call.place, None
    while True:
        reply, proof = yield from look(engine, place)
        stored, seen = unless_hidden(reply.found), Look.of(reply)
        if call.by is not None:
            inner = call.nested and place.ns != ""
            thread = engine.working_set.key, place.thread
            run = RUNS.begin(call.by, thread, reply.life, first=call.run, inner=inner)
            if stored is not None:
                tasks = (ITSELF, *map(_task, stored.writes))
                run.note((thread, stored.row.ns, stored.row.id), tasks, proof)
        if stored is None:
            return None
        try:
            return (yield from _read(engine, call, stored, seen, proof))
        except ThreadkeepError as exc:
            # Segments may have been removed between the two reads, so read again.
            if not isinstance(exc, CorruptionError) or seen == before:
                exc.at(thread=place.thread, namespace=place.ns or None, checkpoint=stored.row.id)
                raise
            before = seen


def part(
    engine: Engine, call: Load, channels: Collection[str] | None = None
) -> Operation[Loaded | None]:
    """Return the checkpoint with the values and pending writes of these channels alone.

    Never for a run: the working set is neither used nor changed.
    """
    place, before = call.place, None
    while True:
        reply = yield from fetch_checkpoint(*place)
        stored = unless_hidden(reply.found)
        if stored is None:
            return None
        wanted = Wanted(channels, _flags(call), Look.of(reply))
        try:
            with named(stored):
                return (yield from of_thread(engine, place.thread, [stored], wanted))[0]
        except CorruptionError:  # (as in `load`)
            if Look.of(reply) == before:
                raise
            before = Look.of(reply)


def _flags(call: Load) -> int:
    return (model.FREE if call.place.id else 0) | (model.NESTED if call.nested else 0)


def _read(
    engine: Engine, call: Load, stored: model.StoredCheckpoint, look: Look, proof: Proof
) -> Operation[Loaded]:
    memory = engine.memory(stored.thread)
    ns, row, is_proven = stored.row.ns, stored.row, memory.proof is proof
    state = memory.states.get((ns, row.id)) if is_proven else None
    last = memory.newest(ns) if is_proven and engine.shapes is None else None
    read, key = keyframe_of(engine, stored, state, last)
    current = state is not None and state.manifest is read
    lent: dict[str, ChannelValue] = {}
    grown: dict[str, Grown] = {}
    lender = state if current else last
    if call.run and lender is not None and memory.take(lender):
        lent, grown = to_lend(engine, state if current else None, last, read)
    own = stored.writes, stored.child
    writes = counting(*own) if engine.shapes is None else read_writes(engine, ns, *own)
    spans = [span for write in writes for span in write.ref.needs]
    for name, entry in read.entries.items():
        if entry.ref is not None and name not in lent:
            spans += grown[name].rest if name in grown else entry.ref.needs
    found, segments = yield from read_elements(engine, stored.thread, spans, look)
    known = {**lent}
    with gc_paused():
        for name, part in grown.items():
            with memory.encoding:  # (it may append to a list that a save reads)
                known[name] = longer(found, name, part)
        values = {name: in_fresh_container(held) for name, held in known.items()}
        loaded = assemble(engine, stored, read, found, writes, values, _flags(call))
    record = row.id if ns == model.LAYERS_NS else loaded.metadata.get(model.LAYERS_KEY)
    if record:
        memory.note_record(record, proof)
    if call.run or call.place.id is None:  # a run, or a caller that may put the values that it read
        sound = read if engine.shapes is None else settled(read)
        for name, entry in sound.entries.items():
            if entry.ref is not None and name not in known:
                value = loaded.checkpoint["channel_values"][name]
                known[name] = watched_value(entry.ref, found, value)
        if not current:  # else the logs are open already
            resume_logs(memory, ns, sound, key, segments, proof)
        owner = LOADS.of(loaded.id)
        data, codec = row.manifest if sound is read else b"", engine.codec
        fresh = sum([held.weight for name, held in known.items() if name not in lent])
        by = RUNS.of(call.by)
        new = CheckpointSnapshot(
            *(ns, row.id, row.flags, sound, key, known, data, codec, owner, fresh),
            complete=True,
            by=by and by.mark,
        )
        _keep(engine, call, memory, new, proof, is_hit=bool(lent or grown))
    return loaded


def _keep(
    engine: Engine,
    call: Load,
    memory: ThreadMemory,
    state: CheckpointSnapshot,
    proof: Proof,
    *,
    is_hit: bool,
) -> None:
    """Remember a checkpoint, so that a save on it compares its values with those read."""
    working_set = engine.working_set
    if call.run:
        memory.publish(proof, (), state)
        working_set.counts.loads += 1
        working_set.counts.hits += is_hit
    else:
        memory.show(state, proof)
    working_set.note_use(call.place.thread, memory)


def assemble(
    engine: Engine,
    stored: model.StoredCheckpoint,
    read: Manifest,
    found: Elements,
    writes: Iterable[Write],
    values: dict[str, Any],
    flags: int,
) -> Loaded:
    """Build a checkpoint from the given values, and decode the others from `found`."""
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
        # A sibling (a copy) has the same origin as this checkpoint.
        parent = LOADS.add(row.parent, row.run, row.seen, model.FREE)
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
    if write.shape != 1:
        refuse_marked((write,))
    found.reader = write  # (its value may be changed when the write is applied)
    return write.task_id, write.channel, _decoded(found, write.ref, write.channel)


def _decoded(found: Elements, ref: refs.Ref, channel: str) -> Any:
    try:
        return found.value(ref)
    except ThreadkeepError as exc:
        exc.at(channel=channel)
        raise


class Wanted(NamedTuple):
    """The channels to read of some checkpoints, None for all, and the flags of the loads."""

    channels: Collection[str] | None = None
    flags: int = model.FREE
    look: Look | None = None


_ALL = Wanted()


def of_thread(
    engine: Engine,
    thread: str,
    rows: Sequence[model.StoredCheckpoint],
    wanted: Wanted = _ALL,
) -> Operation[list[Loaded]]:
    opened: list[tuple[model.StoredCheckpoint, Manifest, list[Write]]] = []
    spans: set[model.Span] = set()
    known: Keyframes = {}
    for stored in rows:
        with named(stored):
            read, _ = read_channels(engine, stored, known)
            writes = read_writes(engine, stored.row.ns, stored.writes, stored.child)
        if wanted.channels is not None:
            read = _only(read, wanted.channels)
            writes = [write for write in writes if write.channel in wanted.channels]
        spans.update(read.needs(), *[write.ref.needs for write in writes])
        opened.append((stored, read, writes))
    elements, _ = yield from read_elements(engine, thread, spans, wanted.look)
    loaded: list[Loaded] = []
    with gc_paused():
        for stored, read, writes in opened:
            with named(stored):
                loaded.append(assemble(engine, stored, read, elements, writes, {}, wanted.flags))
    return loaded


def listed(engine: Engine, rows: Sequence[model.StoredCheckpoint]) -> list[Loaded]:
    """Return checkpoints without reading segments.

    In place of each value is a function that decodes it, or, if segments must be read, the number
    of its elements, or None if it has none. In place of each pending write's value is None.
    """
    found, known = Elements(engine.codec), Keyframes()
    loaded: list[Loaded] = []
    for stored in rows:
        with named(stored):
            read, _ = read_channels(engine, stored, known)
            unread = {
                name: refs.elements_of(entry.ref)
                if entry.ref.needs
                else partial(_decoded, found, entry.ref, name)
                for name, entry in read.entries.items()
                if entry.ref is not None
            }
            one = assemble(engine, stored, read, found, (), unread, model.FREE)
            writes = read_writes(engine, stored.row.ns, stored.writes, stored.child)
        loaded.append(one._replace(writes=[(w.task_id, w.channel, None) for w in writes]))
    return loaded


def _only(read: Manifest, channels: Collection[str]) -> Manifest:
    """Return the manifest with the values of these channels alone."""
    entries = {
        name: entry if name in channels else entry._replace(ref=None)
        for name, entry in read.entries.items()
    }
    return read._replace(entries=entries)


FIRST_STRETCH = 32
LONGEST_STRETCH = 512


class ChannelHistory(NamedTuple):
    """A channel's writes, oldest first, and the reference of its seed, if it has one."""

    writes: list[Write]
    seed: Ref | None


def delta_history(
    engine: Engine, place: CheckpointRef, channels: Sequence[str]
) -> Operation[dict[str, dict[str, Any]]]:
    """Return each channel's `writes`, and the `seed`: the value at its nearest ancestor.

    Raises ConflictError if the checkpoint was removed since it was loaded: its run would begin
    without their values.
    """
    before = None
    while True:
        reply = yield from fetch_checkpoint(place.thread, place.ns, place.id)
        if reply.found is None and LOADS.of(place.id) is not None:  # (it was loaded before)
            removed = ConflictError(
                "The checkpoint was removed meanwhile.", hint="Try the call again."
            )
            raise removed.at(**place.named())
        try:
            return (yield from _history(engine, place, channels, reply))
        except (CorruptionError, StaleThreadError):
            # Checkpoints or segments may have been removed meanwhile, so read again.
            if Look.of(reply) == before:
                raise
            before = Look.of(reply)


def _history(
    engine: Engine, place: CheckpointRef, channels: Sequence[str], target: model.ThreadState
) -> Operation[dict[str, dict[str, Any]]]:
    found = yield from walk(engine, place, dict.fromkeys(channels), target)
    refs = [write.ref for one in found.values() for write in one.writes]
    refs += [one.seed for one in found.values() if one.seed is not None]
    spans: list[model.Span] = [span for ref in refs for span in ref.needs]
    elements, _ = yield from read_elements(engine, place.thread, spans, Look.of(target))
    result: dict[str, dict[str, Any]] = {}
    for channel, one in found.items():
        writes = [(w.task_id, w.channel, elements.value(w.ref)) for w in one.writes]
        result[channel] = {"writes": writes}
        if one.seed is not None:
            result[channel]["seed"] = elements.value(one.seed)
    return result


def walk(
    engine: Engine, place: CheckpointRef, channels: dict[str, None], target: model.ThreadState
) -> Operation[dict[str, ChannelHistory]]:
    """Walk up the path until each channel has a seed, or to the root.

    Raises StaleThreadError if checkpoints were removed meanwhile.
    """
    writes: dict[str, list[Write]] = {channel: [] for channel in channels}
    seeds: dict[str, Ref | None] = {}
    at, size = target.found.row.id if target.found else None, FIRST_STRETCH
    met: set[str] = set()
    while at is not None and len(seeds) < len(writes):
        rows, state = yield from stretch(place, at, size)
        if not Proof.of(target).holds(state.generation, state.tips):
            raise StaleThreadError(thread=place.thread)
        at = rows[-1].row.id if len(rows) == size else None
        known: Keyframes = {}
        for below, stored in pairwise(rows):
            if stored.row.id in met:  # a checkpoint may be its own ancestor
                at = None
                break
            met.add(stored.row.id)
            _gather(engine, below.row, stored, known, writes, seeds)
            if len(seeds) == len(writes):
                break
        size = min(size * 2, LONGEST_STRETCH)
    return {c: ChannelHistory(list(reversed(w)), seeds.get(c)) for c, w in writes.items()}


def stretch(
    place: CheckpointRef, at: str, size: int
) -> Operation[tuple[list[model.StoredCheckpoint], model.ThreadState]]:
    """Return a part of the path, and the thread's state after it was read."""
    path = model.ReadPath(place.thread, place.ns, at, size)
    rows, state = yield Fetch((path, model.ReadCheckpoint(place.thread, place.ns, at)))
    return rows, state


def _gather(
    engine: Engine,
    below: model.CheckpointRow,
    stored: model.StoredCheckpoint,
    known: Keyframes,
    writes: dict[str, list[Write]],
    seeds: dict[str, Ref | None],
) -> None:
    """Add an ancestor's value, and its writes that led to the checkpoint below."""
    with named(stored):
        read, _ = read_channels(engine, stored, known)
        child = model.Child(below.id, below.run, below.seen)
        led = read_writes(engine, below.ns, stored.writes, child)
    for write in reversed(led):
        if write.channel in writes and write.channel not in seeds:
            writes[write.channel].append(write)
    for channel in writes:
        entry = read.entries.get(channel)
        if channel not in seeds and entry is not None and entry.ref is not None:
            seeds[channel] = entry.ref
