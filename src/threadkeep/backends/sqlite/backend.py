"""The SQLite backend itself: a location, its connections and the queue of commits.

Only the protocol's three methods and what the constructor accepts live here.
Invariant: nothing of the driver, neither rows nor errors, leaves this package.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from threadkeep.backends.sqlite.commits import CommitQueue
from threadkeep.backends.sqlite.connections import Connections
from threadkeep.backends.sqlite.failures import DRIVER_ERRORS, mapped
from threadkeep.backends.sqlite.opening import MEMORY, Location
from threadkeep.backends.sqlite.reads import reply
from threadkeep.errors import InvalidArgumentError, OpenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadkeep.engine.model import Change, Read


class SqliteBackend:
    """Rows in one SQLite file, for any number of threads and processes at once.

    Readers are never blocked (WAL), and there is one writer at a time; changes that
    wait for it together share one transaction.

    Args:
        database: the path of the file (made where there is none), `:memory:` for a
            database in this process's memory, or a `sqlite3.Connection`, of which the
            file is taken: the connection itself is not used. A connection to memory
            gives a new, empty database in memory.
        synchronous: `full`: a commit survives a power cut. `normal`: it survives a
            crash of the process; a power cut may take the last commits, never more,
            and never leaves half a commit.
        busy_timeout: seconds to wait for another process's write transaction.
        read_only: neither make nor change the file; every commit is a `ReadOnlyError`.

    Raises:
        OpenError: and its kinds, if the database cannot be opened.
        CorruptionError, LockedError: if it is damaged or stays locked.
        InvalidArgumentError: for arguments of no meaning.
    """

    def __init__(
        self,
        database: str | os.PathLike[str] | sqlite3.Connection,
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 30.0,
        read_only: bool = False,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise InvalidArgumentError(
                f"synchronous={synchronous!r} is unknown.", hint="Give 'full' or 'normal'."
            )
        if not 0 <= busy_timeout < 2**31 / 1000:
            raise InvalidArgumentError(
                f"busy_timeout={busy_timeout!r} is no time to wait.",
                hint="Give seconds, 0 or more.",
            )
        mode = "ro" if read_only else "rwc"
        location = Location(_path_of(database), synchronous, busy_timeout, mode)
        self._connections = Connections(location)
        self._queue = CommitQueue(self._connections)
        _LIVE.add(self)

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order, all from one state. See `Backend.fetch`."""
        db = self._connections.take()
        try:
            db.execute("BEGIN")
            replies = [reply(db, read) for read in reads]
            db.execute("COMMIT")
        except DRIVER_ERRORS as error:
            raise mapped(error, self._connections.path) from error
        else:
            return replies
        finally:
            self._connections.give(db)

    def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing. See `Backend.commit`."""
        self._queue.commit(change)

    def close(self) -> None:
        """Close all connections; a read under way may end first. Idempotent."""
        self._connections.close()

    def before_fork(self) -> None:
        """Come to rest; called in the process that is about to fork."""
        self._connections.before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        """Go on in the parent; start afresh in the child, whose threads are gone."""
        if in_child:
            self._connections.after_fork_in_child()
            self._queue = CommitQueue(self._connections)
        else:
            self._connections.after_fork_in_parent()


def _path_of(database: str | os.PathLike[str] | sqlite3.Connection) -> str:
    """The absolute path of the file, or `:memory:`."""
    if isinstance(database, sqlite3.Connection):
        path = _file_of(database) or MEMORY
    else:
        path = os.fspath(database)
    if not path or "\0" in path:
        raise InvalidArgumentError(
            f"{path!r} is no path.", hint="Give the path of a file, or ':memory:'."
        )
    return path if path == MEMORY else str(Path(path).absolute())


def _file_of(connection: sqlite3.Connection) -> str:
    """The file of its main database; empty where that is in memory."""
    try:
        files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    except sqlite3.Error as error:
        raise OpenError(
            f"The given connection cannot tell its file: {error}",
            hint="Give a connection that is open and of this thread, or the file's path.",
        ) from error
    return files["main"] or ""


# -- forks ---------------------------------------------------------------------------

_LIVE: weakref.WeakSet[SqliteBackend] = weakref.WeakSet()
_AT_REST: list[SqliteBackend] = []  # from just before a fork until just after


def _before_fork() -> None:
    for backend in tuple(_LIVE):
        backend.before_fork()
        _AT_REST.append(backend)


def _after_fork(*, in_child: bool) -> None:
    while _AT_REST:
        _AT_REST.pop().after_fork(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, in_child=False),
        after_in_child=partial(_after_fork, in_child=True),
    )
