"""Backends by URL.

Errors say what to give, and show no part of a URL that may be a password.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.errors import InvalidArgumentError, OpenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from threadkeep.backends.base import AsyncBackend, Backend
    from threadkeep.backends.postgres.maintenance import Dumps
    from threadkeep.backends.redis.backend import HotRedis

_FORMS = (
    "Known are sqlite:///relative.db, sqlite:////absolute.db, sqlite:///:memory:,"
    " postgresql://user@host/database, redis://host:6379/0, redis+cluster://host:6379 and"
    " memory://."
)


def open_backend(url: str, **options: Any) -> Backend | AsyncBackend:
    """Open the backend that a URL names.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:` (in a
            path, `%` and two hex digits stand for a byte), a URL of libpq
            (`postgresql://...`, `postgres://...`; its parameters `schema` and `partition_by`
            are options of ours), one of redis-py (`redis://...`,
            `rediss://...`, `unix://...`) or of a cluster (`redis+cluster://...`,
            `rediss+cluster://...`), or `memory://`.
        **options: for SQLite those of `SqliteBackend`, for PostgreSQL those of
            `PostgresSaver`, for Redis those of `RedisSaver`; for memory none.

    Raises:
        OpenError: the URL is none of these, or what it names cannot be opened.
        InvalidArgumentError: an option is unknown or invalid.
    """
    if not isinstance(url, str):
        raise OpenError(f"{type(url).__name__} is not a URL.", hint=_FORMS)
    try:
        url.encode()
    except UnicodeEncodeError:
        hint = "Use a byte that is no character as % and two hex digits."
        # (the cause would show all of it)
        raise OpenError(f"{_shown(url)} is not valid Unicode.", hint=hint) from None
    scheme, separator, rest = url.partition("://")
    opener = _OPENERS.get(scheme.lower()) if separator else None
    if opener is None:
        raise _unknown(url)
    return opener(url, rest, options)


def check_is_path(text: str) -> None:
    """Refuse a text without a scheme that names a database, but no file.

    Raises:
        OpenError: it is a conninfo of libpq.
    """
    if re.search(_CONNINFO, text) and not os.path.exists(text):  # noqa: PTH110 - any text is answered
        raise OpenError(
            "This is a connection string of libpq, neither a URL nor the path of a file.",
            hint="Write postgresql://user:password@host:5432/database;"
            " for a SQLite file of that name, sqlite:/// and its path.",
        )


_CONNINFO = (  # (compiled where it is needed: seldom)
    r"(?:^|\s)(?:host|hostaddr|port|dbname|user|password|passfile|service|options|sslmode"
    r"|application_name|connect_timeout|target_session_attrs)\s*="
)
_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]*)://"


def _unknown(url: str) -> OpenError:
    """Return the error for a text that names no store."""
    found = re.match(_SCHEME, url)
    if found is not None:
        driver = found[1].lower().startswith(("postgresql+", "postgres+"))
        hint = "Use postgresql://, without a driver." if driver else _FORMS
        return OpenError(f"The scheme {found[1]!r} is unknown.", hint=hint)
    check_is_path(url)
    hint = f"For a file write sqlite:///{url}. {_FORMS}" if url and _is_public(url) else _FORMS
    return OpenError(f"{_shown(url)} is not a URL.", hint=hint)


def _is_public(text: str) -> bool:
    """Return True if an error may show the text: it cannot hold a password."""
    return not set(text) & set("@=")


def _shown(text: str) -> str:
    """Return the text as an error may show it."""
    return repr(text) if _is_public(text) else "This"


def is_postgres(url: str) -> bool:
    """Return True if a URL names a PostgreSQL database."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and _OPENERS.get(scheme.lower()) is _open_postgres


def sqlite_path(url: str) -> str | None:
    """The path of the SQLite file that a URL names; None where it names another kind of store.

    Raises:
        OpenError: it has SQLite's scheme, but names no file.
    """
    scheme, _, rest = url.partition("://")
    return _sqlite_path(url, rest) if scheme.lower() == "sqlite" else None


def file_of(store: str) -> str | None:
    """Return the path of the SQLite file that a user names; None for another kind of store.

    Args:
        store: a URL, or the path of a SQLite file.

    Raises:
        InvalidArgumentError: the store is in memory.
        OpenError: what is given names neither a file nor another store.
    """
    if "://" in store:
        path = sqlite_path(store)
    else:
        check_is_path(path := store)
    if path == ":memory:" or store.lower().startswith("memory://"):
        raise InvalidArgumentError(
            "A store in memory is there only for its own process.", hint="Name another store."
        )
    return path


def _open_memory(url: str, rest: str, options: dict[str, Any]) -> Backend:
    if rest:
        raise OpenError(
            f"{_shown(url)} names a place, but memory has none.", hint="Write memory://."
        )
    _check_options("memory://", options, ())
    from threadkeep.backends.memory import MemoryBackend  # noqa: PLC0415 - only where it is used

    return MemoryBackend()


def _open_sqlite(url: str, rest: str, options: dict[str, Any]) -> Backend:
    _check_options("sqlite://", options, ("synchronous", "busy_timeout"))
    return SqliteBackend(_sqlite_path(url, rest), **options)


def _sqlite_path(url: str, rest: str) -> str:
    if not rest.startswith("/"):
        hint = f"Use sqlite:///{rest if _is_public(rest) else 'path'}."
        raise OpenError(f"{_shown(url)} names a host, but SQLite has none.", hint=hint)
    if "?" in rest or "#" in rest:
        raise OpenError(
            f"{_shown(url)} has a query or a fragment.",
            hint="Use arguments for options; in a file's name write %3F for ? and %23 for #.",
        )
    path = os.fsdecode(unquote_to_bytes(rest[1:]))
    if not path:
        raise OpenError(f"{_shown(url)} names no file.", hint=_FORMS)
    return path


@contextmanager
def extra(store: str, name: str) -> Iterator[None]:
    """Raise an error that names the extra to install if a library is missing."""
    try:
        yield
    except ImportError as error:
        raise OpenError(
            f"{store} needs a library that is not installed: {error}.",
            hint=f"pip install 'threadkeep[{name}]'",
        ) from error


_POSTGRES_OPTIONS = (
    *("schema", "min_size", "max_size", "timeout", "prepare_threshold", "statement_timeout"),
    *("application_name", "partition_by"),
)


def _open_postgres(url: str, rest: str, options: dict[str, Any]) -> Backend | AsyncBackend:
    del rest
    return open_postgres(url, **options)


def open_postgres(database: Any, pipe: Any = None, **options: Any) -> Backend | AsyncBackend:
    """Open the backend for a URL, or for a pool or connection of psycopg.

    Raises:
        OpenError: the URL cannot be read, or psycopg is not installed.
        InvalidArgumentError: an option is unknown or invalid.
    """
    with extra("PostgreSQL", "postgres"):
        from threadkeep.backends import postgres  # noqa: PLC0415 - an extra, only where it is used
    _check_options("postgresql://", options, _POSTGRES_OPTIONS)
    return postgres.opened(database, pipe, **options)


def postgres_dumps(url: str, folder: str) -> Dumps:
    """Return backups of a PostgreSQL database by its own programs, which are in this folder.

    Raises:
        OpenError: the URL cannot be read, or psycopg is not installed.
    """
    with extra("PostgreSQL", "postgres"):
        from threadkeep.backends.postgres import maintenance  # noqa: PLC0415 - an extra, only where it is used
    return maintenance.Dumps(url, folder)


_REDIS_OPTIONS = ("prefix", "ttl", "ttl_refresh_on_read", "max_connections", "timeout")


def _open_redis(url: str, rest: str, options: dict[str, Any]) -> Backend | AsyncBackend:
    del rest
    return open_redis(url, **options)


def open_redis(server: Any, **options: Any) -> Backend | AsyncBackend:
    """Open the backend for a URL, or for a client of redis-py.

    Raises:
        OpenError: the URL cannot be read, or redis-py is not installed.
        InvalidArgumentError: an option is unknown or invalid.
    """
    with extra("Redis", "redis"):
        from threadkeep.backends import redis  # noqa: PLC0415 - an extra, only where it is used
    _check_options("redis://", options, _REDIS_OPTIONS)
    return redis.opened(server, **options)


def open_hot(url: Any) -> HotRedis:
    """Open the Redis that caches segments of a store.

    Raises:
        OpenError: the URL cannot be read, or redis-py is not installed.
        InvalidArgumentError: it is no URL of a single server.
    """
    with extra("A hot store", "redis"):
        from threadkeep.backends import redis  # noqa: PLC0415 - an extra, only where it is used
    return redis.hot_store(url)


def _check_options(scheme: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"{scheme} has no option {unknown[0]!r}.",
            hint=f"Options here: {', '.join(known) or 'none'}.",
        )


_OPENERS: dict[str, Callable[[str, str, dict[str, Any]], Backend | AsyncBackend]] = {
    "memory": _open_memory,
    "postgres": _open_postgres,
    "postgresql": _open_postgres,
    "redis": _open_redis,
    "redis+cluster": _open_redis,
    "rediss": _open_redis,
    "rediss+cluster": _open_redis,
    "sqlite": _open_sqlite,
    "unix": _open_redis,
}
