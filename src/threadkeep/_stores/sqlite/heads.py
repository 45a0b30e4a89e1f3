"""Heads of threads as rows of `tk_threads`. See `_core.engine.heads`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine.heads import Head, readable
from threadkeep._core.engine.thread_entry import AFTER_ALL, FIELDS, ID
from threadkeep._stores.records import COLUMNS as _COLUMNS
from threadkeep._stores.records import columns_of, mended
from threadkeep._stores.records import head_of as _head_of
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, is_undecodable, lenient
from threadkeep._stores.sqlite.records import (
    ID_TYPES,
    pack_id,
    pack_tips,
    unpack_id,
    unpack_tips,
    wrong_types,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

COLUMNS = (*_COLUMNS, "number")
WIDTH = len(COLUMNS)
_IDS = (*[name for name, field in FIELDS.items() if field is ID], "origin_checkpoint")
_NULLS = ("heap", "generation", "life", "deleted_at", "pinned")  # (NULL for 0)
_ZEROS = {*_NULLS, "seq", "size", "revision"}
SELECTED = ", ".join([f"coalesce(t.{one}, 0)" if one in _ZEROS else f"t.{one}" for one in COLUMNS])
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
    columns = dict(zip(COLUMNS, row, strict=True))
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


def values(head: Head, names: Sequence[str]) -> tuple[Any, ...]:
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
