"""Backends by URL.

Errors say what to give, and show no part of a URL that may be a password.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from threadkeep._stores.extras import extra
from threadkeep._stores.sqlite import SqliteBackend
from threadkeep.errors import InvalidArgumentError, OpenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadkeep._stores.base import AsyncBackend, Backend
    from threadkeep._stores.postgres.maintenance import Dumps
    from threadkeep._stores.redis.backend import HotRedis

_FORMS = (
    "Known are sqlite:///relative.db, sqlite:////absolute.db, sqlite:///:memory:,"
    " postgresql://user@host/database, redis://host:6379/0, redis+cluster://host:6379 and"
    " memory://."
)


def open_backend(url: str, **options: Any) -> Backend | AsyncBackend:
    """Open the backend that a URL names, with its own options. See `threadkeep.open_saver`."""
    if not isinstance(url, str):
        raise OpenError(f"{type(url).__name__} is not a URL.", hint=_FORMS)
    try:
        url.encode()
    except UnicodeEncodeError:
        hint = "Use a byte that is no character as % and two hex digits."
        # (the cause would show all of it)
        raise OpenError(f"{_shown(url)} is not valid Unicode.", hint=hint) from None
    opener = _OPENERS.get(_scheme(url))
    if opener is None:
        raise _unknown(url)
    return opener(url, **options)


def _scheme(url: str) -> str:
    """Return the scheme in lower case; "" without one."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def check_is_path(text: str) -> None:
    """Raise an `OpenError` for a conninfo of libpq, which names a database, but no file."""
    if re.search(_CONNINFO, text) and not os.path.exists(text):  # noqa: PTH110 - any text is answered
        raise OpenError(
            "This is a connection string of libpq, neither a URL nor the path of a file.",
            hint="Write postgresql://user:password@host:5432/database;"
            " for a SQLite file of that name, sqlite:/// and its path.",
        )


_CONNINFO = (
    r"(?:^|\s)(?:host|hostaddr|port|dbname|user|password|passfile|service|options|sslmode"
    r"|application_name|connect_timeout|target_session_attrs)\s*="
)


def _unknown(url: str) -> OpenError:
    if found := re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url):
        driver = _scheme(url).startswith(("postgresql+", "postgres+"))
        hint = "Use postgresql://, without a driver." if driver else _FORMS
        return OpenError(f"The scheme {found[1]!r} is unknown.", hint=hint)
    check_is_path(url)
    hint = f"For a file write sqlite:///{url}. {_FORMS}" if url and _is_public(url) else _FORMS
    return OpenError(f"{_shown(url)} is not a URL.", hint=hint)


def _is_public(text: str) -> bool:
    """Return True if an error may show the text: it cannot hold a password."""
    return not set(text) & set("@=")


def _shown(text: str) -> str:
    return repr(text) if _is_public(text) else "This"


def is_postgres(url: str) -> bool:
    """Return True if a URL names a PostgreSQL database."""
    return _OPENERS.get(_scheme(url)) is open_postgres


def sqlite_path(url: str) -> str | None:
    """The path of the SQLite file that a URL names; None where it names another kind of store."""
    return _sqlite_path(url) if _scheme(url) == "sqlite" else None


def file_of(store: str) -> str | None:
    """Return the path of the SQLite file that a user names, by URL or path; else None.

    A store in memory is an `InvalidArgumentError`.
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


def _open_memory(url: str, /, **options: Any) -> Backend:
    if url.lower() != "memory://":
        raise OpenError(
            f"{_shown(url)} names a place, but memory has none.", hint="Write memory://."
        )
    _check_options("memory://", options, ())
    from threadkeep._stores.memory import MemoryBackend  # noqa: PLC0415 - only where it is used

    return MemoryBackend()


def _open_sqlite(url: str, /, **options: Any) -> Backend:
    _check_options("sqlite://", options, ("synchronous", "busy_timeout"))
    return SqliteBackend(_sqlite_path(url), **options)


def _sqlite_path(url: str) -> str:
    rest = url.partition("://")[2]
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


_POSTGRES_OPTIONS = (
    *("schema", "min_size", "max_size", "timeout", "prepare_threshold", "statement_timeout"),
    *("application_name", "partition_by"),
)


def open_postgres(database: Any, pipe: Any = None, /, **options: Any) -> Backend | AsyncBackend:
    """Open the backend for a URL, or for a pool or connection of psycopg."""
    with extra("PostgreSQL", "postgres"):
        from threadkeep._stores import postgres  # noqa: PLC0415 - an extra, only where it is used
    _check_options("postgresql://", options, _POSTGRES_OPTIONS)
    return postgres.opened(database, pipe, **options)


def postgres_dumps(url: str, folder: str) -> Dumps:
    """Return backups of a PostgreSQL database by its own programs, which are in this folder."""
    with extra("PostgreSQL", "postgres"):
        from threadkeep._stores.postgres import maintenance  # noqa: PLC0415 - an extra, only where it is used
    return maintenance.Dumps(url, folder)


_REDIS_OPTIONS = ("prefix", "ttl", "ttl_refresh_on_read", "max_connections", "timeout")


def open_redis(server: Any, /, **options: Any) -> Backend | AsyncBackend:
    """Open the backend for a URL, or for a client of redis-py."""
    with extra("Redis", "redis"):
        from threadkeep._stores import redis  # noqa: PLC0415 - an extra, only where it is used
    _check_options("redis://", options, _REDIS_OPTIONS)
    return redis.opened(server, **options)


def open_hot(url: Any) -> HotRedis:
    """Open the Redis that caches segments of a store."""
    with extra("A hot store", "redis"):
        from threadkeep._stores import redis  # noqa: PLC0415 - an extra, only where it is used
    return redis.hot_store(url)


def _check_options(scheme: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"{scheme} has no option {unknown[0]!r}.",
            hint=f"Options here: {', '.join(known) or 'none'}.",
        )


_OPENERS: dict[str, Callable[..., Backend | AsyncBackend]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    **dict.fromkeys(("postgres", "postgresql"), open_postgres),
    **dict.fromkeys(("redis", "rediss", "redis+cluster", "rediss+cluster", "unix"), open_redis),
}
