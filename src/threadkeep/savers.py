"""The savers by name: each is a `Saver` that makes its own backend, nothing more."""

from __future__ import annotations

import os
import sqlite3
from typing import Any, Literal, Self

from threadkeep.backends.memory import MemoryBackend
from threadkeep.backends.open import open_backend
from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.saver import Saver


class MemorySaver(Saver):
    """A saver that keeps everything in this process, in place of LangGraph's `InMemorySaver`.

    Args:
        **options: those of `Saver`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(MemoryBackend(), **options)


class SqliteSaver(Saver):
    """A saver on one SQLite file, in place of LangGraph's `SqliteSaver` and `AsyncSqliteSaver`.

    Args:
        conn: the file's path, or a `sqlite3.Connection`, of which the file is taken.
        synchronous: "full": a commit survives a power cut; "normal": it survives a crash
            of the process, and a power cut may take the last commits.
        busy_timeout: seconds to wait for another process that is writing.
        **options: those of `Saver`.

    Raises:
        OpenError: and its kinds, if the file cannot be opened.
    """

    def __init__(
        self,
        conn: str | os.PathLike[str] | sqlite3.Connection,
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 30.0,
        **options: Any,
    ) -> None:
        backend = SqliteBackend(conn, synchronous=synchronous, busy_timeout=busy_timeout)
        super().__init__(backend, **options)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Open a file (or ":memory:"); use it under `with` or `async with`."""
        return cls(conn_string, **options)


_SAVER_OPTIONS = (
    "conflicts",
    "serde",
    "compression",
    "pickle_fallback",
    "working_set_bytes",
)


def open_saver(url: str, **options: Any) -> Saver:
    """Open the store that a URL names; use it under `with` or `async with`.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:` or
            `memory://`.
        **options: those of `Saver`, and those of the backend (see `SqliteSaver`).

    Raises:
        OpenError: the scheme is unknown, or the store cannot be opened.
        InvalidArgumentError: an option is unknown or has no meaning.
    """
    own = {name: options.pop(name) for name in _SAVER_OPTIONS if name in options}
    return Saver(open_backend(url, **options), **own)


AsyncSqliteSaver = SqliteSaver
InMemorySaver = MemorySaver
