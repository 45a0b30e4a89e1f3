"""The PostgreSQL backend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep._core.engine.heads import Head, Move
from threadkeep._core.engine.rule_reads import ReadHead
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.committing import Ask, Asking, Heads, MakeMoves, awaited
from threadkeep._stores.database import AsyncDatabase
from threadkeep._stores.postgres import PostgresOptions, connections, maintenance, moves, reads
from threadkeep._stores.postgres.connections import (
    Answered,
    ConnectionSource,
    PostgresDatabase,
    PostgresSettings,
)
from threadkeep._stores.postgres.message_words import creating_words, dropping_words
from threadkeep._stores.postgres.messages import (
    NEWEST_STATE,
    ONE_STATE,
    has_begun,
    is_idle,
    sent_together,
)
from threadkeep._stores.postgres.search_path import conninfo_of
from threadkeep._stores.postgres.statement import DRIVER_ERRORS, Rows, Statement, passes
from threadkeep._stores.postgres.threads import item_usage
from threadkeep._stores.sync_bridge import BlockingFace, result
from threadkeep.errors import InvalidArgumentError, NotSetUpError, OpenError

if TYPE_CHECKING:
    from threadkeep._stores.items.records import SearchOptions
    from threadkeep._stores.postgres.cache import PostgresEntries
    from threadkeep._stores.postgres.items import AsyncPostgresItems
    from threadkeep._stores.postgres.message_index import PostgresIndex

T = TypeVar("T")

# (A promoted replica keeps the identity, a copy by pg_dump gets another.)
_IDENTITY = """
SELECT s.system_identifier, d.oid, %s::regnamespace::oid FROM pg_control_system() s, pg_database d
WHERE d.datname = current_database()
"""


class AsyncPostgresBackend(PostgresDatabase, AsyncDatabase):
    """Rows in a PostgreSQL database, over connections that are awaited."""

    has_identity = True
    counts_usage = True
    indexes_messages = True

    @property
    def given_lock(self) -> Any:
        """The lock that each call over the program's own connection takes, or None."""
        return getattr(self._source, "lock", None)

    def __init__(
        self, source: ConnectionSource, settings: PostgresSettings, known: Heads | None = None
    ) -> None:
        PostgresDatabase.__init__(self, source, settings)
        AsyncDatabase.__init__(self, known)

    async def fetch(self, reads_: Sequence[Any], answered: Answered | None = None) -> list[Any]:
        """Answer each read, in order, all from one state. See `Backend.fetch`."""
        found = self.heads.found
        return await self.replies([reads.query(read, found) for read in reads_], answered)

    async def make(
        self, many: Sequence[Move], answered: Answered | None = None
    ) -> list[Head | None]:
        """Make moves, in one round trip. See `Database.make`."""
        made: list[Head | None] = [None] * len(many)
        send = answered or self.answered
        for numbers, statements in moves.statements(many):
            try:
                *_, rows = await send(statements, NEWEST_STATE)
            except NotSetUpError:
                if all(many[number].words is None for number in numbers):
                    raise
                await self.keep_words(kept=True)
                *_, rows = await send(statements, NEWEST_STATE)
            for (place,) in rows:
                number = numbers[place - 1]
                made[number] = moves.made(many[number])
        return made

    async def keep_words(self, *, kept: bool) -> None:
        plan = creating_words if kept else dropping_words
        await self.carry_out(lambda: plan(self.schema))

    async def carried_out(self, steps: Asking[T], *, was_refused: bool) -> T:
        if not self._source.may_hold:
            return await super().carried_out(steps, was_refused=was_refused)
        turn = Turn(self, was_refused=was_refused)
        try:
            return await awaited(steps, turn.answer)
        finally:
            await turn.end()

    async def identity(self) -> str:
        """Name the schema uniquely among all servers. See `Backend.identity`."""
        statement = Statement(_IDENTITY, (self.schema,))
        ((row,),) = await self.answered([statement], ONE_STATE)
        return "-".join(map(str, row))

    async def item_usage(self, now: int) -> ItemUsage:
        return await item_usage(self, now)

    async def scrub(self, *, rewrite: bool) -> ScrubReport:
        """VACUUM the schema's tables, or rewrite them. See `Backend.scrub`.

        Needs the rights of the tables' owner. A given connection must be in autocommit.
        """
        with self.mapped_errors():
            return await self.retried(partial(maintenance.scrub, self, rewrite=rewrite))

    def items(self, options: SearchOptions) -> AsyncPostgresItems:
        from threadkeep._stores.postgres.items import AsyncPostgresItems  # noqa: PLC0415 - only for a store

        return AsyncPostgresItems(self, options)

    def cache(self) -> PostgresEntries:
        from threadkeep._stores.postgres.cache import PostgresEntries  # noqa: PLC0415 - only for a cache

        return PostgresEntries(self)

    async def close(self) -> None:
        await self._source.close()


# -- commits that take turns ---------------------------------------------------------------

# A client that knows a thread's newest head commits in one request, so one that must read it first
# can lose to others again and again. Once a move was refused, the head is read under a lock of its
# row, in the transaction of the move that builds on it.
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
            self._first = (_BEGIN, _LIMIT, *self._backend.before, moves.lock(names))
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


# -- opening --------------------------------------------------------------------------------


class PostgresBackend(BlockingFace[AsyncPostgresBackend]):
    """Rows in a PostgreSQL database, for blocking calls. `asynchronous` serves awaiting ones."""

    settings: PostgresSettings | None = None
    """Settings, unless the connections are the program's own."""

    def __init__(
        self,
        database: str | ConnectionPool[Any] | Connection[Any],
        **options: Unpack[PostgresOptions],
    ) -> None:
        if not isinstance(database, str):
            super().__init__(_backend_over(database, ConnectionPool, Connection, options))
            return
        self.settings = settings = connections.settings_of(database, **options)
        loops = connections.OwnAsyncPools(settings)
        known = Heads()
        native = AsyncPostgresBackend(loops, settings, known)
        blocking = AsyncPostgresBackend(connections.OwnPool(settings), settings, known)
        super().__init__(blocking, native, loops)

    @property
    def given_lock(self) -> Any:
        return self.face.given_lock

    def message_index(self) -> PostgresIndex | None:
        """None if the connections are the program's own."""
        if self.settings is None:
            return None
        from threadkeep._stores.postgres.message_index import PostgresIndex  # noqa: PLC0415 - only for layered memory

        return PostgresIndex(self.face)


def opened(
    database: Any, pipe: Any = None, **options: Unpack[PostgresOptions]
) -> PostgresBackend | AsyncPostgresBackend:
    """Open the backend of a database: see `PostgresBackend`.

    With an async pool or connection of psycopg, the backend serves awaiting calls only. A pipeline
    (`pipe`) may be open on a connection: commits synchronize it.
    """
    if pipe is not None and not isinstance(database, Connection | AsyncConnection):
        raise InvalidArgumentError(
            "A pipeline belongs to one connection.", hint="Use that connection, or no pipe."
        )
    if isinstance(database, AsyncConnectionPool | AsyncConnection):
        return _backend_over(database, AsyncConnectionPool, AsyncConnection, options)
    return PostgresBackend(database, **options)


def _backend_over(
    given: Any, pool: type, connection: type, options: PostgresOptions
) -> AsyncPostgresBackend:
    if not isinstance(given, (pool, connection)):
        raise InvalidArgumentError(
            f"{type(given).__name__} is no PostgreSQL database.",
            hint="Use a URL, or a ConnectionPool or a Connection of psycopg.",
        )
    conninfo = ""
    with suppress(OpenError):  # (a pool may compute it)
        conninfo = conninfo_of(given)
    return AsyncPostgresBackend(connections.Given(given), PostgresSettings(conninfo, options))
