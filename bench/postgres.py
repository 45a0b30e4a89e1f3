"""PostgreSQL for the benchmark: a database for each lane, and how large it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, LiteralString

import psutil
import psycopg
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import threadkeep
from bench.opening import Opened, OpenedAsync, ready, ready_async
from bench.servers import CONNECTIONS, Server, part, round_trip, url

SHOWN = ("server_version", "fsync", "synchronous_commit")
_TABLES: Final = """
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""
_SIZE: Final = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint" + _TABLES
_NAMES: Final = "SELECT n.nspname, c.relname" + _TABLES


def connect(conninfo: str) -> psycopg.Connection:
    return psycopg.connect(conninfo, autocommit=True)


@contextmanager
def server() -> Iterator[Server]:
    """The server as it is."""
    with connect(url("postgres")) as connection:
        values = [one_value(connection, "SELECT current_setting(%s)", name) for name in SHOWN]
        trip = round_trip(lambda: one_value(connection, "SELECT 1"))
    version, *others = (str(value) for value in values)
    said = [f"{name} {value}" for name, value in zip(SHOWN[1:], others, strict=True)]
    yield Server("PostgreSQL", ", ".join([version, *said, "stored: tables and indexes"]), trip)


def one_value(connection: psycopg.Connection, query: LiteralString, *given: str) -> Any:
    row = connection.execute(query, given).fetchone()
    return row and row[0]


def database(path: Path) -> str:
    """The URL of the database that a path stands for; made empty where there is none."""
    name = part(path)
    with connect(url("postgres")) as connection:
        if not one_value(connection, "SELECT 1 FROM pg_database WHERE datname = %s", name):
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name))
            )
    return make_conninfo(url("postgres"), dbname=name)


def cpu(path: Path) -> float | None:
    """CPU seconds of all processes of the server so far; None where it is elsewhere."""
    with connect(database(path)) as connection:
        try:
            server = psutil.Process(connection.info.backend_pid).parent()
            processes = [server, *server.children()] if server else []
        except psutil.Error:
            return None
        seconds = 0.0
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # (a worker of the server has ended)
                seconds += sum(process.cpu_times()[:4])
        return seconds or None


def size(path: Path) -> int:
    """All tables and indexes of a path's database, in bytes."""
    with connect(database(path)) as connection:
        return int(one_value(connection, _SIZE))


def packed(path: Path) -> int:
    """The same without the space of old rows, which depends on when autovacuum has run."""
    with connect(database(path)) as connection:
        names = [sql.Identifier(*row) for row in connection.execute(_NAMES)]
        connection.execute(sql.SQL("VACUUM FULL {}").format(sql.SQL(", ").join(names)))
    return size(path)


def drop(path: Path) -> None:
    """Remove a path's database."""
    name = sql.Identifier(part(path))
    with connect(url("postgres")) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


# -- savers ----------------------------------------------------------------------------


def ours(path: Path, **options: Any) -> Opened:
    return ready(threadkeep.PostgresSaver(database(path), max_size=CONNECTIONS, **options))


def ours_async(path: Path, **options: Any) -> OpenedAsync:
    saver = threadkeep.AsyncPostgresSaver(database(path), max_size=CONNECTIONS, **options)
    return ready_async(saver)


# As LangGraph's documentation sets its pools up.
OFFICIAL = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@asynccontextmanager
async def ours_pooled(path: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Ours on a pool of the program's, which is LangGraph's kind of pool."""
    async with (
        official_pool(path) as pool,
        ready_async(threadkeep.AsyncPostgresSaver(pool)) as saver,
    ):
        yield saver


def official_pool(path: Path) -> AsyncConnectionPool[Any]:
    return AsyncConnectionPool(
        database(path), min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=OFFICIAL, open=False
    )


@contextmanager
def official(path: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    with ConnectionPool(database(path), max_size=CONNECTIONS, kwargs=OFFICIAL) as pool:
        saver = PostgresSaver(pool)  # type: ignore[arg-type] # the rows are dicts by OFFICIAL
        saver.setup()
        yield saver


@asynccontextmanager
async def official_async(path: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    async with official_pool(path) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver
