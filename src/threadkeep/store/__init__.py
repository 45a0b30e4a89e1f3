"""Long-term memory: stores of items, with search by filter, meaning and words."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Self, Unpack

from threadkeep._run.driver import in_thread
from threadkeep._stores.open import DatabaseOptions, open_in, open_url
from threadkeep._stores.options import listed
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.redis import RedisOptions
from threadkeep._stores.sqlite import SqliteOptions
from threadkeep._stores.sqlite.opening import GivenDatabase
from threadkeep.store.embedding import LocalEmbeddings
from threadkeep.store.items import FoundItem, ItemVersion, StoredItem, StoreOptions
from threadkeep.store.store import Store
from threadkeep.store.transfer import ItemEraseReport

__all__ = [
    "AsyncPostgresStore",
    "AsyncRedisStore",
    "AsyncSqliteStore",
    "FoundItem",
    "InMemoryStore",
    "ItemEraseReport",
    "ItemVersion",
    "LocalEmbeddings",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "Store",
    "StoredItem",
    "open_store",
]


# -- options -------------------------------------------------------------------------


class SqliteStoreOptions(StoreOptions, SqliteOptions, total=False):
    """Options of `SqliteStore`."""


class PostgresStoreOptions(StoreOptions, PostgresOptions, total=False):
    """Options of `PostgresStore`."""


class RedisStoreOptions(StoreOptions, RedisOptions, total=False):
    """Options of `RedisStore`."""


class OpenStoreOptions(StoreOptions, DatabaseOptions, total=False):
    """Options of `open_store`: options of stores, and of all databases."""


@listed(OpenStoreOptions)
def open_store(url: str, **options: Unpack[OpenStoreOptions]) -> Store:
    """Open the store that a URL names. Use it under `with` or `async with`.

    Args:
        url: as `threadkeep.open_saver` takes it.
        **options: options of stores, and of the URL's database.

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid.
    """
    backend, own = open_url(url, StoreOptions, options)
    return Store(backend, owned=True, **own)


class MemoryStore(Store):
    """A store in this process, in place of LangGraph's `InMemoryStore`.

    Args:
        **options: see `help(MemoryStore.__init__)`.
    """

    @listed(StoreOptions)
    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        backend, own = open_in("memory", StoreOptions, options, "memory://")
        super().__init__(backend, owned=True, **own)


class SqliteStore(Store):
    """A store in one SQLite file, in place of LangGraph's `SqliteStore`.

    The file may be a saver's.

    Args:
        conn: the file's path, or a connection of sqlite3 or aiosqlite, whose file is opened.
        **options: see `help(SqliteStore.__init__)`.
    """

    is_setup = True
    """For programs that call `setup` if it is False: the first use creates the tables."""

    @listed(SqliteStoreOptions)
    def __init__(self, conn: GivenDatabase, **options: Unpack[SqliteStoreOptions]) -> None:
        backend, own = open_in("sqlite", StoreOptions, options, conn)
        super().__init__(backend, owned=True, **own)
        self._offer(conn, backend)

    @classmethod
    @listed(SqliteStoreOptions)
    def from_conn_string(cls, conn_string: str, **options: Unpack[SqliteStoreOptions]) -> Self:
        """Open a file (or ":memory:"). Use it under `with` or `async with`."""
        return cls(conn_string, **options)


class PostgresStore(Store):
    """A store in a PostgreSQL database, in place of LangGraph's `PostgresStore`.

    Call `setup()` once before the first use. Semantic search needs pgvector in the database.

    Args:
        conn: a URL (or another conninfo of libpq), or a pool or connection of psycopg.
        pipe: a pipeline of psycopg on that connection, not needed.
        **options: see `help(PostgresStore.__init__)`.
    """

    @listed(PostgresStoreOptions)
    def __init__(
        self, conn: Any, pipe: Any = None, **options: Unpack[PostgresStoreOptions]
    ) -> None:
        backend, own = open_in("postgres", StoreOptions, options, conn, pipe)
        super().__init__(backend, owned=True, **own)
        self._offer(conn, backend)

    @classmethod
    @listed(PostgresStoreOptions)
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,
        pool_config: Any = None,
        **options: Unpack[PostgresStoreOptions],
    ) -> Self:
        """Open the database of a URL. Use it under `with` or `async with`.

        Args:
            conn_string: the URL.
            pipeline: has no effect: calls are pipelined if that helps.
            pool_config: `min_size` and `max_size` of the pool, as LangGraph takes them.
            **options: as for `PostgresStore`.
        """
        del pipeline
        sizes = {name: (pool_config or {}).get(name) for name in ("min_size", "max_size")}
        given: Any = {name: size for name, size in sizes.items() if size is not None} | options
        return cls(conn_string, **given)


class RedisStore(Store):
    """A store on a Redis or Valkey server, or a cluster. No modules are needed.

    Args:
        redis_url: a URL, or a client of redis-py: see `RedisSaver`.
        redis_client: the client, as LangGraph's `AsyncRedisStore` names it.
        **options: see `help(RedisStore.__init__)`.
    """

    @listed(RedisStoreOptions)
    def __init__(
        self,
        redis_url: Any = None,
        *,
        redis_client: Any = None,
        **options: Unpack[RedisStoreOptions],
    ) -> None:
        server = redis_url if redis_client is None else redis_client
        backend, own = open_in("redis", StoreOptions, options, server)
        super().__init__(backend, owned=True, **own)
        self._offer(server, backend)

    @classmethod
    @listed(RedisStoreOptions)
    def from_conn_string(cls, conn_string: str, **options: Unpack[RedisStoreOptions]) -> Self:
        """Open the server of a URL. Use it under `with` or `async with`."""
        return cls(conn_string, **options)


class _Awaited(Store):
    """Methods that are awaited, as in LangGraph's async stores."""

    async def setup(self) -> None:  # type: ignore[override] # as the classes that it replaces
        """Make or migrate the tables (see `Store.setup`)."""
        await self.asetup()

    async def sweep_ttl(self) -> int:  # type: ignore[override] # likewise
        """Remove expired items, and return their number."""
        return await self.asweep_ttl()

    async def start_ttl_sweeper(  # type: ignore[override] # likewise
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Future[None]:
        return asyncio.wrap_future(super().start_ttl_sweeper(sweep_interval_minutes))

    async def stop_ttl_sweeper(  # type: ignore[override] # likewise
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as LangGraph's
    ) -> bool:
        return await in_thread(partial(super().stop_ttl_sweeper, timeout))


class AsyncPostgresStore(_Awaited, PostgresStore):
    """`PostgresStore` whose `setup` is awaited, in place of LangGraph's `AsyncPostgresStore`."""


class AsyncSqliteStore(_Awaited, SqliteStore):
    """`SqliteStore` whose `setup` is awaited, in place of LangGraph's `AsyncSqliteStore`."""


class AsyncRedisStore(_Awaited, RedisStore):
    """`RedisStore` whose `setup` is awaited, in place of LangGraph's `AsyncRedisStore`."""


InMemoryStore = MemoryStore
