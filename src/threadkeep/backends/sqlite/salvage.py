"""Reads of damaged databases: readable rows one by one, and a list of what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep.backends.sqlite.failures import DRIVER_ERRORS, tells_of_damage
from threadkeep.engine.model import UnreadableRow
from threadkeep.errors import CorruptionError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator

    from threadkeep.engine.model import ReadDamage


# ruff: noqa: S608 - texts are put together from constants of this module only


T = TypeVar("T")

# By what the engine calls a table: its name, what its rows' places are, all its columns.
_TABLES = {
    "checkpoints": (
        "tk_checkpoints",
        ("ns", "id"),
        *(("ns", "id", "parent", "run", "seen", "flags", "ts", "source", "step", "metadata"),),
        ("exact", "key_log", "key_pos", "manifest"),
    ),
    "writes": (
        "tk_writes",
        ("ns", "checkpoint", "seq"),
        ("ns", "checkpoint", "seq", "run", "seen", "task", "path", "body"),
        (),
    ),
    "segments": ("tk_heap_segments", ("log", "start"), ("log", "start", "count", "data"), ()),
}


def _told(columns: tuple[str, ...], *, named: bool) -> str:
    """SQL for the columns as ASCII: types, and bytes in hexadecimal."""
    parts = [(f"'{c}='||" if named else "", f"typeof({c})||':'||hex({c})") for c in columns]
    return "||' '||".join([name + value for name, value in parts])


def rows(
    db: sqlite3.Connection,
    table: str,
    statement: tuple[str, int | None],
    make: Callable[[Any], T],
) -> tuple[list[T], list[UnreadableRow]]:
    """The rows that can be made records, and the others.

    Args:
        db: the connection.
        table: which table the rows are of.
        statement: a SELECT, with `{key}` where a row's place is to stand first, and the number
            that it is given.
        make: makes a record of the columns behind that.
    """
    sql, number = statement
    name, place, first, more = _TABLES[table]
    found: list[T] = []
    broken: list[UnreadableRow] = []
    plain = db.text_factory
    db.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        for key, *row in db.execute(sql.replace("{key}", _told(place, named=False)), (number,)):
            try:
                found.append(make(_encodable(tuple(row))))
            except (CorruptionError, ValueError) as error:
                problem = getattr(
                    error, "message", f"A row of {name} holds text that is not UTF-8."
                )
                broken.append(UnreadableRow(table, key.encode(), problem, b""))
    finally:
        db.text_factory = plain
    whole = f"SELECT {_told((*first, *more), named=True)} FROM {name} WHERE {_at(place)}"
    return found, [
        row._replace(data=db.execute(whole, (number, row.key.decode())).fetchone()[0].encode())
        for row in broken
    ]


def _encodable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row, if its texts are text. Raises UnicodeError."""
    for value in row:
        if isinstance(value, str):
            value.encode()
    return row


def _at(place: tuple[str, ...]) -> str:
    return f"thread = ? AND {_told(place, named=False)} = ?"


def drop(db: sqlite3.Connection, number: int, heap: int, row: UnreadableRow) -> None:
    """Remove such a row of a thread, if it is there."""
    name, place, _, _ = _TABLES[row.table]
    of = heap if row.table == "segments" else number
    db.execute(f"DELETE FROM {name} WHERE {_at(place)}", (of, row.key.decode()))


_STRAYS = """
SELECT thread, count(*) FROM {} WHERE thread NOT IN (SELECT {} FROM tk_threads) GROUP BY thread
"""
_ODD_THREADS = """
SELECT number FROM tk_threads WHERE typeof(thread) <> 'text'
    OR typeof(generation) NOT IN ('integer', 'null')
    OR typeof(deleted_at) NOT IN ('integer', 'null')
"""


def found(db: sqlite3.Connection, _read: ReadDamage) -> list[str]:
    """The reply to a `ReadDamage`."""
    parts = (_integrity, _stray_rows, _odd_threads)
    return [line for part in parts for line in _as_far_as_read(part(db))]


def _as_far_as_read(lines: Iterator[str]) -> Iterator[str]:
    """The lines, and where damage ends them one more that says so."""
    try:
        yield from lines
    except DRIVER_ERRORS as error:
        if not tells_of_damage(error):
            raise
        yield f"SQLite says {str(error)!r}"


def _integrity(db: sqlite3.Connection) -> Iterator[str]:
    return (line for (line,) in db.execute("PRAGMA integrity_check") if line != "ok")


def _stray_rows(db: sqlite3.Connection) -> Iterator[str]:
    """Rows that no thread shows: their thread's number was altered, or the thread lost."""
    tables = {name for (name,) in db.execute("SELECT name FROM main.sqlite_master")}
    for table in sorted(tables & {"tk_checkpoints", "tk_writes", "tk_heap_segments", "tk_labels"}):
        known = "coalesce(heap, number)" if table == "tk_heap_segments" else "number"
        for number, count in db.execute(_STRAYS.format(table, known)):
            yield f"{count} rows of {table} are of thread number {number!r}, which is not there"


def _odd_threads(db: sqlite3.Connection) -> Iterator[str]:
    for (number,) in db.execute(_ODD_THREADS):
        yield f"row {number} of tk_threads holds values of the wrong types"
