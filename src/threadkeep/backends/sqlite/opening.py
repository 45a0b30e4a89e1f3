"""Opening a database: its path, its kind, its settings.

Only SQLite opens the file. Closing any other descriptor of it would drop all locks that this
process holds on it (POSIX), and other processes could remove the WAL under its connections.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote_from_bytes

from threadkeep.backends.sqlite import schema
from threadkeep.backends.sqlite.failures import DRIVER_ERRORS, mapped
from threadkeep.backends.sqlite.records import CACHED
from threadkeep.errors import InvalidArgumentError, NotOursError, OpenError


class AsyncConnection(Protocol):
    """Attributes that tell an `aiosqlite.Connection` from other objects."""

    def execute_fetchall(self, sql: str, parameters: Any = None) -> Any:
        """Run a query."""


Database: TypeAlias = str | os.PathLike[str] | sqlite3.Connection | AsyncConnection


def path_of(database: Database) -> str:
    """The absolute path of the file, or `:memory:`.

    Raises:
        InvalidArgumentError: it is neither a path nor a connection.
        OpenError: it is a connection that cannot tell its file.
    """
    if isinstance(database, sqlite3.Connection):
        path: object = _file_of(database) or MEMORY
    elif hasattr(database, "execute_fetchall"):
        path = _file_of_async(database) or MEMORY
    else:
        path = os.fspath(database) if isinstance(database, os.PathLike) else database
    if not isinstance(path, str) or not _is_path(path):
        raise InvalidArgumentError(
            f"{database!a} is no path.",
            hint="Use the path of a file as str or Path, or ':memory:'.",
        )
    return path if path == MEMORY else str(Path(path).absolute())


def _is_path(text: str) -> bool:
    """Return True if this system could have a file of this name."""
    try:
        return b"\0" not in os.fsencode(text) != b""
    except UnicodeEncodeError:
        return False


def _file_of(connection: sqlite3.Connection) -> str:
    """The file of its main database; empty where that is in memory."""
    try:
        files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    except sqlite3.Error as error:
        raise OpenError(
            f"The given connection cannot tell its file: {error}",
            hint="Use a connection that is open and of this thread, or the file's path.",
        ) from error
    return files["main"] or ""


def _file_of_async(connection: Any) -> str:
    """The same for a connection of aiosqlite, awaited already or not.

    Its own connection belongs to another thread, and there is none before it is awaited:
    so the function that makes it, which aiosqlite keeps, makes us one to ask.
    """
    try:
        with closing(connection._connector()) as own:  # noqa: SLF001 - it has no public name
            return _file_of(own)
    except (AttributeError, TypeError, sqlite3.Error) as error:
        raise OpenError(
            f"The given connection cannot tell its file: {error}",
            hint="Use the file's path, or use AsyncSqliteSaver.from_conn_string(path).",
        ) from error


MEMORY = ":memory:"
_RETRY_SECONDS = 0.005  # between tries to switch a new file to WAL
_CHECKPOINT_PAGES = 2000  # the WAL is copied into the file when it holds this many
_WAL_BYTES = 8 << 20  # and its own file is cut back to this size then


class Location(NamedTuple):
    """Path and mode of a database.

    `mode` is SQLite's: `rwc` makes the file where there is none; `rw` does not; `ro` reads
    only; `immutable` reads a file that has no WAL and makes nothing beside it, as SQLite
    would for its shared memory.
    """

    path: str
    synchronous: str
    busy_timeout: float
    mode: str = "rwc"

    @property
    def in_memory(self) -> bool:
        """True if it is in this process's memory."""
        return self.path == MEMORY

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


def _as_found(location: Location) -> Location:
    """Return the location in the mode that its file allows."""
    path = Path(location.path)
    _check_place(path)
    if location.mode == "ro" and path.exists() and not path.stat().st_size:
        raise _no_tables(location.path)  # SQLite removes a WAL that lies beside such a file
    if not wal_of(path).exists() and (location.mode == "ro" or _is_frozen(path)):
        return location._replace(mode="immutable")
    return location


def open_first(location: Location) -> tuple[Location, sqlite3.Connection]:
    """Open the database for writing, and make it where there is none; or only read it.

    Returns:
        The location in the mode that later connections use, and the connection.

    Raises:
        OpenError: the folder is missing, it is no file, or it may not be accessed.
        NotOursError, NewerDatabaseError: the file holds something else.
        CorruptionError: the file is damaged.
        LockedError: another process kept it locked for longer than the busy timeout.
    """
    try:
        if not location.in_memory:
            location = _as_found(location)
        db = _open(location)
    except DRIVER_ERRORS as error:
        raise _open_error(error, location.path) from error
    except OSError as error:
        raise OpenError(
            f"{location.path} cannot be opened: {error.strerror}.",
            hint="Use a path that this system allows and this process may use.",
        ) from error
    return (location._replace(mode="rw") if location.mode == "rwc" else location), db


def _open(location: Location) -> sqlite3.Connection:
    db = location.connect_writer()
    try:
        _prepare(db, location, make=location.mode == "rwc")
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, location: Location, *, make: bool) -> None:
    db.execute("BEGIN")
    ours = schema.is_ours(db, location.path)
    db.execute("COMMIT")
    if not ours and not make:
        raise _no_tables(location.path)
    if not ours:
        schema.create(db, location.path)
    if not location.in_memory and make:
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


# -- what keeps a database from being opened -----------------------------------------


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise OpenError(
            f"The folder {path.parent} is not there, so {path.name} cannot be opened in it.",
            hint="Create the folder first, or correct the path.",
        )
    if path.exists() and not path.is_file():
        raise OpenError(f"{path} is not a file.", hint="Use the path of a database file.")
    if path.exists() and path.stat().st_size == 1:
        raise _no_database(path)  # SQLite takes a file of one byte for an empty one


def _is_frozen(path: Path) -> bool:
    """A readable file in a folder that we cannot write."""
    return os.access(path, os.R_OK) and not os.access(path.parent, os.W_OK)


def wal_of(path: Path) -> Path:
    """The WAL of a database: it lies beside the file itself, not beside a link to it."""
    return Path(os.path.realpath(path) + "-wal")


def _no_tables(path: str) -> NotOursError:
    return NotOursError(
        f"{path} is empty: there are no tables in it.",
        hint="Use the path of a threadkeep database. If this was one, restore a backup.",
    )


def _no_database(path: Path | str) -> NotOursError:
    return NotOursError(
        f"{path} is not a SQLite database.",
        hint="Use the path of a threadkeep database, or of a file that is not there yet.",
    )


def _open_error(error: Exception, path: str) -> Exception:
    code = _code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _no_database(path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return OpenError(
            f"{path} cannot be opened: SQLite says {str(error)!r}.",
            hint="This process needs read and write access to the file and its folder.",
        )
    return mapped(error, path)


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 where the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
