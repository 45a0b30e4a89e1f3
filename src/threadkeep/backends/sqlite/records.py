"""Rows as records, and the columns that they are made of.

Invariant: a record is made of values of the right types only. SQLite does not notice every
flipped bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from threadkeep.backends.sqlite import metadata
from threadkeep.backends.sqlite.failures import DAMAGED
from threadkeep.backends.sqlite.ids import unpack_id
from threadkeep.engine.model import HIDDEN, CheckpointRow, Child, Segment, SegmentInfo, WriteRow
from threadkeep.errors import CorruptionError

_Row: TypeAlias = tuple[Any, ...]

COLUMNS = (
    f"c.ns, c.id, c.parent, c.run, c.seen, c.flags, c.ts, {metadata.TEXT}, c.exact,"
    " c.key_log, c.key_pos, c.manifest"
)
VISIBLE = f"(c.flags & {HIDDEN}) IS NOT {HIDDEN}"  # flags are NULL for 0

_NOTHING = type(None)
_ID = (bytes, str)
_COUNT = (int, _NOTHING)
_SEGMENT_TYPES = (int, int, bytes)
_PLACE_KINDS = ((int,), (int,), (int,), (int,))
_WRITE_KINDS = ((str,), _ID, (int,), _COUNT, _COUNT, _ID, (str, _NOTHING), (bytes,))
_CHECKPOINT_KINDS = (
    *((str,), _ID, (bytes, str, _NOTHING), _COUNT, _COUNT, _COUNT, (int, str)),
    *((str,), (bytes, _NOTHING), _COUNT, _COUNT, (bytes,)),
)


def _checked(row: _Row, kinds: tuple[tuple[type, ...], ...], table: str) -> _Row:
    """The row, if its columns are of these types: SQLite does not notice every flipped bit."""
    if _are(tuple(map(type, row)), kinds):
        return row
    raise wrong_types(table)


def wrong_types(table: str) -> CorruptionError:
    """The error of a row whose columns hold what they cannot."""
    return CorruptionError(f"A row of {table} holds values of the wrong types.", hint=DAMAGED)


@lru_cache(maxsize=256)  # rows come in few shapes
def _are(found: tuple[type, ...], kinds: tuple[tuple[type, ...], ...]) -> bool:
    return all(kind in allowed for kind, allowed in zip(found, kinds, strict=True))


def checkpoint_row(row: _Row) -> CheckpointRow:
    """The record of a row of `COLUMNS`."""
    _checked(row, _CHECKPOINT_KINDS, "tk_checkpoints")
    ns, key, parent, run, seen, flags, ts, text, exact, key_log, key_pos, manifest = row
    return CheckpointRow(
        ns,
        unpack_id(key),
        None if parent is None else unpack_id(parent),
        run or 0,
        seen or 0,
        flags or 0,
        ts,
        text,
        exact,
        key_log or 0,
        key_pos or 0,
        manifest,
    )


def write_row(row: _Row) -> WriteRow:
    """The record of a row of `tk_writes`."""
    _checked(row, _WRITE_KINDS, "tk_writes")
    ns, checkpoint, seq, run, seen, task, path, body = row
    return WriteRow(
        ns=ns,
        checkpoint_id=unpack_id(checkpoint),
        run=run or 0,
        seen=seen or 0,
        task_id=unpack_id(task),
        task_path=path or "",
        body=body,
        seq=seq,
    )


def segment(log: int, row: _Row) -> Segment:
    """The record of a segment of this log: its start, count and data."""
    if tuple(map(type, row)) != _SEGMENT_TYPES:
        raise wrong_types("tk_heap_segments")
    return Segment(log, *row)


def place(row: _Row) -> SegmentInfo:
    """The record of a segment without its data."""
    return SegmentInfo(*_checked(row, _PLACE_KINDS, "tk_heap_segments"))


def keyframe(row: CheckpointRow, found: _Row | None) -> Segment | None:
    """A checkpoint's keyframe, of the last segment that starts at or before its place."""
    if found is None:
        return None
    last = segment(row.key_log, found)
    return last if last.stop > row.key_pos else None


def child(row: _Row) -> Child:
    """The record of a child: its id, run and seen."""
    return Child(unpack_id(row[0]), row[1] or 0, row[2] or 0)
