"""A look at SQLite while savers use it: statements counted, the write lock timed.

Connections are looked at if they are opened, by whatever library, while the hook is in place.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

TRIGGER = "--"  # how SQLite reports a trigger that a statement runs
ENDS = ("COMMIT", "ROLLBACK")


@contextmanager
def connecting(connect: Callable[..., sqlite3.Connection]) -> Iterator[None]:
    """Let `sqlite3.connect` be this function."""
    plain, patched = sqlite3.connect, _module()
    patched.connect = connect
    try:
        yield
    finally:
        patched.connect = plain


def _module() -> Any:
    return sqlite3


@contextmanager
def statements() -> Iterator[Counter[str]]:
    """Count the statements that are run, by their first word."""
    plain, found = sqlite3.connect, Counter[str]()

    def note(statement: str) -> None:
        if not statement.startswith(TRIGGER):
            found[statement.split(None, 1)[0].upper()] += 1

    def connect(*given: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = plain(*given, **options)
        connection.set_trace_callback(note)
        return connection

    with connecting(connect):
        yield found


class WriteLock:
    """Seconds for which this process has held the write lock, and waited for it."""

    def __init__(self) -> None:
        self.held = self.waited = 0.0


@contextmanager
def write_lock() -> Iterator[WriteLock]:
    """Time the write lock of transactions that take it first, as threadkeep's do."""
    plain, lock = sqlite3.connect, WriteLock()

    class Connection(sqlite3.Connection):
        since = 0.0

        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if sql.startswith("BEGIN IMMEDIATE"):
                start = perf_counter()
                try:
                    cursor = super().execute(sql, *given)
                    self.since = perf_counter()
                finally:
                    lock.waited += perf_counter() - start
                return cursor
            try:
                return super().execute(sql, *given)
            finally:
                if self.since and sql in ENDS:
                    lock.held += perf_counter() - self.since
                    self.since = 0.0

    def connect(*given: Any, **options: Any) -> sqlite3.Connection:
        connection: Connection = plain(*given, **{"factory": Connection, **options})
        return connection

    with connecting(connect):
        yield lock
