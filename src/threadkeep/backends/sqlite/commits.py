"""Group commit: changes that wait at the same time share one transaction.

Only the queue lives here, and the transaction around `changes.carry_out`; a single
statement that nothing waits beside is its own. Invariants: a caller gets the result of its
own change; a change that fails leaves its neighbours alone; whoever holds the write lock
commits for all that wait, so nobody waits for a thread that may be gone; wherever a caller
is interrupted, no ticket of another is lost and no transaction stays open.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from threadkeep.backends.sqlite.changes import carry_out, in_one
from threadkeep.backends.sqlite.failures import DRIVER_ERRORS, mapped
from threadkeep.backends.tickets import Line, Ticket
from threadkeep.engine.model import Batch, Change, DropThread
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from threadkeep.backends.sqlite.connections import Connections

_MOST = 100  # changes in one transaction: bounds how long a caller waits for others
_SPARE_PAGES = 16  # free pages that are kept for what comes next
_STEP_PAGES = 64  # pages given back at a time, while others may commit in between
_STEPS = 16  # at most, for one commit


class CommitQueue:
    """Commits changes of any number of threads, one transaction after the other."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._waiting = Line()  # only who holds the write lock takes from it

    def commit(self, change: Change) -> None:
        """Carry out the change; return when it is committed. See `Backend.commit`."""
        (failure,) = self.commit_many([change])
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame: no cycle

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out the changes, with others that wait; what became of each."""
        tickets = [Ticket(change) for change in changes]
        try:
            self._waiting.add(tickets)
            with self._connections.write_lock:
                while not all(ticket.done for ticket in tickets):
                    self._commit_waiting()
        finally:
            for ticket in tickets:
                ticket.withdrawn = not ticket.done
        return [ticket.error for ticket in tickets]

    def _commit_waiting(self) -> None:
        """Commit what waits. Tickets stay in the queue until they are settled."""
        try:
            self._settle(self._waiting.first(_MOST))
        except BaseException:  # interrupted, whatever had begun
            self._connections.rest_writer()
            raise
        finally:
            self._waiting.sweep()

    def _settle(self, tickets: Sequence[Ticket]) -> None:
        autocommit = len(tickets) == 1 and in_one(tickets[0].change)
        try:
            db = self._connections.writer()
            if not autocommit:
                db.execute("BEGIN IMMEDIATE")
        except DRIVER_ERRORS as error:
            self._fail(tickets, error)
        except ThreadkeepError as error:
            for ticket in tickets:
                ticket.settle(type(error)(error.message, hint=error.hint))
        else:
            self._transact(db, tickets, autocommit=autocommit)
            if any(map(_frees_pages, tickets)):
                self._give_back(db)

    def _transact(
        self, db: sqlite3.Connection, tickets: Sequence[Ticket], *, autocommit: bool
    ) -> None:
        """Carry out all of them and commit; each alone where that does not work."""
        try:
            guarded = len(tickets) > 1
            errors = [_attempt(db, ticket, guarded=guarded) for ticket in tickets]
            if not autocommit:
                db.execute("ROLLBACK" if all(errors) else "COMMIT")
        except DRIVER_ERRORS as error:
            self._connections.rest_writer()
            if len(tickets) == 1:
                self._fail(tickets, error)
            else:
                for ticket in tickets:
                    self._settle([ticket])
        else:
            for ticket, failure in zip(tickets, errors, strict=True):
                ticket.settle(failure)

    def _fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        for ticket in tickets:
            failure = mapped(error, self._connections.path)
            failure.__cause__ = error
            ticket.settle(failure)

    def _give_back(self, db: sqlite3.Connection) -> None:
        """Return free pages to the file system, a little at a time."""
        # What was asked for is committed: giving back can wait for the next time.
        with suppress(*DRIVER_ERRORS):
            for _ in range(_STEPS):
                (free,) = db.execute("PRAGMA freelist_count").fetchone()
                if free <= _SPARE_PAGES or self._waiting.somebody_waits():
                    return
                pages = min(free - _SPARE_PAGES, _STEP_PAGES)
                # Frees a page a step; `execute` would take one step only.
                db.executescript(f"PRAGMA incremental_vacuum({pages})")


def _attempt(db: sqlite3.Connection, ticket: Ticket, *, guarded: bool) -> ThreadkeepError | None:
    """Carry out one change; `guarded`: so that a failure undoes this one alone."""
    savepoint = guarded and not in_one(ticket.change)
    if savepoint:
        db.execute("SAVEPOINT tk")
    failure = None
    try:
        carry_out(db, ticket.change)
    except ThreadkeepError as error:
        failure = error
        if savepoint:
            db.execute("ROLLBACK TO tk")
    if savepoint:
        db.execute("RELEASE tk")
    return failure


def _frees_pages(ticket: Ticket) -> bool:
    change = ticket.change
    if ticket.error is not None:
        return False
    return isinstance(change, DropThread) or (
        isinstance(change, Batch) and bool(change.drop_segments)
    )
