"""Reads as SQL, and rows as records. The caller has begun a transaction."""
# ruff: noqa: S608 - texts are put together from constants of this package only

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from threadkeep.backends.records import with_writes
from threadkeep.backends.sqlite import (
    entries,
    point_reads,
    records,
    salvage,
)
from threadkeep.backends.sqlite.records import pack_id
from threadkeep.engine import model, thread_entry
from threadkeep.errors import CorruptionError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
_Row: TypeAlias = tuple[Any, ...]

_THREAD = """
SELECT number, generation, deleted_at, coalesce(heap, number) FROM tk_threads WHERE thread = ?
"""


class ThreadHead(NamedTuple):
    """The thread's own row; `number` is None where it has none yet. `heap` is its segments'."""

    number: int | None
    generation: int
    deleted_at: int
    heap: int


_NO_HEAD = ThreadHead(None, 0, 0, 0)


def read_thread_head(db: sqlite3.Connection, thread: str) -> ThreadHead:
    """Look the thread up by its id."""
    row = db.execute(_THREAD, (thread,)).fetchone()
    return ThreadHead(row[0], row[1] or 0, row[2] or 0, row[3]) if row else _NO_HEAD


def needs_transaction(reads: Sequence[model.Read]) -> bool:
    """Return True if these reads are several statements: one alone sees one state by itself."""
    return len(reads) != 1 or not point_reads.is_one(reads[0])


def reply(db: sqlite3.Connection, read: model.Read) -> Any:
    """Answer one read as its docstring says. Raises the driver's errors."""
    return _REPLIES[type(read)](db, read)


class _Finder:
    """Completes checkpoint rows of one thread: keyframe, writes, child.

    Neighbouring checkpoints share their keyframe, which is read once.
    """

    def __init__(self, db: sqlite3.Connection, thread: str, number: int, heap: int) -> None:
        self._db = db
        self._thread = thread
        self._number = number
        self._heap = heap
        self._keyframes: dict[tuple[int, int], model.Segment | None] = {}

    def stored(self, row: model.CheckpointRow) -> model.StoredCheckpoint:
        key = (self._number, row.ns, pack_id(row.id))
        writes = tuple(map(records.write_row, self._db.execute(_WRITES, key)))
        return model.StoredCheckpoint(
            self._thread, row, self.keyframe(row), writes, self._child(key)
        )

    def _child(self, key: _Row) -> model.Child | None:
        row = self._db.execute(_CHILD, (*key, key[-1])).fetchone()
        return records.child(row) if row else None

    def keyframe(self, row: model.CheckpointRow) -> model.Segment | None:
        place = (row.key_log, row.key_pos)
        if place not in self._keyframes:
            found = self._db.execute(_SEGMENT_AT, (self._heap, *place)).fetchone()
            self._keyframes[place] = records.keyframe(row, found)
        return self._keyframes[place]


class _CarefulFinder(_Finder):
    """One for whom a keyframe that cannot be read is none."""

    def keyframe(self, row: model.CheckpointRow) -> model.Segment | None:
        try:
            return super().keyframe(row)
        except CorruptionError:
            return None


_WRITES = """
SELECT ns, checkpoint, seq, run, seen, task, path, body FROM tk_writes
WHERE thread = ? AND ns = ? AND checkpoint = ? ORDER BY seq
"""
# Ids grow with time: the first child is nearly always the next row or soon after.
_CHILD = """
SELECT id, run, seen FROM tk_checkpoints
WHERE thread = ? AND ns = ? AND id > ? AND parent = ? ORDER BY id LIMIT 1
"""
_SEGMENT_AT = """
SELECT start, count, data FROM tk_heap_segments
WHERE thread = ? AND log = ? AND start <= ? ORDER BY start DESC LIMIT 1
"""


# -- paths ---------------------------------------------------------------------------

_PATH = f"""
WITH RECURSIVE path (thread, ns, id, parent, step) AS (
    SELECT thread, ns, id, parent, 1 FROM tk_checkpoints WHERE thread = ? AND ns = ? AND id = ?
    UNION ALL
    SELECT c.thread, c.ns, c.id, c.parent, path.step + 1 FROM path JOIN tk_checkpoints c
        ON c.thread = path.thread AND c.ns = path.ns AND c.id = path.parent
    LIMIT ?
)
SELECT {records.COLUMNS} FROM path JOIN tk_checkpoints c
    ON c.thread = path.thread AND c.ns = path.ns AND c.id = path.id
ORDER BY path.step
"""


def _path(db: sqlite3.Connection, read: model.ReadPath) -> list[model.StoredCheckpoint]:
    number, _, _, heap = read_thread_head(db, read.thread)
    if number is None:
        return []
    finder = _Finder(db, read.thread, number, heap)
    rows = db.execute(_PATH, (number, read.ns, pack_id(read.id), read.limit)).fetchall()
    return [finder.stored(records.checkpoint_row(row)) for row in rows]


# -- scans ---------------------------------------------------------------------------

_SCAN = f"""
SELECT t.thread, t.number, coalesce(t.heap, t.number), {records.COLUMNS}
FROM tk_threads t CROSS JOIN tk_checkpoints c
"""
_AFTER = "c.id <= ? AND (c.id < ? OR t.thread > ? OR (t.thread = ? AND c.ns > ?))"
_TEXT = records.METADATA.replace("{", "{{").replace("}", "}}")  # for str.format
_METADATA = (
    f"(c.exact IS NOT NULL OR NOT json_valid({_TEXT})"
    f" OR {{}}EXISTS (SELECT 1 FROM json_each({_TEXT}) WHERE key = ? AND {{}}))"
)


def _scan(db: sqlite3.Connection, read: model.ScanCheckpoints) -> list[model.StoredCheckpoint]:
    conditions, values = _scan_conditions(read)
    one_namespace = read.thread is not None and read.ns is not None
    order = "c.id DESC" if one_namespace else "c.id DESC, t.thread, c.ns"
    sql = f"{_SCAN} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
    finders: dict[int, _Finder] = {}
    page = []
    for thread, number, heap, *row in db.execute(sql, (*values, read.limit)).fetchall():
        finder = finders.setdefault(number, _Finder(db, thread, number, heap))
        page.append(finder.stored(records.checkpoint_row(tuple(row))))
    return page


def _scan_conditions(read: model.ScanCheckpoints) -> tuple[list[str], list[Any]]:
    """The WHERE clause's terms, and the values for their parameters."""
    conditions, values = ["c.thread = t.number", records.VISIBLE], []
    for term, value in (
        ("t.thread = ?", read.thread),
        ("c.ns = ?", read.ns),
        ("c.id = ?", None if read.id is None else pack_id(read.id)),
        ("c.id < ?", None if read.before is None else pack_id(read.before)),
    ):
        if value is not None:
            conditions.append(term)
            values.append(value)
    if read.after is not None:
        key, thread, ns = read.after
        conditions.append(_AFTER)
        values += [pack_id(key), pack_id(key), thread, thread, ns]
    for term, parameters in _filter_conditions(read.filter):
        conditions.append(term)
        values += parameters
    return conditions, values


def _filter_conditions(wanted: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """A term for each metadata key whose value SQLite compares as Python does."""
    for key, value in wanted.items():
        if value is None:  # also where the key is missing
            yield _METADATA.format("NOT ", "type <> 'null'"), [key]
        elif isinstance(value, str):
            yield _METADATA.format("", "type = 'text' AND value = ?"), [key, value]
        elif isinstance(value, (bool, int, float)) and _fits(value):
            yield _METADATA.format("", "type <> 'text' AND value = ?"), [key, value]


def _fits(value: float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63


# -- housekeeping --------------------------------------------------------------------

_ALL_ROWS = f"""
SELECT {{key}}, {records.COLUMNS} FROM tk_checkpoints c WHERE thread = ? ORDER BY ns, id
"""
_ALL_WRITES = """
SELECT {key}, ns, checkpoint, seq, run, seen, task, path, body FROM tk_writes
WHERE thread = ? ORDER BY ns, checkpoint, seq
"""
_ALL_SEGMENTS = """
SELECT {key}, log, start, count, length(data) FROM tk_heap_segments
WHERE thread = ? ORDER BY log, start
"""


_FAMILY = "SELECT thread FROM tk_threads WHERE heap = ? AND number <> ? ORDER BY thread"


def _thread(db: sqlite3.Connection, read: model.ReadThread) -> model.ThreadRows:
    number, generation, deleted_at, heap = read_thread_head(db, read.thread)
    rows, broken = _rows(db, read, "checkpoints", (_ALL_ROWS, number), records.checkpoint_row)
    all_writes, more = _rows(db, read, "writes", (_ALL_WRITES, number), records.write_row)
    places, others = _rows(db, read, "segments", (_ALL_SEGMENTS, heap), records.place)
    finder = (_CarefulFinder if read.skip else _Finder)(db, read.thread, number or 0, heap)
    checkpoints, orphans = with_writes(read.thread, rows, map(finder.keyframe, rows), all_writes)
    family = tuple([name for (name,) in db.execute(_FAMILY, (heap, number))])
    unreadable = (*broken, *more, *others)
    return model.ThreadRows(
        generation, deleted_at, checkpoints, orphans, tuple(places), family, unreadable
    )


def _rows(
    db: sqlite3.Connection,
    read: model.ReadThread,
    table: str,
    statement: tuple[str, int | None],
    make: Callable[[_Row], T],
) -> tuple[list[T], list[model.UnreadableRow]]:
    """All rows of a table that are of a thread, and those that cannot be made records."""
    if read.skip:
        return salvage.rows(db, table, statement, make)
    sql, number = statement
    return [make(row) for row in db.execute(sql.replace("{key}, ", ""), (number,))], []


_FIND = """
SELECT t.thread FROM tk_threads t
WHERE t.thread >= coalesce(?, '') AND t.thread IS NOT ?
    AND EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number)
ORDER BY t.thread LIMIT ?
"""
_FIND_EMPTY = """
SELECT thread FROM tk_threads
WHERE thread >= coalesce(?, '') AND thread IS NOT ? ORDER BY thread LIMIT ?
"""
_FIND_RUNS = """
SELECT t.thread FROM tk_threads t
WHERE t.thread >= coalesce(?, '') AND t.thread IS NOT ?
    AND EXISTS (
        SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number
            AND CASE WHEN json_valid(c.metadata) THEN json_extract(c.metadata, '$.run_id') END
                IN (SELECT value FROM json_each(?)))
ORDER BY t.thread LIMIT ?
"""


def _find(db: sqlite3.Connection, read: model.FindThreads) -> list[str]:
    after = (read.after, read.after)
    if read.run_ids:
        rows = db.execute(_FIND_RUNS, (*after, json.dumps(read.run_ids), read.limit))
    else:
        rows = db.execute(_FIND_EMPTY if read.empty else _FIND, (*after, read.limit))
    return [thread for (thread,) in rows]


_FIND_ANY = """
SELECT t.thread, t.number, coalesce(t.heap, t.number),
    t.heap IS NULL OR t.thread = (SELECT min(f.thread) FROM tk_threads f WHERE f.heap = t.heap)
FROM tk_threads t
WHERE t.thread >= coalesce(?, '') AND t.thread IS NOT ?
    AND (EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number)
        OR EXISTS (SELECT 1 FROM tk_writes w WHERE w.thread = t.number)
        OR EXISTS (SELECT 1 FROM tk_heap_segments s WHERE s.thread = coalesce(t.heap, t.number)))
ORDER BY t.thread LIMIT ?
"""
_CHECKPOINT_SIZES = """
SELECT count(*), coalesce(sum(length(CAST(ns AS BLOB)) + length(id) + coalesce(length(parent), 0)
    + coalesce(length(CAST(metadata AS BLOB)), 8) + coalesce(length(exact), 0)
    + length(manifest)), 0)
FROM tk_checkpoints WHERE thread = ?
"""
_WRITE_SIZES = """
SELECT count(*), coalesce(sum(length(CAST(ns AS BLOB)) + length(checkpoint) + length(task)
    + coalesce(length(CAST(path AS BLOB)), 0) + length(body)), 0)
FROM tk_writes WHERE thread = ?
"""
_SEGMENT_SIZES = """
SELECT count(*), coalesce(sum(length(data)), 0) FROM tk_heap_segments WHERE thread = ?
"""
_TOTAL = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"


def _sizes(db: sqlite3.Connection, read: model.ReadSizes) -> model.Sizes:
    (total,) = db.execute(_TOTAL).fetchone()
    threads = []
    for thread, number, heap, is_first in db.execute(
        _FIND_ANY, (read.after, read.after, read.limit)
    ).fetchall():
        rows, row_bytes = db.execute(_CHECKPOINT_SIZES, (number,)).fetchone()
        writes, write_bytes = db.execute(_WRITE_SIZES, (number,)).fetchone()
        segments, segment_bytes = 0, 0
        if is_first:
            segments, segment_bytes = db.execute(_SEGMENT_SIZES, (heap,)).fetchone()
        size = model.ThreadSize(
            thread, rows, writes, segments, row_bytes + write_bytes, segment_bytes
        )
        threads.append(size)
    return model.Sizes(total, tuple(threads))


_REPLIES: dict[type[model.Read], Callable[[sqlite3.Connection, Any], Any]] = {
    model.ReadCheckpoint: point_reads.checkpoint,
    model.ReadSegments: point_reads.segments,
    model.ReadPath: _path,
    model.ScanCheckpoints: _scan,
    model.ReadThread: _thread,
    model.FindThreads: _find,
    model.ReadSizes: _sizes,
    thread_entry.ReadEntry: entries.entry,
    thread_entry.SearchThreads: entries.search,
    thread_entry.CountThreads: entries.count,
    model.ReadDamage: salvage.found,
}
