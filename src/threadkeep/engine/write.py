"""Storing a task's pending writes: one row, and the elements it brings.

Writes may come before their checkpoint, after it, or for one that never comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from threadkeep.engine import checksum, registry
from threadkeep.engine.appender import Appender
from threadkeep.engine.calls import Operation, Place, fetch_checkpoint
from threadkeep.engine.committing import (
    Built,
    Failed,
    committed,
)
from threadkeep.engine.context import Engine
from threadkeep.engine.draft import Draft
from threadkeep.engine.loads import LOADS, LoadEntry, copied
from threadkeep.engine.model import FREE, NESTED, Batch, WriteRow, WritesFence
from threadkeep.engine.put import born
from threadkeep.engine.rows import pack_writes
from threadkeep.engine.shadow import still
from threadkeep.engine.working_set import ThreadMemory
from threadkeep.errors import ThreadkeepError

Writes: TypeAlias = Sequence[tuple[str, Any]]  # channel and value


class PutWrites(NamedTuple):
    """A `put_writes` call. `place.id` is in the table of loads if the run loaded that checkpoint.

    `indexes` are the writes' own, where another saver has given them.
    """

    place: Place
    writes: Writes
    task_id: str
    task_path: str
    indexes: Sequence[int] | None = None

    def index_of(self, number: int, channel: str) -> int:
        """The index of a write, given its number and channel."""
        if self.indexes is not None:
            return self.indexes[number]
        return WRITES_IDX_MAP.get(channel, number)


def built(engine: Engine, call: PutWrites) -> Built | None:
    """Build the batch of the writes at once; None where the store must be asked first.

    Raises:
        UnserializableError: a value cannot be stored.
    """
    memory = engine.memory(call.place.thread)
    generation = memory.generation
    if generation is None:
        return None
    with memory.encoding:
        return _build(engine, memory, call, generation)


def put_writes(engine: Engine, call: PutWrites, failed: Failed | None = None) -> Operation[None]:
    """Store the writes.

    Args:
        engine: the engine's parts.
        call: the arguments.
        failed: a batch that was built of them, and what its commit ended with.

    Raises:
        UnserializableError: a value cannot be stored; nothing was.
        ConflictError: with `conflicts="raise"`, another live run has written here.
        ThreadDeletedError: the run is older than the thread's deletion.
    """
    build = partial(_built, engine, call)
    yield from committed(engine, call.place, build, failed=failed)


def _built(engine: Engine, call: PutWrites, attempt: int) -> Operation[Built]:
    del attempt  # each is made alike
    memory = engine.memory(call.place.thread)
    generation = memory.generation
    if generation is None:  # nobody has looked whether the thread is there, and not archived
        copies = still([value for _, value in call.writes]).copies  # the program goes on meanwhile
        channels = [channel for channel, _ in call.writes]
        call = call._replace(writes=list(zip(channels, copies, strict=True)))
        state = yield from fetch_checkpoint(*call.place)
        generation = state.generation
    with memory.encoding:
        return _build(engine, memory, call, generation)


def _build(engine: Engine, memory: ThreadMemory, call: PutWrites, generation: int) -> Built:
    place, now = call.place, engine.now()
    thread, ns, own_id = place
    appender = Appender(memory, ns, engine.compression)
    draft = Draft(memory, engine.codec, appender, writes=True)
    # A write may come before its checkpoint is stored: then the one before shows what is there.
    state = memory.state(ns, str(own_id)) or memory.newest(ns)
    held = state.held if state is not None else {}
    made = []
    try:
        for number, (channel, value) in enumerate(call.writes):
            stored = repr(value) if _is_error(channel, value) else value
            ref, seen = draft.value(channel, stored, held.get(channel))
            made.append((call.index_of(number, channel), channel, ref, seen))
    except ThreadkeepError as exc:
        exc.at(**place.named())
        raise
    segments = appender.segments()
    draft.settle(generation)
    loaded = LOADS.of(own_id)
    run, since = (0, 0) if loaded is None else (loaded.run, loaded.seen)
    # (what the checksum covers, and the columns of the row, in their order)
    told_of = (ns, copied(str(own_id)), run, since, call.task_id, call.task_path)
    body = checksum.seal(pack_writes([one[:3] for one in made]), told_of)
    row = WriteRow(*told_of, body)
    waits = _begins_to_wait(memory, row, call.writes)
    batch = Batch(
        thread=thread,
        now=now,
        generation=generation,
        born=born(own_id),
        fences=_fences(engine, loaded, row),
        segments=segments,
        writes=(row,),
        touch=registry.of_writes(row, appender.stored, now, waits=waits),
    )
    beside = None if state is None else state.id
    return Built(memory, batch, appender, beside=beside, writes=tuple(made))


def _begins_to_wait(memory: ThreadMemory, row: WriteRow, writes: Writes) -> bool:
    """Return True if these interrupt a task of the thread's head."""
    if row.ns or INTERRUPT not in [channel for channel, _ in writes]:
        return False
    latest = memory.newest("")
    return latest is None or latest.id <= row.checkpoint_id


def _is_error(channel: str, value: Any) -> bool:
    """Return True for a failed task's exception: its repr is stored, as by LangGraph's savers.

    The one exemption from exactness: else a node's own error would be masked.
    """
    return channel == ERROR and isinstance(value, BaseException)


def _fences(engine: Engine, loaded: LoadEntry | None, row: WriteRow) -> tuple[WritesFence, ...]:
    """A run that meets another live run's writes on the checkpoint it loaded loses here."""
    if engine.conflicts != "raise" or row.ns or loaded is None or loaded.flags & (FREE | NESTED):
        return ()
    return (WritesFence(row.ns, row.checkpoint_id, row.run, row.seen),)
