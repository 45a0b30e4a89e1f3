"""The savers by name: each is a `Saver` that makes its own backend, nothing more."""

from __future__ import annotations

from typing import Any, Literal, Self

from threadkeep import options as own_options
from threadkeep.backends.memory import MemoryBackend
from threadkeep.backends.open import open_backend
from threadkeep.backends.sqlite import Database, SqliteBackend
from threadkeep.saver import Saver


class MemorySaver(Saver):
    """A saver that keeps everything in this process, in place of LangGraph's `InMemorySaver`.

    Args:
        **options: those of `Saver`.

    Raises:
        InvalidArgumentError: an option is unknown or has no meaning.
    """

    def __init__(self, **options: Any) -> None:
        own_options.check(options)
        super().__init__(MemoryBackend(), **options)


class SqliteSaver(Saver):
    """A saver on one SQLite file, in place of LangGraph's `SqliteSaver` and `AsyncSqliteSaver`.

    Args:
        conn: the file's path, or a connection of sqlite3 or aiosqlite, of which the file is
            taken; it stays the caller's, who closes it.
        synchronous: "full": a commit survives a power cut; "normal": it survives a crash
            of the process, and a power cut may take the last commits.
        busy_timeout: seconds to wait for another process that is writing.
        **options: those of `Saver`.

    Raises:
        OpenError: and its kinds, if the file cannot be opened.
        InvalidArgumentError: an option is unknown or has no meaning; nothing was opened.
    """

    def __init__(
        self,
        conn: Database,
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        own_options.check(options)
        backend = SqliteBackend(conn, synchronous=synchronous, busy_timeout=busy_timeout)
        super().__init__(backend, **options)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Open a file (or ":memory:"); use it under `with` or `async with`."""
        return cls(conn_string, **options)


def open_saver(url: str, **options: Any) -> Saver:
    """Open the store that a URL names; use it under `with` or `async with`.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:` or
            `memory://`.
        **options: those of `Saver`, and those of the backend (see `SqliteSaver`).

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or has no meaning; nothing was opened.
    """
    own = {name: options.pop(name) for name in own_options.NAMES if name in options}
    own_options.check(own)
    return Saver(open_backend(url, **options), **own)


AsyncSqliteSaver = SqliteSaver
InMemorySaver = MemorySaver
