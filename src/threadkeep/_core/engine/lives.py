"""Lives of a thread: a save belongs to the life in which its run has loaded the thread.

A deletion ends a thread's life. Nothing of a run that began before is stored afterwards, in no
namespace. The store decides: a batch names the life that its run has loaded. If no run is known (a
program's own `put`), the rows decide: after a deletion, the checkpoints that a save names must be
stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from threadkeep._core.engine.calls import PutWrites, SaveCall
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import ReadCheckpoint, ThreadState
from threadkeep._core.engine.operation import CheckpointRef, Fetch, Operation
from threadkeep._core.engine.snapshots import ITSELF, Noted, Task
from threadkeep._core.engine.tips import Proof
from threadkeep.errors import ConflictError, ThreadDeletedError, ThreadkeepError


def of(engine: Engine, call: SaveCall) -> int | None:
    """Return the life in which the run of a call has loaded the thread, if that is known."""
    run = call.by
    return call.life if run is None else run.lives.get((engine.working_set.key, call.place.thread))


def _was_deleted(state: ThreadState) -> bool:
    """Return True also for a copy or a fork in the thread's place, which has no tombstone."""
    return bool(state.life or state.deleted_at)


def refuse_orphan(call: SaveCall, state: ThreadState) -> None:
    """Refuse writes on a checkpoint that a deletion has removed.

    A run's writes may arrive before their checkpoint. Writes without one are never read.
    """
    if _was_deleted(state) and state.found is None and call.by is None and call.life is None:
        raise ThreadDeletedError().at(**call.place.named())


def refuse_missing(
    place: CheckpointRef, parent: str | None, metadata: Mapping[str, Any], state: ThreadState
) -> Operation[None]:
    """Refuse a checkpoint whose parent, or a checkpoint above it, a deletion has removed."""
    if not _was_deleted(state):
        return
    if parent is None:
        above = metadata.get("parents") if place.ns else None
        named = above.items() if isinstance(above, dict) else ()
        reads = [ReadCheckpoint(place.thread, str(ns), str(own_id)) for ns, own_id in named]
        replies = (yield Fetch(reads)) if reads else ()
        if all(reply.found is not None for reply in replies):
            return
    raise ThreadDeletedError().at(**place.named())


def noted(engine: Engine, call: SaveCall, named: str) -> Collection[Task] | None:
    """Return the tasks of the writes on a checkpoint that the run has seen stored, else None.

    Ask before the read: another save of the run may store the checkpoint meanwhile.
    """
    seen = _seen(engine, call, named)
    return seen.tasks - {ITSELF} if seen is not None and ITSELF in seen.tasks else None


def is_proven(engine: Engine, call: SaveCall, named: str, proof: Proof | None) -> bool:
    """Return True if a proof proves everything of a checkpoint that the run has seen stored."""
    seen = _seen(engine, call, named)
    return seen is None or seen.proof is proof


def _seen(engine: Engine, call: SaveCall, named: str) -> Noted | None:
    place, run = call.place, call.by
    own = engine.working_set.key, place.thread
    return None if run is None else run.stored.get((own, place.ns, named))


def refuse_lost(
    engine: Engine, call: SaveCall, tasks: Collection[Task] | None, state: ThreadState
) -> None:
    """Refuse a save that needs a noted checkpoint, if the store has lost it.

    Other saves store their whole state again. A question would wait at no checkpoint. The value of
    a DeltaChannel is in the writes on the checkpoints before, so its parent's writes must be there
    too. (Maintenance may remove writes that a question does not need.)
    """
    place, found = call.place, state.found
    if tasks is None or of(engine, call) not in (None, state.life):
        return  # (the store refuses a batch of another life)
    needed = () if isinstance(call, PutWrites) else tasks
    if found is None or not {(w.task_id, w.run) for w in found.writes}.issuperset(needed):
        raise lost(place)


def lost(place: CheckpointRef) -> ThreadkeepError:
    return ConflictError(
        "The store has lost the checkpoint from which this run continues.",
        hint="Run the thread again: it continues from its last stored checkpoint.",
    ).at(**place.named())
