"""The checkpoints that a checkpoint's metadata names in `parents`: do they exist?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threadkeep._core.engine.model import ReadCheckpoint, StoredCheckpoint
from threadkeep._core.engine.operation import CheckpointRef, Fetch, Operation, fetch_checkpoint
from threadkeep._core.engine.rows import created_at
from threadkeep._core.engine.thread_memory import ThreadMemory
from threadkeep.errors import InvalidArgumentError


def unknown(memory: ThreadMemory, parents: Iterable[CheckpointRef]) -> list[CheckpointRef]:
    """Return the parents that are not in the working set."""
    return [one for one in parents if (one.ns, str(one.id)) not in memory.states]


def expect(place: CheckpointRef, parents: Sequence[CheckpointRef]) -> Operation[None]:
    """Raise `InvalidArgumentError` if a parent neither exists nor can still arrive."""
    replies = yield Fetch([ReadCheckpoint(*one) for one in parents])
    for one, reply in zip(parents, replies, strict=True):
        if reply.found is None:
            head = (yield from fetch_checkpoint(one.thread, one.ns, None)).found
            if not _may_arrive(one, head):
                raise missing(one).at(**place.named())


def _may_arrive(parent: CheckpointRef, head: StoredCheckpoint | None) -> bool:
    """Return True for the id of a newer checkpoint than all of its namespace.

    At `durability="exit"`, LangGraph stores an interrupted subgraph before the graph above it.
    """
    own_id = str(parent.id)
    return created_at(own_id) is not None and (head is None or own_id > head.row.id)


def missing(parent: CheckpointRef) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Invalid metadata['parents']: checkpoint {parent.id!a} of namespace {parent.ns!a} does not"
        " exist.",
        hint="Name a stored checkpoint of this thread, or leave the namespace out.",
    )
