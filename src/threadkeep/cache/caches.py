"""Caches by name: each is a `Cache` that makes its own backend."""

from __future__ import annotations

from typing import Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep.backends.base import AsyncBackend, Backend
from threadkeep.backends.open import open_backend, open_postgres, open_redis
from threadkeep.backends.sqlite import Database, SqliteBackend
from threadkeep.cache.cache import Cache, CacheOptions
from threadkeep.errors import InvalidArgumentError

_OPTIONS = tuple(CacheOptions.__dataclass_fields__)


class MemoryCache(Cache):
    """A cache in this process's memory, in place of LangGraph's `InMemoryCache`.

    Args:
        serde: see `open_cache`.
        **options: see `open_cache`.
    """

    def __init__(self, *, serde: SerializerProtocol | None = None, **options: Any) -> None:
        own = _options(options, serde)
        super().__init__(open_backend("memory://", **options), own)


class SqliteCache(Cache):
    """A cache in a SQLite file, in place of LangGraph's `SqliteCache`.

    Args:
        path: the file, which may be a saver's; not that of LangGraph's cache.
        serde: see `open_cache`.
        synchronous: "normal": a power cut may take the last entries; "full": it does not.
        busy_timeout: seconds to wait for another process that is writing.
        **options: see `open_cache`.
    """

    def __init__(
        self,
        path: Database,
        *,
        serde: SerializerProtocol | None = None,
        synchronous: Literal["full", "normal"] = "normal",
        busy_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        own = _options(options, serde)
        _refuse(options)
        backend = SqliteBackend(path, synchronous=synchronous, busy_timeout=busy_timeout)
        super().__init__(backend, own)


class PostgresCache(Cache):
    """A cache in a PostgreSQL schema; call `setup` once, as for `PostgresSaver`.

    Args:
        conn: a URL, or a pool or connection of psycopg: see `PostgresSaver`.
        serde: see `open_cache`.
        **options: those of `open_cache`, and of the connections: see `PostgresSaver`.
    """

    def __init__(
        self, conn: Any, *, serde: SerializerProtocol | None = None, **options: Any
    ) -> None:
        own = _options(options, serde)
        super().__init__(open_postgres(conn, **options), own)


class RedisCache(Cache):
    """A cache in Redis, in place of LangGraph's `RedisCache`.

    Args:
        redis: a URL, or a client of redis-py, blocking or async: see `RedisSaver`.
        serde: see `open_cache`.
        prefix: the beginning of all keys.
        **options: those of `open_cache`, and of the connections: see `RedisSaver`.
    """

    def __init__(
        self,
        redis: Any,
        *,
        serde: SerializerProtocol | None = None,
        prefix: str | None = None,
        **options: Any,
    ) -> None:
        own = _options(options, serde)
        if prefix is not None:
            options["prefix"] = prefix
        super().__init__(open_redis(redis, **options), own)


InMemoryCache = MemoryCache


def open_cache(url: str, **options: Any) -> Cache:
    """Open a cache in the store that a URL names; use it under `with` or `async with`.

    Args:
        url: as for `threadkeep.open_saver`; the store may be a saver's.
        **options: those of the store, and
            `serde`: a serializer for the values, which may encrypt, in place of the codec;
            `lease` (seconds, or a timedelta; None, the default, for never): of many who miss one
            key at the same time, in any process, one computes its value, and the others wait for
            it as long as this at most;
            `max_bytes` (256 MiB) and `max_entries` (100,000): beyond about these, the entries
            that were not used for longest are evicted.

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or invalid; nothing was opened.
    """
    own = _options(options, None)
    if url[:9].lower() == "sqlite://":
        options.setdefault("synchronous", "normal")
    return Cache(open_backend(url, **options), own)


def cache_over(backend: Backend | AsyncBackend, **options: Any) -> Cache:
    """Return a cache in the store of a saver, over its connections: `cache_over(saver.backend)`.

    Close it before the saver, which closes the connections. In memory, it is the cache's own.

    Args:
        backend: the saver's backend.
        **options: see `open_cache`.

    Raises:
        InvalidArgumentError: an option is unknown or invalid, or the backend is not one of
            threadkeep's own.
        OpenError: the store is read only, and has no cache.
    """
    own = _options(options, None)
    _refuse(options)
    return Cache(backend, own, owns=False)


def _options(options: dict[str, Any], serde: SerializerProtocol | None) -> CacheOptions:
    """Remove the options of a cache from those given, and check them."""
    own = {name: options.pop(name) for name in _OPTIONS if name in options}
    return CacheOptions(**({"serde": serde} | own))


def _refuse(options: dict[str, Any]) -> None:
    for name in options:
        raise InvalidArgumentError(
            f"Unknown option: {name!r}.", hint=f"Options of a cache: {', '.join(_OPTIONS)}."
        )
