"""The PostgreSQL backend itself: what is said to the server, tried again, and understood.

Only the protocol's methods live here, and what the constructors accept. Invariant: nothing
of the driver, neither rows nor errors, leaves this package.

The logic is that of `AsyncPostgresBackend`. `PostgresBackend` runs the same coroutines on
blocking connections, where they never suspend.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.errors import Diagnostic
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep.backends.base import AsyncBackend, Scrubbed
from threadkeep.backends.blocking import BlockingFace
from threadkeep.backends.postgres import changes, groups, migrations, partitions, reads, scrubbing
from threadkeep.backends.postgres.exchange import NEWEST_STATE, ONE_STATE, Message
from threadkeep.backends.postgres.failures import (
    DRIVER_ERRORS,
    lost_connection,
    mapped,
    passes,
)
from threadkeep.backends.postgres.pools import (
    GivenAsyncConnection,
    GivenAsyncPool,
    GivenConnection,
    GivenPool,
    OwnAsyncPools,
    OwnPool,
    Source,
)
from threadkeep.backends.postgres.refusals import refusal
from threadkeep.backends.postgres.settings import Settings, settings_of
from threadkeep.backends.postgres.statement import Rows, Statement
from threadkeep.backends.retry import again
from threadkeep.backends.sync_bridge import finish
from threadkeep.engine.model import Change, CopyThread, Read, ReadThread
from threadkeep.errors import InvalidArgumentError, ThreadExistsError, ThreadkeepError

T = TypeVar("T")

# (A replica that takes over has the same; a copy by pg_dump has not.)
_IDENTITY = """
SELECT s.system_identifier, d.oid, %s::regnamespace::oid FROM pg_control_system() s, pg_database d
WHERE d.datname = current_database()
"""


class AsyncPostgresBackend(AsyncBackend):
    """Rows in a PostgreSQL database, over connections that are awaited.

    Args:
        source: where connections come from.
        settings: how to speak to the server.
    """

    counts_for_all = True
    has_identity = True
    commits_groups = True

    def __init__(self, source: Source, settings: Settings) -> None:
        self._source = source
        self._schema = settings.quoted_schema
        self._server = settings.server
        self._partition_by = settings.partition_by
        limit = settings.statement_timeout
        # (0 would be no limit at all)
        text = f"SET LOCAL statement_timeout = {max(1, round(1000 * limit))}" if limit else ""
        self._before = (Statement(text),) if text else ()

    async def fetch(self, reads_: Sequence[Read]) -> list[Any]:
        """Answer each read, in order, all from one state. See `Backend.fetch`."""
        queries = [reads.query(read) for read in reads_]
        statements = [self._ready(s) for query in queries for s in query.statements]
        with self._named():
            rows = iter(await self._answered(statements, ONE_STATE) if statements else ())
        return [query.reply([next(rows) for _ in query.statements]) for query in queries]

    async def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing. See `Backend.commit`."""
        (refused,) = await self._each([change])
        if refused is not None:
            raise refused

    async def commit_many(self, given: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out several changes in one transaction. See `Backend.commit_many`."""
        if len(given) > 1 and await self._together(given):
            return [None] * len(given)
        return await self._each(given) if given else []

    async def _together(self, given: Sequence[Change]) -> bool:
        """Carry out all changes in one call, if that can be done and none would be refused."""
        statement = groups.together(given)
        if statement is None:
            return False
        with self._named():
            ((row,),) = await self._answered([self._ready(statement)], NEWEST_STATE)
        return bool(row[0])

    async def _each(self, given: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out the changes one after the other, in one transaction."""
        statements = [self._ready(changes.statement(change)) for change in given]
        threads = {thread for change in given for thread in changes.locked(change)}
        if len(threads) > 1 and len(given) > 1:
            # All are locked first, in one order: so no two groups wait for each other.
            locks = changes.locking(threads)
            statements = [*map(self._ready, locks), *statements]
        losses: list[Exception] = []
        with self._named():
            answers = await self._answered(statements, NEWEST_STATE, losses)
        results: list[ThreadkeepError | None] = []
        for change, rows in zip(given, answers[-len(given) :], strict=True):
            refused = refusal(rows, change)
            done = losses and isinstance(refused, ThreadExistsError)
            results.append(None if done and await self._is_copied(change) else refused)
        return results

    async def _is_copied(self, change: Change) -> bool:
        """Whether the target of a copy, whose answer was lost, is that copy."""
        if not isinstance(change, CopyThread):
            return False
        source, target = await self.fetch([ReadThread(change.source), ReadThread(change.target)])
        found = {stored.row for stored in target.checkpoints}
        return found <= {stored.row for stored in source.checkpoints}

    async def migrate(self) -> None:
        """Make the tables, or bring them to this release's version, and see to partitions.

        Any number of processes may do so at once. Needs the right to create tables.

        Raises:
            NewerDatabaseError: the tables are of a later release.
            NotOursError: the schema holds another program's tables; they are left as they are.
            UnreachableError, BackendError: the server failed; do it again.
        """
        with self._named(migrating=True):
            await self._tried(self._migrate)

    async def _migrate(self) -> None:
        plan = self._plan()
        answer: Any = None
        error: Exception | None = None
        async with self._source.lend() as conn:
            while True:
                try:
                    step = plan.send(answer) if error is None else plan.throw(error)
                except StopIteration:
                    return
                answer = error = None
                try:
                    message = Message([self._ready(step)], NEWEST_STATE)
                    (answer,) = await self._source.send(conn, message)
                except DRIVER_ERRORS as failure:
                    error = failure

    def _plan(self) -> migrations.Plan:
        yield from migrations.plan(self._schema)
        if self._partition_by == "month":
            yield from partitions.plan(self._schema, now())

    async def identity(self) -> str:
        """Name the schema among those of all servers. See `Backend.identity`."""
        asked = self._ready(Statement(_IDENTITY, (self._schema,)))
        with self._named():
            ((row,),) = await self._answered([asked], ONE_STATE)
        return "-".join(map(str, row))

    async def scrub(self, *, rewrite: bool) -> Scrubbed:
        """VACUUM the schema's tables, or write them anew. See `Backend.scrub`.

        Needs the rights of the tables' owner; a connection that was given must be in autocommit.
        """
        server = scrubbing.Server(self._said, self._source.pause)
        with self._named():
            return await self._tried(lambda: scrubbing.scrub(server, rewrite=rewrite))

    async def _said(self, statement: Statement) -> tuple[Rows, Sequence[str]]:
        """The rows of a statement that is sent by itself, and what the server warned of."""
        warnings: list[str] = []

        def note(told: Diagnostic) -> None:
            if told.severity_nonlocalized == "WARNING":
                warnings.append(str(told.message_primary))

        async with self._source.lend() as conn:
            conn.add_notice_handler(note)
            try:
                message = Message([self._ready(statement)], NEWEST_STATE)
                (rows,) = await self._source.send(conn, message)
            finally:
                conn.remove_notice_handler(note)
        return rows, warnings

    async def close(self) -> None:
        """Close all connections of ours; later calls raise `ClosedError`. Idempotent."""
        await self._source.close()

    def _ready(self, statement: Statement) -> Statement:
        """The statement with the schema's name in it."""
        return statement._replace(sql=statement.sql.replace("{schema}", self._schema))

    async def _answered(
        self,
        statements: Sequence[Statement],
        isolation: str,
        losses: list[Exception] | None = None,
    ) -> list[Rows]:
        """The rows of each statement; tried again where a failure passes.

        Lost connections are added to `losses`: what was sent over them may have been done.
        """
        message = Message(statements, isolation, self._before)
        return await self._tried(partial(self._send, message), losses)

    async def _tried(
        self, call: Callable[[], Awaitable[T]], losses: list[Exception] | None = None
    ) -> T:
        """What the call returns; made again where a failure passes. See `_answered`."""
        try:
            return await call()
        except DRIVER_ERRORS as error:
            if not passes(error):
                raise
            lost = [error] if lost_connection(error) else []
        if lost:
            await self._source.mend()
        if losses is not None:
            losses += lost
        return await again(call, passes, self._source.pause)

    async def _send(self, message: Message) -> list[Rows]:
        async with self._source.lend() as conn:
            return await self._source.send(conn, message)

    @contextmanager
    def _named(self, *, migrating: bool = False) -> Iterator[None]:
        """Raise the driver's errors as ours."""
        try:
            yield
        except DRIVER_ERRORS as error:
            raise mapped(error, self._server, migrating=migrating) from error


class PostgresBackend(BlockingFace[AsyncPostgresBackend]):
    """Rows in a PostgreSQL database, for blocking calls; `asynchronous` serves awaiting ones.

    Args:
        database: a URL (which may have the parameters `schema` and `partition_by`) or another
            conninfo of libpq, or a pool or connection of psycopg, which stays the program's own.
        schema, min_size, max_size, timeout, prepare_threshold, statement_timeout,
        application_name, partition_by: see `Settings`.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: an option is invalid.
    """

    counts_for_all = True
    has_identity = True
    commits_groups = True

    def __init__(
        self, database: str | ConnectionPool[Any] | Connection[Any], **options: Any
    ) -> None:
        if isinstance(database, str):
            settings = settings_of(database, **options)
            source, loops = OwnPool(settings), OwnAsyncPools(settings)
            native = AsyncPostgresBackend(loops, settings)
            super().__init__(AsyncPostgresBackend(source, settings), native, loops)
        else:
            settings = Settings(_conninfo_of(database), **options)
            face = AsyncPostgresBackend(_given(database), settings)
            super().__init__(face, None, None)

    def migrate(self) -> None:
        """See `AsyncPostgresBackend.migrate`."""
        finish(self._face.migrate())

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """See `AsyncPostgresBackend.scrub`."""
        return finish(self._face.scrub(rewrite=rewrite))

    def identity(self) -> str:
        """See `AsyncPostgresBackend.identity`."""
        return finish(self._face.identity())


def now() -> datetime:
    """The time by which partitions are made ahead."""
    return datetime.now(UTC)


def _given(database: object) -> Source:
    if isinstance(database, ConnectionPool):
        return GivenPool(database)
    if isinstance(database, Connection):
        return GivenConnection(database)
    raise InvalidArgumentError(
        f"{type(database).__name__} is no PostgreSQL database.",
        hint="Give a URL, or a ConnectionPool or a Connection of psycopg.",
    )


def opened(
    database: Any, pipe: Any = None, **options: Any
) -> PostgresBackend | AsyncPostgresBackend:
    """The backend for whatever a program gives: see `PostgresBackend`.

    An async pool or connection of psycopg gives a backend that only awaiting calls can use.
    A pipeline (`pipe`) may be open on a connection: what is committed is synced there.

    Raises:
        InvalidArgumentError: also for a pool with a pipe, which belongs to one connection.
    """
    if pipe is not None and not isinstance(database, Connection | AsyncConnection):
        raise InvalidArgumentError(
            "A pipeline belongs to one connection.", hint="Give that connection, or no pipe."
        )
    if isinstance(database, AsyncConnectionPool):
        settings = Settings(_conninfo_of(database), **options)
        return AsyncPostgresBackend(GivenAsyncPool(database), settings)
    if isinstance(database, AsyncConnection):
        settings = Settings(_conninfo_of(database), **options)
        return AsyncPostgresBackend(GivenAsyncConnection(database), settings)
    return PostgresBackend(database, **options)


def _conninfo_of(database: Any) -> str:
    """Where it is connected to, for errors; "" where it cannot tell."""
    info = getattr(database, "info", None)
    found = getattr(info, "dsn", None) or getattr(database, "conninfo", "")
    return found if isinstance(found, str) else ""
