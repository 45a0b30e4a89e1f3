"""The backend that keeps rows in one SQLite file."""

from threadkeep.backends.sqlite.backend import SqliteBackend
from threadkeep.backends.sqlite.opening import Database

__all__ = ["Database", "SqliteBackend"]
