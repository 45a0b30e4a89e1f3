"""LangGraph's own savers, for tests."""

import atexit
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from kit import postgres as postgres_kit
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.conninfo import make_conninfo

FOREIGN = ("memory", "sqlite", "aiosqlite", "postgres", "aiopostgres")


@cache
def tables(use: str = "any") -> str:
    """A schema of this process with LangGraph's tables, as a URL; dropped when it ends."""
    name = f"tk_foreign_{use}_{os.getpid()}"
    with psycopg.connect(postgres_kit.url(), autocommit=True) as server:
        server.execute(f"CREATE SCHEMA {name}")
    atexit.register(_execute, postgres_kit.url(), f"DROP SCHEMA {name} CASCADE")
    url = make_conninfo(postgres_kit.url(), options=f"-c search_path={name}")
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
    return url


@cache
def _server() -> psycopg.Connection:
    connection = psycopg.connect(tables(), autocommit=True)
    atexit.register(connection.close)
    return connection


def _execute(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(text)


def emptied() -> str:
    """The URL of LangGraph's tables, which hold nothing."""
    emptied = "checkpoints", "checkpoint_blobs", "checkpoint_writes"
    _server().execute("; ".join(f"DELETE FROM {table}" for table in emptied))
    return tables()


@asynccontextmanager
async def foreign(name: str, folder: Path) -> AsyncIterator[Any]:
    """A saver of LangGraph's."""
    file = str(folder / f"{uuid4()}.db")
    if name == "memory":
        yield InMemorySaver()
    elif name == "sqlite":
        with SqliteSaver.from_conn_string(file) as saver:
            yield saver
    elif name == "aiosqlite":
        async with AsyncSqliteSaver.from_conn_string(file) as saver:
            await saver.setup()  # its delete_thread does not do it
            yield saver
    elif name == "postgres":
        with PostgresSaver.from_conn_string(emptied()) as saver:
            yield saver
    else:
        async with AsyncPostgresSaver.from_conn_string(emptied()) as saver:
            yield saver
