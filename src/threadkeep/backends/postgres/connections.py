"""Connections, from pools of our own or a program's, and statements sent over them.

A connection belongs to the process, and an async one to the event loop, that it was opened in.
What the program gave is never closed. A message is one round trip: a single statement is its own
transaction, several are one, pipelined. In a transaction that the program has begun, reads are a
part of it, and changes are refused.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, pq
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep.backends import sync_bridge
from threadkeep.backends.postgres.failures import mapped
from threadkeep.backends.postgres.settings import Settings
from threadkeep.backends.postgres.statement import Array, Rows, Statement, register_arrays
from threadkeep.backends.process_forks import LoopConnections, PerProcess
from threadkeep.backends.sync_bridge import entered, result
from threadkeep.errors import ClosedError, InvalidArgumentError, UnreachableError

_Conn: TypeAlias = Connection[Any]
_AsyncConn: TypeAlias = AsyncConnection[Any]

# -- messages --------------------------------------------------------------------------

ONE_STATE = "REPEATABLE READ"
"""Isolation of reads: all statements see what the first one sees."""

NEWEST_STATE = "READ COMMITTED"
"""Isolation of changes: a statement sees what others committed while it waited for a lock."""


class Message(NamedTuple):
    """Statements that are sent together; those of `before` come first and have no answer."""

    statements: Sequence[Statement]
    isolation: str
    before: Sequence[Statement] = ()


def _in_pipeline(conn: _Conn | _AsyncConn) -> bool:
    return conn.pgconn.pipeline_status != pq.PipelineStatus.OFF


def _in_transaction(conn: _Conn | _AsyncConn) -> bool:
    return conn.info.transaction_status in (
        pq.TransactionStatus.INTRANS,
        pq.TransactionStatus.INERROR,
    )


async def send(conn: _Conn | _AsyncConn, message: Message) -> list[Rows]:
    """Return the rows of each statement; changes are durable on return.

    A call that fails leaves no transaction open which it began.
    """
    if _in_pipeline(conn):
        async with entered(conn.pipeline()):  # whose end synchronizes: the state is known then
            pass
    if _in_transaction(conn):
        if message.isolation == NEWEST_STATE:
            raise InvalidArgumentError(
                "The given connection is in the middle of a transaction, which could be undone.",
                hint="End it first, or give the saver a pool, or a connection of its own.",
            )
        async with entered(conn.transaction()):  # a savepoint
            async with entered(conn.pipeline()):
                cursors = [await _execute(conn, statement) for statement in message.statements]
            return [await _rows(cursor) for cursor in cursors]
    sent, answered, pipelined = message.statements, slice(None), True
    if len(message.statements) + len(message.before) == 1:
        pipelined = _in_pipeline(conn)  # (what it answers is not committed before it ends)
    else:
        sent, answered = _transaction(message, autocommit=conn.autocommit)
    try:
        async with entered(conn.pipeline()) if pipelined else _NO_PIPELINE:
            cursors = [await _execute(conn, statement) for statement in sent]
            if not conn.autocommit:
                await result(conn.commit())
        return [await _rows(cursor) for cursor in cursors[answered]]
    finally:
        if _in_transaction(conn):
            await result(conn.rollback())


_NO_PIPELINE = nullcontext()


def _transaction(message: Message, *, autocommit: bool) -> tuple[Sequence[Statement], slice]:
    """Return the statements of a transaction, and which of them are the message's."""
    begin = "BEGIN" if autocommit else "SET TRANSACTION"
    sent = [
        Statement(f"{begin} ISOLATION LEVEL {message.isolation}"),
        *message.before,
        *message.statements,
    ]
    answered = slice(1 + len(message.before), len(sent))
    if autocommit:
        sent.append(Statement("COMMIT"))
    return sent, answered


async def _execute(conn: _Conn | _AsyncConn, statement: Statement) -> Any:
    # (not `conn.cursor()`: a program's connection may make cursors of another kind)
    cursor: Cursor[Any] | AsyncCursor[Any]
    if isinstance(conn, AsyncConnection):
        cursor = AsyncCursor(conn, row_factory=tuple_row)
    else:
        cursor = Cursor(conn, row_factory=tuple_row)
    sql, values, keep = statement
    if values and type(values[0]) is Array:
        register_arrays(cursor.adapters)  # (the connection may be the program's own)
    # Without parameters, PostgreSQL takes several commands in one text, but answers in texts only.
    await result(cursor.execute(sql, values, binary=bool(values), prepare=None if keep else False))
    return cursor


async def _rows(cursor: Any) -> Rows:
    rows: Rows = await result(cursor.fetchall()) if cursor.description else []
    return rows


# -- sources ---------------------------------------------------------------------------


class Source:
    """Connections, lent one for a call."""

    awaited = False

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """Return a connection to enter. `ClosedError` once this was closed."""
        raise NotImplementedError

    async def mend(self) -> None:
        """Replace lost connections, after one was met."""

    async def pause(self, seconds: float) -> None:
        """Wait before a retry."""
        await (asyncio.sleep if self.awaited else sync_bridge.sleep)(seconds)

    async def close(self) -> None:
        """Close connections of our own. Idempotent."""
        raise NotImplementedError


@contextmanager
def _mapped_refusals(settings: Settings) -> Iterator[None]:
    """Map a failure to connect to an error that is not retried: a wrong password stays wrong."""
    try:
        yield
    except psycopg.Error as error:
        raise mapped(error, settings.server) from error


class OwnPool(Source):
    """A pool that is opened when it is first needed, anew after a fork."""

    def __init__(self, settings: Settings) -> None:
        self._pool = PerProcess(partial(_opened, settings))

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """See `Source.lend`."""
        return entered(self._pool.get().connection())

    async def mend(self) -> None:
        """See `Source.mend`."""
        self._pool.get().check()

    async def close(self) -> None:
        """See `Source.close`."""
        self._pool.close()


def _opened(settings: Settings) -> ConnectionPool[_Conn]:
    # A pool retries without a word: whether the server lets us in is asked first.
    with _mapped_refusals(settings):
        psycopg.connect(settings.conninfo, **settings.arguments).close()
    return ConnectionPool(settings.conninfo, open=True, **settings.pool_arguments)


class OwnAsyncPools(LoopConnections["asyncio.Task[_LoopPool]"], Source):
    """A pool for each event loop, opened when the loop first needs it."""

    awaited = True

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_AsyncConn]:
        """See `Source.lend`."""
        async with (await self._ready()).pool.connection() as conn:
            yield conn

    async def mend(self) -> None:
        """See `Source.mend`."""
        await (await self._ready()).pool.check()

    async def _ready(self) -> _LoopPool:
        opening = self.here()
        # One call may be cancelled while others wait for the same pool.
        return opening.result() if opening.done() else await asyncio.shield(opening)

    def _begin(self) -> asyncio.Task[_LoopPool]:
        return asyncio.get_running_loop().create_task(_LoopPool.open(self._settings))

    def _has_failed(self, made: asyncio.Task[_LoopPool]) -> bool:
        return made.done() and (made.cancelled() or made.exception() is not None)

    async def _end(self, made: asyncio.Task[_LoopPool]) -> None:
        try:
            opened = await made
        except UnreachableError:  # it was never open
            return
        await opened.close()

    def _abandon(self, made: asyncio.Task[_LoopPool]) -> None:
        # A pool cannot be awaited there.
        if made.done() and not self._has_failed(made):
            for conn in made.result().connections:
                conn.pgconn.finish()


class _LoopPool:
    """An open async pool, and its connections, which an event loop that ends leaves behind."""

    def __init__(self, settings: Settings) -> None:
        self.connections: set[_AsyncConn] = set()
        self.pool: AsyncConnectionPool[_AsyncConn] = AsyncConnectionPool(
            settings.conninfo, open=False, configure=self._note, **settings.pool_arguments
        )
        self._over = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def _note(self, conn: _AsyncConn) -> None:
        self.connections = {known for known in self.connections if not known.closed} | {conn}

    @classmethod
    async def open(cls, settings: Settings) -> _LoopPool:
        """Open a pool, if the server lets us in."""
        with _mapped_refusals(settings):
            first = await AsyncConnection.connect(settings.conninfo, **settings.arguments)
        await first.close()
        opened = cls(settings)
        await opened.pool.open()
        opened._keeper = asyncio.create_task(opened._keep())
        return opened

    async def _keep(self) -> None:
        """Close the pool on request, or when the event loop cancels all tasks.

        A task of the pool that is cancelled while it connects takes that for a failure and
        goes on: `asyncio.run` would wait for it for ever.
        """
        try:
            await self._over.wait()
        finally:
            await self.pool.close()

    async def close(self) -> None:
        """Close the pool; what is in use is closed when it is given back."""
        self._over.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])


class _Given(Source):
    """A program's own pool or connection."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.awaited = isinstance(given, AsyncConnectionPool | AsyncConnection)
        self._open = True

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(hint="Open a new saver.")

    async def close(self) -> None:
        """Use it no more; its owner closes it."""
        self._open = False


class GivenPool(_Given):
    """A program's own pool, blocking or async."""

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """See `Source.lend`."""
        self._check_open()
        return entered(self._given.connection())

    async def mend(self) -> None:
        """See `Source.mend`."""
        await result(self._given.check())


class GivenConnection(_Given):
    """A program's own connection, blocking or async: one call at a time."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._lock: Any = asyncio.Lock() if self.awaited else threading.Lock()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Any]:
        """See `Source.lend`."""
        async with entered(self._lock):
            self._check_open()
            if self._given.closed:
                raise UnreachableError(
                    "The connection that the saver was given is closed.",
                    hint="Give a new one to a new saver; with a URL or a pool, savers reconnect.",
                )
            yield self._given
