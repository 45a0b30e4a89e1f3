"""Settings of a PostgreSQL store, its connections, and statements sent over them.

A connection belongs to the process, and an async one to the event loop, that it was opened in.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias, Unpack, cast

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep import errors
from threadkeep._stores import sync_bridge
from threadkeep._stores.options import complete, described, from_url
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.postgres.failures import mapped_errors
from threadkeep._stores.postgres.statement import Array, Rows, Statement, register_arrays
from threadkeep._stores.process_forks import LoopConnections, PerProcess
from threadkeep._stores.sync_bridge import entered, result

_QUOTED = re.compile(r'".*"', re.DOTALL)  # what libpq quotes of a conninfo may be its password
_SCHEMES = ("postgresql", "postgres")


class PostgresSettings:
    """Checked settings of a store.

    Args:
        conninfo: as libpq takes it; "" for the program's own connections.
        options: see `PostgresOptions`.

    Raises:
        InvalidArgumentError: an option is unknown or invalid.
    """

    def __init__(self, conninfo: str, options: PostgresOptions) -> None:
        self.conninfo = conninfo
        self.options = complete("PostgreSQL", PostgresOptions, options)
        self.schema = self.options["schema"]
        self.timeout = self.options["timeout"]
        most, least = self.options["max_size"], self.options["min_size"]
        if most < least:
            raise errors.invalid("max_size", most, "Use at least 1, and no less than min_size.")

    @property
    def quoted_schema(self) -> str:
        """The schema's name as SQL takes it."""
        return '"' + self.schema.replace('"', '""') + '"'

    @property
    def server(self) -> str:
        """The server's name in errors, without a password."""
        try:
            parts = conninfo_to_dict(self.conninfo)
        except psycopg.Error:
            parts = {}
        host = parts.get("host") or parts.get("hostaddr") or "localhost"
        return f"PostgreSQL at {host}:{parts.get('port') or 5432}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of a connection, beside the conninfo."""
        return {
            "autocommit": True,
            "prepare_threshold": self.options["prepare_threshold"],
            "application_name": self.options["application_name"],
        }

    @property
    def pool_arguments(self) -> dict[str, Any]:
        """Arguments of a pool of our own, beside the conninfo."""
        sizes = {name: self.options[name] for name in ("min_size", "max_size", "timeout")}
        return {"kwargs": self.arguments, "name": "threadkeep", **sizes}


def settings_of(database: str, **options: Unpack[PostgresOptions]) -> PostgresSettings:
    """Read the settings from a URL, or another conninfo of libpq, and options, which come first."""
    database, in_url = from_url(database, described(PostgresOptions))
    scheme, separator, rest = database.partition("://")
    if separator and scheme.lower() in _SCHEMES:  # libpq knows them in lower case only
        database = f"{scheme.lower()}://{rest}"
    try:
        conninfo = make_conninfo(database)
    except (psycopg.Error, UnicodeError) as error:
        cause = _QUOTED.sub('"..."', " ".join(str(error).split()))
        raise errors.OpenError(
            f"Invalid PostgreSQL URL: {cause}",
            hint="Use postgresql://user:password@host:5432/database.",
        ) from None  # the cause could show the password
    return PostgresSettings(conninfo, cast("PostgresOptions", in_url | options))


_Conn: TypeAlias = Connection[Any]
_AsyncConn: TypeAlias = AsyncConnection[Any]

# -- messages --------------------------------------------------------------------------

ONE_STATE = "REPEATABLE READ"
"""Isolation of reads: all statements see what the first one sees."""

NEWEST_STATE = "READ COMMITTED"
"""Isolation of changes: a statement sees what others committed while it waited for a lock."""


_BEGUN = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)


def _in_pipeline(conn: _Conn | _AsyncConn) -> bool:
    return conn.pgconn.pipeline_status != pq.PipelineStatus.OFF


def _in_transaction(conn: _Conn | _AsyncConn) -> bool:
    return conn.info.transaction_status in _BEGUN


async def send(
    conn: _Conn | _AsyncConn,
    statements: Sequence[Statement],
    isolation: str,
    before: Sequence[Statement] = (),
) -> list[Rows]:
    """Return the rows of each statement, but for those of `before`, which are sent first.

    Changes are durable on return. A call that fails leaves no transaction open which it began.
    """
    if _in_pipeline(conn):
        async with entered(conn.pipeline()):  # whose end synchronizes: the state is known then
            pass
    if _in_transaction(conn):
        if isolation == NEWEST_STATE:
            raise errors.InvalidArgumentError(
                "The given connection is in the middle of a transaction, which could be undone.",
                hint="End it first, or use a pool, or a connection of the saver's own.",
            )
        async with entered(conn.transaction()):  # a savepoint
            async with entered(conn.pipeline()):
                cursors = [await _execute(conn, statement) for statement in statements]
            return [await _rows(cursor) for cursor in cursors]
    sent, first, pipelined = statements, 0, True
    if len(statements) + len(before) == 1:
        pipelined = _in_pipeline(conn)  # (what it answers is not committed before it ends)
    else:
        begin = "BEGIN" if conn.autocommit else "SET TRANSACTION"
        begun = Statement(f"{begin} ISOLATION LEVEL {isolation}")
        first = 1 + len(before)
        sent = [begun, *before, *statements, *((_COMMIT,) if conn.autocommit else ())]
    try:
        async with entered(conn.pipeline()) if pipelined else _NO_PIPELINE:
            cursors = [await _execute(conn, statement) for statement in sent]
            if not conn.autocommit:
                await result(conn.commit())
        answered = cursors[first : first + len(statements)]
        return [await _rows(cursor) for cursor in answered]
    finally:
        if _in_transaction(conn):
            await result(conn.rollback())


_NO_PIPELINE = nullcontext()
_COMMIT = Statement("COMMIT")


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


class ConnectionSource:
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


class OwnPool(ConnectionSource):
    """A pool that is opened when it is first needed, and again after a fork."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._pool = PerProcess(partial(open_pool, settings))

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """See `ConnectionSource.lend`."""
        return entered(self._pool.get().connection())

    async def mend(self) -> None:
        """See `ConnectionSource.mend`."""
        self._pool.get().check()

    async def close(self) -> None:
        """See `ConnectionSource.close`."""
        self._pool.close()


def open_pool(settings: PostgresSettings, **options: Any) -> ConnectionPool[_Conn]:
    """Open a pool, if the server lets us in; `options` are of psycopg's pool."""
    # A pool retries without a word: whether the server lets us in is asked first, and is not
    # retried: a wrong password stays wrong.
    with mapped_errors(settings.server):
        psycopg.connect(settings.conninfo, **settings.arguments).close()
    return ConnectionPool(settings.conninfo, open=True, **settings.pool_arguments, **options)


class OwnAsyncPools(LoopConnections["asyncio.Task[_LoopPool]"], ConnectionSource):
    """A pool for each event loop, opened when the loop first needs it."""

    awaited = True

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__()
        self._settings = settings

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[_AsyncConn]:
        """See `ConnectionSource.lend`."""
        async with (await self._ready()).pool.connection() as conn:
            yield conn

    async def mend(self) -> None:
        """See `ConnectionSource.mend`."""
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
        except errors.UnreachableError:  # it was never open
            return
        await opened.close()

    def _abandon(self, made: asyncio.Task[_LoopPool]) -> None:
        # A pool cannot be awaited there.
        if made.done() and not self._has_failed(made):
            for conn in made.result().connections:
                conn.pgconn.finish()


class _LoopPool:
    """An open async pool, and its connections, which an event loop that ends leaves behind."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.connections: set[_AsyncConn] = set()
        self.pool: AsyncConnectionPool[_AsyncConn] = AsyncConnectionPool(
            settings.conninfo, open=False, configure=self._note, **settings.pool_arguments
        )
        self._over = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def _note(self, conn: _AsyncConn) -> None:
        self.connections = {known for known in self.connections if not known.closed} | {conn}

    @classmethod
    async def open(cls, settings: PostgresSettings) -> _LoopPool:
        """Open a pool, if the server lets us in."""
        with mapped_errors(settings.server):
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


class Given(ConnectionSource):
    """A program's own pool or connection, which its owner closes; a connection is lent once."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._is_pool = isinstance(given, ConnectionPool | AsyncConnectionPool)
        self.awaited = isinstance(given, AsyncConnectionPool | AsyncConnection)
        self._lock: Any = asyncio.Lock() if self.awaited else threading.Lock()
        self._open = True

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """See `ConnectionSource.lend`."""
        self._check_open()
        return entered(self._given.connection()) if self._is_pool else self._alone()

    def _check_open(self) -> None:
        if not self._open:
            raise errors.ClosedError(hint="Open a new one.")

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Any]:
        async with entered(self._lock):
            self._check_open()  # (it may have been closed while this waited)
            if self._given.closed:
                raise errors.UnreachableError(
                    "The connection that the saver was given is closed.",
                    hint="Use a new one for a new saver; with a URL or a pool, savers reconnect.",
                )
            yield self._given

    async def mend(self) -> None:
        """See `ConnectionSource.mend`."""
        if self._is_pool:
            await result(self._given.check())

    async def close(self) -> None:
        """See `ConnectionSource.close`."""
        self._open = False
