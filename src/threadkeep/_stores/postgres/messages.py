"""Statements sent over a connection, blocking or awaited, in one round trip."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, TypeAlias

from psycopg import AsyncConnection, AsyncCursor, AsyncPipeline, Connection, Cursor, Pipeline, pq
from psycopg.rows import tuple_row

from threadkeep import errors
from threadkeep._stores.postgres.statement import Rows, Statement, register_types
from threadkeep._stores.sync_bridge import entered, result

_Conn: TypeAlias = Connection[Any]
_AsyncConn: TypeAlias = AsyncConnection[Any]

ONE_STATE = "REPEATABLE READ"
"""Isolation of reads: all statements see the state of the first."""

NEWEST_STATE = "READ COMMITTED"
"""Isolation of changes: a statement sees commits made while it waited for a lock."""


# (as numbers: libpq's, without objects of the driver)
_BEGUN = frozenset((int(pq.TransactionStatus.INTRANS), int(pq.TransactionStatus.INERROR)))
_IDLE, _NO_PIPELINE_YET = int(pq.TransactionStatus.IDLE), int(pq.PipelineStatus.OFF)
_known: weakref.WeakSet[Any] = weakref.WeakSet()  # connections that can dump our types


def _in_pipeline(conn: _Conn | _AsyncConn) -> bool:
    return conn.pgconn.pipeline_status != _NO_PIPELINE_YET


def has_begun(conn: _Conn | _AsyncConn) -> bool:
    """Return True if a transaction has begun, and has not ended."""
    return conn.pgconn.transaction_status in _BEGUN


class _EndsWithSync:
    """A pipeline without the Flush that psycopg sends after the last Sync.

    If the Sync is answered before that Flush arrives, PgBouncer reserves a server connection for
    it, until the client's next transaction. And the server does not count the time of a transaction
    that is idle after a Flush.
    """

    pgconn: Any

    def _fetch_gen(self, *, flush: bool) -> Any:
        is_lost = self.pgconn.status == pq.ConnStatus.BAD  # (then it raises the right error)
        return super()._fetch_gen(flush=flush and is_lost)  # type: ignore[misc] # psycopg's own


_KINDS: dict[type, type] = {
    kind: type(kind.__name__, (_EndsWithSync, kind), {}) for kind in (Pipeline, AsyncPipeline)
}


@asynccontextmanager
async def _pipeline(conn: _Conn | _AsyncConn) -> AsyncIterator[None]:
    is_ours = not _in_pipeline(conn)
    async with entered(conn.pipeline()) as pipe:
        if is_ours:
            pipe.__class__ = _KINDS[type(pipe)]
        yield


def _prepare(conn: _Conn | _AsyncConn) -> None:
    if conn not in _known:
        register_types(conn.adapters)  # (the connection may be the program's own)
        _known.add(conn)


def is_idle(conn: _Conn | _AsyncConn) -> bool:
    """Return True if a statement would be a transaction of its own."""
    pgconn = conn.pgconn
    return (
        conn.autocommit
        and pgconn.transaction_status == _IDLE
        and pgconn.pipeline_status == _NO_PIPELINE_YET
    )


async def send(
    conn: _Conn | _AsyncConn,
    statements: Sequence[Statement],
    isolation: str,
    before: Sequence[Statement] = (),
) -> list[Rows]:
    """Return the rows of each statement. `before` is sent first, and its rows are ignored.

    Changes are durable on return. A call that fails ends the transaction that it began.
    """
    _prepare(conn)
    if len(statements) == 1 and not before and is_idle(conn):
        return [await _rows(await _execute(conn, statements[0]))]
    if _in_pipeline(conn):
        async with entered(conn.pipeline()):  # (its end synchronizes, so the state is known)
            pass
    if has_begun(conn):
        if isolation == NEWEST_STATE:
            raise errors.InvalidArgumentError(
                "The given connection is in a transaction, which the program could roll back.",
                hint="End the transaction first, or give a pool or a URL.",
            )
        async with entered(conn.transaction()):  # a savepoint
            return await sent_together(conn, statements)
    sent, first, pipelined = statements, 0, True
    if len(statements) + len(before) == 1:
        pipelined = _in_pipeline(conn)  # (a pipeline commits when it ends)
    else:
        begin = "BEGIN" if conn.autocommit else "SET TRANSACTION"
        begun = Statement(f"{begin} ISOLATION LEVEL {isolation}")
        first = 1 + len(before)
        sent = [begun, *before, *statements, *((_COMMIT,) if conn.autocommit else ())]
    try:
        async with _pipeline(conn) if pipelined else _NO_PIPELINE:
            cursors = [await _execute(conn, statement) for statement in sent]
            if not conn.autocommit:
                await result(conn.commit())
        answered = cursors[first : first + len(statements)]
        return [await _rows(cursor) for cursor in answered]
    finally:
        if has_begun(conn):
            await result(conn.rollback())


async def sent_together(conn: _Conn | _AsyncConn, statements: Sequence[Statement]) -> list[Rows]:
    """Return the rows of each statement, sent in one round trip."""
    _prepare(conn)
    async with _pipeline(conn):
        cursors = [await _execute(conn, statement) for statement in statements]
    return [await _rows(cursor) for cursor in cursors]


_NO_PIPELINE = nullcontext()
_COMMIT = Statement("COMMIT")


async def _execute(conn: _Conn | _AsyncConn, statement: Statement) -> Any:
    # (not `conn.cursor()`: a program's connection may have another cursor class)
    cursor: Cursor[Any] | AsyncCursor[Any]
    if isinstance(conn, AsyncConnection):
        cursor = AsyncCursor(conn, row_factory=tuple_row)
    else:
        cursor = Cursor(conn, row_factory=tuple_row)
    sql, values, keep = statement
    # Without parameters, PostgreSQL accepts several commands in one text, but answers as text.
    done: Any = cursor.execute(sql, values, binary=bool(values), prepare=None if keep else False)
    if done is not cursor:
        await done
    return cursor


async def _rows(cursor: Any) -> Rows:
    # (not `description`, which makes an object for each column)
    answer = cursor.pgresult
    rows: Any = cursor.fetchall() if answer is not None and answer.nfields else []
    return rows if isinstance(rows, list) else await rows
