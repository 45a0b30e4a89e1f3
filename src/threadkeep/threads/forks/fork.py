"""Forks and copies of a thread, inside the store.

A fork is the thread as the run that put its newest checkpoint left it: what later runs made of
that checkpoint is not in it. Neither a fork nor a copy holds an element that its own rows do not
refer to, except where it shares segments.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from threadkeep._core import validation
from threadkeep._core.engine import thread_entry, thread_summary
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.lineage import CheckpointKey, Lineage, checkpoint_key, write_key
from threadkeep._core.engine.model import (
    OWN_NS,
    CheckpointRow,
    CopyThread,
    ForkThread,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Operation, commit
from threadkeep._core.engine.optimistic import ThreadSnapshot, optimistic, read_snapshot
from threadkeep._core.engine.rows import of_the_graph, unpack_metadata
from threadkeep._core.engine.thread_entry import ThreadEntry, ThreadStatus
from threadkeep.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    ThreadNotFoundError,
)
from threadkeep.threads.erasure.erase import sweep
from threadkeep.threads.registry.info import ThreadInfo, info

_READ = partial(read_snapshot, stub=False, alone=True)


def copy_thread(engine: Engine, source: str, target: str) -> Operation[None]:
    """Copy a thread inside the store; a missing source copies nothing."""
    if source == target:
        raise InvalidArgumentError("A thread cannot be copied onto itself.", thread=source)
    yield from commit(CopyThread(source, target, engine.now()))
    yield from _trim(engine, target)


def fork(
    engine: Engine, thread: str, checkpoint_id: str | None, new_thread_id: str | None
) -> Operation[ThreadInfo]:
    """See `Threads.fork`."""
    source = validation.thread_id(thread)
    target = str(uuid.uuid4()) if new_thread_id is None else validation.thread_id(new_thread_id)
    checkpoint = validation.checkpoint_id(checkpoint_id)

    def build(snapshot: ThreadSnapshot) -> Operation[tuple[ForkThread, ThreadEntry]]:
        yield from ()
        begin = _begin(engine, source, snapshot.rows, checkpoint)
        entry = _entry(engine, target, begin, snapshot.entry)
        change = ForkThread(
            source,
            target,
            entry.created_at,
            snapshot.rows.generation,
            tuple(map(checkpoint_key, begin.checkpoints)),
            tuple(map(write_key, begin.writes)),
            entry,
        )
        return change, entry

    entry = yield from optimistic(engine, source, build, _READ)
    yield from _trim(engine, target)
    return info(entry)


def _trim(engine: Engine, thread: str) -> Operation[None]:
    """Take out of a new copy, or of a fork where the store copies, what it does not refer to."""
    # (Damaged rows do not tell what that is; a run that writes there already need not wait.)
    with suppress(CorruptionError, ConflictError):
        yield from sweep(engine, thread, alone=True)
    engine.working_set.forget(thread)


# -- the beginning of a fork -----------------------------------------------------------


class Begin(NamedTuple):
    """The rows that a fork begins with: `at` is its newest checkpoint."""

    at: StoredCheckpoint
    checkpoints: list[StoredCheckpoint]
    writes: list[WriteRow]


def _begin(engine: Engine, source: str, rows: ThreadRows, checkpoint: str | None) -> Begin:
    lineage = Lineage(rows.checkpoints)
    at = _origin(source, lineage, checkpoint)
    root, children = set(lineage.path(at)), lineage.children()
    found = {
        key: stored
        for key, stored in lineage.stored.items()
        if key in root
        or (key[0].startswith(OWN_NS) and _is_beside(engine, stored, at))
        or (key[0] and _belongs(engine, stored, root, at, children.get(at, ())))
    }
    writes = {key: _writes(one, children.get(key, ()), found) for key, one in found.items()}
    return Begin(
        found[at]._replace(writes=tuple(writes[at])),
        list(found.values()),
        [write for some in writes.values() for write in some],
    )


def _origin(source: str, lineage: Lineage, checkpoint: str | None) -> CheckpointKey:
    """The checkpoint that the fork begins with."""
    ids = [stored.row.id for stored in of_the_graph(lineage.stored.values())]
    if checkpoint is not None and checkpoint not in ids:
        kind = CheckpointNotFoundError if lineage.stored else ThreadNotFoundError
        raise kind(thread=source, checkpoint=checkpoint)
    if not ids:
        raise ThreadNotFoundError(thread=source)
    return "", ids[-1] if checkpoint is None else checkpoint


def _belongs(
    engine: Engine,
    stored: StoredCheckpoint,
    root: Container[CheckpointKey],
    at: CheckpointKey,
    children: Sequence[CheckpointRow],
) -> bool:
    """Return True for a subgraph's checkpoint of one of these, from before anybody continued."""
    parent = _root_of(engine, stored)
    if parent != at[1]:
        return parent is not None and ("", parent) in root
    return _was_before(stored.row, children)


def _is_beside(engine: Engine, stored: StoredCheckpoint, at: CheckpointKey) -> bool:
    """Return True for a checkpoint of an own namespace that the fork may refer to.

    It belongs to one of the root that is not younger, on whatever branch: its id tells, which
    begins with a time.
    """
    parent = _root_of(engine, stored)
    return parent is not None and parent <= at[1]


def _root_of(engine: Engine, stored: StoredCheckpoint) -> str | None:
    """The checkpoint of the root that one belongs to, as LangGraph says: its `parents`."""
    metadata = unpack_metadata(stored.row.metadata, stored.row.exact, engine.codec)
    parents = metadata.get("parents")
    parent = parents.get("") if isinstance(parents, dict) else None
    return parent if isinstance(parent, str) else None


def _writes(
    stored: StoredCheckpoint, children: Sequence[CheckpointRow], found: Container[CheckpointKey]
) -> list[WriteRow]:
    """The pending writes that are a part of the fork.

    Of a checkpoint that is followed by another one in the fork all (which of them count is told
    by that). Else those from before anybody continued: an interrupt that waited, say, without the
    answer that came later.
    """
    if any((row.ns, row.id) in found for row in children):
        return list(stored.writes)
    return [write for write in stored.writes if _was_before(write, children)]


def _was_before(row: CheckpointRow | WriteRow, children: Sequence[CheckpointRow]) -> bool:
    """Return True if the row was stored before a run continued from its checkpoint.

    Run 0 is the one that put the checkpoint: if that continued itself, its rows do not tell.
    """
    return not children or (row.run == 0 and all(child.run != 0 for child in children))


def _entry(engine: Engine, target: str, begin: Begin, origin: ThreadEntry | None) -> ThreadEntry:
    now, root = engine.now(), begin.at.row
    rows: list[CheckpointRow | WriteRow] = [s.row for s in begin.checkpoints]
    rows += begin.writes
    return ThreadEntry(
        target,
        ThreadStatus.FORKED,
        now,
        now,
        sum(map(thread_summary.row_size, rows)),
        labels=thread_entry.metadata_labels(origin.labels if origin is not None else ()),
        origin=(begin.at.thread, root.id),
        waits_at=thread_summary.waits_at((begin.at,)),
    )
