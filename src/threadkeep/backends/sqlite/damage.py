"""What SQLite, and a look at the tables, find wrong with a file.

Only that search lives here. Invariant: damage that ends it is a finding too, not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from threadkeep.backends.sqlite.failures import DRIVER_ERRORS, tells_of_damage

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from threadkeep.engine.model import ReadDamage

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
