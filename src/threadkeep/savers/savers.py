"""Savers by database and by URL. Each opens its own backend."""

from __future__ import annotations

from typing import Any, Self, Unpack

from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._stores.open import open_in, open_url
from threadkeep._stores.options import listed
from threadkeep._stores.sqlite.opening import GivenDatabase
from threadkeep.savers.options import (
    OpenSaverOptions,
    PostgresSaverOptions,
    RedisSaverOptions,
    SaverOptions,
    SqliteSaverOptions,
)
from threadkeep.savers.saver import Saver


class MemorySaver(Saver):
    """A saver that keeps everything in this process, in place of LangGraph's `InMemorySaver`.

    Args:
        **options: see `help(MemorySaver.__init__)`.

    Raises:
        InvalidArgumentError: an option is unknown or invalid.
    """

    @listed(SaverOptions)
    def __init__(self, **options: Unpack[SaverOptions]) -> None:
        backend, own = open_in("memory", SaverOptions, options, "memory://")
        super().__init__(backend, **own)


class SqliteSaver(Saver):
    """A saver on one SQLite file, in place of LangGraph's `SqliteSaver` and `AsyncSqliteSaver`.

    Args:
        conn: the file's path, or a connection of sqlite3 or aiosqlite. The saver opens its own
            connections to that file. You close yours. Nothing can be saved while your program has
            a write transaction open on it.
        **options: see `help(SqliteSaver.__init__)`.

    Raises:
        OpenError: or a subclass, if the file cannot be opened. In an event loop the file is
            opened later, and `async with`, `asetup()` or the first use raises the error.
        InvalidArgumentError: an option is unknown or invalid, and nothing was opened.
    """

    is_setup = True
    """For programs that call `setup` if it is False: opening a file creates its tables."""

    @listed(SqliteSaverOptions)
    def __init__(self, conn: GivenDatabase, **options: Unpack[SqliteSaverOptions]) -> None:
        backend, own = open_in("sqlite", SaverOptions, options, conn)
        super().__init__(backend, **own)
        self._offer(conn, backend)

    @classmethod
    @listed(SqliteSaverOptions)
    def from_conn_string(cls, conn_string: str, **options: Unpack[SqliteSaverOptions]) -> Self:
        """Open a file (or ":memory:"). Use it under `with` or `async with`."""
        return cls(conn_string, **options)


class PostgresSaver(Saver):
    """A saver on a PostgreSQL database, in place of LangGraph's `PostgresSaver`.

    Sync and async methods use separate pools, each opened at its first use. Call `setup()` once
    before the first use, or run `threadkeep migrate URL`.

    Args:
        conn: a URL (or another conninfo of libpq), or a pool or connection of psycopg, which you
            close. With an async pool or connection, only the async methods work. Nothing can be
            saved over a connection while your program has a transaction open on it.
        pipe: a pipeline of psycopg on that connection. Not needed: calls are always pipelined.
        serde: a LangGraph serializer to use in place of threadkeep's codec.
        **options: see `help(PostgresSaver.__init__)`.

    Raises:
        OpenError: the URL cannot be read, or psycopg is not installed.
        InvalidArgumentError: an option is unknown or invalid, or you gave a pool with a pipe, and
            nothing was opened.
    """

    @listed(PostgresSaverOptions)
    def __init__(
        self,
        conn: Any,
        pipe: Any = None,
        serde: SerializerProtocol | None = None,
        **options: Unpack[PostgresSaverOptions],
    ) -> None:
        given = {**options, "serde": serde}
        backend, own = open_in("postgres", SaverOptions, given, conn, pipe)
        super().__init__(backend, **own)
        self._offer(conn, backend)

    @classmethod
    @listed(PostgresSaverOptions)
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,
        serde: SerializerProtocol | None = None,
        **options: Unpack[PostgresSaverOptions],
    ) -> Self:
        """Open the database of a URL. Use it under `with` or `async with`.

        Args:
            conn_string: the URL.
            pipeline: has no effect: calls are always pipelined.
            serde: as for `PostgresSaver`.
            **options: as for `PostgresSaver`.
        """
        del pipeline
        return cls(conn_string, serde=serde, **options)


class AsyncPostgresSaver(PostgresSaver):
    """`PostgresSaver` with an async `setup`, in place of LangGraph's `AsyncPostgresSaver`."""

    async def setup(self) -> None:  # type: ignore[override] # as the class that it replaces
        """Create or migrate the tables (see `Saver.setup`)."""
        await self.asetup()


class RedisSaver(Saver):
    """A saver on a Redis or Valkey server (6.2 or newer, no modules), or on a cluster.

    Sync and async methods use separate connections, each opened at its first use. The server's
    settings decide which data survives its crash: see docs/operating-redis.md.

    Args:
        redis_url: a URL (`redis://`, `rediss://`, `unix://`, `redis+cluster://`,
            `redis+sentinel://`), or a client of redis-py (also of a cluster, also async), which
            you close. With an async client, don't call sync methods in the thread of its event
            loop.
        redis_client: the client, as LangGraph's class names it.
        **options: see `help(RedisSaver.__init__)`.

    Raises:
        OpenError: the URL cannot be read, or redis-py is not installed.
        InvalidArgumentError: an option is unknown or invalid, or the client has
            `decode_responses`, and nothing was opened.
    """

    @listed(RedisSaverOptions)
    def __init__(
        self,
        redis_url: Any = None,
        *,
        redis_client: Any = None,
        **options: Unpack[RedisSaverOptions],
    ) -> None:
        server = redis_url if redis_client is None else redis_client
        backend, own = open_in("redis", SaverOptions, options, server)
        super().__init__(backend, **own)
        self._offer(server, backend)

    @classmethod
    @listed(RedisSaverOptions)
    def from_conn_string(
        cls,
        conn_string: Any = None,
        *,
        redis_client: Any = None,
        **options: Unpack[RedisSaverOptions],
    ) -> Self:
        """Open the server of a URL. Use it under `with` or `async with`."""
        return cls(conn_string, redis_client=redis_client, **options)


@listed(OpenSaverOptions)
def open_saver(url: str, **options: Unpack[OpenSaverOptions]) -> Saver:
    """Open the store that a URL names. Use it under `with` or `async with`.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`,
            `postgresql://user:password@host:5432/database`,
            `redis://user:password@host:6379/0`, `redis+cluster://host:6379` or `memory://`.
            Its query may have options of the database: `sqlite:///threads.db?busy_timeout=5`.
        **options: options of savers, and of the URL's database. Options that neither the call nor
            the URL sets are read from the environment, such as `THREADKEEP_BUSY_TIMEOUT`.

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid, and nothing was opened.
    """
    backend, own = open_url(url, SaverOptions, options)
    return Saver(backend, **own)


AsyncRedisSaver = RedisSaver
AsyncSqliteSaver = SqliteSaver
InMemorySaver = MemorySaver
