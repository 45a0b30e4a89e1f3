"""Stores by URL, and under the names that LangGraph's stores have."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal, Self

from threadkeep._run.layers.driver import in_thread
from threadkeep._stores.open import open_backend, open_in
from threadkeep._stores.sqlite import SqliteBackend
from threadkeep._stores.sqlite.opening import Database
from threadkeep.savers.options import pop_named
from threadkeep.store.store import Store

_OWN = ("index", "ttl", "serde", "history", "group_commit")


def open_store(url: str, **options: Any) -> Store:
    """Open the store that a URL names; use it under `with` or `async with`.

    Args:
        url: as `threadkeep.open_saver` takes it.
        **options: those of `Store`, and those of the backend (see `threadkeep.SqliteSaver`,
            `PostgresSaver` and `RedisSaver`).

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid.
    """
    own = pop_named(options, _OWN)
    return Store(open_backend(url, **options), owned=True, **own)


class MemoryStore(Store):
    """A store in this process, in place of LangGraph's `InMemoryStore`.

    Args:
        **options: those of `Store`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(open_backend("memory://"), owned=True, **options)


class SqliteStore(Store):
    """A store in one SQLite file, in place of LangGraph's `SqliteStore`.

    The file may be that of a saver.

    Args:
        conn: the file's path, or a connection of sqlite3 or aiosqlite, of which the file is taken.
        synchronous: see `SqliteSaver`.
        busy_timeout: see `SqliteSaver`.
        **options: those of `Store`.
    """

    def __init__(
        self,
        conn: Database,
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        backend = SqliteBackend(conn, synchronous=synchronous, busy_timeout=busy_timeout)
        super().__init__(backend, owned=True, **options)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Open a file (or ":memory:"); use it under `with` or `async with`."""
        return cls(conn_string, **options)


class PostgresStore(Store):
    """A store in a PostgreSQL database, in place of LangGraph's `PostgresStore`.

    Call `setup()` once before the first use. Semantic search needs pgvector in the database.

    Args:
        conn: a URL (or another conninfo of libpq), or a pool or connection of psycopg.
        pipe: a pipeline of psycopg on that connection; not needed.
        **options: those of `Store`, and those of the database: see `PostgresSaver`.
    """

    def __init__(self, conn: Any, pipe: Any = None, **options: Any) -> None:
        own = pop_named(options, _OWN)
        super().__init__(open_in("postgres", conn, pipe, **options), owned=True, **own)

    @classmethod
    def from_conn_string(
        cls, conn_string: str, *, pipeline: bool = False, pool_config: Any = None, **options: Any
    ) -> Self:
        """Open the database of a URL; use it under `with` or `async with`.

        Args:
            conn_string: the URL.
            pipeline: has no effect: calls are pipelined where it helps.
            pool_config: `min_size` and `max_size` of the pool, as LangGraph takes them.
            **options: those of `PostgresStore`.
        """
        del pipeline
        sizes = {name: (pool_config or {}).get(name) for name in ("min_size", "max_size")}
        return cls(conn_string, **{k: v for k, v in sizes.items() if v is not None} | options)


class RedisStore(Store):
    """A store on a Redis or Valkey server, or a cluster; no modules are needed.

    Args:
        redis_url: a URL, or a client of redis-py: see `RedisSaver`.
        **options: those of `Store`, and `prefix`, `max_connections` and `timeout` of `RedisSaver`.
    """

    def __init__(self, redis_url: Any, **options: Any) -> None:
        own = pop_named(options, _OWN)
        super().__init__(open_in("redis", redis_url, **options), owned=True, **own)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Open the server of a URL; use it under `with` or `async with`."""
        return cls(conn_string, **options)


class _Awaited(Store):
    """Methods that are awaited, as in LangGraph's async stores."""

    async def setup(self) -> None:  # type: ignore[override] # as the classes that it replaces
        """Make or migrate the tables; see `Store.setup`."""
        await self.asetup()

    async def sweep_ttl(self) -> int:  # type: ignore[override] # likewise
        """Remove expired items; return how many were removed."""
        return await self.asweep_ttl()

    async def start_ttl_sweeper(  # type: ignore[override] # likewise
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Future[None]:
        """See `Store.start_ttl_sweeper`."""
        return asyncio.wrap_future(super().start_ttl_sweeper(sweep_interval_minutes))

    async def stop_ttl_sweeper(  # type: ignore[override] # likewise
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as LangGraph's
    ) -> bool:
        """See `Store.stop_ttl_sweeper`."""
        return await in_thread(partial(super().stop_ttl_sweeper, timeout))


class AsyncPostgresStore(_Awaited, PostgresStore):
    """`PostgresStore` whose `setup` is awaited, in place of LangGraph's `AsyncPostgresStore`."""


class AsyncSqliteStore(_Awaited, SqliteStore):
    """`SqliteStore` whose `setup` is awaited, in place of LangGraph's `AsyncSqliteStore`."""


class AsyncRedisStore(_Awaited, RedisStore):
    """`RedisStore` whose `setup` is awaited, in place of LangGraph's `AsyncRedisStore`."""


InMemoryStore = MemoryStore
