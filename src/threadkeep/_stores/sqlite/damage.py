"""Damaged rows of a database file: their search, contents and removal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep._core.engine.model import THREADS, UnreadableRow
from threadkeep._core.engine.thread_entry import LARGEST, LATEST, ReadEntry
from threadkeep._stores.sqlite import threads
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, lenient, tells_of_damage
from threadkeep._stores.sqlite.records import TABLES, pack_id, unpack_id
from threadkeep.errors import ConflictError, CorruptionError

if TYPE_CHECKING:
    from threadkeep._core.engine.model import Batch, ReadDamage

T = TypeVar("T")

# Table of the engine: the table here, and the number of columns of its key.
_DAMAGEABLE = {
    "checkpoints": ("tk_checkpoints", 2),
    "writes": ("tk_writes", 3),
    "segments": ("tk_heap_segments", 2),
}


def _dump(columns: Iterable[str]) -> str:
    """SQL for the exact contents of columns as ASCII text: names, types and bytes."""
    return "||' '||".join([f"'{one}='||typeof({one})||':'||hex({one})" for one in columns])


def _table(table: str) -> tuple[str, str, str]:
    """The table's name, and SQL for the key and the contents of a row."""
    name, width = _DAMAGEABLE[table]
    columns = TABLES[name].split(", ")
    return name, _dump(columns[:width]), _dump(columns)


def rows(
    db: sqlite3.Connection,
    table: str,
    sql: str,
    number: int | None,
    make: Callable[[Any], T],
) -> tuple[list[T], list[UnreadableRow]]:
    """Read all rows of a thread; return the records, and the rows that `make` refuses.

    `sql` takes the thread's number. `{key}` in it stands for the row's key, its first column;
    `make` gets the other columns.
    """
    name, key_sql, contents = _table(table)
    found: list[T] = []
    refused: list[tuple[str, str]] = []
    with lenient(db):
        for key, *row in db.execute(sql.replace("{key}", key_sql), (number,)):
            try:
                record = make(tuple(row))
                if table == "segments" or pack_id(unpack_id(row[1])) == row[1]:
                    found.append(record)
                    continue
                problem = f"A row of {name} holds an id in another form than its own."
            except CorruptionError as error:
                problem = error.message
            except ValueError:
                problem = f"A row of {name} holds text that is not UTF-8."
            refused.append((key, problem))
    whole = f"SELECT {contents} FROM {name} WHERE thread = ? AND {key_sql} = ?"
    return found, [
        UnreadableRow(table, key.encode(), problem, data.encode())
        for key, problem in refused
        for (data,) in db.execute(whole, (number, key))
    ]


def drop(db: sqlite3.Connection, number: int, heap: int, row: UnreadableRow) -> None:
    """Delete an unreadable row of a thread, if it is still there."""
    name, key, _ = _table(row.table)
    owner = heap if row.table == "segments" else number
    db.execute(f"DELETE FROM {name} WHERE thread = ? AND {key} = ?", (owner, row.key.decode()))


_THREAD_COLUMNS = (
    *("number", "thread", "generation", "deleted_at", "state", "created_at", "updated_at", "size"),
    *("waits_at", "revision", "pinned", "ttl", "origin", "origin_checkpoint", "heap", "life"),
)
_THREAD_ROW = _dump(_THREAD_COLUMNS)
_LABEL_ROWS = f"""
SELECT {_dump(["beginning", "label"])} FROM tk_labels
WHERE thread = (SELECT number FROM tk_threads WHERE thread = ?) ORDER BY beginning
"""


def damaged_thread(db: sqlite3.Connection, thread: str) -> tuple[UnreadableRow, ...]:
    """The row of `tk_threads` with its labels, if the entry, generation or heap is damaged."""
    with lenient(db):
        entry = threads.entry(db, ReadEntry(thread))
    problem = "" if entry is None else entry.damage
    try:
        threads.read_thread_head(db, thread)
    except CorruptionError:
        problem = "its generation, deletion time or heap number is damaged"
    if not problem:
        return ()
    (key,) = db.execute(f"SELECT {_THREAD_ROW} FROM tk_threads WHERE thread = ?", (thread,))
    labels = [label for (label,) in db.execute(_LABEL_ROWS, (thread,))]
    data = "\n".join([*key, *labels])
    return (UnreadableRow(THREADS, key[0].encode(), problem, data.encode()),)


_FORGET_ENTRY = f"""
UPDATE tk_threads AS t SET
    generation = iif(typeof(generation) IN ('integer', 'null')
        AND coalesce(generation, 0) BETWEEN 0 AND {LARGEST}, generation, abs(random()) >> 2),
    deleted_at = iif(typeof(deleted_at) = 'integer'
        AND deleted_at BETWEEN 1 AND {LATEST}, deleted_at, NULL),
    tips = NULL, life = iif(typeof(life) IN ('integer', 'null'), life, abs(random()) >> 2),
    revision = iif(typeof(revision) = 'integer'
        AND revision BETWEEN 0 AND {LARGEST}, revision, abs(random()) >> 2),
    heap = iif(typeof(heap) = 'null', NULL, {threads.HEAP}),
    state = NULL, created_at = NULL, updated_at = NULL, size = NULL, waits_at = NULL,
    pinned = NULL, ttl = NULL, origin = NULL, origin_checkpoint = NULL
WHERE thread = ? AND {_THREAD_ROW} = ?
"""
_DROP_LABELS = (
    "DELETE FROM tk_labels WHERE thread = (SELECT number FROM tk_threads WHERE thread = ?)"
)


def forget_entry(db: sqlite3.Connection, batch: Batch) -> None:
    """Replace the damaged values of the row of `tk_threads`, if the batch drops it; see `Batch`."""
    for row in batch.drop_unreadable:
        if row.table == THREADS:
            if not db.execute(_FORGET_ENTRY, (batch.thread, row.key.decode())).rowcount:
                raise ConflictError(thread=batch.thread)
            db.execute(_DROP_LABELS, (batch.thread,))


_STRAYS = """
SELECT thread, count(*) FROM {} WHERE thread NOT IN (SELECT {} FROM tk_threads t) GROUP BY thread
"""
_ODD_THREADS = """
SELECT number FROM tk_threads
WHERE typeof(thread) <> 'text' OR (state IS NULL AND created_at IS NOT NULL)
"""


def found(db: sqlite3.Connection, _read: ReadDamage) -> list[str]:
    """Answer a `ReadDamage`: the findings of each check until damage stops it."""
    lines: list[str] = []
    for check in (_integrity, _stray_rows, _odd_threads):
        try:
            lines.extend(check(db))
        except DRIVER_ERRORS as error:
            if not tells_of_damage(error):
                raise
            lines.append(f"SQLite says {str(error)!r}")
    return lines


def _integrity(db: sqlite3.Connection) -> Iterator[str]:
    return (line for (line,) in db.execute("PRAGMA integrity_check") if line != "ok")


def _stray_rows(db: sqlite3.Connection) -> Iterator[str]:
    """Find rows whose thread number is unknown: it was altered, or the thread was lost."""
    tables = {name for (name,) in db.execute("SELECT name FROM main.sqlite_master")}
    for table in sorted(tables & {"tk_checkpoints", "tk_writes", "tk_heap_segments", "tk_labels"}):
        known = threads.HEAP if table == "tk_heap_segments" else "number"
        for number, count in db.execute(_STRAYS.format(table, known)):
            yield f"{count} rows of {table} belong to thread {number!r}, which does not exist"


def _odd_threads(db: sqlite3.Connection) -> Iterator[str]:
    for (number,) in db.execute(_ODD_THREADS):
        yield f"row {number} of tk_threads holds values of the wrong types"
