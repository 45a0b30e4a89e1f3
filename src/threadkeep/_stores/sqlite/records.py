"""Rows as records: ids, metadata, and the columns of each table.

Ids are stored in few bytes that sort like their text. A canonical lower-case UUID is stored as its
16 bytes. Other text is stored as the UUID just below it followed by the text, in one BLOB, and text
below every UUID is stored as TEXT. SQLite sorts TEXT before BLOB, and both bytewise.

Most metadata is `{"source":"loop","step":7,"parents":{}}`. It is stored in the columns `source` and
`step`, with NULL for `metadata`. Other text is stored whole. Metadata is read back unchanged.
"""

from __future__ import annotations

import sqlite3
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

from threadkeep._core.engine.heads import Head, readable
from threadkeep._core.engine.model import (
    HIDDEN,
    CheckpointRow,
    Child,
    Segment,
    SegmentInfo,
    WriteRow,
)
from threadkeep._core.engine.rows import PLAIN_METADATA
from threadkeep._core.engine.thread_entry import AFTER_ALL, FIELDS, ID
from threadkeep._core.engine.tips import MOST
from threadkeep._stores.records import COLUMNS as _HEAD_COLUMNS
from threadkeep._stores.records import columns_of, mended
from threadkeep._stores.records import head_of as _head_of
from threadkeep._stores.sqlite.failures import DAMAGED, DRIVER_ERRORS, is_undecodable, lenient
from threadkeep.errors import CorruptionError

_UUID_BYTES = 16
_HEX = "0123456789abcdef"
_SHAPE = "x" * 8 + "-xxxx-xxxx-xxxx-" + "x" * 12


@lru_cache(maxsize=1024)
def pack_id(text: str) -> bytes | str:
    """Encode an id for storage."""
    packed = _uuid_bytes(text)
    if packed is not None:
        return packed
    below = _uuids_below(text)
    return (below - 1).to_bytes(_UUID_BYTES, "big") + text.encode() if below else text


@lru_cache(maxsize=256)
def bound_id(text: str) -> bytearray | str:
    """Encode an id as a parameter of a statement: the driver binds bytes more slowly."""
    packed = pack_id(text)
    return bytearray(packed) if isinstance(packed, bytes) else packed


@lru_cache(maxsize=1024)
def unpack_id(packed: bytes | str) -> str:
    """Decode a stored id."""
    if isinstance(packed, str):
        return packed
    return packed[_UUID_BYTES:].decode() if len(packed) > _UUID_BYTES else _uuid_text(packed.hex())


def _uuid_bytes(text: str) -> bytes | None:
    if len(text) != len(_SHAPE) or not text[8] == text[13] == text[18] == text[23] == "-":
        return None
    digits = text.replace("-", "")
    try:
        packed = bytes.fromhex(digits)
    except ValueError:
        return None
    return packed if len(packed) == _UUID_BYTES and packed.hex() == digits else None


def _uuid_text(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _uuids_below(text: str) -> int:
    """Count the canonical UUIDs that sort before `text`, which is not one of them."""
    digits, left = 0, 32
    for expected, found in zip(_SHAPE, text.ljust(len(_SHAPE), "\0"), strict=False):
        if expected == "-":
            if found != "-":
                return (digits + (found > "-")) << 4 * left
        else:
            left -= 1
            digits = digits * 16 + bisect_left(_HEX, found)
            if found not in _HEX:
                return digits << 4 * left
    return digits + 1


METADATA = """coalesce(c.metadata,
    '{"source":"' || c.source || '","step":' || c.step || ',"parents":{}}')"""
"""The metadata of row `c` of `tk_checkpoints`, in SQL."""


def split_metadata(text: str) -> tuple[str, int, str]:
    """Split metadata into `source`, `step` and the text. Without a source, the text counts."""
    plain = PLAIN_METADATA.fullmatch(text)
    return ("", 0, text) if plain is None else (plain[1], int(plain[2]), "")


_Row: TypeAlias = tuple[Any, ...]

TABLES = {
    "tk_checkpoints": "ns, id, parent, run, seen, flags, ts, source, step, metadata, exact,"
    " key_log, key_pos, manifest",
    "tk_writes": "ns, checkpoint, seq, run, seen, task, path, body",
    "tk_heap_segments": "log, start, count, data",
}
"""The tables of a thread's rows, and their columns after `thread`."""
COLUMNS = (
    f"c.ns, c.id, c.parent, c.run, c.seen, c.flags, c.ts, {METADATA}, c.exact,"
    " c.key_log, c.key_pos, c.manifest"
)
VISIBLE = f"(c.flags & {HIDDEN}) IS NOT {HIDDEN}"  # flags are NULL for 0

_NOTHING = type(None)
ID_TYPES = (bytes, str)
_COUNT = (int, _NOTHING)
_SEGMENT_TYPES = (int, int, bytes)
_PLACE_KINDS = ((int,), (int,), (int,), (int,))
_WRITE_KINDS = ((str,), ID_TYPES, (int,), _COUNT, _COUNT, ID_TYPES, (str, _NOTHING), (bytes,))
_CHECKPOINT_KINDS = (
    *((str,), ID_TYPES, (bytes, str, _NOTHING), _COUNT, _COUNT, _COUNT, (int, str)),
    *((str,), (bytes, _NOTHING), _COUNT, _COUNT, (bytes,)),
)


def _checked(row: _Row, kinds: tuple[tuple[type, ...], ...], table: str) -> _Row:
    if _are(tuple(map(type, row)), kinds):
        return row
    raise wrong_types(table)


def wrong_types(table: str, thread: str | None = None) -> CorruptionError:
    """Return the error for a row whose columns hold values of impossible types."""
    text = f"A row of {table} holds values of the wrong types."
    return CorruptionError(text, hint=DAMAGED, thread=thread)


@lru_cache(maxsize=256)  # rows have few combinations of types
def _are(found: tuple[type, ...], kinds: tuple[tuple[type, ...], ...]) -> bool:
    return all(kind in allowed for kind, allowed in zip(found, kinds, strict=True))


def checkpoint_row(row: _Row) -> CheckpointRow:
    """Convert a row of `COLUMNS` to its record."""
    _checked(row, _CHECKPOINT_KINDS, "tk_checkpoints")
    ns, key, parent, run, seen, flags, ts, text, exact, key_log, key_pos, manifest = row
    ids = unpack_id(key), None if parent is None else unpack_id(parent)
    place = key_log or 0, key_pos or 0
    return CheckpointRow(
        ns, *ids, run or 0, seen or 0, flags or 0, ts, text, exact, *place, manifest
    )


def write_row(row: _Row) -> WriteRow:
    """Convert a row of `tk_writes` to its record."""
    _checked(row, _WRITE_KINDS, "tk_writes")
    ns, checkpoint, seq, run, seen, task, path, body = row
    task_id = unpack_id(task)
    return WriteRow(ns, unpack_id(checkpoint), run or 0, seen or 0, task_id, path or "", body, seq)


def segment(log: int, row: _Row) -> Segment:
    """Convert a segment's start, count and data to its record."""
    if tuple(map(type, row)) != _SEGMENT_TYPES:
        raise wrong_types("tk_heap_segments")
    return Segment(log, *row)


def place(row: _Row) -> SegmentInfo:
    """Convert a segment's row without data to its record."""
    return SegmentInfo(*_checked(row, _PLACE_KINDS, "tk_heap_segments"))


def keyframe(row: CheckpointRow, found: _Row | None) -> Segment | None:
    """Return a checkpoint's keyframe, cut from the last segment that starts at or before it."""
    if found is None:
        return None
    last = segment(row.key_log, found)
    return last if last.stop > row.key_pos else None


def child(row: _Row) -> Child:
    """Convert a child's id, run and seen to its record."""
    return Child(unpack_id(row[0]), row[1] or 0, row[2] or 0)


CACHED = 256
"""Number of prepared statements that a writing connection caches."""

_SIZES = (64, 32, 16)  # rows of one statement (fewer than 16 rows: any number)


TIP_BYTES = 8
NO_TIPS = bytes(MOST * TIP_BYTES)
_UNPACK = struct.Struct(f">{MOST}q").unpack
_TIPS = [struct.Struct(f">{count}q").pack for count in range(MOST + 1)]
pack_tip = _TIPS[1]
"""Pack one tip. (Of two tips side by side, no other 8 bytes are a third, as all are random.)"""


def pack_tips(tips: Sequence[int]) -> bytearray:
    """Pack the tips that a thread's row names.

    Always to the same size: SQLite then writes it in place. (The driver binds bytes more slowly.)
    """
    return bytearray(_TIPS[len(tips)](*tips).ljust(len(NO_TIPS), b"\0"))


def unpack_tips(packed: object) -> tuple[int, ...]:
    """Return the tips of a thread's row, or none if the column is damaged."""
    if not isinstance(packed, (bytes, bytearray)) or len(packed) % TIP_BYTES:
        return ()
    if len(packed) == len(NO_TIPS):
        tips = _UNPACK(packed)
        return tips if tips[-1] else tuple(filter(None, tips))
    return tuple([tip for (tip,) in struct.iter_unpack(">q", packed)])


class ManyRows:
    """A statement whose text repeats `row` for each row, in place of `{rows}`.

    Few distinct texts keep the statement cache small, and the driver releases the GIL only once
    for each statement.
    """

    def __init__(self, text: str, row: str) -> None:
        self._text = text
        self._row = row
        self._texts: dict[int, str] = {}

    def run(self, db: sqlite3.Connection, rows: Sequence[Sequence[Any]]) -> int:
        """Execute it for the rows in groups, and return the number of rows that it changed."""
        if len(rows) == 1:
            return db.execute(self.text(1), rows[0]).rowcount
        parts = ((self.text(len(part)), tuple(chain.from_iterable(part))) for part in _parts(rows))
        return sum([db.execute(*part).rowcount for part in parts])

    def text(self, count: int) -> str:
        """Return the SQL for `count` rows."""
        text = self._texts.get(count)
        if text is None:
            rows = ", ".join([self._row] * count)
            text = self._texts[count] = self._text.replace("{rows}", rows)
        return text


def _parts(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    start = 0
    while left := len(rows) - start:
        size = next((size for size in _SIZES if size <= left), left)
        yield rows[start : start + size]
        start += size


# -- heads, as rows of `tk_threads` (see `_core.engine.heads`) ---------------------------

HEAD_COLUMNS = (*_HEAD_COLUMNS, "number")
WIDTH = len(HEAD_COLUMNS)
_IDS = (*[name for name, field in FIELDS.items() if field is ID], "origin_checkpoint")
_NULLS = ("heap", "generation", "life", "deleted_at", "pinned", "attempts")  # (NULL for 0)
_ZEROS = {*_NULLS, "seq", "size", "revision"}
SELECTED = ", ".join(
    [f"coalesce(t.{one}, 0)" if one in _ZEROS else f"t.{one}" for one in HEAD_COLUMNS]
)
_HEAD = f"SELECT {SELECTED} FROM tk_threads t WHERE t.thread = ?"
_FAMILY = f"SELECT {SELECTED} FROM tk_threads t WHERE t.heap = ?"
_LAST_SEQ = "SELECT max(seq) FROM tk_writes WHERE thread = ? AND typeof(seq) = 'integer'"
_NEWEST = "SELECT max(id) FROM tk_checkpoints WHERE thread = ? AND ns = ''"
HEAP = """
CASE typeof(t.heap) WHEN 'integer' THEN t.heap WHEN 'null' THEN t.number ELSE coalesce((
    SELECT o.heap FROM tk_threads o WHERE o.thread = t.origin AND typeof(o.heap) = 'integer'
), t.number) END"""
"""The heap of a thread, if its number is damaged, the heap of its origin, or its own."""
_HEAP = f"SELECT {HEAP} FROM tk_threads t WHERE t.thread = ?"


def read_head(db: sqlite3.Connection, thread: str) -> Head:
    """Read the head of a thread, damaged fields as they are."""
    try:
        row = db.execute(_HEAD, (thread,)).fetchone()
    except DRIVER_ERRORS as error:
        if not is_undecodable(error):
            raise
        raise wrong_types("tk_threads", thread) from None
    return Head(thread) if row is None else head_of(row)


def read_family(db: sqlite3.Connection, heap: int) -> list[Head]:
    """Read the heads of the threads that share a heap."""
    return [readable(head_of(row)) for row in db.execute(_FAMILY, (heap,))]


def heap_of(db: sqlite3.Connection, head: Head) -> int:
    """Return the heap of a thread, also if its number is damaged."""
    if type(head.heap) is int:
        return head.heap or head.number
    return int(db.execute(_HEAP, (head.thread,)).fetchone()[0])


def head_of(row: Sequence[Any]) -> Head:
    """Return a row of `SELECTED` as a head, damaged fields as they are."""
    columns = dict(zip(HEAD_COLUMNS, row, strict=True))
    if type(columns["thread"]) is not str:
        raise wrong_types("tk_threads")
    columns["tips"] = unpack_tips(columns["tips"])
    try:
        for name in _IDS:
            if type(columns[name]) in ID_TYPES:
                columns[name] = unpack_id(columns[name])
    except ValueError:  # (a damaged one stays as it is)
        pass
    if columns["pinned"] in _FLAGS:
        columns["pinned"] = bool(columns["pinned"])
    if type(columns["heap"]) is str:  # (a text is the heap of another kind of store)
        columns["heap"] = b""
    return _head_of(columns, columns.pop("number"))


_FLAGS = (0, 1)


def head_values(head: Head, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the values of columns."""
    columns = columns_of(head)
    columns["tips"], columns["logs"] = pack_tips(head.tips), bytearray(columns["logs"])
    for name in _IDS:
        if columns[name] is not None:
            columns[name] = pack_id(columns[name])
    for name in _NULLS:
        columns[name] = columns[name] or None
    return tuple([columns[name] for name in names])


def read_mended(db: sqlite3.Connection, thread: str) -> Head:
    """Read the head of a damaged row: without tips, with safe values in its fields."""
    with lenient(db):
        head = read_head(db, thread)
        (seq,) = db.execute(_LAST_SEQ, (head.number,)).fetchone()
        (packed,) = db.execute(_NEWEST, (head.number,)).fetchone()
    newest = None if packed is None else AFTER_ALL
    with suppress(ValueError, TypeError):
        newest = unpack_id(packed)
    return mended(head, heap_of(db, head), seq or 0, newest)._replace(tips=())
