"""Schemas for tests on a real PostgreSQL server: one for each folder that a test names.

A process makes a few schemas and empties them in turn, which is a hundred times faster than
making one for each test. `scripts/services` starts the server and says where it is.
"""

from __future__ import annotations

import atexit
import os
from functools import cache
from itertools import count
from pathlib import Path

import psycopg

from threadkeep.backends.postgres import PostgresBackend

TABLES = ("checkpoints", "writes", "segments", "threads")
_SCHEMAS = 4  # a test uses no more folders at a time


def url() -> str:
    """Where the server is."""
    found = os.environ.get("TK_TEST_POSTGRES")
    assert found, "no PostgreSQL server: run the tests with `make test`, or scripts/services"
    return found


@cache
def _server() -> psycopg.Connection:
    connection = psycopg.connect(url(), autocommit=True)
    atexit.register(connection.close)
    return connection


class _Schemas:
    def __init__(self) -> None:
        self.by_folder: dict[str, str] = {}
        self.free: list[str] = []
        self.made = 0

    def of(self, folder: str) -> str:
        """The folder's schema: empty, if it is named for the first time."""
        known = self.by_folder.get(folder)
        if known is None:
            known = self.by_folder[folder] = self._take()
        return known

    def _take(self) -> str:
        if self.made < _SCHEMAS:
            name = f"tk_{os.getpid()}_{self.made}"
            self.made += 1
            make(name)
            return name
        name = self.by_folder.pop(next(iter(self.by_folder)))
        _server().execute("; ".join(f"DELETE FROM {name}.{table}" for table in TABLES))
        return name


def make(schema: str) -> None:
    """Make a schema with its tables; it is dropped when the process ends."""
    _server().execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    atexit.register(_server().execute, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    backend = PostgresBackend(url(), schema=schema, max_size=1)
    backend.migrate()
    backend.close()


_schemas = _Schemas()


_count = count()


def empty_schema() -> str:
    """A schema that holds nothing; it is another one's again after a few more."""
    return _schemas.of(f"number {next(_count)}")


def url_for(folder: Path) -> str:
    """The URL of the schema that stands for a folder: as empty as that when a test begins."""
    return f"{url()}?schema={_schemas.of(str(folder))}"
