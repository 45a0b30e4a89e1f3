"""Reads of one statement: a checkpoint with all that belongs to it, and segments.

One statement sees one state by itself and needs no transaction.
"""
# ruff: noqa: S608 - texts are put together from constants of this package only

from __future__ import annotations

from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, TypeAlias

from threadkeep.backends.sqlite import records
from threadkeep.backends.sqlite.records import ManyRows, pack_id
from threadkeep.engine.model import (
    Read,
    ReadCheckpoint,
    ReadSegments,
    Segment,
    Span,
    StoredCheckpoint,
    ThreadState,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

_Asked: TypeAlias = tuple[int, int, int, int]  # log, start, stop, and where its segments begin

_MOST_SPANS = 64  # of one statement


def is_one(read: Read) -> bool:
    """Return True if one statement answers the read."""
    if isinstance(read, ReadSegments):
        return len(read.spans) <= _MOST_SPANS
    return isinstance(read, ReadCheckpoint)


# -- a checkpoint --------------------------------------------------------------------


# The first row is the thread's own, with the checkpoint (of id NULL where there is none), its
# keyframe and its first child; one row for each write follows. Ids grow with time: the first
# child is nearly always the next row or soon after.
def _statement_of_one(which: str, key: str) -> str:
    """SQL for the last of those of a namespace that `which` is true of; `key` is its id."""
    return f"""
SELECT * FROM (
    SELECT 0, t.generation, t.deleted_at, {records.COLUMNS},
        k.start, k.count, k.data, h.id, h.run, h.seen
    FROM tk_threads t
    LEFT JOIN tk_checkpoints c ON c.thread = t.number AND c.ns = ? AND {which}
    LEFT JOIN tk_heap_segments k ON k.thread = coalesce(t.heap, t.number)
        AND k.log = coalesce(c.key_log, 0)
        AND k.start = (
            SELECT start FROM tk_heap_segments
            WHERE thread = coalesce(t.heap, t.number) AND log = coalesce(c.key_log, 0)
                AND start <= coalesce(c.key_pos, 0)
            ORDER BY start DESC LIMIT 1)
    LEFT JOIN tk_checkpoints h ON h.thread = t.number AND h.ns = c.ns
        AND h.id = (
            SELECT id FROM tk_checkpoints
            WHERE thread = t.number AND ns = c.ns AND id > c.id AND parent = c.id
            ORDER BY id LIMIT 1)
    WHERE t.thread = ?
    ORDER BY c.id DESC LIMIT 1) q
UNION ALL
SELECT 1, w.ns, w.checkpoint, w.seq, w.run, w.seen, w.task, w.path, w.body,
    {", ".join(["NULL"] * 12)}
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


def checkpoint(db: sqlite3.Connection, read: ReadCheckpoint) -> ThreadState:
    """The reply to a `ReadCheckpoint`."""
    thread, ns = read.thread, read.ns
    if read.id is None:
        rows = db.execute(_HEAD, (ns, thread, ns, ns, thread)).fetchall()
    else:
        key = pack_id(read.id)
        rows = db.execute(_BY_ID, (ns, key, thread, ns, key, thread)).fetchall()
    if not rows:
        return ThreadState(0, 0)
    rows.sort(key=_part)
    first = rows[0]
    generation, deleted_at = first[1] or 0, first[2] or 0
    if first[4] is None:
        return ThreadState(generation, deleted_at)
    row = records.checkpoint_row(first[3:15])
    writes = [records.write_row(other[1:9]) for other in rows[1:]]
    keyframe = None if first[15] is None else records.keyframe(row, first[15:18])
    child = None if first[18] is None else records.child(first[18:])
    writes.sort(key=_seq)
    found = StoredCheckpoint(thread, row, keyframe, tuple(writes), child)
    return ThreadState(generation, deleted_at, found)


_part = itemgetter(0)
_seq = attrgetter("seq")


# -- segments ------------------------------------------------------------------------

# Stored segments never overlap: the last that starts at or before ours is the first to look at.
_SEGMENTS = ManyRows(
    """
WITH q (log, start, stop, least) AS (VALUES {rows})
SELECT s.log, s.start, s.count, s.data FROM tk_threads t CROSS JOIN q CROSS JOIN tk_heap_segments s
WHERE t.thread = ? AND coalesce(t.generation, 0) = coalesce(?, t.generation, 0)
    AND s.thread = coalesce(t.heap, t.number) AND s.log = q.log
    AND s.start < q.stop AND s.start + s.count > q.start
    AND s.start >= max(q.least, coalesce(
        (SELECT start FROM tk_heap_segments
            WHERE thread = coalesce(t.heap, t.number) AND log = q.log AND start <= q.start
            ORDER BY start DESC LIMIT 1),
        0))
""",
    "(?, ?, ?, ?)",
)


def segments(db: sqlite3.Connection, read: ReadSegments) -> list[Segment]:
    """The reply to a `ReadSegments`."""
    asked = _asked(read.spans)
    found: list[Segment] = []
    for first in range(0, len(asked), _MOST_SPANS):
        text, values = _statement(read, asked[first : first + _MOST_SPANS])
        rows = db.execute(text, values).fetchall()
        found += [records.segment(row[0], row[1:]) for row in rows]
    return sorted(found)


def _asked(spans: Iterable[Span]) -> list[_Asked]:
    """The spans in order, each from behind the one before on.

    A segment that holds several of them is found for the first alone.
    """
    asked: list[_Asked] = []
    log, least = -1, 0
    for span in sorted(spans):
        if span.log != log:
            log, least = span.log, 0
        if span.start < span.stop and span.stop > least:
            asked.append((log, span.start, span.stop, least))
            least = span.stop
    return asked


def _statement(read: ReadSegments, asked: Sequence[_Asked]) -> tuple[str, tuple[object, ...]]:
    """The text for so many spans or a few more, which find nothing, and its values."""
    size = 1 << (len(asked) - 1).bit_length()
    log, start, stop, _ = asked[-1]
    spans = [*asked, *[(log, start, stop, stop)] * (size - len(asked))]
    return _SEGMENTS.text(size), (*chain.from_iterable(spans), read.thread, read.generation)
