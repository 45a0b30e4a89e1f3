"""Schemas for tests on a real PostgreSQL server: one for each folder that a test names.

A process makes a few schemas and empties them in turn, which is a hundred times faster than
making one for each test. `scripts/services` starts the server and says where it is.
"""

import atexit
import os
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import Identifier

from threadkeep import grant_role
from threadkeep._stores.postgres.backend import PostgresBackend

TABLES = ("checkpoints", "writes", "segments", "threads", "thread_labels")
STORE_TABLES = ("store_items", "store_item_versions")
_SCHEMAS = 4  # a test uses no more folders at a time, and 2 with partitions, which are slow to make
_IS_KEPT = not os.environ.get("TK_TEST_POSTGRES_OURS")


def url() -> str:
    """The URL of the server."""
    found = os.environ.get("TK_TEST_POSTGRES")
    assert found, "no PostgreSQL server: run the tests with `make test`, or scripts/services"
    return found


@cache
def _server() -> psycopg.Connection:
    connection = psycopg.connect(url(), autocommit=True)
    atexit.register(connection.close)
    return connection


Layout = Callable[[str], None]
"""Makes the tables of a schema what a database administrator may have them be."""


class _Schemas:
    """A few schemas with tables of one layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
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
        if self.made < (_SCHEMAS if self.layout in (plain, granted) else _SCHEMAS // 2):
            name = f"tk_{self.layout.__name__}_{os.getpid()}_{self.made}"
            self.made += 1
            make(name, self.layout)
            return name
        name = self.by_folder.pop(next(iter(self.by_folder)))
        memory = ", ".join(f"{name}.threadkeep_memory_{each}" for each in ("records", "messages"))
        steps = [f"DELETE FROM {name}.{table}" for table in (*TABLES, "cache", *STORE_TABLES)]
        steps += [
            f"DROP FUNCTION IF EXISTS {name}.{function} CASCADE"
            for function in (
                *("threadkeep_memory_remove", "threadkeep_words_moved", "store_drop_vectors"),
            )
        ]
        words = f"{name}.threadkeep_words, {name}.threadkeep_unindexed"
        steps += [f"DROP TABLE IF EXISTS {memory}, {words}, {name}.store_item_vectors"]
        _server().execute("; ".join(steps))
        return name


def plain(schema: str) -> None:
    """Tables as a migration makes them."""


def granted(schema: str) -> None:
    """Plain tables that may have policies for roles of earlier tests."""


def hashed(schema: str) -> None:
    """All tables of threads in partitions by a hash of the thread's id."""
    for table in TABLES:
        name, new = f"{schema}.{table}", f"{schema}.hashed_{table}"
        text = f"CREATE TABLE {new} (LIKE {name} INCLUDING ALL) PARTITION BY HASH (thread_id);"
        for n in range(4):
            text += f"CREATE TABLE {name}_{n} PARTITION OF {new}"
            text += f" FOR VALUES WITH (MODULUS 4, REMAINDER {n});"
        _server().execute(text + f"DROP TABLE {name}; ALTER TABLE {new} RENAME TO {table}")


def make(schema: str, layout: Layout = plain) -> None:
    """Make a schema with its tables; a server that is kept drops it when the process ends."""
    _server().execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    if _IS_KEPT:
        atexit.register(_server().execute, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    backend = PostgresBackend(url(), schema=schema, max_size=1)
    backend.migrate()
    backend.close()
    layout(schema)


_schemas = cache(_Schemas)
_count = count()


def empty_schema(layout: Layout = plain) -> str:
    """A schema that holds nothing; it is another one's again after a few more."""
    return _schemas(layout).of(f"number {next(_count)}")


def url_for(folder: Path, layout: Layout = plain) -> str:
    """The URL of the schema that stands for a folder: as empty as that when a test begins."""
    return f"{url()}?schema={_schemas(layout).of(str(folder))}"


def role_of(options: str = "LOGIN", name: str = "tk_role") -> str:
    """A new role of the server."""
    role = f"{name}_{os.getpid()}_{next(_count)}"
    quoted = Identifier(role).as_string()
    _server().execute(f"CREATE ROLE {quoted} {options}")
    atexit.register(_server().execute, f"DROP OWNED BY {quoted}; DROP ROLE {quoted}")
    return role


def url_of_role(store: str, tenant: str | None) -> str:
    """The URL of a store for a new role, which is granted the rows of a tenant."""
    role = role_of()
    grant_role(store, role, tenant=tenant)
    return url_as(store, role)


def url_as(store: str, role: str) -> str:
    """The URL of a store for another role."""
    at, _, query = store.partition("?")
    parts = conninfo_to_dict(at)
    return f"postgresql://{role}@{parts['host']}:{parts['port']}/{parts['dbname']}?{query}"
