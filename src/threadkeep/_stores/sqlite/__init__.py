"""The backend that keeps rows in one SQLite file."""

from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.sqlite.opening import Database

__all__ = ["Database", "SqliteBackend"]
