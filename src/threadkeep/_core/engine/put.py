"""Saving a checkpoint, and a task's pending writes: the changes in one commit.

A channel with the parent's version has the parent's value, which is not read, unless the caller
names the channel as new. Writes may arrive before their checkpoint, after it, or without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from threadkeep._core.codec import Codec
from threadkeep._core.engine import lives, model, refs, thread_summary
from threadkeep._core.engine.calls import Put, PutWrites, SaveCall
from threadkeep._core.engine.context import (
    KEYFRAME_EVERY,
    RUN_ATTEMPTS,
    Built,
    Engine,
    Failed,
    look,
    read_channels,
    read_elements,
    remember,
    resume_logs,
    to_store,
    unless_hidden,
    watched_value,
)
from threadkeep._core.engine.draft import Draft
from threadkeep._core.engine.logs import KEYFRAMES
from threadkeep._core.engine.operation import (
    CheckpointRef,
    Operation,
    commit,
    fetch,
    fetch_checkpoint,
)
from threadkeep._core.engine.refs import ChannelEntry, Inline, Manifest, Ref, Version
from threadkeep._core.engine.rows import pack_metadata, pack_time, pack_writes, seal
from threadkeep._core.engine.shapes import settled
from threadkeep._core.engine.snapshots import (
    LOADS,
    ChannelValue,
    CheckpointSnapshot,
    Keyframe,
    LoadEntry,
    own_copy,
)
from threadkeep._core.engine.thread_memory import ThreadMemory
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.langgraph_internals import DELTA_COUNTERS, ERROR_SOURCE
from threadkeep.errors import (
    BackendError,
    CodecError,
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadkeepError,
)

_NO_VALUES: Mapping[str, ChannelValue] = {}
_KNOWN_KEYS = frozenset(
    {*("v", "id", "ts", "channel_values", "channel_versions", "versions_seen"), "updated_channels"}
)


def build(engine: Engine, call: SaveCall) -> Built | None:
    """Build the batch of a call, or None if the store must be read first."""
    memory = engine.working_set.thread(call.place.thread)
    proof = memory.proof
    if proof is None or (proof.life and not _is_sure(engine, memory, call)):
        return None
    if isinstance(call, PutWrites):
        with memory.encoding:
            return _writes_batch(engine, memory, call, proof)
    if call.record and call.record != memory.record:
        return None
    parent = _known_parent(engine, memory, call)
    if call.parent is not None and (
        parent is None or not (parent.complete or not _lost(parent, call))
    ):
        return None
    with memory.encoding:
        values = _NO_VALUES if parent is None else parent.values
        return _put_batch(engine, memory, call, proof, parent, values, join=True)


def _is_sure(engine: Engine, memory: ThreadMemory, call: SaveCall) -> bool:
    """Return True if a save on a thread that was deleted needs no look at the rows."""
    place = call.place
    if lives.of(engine, call) is not None:
        return True
    if isinstance(call, PutWrites):
        return (place.ns, str(place.id)) in memory.states
    return call.parent is not None or not place.ns  # (an unknown parent is always read)


def save(engine: Engine, call: SaveCall, failed: Failed | None = None) -> Operation[None]:
    """Build the batch of a call and commit it, again if its log positions were taken.

    `failed` is the batch of a first attempt, and its error. Raises ConflictError if another run was
    faster and `conflicts="raise"`, or if others kept taking the positions.
    """
    place, counts = call.place, engine.working_set.counts
    for attempt in range(RUN_ATTEMPTS):
        built, failure = failed or ((yield from _attempt(engine, call, attempt)), None)
        failed, done = None, False
        try:
            if failure is not None:
                raise failure
            yield from commit(built.batch)
            done = True
        except SegmentTakenError:
            counts.retries += 1
            engine.memory(place.thread).taken(built.batch)
        except StaleThreadError:
            counts.retries += 1
            engine.working_set.forget(place.thread)
        except ThreadkeepError as exc:
            if isinstance(exc, ConflictError):
                counts.conflicts += 1
                if isinstance(call, Put):
                    with suppress(BackendError):  # report the conflict
                        yield from _sweep(engine, call)
            exc.at(**place.named())
            raise
        finally:  # (also if it was interrupted, and may or may not be stored)
            if not done:
                built.draft.failed()
        if done:
            remember(engine, place, built)
            return
    raise ConflictError(
        "Other processes keep taking the log positions of this thread.",
        hint="Try the call again.",
        **place.named(),
    )


def _attempt(engine: Engine, call: SaveCall, attempt: int) -> Operation[Built]:
    """Build a batch."""
    memory = engine.memory(call.place.thread)
    proof = memory.proof
    is_sure = proof is None or not proof.life or _is_sure(engine, memory, call)
    if isinstance(call, PutWrites):
        if proof is None or not is_sure:  # the thread may not exist, or may be archived
            call = call.with_copies()  # the program continues while the store is read
            noted = lives.noted(engine, call, str(call.place.id))
            reply = yield from fetch_checkpoint(*call.place)
            if call.fences and unless_hidden(reply.found) is None:
                raise _removed(call)
            lives.refuse_orphan(call, reply)
            if INTERRUPT in [channel for channel, _ in call.writes]:
                lives.refuse_lost(engine, call, noted, reply)
            proof = Proof.of(reply)
            memory = _proven(engine, call, proof)
        with memory.encoding:
            return _writes_batch(engine, memory, call, proof)
    parent = _known_parent(engine, memory, call)
    if proof is None or not is_sure or (parent is None and call.parent is not None):
        call = call.with_copies()
        proof, parent = yield from _read_parent(engine, call)
        memory = _proven(engine, call, proof)
        if call.edits and parent is None:
            raise _removed(call)
    record = call.record
    if record and record != memory.record:
        call = call.with_copies()
        yield from _expect_record(engine, call, record)
    values = _NO_VALUES
    if parent is not None:
        values = yield from _recall(engine, memory, parent, call, proof, resume=attempt == 0)
    with memory.encoding:
        return _put_batch(engine, memory, call, proof, parent, values, join=attempt == 0)


def _expect_record(engine: Engine, call: Put, record: str) -> Operation[None]:
    """Refuse a checkpoint of layered memory if the store has lost the messages archived before it.

    The commit must prove the read too: a proof that the read refutes is refused.
    """
    thread = call.place.thread
    reply, proof = yield from look(engine, CheckpointRef(thread, model.LAYERS_NS, record))
    if unless_hidden(reply.found) is not None:
        engine.memory(thread).note_record(record, proof)
    elif lives.of(engine, call) in (None, reply.life):  # (the store refuses another life)
        raise lives.lost(call.place)


def _proven(engine: Engine, call: SaveCall, proof: Proof) -> ThreadMemory:
    """Return the thread's memory, or an empty one if other rows prove it.

    Another call may have forgotten the thread meanwhile, or have read it before a loss.
    """
    memory = engine.memory(call.place.thread)
    return memory if memory.proof is proof else engine.apart().memory(call.place.thread)


def _removed(call: SaveCall) -> ThreadkeepError:
    return ConflictError("The checkpoint was removed meanwhile.").at(**call.place.named())


def _sweep(engine: Engine, call: Put) -> Operation[None]:
    """Remove the pending writes of a run that lost: they will never be read."""
    loaded = call.loaded
    if loaded is None:
        return
    reply = yield from fetch(model.ReadThread(call.place.thread))
    rows = cast("model.ThreadRows", reply)
    own = [r for r in rows.orphans if (r.ns, r.checkpoint_id) == (call.place.ns, call.place.id)]
    for stored in rows.checkpoints:
        if (stored.row.ns, stored.row.id) == (call.place.ns, call.parent):
            own += [r for r in stored.writes if r.run == loaded.run]
    drops = tuple((r.ns, r.checkpoint_id, r.seq) for r in own)
    if drops:
        yield from commit(model.Batch(call.place.thread, engine.now(), drop_writes=drops))


def _known_parent(engine: Engine, memory: ThreadMemory, call: Put) -> CheckpointSnapshot | None:
    """Return None also for a parent whose writes may be lost, if a DeltaChannel needs them."""
    parent = call.parent
    if parent is None or (
        DELTA_COUNTERS in call.metadata and not lives.is_proven(engine, call, parent, memory.proof)
    ):
        return None
    return memory.parent(call.place.ns, parent, LOADS.of(parent))


def _read_parent(engine: Engine, call: Put) -> Operation[tuple[Proof, CheckpointSnapshot | None]]:
    place = call.place
    noted = None
    if call.parent is not None and DELTA_COUNTERS in call.metadata:
        noted = lives.noted(engine, call, call.parent)
    reply, proof = yield from look(engine, CheckpointRef(place.thread, place.ns, call.parent))
    lives.refuse_lost(engine, call, noted, reply)
    if call.parent is None or reply.found is None:
        if lives.of(engine, call) is None:
            yield from lives.refuse_missing(place, call.parent, call.metadata, reply)
        return proof, None
    read, key = read_channels(engine, reply.found)
    row = reply.found.row
    read = read if engine.shapes is None else settled(read)
    data, codec = row.manifest, engine.codec
    return proof, CheckpointSnapshot(place.ns, row.id, row.flags, read, key, {}, data, codec)


def _recall(
    engine: Engine,
    memory: ThreadMemory,
    parent: CheckpointSnapshot,
    call: Put,
    proof: Proof,
    *,
    resume: bool,
) -> Operation[Mapping[str, ChannelValue]]:
    """Return the parent's values of the changed channels, reading those that are unknown."""
    lost = {} if parent.complete else _lost(parent, call)
    if not lost:
        return parent.values
    held = dict(parent.values)
    spans = [span for ref in lost.values() for span in ref.needs]
    # If the old value cannot be read, the new one is stored whole.
    with suppress(CodecError):
        found, segments = yield from read_elements(engine, call.place.thread, spans, proof.look)
        if resume:
            resume_logs(memory, parent.ns, parent.manifest, parent.keyframe, segments, proof)
        for channel, ref in lost.items():
            with suppress(CodecError):
                held[channel] = watched_value(ref, found, found.value(ref))
    return held


def _lost(parent: CheckpointSnapshot, call: Put) -> dict[str, Ref]:
    """Return the channels whose value at the parent is needed and unknown."""
    held, values = parent.values, call.checkpoint["channel_values"]
    versions = call.checkpoint["channel_versions"]
    lost: dict[str, Ref] = {}
    for channel, entry in parent.manifest.entries.items():
        ref = entry.ref
        if ref is None or channel in held or not ref.needs:
            continue
        is_kept = channel not in values or _is_kept(call, entry, channel, versions.get(channel))
        if not (is_kept or isinstance(ref, Inline)):
            lost[channel] = ref
    return lost


def _is_kept(call: Put, entry: ChannelEntry, channel: str, version: Version) -> bool:
    before = entry.version
    if version is None or version != before or type(version) is not type(before) or call.complete:
        return False
    return channel not in call.new or channel not in call.checkpoint["channel_values"]


def _put_batch(
    engine: Engine,
    memory: ThreadMemory,
    call: Put,
    proof: Proof,
    parent: CheckpointSnapshot | None,
    known: Mapping[str, ChannelValue],
    *,
    join: bool,
) -> Built:
    place, ns, now, codec = call.place, call.place.ns, engine.now(), engine.codec
    draft = Draft(memory, codec, ns, engine.compression)
    try:
        written, held, complete = _manifest(codec, draft, call, parent, known)
        metadata, exact = pack_metadata(call.metadata, codec)
    except ThreadkeepError as exc:
        exc.at(**place.named())
        raise
    stored = written if engine.shapes is None else to_store(engine, ns, written)
    key = parent.keyframe if parent is not None else None
    if key is not None and key.used < KEYFRAME_EVERY:
        key = Keyframe(*key[:3], key.used + 1, *key[4:])
    else:  # the parent's is used up
        whole = refs.encode_manifest(stored)
        log, pos = draft.append(KEYFRAMES, [whole])
        key = Keyframe(written, log, pos, 1, refs.numbers(written), len(whole))
    data = refs.encode_manifest(stored, key.manifest, key.numbers)
    if join:
        draft.seal()
    segments = draft.segments()
    draft.publish(proof)
    reported, loaded, owner = memory.reported, LOADS.of(call.parent), None
    flags = model.FREE if call.metadata.get("source") == "fork" else 0
    by = call.by and call.by.mark
    if loaded is not None:  # a run begins: others may have reported other metadata meanwhile
        reported, flags = reported._replace(metadata={}), flags | loaded.flags
        owner = None if parent is not None and _is_held(parent, loaded) else loaded
    elif parent is not None:  # a run continues, and keeps the FREE of its first checkpoint
        flags = flags | parent.flags & model.FREE
        owner = parent.owner if by is None or parent.by in (None, by) else None
    if call.edits and parent is not None:  # (it names only the channels that it changes)
        flags |= parent.flags & model.CONTINUES
    elif thread_summary.continues(call.checkpoint["channel_values"]):
        flags |= model.CONTINUES
    row = _row(call, loaded, flags, metadata, exact, key, data)
    # A run that named no checkpoint expects to continue from the head.
    fence = None if ns or flags & model.FREE else model.HeadFence(ns, row.parent)
    fences = (fence,) if fence is not None and engine.conflicts == "raise" else ()
    size, taken = draft.stored, call.takes
    if taken is not None:
        size -= taken.size
    touch = thread_summary.of_checkpoint(row, call.metadata, size, now, reported)
    batch = model.Batch(
        thread=place.thread,
        now=now,
        generation=proof.generation,
        life=lives.of(engine, call),
        fences=call.fences or fences,
        segments=segments,
        checkpoints=(row,),
        drop_segments=draft.dropped,
        drop_checkpoints=() if taken is None else ((model.INPUTS_NS, taken.id),),
        touch=touch,
        link=Link(proof, home=draft.home, borrowed=draft.borrowed),
        guard=call.guard,
        words=None if engine.words is None or ns else _words(engine, call, written, parent),
    )
    state = CheckpointSnapshot(
        *(ns, row.id, flags, written, key, held, row.manifest, codec, owner, draft.fresh),
        complete=complete,
        by=by,
    )
    reported = thread_summary.report_of(reported, touch, call.metadata)
    begins = loaded is not None
    fence = fence if call.run or begins else None
    return Built(memory, proof, batch, draft, state, reported, fence, begins, call.by)


def _words(
    engine: Engine, call: Put, written: Manifest, parent: CheckpointSnapshot | None
) -> model.Words | None:
    """Return the words of the messages that a checkpoint adds, or None if they are unknown."""
    whole = call.parent is None
    if engine.words is None or (parent is None and not whole):
        return None
    values, entries = call.checkpoint["channel_values"], written.entries
    known = refs.EMPTY if parent is None or whole else parent.manifest

    def added(name: str) -> Sequence[int] | None:
        old = known.entries.get(name)
        return refs.added(entries[name].ref, None if old is None else old.ref)

    return model.Words(engine.words(call.place.thread if whole else "", values, added), whole)


def _is_held(parent: CheckpointSnapshot, loaded: LoadEntry) -> bool:
    """Return True if a run other than a load's may hold values of its checkpoint."""
    owner = parent.owner
    return owner is not loaded and bool(parent.values) and (owner is None or not owner.ended)


def _row(
    call: Put,
    loaded: LoadEntry | None,
    flags: int,
    metadata: str,
    exact: bytes | None,
    key: Keyframe,
    data: bytes,
) -> model.CheckpointRow:
    (_, ns, own_id), above = call.place, call.parent
    run, seen = (0, 0) if loaded is None else (loaded.run, loaded.seen)
    own_id, ts = str(own_id), pack_time(call.checkpoint.get("ts", ""))
    # (the columns of the row that the checksum covers, in order, the ids as `own_copy`)
    at = (ns, own_id[:1] + own_id[1:], above and above[:1] + above[1:], run, seen, flags, ts)
    fields = (*at, metadata, exact, key.log, key.pos)
    return model.CheckpointRow(*fields, seal(data, fields))


def _manifest(
    codec: Codec,
    draft: Draft,
    call: Put,
    parent: CheckpointSnapshot | None,
    known: Mapping[str, ChannelValue],
) -> tuple[Manifest, dict[str, ChannelValue], bool]:
    """Store the changed values.

    Returns the manifest, the values known now, and True if none is unknown.
    """
    checkpoint = call.checkpoint
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    before = parent.manifest if parent is not None else refs.EMPTY
    old_entries, new, all_new = before.entries, call.new, call.complete
    entries: dict[str, ChannelEntry] = {}
    held: dict[str, ChannelValue] = {}
    complete = True
    for channel, version in versions.items():
        old = old_entries.get(channel)
        if (  # as `_is_kept`, for all channels of every save
            old is not None
            and version == old[0]
            and type(version) is type(old[0])
            and version is not None
            and not all_new
            and (channel not in new or channel not in values)
        ):
            entries[channel] = old
            if channel in known:
                held[channel] = known[channel]
            elif old[1] is not None:
                complete = False
        elif channel in values:
            ref, held[channel] = draft.value(channel, values[channel], known.get(channel))
            entries[channel] = ChannelEntry(version, ref)
        else:
            entries[channel] = ChannelEntry(version, None)
    if not values.keys() <= versions.keys():
        for channel in [name for name in values if name not in versions]:
            ref, held[channel] = draft.value(channel, values[channel], known.get(channel))
            entries[channel] = ChannelEntry(None, ref)
    extra = None
    if not checkpoint.keys() <= _KNOWN_KEYS:
        extra = codec.encode({k: v for k, v in checkpoint.items() if k not in _KNOWN_KEYS})
    updated = checkpoint.get("updated_channels", False)
    if updated is not None and updated is not False:
        updated = list(updated)
    seen = refs.sharing(checkpoint.get("versions_seen", {}), before.seen)
    return Manifest(checkpoint.get("v", 1), entries, seen, updated, extra), held, complete


def _writes_batch(engine: Engine, memory: ThreadMemory, call: PutWrites, proof: Proof) -> Built:
    place, now, indexes = call.place, engine.now(), call.indexes
    thread, ns, own_id = place
    draft = Draft(memory, engine.codec, ns, engine.compression, writes=True)
    # A write may precede its checkpoint: then it is compared with the one before.
    state = memory.states.get((ns, str(own_id))) or memory.newest(ns)
    held = state.values if state is not None else {}
    made: list[tuple[int, str, Ref]] = []
    status: str | None = None
    error: object = None
    try:
        for number, (channel, value) in enumerate(call.writes):
            if channel == INTERRUPT:
                status = "waiting"
            # A failed task's exception is stored as its repr, as by LangGraph's savers, so that a
            # value that cannot be stored does not mask the node's own error.
            failed = channel == ERROR and isinstance(value, BaseException)
            stored = repr(value) if failed else value
            if channel == ERROR:
                error = value
            ref, _ = draft.value(channel, stored, held.get(channel))
            own = WRITES_IDX_MAP.get(channel, number) if indexes is None else indexes[number]
            made.append((own, channel, ref))
    except ThreadkeepError as exc:
        exc.at(**place.named())
        raise
    segments = draft.segments()
    draft.publish(proof)
    loaded = LOADS.of(own_id)
    run, since = (0, 0) if loaded is None else (loaded.run, loaded.seen)
    # (the columns of the row that the checksum covers, in order)
    fields = (ns, own_copy(str(own_id)), run, since, call.task_id, call.task_path)
    shapes = engine.shapes and engine.shapes_in(ns)
    body = pack_writes(made, 1 if shapes is None else shapes.shape, call.note)
    row = model.WriteRow(*fields, seal(body, fields))
    if error is not None and all(channel != ERROR_SOURCE for channel, _ in call.writes):
        status = "failed"
    status = None if ns else status
    # With `conflicts="raise"`, a run fails if it meets the writes of another live run.
    is_fenced = (
        engine.conflicts == "raise"
        and not ns
        and loaded is not None
        and not loaded.flags & (model.FREE | model.NESTED)
    )
    fence = (model.WritesFence(ns, row.checkpoint_id, run, since),) if is_fenced else ()
    touch = thread_summary.of_writes(row, draft.stored, now, status, error)
    batch = model.Batch(
        thread=thread,
        now=now,
        generation=proof.generation,
        life=lives.of(engine, call),
        fences=call.fences or fence,
        segments=segments,
        writes=(row,),
        touch=touch._replace(at=now) if call.fences else touch,
        link=Link(proof, home=draft.home, borrowed=draft.borrowed),
        guard=call.guard,
        asks=call.asks,
    )
    return Built(memory, proof, batch, draft, by=call.by)
