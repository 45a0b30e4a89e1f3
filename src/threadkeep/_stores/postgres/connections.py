"""Settings of a PostgreSQL store, its connections, and calls that are repeated over them.

A connection belongs to the process that opened it, an async connection to its event loop.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from functools import lru_cache, partial
from typing import Any, TypeAlias, Unpack, cast
from urllib.parse import parse_qsl

import psycopg
from psycopg import AsyncConnection, Connection, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep import errors
from threadkeep._stores.options import complete, described, from_url, unknown
from threadkeep._stores.postgres import PostgresOptions, langgraph_tables, migrations, search_path
from threadkeep._stores.postgres.messages import NEWEST_STATE, ONE_STATE, send
from threadkeep._stores.postgres.silence import limits, watched
from threadkeep._stores.postgres.statement import (
    DRIVER_ERRORS,
    Query,
    Rows,
    Statement,
    lost_connection,
    mapped,
    mapped_errors,
    passes,
)
from threadkeep._stores.process_forks import LoopConnections, PerProcess
from threadkeep._stores.servers import Retrying, Source
from threadkeep._stores.sync_bridge import entered, finish, result

_QUOTED = re.compile(r'".*"', re.DOTALL)  # libpq may quote the password of a conninfo
_SCHEMES = ("postgresql", "postgres")


class PostgresSettings:
    """Checked settings of a store.

    Args:
        conninfo: of libpq, "" for the program's own connections.
        options: see `PostgresOptions`.

    Raises:
        InvalidArgumentError: an option is unknown or invalid.
    """

    def __init__(self, conninfo: str, options: PostgresOptions) -> None:
        self.conninfo = conninfo
        self.options = complete("PostgreSQL", PostgresOptions, options)
        self.names_schema = "schema" in options
        self.timeout = self.options["timeout"]
        most, least = self.options["max_size"], self.options["min_size"]
        if most < least:
            raise errors.invalid("max_size", most, "Use at least 1, and no less than min_size.")

    @property
    def schema(self) -> str:
        """The schema of the tables.

        Raises:
            InvalidArgumentError: the connections have a search_path, and no schema is given.
        """
        if not self.names_schema:
            search_path.check(self.conninfo)
        return self.options["schema"]

    @property
    def quoted_schema(self) -> str:
        """The schema's name as an SQL identifier."""
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
        """The arguments of a connection after the conninfo."""
        return {
            "autocommit": True,
            "prepare_threshold": self.options["prepare_threshold"],
            "application_name": self.options["application_name"],
            **limits(self.conninfo, self.timeout),
        }

    @property
    def pool_arguments(self) -> dict[str, Any]:
        """The arguments of our own pools after the conninfo."""
        sizes = {name: self.options[name] for name in ("min_size", "max_size", "timeout")}
        return {
            "kwargs": self.arguments,
            "name": "threadkeep",
            "reconnect_timeout": _RECONNECTING,
            **sizes,
        }


def settings_of(database: str, **options: Unpack[PostgresOptions]) -> PostgresSettings:
    """Read settings from a URL or a conninfo of libpq, and from options, which take precedence."""
    database, in_url = from_url(database, described(PostgresOptions))
    scheme, separator, rest = database.partition("://")
    if separator and scheme.lower() in _SCHEMES:  # (libpq takes lower case only)
        database = f"{scheme.lower()}://{rest}"
    try:
        conninfo = make_conninfo(database)
    except (psycopg.Error, UnicodeError) as error:
        named = {name for name, _ in parse_qsl(database.partition("?")[2])}
        for name in named & set(re.findall(r'^invalid .*parameter: "(.*)"', str(error))):
            raise unknown("PostgreSQL", name, described(PostgresOptions)) from None
        cause = _QUOTED.sub('"..."', " ".join(str(error).split()))
        raise errors.OpenError(
            f"Invalid PostgreSQL URL: {cause}",
            hint="Use postgresql://user:password@host:5432/database?option=value&option=value.",
        ) from None  # (the cause may show the password)
    parts = conninfo_to_dict(conninfo)
    host, ports = str(parts.get("host") or ""), str(parts.get("port") or "").split(",")
    if separator and ("@" in host[1:] or not all(port.isdigit() for port in ports if port)):
        raise errors.OpenError(  # (a part of the password is in the host or the port)
            "Invalid PostgreSQL URL: its host has an @, or its port is no number.",
            hint="Write special characters of the password as %40 for @, and %2F for /.",
        )
    return PostgresSettings(conninfo, cast("PostgresOptions", in_url | options))


_Conn: TypeAlias = Connection[Any]
_AsyncConn: TypeAlias = AsyncConnection[Any]
Answered: TypeAlias = Callable[[Sequence[Statement], str], Awaitable[list[Rows]]]

_RECONNECTING = 4.0  # seconds: attempts at 0, 1, 3 and 4


async def _reconnect(pool: Any) -> None:
    """Let a pool connect again if calls wait for a connection. Its own pauses would double."""
    if pool.get_stats()["requests_waiting"]:
        with suppress(psycopg.OperationalError):  # (a call that waits makes a pool grow)
            await result(pool.putconn(await result(pool.getconn(0.1))))


# -- sources ---------------------------------------------------------------------------


class ConnectionSource(Source):
    """Connections, lent for one call each, inside `with turn`."""

    turn: Any = nullcontext()
    may_hold = True
    """A call may keep a connection for several requests. The server may end it."""

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """Return a connection to enter. Raises `ClosedError` after `close`."""
        raise NotImplementedError


class OwnPool(ConnectionSource):
    """A pool, opened at its first use and again after a fork."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._pool = PerProcess(partial(_open_pool, settings))

    def lend(self) -> AbstractAsyncContextManager[Any]:
        return _Lent(self._pool.get())

    async def mend(self) -> None:
        self._pool.get().check()

    async def close(self) -> None:
        self._pool.close()


class _Lent(AbstractAsyncContextManager[_Conn]):
    """A connection of a pool for one call, which ends its own transaction."""

    # (`ConnectionPool.connection` would commit again, and a generator costs each call 1 %)
    __slots__ = ("_conn", "_pool")

    def __init__(self, pool: ConnectionPool[_Conn]) -> None:
        self._pool = pool

    async def __aenter__(self) -> _Conn:
        self._conn = self._pool.getconn()
        return self._conn

    async def __aexit__(self, *_: object) -> None:
        self._pool.putconn(self._conn)


def _open_pool(settings: PostgresSettings) -> ConnectionPool[_Conn]:
    """Open a pool after a first connection succeeds."""
    # (a pool retries silently: connect once first, so that a wrong password fails at once)
    with mapped_errors(settings.server):
        psycopg.connect(settings.conninfo, **settings.arguments).close()
    return ConnectionPool(
        settings.conninfo,
        connection_class=watched(Connection, settings.timeout),
        open=True,
        reconnect_failed=lambda pool: finish(_reconnect(pool)),
        **settings.pool_arguments,
    )


class _LentSafely(AbstractAsyncContextManager[_AsyncConn]):
    """A connection of an async pool, given back although the caller is cancelled meanwhile."""

    # (a cancelled `putconn` loses a connection that it is handing to a waiting call)
    __slots__ = ("_lent",)

    def __init__(self, lent: AbstractAsyncContextManager[_AsyncConn]) -> None:
        self._lent = lent

    async def __aenter__(self) -> _AsyncConn:
        return await self._lent.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:  # noqa: PYI036 - passed on as it is
        return await asyncio.shield(asyncio.create_task(self._lent.__aexit__(*error)))


class OwnAsyncPools(LoopConnections["asyncio.Task[_LoopPool]"], ConnectionSource):
    """A pool for each event loop, opened at its first use there."""

    awaited = True

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__()
        self._settings = settings

    def lend(self) -> AbstractAsyncContextManager[_AsyncConn]:
        return _LentSafely(self._lent())

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[_AsyncConn]:
        pool = (await self._ready()).pool
        conn = await pool.getconn()  # (see `_Lent`)
        try:
            yield conn
        finally:
            await pool.putconn(conn)

    async def mend(self) -> None:
        await (await self._ready()).pool.check()

    async def _ready(self) -> _LoopPool:
        opening = self.here()
        # (one call may be cancelled while others wait for the pool)
        return opening.result() if opening.done() else await asyncio.shield(opening)

    def _begin(self) -> asyncio.Task[_LoopPool]:
        return asyncio.get_running_loop().create_task(_LoopPool.open(self._settings))

    def _has_failed(self, made: asyncio.Task[_LoopPool]) -> bool:
        return made.done() and (made.cancelled() or made.exception() is not None)

    async def _end(self, made: asyncio.Task[_LoopPool]) -> None:
        try:
            opened = await made
        except errors.UnreachableError:  # (it never opened)
            return
        await opened.close()

    def _abandon(self, made: asyncio.Task[_LoopPool]) -> None:  # (nothing can be awaited there)
        if made.done() and not self._has_failed(made):
            for conn in made.result().connections:
                conn.pgconn.finish()


class _LoopPool:
    """An open async pool, and its connections, to close after its event loop has ended."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.connections: set[_AsyncConn] = set()
        self.pool: AsyncConnectionPool[_AsyncConn] = AsyncConnectionPool(
            settings.conninfo,
            open=False,
            configure=self._note,
            reconnect_failed=_reconnect,
            connection_class=watched(AsyncConnection, settings.timeout),
            **settings.pool_arguments,
        )
        self._over = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def _note(self, conn: _AsyncConn) -> None:
        self.connections = {known for known in self.connections if not known.closed} | {conn}

    @classmethod
    async def open(cls, settings: PostgresSettings) -> _LoopPool:
        """Open a pool after a first connection succeeds."""
        with mapped_errors(settings.server):
            first = await AsyncConnection.connect(settings.conninfo, **settings.arguments)
        await first.close()
        opened = cls(settings)
        await opened.pool.open()
        opened._keeper = asyncio.create_task(opened._keep())
        return opened

    async def _keep(self) -> None:
        """Close the pool on request, or when the event loop cancels all tasks.

        A pool's task that is cancelled while it connects treats that as a failure and retries,
        so `asyncio.run` would never end.
        """
        try:
            await self._over.wait()
        finally:
            await self.pool.close()

    async def close(self) -> None:
        """Close the pool. Connections in use are closed when they are returned."""
        self._over.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])


class Given(ConnectionSource):
    """A program's own pool or connection, which stays open. A connection serves calls in turn."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._is_pool = isinstance(given, ConnectionPool | AsyncConnectionPool)
        self.awaited = isinstance(given, AsyncConnectionPool | AsyncConnection)
        self.may_hold = self._is_pool
        self.lock: Any = asyncio.Lock() if self.awaited else threading.Lock()
        if not self._is_pool and not self.awaited:
            self.turn = self.lock  # (the end of an `async with` would be Python code)

    def lend(self) -> AbstractAsyncContextManager[Any]:
        self._check_open()
        if not self._is_pool:
            return self._alone()
        lent = entered(self._given.connection())
        return _LentSafely(lent) if self.awaited else lent

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Any]:
        async with self.lock if self.awaited else nullcontext():
            try:
                yield self._checked()
            except KeyboardInterrupt:
                self._drain()
                raise

    def _checked(self) -> Any:
        self._check_open()  # (`close` may have come meanwhile)
        if self._given.closed:
            raise errors.UnreachableError(
                "The connection given to the saver is closed.",
                hint="Open a new saver on a new connection; a URL or a pool reconnects.",
            )
        return self._given

    def _drain(self) -> None:
        """Read answers that an interrupt left unread: the connection refuses all other calls."""
        connection = self._given.pgconn
        while connection.transaction_status == pq.TransactionStatus.ACTIVE:
            if connection.get_result() is None:
                return

    async def mend(self) -> None:
        if self._is_pool:
            await result(self._given.check())


# -- a database ------------------------------------------------------------------------


class PostgresDatabase(Retrying[ConnectionSource]):
    """A database over one source of connections. Calls are retried if a failure passes."""

    def __init__(self, source: ConnectionSource, settings: PostgresSettings) -> None:
        super().__init__(source, DRIVER_ERRORS, passes, lost_connection)
        self.schema = settings.quoted_schema
        self._server = settings.server
        limit = settings.options["statement_timeout"]
        # (0 would mean no limit)
        text = f"SET LOCAL statement_timeout = {max(1, round(1000 * limit))}" if limit else ""
        self._names_schema = settings.names_schema
        self.before = (Statement(text),) if text else ()
        """Sent at the beginning of each transaction."""
        self._text = lru_cache(maxsize=512)(self._filled_in)

    def _filled_in(self, text: str) -> str:
        return text.replace("{schema}", self.schema)

    def mapped_errors(self, *, migrating: bool = False) -> AbstractContextManager[None]:
        """Map the driver's errors."""
        return mapped_errors(self._server, migrating=migrating)

    def ready(self, statements: Sequence[Statement]) -> list[Statement]:
        """Fill in the schema's name."""
        return [Statement(self._text(sql), values, keep) for sql, values, keep in statements]

    async def answered(
        self, statements: Sequence[Statement], isolation: str, losses: list[Exception] | None = None
    ) -> list[Rows]:
        """Return the rows of each statement. See `retried`."""
        try:
            return await self.retried(
                partial(self._send, self.ready(statements), isolation), losses
            )
        except DRIVER_ERRORS as error:
            raise mapped(error, self._server) from error

    async def replies(
        self, queries: Sequence[Query], answered: Answered | None = None
    ) -> list[Any]:
        """Return the reply to each query, all from one state. `answered` sends the statements."""
        statements = [statement for query in queries for statement in query.statements]
        send_ = answered or self.answered
        rows = iter(await send_(statements, ONE_STATE) if statements else ())
        return [query.reply([next(rows) for _ in query.statements]) for query in queries]

    def lend(self) -> AbstractAsyncContextManager[Any]:
        """Return a connection to enter."""
        return self._source.lend()

    async def _send(self, statements: Sequence[Statement], isolation: str) -> list[Rows]:
        with self._source.turn:
            async with self._source.lend() as conn:
                return await send(conn, statements, isolation, self.before)

    async def send_alone(self, statement: Statement) -> tuple[Rows, Sequence[str]]:
        """Return the rows of a statement, sent outside a transaction, and the server's warnings."""
        warnings: list[str] = []

        def note(notice: Diagnostic) -> None:
            if notice.severity_nonlocalized == "WARNING":
                warnings.append(str(notice.message_primary))

        with self._source.turn:
            async with self._source.lend() as conn:
                conn.add_notice_handler(note)
                try:
                    (rows,) = await send(conn, self.ready([statement]), NEWEST_STATE)
                finally:
                    conn.remove_notice_handler(note)
        return rows, warnings

    async def migrate(self) -> None:
        """Migrate the tables to this release's version.

        Several processes may do so at once. Needs the right to create tables.
        """
        await self.carry_out(self._migration)

    async def carry_out(self, begin: Callable[[], migrations.Plan]) -> None:
        """Run the statements of a plan. `begin` makes a plan for each try."""
        with self.mapped_errors(migrating=True):
            await self.retried(partial(self._carry_out, begin))

    async def _carry_out(self, begin: Callable[[], migrations.Plan]) -> None:
        plan = begin()
        answer: Any = None
        error: Exception | None = None
        with self._source.turn:
            async with self._source.lend() as conn:
                while True:
                    try:
                        step = plan.send(answer) if error is None else plan.throw(error)
                    except StopIteration:
                        return
                    answer = error = None
                    try:
                        (answer,) = await send(conn, self.ready([step]), NEWEST_STATE)
                    except DRIVER_ERRORS as failure:
                        error = failure

    async def notes(self) -> Sequence[str]:
        """Compare LangGraph's tables in the same database. See `Backend.notes`."""
        plan, rows = langgraph_tables.differences(None), cast("Rows", None)
        try:
            while True:
                (rows,) = await self.answered([plan.send(rows)], ONE_STATE)
        except StopIteration as end:
            return cast("list[str]", end.value)

    def _migration(self) -> migrations.Plan:
        if not self._names_schema:
            for (path,) in (yield Statement(search_path.SET)):
                search_path.refuse(path)
        yield from migrations.plan(self.schema)
        yield from langgraph_tables.warn()
