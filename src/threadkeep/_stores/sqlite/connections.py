"""Connection pool of one database: one connection for writing, several for reading.

Forks: while a child holds a connection opened by its parent, SQLite assumes that the child has the
parent's file locks, and takes none for new connections. The parent may then remove the WAL, and
with it the child's commits. So a fork waits until no connection is in use, and the child closes
all inherited connections before it opens its own.

Interrupts: Python raises a KeyboardInterrupt after any call of a C function and at the start of any
Python function. Code between a lock and the `try` that releases it must have neither, or one Ctrl-C
blocks the saver for ever. `with` on a plain lock is safe. `threading.Condition` is Python code.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic, sleep
from typing import Any

from threadkeep._stores import process_forks
from threadkeep._stores.committing import Heads
from threadkeep._stores.process_forks import FirstUse
from threadkeep._stores.sqlite.failures import (
    DRIVER_ERRORS,
    is_busy,
    is_undecodable,
    lenient,
    mapped,
    named,
)
from threadkeep._stores.sqlite.opening import (
    DatabaseLocation,
    open_first,
    set_timeout,
    statements,
    transaction,
)
from threadkeep.errors import ClosedError, LockedError, NotSetUpError, OpenError

_IDLE_READERS = 8  # more may be open, but only so many stay open after use
TURN = 0.008  # seconds. SQLite looks at a lock again after 1, 3 and 8 ms
_LONG = 0.01  # seconds. A lock that took longer was another process's (shorter: perhaps the GIL)
_STAYS = 16  # commits that expect another one
_FORK_SECONDS = 5.0  # how long a fork waits for calls under way
_LOOK_SECONDS = 0.001  # between its looks


def _at_rest(db: sqlite3.Connection) -> bool:
    """End a transaction that an error left open. Returns False if that fails."""
    if db.in_transaction:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
    return not db.in_transaction


class Connections:
    """Connections of one backend.

    Hold `write_lock` while you use `writer()`. Reads use an idle reader. If there is
    none and no writer is active, the writing connection, so a single-threaded program needs one
    connection. A database in memory has only that one.

    `find` names the database when it is opened: see `FirstUse`.
    """

    def __init__(self, find: Callable[[], DatabaseLocation]) -> None:
        self._find = find
        self._location: DatabaseLocation | None = None
        self._writer: sqlite3.Connection | None = None
        self._timeout = 0.0  # of the writer, as last set
        self._idle: list[sqlite3.Connection] = []
        self._inherited: list[sqlite3.Connection] = []
        self._closed: ClosedError | None = None
        self.heads = Heads()
        self._contended = 0  # so many commits expect that other processes hold the write lock
        self._make_locks()
        self.open = FirstUse(self._open_first)
        process_forks.watch(self)

    def _make_locks(self) -> None:
        self.write_lock = threading.Lock()
        self._lock = threading.Lock()  # held by each read as it begins, and during a fork
        self._lent: set[object] = set()  # a mark of each read under way
        self._still = False  # while forking: no connection is in use

    def _open_first(self) -> None:
        with self.write_lock:
            self._check_open()
            location, self._writer = open_first(self._find())
            self._timeout = location.busy_timeout
            self._location = location

    @property
    def location(self) -> DatabaseLocation:
        """Path and mode of the database. Opens it: `write_lock` is not held then."""
        if self._location is None:
            self.open()
            assert self._location is not None  # noqa: S101 - it was set
        return self._location

    @property
    def has_writer(self) -> bool:
        """True if the writing connection is open."""
        return self._writer is not None

    def writer(self, *, commits: bool = False) -> sqlite3.Connection:
        """Return the writing connection of an open database, outside any transaction.

        Its statements wait for a lock for `patience`, or `TURN` at most with `commits` and other
        processes.
        """
        if self._writer is not None and self._writer.in_transaction:
            self.rest_writer()  # an interrupted call may have left one open
        location = self._location or self.location
        if self._writer is None:
            self._check_open()
            with self._lock:
                self._close_inherited()
            self._writer = self._open(location.connect_writer)
            self._timeout = location.busy_timeout
        seconds = location.busy_timeout if location.given is None else location.patience
        if commits and self._contended:
            seconds = min(TURN, seconds)
        if seconds != self._timeout:  # (each PRAGMA costs as much as a small SELECT)
            set_timeout(self._writer, seconds)
            self._timeout = seconds
        return self._writer

    def begin(self, db: sqlite3.Connection) -> None:
        """Take the write lock. Raises the driver's errors, also if it stays taken.

        SQLite sleeps for up to 100 ms before it looks at the lock again, and those that have just
        come are served first. Beside other processes, the sleeps stay short.
        """
        begun = monotonic()
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
            except DRIVER_ERRORS as error:
                waited = monotonic() - begun
                if not is_busy(error) or waited + TURN >= self.location.patience:
                    raise
            else:
                if monotonic() - begun > _LONG:
                    self._contended = _STAYS
                elif self._contended:
                    self._contended -= 1
                return

    def rest_writer(self) -> None:
        """End an open transaction. If that fails, the next call opens a new connection."""
        if self._writer is not None and not _at_rest(self._writer) and not self.location.in_memory:
            self._writer.close()
            self._writer = None

    def _take(self, held: list[bool], lent: object) -> sqlite3.Connection:
        """Return a connection for reading.

        Adds to `held` whether the call took `write_lock`, which the caller releases, and marks the
        read by `lent` until the caller removes the mark.
        """
        in_memory = self.location.in_memory
        if not in_memory:
            with self._lock:
                self._check_open()
                self._close_inherited()
                self._lent.add(lent)
                try:
                    return self._idle.pop()
                except IndexError:
                    pass
        held.extend(map(self.write_lock.acquire, (in_memory,)))  # one step: see "Interrupts"
        return self.writer() if held[0] else self._open(self.location.connect_reader)

    def _give(self, db: sqlite3.Connection) -> None:
        """Take back a connection that `_take` returned."""
        if db is self._writer:
            self.rest_writer()
            return
        if not _at_rest(db):
            db.close()
            return
        self._idle.append(db)
        if self._closed or len(self._idle) > _IDLE_READERS:
            with suppress(IndexError):
                self._idle.pop().close()

    @contextmanager
    def writing(self, busy_timeout: float | None = None) -> Iterator[sqlite3.Connection]:
        """Lend the writing connection, in a transaction that is committed at the end of the block.

        `busy_timeout`, in seconds, also applies to other threads of this process meanwhile.
        """
        location, lock = self.location, self.write_lock
        held: list[bool] = []
        try:
            held.extend(map(lock.acquire, (True,), (-1 if busy_timeout is None else busy_timeout,)))
            if not held[0]:
                raise LockedError
            db = self.writer()
            if busy_timeout is not None:
                set_timeout(db, busy_timeout)
            waits = partial(self.begin, db) if busy_timeout is None else "BEGIN IMMEDIATE"
            with transaction(db, waits):
                yield db
        except DRIVER_ERRORS as error:
            raise location.failure(error) from error
        finally:
            if True in held:
                try:
                    self.rest_writer()  # (if it was interrupted)
                    if busy_timeout is not None and self._writer is not None:
                        set_timeout(self._writer, self._timeout)
                finally:
                    lock.release()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection for reading. All queries in the block see one state."""
        held: list[bool] = []
        lent = object()
        try:
            with named(self.location.path):
                db = self._take(held, lent)
                try:
                    db.execute("BEGIN")  # (`_give` ends it)
                    yield db
                finally:
                    self._give(db)
        finally:
            if True in held:
                self.write_lock.release()
            self._lent.discard(lent)

    def answered(
        self, reads: Sequence[Any], reply: Callable[..., Any], *, begin: bool
    ) -> list[Any]:
        """Answer each read by `reply(connection, read)`, if `begin`, all from one state.

        Text that is not UTF-8 fails only the read that finds it.
        """
        held: list[bool] = []
        lent = object()
        try:
            db = self._take(held, lent)
            try:
                return self._replies(db, reads, reply, begin=begin)
            finally:
                self._give(db)
        except DRIVER_ERRORS as error:
            raise mapped(error, self.location.path) from error
        finally:
            if True in held:
                self.write_lock.release()
            self._lent.discard(lent)

    @staticmethod
    def _replies(
        db: sqlite3.Connection, reads: Sequence[Any], reply: Callable[..., Any], *, begin: bool
    ) -> list[Any]:
        if begin:
            db.execute("BEGIN")
        try:
            replies = [reply(db, read) for read in reads]
        except DRIVER_ERRORS as error:
            if not is_undecodable(error):
                raise
            with lenient(db):
                replies = [reply(db, read) for read in reads]
        if db.in_transaction:
            db.execute("COMMIT")
        return replies

    def close(self) -> None:
        """Close idle connections. Lent ones are closed when they are given back. Idempotent."""
        with self.write_lock, self._lock:
            path = "the database" if self._location is None else self._location.path
            self._closed = ClosedError(hint=f"Open {path} again.")
            # Close the writer last: the last connection to close checkpoints and removes the WAL.
            self._close_inherited()
            with suppress(IndexError):
                while True:
                    self._idle.pop().close()
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    # -- forks -----------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait until no connection is in use, and block new uses until after the fork."""
        self._still = self.write_lock.acquire(timeout=_FORK_SECONDS)
        self._lock.acquire()
        end = monotonic() + _FORK_SECONDS
        while self._still and self._lent:
            sleep(_LOOK_SECONDS)
            if monotonic() > end:
                self._still = False
                self.write_lock.release()

    def after_fork(self, *, in_child: bool) -> None:
        """Continue. A child sets inherited connections aside, to close before it opens any."""
        still = self._still
        if not in_child:
            self._lock.release()
            if still:
                self.write_lock.release()
            return
        self._make_locks()
        if not still:
            self._closed = ClosedError(
                "The process was forked while another thread used this saver.",
                hint="Start processes by `spawn` or `forkserver`, or before threads use the saver.",
            )
        elif self._location is not None and not self._location.in_memory:
            # (a database in memory has become a copy of its own)
            self._inherited += self._idle
            if self._writer is not None:
                self._inherited.append(self._writer)
            self._idle = []
            self._writer = None

    def _open(self, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        with named(self.location.path):
            return connect()

    def _close_inherited(self) -> None:
        while self._inherited:
            self._inherited.pop().close()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed.fresh()


class MadeTables:
    """Base of backends with tables next to a saver's, created at their first use."""

    content = ""
    """The tables' content, as errors name it."""
    missing: type[OpenError] = NotSetUpError
    """The error if a file that is read only has no tables."""
    schema = ""
    """The file of the statements that create the tables."""
    last = ""
    """The name of a table or index that they create."""

    def __init__(self, connections: Connections) -> None:
        self._given = connections
        self._open = FirstUse(self._make_tables)

    def open(self) -> None:
        self._open()

    @property
    def _connections(self) -> Connections:
        self._open()
        return self._given

    def _make_tables(self) -> None:
        location = self._given.location
        with self._given.reading() as db:
            is_made = self._is_made(db)
        if not is_made and location.is_read_only:
            raise self.missing(
                f"{location.path} has no {self.content}, and is read only.",
                hint="Open it for writing once.",
            )
        if not is_made:
            with self._given.writing() as db:
                if not self._is_made(db):  # (another process may have just made them)
                    self._make(db)

    def _is_made(self, db: sqlite3.Connection) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE name = ?"
        return db.execute(query, (self.last,)).fetchone() is not None

    def _make(self, db: sqlite3.Connection) -> None:
        for statement in statements(self.schema):
            db.execute(statement)
