"""Heads of threads as rows of `tk_threads`. See `_core.engine.heads`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadkeep._core.engine.heads import NO_GAPS, NO_LOGS, Head, LogEnds
from threadkeep._core.engine.thread_entry import LARGEST, is_count, is_time
from threadkeep._stores.records import new_tip, unpack_logs
from threadkeep._stores.sqlite import threads
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, is_undecodable, lenient
from threadkeep._stores.sqlite.records import unpack_any, unpack_id, unpack_tips, wrong_types

if TYPE_CHECKING:
    import sqlite3

COLUMNS = (
    *("thread", "tips", "number", "heap", "generation", "life", "deleted_at", "seq", "newest"),
    *("logs", "size", "revision", "state", "created_at", "updated_at", "waits_at", "pinned"),
    *("ttl", "origin", "origin_checkpoint"),
)
FIELDS = ", ".join([f"t.{name}" for name in COLUMNS])
WIDTH = len(COLUMNS)
_HEAD = f"SELECT {FIELDS} FROM tk_threads t WHERE t.thread = ?"
_FAMILY = f"SELECT {FIELDS} FROM tk_threads t WHERE t.heap = ?"
_LAST_SEQ = "SELECT max(seq) FROM tk_writes WHERE thread = ? AND typeof(seq) = 'integer'"
_NEWEST = "SELECT max(id) FROM tk_checkpoints WHERE thread = ? AND ns = ''"
_NUMBERS = frozenset((int, type(None)))
_IDS = frozenset((bytes, str, type(None)))
_AFTER_ALL = "\U0010ffff"


def read_head(db: sqlite3.Connection, thread: str) -> Head:
    """Read the head of a thread. Raises CorruptionError for damaged fields."""
    try:
        row = db.execute(_HEAD, (thread,)).fetchone()
    except DRIVER_ERRORS as error:
        if not is_undecodable(error):
            raise
        raise wrong_types("tk_threads", thread) from None
    return Head(thread) if row is None else head_of(row)


def read_family(db: sqlite3.Connection, heap: int) -> list[Head]:
    """Read the heads of the threads that share a heap."""
    return [head_of(row) for row in db.execute(_FAMILY, (heap,))]


def head_of(row: tuple[Any, ...]) -> Head:
    """Return a row of `FIELDS` as a head. Raises CorruptionError for damaged fields."""
    name, tips, number, heap, generation, life, deleted_at, seq, newest, logs, *entry = row
    size, revision, state, created_at, updated_at, waits_at, pinned, ttl, *origin = entry
    counts = (generation or 0, life or 0, seq or 0, revision or 0)
    numbers = (*counts, deleted_at, heap, size, created_at, updated_at, ttl)
    if not (
        _NUMBERS.issuperset(map(type, numbers))
        and _IDS.issuperset(map(type, (newest, waits_at, *origin)))
        and min(counts) >= 0
        and max(counts) <= LARGEST
        and (deleted_at is None or is_time(deleted_at))
    ):
        raise wrong_types("tk_threads", name)
    try:
        listed, lists_all = unpack_logs(logs)
    except (ValueError, TypeError):
        raise wrong_types("tk_threads", name) from None
    return Head(
        name,
        unpack_tips(tips),
        number,
        heap or 0,
        generation or 0,
        life or 0,
        deleted_at or 0,
        seq or 0,
        None if newest is None else unpack_id(newest),
        listed,
        lists_all,
        NO_GAPS,
        size or 0,
        revision or 0,
        state,
        created_at,
        updated_at,
        None if waits_at is None else unpack_id(waits_at),
        bool(pinned),
        ttl,
        None if origin[0] is None else (origin[0], unpack_any(origin[1])),
    )


def read_mended(db: sqlite3.Connection, thread: str) -> Head:
    """Read the head of a damaged row: without tips and entry, with safe values in its fields."""
    with lenient(db):
        row = dict(zip(COLUMNS, db.execute(_HEAD, (thread,)).fetchone(), strict=True))
        heap = threads.read_thread_head(db, thread, skip=True).heap
        (seq,) = db.execute(_LAST_SEQ, (row["number"],)).fetchone()
        newest = unpack_any(db.execute(_NEWEST, (row["number"],)).fetchone()[0])
    numbers: dict[str, Any] = {
        name: value if is_count(value := row[name] or 0) else new_tip() >> 1
        for name in ("generation", "life", "revision")
    }
    return Head(
        thread,
        (),
        row["number"],
        0 if row["heap"] is None else heap,
        deleted_at=value if is_time(value := row["deleted_at"] or 0) else 0,
        seq=seq or 0,
        newest=newest if newest is None or isinstance(newest, str) else _AFTER_ALL,
        lists_all=False,
        **numbers,
    )


def ends_of(packed: object) -> LogEnds:
    """Return the logs that a head lists; none if they are damaged."""
    try:
        return NO_LOGS if packed is None else unpack_logs(packed)[0]  # type: ignore[arg-type]  # (then TypeError)
    except (ValueError, TypeError):
        return NO_LOGS
