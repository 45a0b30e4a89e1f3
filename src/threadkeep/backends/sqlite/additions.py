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

_Row: TypeAlias = tuple[str, tuple[Any, ...]]  # its kind, and the values of its columns

_MOST_ROWS = 64  # rows of one statement: each number of them is a text that SQLite compiles

_COLUMNS = (
    *("thread", "born", "generation", "ns", "id", "parent", "run", "seen", "flags", "ts"),
    *("source", "step", "metadata", "exact", "task", "path", "log", "pos", "count", "data"),
    *("sources", "target", "waits", "same", "at", "size", "whole", "beginning", "label"),
)
# Each kind of row, and the columns that it fills: in the same order as all columns.
_KINDS = {
    "thread": (
        *("thread", "born", "generation", "id"),
        *("sources", "target", "waits", "same", "at", "size", "whole"),
    ),
    "segment": ("thread", "log", "pos", "count", "data"),
    "checkpoint": (
        *("thread", "ns", "id", "parent", "run", "seen", "flags", "ts"),
        *("source", "step", "metadata", "exact", "log", "pos", "data"),
    ),
    "write": ("thread", "ns", "id", "run", "seen", "task", "path", "data"),
    "time": ("thread", "at"),
    "label": ("thread", "beginning", "label"),
}

_NUMBER = "(SELECT number FROM tk_threads WHERE thread = new.thread)"
_HEAP = "(SELECT coalesce(heap, number) FROM tk_threads WHERE thread = new.thread)"
# Stored segments never overlap: only the last one that starts before our end can reach us.
_NEIGHBOUR = f"""
    SELECT start, count FROM tk_heap_segments
    WHERE thread = {_HEAP} AND log = new.log AND start < new.pos + new.count
    ORDER BY start DESC LIMIT 1
"""
_SAME = f"""
    SELECT 1 FROM tk_heap_segments WHERE thread = {_HEAP} AND log = new.log
        AND start = new.pos AND count = new.count AND data = new.data
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
                state = new.target, waits_at = iif(new.waits, new.id, NULL),
                revision = coalesce(revision, 0) + 1
            WHERE thread = new.thread AND instr(new.sources, '|' || coalesce(state, '') || '|')
                AND (waits_at IS NULL OR waits_at < new.id
                    OR (new.same AND waits_at = new.id))""",
        """UPDATE tk_threads SET size = iif(new.whole, 0, coalesce(size, 0)) + new.size
            WHERE thread = new.thread AND new.size IS NOT NULL""",
    ),
    "segment": (
        f"""SELECT RAISE(ABORT, 'taken') FROM ({_NEIGHBOUR})
            WHERE start + count > new.pos AND NOT EXISTS ({_SAME})""",
        f"""INSERT OR IGNORE INTO tk_heap_segments (thread, log, start, count, data)
            VALUES ({_HEAP}, new.log, new.pos, new.count, new.data)""",
    ),
    "checkpoint": (
        f"""INSERT OR REPLACE INTO tk_checkpoints (thread, ns, id, parent, run, seen, flags, ts,
                source, step, metadata, exact, key_log, key_pos, manifest)
            VALUES ({_NUMBER}, new.ns, new.id, new.parent, new.run, new.seen, new.flags, new.ts,
                new.source, new.step, new.metadata, new.exact, new.log, new.pos, new.data)""",
    ),
    "write": (
        f"""INSERT INTO tk_writes (thread, ns, checkpoint, run, seen, task, path, body, seq)
            VALUES ({_NUMBER}, new.ns, new.id, new.run, new.seen, new.task, new.path, new.data,
                coalesce(({_LAST_SEQ}), 0) + 1)""",
    ),
    "time": (
        f"""UPDATE tk_threads SET updated_at = new.at
            WHERE thread = new.thread AND updated_at < new.at AND {_HAS_ENTRY}""",
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
    columns = ", ".join([f"NULL AS {name}" for name in ("kind", *_COLUMNS)])
    yield f"CREATE TEMP VIEW tk_added AS SELECT {columns}"
    for kind, steps in _STEPS.items():
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
    touch = batch.touch or _NO_TOUCH
    _insert(db, batch.thread, [_thread(batch, touch), *_rows(batch), *_rest(batch, touch)])


def check(db: sqlite3.Connection, batch: Batch) -> None:
    """Check the batch's thread alone, and give it its row. Raises as `check_and_add`."""
    _insert(db, batch.thread, [_thread(batch, _NO_TOUCH)])


def add(db: sqlite3.Connection, batch: Batch) -> None:
    """Add the rows of a batch whose thread was checked. Raises as `check_and_add`."""
    rows = _rows(batch)
    if batch.touch is not None:
        unchecked = batch._replace(born=None, generation=None)
        rows += [_thread(unchecked, batch.touch), *_rest(batch, batch.touch)]
    for start in range(0, len(rows), _MOST_ROWS):
        _insert(db, batch.thread, rows[start : start + _MOST_ROWS])


def _rows(batch: Batch) -> list[_Row]:
    thread = batch.thread
    rows = [_segment(thread, segment) for segment in batch.segments]
    rows += [_checkpoint(thread, row) for row in batch.checkpoints]
    rows += [_write(thread, row) for row in batch.writes]
    return rows


def _insert(db: sqlite3.Connection, thread: str, rows: Sequence[_Row]) -> None:
    statement = _statement(tuple([kind for kind, _ in rows]))
    try:
        db.execute(statement, [value for _, values in rows for value in values])
    except sqlite3.IntegrityError as error:
        refusal = _REFUSALS.get(str(error))
        if refusal is None:
            raise
        raise refusal(thread=thread) from None


@lru_cache(maxsize=256)
def _statement(kinds: tuple[str, ...]) -> str:
    return "INSERT INTO tk_added VALUES " + ", ".join([_VALUES[kind] for kind in kinds])


def _values(kind: str) -> str:
    filled = _KINDS[kind]
    places = ["?" if name in filled else "NULL" for name in _COLUMNS]
    return f"('{kind}', {', '.join(places)})"


_VALUES = {kind: _values(kind) for kind in _KINDS}


# -- rows ----------------------------------------------------------------------------


_NO_TOUCH = Touch()
_NO_MOVE = (None,) * 6


def _thread(batch: Batch, touch: Touch) -> _Row:
    """The thread's own row: what is checked, and most of what the registry is told."""
    moved = _move(touch.moves[0], batch, touch) if touch.moves else _NO_MOVE
    size = touch.size if touch.size or touch.whole else None
    return "thread", (batch.thread, batch.born, batch.generation, *moved, size, touch.whole)


def _move(move: Move, batch: Batch, touch: Touch) -> tuple[Any, ...]:
    sources, target, checkpoint, waits, same = move
    at = batch.now if touch.at is None else touch.at
    return pack_id(checkpoint), _listed(sources), target, waits, same, at


@lru_cache(maxsize=64)
def _listed(sources: tuple[str, ...]) -> str:
    return f"|{'|'.join(sources)}|"


def _rest(batch: Batch, touch: Touch) -> list[_Row]:
    """What of the touch does not go into that row."""
    thread = batch.thread
    rows = [
        ("thread", (thread, None, None, *_move(move, batch, touch), None, None))
        for move in touch.moves[1:]
    ]
    if touch.at is not None:
        rows.append(("time", (thread, touch.at)))
    return rows + [("label", (thread, beginning_of(label), label)) for label in touch.labels]


def _segment(thread: str, segment: Segment) -> _Row:
    return "segment", (thread, segment.log, segment.start, segment.count, segment.data)


def _checkpoint(thread: str, row: CheckpointRow) -> _Row:
    return "checkpoint", (
        thread,
        row.ns,
        pack_id(row.id),
        None if row.parent is None else pack_id(row.parent),
        row.run or None,
        row.seen or None,
        row.flags or None,
        row.ts,
        *metadata.split(row.metadata),
        row.exact,
        row.key_log or None,
        row.key_pos or None,
        row.manifest,
    )


def _write(thread: str, row: WriteRow) -> _Row:
    return "write", (
        thread,
        row.ns,
        pack_id(row.checkpoint_id),
        row.run or None,
        row.seen or None,
        pack_id(row.task_id),
        row.task_path or None,
        row.body,
    )
