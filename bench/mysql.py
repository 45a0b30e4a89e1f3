"""MySQL for the benchmark: a database for each lane, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

import threadkeep
from bench.opening import Opened, OpenedAsync, ready, ready_async
from bench.servers import CONNECTIONS, Server, part, round_trip, url

SHOWN = ("version", "innodb_flush_log_at_trx_commit", "sync_binlog")


def connect() -> Any:
    at = urlsplit(url("mysql"))
    login = {"user": at.username, "password": at.password or ""}
    return pymysql.connect(host=at.hostname, port=at.port or 3306, autocommit=True, **login)


def asked(connection: Any, query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def rows(query: str) -> Any:
    with connect() as connection:
        return asked(connection, query)


@contextmanager
def server() -> Iterator[Server]:
    """The server as it is."""
    with connect() as connection:
        ((version, *values),) = asked(connection, f"SELECT @@{', @@'.join(SHOWN)}")
        trip = round_trip(lambda: asked(connection, "SELECT 1"))
    said = [f"{name} {value}" for name, value in zip(SHOWN[1:], values, strict=True)]
    yield Server("MySQL", ", ".join([version, *said, "stored: tables and indexes"]), trip)


def size(path: Path) -> int:
    """All tables and indexes of a path's database, in bytes."""
    query = "SELECT SUM(data_length + index_length) FROM information_schema.tables"
    ((found,),) = rows(f"{query} WHERE table_schema = '{part(path)}'")
    return int(found or 0)


def drop(path: Path) -> None:
    """Remove a path's database."""
    rows(f"DROP DATABASE IF EXISTS {part(path)}")


def database(path: Path) -> str:
    """The URL of the database that a path stands for; made empty where there is none."""
    rows(f"CREATE DATABASE IF NOT EXISTS {part(path)}")
    return f"{url('mysql').rpartition('/')[0]}/{part(path)}?max_connections={CONNECTIONS}"


def ours(path: Path) -> Opened:
    return ready(threadkeep.open_saver(database(path)))


def ours_async(path: Path) -> OpenedAsync:
    return ready_async(threadkeep.open_saver(database(path)))
