"""Opening a database: its path, its tables (`schema.sql`), its settings.

Only SQLite opens the database file. Closing any other descriptor of the file would drop all locks
that this process holds on it (POSIX), and other processes could then remove the WAL in use.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote_from_bytes

from threadkeep import errors
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS, is_busy, mapped
from threadkeep._stores.sqlite.records import CACHED

APPLICATION_ID = 0x74686B70  # "thkp", as `file` and `PRAGMA application_id` show it
VERSION = 1  # of the tables: `PRAGMA user_version`


def is_ours(db: sqlite3.Connection, path: str) -> bool:
    """Return True if the database has our tables, False if it is empty.

    Raises `NotOursError` or `NewerDatabaseError` otherwise.
    """
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
            hint="Upgrade threadkeep.",
        )
    return True


def create(db: sqlite3.Connection, path: str) -> None:
    """Create the tables, unless another process has just created them."""
    with transaction(db, "BEGIN"):
        # In an empty file this takes the write lock, and is written with the tables.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if not is_ours(db, path):
            for statement in Path(__file__).with_name("schema.sql").read_text("utf-8").split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(
    db: sqlite3.Connection, begin: str | Callable[[], object] = "BEGIN IMMEDIATE"
) -> Iterator[None]:
    """Commit at the end of the block, or roll back if it fails."""
    try:
        if isinstance(begin, str):
            db.execute(begin)
        else:
            begin()
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def statements(name: str) -> list[str]:
    """Return the statements of a file in this folder."""
    return Path(__file__).with_name(name).read_text("utf-8").split(";\n\n")


def _not_ours(path: str, names: set[str]) -> errors.NotOursError:
    import shlex  # noqa: PLC0415 - seldom needed

    if {"checkpoints", "writes"} <= names:
        return errors.NotOursError(
            f"{path} is a database of LangGraph's own SQLite saver, not of threadkeep.",
            hint="It was not changed. Use another file, and copy the threads:"
            f" threadkeep adopt {shlex.quote(path)} sqlite:///new.db",
        )
    some = ", ".join(sorted(names)[:3]) or "nothing"
    return errors.NotOursError(
        f"{path} is a database of another program: it holds {some}.",
        hint="It was not changed. Use another file.",
    )


class AsyncConnection(Protocol):
    """An `aiosqlite.Connection`."""

    def execute_fetchall(self, sql: str, parameters: Any = None) -> Any:
        """Run a query."""


GivenDatabase: TypeAlias = str | os.PathLike[str] | sqlite3.Connection | AsyncConnection


def finder(database: GivenDatabase) -> Callable[[], str]:
    """Return a function that returns the path: see `path_of`.

    It blocks only for a connection of aiosqlite, so event loops can call it in another thread.
    """
    if hasattr(database, "execute_fetchall"):
        return partial(path_of, database)
    path = path_of(database)
    return lambda: path


def path_of(database: GivenDatabase) -> str:
    """Return the absolute path of the file, or `:memory:`."""
    if isinstance(database, sqlite3.Connection) or hasattr(database, "execute_fetchall"):
        return _file_of(database)
    path = os.fspath(database) if isinstance(database, os.PathLike) else database
    try:
        if isinstance(path, str) and b"\0" not in os.fsencode(path) != b"":
            here = os.fsdecode(os.getcwdb())  # noqa: PTH109 - blockbuster refuses `os.getcwd`
            return path if path == MEMORY else os.path.join(here, path)  # noqa: PTH118 - quicker
    except UnicodeEncodeError:
        pass  # (no file of this system can have this name)
    raise errors.InvalidArgumentError(
        f"{database!a} is not a path.", hint="Use a str or Path of a file, or ':memory:'."
    )


def _file_of(connection: Any) -> str:
    """Return the file of a connection's main database, or `:memory:`.

    An aiosqlite connection belongs to another thread and opens when it is awaited. So ask a
    connection that its own factory makes for us.
    """
    try:
        if isinstance(connection, sqlite3.Connection):
            own: AbstractContextManager[sqlite3.Connection] = nullcontext(connection)
        else:
            own = closing(connection._connector())  # noqa: SLF001 - there is no public name
        with own as db:
            files = {name: file for _, name, file in db.execute("PRAGMA database_list")}
        return files["main"] or MEMORY
    except (AttributeError, TypeError, sqlite3.Error) as error:
        raise errors.OpenError(
            f"The file of the given connection is unknown: {error}",
            hint="Use the file's path (from_conn_string), or an open connection of this thread.",
        ) from error


MEMORY = ":memory:"
_RETRY_SECONDS = 0.005  # between attempts to switch a new file to WAL
_CHECKPOINT_PAGES = 2000  # size of the WAL at which SQLite copies it into the file
_WAL_BYTES = 8 << 20  # and truncates its own file to this size
_HELD_SECONDS = 1.0  # to wait for a transaction on the program's own connection


class DatabaseLocation(NamedTuple):
    """Path and settings of a database.

    `mode` is one of SQLite's: `rwc` creates a missing file, `rw` does not, `ro` reads only, and
    `immutable` reads a file without a WAL and creates no other files. `live` becomes `ro` also
    without a WAL, if the folder allows to create one: commits of others are seen.

    `given` is the program's own connection to the file, if it gave one in place of a path.
    """

    path: str
    synchronous: str
    busy_timeout: float
    mode: str = "rwc"
    given: Any = None

    @property
    def is_held(self) -> bool:
        """True if a transaction is open on the given connection, which may hold the write lock."""
        try:
            return self.given is not None and bool(self.given.in_transaction)
        except (sqlite3.Error, ValueError):  # it is closed, or not yet open
            return False

    @property
    def patience(self) -> float:
        """Seconds to wait for the write lock.

        A transaction on the given connection may be the caller's, and would never end.
        """
        return min(self.busy_timeout, _HELD_SECONDS) if self.is_held else self.busy_timeout

    def failure(self, error: Exception) -> errors.ThreadkeepError:
        """Map a driver's error."""
        if is_busy(error) and self.is_held:
            return errors.LockedError(
                "A transaction is open on the connection that you gave, and holds the write lock"
                f" of {self.path}.",
                hint="Commit or roll back on your connection before threadkeep writes: it uses"
                " connections of its own.",
            )
        return mapped(error, self.path)

    @property
    def in_memory(self) -> bool:
        """True if it is in this process's memory."""
        return self.path == MEMORY

    @property
    def is_read_only(self) -> bool:
        """True if nothing can be written."""
        return self.mode in ("ro", "immutable")

    def connect_reader(self) -> sqlite3.Connection:
        """Connect for reading only. Raises the driver's errors."""
        return self._connect("PRAGMA query_only = ON")

    def connect_writer(self) -> sqlite3.Connection:
        """Connect with the settings for commits. Raises the driver's errors."""
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
            isolation_level=None,  # (transactions are explicit)
            check_same_thread=False,  # (`Connections` lends to one thread at a time)
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
        """The file and the mode as a URI for SQLite."""
        query = "mode=ro&immutable=1" if self.mode == "immutable" else f"mode={self.mode}"
        return f"file:{quote_from_bytes(os.fsencode(self.path))}?{query}"


def open_first(location: DatabaseLocation) -> tuple[DatabaseLocation, sqlite3.Connection]:
    """Open the database, and create it if the mode allows.

    Returns the location with the mode for later connections, and the connection.
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
        raise _open_error(error, location) from error
    except OSError as error:
        raise errors.OpenError(
            f"{location.path} cannot be opened: {error.strerror}.",
            hint="Use a path that this process may open.",
        ) from error
    return (location._replace(mode="rw") if location.mode == "rwc" else location), db


def _as_found(location: DatabaseLocation) -> DatabaseLocation:
    folder, name = os.path.split(location.path)
    try:
        found = os.stat(location.path)  # noqa: PTH116 - ten times as quick as a Path
    except (FileNotFoundError, NotADirectoryError):
        found = None
        if not Path(folder).is_dir():
            raise errors.OpenError(
                f"The folder {folder} does not exist, so {name} cannot be opened.",
                hint="Create the folder first, or correct the path.",
            ) from None
    if found is not None and not stat.S_ISREG(found.st_mode):
        hint = "Use the path of a database file."
        raise errors.OpenError(f"{location.path} is not a file.", hint=hint)
    if found is not None and not os.access(location.path, os.R_OK):
        raise PermissionError(errno.EACCES, "this process has no read access")
    size = None if found is None else found.st_size
    if size == 1:
        raise _no_database(location.path)  # (SQLite would treat one byte as an empty database)
    if size == 0 and location.mode in ("ro", "live"):
        raise _no_tables(location.path)  # (SQLite would remove a WAL next to it)
    is_frozen = os.access(location.path, os.R_OK) and not os.access(folder, os.W_OK)
    if location.mode == "live":
        location = location._replace(mode="ro")
        if os.access(folder, os.W_OK):
            return location
    if (location.mode == "ro" or is_frozen) and not wal_of(Path(location.path)).exists():
        return location._replace(mode="immutable")
    return location


def _prepare(db: sqlite3.Connection, location: DatabaseLocation) -> None:
    set_timeout(db, location.patience)
    with transaction(db, "BEGIN"):
        ours = is_ours(db, location.path)
    if not ours and location.mode != "rwc":
        raise _no_tables(location.path)
    if not ours:
        create(db, location.path)
    if not location.in_memory and location.mode == "rwc":
        _use_wal(db, location.patience)
    set_timeout(db, location.busy_timeout)


def set_timeout(db: sqlite3.Connection, seconds: float) -> None:
    """Set how long statements wait for a lock."""
    db.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")


def _use_wal(db: sqlite3.Connection, busy_timeout: float) -> None:
    """Switch to WAL, and wait, as SQLite's busy timeout does not cover this switch."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_READONLY:
                return  # (reading works with a rollback journal)
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def wal_of(path: Path) -> Path:
    """Return the WAL of a database, which is next to the file itself and not next to a link."""
    return Path(os.path.realpath(path) + "-wal")


def _no_tables(path: str) -> errors.NotOursError:
    return errors.NotOursError(
        f"{path} has no tables.",
        hint="Use the path of a threadkeep database. If it was one, restore a backup.",
    )


def _no_database(path: str) -> errors.NotOursError:
    return errors.NotOursError(
        f"{path} is not a SQLite database.",
        hint="Use the path of a threadkeep database. For a bundle, use threads.import_bundle.",
    )


def _open_error(error: Exception, location: DatabaseLocation) -> errors.ThreadkeepError:
    code, path = _code(error), location.path
    if code == sqlite3.SQLITE_NOTADB:
        return _no_database(path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return errors.OpenError(
            f"{path} cannot be opened: SQLite says {str(error)!r}.",
            hint="This process needs read and write access to the file and its folder.",
        )
    return location.failure(error)


def _code(error: Exception) -> int:
    """Return SQLite's primary result code, or 0 if the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
