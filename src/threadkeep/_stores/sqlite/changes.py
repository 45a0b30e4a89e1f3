"""Commits: a group of changes in one transaction. A refused change leaves the others alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from threadkeep._core.engine.model import Change, DropThread
from threadkeep._stores.committing import (
    Ask,
    Heads,
    MakeMoves,
    carried_out,
    committing,
    plain_moves,
)
from threadkeep._stores.records import confirm, tie
from threadkeep._stores.sqlite import message_words
from threadkeep._stores.sqlite.connections import Connections
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS
from threadkeep._stores.sqlite.moves import make
from threadkeep._stores.sqlite.reads import reply
from threadkeep.errors import ThreadkeepError

_SPARE_PAGES = 16  # free pages to keep for later writes
_STEP_PAGES = 256  # pages freed at a time. Other processes may commit in between
_STEPS = 4  # at most, for one commit


def commit_many(
    connections: Connections, changes: Sequence[Change]
) -> list[ThreadkeepError | None]:
    """Carry out the changes, in order, and return the refusal of each. See `Backend`."""
    connections.open()
    with connections.write_lock:
        try:
            return _commit(connections, changes) if changes else []
        except BaseException:  # also if it was interrupted
            connections.rest_writer()
            raise


def _commit(connections: Connections, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
    heads = connections.heads
    moves = plain_moves(heads, changes)
    try:
        db = connections.writer(commits=True)
        connections.begin(db)
    except DRIVER_ERRORS as error:
        return [_mapped(error, connections) for _ in changes]
    except ThreadkeepError as error:
        return [error.fresh() for _ in changes]
    try:
        # (the transaction locks out other writers, so the rows that it read stay the same)
        made = make(db, moves)
        refusals: list[ThreadkeepError | None] = [None] * len(changes)
        known: Iterable[Any] = made
        if not moves or None in made:
            steps = committing(heads, changes, [*zip(moves, made, strict=True)])
            refusals, known = carried_out(steps, partial(_answer, db, heads))
        if all(refusals):
            db.execute("ROLLBACK")
        else:
            db.execute("COMMIT")
            heads.keep(known)
    except DRIVER_ERRORS as error:
        connections.rest_writer()
        if message_words.is_removed(db, error):
            return _commit(connections, changes)
        if len(changes) == 1:
            return [_mapped(error, connections)]
        return [refusal for change in changes for refusal in _commit_alone(connections, change)]
    for change, refusal in zip(changes, refusals, strict=True):
        is_done = refusal is None
        if is_done and (type(change) is DropThread or getattr(change, "drop_segments", None)):
            _give_back(db)
            break
    return refusals


def _answer(db: sqlite3.Connection, known: Heads, request: Ask | MakeMoves) -> list[Any]:
    if isinstance(request, MakeMoves):
        return make(db, request.moves)
    return [reply(db, read, known) for read in request.reads]


def _commit_alone(connections: Connections, change: Change) -> list[ThreadkeepError | None]:
    tie([change])
    refusals = _commit(connections, [change])
    confirm([change], refusals)
    return refusals


def _mapped(error: Exception, connections: Connections) -> ThreadkeepError:
    failure = connections.location.failure(error)
    failure.__cause__ = error
    return failure


def _give_back(db: sqlite3.Connection) -> None:
    """Return free pages to the file system, a little at a time."""
    # The changes are committed, so this can wait for the next time.
    with suppress(*DRIVER_ERRORS):
        for _ in range(_STEPS):
            (free,) = db.execute("PRAGMA freelist_count").fetchone()
            if free <= _SPARE_PAGES:
                return
            pages = min(free - _SPARE_PAGES, _STEP_PAGES)
            # Each step frees one page. `execute` would take only one step.
            db.executescript(f"PRAGMA incremental_vacuum({pages})")
