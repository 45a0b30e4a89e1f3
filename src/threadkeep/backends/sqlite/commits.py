"""Commits: a group of changes is one transaction.

Only the transaction lives here, around `additions` and `changes`. Invariants: each change gets
its own result; one that fails leaves its neighbours alone; wherever a caller is interrupted,
no transaction stays open.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

from threadkeep.backends.sqlite import additions
from threadkeep.backends.sqlite.changes import carry_out
from threadkeep.backends.sqlite.failures import DRIVER_ERRORS, mapped
from threadkeep.engine.model import Batch, Change, DropThread
from threadkeep.errors import ThreadkeepError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from threadkeep.backends.sqlite.connections import Connections
    from threadkeep.backends.sqlite.known import Known

_SPARE_PAGES = 16  # free pages that are kept for what comes next
_STEP_PAGES = 256  # pages given back at a time, while other processes may commit in between
_STEPS = 4  # at most, for one commit


def commit_many(
    connections: Connections, changes: Sequence[Change]
) -> list[ThreadkeepError | None]:
    """Carry out the changes, in order; return the refusal of each. See `GroupingBackend`."""
    if not changes:
        return []
    with connections.write_lock:
        try:
            return _commit(connections, changes)
        except BaseException:  # interrupted, whatever had begun
            connections.rest_writer()
            raise


def _commit(connections: Connections, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
    try:
        db = connections.writer()
        known = connections.known
        db.execute("BEGIN IMMEDIATE")
    except DRIVER_ERRORS as error:
        return [_mapped(error, connections) for _ in changes]
    except ThreadkeepError as error:
        return [error.anew() for _ in changes]
    try:
        known.begin(db)
        refusals = _carry_out(db, changes, known)
        if all(refusals):
            db.execute("ROLLBACK")
        else:
            db.execute("COMMIT")
            known.keep(db)
    except DRIVER_ERRORS as error:
        connections.rest_writer()
        if len(changes) == 1:
            return [_mapped(error, connections)]
        return [refusal for change in changes for refusal in _commit(connections, [change])]
    if any(map(_frees_pages, changes, refusals)):
        _give_back(db)
    return refusals


def _mapped(error: Exception, connections: Connections) -> ThreadkeepError:
    failure = mapped(error, connections.path)
    failure.__cause__ = error
    return failure


def _carry_out(
    db: sqlite3.Connection, changes: Sequence[Change], known: Known
) -> list[ThreadkeepError | None]:
    """Carry out the changes, those that only add rows together with their neighbours."""
    refusals: list[ThreadkeepError | None] = []
    for only_adds, run in groupby(changes, additions.suffice):
        if only_adds:
            batches = [change for change in run if isinstance(change, Batch)]
            refusals += additions.add(db, batches, known)
        else:  # rarer: what it leaves is not followed
            known.forget()
            refusals += [_attempt(db, change, guarded=len(changes) > 1) for change in run]
    return refusals


def _attempt(db: sqlite3.Connection, change: Change, *, guarded: bool) -> ThreadkeepError | None:
    """Carry out one change; `guarded`: so that a failure undoes this one alone."""
    if guarded:
        db.execute("SAVEPOINT tk")
    failure = None
    try:
        carry_out(db, change)
    except ThreadkeepError as error:
        failure = error
        if guarded:
            db.execute("ROLLBACK TO tk")
    if guarded:
        db.execute("RELEASE tk")
    return failure


def _frees_pages(change: Change, refusal: ThreadkeepError | None) -> bool:
    if refusal is not None:
        return False
    return isinstance(change, DropThread) or (
        isinstance(change, Batch) and bool(change.drop_segments)
    )


def _give_back(db: sqlite3.Connection) -> None:
    """Return free pages to the file system, a little at a time."""
    # What was asked for is committed: giving back can wait for the next time.
    with suppress(*DRIVER_ERRORS):
        for _ in range(_STEPS):
            (free,) = db.execute("PRAGMA freelist_count").fetchone()
            if free <= _SPARE_PAGES:
                return
            pages = min(free - _SPARE_PAGES, _STEP_PAGES)
            # Frees a page a step; `execute` would take one step only.
            db.executescript(f"PRAGMA incremental_vacuum({pages})")
