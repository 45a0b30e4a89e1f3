"""Maintenance of a database file: identity, scrubbing, backup and restore, damaged rows."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep._core.engine.model import THREADS, UnreadableRow
from threadkeep._core.engine.thread_entry import LARGEST, LATEST, ReadEntry
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.sqlite import threads
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, lenient, named, tells_of_damage
from threadkeep._stores.sqlite.opening import MEMORY, DatabaseLocation, open_first, transaction
from threadkeep._stores.sqlite.records import pack_id, unpack_id
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    InvalidArgumentError,
    LockedError,
    OpenError,
    ThreadExistsError,
)

if TYPE_CHECKING:
    from threadkeep._core.engine.model import Batch, ReadDamage
    from threadkeep._stores.sqlite.connections import Connections

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
SELECT name FROM sqlite_master WHERE name IN ('threadkeep_memory_text', 'tk_item_words')
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
INSERT INTO main.tk_threads (thread, deleted_at)
SELECT thread, CASE WHEN held THEN max(coalesce(deleted_at, 0), ?) ELSE deleted_at END
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
    """Copy a database's present state to an empty file; return its number of threads.

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


# -- damaged rows --------------------------------------------------------------------

# Table of the engine: the table here, the number of columns of its key, all columns.
_DAMAGEABLE = {
    "checkpoints": (
        "tk_checkpoints",
        2,
        "ns id parent run seen flags ts source step metadata exact key_log key_pos manifest",
    ),
    "writes": ("tk_writes", 3, "ns checkpoint seq run seen task path body"),
    "segments": ("tk_heap_segments", 2, "log start count data"),
}


def _dump(columns: Iterable[str]) -> str:
    """SQL for the exact contents of columns as ASCII text: names, types and bytes."""
    return "||' '||".join([f"'{one}='||typeof({one})||':'||hex({one})" for one in columns])


def _table(table: str) -> tuple[str, str, str]:
    """The table's name, and SQL for the key and the contents of a row."""
    name, width, columns = _DAMAGEABLE[table]
    return name, _dump(columns.split()[:width]), _dump(columns.split())


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
    *("waits_at", "revision", "pinned", "ttl", "origin", "origin_checkpoint", "heap"),
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
    """Answer a `ReadDamage`: the findings of each check, up to where damage stops it."""
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
