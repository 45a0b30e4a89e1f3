"""PostgreSQL for the benchmark: a database for each lane, and how large it is.

`scripts/services` starts the server and says where it is. A file's path stands for a
database, as it does for SQLite, so that lanes need not know what they are measured on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import threadkeep
from bench.errors import BenchError

CONNECTIONS = 16  # of every pool
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""


def server() -> str:
    """Where the server is."""
    found = os.environ.get("TK_TEST_POSTGRES")
    if not found:
        raise BenchError("no PostgreSQL server: run `make bench BACKEND=postgres`")
    return found


def database(path: Path) -> str:
    """The URL of the database that a path stands for; made where there is none."""
    name = "bench_" + sha256(str(path).encode()).hexdigest()[:16]
    with psycopg.connect(server(), autocommit=True) as connection:
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
        if known.fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_conninfo(server(), dbname=name)


def size(path: Path) -> int:
    """All tables and indexes of a path's database, in bytes."""
    with psycopg.connect(database(path)) as connection:
        return int(connection.execute(_SIZE).fetchone()[0])  # type: ignore[index] # a sum is a row


def drop(path: Path) -> None:
    """Remove a path's database."""
    name = psycopg.conninfo.conninfo_to_dict(database(path))["dbname"]
    with psycopg.connect(server(), autocommit=True) as connection:
        statement = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(str(name)))
        connection.execute(statement)


def round_trip() -> float:
    """Milliseconds of the shortest question."""
    times = []
    with psycopg.connect(server(), autocommit=True) as connection:
        for _ in range(200):
            start = perf_counter()
            connection.execute("SELECT 1").fetchone()
            times.append((perf_counter() - start) * 1_000)
    return median(times[20:])


# -- savers ----------------------------------------------------------------------------


@contextmanager
def ours(path: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    with threadkeep.PostgresSaver(database(path), max_size=CONNECTIONS) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def ours_async(path: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    async with threadkeep.AsyncPostgresSaver(database(path), max_size=CONNECTIONS) as saver:
        await saver.setup()
        yield saver


# As LangGraph's documentation sets its pools up.
OFFICIAL = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@contextmanager
def official(path: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    with ConnectionPool(database(path), max_size=CONNECTIONS, kwargs=OFFICIAL) as pool:
        saver = PostgresSaver(pool)  # type: ignore[arg-type] # the rows are dicts by OFFICIAL
        saver.setup()
        yield saver


@asynccontextmanager
async def official_async(path: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    pool = AsyncConnectionPool(
        database(path), min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=OFFICIAL, open=False
    )
    async with pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type] # the same
        await saver.setup()
        yield saver
