"""Databases by URL, with their options.

Errors name the value to use, and show no part of a URL that may be a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from threadkeep._core.texts import is_public, shown_url
from threadkeep._stores.external import extra
from threadkeep._stores.memory import MemoryOptions
from threadkeep._stores.mysql import MysqlOptions
from threadkeep._stores.options import check, described, from_environment, from_url
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.redis import RedisOptions
from threadkeep._stores.sqlite import SqliteOptions
from threadkeep.errors import InvalidArgumentError, OpenError

if TYPE_CHECKING:
    from threadkeep._stores.base import AsyncBackend, Backend

T = TypeVar("T")


class BackupFormat(NamedTuple):
    """Format of backup files: its name, its name in messages, and the first bytes of a file."""

    name: str
    title: str
    magic: bytes


class DatabaseKind(NamedTuple):
    """Kind of database. Its folder in `_stores` has its name.

    The folder has `OPTIONS`, a `TypedDict` with the database's options, and a module `backend`,
    whose `opened` opens a URL. The extra that installs its driver has the folder's name, too.

    A database of files also has `path_in` and `url_of`, and its `opened` takes `read_only`. One
    with a backup format has a module `maintenance` with `back_up` and `restore`.

    Attributes:
        title: the name in errors.
        schemes: of its URLs.
        forms: examples of its URLs.
        backup: its own format of backups, if it has one.
        in_process: whether only its own process sees a store.
    """

    title: str
    schemes: tuple[str, ...]
    forms: tuple[str, ...]
    backup: BackupFormat | None = None
    in_process: bool = False


DATABASES = {
    "sqlite": DatabaseKind(
        "SQLite",
        ("sqlite",),
        ("sqlite:///relative.db", "sqlite:////absolute.db", "sqlite:///:memory:"),
        BackupFormat("sqlite", "a SQLite database", b"SQLite format 3\0"),
    ),
    "postgres": DatabaseKind(
        "PostgreSQL",
        ("postgresql", "postgres"),
        ("postgresql://user@host/database",),
        BackupFormat("postgres", "an archive of pg_dump", b"PGDMP"),
    ),
    "redis": DatabaseKind(
        "Redis",
        (
            *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
            *("redis+sentinel", "rediss+sentinel"),
        ),
        ("redis://host:6379/0", "redis+cluster://host:6379"),
    ),
    "mysql": DatabaseKind("MySQL", ("mysql", "mariadb"), ("mysql://user:password@host/database",)),
    "memory": DatabaseKind("Memory", ("memory",), ("memory://",), in_process=True),
}
PLAIN = "sqlite"
"""Database of a path, which has no scheme."""


class DatabaseOptions(SqliteOptions, PostgresOptions, RedisOptions, MysqlOptions, total=False):
    """Options of all databases, for editors and type checkers."""


def open_url(
    url: str, kind: type[T], given: Mapping[str, Any], defaults: str = ""
) -> tuple[Backend | AsyncBackend, T]:
    """Open the database that a URL names (see `open_in`).

    An option that is not given is taken from the URL's query, else from the environment, else from
    the attribute `defaults` of the database's folder, if it has one.
    """
    name = database_of(url)
    folder = _folder(name)
    own, theirs = described(kind), described(folder.OPTIONS)
    place, in_url = from_url(url, theirs)
    open_options = {n: o for n, o in {**theirs, **own}.items() if n not in {*given, *in_url}}
    variables = from_environment(os.environ, open_options)
    database = {n: value for n, value in variables.items() if n not in own}
    in_url = {**getattr(folder, defaults, {}), **database, **in_url}
    given = {**{n: value for n, value in variables.items() if n in own}, **given}
    return open_in(name, kind, given, place, in_url=in_url)


def open_backend(url: str, **options: Any) -> Backend | AsyncBackend:
    """Open the database that a URL names, with options of the database (see `open_url`)."""
    return open_url(url, MemoryOptions, options)[0]


def open_in(
    name: str, kind: type[T], given: Mapping[str, Any], *place: Any, in_url: Mapping[str, Any] = {}
) -> tuple[Backend | AsyncBackend, T]:
    """Open a database of a kind. If an option is unknown or invalid, nothing is opened.

    Args:
        name: see `DATABASES`.
        kind: the `TypedDict` of the caller's own options.
        given: the caller's options, and the database's.
        place: a URL, or something else that the database's `opened` takes, such as a client.
        in_url: options of the database, used if not given.

    Returns:
        The backend, and the caller's own options.
    """
    folder = _folder(name)
    own = described(kind)
    check(DATABASES[name].title, given, {**described(folder.OPTIONS), **own})
    theirs = dict(in_url) | {k: v for k, v in given.items() if k not in own}
    return _open(name, *place, **theirs), cast("T", {k: v for k, v in given.items() if k in own})


def _open(name: str, *place: Any, **options: Any) -> Backend | AsyncBackend:
    with extra(DATABASES[name].title, name):
        module = import_module(f"threadkeep._stores.{name}.backend")
    backend: Backend | AsyncBackend = module.opened(*place, **options)
    return backend


def _folder(name: str) -> Any:
    return import_module(f"threadkeep._stores.{name}")


def forms() -> str:
    """Return a hint with the URLs of all databases."""
    examples = [form for database in DATABASES.values() for form in database.forms]
    return f"Use one of: {', '.join(examples)}."


def database_of(url: object) -> str:
    """Return the name of the database of a URL (see `DATABASES`)."""
    if not isinstance(url, str):
        raise OpenError(f"{type(url).__name__} is not a URL.", hint=forms())
    try:
        url.encode()
    except UnicodeEncodeError:
        hint = "Use a byte that is no character as % and two hex digits."
        # (the cause would show all of it)
        raise OpenError(f"{shown_url(url)} is not valid Unicode.", hint=hint) from None
    name = _by_scheme(url)
    if name is None:
        raise _unknown(url)
    return name


def _by_scheme(url: str) -> str | None:
    scheme = _scheme(url)
    return next((name for name, found in DATABASES.items() if scheme in found.schemes), None)


def _scheme(url: str) -> str:
    """Return the scheme in lower case, or "" without one."""
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
        hint = "Use postgresql://, without a driver." if driver else forms()
        return OpenError(f"The scheme {found[1]!r} is unknown.", hint=hint)
    check_is_path(url)
    hint = f"For a file write sqlite:///{url}. {forms()}" if url and is_public(url) else forms()
    return OpenError(f"{shown_url(url)} is not a URL.", hint=hint)


def named(store: str) -> str | None:
    """Return the name of the database that a user names by a URL or path, or None if unknown."""
    if "://" in store:
        return _by_scheme(store)
    check_is_path(store)
    return PLAIN


def file_of(store: str) -> str | None:
    """Return the path of the file that a user names by a URL or path, or None if it is a server.

    Raises:
        InvalidArgumentError: the store is in memory.
    """
    name = named(store)
    if name is None:
        return None
    path: str | None = store
    if "://" in store:
        path_in = getattr(_folder(name), "path_in", None)
        path = path_in(store) if path_in else None
    if path == ":memory:" or DATABASES[name].in_process:
        raise InvalidArgumentError(
            "A store in memory exists only in its own process.", hint="Name another store."
        )
    return path


def as_url(store: str) -> str:
    """Return the URL of a store that a user names by a URL or path."""
    url: str = store if "://" in store else _folder(PLAIN).url_of(store)
    return url


def open_to_read(store: str, *, live: bool = False) -> Backend | AsyncBackend:
    """Open the database that a user names by a URL or path. A file is left as it is.

    With `live`, later commits of other processes are seen.
    """
    read_only = {} if file_of(store) is None else {"read_only": "live" if live else True}
    return _open(database_of(as_url(store)), as_url(store), **read_only)


def maintenance(name: str) -> Any:
    """Return the module `maintenance` of a database."""
    with extra(DATABASES[name].title, name):
        return import_module(f"threadkeep._stores.{name}.maintenance")
