"""Reads as SQL. One statement fetches a checkpoint with its writes, and one fetches segments."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias, TypeVar

from threadkeep._core.engine import model, thread_entry
from threadkeep._core.engine.heads import Head, readable
from threadkeep._core.engine.model import HIDDEN
from threadkeep._core.engine.thread_entry import wrong_in
from threadkeep._core.engine.usage import ReadUsage
from threadkeep._stores.committing import Heads
from threadkeep._stores.records import Term, begins_with, page_terms, terms_of, with_writes
from threadkeep._stores.sqlite import damage, moves, records, threads
from threadkeep._stores.sqlite.failures import lenient
from threadkeep._stores.sqlite.records import ManyRows, pack_id
from threadkeep.errors import CorruptionError

T = TypeVar("T")
_Row: TypeAlias = tuple[Any, ...]
_Lookup: TypeAlias = tuple[int, int, int, int]  # log, start, stop, its segments' least start

_MOST_SPANS = 64  # of one statement


# -- a checkpoint --------------------------------------------------------------------


# Stored segments never overlap, so the keyframe is in the last one that starts at or before it.
_WITH_KEYFRAME = """
LEFT JOIN tk_heap_segments k ON k.thread = coalesce(t.heap, t.number)
    AND k.log = coalesce(c.key_log, 0)
    AND k.start = (
        SELECT max(start) FROM tk_heap_segments
        WHERE thread = coalesce(t.heap, t.number) AND log = coalesce(c.key_log, 0)
            AND start <= coalesce(c.key_pos, 0))
"""
# The greatest checkpoint. Unless it has writes or is hidden (then the first column is true), it is
# the head, and has no child. SQLite compiles this statement in half the time of the whole one: that
# counts for a connection's first read.
_AT_REST = f"""
SELECT c.flags & {HIDDEN} OR EXISTS (SELECT 1 FROM tk_writes
        WHERE thread = t.number AND ns = c.ns AND checkpoint = c.id),
    {records.SELECTED}, {records.COLUMNS}, k.start, k.count, k.data
FROM tk_threads t
LEFT JOIN tk_checkpoints c ON c.thread = t.number AND c.ns = ?
{_WITH_KEYFRAME}
WHERE t.thread = ?
ORDER BY c.id DESC LIMIT 1
"""


# The first row is the thread's own: its checkpoint (id NULL if there is none), the keyframe and the
# first child. One row for each write follows. Ids grow with time, so the first child is nearly
# always the next row or close after it.
def _statement_of_one(which: str, key: str) -> str:
    """SQL for the last checkpoint of a namespace that matches `which`. `key` is its id."""
    return f"""
SELECT * FROM (
    SELECT 0, {records.SELECTED}, {records.COLUMNS},
        k.start, k.count, k.data, h.id, h.run, h.seen
    FROM tk_threads t
    LEFT JOIN tk_checkpoints c ON c.thread = t.number AND c.ns = ? AND {which}
    {_WITH_KEYFRAME}
    LEFT JOIN tk_checkpoints h ON h.thread = t.number AND h.ns = c.ns
        AND h.id = (
            SELECT id FROM tk_checkpoints
            WHERE thread = t.number AND ns = c.ns AND id > c.id AND parent = c.id
            ORDER BY id LIMIT 1)
    WHERE t.thread = ?
    ORDER BY c.id DESC LIMIT 1) q
UNION ALL
SELECT 1, w.ns, w.checkpoint, w.seq, w.run, w.seen, w.task, w.path, w.body,
    {", ".join(["NULL"] * (records.WIDTH + 10))}
FROM tk_threads t
CROSS JOIN tk_writes w ON w.thread = t.number AND w.ns = ? AND w.checkpoint = {key}
WHERE t.thread = ?
"""


_HEAD = _statement_of_one(
    records.VISIBLE,
    f"""(SELECT c.id FROM tk_checkpoints c
        WHERE c.thread = t.number AND c.ns = ? AND {records.VISIBLE} ORDER BY c.id DESC LIMIT 1)""",
)
_BY_ID = _statement_of_one("c.id = ?", "?")


def checkpoint(
    db: sqlite3.Connection, read: model.ReadCheckpoint, known: Heads
) -> model.ThreadState:
    """Answer a `ReadCheckpoint`, and remember the thread's head."""
    thread, ns = read.thread, read.ns
    if read.id is None:
        rows = db.execute(_AT_REST, (ns, thread)).fetchall()
        if rows and rows[0][0]:
            rows = db.execute(_HEAD, (ns, thread, ns, ns, thread)).fetchall()
    else:
        key = pack_id(read.id)
        rows = db.execute(_BY_ID, (ns, key, thread, ns, key, thread)).fetchall()
    if not rows:
        known.found(Head(thread))
        return model.ThreadState(0, 0)
    rows.sort(key=_part)
    first = rows[0]
    own, rest = first[1:_AFTER_HEAD], first[_AFTER_HEAD:]
    head = known.get(thread)
    if head is None or head.tips != records.unpack_tips(own[1]) or head[4:7] != own[3:6]:
        head = records.head_of(own)
        if wrong_in(head):
            head = readable(head)
        else:
            known.keep((head,))
    found = None
    if rest[1] is not None:
        row = records.checkpoint_row(rest[:12])
        writes = [records.write_row(other[1:9]) for other in rows[1:]]
        keyframe = None if rest[12] is None else records.keyframe(row, rest[12:15])
        child = records.child(rest[15:18]) if rest[15:] and rest[15] is not None else None
        writes.sort(key=_seq)
        found = model.StoredCheckpoint(thread, row, keyframe, tuple(writes), child)
    state = (head.generation, head.deleted_at, found, head.tips, head.life, head.logs)
    return model.ThreadState(*state)


_AFTER_HEAD = 1 + records.WIDTH
_part = itemgetter(0)
_seq = attrgetter("seq")


# -- segments ------------------------------------------------------------------------


# Stored segments never overlap, so the search starts at the last one that starts at or before ours.
def _segments_of(heap: str) -> ManyRows:
    return ManyRows(
        f"""
SELECT s.log, s.start, s.count, s.data
FROM tk_threads t CROSS JOIN (VALUES {{rows}}) q CROSS JOIN tk_heap_segments s
WHERE t.thread = ? AND coalesce(t.generation, 0) = coalesce(?, t.generation, 0)
    AND instr(coalesce(t.tips, x''), ?)
    AND s.thread = {heap} AND s.log = q.column1
    AND s.start < q.column3 AND s.start + s.count > q.column2
    AND s.start >= max(q.column4, coalesce(
        (SELECT max(start) FROM tk_heap_segments
            WHERE thread = {heap} AND log = q.column1 AND start <= q.column2),
        0))
""",
        "(?, ?, ?, ?)",  # log, start, stop, least
    )


_SEGMENTS = _segments_of("coalesce(t.heap, t.number)")
_SEGMENTS_OF_DAMAGED = _segments_of(records.HEAP)  # (takes half as long again to compile)


def segments(db: sqlite3.Connection, read: model.ReadSegments) -> list[model.Segment]:
    """Answer a `ReadSegments`."""
    if len(read.base) > 1:  # (the statement below checks one)
        named = records.read_head(db, read.thread).tips
        if not all(tip in named for tip in read.base):
            return []
    lookups = _lookups(read.spans)
    found: list[model.Segment] = []
    for first in range(0, len(lookups), _MOST_SPANS):
        size, values = _parameters(read, lookups[first : first + _MOST_SPANS])
        rows = db.execute(_SEGMENTS.text(size), values).fetchall()
        if not rows:  # the number of the heap may be damaged
            rows = db.execute(_SEGMENTS_OF_DAMAGED.text(size), values).fetchall()
        found += [records.segment(row[0], row[1:]) for row in rows]
    return sorted(found)


def _lookups(spans: Iterable[model.Span]) -> list[_Lookup]:
    """Sort the spans. Each starts its search after the one before.

    So a segment that holds several spans is found only for the first.
    """
    lookups: list[_Lookup] = []
    log, least = -1, 0
    for span in sorted(spans):
        if span.log != log:
            log, least = span.log, 0
        if span.start < span.stop and span.stop > least:
            lookups.append((log, span.start, span.stop, least))
            least = span.stop
    return lookups


def _parameters(
    read: model.ReadSegments, lookups: Sequence[_Lookup]
) -> tuple[int, tuple[object, ...]]:
    """Return the number of spans and the values. Empty spans round the number up."""
    size = 1 << (len(lookups) - 1).bit_length()
    log, start, stop, _ = lookups[-1]
    spans = [*lookups, *[(log, start, stop, stop)] * (size - len(lookups))]
    base = records.pack_tip(read.base[0]) if read.base else b""
    return size, (*chain.from_iterable(spans), read.thread, read.generation, base)


def needs_transaction(reads: Sequence[model.Read]) -> bool:
    """Return True if these reads take several statements and so need one snapshot."""
    if len(reads) == 1 and isinstance(reads[0], model.ReadSegments):
        return len(reads[0].spans) > _MOST_SPANS or len(reads[0].base) > 1
    return len(reads) != 1 or not isinstance(reads[0], model.ReadCheckpoint)


def reply(db: sqlite3.Connection, read: Any, known: Heads) -> Any:
    """Answer one read as its docstring says. Raises the driver's errors."""
    try:
        if type(read) is model.ReadCheckpoint:
            return checkpoint(db, read, known)
        return _REPLIES[type(read)](db, read)
    except CorruptionError as error:
        raise error.at(thread=getattr(read, "thread", None)) from error.__cause__


class _Finder:
    """Completes checkpoint rows of one thread: keyframe, writes, child.

    Neighbouring checkpoints share their keyframe, which is read once.
    """

    def __init__(self, db: sqlite3.Connection, thread: str, number: int, heap: Any) -> None:
        self._db = db
        self._name, self._number, self._heap = thread, number, heap
        self._keyframes: dict[tuple[int, int], model.Segment | None] = {}

    def stored(self, row: model.CheckpointRow) -> model.StoredCheckpoint:
        key = (self._number, row.ns, pack_id(row.id))
        writes = tuple(map(records.write_row, self._db.execute(_WRITES, key)))
        child = self._db.execute(_CHILD, (*key, key[-1])).fetchone()
        first = records.child(child) if child else None
        return model.StoredCheckpoint(self._name, row, self.keyframe(row), writes, first)

    def keyframe(self, row: model.CheckpointRow, *, skip: bool = False) -> model.Segment | None:
        place = (row.key_log, row.key_pos)
        if place not in self._keyframes:
            found = self._db.execute(_SEGMENT_AT, (self._heap, *place)).fetchone()
            with suppress(CorruptionError) if skip else nullcontext():
                self._keyframes[place] = records.keyframe(row, found)
        return self._keyframes.get(place)


_WRITES = f"""
SELECT {records.TABLES["tk_writes"]} FROM tk_writes
WHERE thread = ? AND ns = ? AND checkpoint = ? ORDER BY seq
"""
# Ids grow with time, so the first child is nearly always the next row or close after it.
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
    head = records.read_head(db, read.thread)
    finder = _Finder(db, read.thread, head.number, records.heap_of(db, head))
    rows = db.execute(_PATH, (head.number, read.ns, pack_id(read.id), read.limit)).fetchall()
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
_OTHER_STEP = """
NOT (c.metadata IS NULL AND c.exact IS NULL AND typeof(c.step) = 'integer' AND c.step <> ?)
"""


def _scan(db: sqlite3.Connection, read: model.ScanCheckpoints) -> list[model.StoredCheckpoint]:
    where, values = terms_of(_scan_terms(read))
    one_namespace = read.thread is not None and read.ns is not None
    order = "c.id DESC" if one_namespace else "c.id DESC, t.thread, c.ns"
    sql = f"{_SCAN} WHERE {where} ORDER BY {order} LIMIT ?".replace("%s", "?")
    finders: dict[int, _Finder] = {}
    page = []
    for thread, number, heap, *row in db.execute(sql, (*values, read.limit)).fetchall():
        finder = finders.setdefault(number, _Finder(db, thread, number, heap))
        page.append(finder.stored(records.checkpoint_row(tuple(row))))
    return page


def _scan_terms(read: model.ScanCheckpoints) -> Iterator[Term]:
    yield f"c.thread = t.number AND {records.VISIBLE}", ()
    for term, value in (
        ("t.thread = ?", read.thread),
        ("c.ns = ?", read.ns),
        ("c.id = ?", None if read.id is None else pack_id(read.id)),
        ("c.id < ?", None if read.before is None else pack_id(read.before)),
    ):
        if value is not None:
            yield term, (value,)
    yield from begins_with("t.thread", read.prefix)
    if read.after is not None:
        key, thread, ns = read.after
        yield _AFTER, (pack_id(key), pack_id(key), thread, thread, ns)
    yield from _filter_conditions(read.filter)


def _filter_conditions(wanted: Mapping[str, Any]) -> Iterator[Term]:
    """Yield a condition for each metadata key whose value SQLite compares as Python does."""
    for key, value in wanted.items():
        if "\0" in key:
            continue  # (SQLite ends a JSON key at this character)
        if value is None:  # also matches if the key is missing
            yield _METADATA.format("NOT ", "type <> 'null'"), [key]
        elif isinstance(value, str):
            yield _METADATA.format("", "type = 'text' AND value = ?"), [key, value]
        elif isinstance(value, (bool, int, float)) and _fits(value):
            if key == "step":  # (the column excludes most rows, without their JSON)
                yield _OTHER_STEP, [value]
            yield _METADATA.format("", "type <> 'text' AND value = ?"), [key, value]


def _fits(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63


# -- housekeeping --------------------------------------------------------------------

_ALL_ROWS = f"""
SELECT {{key}}, {records.COLUMNS} FROM tk_checkpoints c WHERE thread = ? ORDER BY ns, id
"""
_ALL_WRITES = f"""
SELECT {{key}}, {records.TABLES["tk_writes"]} FROM tk_writes
WHERE thread = ? ORDER BY ns, checkpoint, seq
"""
_ALL_SEGMENTS = """
SELECT {key}, log, start, count, length(data) FROM tk_heap_segments
WHERE thread = ? ORDER BY log, start
"""


_FAMILY = "SELECT thread FROM tk_threads WHERE heap = ? AND number <> ? ORDER BY thread"


def _thread(db: sqlite3.Connection, read: model.ReadThread) -> model.ThreadRows:
    with lenient(db) if read.skip else nullcontext():
        head = records.read_head(db, read.thread)
    number, heap = head.number, records.heap_of(db, head)
    head = readable(head, skip=read.skip)
    all_rows = damage.rows if read.skip else _rows
    rows, broken = all_rows(db, "checkpoints", _ALL_ROWS, number, records.checkpoint_row)
    all_writes, more = all_rows(db, "writes", _ALL_WRITES, number, records.write_row)
    places, others = all_rows(db, "segments", _ALL_SEGMENTS, heap, records.place)
    finder = _Finder(db, read.thread, number, heap)
    keyframes = [finder.keyframe(row, skip=read.skip) for row in rows]
    checkpoints, orphans = with_writes(read.thread, rows, keyframes, all_writes)
    family = tuple([name for (name,) in db.execute(_FAMILY, (heap, number))])
    own = damage.damaged_thread(db, read.thread) if read.skip else ()
    unreadable = (*own, *broken, *more, *others)
    return model.ThreadRows(
        *(head.generation, head.deleted_at, checkpoints, orphans, tuple(places), family),
        *(unreadable, head.tips, head.life),
    )


def _rows(
    db: sqlite3.Connection, _table: str, sql: str, number: int | None, make: Callable[[_Row], T]
) -> tuple[list[T], list[model.UnreadableRow]]:
    """All rows of one table for a thread (see `damage.rows`)."""
    return [make(row) for row in db.execute(sql.replace("{key}, ", ""), (number,))], []


_OF_RUNS = """
EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number
    AND CASE WHEN json_valid(c.metadata) THEN json_extract(c.metadata, '$.run_id') END
        IN (SELECT value FROM json_each(?)))
"""


def _page(
    db: sqlite3.Connection,
    columns: str,
    condition: Term,
    read: model.FindThreads | model.ReadSizes,
) -> list[_Row]:
    """Return a page of the threads that fulfil a condition, in order."""
    terms = [*page_terms("t.thread", read), ("typeof(t.thread) = 'text'", ()), condition]
    where, values = terms_of(terms)
    sql = f"SELECT t.thread{columns} FROM tk_threads t WHERE {where} ORDER BY t.thread LIMIT ?"
    return db.execute(sql.replace("%s", "?"), (*values, read.limit)).fetchall()


def _find(db: sqlite3.Connection, read: model.FindThreads) -> list[str]:
    condition: Term = ("EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number)", ())
    if read.run_ids:
        condition = _OF_RUNS, (json.dumps(read.run_ids),)
    elif read.empty:
        condition = "true", ()
    names = [thread for (thread,) in _page(db, "", condition, read)]
    if not all(type(name) is str for name in names):
        raise records.wrong_types("tk_threads")
    return names


_HEAP_COLUMNS = """, t.number, coalesce(t.heap, t.number), t.heap IS NULL
    OR t.thread = (SELECT min(f.thread) FROM tk_threads f WHERE f.heap = t.heap)"""
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
    found = []
    for thread, number, heap, is_first in _page(db, _HEAP_COLUMNS, (threads.HOLDS_ROWS, ()), read):
        rows, row_bytes = db.execute(_CHECKPOINT_SIZES, (number,)).fetchone()
        writes, write_bytes = db.execute(_WRITE_SIZES, (number,)).fetchone()
        segments, segment_bytes = 0, 0
        if is_first:
            segments, segment_bytes = db.execute(_SEGMENT_SIZES, (heap,)).fetchone()
        size = model.StoredThreadSize(
            thread, rows, writes, segments, row_bytes + write_bytes, segment_bytes
        )
        found.append(size)
    return model.Sizes(total, tuple(found))


_REPLIES: dict[Any, Callable[[sqlite3.Connection, Any], Any]] = {
    **moves.REPLIES,
    model.ReadSegments: segments,
    model.ReadPath: _path,
    model.ScanCheckpoints: _scan,
    model.ReadThread: _thread,
    model.FindThreads: _find,
    model.ReadSizes: _sizes,
    ReadUsage: threads.usage,
    thread_entry.ReadClock: lambda *_: time.time_ns() // 1000,
    thread_entry.ReadEntry: threads.entry,
    thread_entry.SearchThreads: threads.search,
    thread_entry.CountThreads: threads.count,
    model.ReadDamage: damage.found,
}
