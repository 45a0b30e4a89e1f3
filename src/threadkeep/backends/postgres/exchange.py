"""Statements sent over one connection, and their rows: one round trip each time.

The two ways to do that, blocking and awaited, live here and nowhere else. Invariants: a
single statement is a transaction of its own; several are one, pipelined; where the program
has begun a transaction on a connection that it gave, reads are a part of that, and changes
are refused; a call that fails leaves no transaction open which it began.

Rows come in binary form where there are parameters (without, PostgreSQL takes several
commands in one text, but gives texts only).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, pq
from psycopg.rows import tuple_row

from threadkeep.backends.postgres.arrays import Array, teach
from threadkeep.backends.postgres.statement import Rows, Statement
from threadkeep.errors import InvalidArgumentError

ONE_STATE = "REPEATABLE READ"
"""For reads: all statements see what the first one sees."""

NEWEST_STATE = "READ COMMITTED"
"""For changes: each statement sees what others have committed while it waited for a lock."""


class Message(NamedTuple):
    """What is sent together.

    `before` is said first, where it is anything, and not answered.
    """

    statements: Sequence[Statement]
    isolation: str
    before: Sequence[Statement] = ()


class _Frame(NamedTuple):
    """A message as a connection takes it; `answered` of it are the message's statements."""

    sent: Sequence[Statement]
    answered: slice
    pipelined: bool = False
    to_commit: bool = False


def _frame(conn: Connection[Any] | AsyncConnection[Any], message: Message) -> _Frame:
    in_pipeline = _in_pipeline(conn)
    if len(message.statements) + len(message.before) == 1:
        # (in a pipeline, what is answered is not committed before that is synchronized)
        return _Frame(message.statements, slice(None), in_pipeline, not conn.autocommit)
    begin = "BEGIN" if conn.autocommit else "SET TRANSACTION"
    sent = [
        Statement(f"{begin} ISOLATION LEVEL {message.isolation}"),
        *message.before,
        *message.statements,
    ]
    answered = slice(1 + len(message.before), len(sent))
    if conn.autocommit:
        sent.append(Statement("COMMIT"))
    return _Frame(sent, answered, pipelined=True, to_commit=not conn.autocommit)


def _in_pipeline(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    return conn.pgconn.pipeline_status != pq.PipelineStatus.OFF


def _refuse_changes(message: Message) -> None:
    """Refuse to change anything in the program's own transaction.

    It could be undone, and what was promised to be durable with it.
    """
    if message.isolation == NEWEST_STATE:
        raise InvalidArgumentError(
            "The given connection is in the middle of a transaction, which could be undone.",
            hint="End it first, or give the saver a pool, or a connection of its own.",
        )


def _is_begun(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether the connection is in a transaction, be it one that has failed."""
    return conn.info.transaction_status in (
        pq.TransactionStatus.INTRANS,
        pq.TransactionStatus.INERROR,
    )


def send(conn: Connection[Any], message: Message) -> list[Rows]:
    """The rows of each statement; whatever they changed is durable on return."""
    if _in_pipeline(conn):
        with conn.pipeline():  # whose end synchronizes: only then is known what was begun
            pass
    if _is_begun(conn):
        _refuse_changes(message)
        with conn.transaction():  # a savepoint
            with conn.pipeline():
                cursors = [_execute(conn, statement) for statement in message.statements]
            return [_rows(cursor) for cursor in cursors]
    frame = _frame(conn, message)
    try:
        if frame.pipelined:
            with conn.pipeline():
                cursors = [_execute(conn, statement) for statement in frame.sent]
                if frame.to_commit:
                    conn.commit()
        else:
            cursors = [_execute(conn, statement) for statement in frame.sent]
            if frame.to_commit:
                conn.commit()
        return [_rows(cursor) for cursor in cursors[frame.answered]]
    finally:
        if _is_begun(conn):
            conn.rollback()


def _execute(conn: Connection[Any], statement: Statement) -> Any:
    # (not `conn.cursor()`: a given connection may make cursors of another kind)
    cursor = Cursor(conn, row_factory=tuple_row)
    _teach(cursor, statement)
    return cursor.execute(statement.sql, statement.values, **_how(statement))


def _teach(cursor: Cursor[Any] | AsyncCursor[Any], statement: Statement) -> None:
    """Let it send arrays: the cursor alone, as the connection may be the program's own."""
    if any(type(value) is Array for value in statement.values[:1]):
        teach(cursor.adapters)


def _how(statement: Statement) -> dict[str, bool | None]:
    return {"binary": bool(statement.values), "prepare": None if statement.keep else False}


def _rows(cursor: Any) -> Rows:
    return cursor.fetchall() if cursor.description else []


async def asend(conn: AsyncConnection[Any], message: Message) -> list[Rows]:
    """See `send`."""
    if _in_pipeline(conn):
        async with conn.pipeline():
            pass
    if _is_begun(conn):
        _refuse_changes(message)
        async with conn.transaction():
            async with conn.pipeline():
                cursors = [await _aexecute(conn, statement) for statement in message.statements]
            return [await _arows(cursor) for cursor in cursors]
    frame = _frame(conn, message)
    try:
        if frame.pipelined:
            async with conn.pipeline():
                cursors = [await _aexecute(conn, statement) for statement in frame.sent]
                if frame.to_commit:
                    await conn.commit()
        else:
            cursors = [await _aexecute(conn, statement) for statement in frame.sent]
            if frame.to_commit:
                await conn.commit()
        return [await _arows(cursor) for cursor in cursors[frame.answered]]
    finally:
        if _is_begun(conn):
            await conn.rollback()


async def _aexecute(conn: AsyncConnection[Any], statement: Statement) -> Any:
    cursor = AsyncCursor(conn, row_factory=tuple_row)
    _teach(cursor, statement)
    return await cursor.execute(statement.sql, statement.values, **_how(statement))


async def _arows(cursor: Any) -> Rows:
    return await cursor.fetchall() if cursor.description else []
