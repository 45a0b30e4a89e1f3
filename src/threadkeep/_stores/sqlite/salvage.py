"""Reads of damaged databases: readable rows one by one, and a list of what is wrong."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep._core.engine.model import THREADS, UnreadableRow
from threadkeep._core.engine.thread_entry import LARGEST, LATEST, ReadEntry
from threadkeep._stores.sqlite import entries
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, tells_of_damage
from threadkeep._stores.sqlite.records import pack_id, unpack_id
from threadkeep.errors import ConflictError, CorruptionError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from threadkeep._core.engine.model import Batch, ReadDamage


T = TypeVar("T")

# By what the engine calls a table: its name, how many columns are its rows' place, all columns.
_TABLES = {
    "checkpoints": (
        "tk_checkpoints",
        2,
        "ns id parent run seen flags ts source step metadata exact key_log key_pos manifest",
    ),
    "writes": ("tk_writes", 3, "ns checkpoint seq run seen task path body"),
    "segments": ("tk_heap_segments", 2, "log start count data"),
}


@contextmanager
def lenient(db: sqlite3.Connection) -> Iterator[None]:
    """Read text that is not UTF-8 as a type that no column can hold."""
    plain, db.text_factory = db.text_factory, _text_or_bytes
    try:
        yield
    finally:
        db.text_factory = plain


class _NotUtf8(bytes):
    """A text of a damaged row."""


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _NotUtf8(data)


def _in_ascii(column: str) -> str:
    return f"typeof({column})||':'||hex({column})"


def _key(columns: Sequence[str]) -> str:
    return "||' '||".join(map(_in_ascii, columns))


def _table(table: str) -> tuple[str, list[str], list[str]]:
    name, width, columns = _TABLES[table]
    return name, columns.split()[:width], columns.split()


def rows(
    db: sqlite3.Connection,
    table: str,
    sql: str,
    number: int | None,
    make: Callable[[Any], T],
) -> tuple[list[T], list[UnreadableRow]]:
    """The rows that can be made records, and the others.

    `sql` has `{key}` where a row's place is to stand first, and a number is given to it;
    `make` makes a record of the columns behind the place.
    """
    name, place, columns = _table(table)
    found: list[T] = []
    broken: list[tuple[str, str]] = []
    plain = db.text_factory
    db.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        for key, *row in db.execute(sql.replace("{key}", _key(place)), (number,)):
            try:
                for value in row:
                    if isinstance(value, str):
                        value.encode()
                found.append(make(tuple(row)))
                if table != "segments" and pack_id(unpack_id(row[1])) != row[1]:
                    broken.append(
                        (key, f"A row of {name} holds an id in another form than its own.")
                    )
                    del found[-1]  # (it could not be found again by its id)
            except CorruptionError as error:
                broken.append((key, error.message))
            except ValueError:
                broken.append((key, f"A row of {name} holds text that is not UTF-8."))
    finally:
        db.text_factory = plain
    values = "||' '||".join([f"'{column}='||{_in_ascii(column)}" for column in columns])
    whole = f"SELECT {values} FROM {name} WHERE thread = ? AND {_key(place)} = ?"
    return found, [
        UnreadableRow(table, key.encode(), problem, told.encode())
        for key, problem in broken
        for (told,) in db.execute(whole, (number, key))
    ]


def drop(db: sqlite3.Connection, number: int, heap: int, row: UnreadableRow) -> None:
    """Remove such a row of a thread, if it is there."""
    name, place, _ = _table(row.table)
    of = heap if row.table == "segments" else number
    sql = f"DELETE FROM {name} WHERE thread = ? AND {_key(place)} = ?"
    db.execute(sql, (of, row.key.decode()))


_THREAD_COLUMNS = (
    *("number", "thread", "generation", "deleted_at", "state", "created_at", "updated_at", "size"),
    *("waits_at", "revision", "pinned", "ttl", "origin", "origin_checkpoint", "heap"),
)
_THREAD_ROW = _key(_THREAD_COLUMNS)
_LABEL_ROWS = f"""
SELECT {_key(["beginning", "label"])} FROM tk_labels
WHERE thread = (SELECT number FROM tk_threads WHERE thread = ?) ORDER BY beginning
"""


def thread_row(db: sqlite3.Connection, thread: str) -> tuple[UnreadableRow, ...]:
    """The thread's own row, if its entry or its head is damaged."""
    with lenient(db):
        entry = entries.entry(db, ReadEntry(thread))
    problem = "" if entry is None else entry.damage
    try:
        entries.read_thread_head(db, thread)
    except CorruptionError:
        problem = "its generation, its tombstone or the number of its heap is damaged"
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
    heap = iif(typeof(heap) = 'null', NULL, {entries.HEAP}),
    state = NULL, created_at = NULL, updated_at = NULL, size = NULL, waits_at = NULL,
    pinned = NULL, ttl = NULL, origin = NULL, origin_checkpoint = NULL
WHERE thread = ? AND {_THREAD_ROW} = ?
"""
_DROP_LABELS = (
    "DELETE FROM tk_labels WHERE thread = (SELECT number FROM tk_threads WHERE thread = ?)"
)


def forget_entry(db: sqlite3.Connection, batch: Batch) -> None:
    """Make the thread's own row sound, if the batch drops it; see `Batch`."""
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
    """The reply to a `ReadDamage`: of each look what it finds before damage ends it."""
    lines: list[str] = []
    for look in (_integrity, _stray_rows, _odd_threads):
        try:
            lines.extend(look(db))
        except DRIVER_ERRORS as error:
            if not tells_of_damage(error):
                raise
            lines.append(f"SQLite says {str(error)!r}")
    return lines


def _integrity(db: sqlite3.Connection) -> Iterator[str]:
    return (line for (line,) in db.execute("PRAGMA integrity_check") if line != "ok")


def _stray_rows(db: sqlite3.Connection) -> Iterator[str]:
    """Rows that no thread shows: their thread's number was altered, or the thread lost."""
    tables = {name for (name,) in db.execute("SELECT name FROM main.sqlite_master")}
    for table in sorted(tables & {"tk_checkpoints", "tk_writes", "tk_heap_segments", "tk_labels"}):
        known = entries.HEAP if table == "tk_heap_segments" else "number"
        for number, count in db.execute(_STRAYS.format(table, known)):
            yield f"{count} rows of {table} are of thread number {number!r}, which is not there"


def _odd_threads(db: sqlite3.Connection) -> Iterator[str]:
    for (number,) in db.execute(_ODD_THREADS):
        yield f"row {number} of tk_threads holds values of the wrong types"
