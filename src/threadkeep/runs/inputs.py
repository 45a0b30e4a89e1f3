"""Stored inputs of a thread, and the next step of its run.

An input is a checkpoint of a namespace of its own, with one channel. The run that begins with it
removes it in the commit of LangGraph's input checkpoint, whose metadata then has its key. So a key
is known as long as the checkpoint is.
"""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from langgraph.checkpoint.base.id import uuid6

from threadkeep._core.engine import listing, load, put, thread_summary
from threadkeep._core.engine.calls import Put, TakenInput
from threadkeep._core.engine.context import Engine, unless_hidden
from threadkeep._core.engine.model import (
    INPUT_KEY,
    INPUTS_NS,
    HeadFence,
    ReadCheckpoint,
    ScanCheckpoints,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep._core.engine.operation import CheckpointRef, Fetch, Operation
from threadkeep._core.engine.registration import OVERTAKEN, retry
from threadkeep._core.engine.rows import created_at, id_after, unpack_time
from threadkeep._core.engine.thread_entry import ReadEntry, ThreadEntry, sound
from threadkeep._core.engine.thread_summary import row_size
from threadkeep._core.langgraph_internals import follow_ids
from threadkeep.errors import StateError, ThreadDeletedError
from threadkeep.threads import answering

MOST = 100  # stored inputs of a thread
_CHANNEL = "input"
_OVER = "question"  # in metadata: the checkpoint that asked when the input was stored
_ATTEMPTS = 100  # to store an input: a run and other inputs may be faster


class SubmittedInput(NamedTuple):
    """An input that is stored.

    Args:
        thread_id: its thread.
        key: its key.
        id: its own id.
        is_taken: a run has begun with it.
    """

    thread_id: str
    key: str
    id: str
    is_taken: bool


class NextInput(NamedTuple):
    """The input to run next."""

    taken: TakenInput
    value: Any


def submit(
    engine: Engine, thread: str, value: Any, key: str, *, is_new: bool
) -> Operation[SubmittedInput]:
    """Store an input, if none with this key was stored. `is_new`: no other has the key."""

    def attempt() -> Operation[SubmittedInput]:
        nonlocal is_new
        state, pending, entry = yield Fetch(
            [ReadCheckpoint(thread, "", None), _scan(thread), ReadEntry(thread)]
        )
        for one in pending:
            if _key_of(one) == key:
                return SubmittedInput(thread, key, one.row.id, is_taken=False)
        wanted = listing.Listing(thread, "", None, None, {INPUT_KEY: key}, 1, lazy=True)
        at: listing.Listing | None = None if is_new else wanted
        while at is not None:
            found, at = yield from listing.page(engine, at)
            if found:
                return SubmittedInput(thread, key, found[0].id, is_taken=True)
        if len(pending) >= MOST:
            raise StateError(
                f"{MOST} inputs of the thread wait for a run.",
                hint="Resume the thread: saver.runs.resume(graph, thread_id).",
                thread=thread,
            )
        said = {INPUT_KEY: key}
        if (question := _question(entry)) is not None:
            said[_OVER] = question
        call = _saving(thread, value, said, cast("ThreadState", state), pending)
        is_new = False  # (the answer may be lost, and a run may take the input meanwhile)
        yield from put.save(engine.apart(), call)
        return SubmittedInput(thread, key, str(call.place.id), is_taken=False)

    return retry(thread, attempt, (*OVERTAKEN, ThreadDeletedError), _ATTEMPTS)


def _question(entry: ThreadEntry | None) -> str | None:
    """Return the checkpoint at which a question waits."""
    return entry.status_at if entry is not None and entry.status == "waiting" else None


def _scan(thread: str) -> ScanCheckpoints:
    return ScanCheckpoints(thread, INPUTS_NS, None, None, {}, None, MOST)


def _key_of(stored: StoredCheckpoint) -> Any:
    return thread_summary.shown(stored.row).get(INPUT_KEY)


def _saving(
    thread: str,
    value: Any,
    metadata: dict[str, Any],
    state: ThreadState,
    pending: list[StoredCheckpoint],
) -> Put:
    """Return the save of an input. It is refused if the thread or its inputs have changed."""
    head = unless_hidden(state.found)
    last = pending[0].row.id if pending else None
    own_id = str(uuid6())
    for one in (last, head and head.row.id):
        made = created_at(one)
        if made is not None and own_id <= str(one):  # (the clock of another worker is ahead)
            own_id = id_after(made + 1)
    checkpoint = {
        "v": 1,
        "id": own_id,
        "ts": unpack_time(time.time_ns() // 1000),
        "channel_values": {_CHANNEL: value},
        "channel_versions": {_CHANNEL: 1},
        "versions_seen": {},
    }
    fences = (
        HeadFence("", None if head is None else head.row.id),
        HeadFence(INPUTS_NS, last),
    )
    place = CheckpointRef(thread, INPUTS_NS, own_id)
    return Put(place, None, checkpoint, metadata, fences=fences, life=state.life)


NextRun: TypeAlias = NextInput | Literal[True]


def following(engine: Engine, thread: str, *, is_first: bool) -> Operation[NextRun | None]:
    """Return the input to run next, True to continue without one, or None if there is nothing.

    Args:
        engine: the saver's engine.
        thread: the thread, which is guarded.
        is_first: nothing has run under the guard yet. A run that stops afterwards, has stopped at a
            breakpoint, or asks.
    """
    found, pending = yield Fetch([ReadEntry(thread), _scan(thread)])
    entry: ThreadEntry | None = sound(found)
    status = None if entry is None else entry.status
    oldest = pending[-1] if pending else None
    if pending:
        follow_ids(pending[0].row.id)
    if status in ("unfinished", "failed"):
        return True if is_first else None
    if entry is not None and status == "waiting":
        if is_first:
            asked = yield from answering.interrupts(engine, thread)
            if any(one.answered for one in asked):
                return True
        if oldest is not None and thread_summary.shown(oldest.row).get(_OVER) != _question(entry):
            return None  # (it was stored before the question, and would discard it)
    if oldest is None:
        return None
    place = CheckpointRef(thread, INPUTS_NS, oldest.row.id)
    loaded = yield from load.part(engine, load.Load(place))
    if loaded is None:  # (the thread was deleted meanwhile)
        return None
    value = loaded.checkpoint["channel_values"][_CHANNEL]
    taken = TakenInput(loaded.id, str(loaded.metadata.get(INPUT_KEY)), row_size(oldest.row))
    return NextInput(taken, value)
