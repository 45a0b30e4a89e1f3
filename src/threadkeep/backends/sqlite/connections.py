"""The connections to one database: one that writes, some that read.

Lending and closing live here, nothing that looks at rows. Invariant: a connection is
used by one thread at a time, and only in the process that opened it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from threadkeep.backends.sqlite.failures import named
from threadkeep.backends.sqlite.opening import Location, open_first
from threadkeep.errors import ClosedError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

_IDLE_READERS = 8  # any number of threads may read at once; so many stay open after


class Connections:
    """The connections of one backend.

    `write_lock` must be held while `writer()` is used. `take` lends a connection for
    reading until `give`. A database in memory has one connection for everything.
    """

    def __init__(self, location: Location) -> None:
        """Open the database, and make it where there is none. See `open_first`."""
        self._closed = False
        self._writer: sqlite3.Connection | None
        self._location, self._writer = open_first(location)
        self._idle: list[sqlite3.Connection] = []
        self._inherited: list[sqlite3.Connection] = []
        self._make_locks()

    def _make_locks(self) -> None:
        self.write_lock = threading.Lock()
        self._lock = threading.Lock()  # guards the lists; held for moments only

    @property
    def path(self) -> str:
        """The absolute path of the file, or `:memory:`."""
        return self._location.path

    @property
    def in_memory(self) -> bool:
        """Whether the database lives in this process's memory."""
        return self._location.in_memory

    def writer(self) -> sqlite3.Connection:
        """The connection that writes."""
        self._check_open()
        if self._writer is None:
            self._writer = self._open(self._location.connect_writer)
        return self._writer

    def take(self) -> sqlite3.Connection:
        """Lend a connection for reading."""
        if self.in_memory:
            return self._take_only()
        with self._lock:
            self._check_open()
            if self._idle:
                return self._idle.pop()
        return self._open(self._location.connect_reader)

    def _take_only(self) -> sqlite3.Connection:
        self.write_lock.acquire()
        try:
            return self.writer()
        except BaseException:
            self.write_lock.release()
            raise

    def give(self, db: sqlite3.Connection) -> None:
        """Take back what `take` lent."""
        if self.in_memory:
            self.write_lock.release()
            return
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_READERS:
                self._idle.append(db)
                return
        db.close()

    def close(self) -> None:
        """Close what is not lent; the rest is closed when it is given back. Idempotent."""
        with self.write_lock, self._lock:
            self._closed = True
            # The writer comes last: who closes a database last tidies its WAL away.
            for db in (*self._inherited, *self._idle, self._writer):
                if db is not None:
                    db.close()
            self._inherited, self._idle, self._writer = [], [], None

    def after_fork(self) -> None:
        """Set aside what the parent process uses on; called in the child.

        Whatever was lent at that moment is lost with the threads that had it. A
        database in memory is a copy, whole unless it was in use.
        """
        busy = self.write_lock.locked()
        self._make_locks()
        if self.in_memory:
            self._closed = self._closed or busy
            return
        self._inherited += self._idle
        if self._writer is not None and not busy:
            self._inherited.append(self._writer)
        self._idle, self._writer = [], None

    def _open(self, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        """Connect again, after closing what came through a fork.

        While such a connection is open, SQLite believes that this process holds the
        file locks of its parent, and would take none for a new connection.
        """
        with named(self.path):
            with self._lock:
                inherited, self._inherited = self._inherited, []
            for db in inherited:
                db.close()
            return connect()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(hint=f"Open a new saver for {self.path}.")
