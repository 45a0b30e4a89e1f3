"""Opening a database: its path, its tables (`schema.sql`), its settings.

Only SQLite opens the file. Closing any other descriptor of it would drop all locks that this
process holds on it (POSIX), and other processes could remove the WAL under its connections.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote_from_bytes

from threadkeep import errors
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, mapped
from threadkeep._stores.sqlite.records import CACHED

APPLICATION_ID = 0x74686B70  # "thkp", as `file` and `PRAGMA application_id` show it
VERSION = 1  # of the tables: `PRAGMA user_version`

_FUNCTIONS = {  # of the views
    "id_text": """CASE WHEN typeof({0}) <> 'blob' THEN {0} WHEN length({0}) <> 16
        THEN CAST(substr({0}, 17) AS TEXT)
        ELSE lower(hex(substr({0}, 1, 4)) || '-' || hex(substr({0}, 5, 2)) || '-'
            || hex(substr({0}, 7, 2)) || '-' || hex(substr({0}, 9, 2)) || '-'
            || hex(substr({0}, 11))) END""",
    "time_text": """CASE WHEN typeof({0}) <> 'integer' THEN {0}
        ELSE strftime('%Y-%m-%dT%H:%M:%S', {0} / 1000000, 'unixepoch')
            || printf('.%06d+00:00', {0} % 1000000) END""",
}


def is_ours(db: sqlite3.Connection, path: str) -> bool:
    """Tell whether the database has our tables; False where it is empty."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if not names and application in (0, APPLICATION_ID):
        return False
    if application != APPLICATION_ID:
        raise _not_ours(path, names)
    if version > VERSION:
        raise errors.NewerDatabaseError(
            f"{path} has tables of version {version}; this release knows version {VERSION}.",
            hint="Upgrade threadkeep: pip install --upgrade threadkeep.",
        )
    return True


def create(db: sqlite3.Connection, path: str) -> None:
    """Make the tables, unless another process has just made them."""
    with transaction(db, "BEGIN"):
        # In an empty file this takes the write lock, and is written with the tables.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if not is_ours(db, path):
            for statement in _statements():
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit at the end of the block, or roll back where it fails."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _statements() -> list[str]:
    text = Path(__file__).with_name("schema.sql").read_text("utf-8")
    for name, sql in _FUNCTIONS.items():
        text = re.sub(rf"\b{name}\((\w+\.\w+)\)", sql.format(r"\1"), text)
    return text.split(";\n")


def _not_ours(path: str, names: set[str]) -> errors.NotOursError:
    import shlex  # noqa: PLC0415 - seldom needed

    if {"checkpoints", "writes"} <= names:
        return errors.NotOursError(
            f"{path} is a database of LangGraph's own SQLite saver, not of threadkeep.",
            hint="It is left as it is. Use a file of its own, and bring the threads"
            f" there: threadkeep adopt {shlex.quote(path)} sqlite:///new.db",
        )
    some = ", ".join(sorted(names)[:3]) or "nothing"
    return errors.NotOursError(
        f"{path} is a database of another program: it holds {some}.",
        hint="It is left as it is. Use a file of its own.",
    )


class AsyncConnection(Protocol):
    """An `aiosqlite.Connection`."""

    def execute_fetchall(self, sql: str, parameters: Any = None) -> Any:
        """Run a query."""


Database: TypeAlias = str | os.PathLike[str] | sqlite3.Connection | AsyncConnection


def finder(database: Database) -> Callable[[], str]:
    """A function that returns the path: see `path_of`.

    It may block for a connection of aiosqlite only, so that event loops can call it elsewhere.
    """
    if hasattr(database, "execute_fetchall"):
        return partial(path_of, database)
    path = path_of(database)
    return lambda: path


def path_of(database: Database) -> str:
    """The absolute path of the file, or `:memory:`."""
    if isinstance(database, sqlite3.Connection) or hasattr(database, "execute_fetchall"):
        return _file_of(database) or MEMORY
    path = os.fspath(database) if isinstance(database, os.PathLike) else database
    try:
        if isinstance(path, str) and b"\0" not in os.fsencode(path) != b"":
            here = os.fsdecode(os.getcwdb())  # noqa: PTH109 - blockbuster refuses `os.getcwd`
            return path if path == MEMORY else str(Path(here, path))
    except UnicodeEncodeError:
        pass  # this system can have no file of that name
    raise errors.InvalidArgumentError(
        f"{database!a} is no path.", hint="Use the path of a file as str or Path, or ':memory:'."
    )


def _file_of(connection: Any) -> str:
    """The file of a connection's main database; empty where that is in memory.

    The connection of aiosqlite belongs to another thread, and there is none before it is awaited:
    so the function that makes it, which aiosqlite keeps, makes us one to ask.
    """
    try:
        if isinstance(connection, sqlite3.Connection):
            return _main_file(connection)
        with closing(connection._connector()) as own:  # noqa: SLF001 - it has no public name
            return _main_file(own)
    except (AttributeError, TypeError, sqlite3.Error) as error:
        raise errors.OpenError(
            f"The given connection cannot tell its file: {error}",
            hint="Use the file's path (from_conn_string), or an open connection of this thread.",
        ) from error


def _main_file(connection: sqlite3.Connection) -> str:
    files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    return files["main"] or ""


MEMORY = ":memory:"
_RETRY_SECONDS = 0.005  # between tries to switch a new file to WAL
_CHECKPOINT_PAGES = 2000  # the WAL is copied into the file when it holds this many
_WAL_BYTES = 8 << 20  # and its own file is cut back to this size then


class DatabaseLocation(NamedTuple):
    """Path and mode of a database.

    `mode` is SQLite's: `rwc` makes the file where there is none; `rw` does not; `ro` reads only;
    `immutable` reads a file that has no WAL, and makes nothing beside it.
    """

    path: str
    synchronous: str
    busy_timeout: float
    mode: str = "rwc"

    @property
    def in_memory(self) -> bool:
        """True if it is in this process's memory."""
        return self.path == MEMORY

    @property
    def is_read_only(self) -> bool:
        """True if nothing can be written."""
        return self.mode in ("ro", "immutable")

    def connect_reader(self) -> sqlite3.Connection:
        """Connect for reading only. Raises the driver's errors, as the next one."""
        return self._connect("PRAGMA query_only = ON")

    def connect_writer(self) -> sqlite3.Connection:
        """Connect with the settings that matter to commits."""
        return self._connect(
            f"PRAGMA synchronous = {self.synchronous}",
            f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}",
            f"PRAGMA journal_size_limit = {_WAL_BYTES}",
            "PRAGMA temp_store = MEMORY",
        )

    def _connect(self, *settings: str) -> sqlite3.Connection:
        db = sqlite3.connect(
            MEMORY if self.in_memory else self.uri,
            timeout=self.busy_timeout,
            isolation_level=None,  # transactions are begun and ended by hand
            check_same_thread=False,  # `Connections` lends to one thread at a time
            uri=not self.in_memory,
            cached_statements=CACHED,
        )
        try:
            for setting in settings:
                db.execute(setting)
        except BaseException:
            db.close()
            raise
        return db

    @property
    def uri(self) -> str:
        """The file and the mode, as SQLite takes them together."""
        query = "mode=ro&immutable=1" if self.mode == "immutable" else f"mode={self.mode}"
        return f"file:{quote_from_bytes(os.fsencode(self.path))}?{query}"


def open_first(location: DatabaseLocation) -> tuple[DatabaseLocation, sqlite3.Connection]:
    """Open the database for writing, and make it where there is none; or only read it.

    Returns the location in the mode that later connections use, and the connection.
    """
    try:
        if not location.in_memory:
            location = _as_found(location)
        db = location.connect_writer()
        try:
            _prepare(db, location)
        except BaseException:
            db.close()
            raise
    except DRIVER_ERRORS as error:
        raise _open_error(error, location.path) from error
    except OSError as error:
        raise errors.OpenError(
            f"{location.path} cannot be opened: {error.strerror}.",
            hint="Use a path that this system allows and this process may use.",
        ) from error
    return (location._replace(mode="rw") if location.mode == "rwc" else location), db


def _as_found(location: DatabaseLocation) -> DatabaseLocation:
    path = Path(location.path)
    if not path.parent.is_dir():
        raise errors.OpenError(
            f"The folder {path.parent} is not there, so {path.name} cannot be opened in it.",
            hint="Create the folder first, or correct the path.",
        )
    exists = path.exists()
    if exists and not path.is_file():
        raise errors.OpenError(f"{path} is not a file.", hint="Use the path of a database file.")
    size = path.stat().st_size if exists else None
    if size == 1:
        raise _no_database(location.path)  # SQLite takes a file of one byte for an empty one
    if size == 0 and location.mode == "ro":
        raise _no_tables(location.path)  # SQLite removes a WAL that is beside such a file
    is_frozen = os.access(path, os.R_OK) and not os.access(path.parent, os.W_OK)
    if not wal_of(path).exists() and (location.mode == "ro" or is_frozen):
        return location._replace(mode="immutable")
    return location


def _prepare(db: sqlite3.Connection, location: DatabaseLocation) -> None:
    with transaction(db, "BEGIN"):
        ours = is_ours(db, location.path)
    if not ours and location.mode != "rwc":
        raise _no_tables(location.path)
    if not ours:
        create(db, location.path)
    if not location.in_memory and location.mode == "rwc":
        _use_wal(db, location.busy_timeout)


def _use_wal(db: sqlite3.Connection, busy_timeout: float) -> None:
    """Switch to WAL. SQLite's busy timeout does not cover this switch, so we wait."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_READONLY:
                return  # a rollback journal does for reading
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def wal_of(path: Path) -> Path:
    """The WAL of a database: it is beside the file itself, not beside a link to it."""
    return Path(os.path.realpath(path) + "-wal")


def _no_tables(path: str) -> errors.NotOursError:
    return errors.NotOursError(
        f"{path} is empty: there are no tables in it.",
        hint="Use the path of a threadkeep database. If this was one, restore a backup.",
    )


def _no_database(path: str) -> errors.NotOursError:
    return errors.NotOursError(
        f"{path} is not a SQLite database.",
        hint="Use the path of a threadkeep database, or of a file that is not there yet.",
    )


def _open_error(error: Exception, path: str) -> errors.ThreadkeepError:
    code = _code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _no_database(path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return errors.OpenError(
            f"{path} cannot be opened: SQLite says {str(error)!r}.",
            hint="This process needs read and write access to the file and its folder.",
        )
    return mapped(error, path)


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 where the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
