"""The PostgreSQL backend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep._core.engine.heads import Head, Move
from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.committing import Asking, Heads, awaited
from threadkeep._stores.database import AsyncDatabase
from threadkeep._stores.postgres import PostgresOptions, connections, maintenance, moves, reads
from threadkeep._stores.postgres.connections import (
    Answered,
    ConnectionSource,
    PostgresDatabase,
    PostgresSettings,
)
from threadkeep._stores.postgres.messages import NEWEST_STATE, ONE_STATE
from threadkeep._stores.postgres.search_path import conninfo_of
from threadkeep._stores.postgres.statement import Statement
from threadkeep._stores.postgres.threads import item_usage
from threadkeep._stores.postgres.turns import Turn
from threadkeep._stores.sync_bridge import BlockingFace
from threadkeep.errors import InvalidArgumentError, OpenError

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
            *_, rows = await send(statements, NEWEST_STATE)
            for (place,) in rows:
                number = numbers[place - 1]
                made[number] = moves.made(many[number])
        return made

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
        """See `Backend.message_index`: None if the connections are the program's own."""
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
