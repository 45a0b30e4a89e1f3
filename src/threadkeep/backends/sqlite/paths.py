"""What a caller gives as the database, to the path of its file.

Only this reading lives here; whether the file can be opened is seen by `opening`.
Invariant: a connection that is given is asked for its file and otherwise left alone.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from threadkeep.backends.sqlite.opening import MEMORY
from threadkeep.errors import InvalidArgumentError, OpenError


class AsyncConnection(Protocol):
    """What of an `aiosqlite.Connection` tells it from other objects."""

    def execute_fetchall(self, sql: str, parameters: Any = None) -> Any:
        """Run a query."""


Database: TypeAlias = str | os.PathLike[str] | sqlite3.Connection | AsyncConnection


def path_of(database: Database) -> str:
    """The absolute path of the file, or `:memory:`.

    Raises:
        InvalidArgumentError: it is neither a path nor a connection.
        OpenError: it is a connection that cannot tell its file.
    """
    if isinstance(database, sqlite3.Connection):
        path: object = _file_of(database) or MEMORY
    elif hasattr(database, "execute_fetchall"):
        path = _file_of_async(database) or MEMORY
    else:
        path = os.fspath(database) if isinstance(database, os.PathLike) else database
    if not isinstance(path, str) or not _is_path(path):
        raise InvalidArgumentError(
            f"{database!a} is no path.",
            hint="Give the path of a file as str or Path, or ':memory:'.",
        )
    return path if path == MEMORY else str(Path(path).absolute())


def _is_path(text: str) -> bool:
    """Whether this system could have a file of this name."""
    try:
        return b"\0" not in os.fsencode(text) != b""
    except UnicodeEncodeError:
        return False


def _file_of(connection: sqlite3.Connection) -> str:
    """The file of its main database; empty where that is in memory."""
    try:
        files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    except sqlite3.Error as error:
        raise OpenError(
            f"The given connection cannot tell its file: {error}",
            hint="Give a connection that is open and of this thread, or the file's path.",
        ) from error
    return files["main"] or ""


def _file_of_async(connection: Any) -> str:
    """The same for a connection of aiosqlite, awaited already or not.

    Its own connection belongs to another thread, and there is none before it is awaited:
    so the function that makes it, which aiosqlite keeps, makes us one to ask.
    """
    try:
        with closing(connection._connector()) as own:  # noqa: SLF001 - it has no public name
            return _file_of(own)
    except (AttributeError, TypeError, sqlite3.Error) as error:
        raise OpenError(
            f"The given connection cannot tell its file: {error}",
            hint="Give the file's path, or use AsyncSqliteSaver.from_conn_string(path).",
        ) from error
