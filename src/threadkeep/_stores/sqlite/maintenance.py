"""Maintenance of a database file: identity, scrubbing, backup and restore."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from threadkeep._stores.base import ScrubReport
from threadkeep._stores.sqlite.connections import Connections
from threadkeep._stores.sqlite.failures import named
from threadkeep._stores.sqlite.opening import MEMORY, DatabaseLocation, open_first, transaction
from threadkeep.errors import InvalidArgumentError, LockedError, OpenError, ThreadExistsError

T = TypeVar("T")


_TABLE = "CREATE TABLE IF NOT EXISTS tk_identity (identity TEXT NOT NULL, place TEXT NOT NULL)"
_READ = "SELECT identity FROM tk_identity WHERE place = ?"
_NAME = "INSERT INTO tk_identity (identity, place) VALUES (?, ?)"


def identity(connections: Connections) -> str:
    """Return the database's name, and choose one if it has none. Raises as a commit does."""
    path = connections.location.path
    with connections.write_lock, named(path):
        db, place = connections.writer(), _place(connections)
        with suppress(sqlite3.OperationalError):  # (no such table yet)
            if found := db.execute(_READ, (place,)).fetchone():
                return str(found[0])
        if connections.location.is_read_only:
            return secrets.token_hex(16)  # (nothing can be stored under it)
        with transaction(db):
            db.execute(_TABLE)
            found = db.execute(_READ, (place,)).fetchone()  # (another process may have been faster)
            if not found:
                found = (secrets.token_hex(16),)
                db.execute("DELETE FROM tk_identity")
                db.execute(_NAME, (*found, place))
        return str(found[0])


def _place(connections: Connections) -> str:
    if connections.location.in_memory:
        return ""
    file = Path(connections.location.path).stat()
    system = os.statvfs(connections.location.path).f_fsid if hasattr(os, "statvfs") else file.st_dev
    return f"{system}-{file.st_ino}"


_RETRY_SECONDS = 0.005
_COPIES = (
    "Copies of the SQLite file (backups, disk snapshots, freed blocks of the file system): remove"
    " them, or let them expire."
)

# Full-text indexes (message_index.py, items.py) keep words of removed rows until optimized.
_INDEXES = """
SELECT name FROM sqlite_master
WHERE name IN ('threadkeep_memory_text', 'threadkeep_words', 'tk_item_words')
"""
_REWRITE_INDEX = "INSERT INTO {name} ({name}) VALUES ('optimize')"


def scrub(connections: Connections) -> ScrubReport:
    """Rewrite the database, and empty its WAL. See `Backend.scrub`.

    Temporarily needs free space of twice the file's size. Others can read meanwhile, and wait to
    write.
    """
    if connections.location.in_memory:
        return ScrubReport()
    with connections.write_lock, named(connections.location.path):
        db = connections.writer()
        for (name,) in db.execute(_INDEXES).fetchall():
            db.execute(_REWRITE_INDEX.replace("{name}", name))
        db.execute("VACUUM")
        is_empty = _emptied(db, connections.location.busy_timeout)
    if not is_empty:
        raise LockedError(
            f"{connections.location.path} was rewritten, but keeps its old pages, as another"
            " connection still reads them.",
            hint="End that transaction (a long read, a backup).",
        )
    return ScrubReport(("the SQLite file and its WAL, rewritten",), (_COPIES,))


def _emptied(db: sqlite3.Connection, seconds: float) -> bool:
    """Copy the WAL into the file, and return True if it is empty then.

    Waits for another process that does the same, which SQLite's busy timeout does not cover.
    """
    deadline = time.monotonic() + seconds
    while True:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy or time.monotonic() > deadline:
            return not busy
        time.sleep(_RETRY_SECONDS)


_BUSY_SECONDS = 30.0
_STEP_PAGES = 1024  # between two calls of `progress`

_TABLES = ("tk_threads", "tk_checkpoints", "tk_writes", "tk_heap_segments", "tk_labels")
_HOLDS_ROWS = """
SELECT EXISTS (SELECT 1 FROM main.tk_checkpoints) OR EXISTS (SELECT 1 FROM main.tk_writes)
    OR EXISTS (SELECT 1 FROM main.tk_heap_segments)
"""
_REMEMBER = """
CREATE TEMP TABLE tk_before AS SELECT t.thread, coalesce(t.generation, 0) AS generation,
    t.deleted_at, EXISTS (SELECT 1 FROM main.tk_checkpoints c WHERE c.thread = t.number)
        OR EXISTS (SELECT 1 FROM main.tk_writes w WHERE w.thread = t.number) AS held
FROM main.tk_threads t
"""
_REMEMBER_BY_ID = "CREATE UNIQUE INDEX temp.tk_before_by_id ON tk_before (thread)"
# A thread that is not in the backup is deleted.
_BURY = """
INSERT INTO main.tk_threads (thread, deleted_at, life)
SELECT thread, CASE WHEN held THEN max(coalesce(deleted_at, 0), ?) ELSE deleted_at END,
    abs(random()) >> 2
FROM temp.tk_before WHERE thread NOT IN (SELECT thread FROM backup.tk_threads)
"""
# Positions of logs may now hold other elements: see `ThreadState.generation`.
_RAISE = """
UPDATE main.tk_threads SET generation = 1 + max(coalesce(generation, 0), coalesce(
    (SELECT b.generation FROM temp.tk_before b WHERE b.thread = main.tk_threads.thread), 0))
"""
_THREADS = """
SELECT count(*) FROM tk_threads t WHERE t.state <> 'deleted'
    OR EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.thread = t.number)
"""


def back_up(path: str, file: Path, progress: Callable[[int, int], None], programs: str = "") -> int:
    """Copy a database's present state to an empty file, and return its number of threads.

    Others may write meanwhile. The copy has no WAL. `progress` is called with the number of copied
    pages and of all pages.
    """
    del programs  # (none are needed)
    _check_is_file(path)
    _, source = open_first(DatabaseLocation(path, "full", _BUSY_SECONDS, "rw"))
    with closing(source), closing(sqlite3.connect(file, isolation_level=None)) as target:
        with named(path):
            # (commits of others would restart a backup outside a transaction)
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        with named(str(file)):
            source.backup(
                target,
                pages=_STEP_PAGES,
                progress=lambda _, remaining, total: progress(total - remaining, total),
            )
            target.execute("PRAGMA journal_mode = DELETE")
            (threads,) = target.execute(_THREADS).fetchone()
    return int(threads)


def restore(file: Path, path: str, now: int, *, replace: bool, programs: str = "") -> int:
    """Fill a database with the contents of a copy, in one transaction.

    Others may have the database open. A missing one is created. With `replace`, its previous
    contents are removed. `now` is in microseconds since 1970. Returns the number of threads.
    """
    from threadkeep._stores.sqlite.items import copy_items, holds_items  # noqa: PLC0415 - seldom needed

    del programs
    _check_is_file(str(file))
    if Path(path).exists() and file.samefile(path):
        raise InvalidArgumentError(f"{path} is the backup itself.", hint="Name another file.")
    found, copy = open_first(DatabaseLocation(str(file), "full", _BUSY_SECONDS, "ro"))
    copy.close()
    _, db = open_first(DatabaseLocation(str(Path(path).absolute()), "full", _BUSY_SECONDS))
    with closing(db), named(path):
        db.execute("ATTACH ? AS backup", (found.uri,))
        with transaction(db):
            has_threads = db.execute(_HOLDS_ROWS).fetchone() == (1,)
            if not replace and (has_threads or holds_items(db)):
                raise ThreadExistsError(
                    f"{path} holds {'threads' if has_threads else 'items'} already.",
                    hint="Restore into a new file, or replace all of its contents with --replace.",
                )
            db.execute(_REMEMBER)
            db.execute(_REMEMBER_BY_ID)
            for table in _TABLES:
                db.execute(f"DELETE FROM main.{table}")
                db.execute(f"INSERT INTO main.{table} SELECT * FROM backup.{table}")
            db.execute(_BURY, (now,))
            db.execute(_RAISE)
            copy_items(db)
        return int(db.execute(_THREADS).fetchone()[0])


def _check_is_file(path: str) -> None:
    if path == MEMORY:
        raise InvalidArgumentError(
            "A database in memory belongs to its own process.", hint="Name a database file."
        )
    if not Path(path).exists():
        raise OpenError(f"There is no file {path}.")
