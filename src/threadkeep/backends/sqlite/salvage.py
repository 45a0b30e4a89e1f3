"""Reading a thread some of whose rows cannot be made records: these are told apart.

Only that read, and finding such a row again, live here. Invariant: a row is told apart exactly
where the plain read would raise because of it.
"""
# ruff: noqa: S608 - texts are put together from constants of this module only

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep.engine.model import UnreadableRow
from threadkeep.errors import CorruptionError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

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
