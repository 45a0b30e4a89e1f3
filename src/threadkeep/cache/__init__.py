"""Caches of node results, in place of LangGraph's."""

from __future__ import annotations

from typing import Any, Unpack

from threadkeep._stores.open import DatabaseOptions, open_in, open_url
from threadkeep._stores.options import listed
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.redis import RedisOptions
from threadkeep._stores.sqlite import CACHE_DEFAULTS, SqliteOptions
from threadkeep._stores.sqlite.opening import GivenDatabase
from threadkeep.cache.cache import CacheOptions, NodeCache

__all__ = [
    "InMemoryCache",
    "MemoryCache",
    "NodeCache",
    "PostgresCache",
    "RedisCache",
    "SqliteCache",
    "open_cache",
]


# -- options -------------------------------------------------------------------------


class SqliteCacheOptions(CacheOptions, SqliteOptions, total=False):
    """Options of `SqliteCache`."""


class PostgresCacheOptions(CacheOptions, PostgresOptions, total=False):
    """Options of `PostgresCache`."""


class RedisCacheOptions(CacheOptions, RedisOptions, total=False):
    """Options of `RedisCache`."""


class OpenCacheOptions(CacheOptions, DatabaseOptions, total=False):
    """Options of `open_cache`: options of caches, and of all databases."""


@listed(OpenCacheOptions)
def open_cache(url: str, **options: Unpack[OpenCacheOptions]) -> NodeCache:
    """Open a cache in the store that a URL names. Use it under `with` or `async with`.

    Args:
        url: as `threadkeep.open_saver` takes it. The store may be a saver's.
        **options: options of caches, and of the URL's database. The default of `synchronous`
            is "normal" here.

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid.
    """
    backend, own = open_url(url, CacheOptions, options, "CACHE_DEFAULTS")
    return NodeCache(backend, owned=True, **own)


class MemoryCache(NodeCache):
    """A cache in this process, in place of LangGraph's `InMemoryCache`.

    Args:
        **options: see `help(MemoryCache.__init__)`.
    """

    @listed(CacheOptions)
    def __init__(self, **options: Unpack[CacheOptions]) -> None:
        backend, own = open_in("memory", CacheOptions, options, "memory://")
        super().__init__(backend, owned=True, **own)


class SqliteCache(NodeCache):
    """A cache in a SQLite file, in place of LangGraph's `SqliteCache`.

    Args:
        path: the file, which may be a saver's, but not LangGraph's cache.
        **options: see `help(SqliteCache.__init__)`.
    """

    @listed(SqliteCacheOptions, **CACHE_DEFAULTS)
    def __init__(self, path: GivenDatabase, **options: Unpack[SqliteCacheOptions]) -> None:
        backend, own = open_in("sqlite", CacheOptions, {**CACHE_DEFAULTS, **options}, path)
        super().__init__(backend, owned=True, **own)


class PostgresCache(NodeCache):
    """A cache in a PostgreSQL schema. Call `setup` once, as for `threadkeep.PostgresSaver`.

    Args:
        conn: a URL, or a pool or connection of psycopg.
        **options: see `help(PostgresCache.__init__)`.
    """

    @listed(PostgresCacheOptions)
    def __init__(self, conn: Any, **options: Unpack[PostgresCacheOptions]) -> None:
        backend, own = open_in("postgres", CacheOptions, options, conn)
        super().__init__(backend, owned=True, **own)


class RedisCache(NodeCache):
    """A cache in Redis, in place of LangGraph's `RedisCache`.

    Args:
        redis: a URL, or a client of redis-py, blocking or async.
        **options: see `help(RedisCache.__init__)`.
    """

    @listed(RedisCacheOptions)
    def __init__(self, redis: Any, **options: Unpack[RedisCacheOptions]) -> None:
        backend, own = open_in("redis", CacheOptions, options, redis)
        super().__init__(backend, owned=True, **own)


InMemoryCache = MemoryCache
