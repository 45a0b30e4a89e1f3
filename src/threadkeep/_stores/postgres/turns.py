"""Commits that take turns: once a move was refused, the next one is made under locks.

A client that knows a thread's newest head commits in one request, so one that must read it first
can lose to others again and again. After a refusal, the head is read under a lock of its row, in
the transaction of the move that builds on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Any

import psycopg

from threadkeep._core.engine.rule_reads import ReadHead
from threadkeep._stores.committing import Ask, MakeMoves
from threadkeep._stores.postgres.messages import (
    NEWEST_STATE,
    has_begun,
    is_idle,
    sent_together,
)
from threadkeep._stores.postgres.moves import lock
from threadkeep._stores.postgres.statement import DRIVER_ERRORS, Rows, Statement, passes
from threadkeep._stores.sync_bridge import result

if TYPE_CHECKING:
    from threadkeep._stores.postgres.connections import Answered

_BEGIN = Statement(f"BEGIN ISOLATION LEVEL {NEWEST_STATE}")
# A process that stops in between loses its connection, so that others do not wait for it. (After a
# Flush at the end of a pipeline, the server would not count the time.)
_LIMIT = Statement("SET LOCAL idle_in_transaction_session_timeout = '2s'")
_COMMIT = Statement("COMMIT")


class Turn:
    """The requests of one commit.

    If a connection that holds locks fails, its locks are gone: the requests follow without them.

    Args:
        backend: an `AsyncPostgresBackend`.
        was_refused: a move of this commit was refused before.
    """

    def __init__(self, backend: Any, *, was_refused: bool) -> None:
        self._backend = backend
        self._was_refused = was_refused
        self._lent: AbstractAsyncContextManager[Any] | None = None
        self._conn: Any = None  # the one that holds locks, or will: see `_first`
        self._first: Sequence[Statement] = ()  # to send before others: they take the locks

    async def answer(self, request: Ask | MakeMoves) -> list[Any]:
        """Answer a request."""
        if isinstance(request, MakeMoves):
            made: list[Any] = await self._backend.make(request.moves, self._over())
            self._was_refused = None in made
            return made
        if self._was_refused and self._conn is None:
            names = [read.thread for read in request.reads if type(read) is ReadHead]
            if names:
                await self._begin(names)
        found: list[Any] = await self._backend.fetch(request.reads, self._over())
        return found

    def _over(self) -> Answered | None:
        return None if self._conn is None else self._answered

    async def _begin(self, names: Sequence[str]) -> None:
        self._lent = self._backend.lend()
        with self._backend.mapped_errors():
            self._conn = await self._lent.__aenter__()
        if is_idle(self._conn):
            self._first = (_BEGIN, _LIMIT, *self._backend.before, lock(names))
        else:  # (the program's own transaction or pipeline)
            await self.end()

    async def _answered(self, statements: Sequence[Statement], isolation: str) -> list[Rows]:
        if self._conn is None:  # (it has ended meanwhile)
            return await self._alone(statements, isolation)
        ends = isolation == NEWEST_STATE
        first, self._first = self._first, ()
        sent = [*first, *statements, _COMMIT] if ends else [*first, *statements]
        try:
            rows = await sent_together(self._conn, self._backend.ready(sent))
        except DRIVER_ERRORS as error:
            await self.end()
            if not passes(error):
                with self._backend.mapped_errors():
                    raise
            self._backend.count_retry()
            return await self._alone(statements, isolation)
        if ends:
            await self.end()
        return rows[len(first) : len(first) + len(statements)]

    async def _alone(self, statements: Sequence[Statement], isolation: str) -> list[Rows]:
        rows: list[Rows] = await self._backend.answered(statements, isolation)
        return rows

    async def end(self) -> None:
        """Release the locks."""
        lent, conn, self._lent, self._conn = self._lent, self._conn, None, None
        if lent is None or conn is None:
            return
        try:
            if has_begun(conn):
                with suppress(psycopg.Error):
                    await result(conn.rollback())
        finally:
            await lent.__aexit__(None, None, None)
