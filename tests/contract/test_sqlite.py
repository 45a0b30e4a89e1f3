"""The contract on SQLite: a file in both settings of `synchronous`, and memory."""

import sqlite3

from kit.contract import Variant

from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.testing import BackendContract


class TestFile(BackendContract):
    def new_backend(self, folder):
        return SqliteBackend(folder / "threads.db", synchronous="normal")

    def reopen(self, folder):
        return SqliteBackend(folder / "threads.db")


class TestMemoryDatabase(Variant):
    def new_backend(self, folder):
        return SqliteBackend(":memory:")


class TestConnection(Variant):
    """The file of a connection that the program already has open."""

    def new_backend(self, folder):
        connection = sqlite3.connect(folder / "threads.db")
        try:
            return SqliteBackend(connection, synchronous="normal")
        finally:
            connection.close()
