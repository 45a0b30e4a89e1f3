"""Caches by URL, and under the names that LangGraph's caches have."""

from __future__ import annotations

from typing import Any, Literal

from threadkeep._stores.open import open_backend, open_in
from threadkeep._stores.sqlite import Database, SqliteBackend
from threadkeep.cache.cache import NodeCache
from threadkeep.savers.options import pop_named

_OWN = ("serde", "lease", "max_bytes", "max_entries")


def open_cache(url: str, **options: Any) -> NodeCache:
    """Open a cache in the store that a URL names; use it under `with` or `async with`.

    Args:
        url: as `threadkeep.open_saver` takes it; the store may be a saver's.
        **options: those of `NodeCache`, and those of the backend (see `SqliteCache`,
            `threadkeep.PostgresSaver` and `RedisSaver`).

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid.
    """
    own = pop_named(options, _OWN)
    if isinstance(url, str) and url[:9].lower() == "sqlite://":
        options.setdefault("synchronous", "normal")
    return NodeCache(open_backend(url, **options), owned=True, **own)


class MemoryCache(NodeCache):
    """A cache in this process, in place of LangGraph's `InMemoryCache`.

    Args:
        **options: those of `NodeCache`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(open_backend("memory://"), owned=True, **options)


class SqliteCache(NodeCache):
    """A cache in a SQLite file, in place of LangGraph's `SqliteCache`.

    Args:
        path: the file, which may be that of a saver, but not that of LangGraph's cache.
        synchronous: "normal": a power cut may take the last entries; "full": it does not.
        busy_timeout: seconds to wait for another process that is writing.
        **options: those of `NodeCache`.
    """

    def __init__(
        self,
        path: Database,
        *,
        synchronous: Literal["full", "normal"] = "normal",
        busy_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        backend = SqliteBackend(path, synchronous=synchronous, busy_timeout=busy_timeout)
        super().__init__(backend, owned=True, **options)


class PostgresCache(NodeCache):
    """A cache in a PostgreSQL schema. Call `setup` once, as for `threadkeep.PostgresSaver`.

    Args:
        conn: a URL, or a pool or connection of psycopg.
        **options: those of `NodeCache`, and those of the connections: see `PostgresSaver`.
    """

    def __init__(self, conn: Any, **options: Any) -> None:
        own = pop_named(options, _OWN)
        super().__init__(open_in("postgres", conn, **options), owned=True, **own)


class RedisCache(NodeCache):
    """A cache in Redis, in place of LangGraph's `RedisCache`.

    Args:
        redis: a URL, or a client of redis-py, blocking or async.
        **options: those of `NodeCache`, and those of the client, such as `prefix`: see
            `threadkeep.RedisSaver`.
    """

    def __init__(self, redis: Any, **options: Any) -> None:
        own = pop_named(options, _OWN)
        super().__init__(open_in("redis", redis, **options), owned=True, **own)


InMemoryCache = MemoryCache
