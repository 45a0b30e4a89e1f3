"""Damaged rows of a database file: their search, contents and removal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from threadkeep._core.engine.heads import problem_of
from threadkeep._core.engine.model import THREADS, ReadDamage, UnreadableRow
from threadkeep._stores.sqlite import message_words, threads
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, lenient, tells_of_damage
from threadkeep._stores.sqlite.records import (
    HEAD_COLUMNS,
    HEAP,
    TABLES,
    pack_id,
    read_head,
    unpack_id,
)
from threadkeep.errors import CorruptionError

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
    """Read all rows of a thread, and return the records, and the rows that `make` refuses.

    `sql` takes the thread's number. `{key}` in it stands for the row's key, its first column, and
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


_OWN = [name for name in HEAD_COLUMNS if name != "tips"]
_THREAD_ROW = f"SELECT {_dump(_OWN)} FROM tk_threads WHERE thread = ?"
_LABEL_ROWS = f"""
SELECT {_dump(["beginning", "label"])} FROM tk_labels
WHERE thread = (SELECT number FROM tk_threads WHERE thread = ?) ORDER BY beginning
"""


def damaged_thread(db: sqlite3.Connection, thread: str) -> tuple[UnreadableRow, ...]:
    """The row of `tk_threads` with its labels, if the entry or another field is damaged."""
    with lenient(db):
        head = read_head(db, thread)
        problem = problem_of(head, threads.labels_of(db, head))
    if not problem:
        return ()
    key = key_of_thread(db, thread)
    labels = [label.encode() for (label,) in db.execute(_LABEL_ROWS, (thread,))]
    return (UnreadableRow(THREADS, key, problem, b"\n".join([key, *labels])),)


def key_of_thread(db: sqlite3.Connection, thread: str) -> bytes:
    """Return the contents of a thread's own row, or b"" without one."""
    row = db.execute(_THREAD_ROW, (thread,)).fetchone()
    return b"" if row is None else row[0].encode()


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
    for check in (_integrity, message_words.problems, _stray_rows, _odd_threads):
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
        known = HEAP if table == "tk_heap_segments" else "number"
        for number, count in db.execute(_STRAYS.format(table, known)):
            yield f"{count} rows of {table} belong to thread {number!r}, which does not exist"


def _odd_threads(db: sqlite3.Connection) -> Iterator[str]:
    for (number,) in db.execute(_ODD_THREADS):
        yield f"row {number} of tk_threads holds values of the wrong types"
