"""The backend that keeps rows in one SQLite file."""

from threadkeep.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
