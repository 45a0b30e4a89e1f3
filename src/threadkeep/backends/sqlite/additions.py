"""What a batch adds to its thread: all rows, and the checks on them, in one statement.

The driver lets go of the interpreter's lock around every statement, and a busy program
may be slow to give it back. So a commit is one statement where it can be: it waits for the
interpreter once, and SQLite's write lock is held for as long as SQLite works and no longer.

The rows are inserted into a view of the connection's own, whose triggers check each row and
put it where it belongs. Invariants: a statement that is refused has changed nothing; a
thread's own row comes before all others of it; values reach SQL as bound parameters only.
"""
# ruff: noqa: S608 - texts are put together from constants of this module only

from __future__ import annotations

import sqlite3
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from threadkeep.backends.sqlite import metadata
from threadkeep.backends.sqlite.ids import pack_id
from threadkeep.engine.entries import Touch
from threadkeep.engine.labels import beginning_of
from threadkeep.engine.lifecycle import State
from threadkeep.errors import SegmentTakenError, StaleThreadError, ThreadDeletedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from threadkeep.engine.entries import Move
    from threadkeep.engine.model import Batch, CheckpointRow, Segment, WriteRow

_Part: TypeAlias = tuple[str, tuple[Any, ...]]  # its name, and the values of its columns
_Row: TypeAlias = tuple[_Part, ...]

_MOST_ROWS = 64  # rows of one statement: each number of them is a text that SQLite compiles

# What a row may hold, and the columns that it fills. No value is None or a bool where that can be
# helped: the driver looks for an adapter of each, which takes longer than all else about it.
_PARTS = {
    "thread": (
        *("born", "generation", "moved", "sources", "target", "waits", "same", "at", "time"),
        *("size", "whole"),
    ),
    "segment": ("log", "start", "count", "data"),
    "checkpoint": (
        *("ns", "id", "run", "seen", "parent", "flags", "ts"),
        *("source", "step", "metadata", "exact", "key_log", "key_pos", "manifest"),
    ),
    "write": ("ns", "id", "run", "seen", "task", "path", "body"),
    "label": ("beginning", "label"),
}
_COLUMNS = tuple(dict.fromkeys([name for names in _PARTS.values() for name in names]))
# Each kind of row, and the parts that it may hold: of its kind is the last one. Most batches are
# one row: a trigger that is skipped costs as much as a step.
_KINDS = {
    "thread": ("thread",),
    "segment": ("segment",),
    "checkpoint": ("thread", "segment", "checkpoint"),
    "write": ("thread", "segment", "write"),
    "label": ("label",),
}

_NUMBER = "(SELECT number FROM tk_threads WHERE thread = new.thread)"
_HEAP = "(SELECT coalesce(heap, number) FROM tk_threads WHERE thread = new.thread)"
# Stored segments never overlap: only the last one that starts before our end can reach us.
_NEIGHBOUR = f"""
    SELECT start, count FROM tk_heap_segments
    WHERE thread = {_HEAP} AND log = new.log AND start < new.start + new.count
    ORDER BY start DESC LIMIT 1
"""
_SAME = f"""
    SELECT 1 FROM tk_heap_segments WHERE thread = {_HEAP} AND log = new.log
        AND start = new.start AND count = new.count AND data = new.data
"""
_LAST_SEQ = f"""
    SELECT seq FROM tk_writes
    WHERE thread = {_NUMBER} AND ns = new.ns AND checkpoint = new.id ORDER BY seq DESC LIMIT 1
"""
_HAS_ENTRY = f"coalesce(state, '{State.DELETED}') <> '{State.DELETED}'"
_STEPS = {
    "thread": (
        "INSERT OR IGNORE INTO tk_threads (thread) VALUES (new.thread)",
        """SELECT CASE
                WHEN deleted_at >= new.born THEN RAISE(ABORT, 'deleted')
                WHEN coalesce(generation, 0) <> new.generation THEN RAISE(ABORT, 'stale')
            END FROM tk_threads WHERE thread = new.thread""",
        # (apart from the size: an index is written whenever its columns are set, changed or not)
        f"""UPDATE tk_threads SET
                created_at = iif({_HAS_ENTRY}, created_at, new.at),
                updated_at = iif({_HAS_ENTRY}, updated_at, new.at),
                state = new.target, waits_at = iif(new.waits, new.moved, NULL),
                revision = coalesce(revision, 0) + 1
            WHERE thread = new.thread AND instr(new.sources, '|' || coalesce(state, '') || '|')
                AND (waits_at IS NULL OR waits_at < new.moved
                    OR (new.same AND waits_at = new.moved))""",
        f"""UPDATE tk_threads SET updated_at = new.time
            WHERE new.time AND thread = new.thread AND updated_at < new.time AND {_HAS_ENTRY}""",
        """UPDATE tk_threads SET size = iif(new.whole, 0, coalesce(size, 0)) + new.size
            WHERE thread = new.thread AND (new.size OR new.whole)""",
    ),
    "segment": (
        f"""SELECT RAISE(ABORT, 'taken') FROM ({_NEIGHBOUR})
            WHERE start + count > new.start AND NOT EXISTS ({_SAME})""",
        # (where the row has no segment: its log may not be NULL, so it is ignored)
        f"""INSERT OR IGNORE INTO tk_heap_segments (thread, log, start, count, data)
            VALUES ({_HEAP}, new.log, new.start, new.count, new.data)""",
    ),
    "checkpoint": (
        f"""INSERT OR REPLACE INTO tk_checkpoints (thread, ns, id, parent, run, seen, flags, ts,
                source, step, metadata, exact, key_log, key_pos, manifest)
            VALUES ({_NUMBER}, new.ns, new.id, new.parent, nullif(new.run, 0),
                nullif(new.seen, 0), nullif(new.flags, 0), new.ts, nullif(new.source, ''),
                iif(new.source = '', NULL, new.step), iif(new.source = '', new.metadata, NULL),
                nullif(new.exact, ''), nullif(new.key_log, 0), nullif(new.key_pos, 0),
                new.manifest)""",
    ),
    "write": (
        f"""INSERT INTO tk_writes (thread, ns, checkpoint, run, seen, task, path, body, seq)
            VALUES ({_NUMBER}, new.ns, new.id, nullif(new.run, 0), nullif(new.seen, 0), new.task,
                nullif(new.path, ''), new.body, coalesce(({_LAST_SEQ}), 0) + 1)""",
    ),
    "label": (
        f"""INSERT OR REPLACE INTO tk_labels (thread, beginning, label)
            SELECT number, new.beginning, new.label FROM tk_threads
            WHERE thread = new.thread AND {_HAS_ENTRY}""",
        f"""UPDATE tk_threads SET revision = coalesce(revision, 0) + 1
            WHERE thread = new.thread AND {_HAS_ENTRY}""",
    ),
}
_REFUSALS = {
    "deleted": ThreadDeletedError,
    "stale": StaleThreadError,
    "taken": SegmentTakenError,
}


def _settings() -> Iterable[str]:
    yield "PRAGMA temp_store = MEMORY"
    columns = ", ".join([f"NULL AS {name}" for name in ("kind", "thread", *_COLUMNS)])
    yield f"CREATE TEMP VIEW tk_added AS SELECT {columns}"
    for kind, parts in _KINDS.items():
        steps = [step for part in parts for step in _STEPS[part]]
        yield (
            f"CREATE TEMP TRIGGER tk_add_{kind} INSTEAD OF INSERT ON tk_added"
            f" WHEN new.kind = '{kind}' BEGIN {'; '.join(steps)}; END"
        )


SETTINGS = tuple(_settings())
"""What a connection that writes is told once."""


def suffice(batch: Batch) -> bool:
    """Whether the batch only adds rows, in a single statement."""
    more: object = (
        batch.fences or batch.drop_segments or batch.drop_checkpoints or batch.drop_writes
    )
    rows = len(batch.segments) + len(batch.checkpoints) + len(batch.writes)
    rows += 0 if batch.touch is None else len(batch.touch.moves) + len(batch.touch.labels)
    more = more or batch.hide_checkpoints or batch.entry or batch.bump
    return rows < _MOST_ROWS and not more


def check_and_add(db: sqlite3.Connection, batch: Batch) -> None:
    """Check the batch's thread and add its rows, which `suffice` for one statement.

    Raises:
        ThreadDeletedError, StaleThreadError, SegmentTakenError: the statement changed nothing.
        DRIVER_ERRORS: the same, if the transaction still lives.
    """
    _insert(db, batch.thread, _rows(batch, batch.touch or _NO_TOUCH))


def check(db: sqlite3.Connection, batch: Batch) -> None:
    """Check the batch's thread alone, and give it its row. Raises as `check_and_add`."""
    _insert(db, batch.thread, [(_thread(batch, _NO_TOUCH),)])


def add(db: sqlite3.Connection, batch: Batch) -> None:
    """Add the rows of a batch whose thread was checked. Raises as `check_and_add`."""
    rows = _rows(batch._replace(born=None, generation=None), batch.touch or _NO_TOUCH)
    for start in range(0, len(rows), _MOST_ROWS):
        _insert(db, batch.thread, rows[start : start + _MOST_ROWS])


def _insert(db: sqlite3.Connection, thread: str, rows: Sequence[_Row]) -> None:
    statement = _statement(tuple([tuple([name for name, _ in row]) for row in rows]))
    values: list[Any] = []
    for row in rows:
        values.append(thread)
        for _, part in row:
            values += part
    try:
        db.execute(statement, values)
    except sqlite3.IntegrityError as error:
        refusal = _REFUSALS.get(str(error))
        if refusal is None:
            raise
        raise refusal(thread=thread) from None


@lru_cache(maxsize=256)
def _statement(rows: tuple[tuple[str, ...], ...]) -> str:
    return "INSERT INTO tk_added VALUES " + ", ".join(map(_values, rows))


def _values(parts: tuple[str, ...]) -> str:
    filled = {name for part in parts for name in _PARTS[part]}
    places = ["?" if name in filled else "NULL" for name in _COLUMNS]
    return f"('{parts[-1]}', ?, {', '.join(places)})"


# -- rows ----------------------------------------------------------------------------


_NO_TOUCH = Touch()
_NO_MOVE = ("", "", "", 0, 0, 0)  # (from no state)


def _rows(batch: Batch, touch: Touch) -> list[_Row]:
    """The batch as rows: the first is all there is to most, and comes before the others."""
    thread = _thread(batch, touch)
    segments = [_segment(segment) for segment in batch.segments]
    own = [_checkpoint(row) for row in batch.checkpoints] + [_write(row) for row in batch.writes]
    first: _Row = (thread,)
    if own:
        first = (thread, *segments[:1], own.pop(0))
        del segments[:1]
    return [first, *[(part,) for part in (*segments, *own, *_rest(batch, touch))]]


def _thread(batch: Batch, touch: Touch) -> _Part:
    """The thread's own part: what is checked, and most of what the registry is told."""
    move = _move(touch.moves[0], batch, touch) if touch.moves else _NO_MOVE
    told = (touch.at or 0, touch.size, int(touch.whole))
    return "thread", (batch.born, batch.generation, *move, *told)


def _move(move: Move, batch: Batch, touch: Touch) -> tuple[Any, ...]:
    sources, target, checkpoint, waits, same = move
    at = batch.now if touch.at is None else touch.at
    return pack_id(checkpoint), _listed(sources), target, int(waits), int(same), at


@lru_cache(maxsize=64)
def _listed(sources: tuple[str, ...]) -> str:
    return f"|{'|'.join(sources)}|"


def _rest(batch: Batch, touch: Touch) -> list[_Part]:
    """What of the touch does not go into that part."""
    moves = [_move(move, batch, touch) for move in touch.moves[1:]]
    labels = [("label", (beginning_of(label), label)) for label in touch.labels]
    return [("thread", (None, None, *move, 0, 0, 0)) for move in moves] + labels


def _segment(segment: Segment) -> _Part:
    return "segment", (segment.log, segment.start, segment.count, segment.data)


def _checkpoint(row: CheckpointRow) -> _Part:
    return "checkpoint", (
        row.ns,
        pack_id(row.id),
        row.run,
        row.seen,
        None if row.parent is None else pack_id(row.parent),
        row.flags,
        row.ts,
        *metadata.split(row.metadata),
        "" if row.exact is None else row.exact,
        row.key_log,
        row.key_pos,
        row.manifest,
    )


def _write(row: WriteRow) -> _Part:
    return "write", (
        row.ns,
        pack_id(row.checkpoint_id),
        row.run,
        row.seen,
        pack_id(row.task_id),
        row.task_path,
        row.body,
    )
