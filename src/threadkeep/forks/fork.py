"""Forks: a thread that begins as another one was at one of its checkpoints.

Only what a fork takes over is decided here. Invariant: a fork is the thread as the run that put
its newest checkpoint left it: what later runs made of that checkpoint is not in it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from threadkeep.engine import (
    thread_entry,
    thread_summary,
)
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
)
from threadkeep.engine.model import (
    CheckpointRow,
    ForkThread,
    ReadThread,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep.engine.operation import (
    Operation,
    commit,
    fetch,
)
from threadkeep.engine.rows import of_the_graph, unpack_metadata
from threadkeep.engine.thread_entry import (
    ReadEntry,
    ThreadEntry,
    ThreadStatus,
)
from threadkeep.errors import (
    CheckpointNotFoundError,
    ConflictError,
    StaleThreadError,
    ThreadNotFoundError,
)
from threadkeep.forks import copy


class _Taken(NamedTuple):
    """What a fork takes over of its origin: it begins at the first checkpoint."""

    at: StoredCheckpoint
    checkpoints: list[StoredCheckpoint]
    writes: list[WriteRow]


def fork(
    engine: Engine, source: str, checkpoint: str | None, target: str
) -> Operation[ThreadEntry]:
    """Begin a thread with a checkpoint of another, and all that led there.

    Args:
        engine: the engine's parts.
        source: the other thread.
        checkpoint: the id of a checkpoint of its root namespace; None for its head.
        target: the new thread's name.

    Raises:
        ThreadNotFoundError: the source holds no checkpoints.
        CheckpointNotFoundError: the source has no such checkpoint.
        ThreadExistsError: the target holds checkpoints.
        ConflictError: segments of the source were removed at every try.
    """
    for _ in range(ATTEMPTS):
        rows, known = yield from _read(source)
        taken = _taken(engine, source, rows, checkpoint)
        entry = _entry(engine, target, taken, known)
        change = ForkThread(
            source,
            target,
            entry.created_at,
            rows.generation,
            tuple([(s.row.ns, s.row.id) for s in taken.checkpoints]),
            tuple([(w.ns, w.checkpoint_id, w.seq) for w in taken.writes]),
            entry,
        )
        try:
            yield from commit(change)
        except StaleThreadError:
            continue  # something was removed meanwhile: look again
        yield from copy.trim(engine, target)
        return entry
    raise ConflictError(
        "Segments of this thread were removed whenever it was to be forked.",
        hint="Do it again when nobody prunes or deletes.",
        thread=source,
    )


def _read(thread: str) -> Operation[tuple[ThreadRows, ThreadEntry | None]]:
    rows = yield from fetch(ReadThread(thread))
    known = yield from fetch(ReadEntry(thread))
    return rows, known


def _entry(engine: Engine, target: str, taken: _Taken, known: ThreadEntry | None) -> ThreadEntry:
    now, root = engine.now(), taken.at.row
    waits = thread_summary.waits(taken.at)
    rows: list[CheckpointRow | WriteRow] = [s.row for s in taken.checkpoints]
    rows += taken.writes
    return ThreadEntry(
        target,
        ThreadStatus.FORKED,
        now,
        now,
        sum(map(thread_summary.row_size, rows)),
        labels=thread_entry.metadata_labels(known.labels if known is not None else ()),
        origin=(taken.at.thread, root.id),
        waits_at=root.id if waits else None,
    )


# -- what is taken over ----------------------------------------------------------------


def _taken(engine: Engine, source: str, rows: ThreadRows, checkpoint: str | None) -> _Taken:
    lineage = Lineage(rows.checkpoints)
    at = _origin(source, lineage, checkpoint)
    root = set(path(lineage, at))
    children = lineage.children()
    ended = _ended(children.get(at, ()))
    found = root | {
        key
        for key, stored in lineage.stored.items()
        if key[0] and _belongs(engine, stored, root, at, ended)
    }
    taken = [stored for key, stored in lineage.stored.items() if key in found]
    writes: dict[CheckpointKey, list[WriteRow]] = {
        key: _left(stored, children.get(key, ()), found)
        for key, stored in lineage.stored.items()
        if key in found
    }
    begin = lineage.stored[at]._replace(writes=tuple(writes[at]))
    return _Taken(begin, taken, [write for some in writes.values() for write in some])


def _origin(source: str, lineage: Lineage, checkpoint: str | None) -> CheckpointKey:
    """The checkpoint that the fork begins with.

    Raises:
        ThreadNotFoundError, CheckpointNotFoundError: there is none.
    """
    ids = [stored.row.id for stored in of_the_graph(lineage.stored.values())]
    if checkpoint is not None and checkpoint not in ids:
        kind = CheckpointNotFoundError if lineage.stored else ThreadNotFoundError
        raise kind(thread=source, checkpoint=checkpoint)
    if not ids:
        raise ThreadNotFoundError(thread=source)
    return "", ids[-1] if checkpoint is None else checkpoint


def path(lineage: Lineage, at: CheckpointKey) -> Iterator[CheckpointKey]:
    """The checkpoint and its ancestors, hidden ones too."""
    met: set[CheckpointKey] = set()
    step: CheckpointKey | None = at
    while step is not None and step not in met:
        met.add(step)
        yield step
        step = lineage.above(step)


class _Ended(Enum):
    """How the run that put the fork's first checkpoint ended there."""

    WITH_IT = "nobody has gone on from there: all is as it was left"
    BEFORE_OTHERS = "only later runs went on: what they added is not a part of it"
    NOT = "it went on itself: what it did from there on is not a part of it"


def _ended(children: Sequence[CheckpointRow]) -> _Ended:
    if any(row.run == 0 for row in children):
        return _Ended.NOT
    return _Ended.BEFORE_OTHERS if children else _Ended.WITH_IT


def _belongs(
    engine: Engine,
    stored: StoredCheckpoint,
    root: Container[CheckpointKey],
    at: CheckpointKey,
    ended: _Ended,
) -> bool:
    """Whether a subgraph's checkpoint was made for one of these, and before anybody went on.

    (LangGraph says of each which checkpoint of the root it belongs to: its `parents`.)
    """
    row = stored.row
    metadata = unpack_metadata(row.metadata, row.exact, engine.codec)
    parents = metadata.get("parents")
    parent = parents.get("") if isinstance(parents, dict) else None
    if parent != at[1]:
        return ("", parent) in root
    return ended is _Ended.WITH_IT or (ended is _Ended.BEFORE_OTHERS and row.run == 0)


def _left(
    stored: StoredCheckpoint, children: Sequence[CheckpointRow], taken: Container[CheckpointKey]
) -> list[WriteRow]:
    """The pending writes that are a part of the fork.

    Of a checkpoint that is followed by another one in the fork all (which of them count is told
    by that), and of one that nothing has ever followed. Else those of the run that put it: an
    interrupt that waited, say, without the answer that came later; and none if that run went on
    itself.
    """
    writes = list(stored.writes)
    if not children or any((row.ns, row.id) in taken for row in children):
        return writes
    if any(row.run == 0 for row in children):
        return []
    return [write for write in writes if write.run == 0]
