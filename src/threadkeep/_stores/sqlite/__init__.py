"""The backend that keeps rows in one SQLite file."""

from typing import Any

from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.sqlite.opening import Database
from threadkeep._stores.sqlite.urls import path_in

__all__ = ["OPTIONS", "Database", "SqliteBackend", "opened"]

OPTIONS = ("synchronous", "busy_timeout")


def opened(url: str, **options: Any) -> SqliteBackend:
    """Open the file that a URL names."""
    return SqliteBackend(path_in(url), **options)
