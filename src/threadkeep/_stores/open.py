"""Backends by URL.

Errors say what to give, and show no part of a URL that may be a password.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from threadkeep._stores.extras import extra
from threadkeep._stores.sqlite.urls import path_in
from threadkeep._stores.urls import FORMS, is_public, shown
from threadkeep.errors import InvalidArgumentError, OpenError

if TYPE_CHECKING:
    from threadkeep._stores.base import AsyncBackend, Backend
    from threadkeep._stores.postgres.maintenance import Dumps
    from threadkeep._stores.redis.backend import HotRedis

# Folder: the name in errors, and the schemes of URLs. The folder has `opened` and `OPTIONS`; the
# extra that installs its driver has the folder's name.
DATABASES: dict[str, tuple[str, ...]] = {
    "memory": ("Memory", "memory"),
    "sqlite": ("SQLite", "sqlite"),
    "postgres": ("PostgreSQL", "postgresql", "postgres"),
    "redis": ("Redis", "redis", "rediss", "redis+cluster", "rediss+cluster", "unix"),
}
_FOLDERS = {scheme: folder for folder, (_, *schemes) in DATABASES.items() for scheme in schemes}


def open_backend(url: str, **options: Any) -> Backend | AsyncBackend:
    """Open the backend that a URL names, with its own options. See `threadkeep.open_saver`."""
    if not isinstance(url, str):
        raise OpenError(f"{type(url).__name__} is not a URL.", hint=FORMS)
    try:
        url.encode()
    except UnicodeEncodeError:
        hint = "Use a byte that is no character as % and two hex digits."
        # (the cause would show all of it)
        raise OpenError(f"{shown(url)} is not valid Unicode.", hint=hint) from None
    folder = _FOLDERS.get(_scheme(url))
    if folder is None:
        raise _unknown(url)
    return open_in(folder, url, **options)


def open_in(folder: str, /, *place: Any, **options: Any) -> Backend | AsyncBackend:
    """Open a database of the kind whose folder has this name.

    Args:
        folder: see `DATABASES`.
        place: a URL, or what else the folder's `opened` takes, such as a client of the driver.
        options: those of the backend.
    """
    title = DATABASES[folder][0]
    with extra(title, folder):
        database: Any = import_module(f"threadkeep._stores.{folder}")
    _check_options(f"{DATABASES[folder][1]}://", options, database.OPTIONS)
    backend: Backend | AsyncBackend = database.opened(*place, **options)
    return backend


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
        hint = "Use postgresql://, without a driver." if driver else FORMS
        return OpenError(f"The scheme {found[1]!r} is unknown.", hint=hint)
    check_is_path(url)
    hint = f"For a file write sqlite:///{url}. {FORMS}" if url and is_public(url) else FORMS
    return OpenError(f"{shown(url)} is not a URL.", hint=hint)


def is_postgres(url: str) -> bool:
    """Return True if a URL names a PostgreSQL database."""
    return _FOLDERS.get(_scheme(url)) == "postgres"


def sqlite_path(url: str) -> str | None:
    """The path of the SQLite file that a URL names; None where it names another kind of store."""
    return path_in(url) if _scheme(url) == "sqlite" else None


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


def postgres_dumps(url: str, folder: str) -> Dumps:
    """Return backups of a PostgreSQL database by its own programs, which are in this folder."""
    with extra("PostgreSQL", "postgres"):
        from threadkeep._stores.postgres import maintenance  # noqa: PLC0415 - an extra, only where it is used
    return maintenance.Dumps(url, folder)


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
