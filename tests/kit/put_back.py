"""Rows of a store that go back to an earlier state, as after a crash of its server.

`copy_rows` copies all rows of a store and returns a function that puts them back behind the savers
that have the store open.
"""

import copy
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import redis

from kit import mysql
from kit import redis as redis_kit
from kit.postgres import STORE_TABLES, TABLES, url, url_for

PutBack = Callable[[], None]


def copy_rows(name: str, folder: Path, saver: Any) -> PutBack:
    """Copy the rows of the store that the folder stands for.

    Args:
        name: of `kit.backends.BACKENDS`.
        folder: as for `kit.backends.open_backend`.
        saver: an open one, which leads to rows in memory.
    """
    return _COPIES[name](folder, saver)


def _in_memory(_folder: Path, saver: Any) -> PutBack:
    backend: Any = saver._store.backend
    rows = vars(getattr(backend, "below", backend)._rows)
    kept = copy.deepcopy(rows)

    def put_back() -> None:
        rows.update(copy.deepcopy(kept))

    return put_back


def _on_sqlite(folder: Path, _saver: Any) -> PutBack:
    kept = sqlite3.connect(":memory:", check_same_thread=False)

    def copy_to(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
        source.backup(target)

    def put_back() -> None:
        with closing(sqlite3.connect(folder / "threads.db")) as file:
            copy_to(kept, file)

    with closing(sqlite3.connect(folder / "threads.db")) as file:
        copy_to(file, kept)
    return put_back


def _on_postgres(folder: Path, _saver: Any) -> PutBack:
    schema = url_for(folder).rpartition("schema=")[2]
    kept = {}
    with psycopg.connect(url()) as server:
        for table in (*TABLES, *STORE_TABLES):
            with server.cursor().copy(f"COPY {schema}.{table} TO STDOUT") as rows:
                kept[table] = b"".join(bytes(one) for one in rows)
        counter = server.execute(f"SELECT last_value, is_called FROM {schema}.store_counter")
        count = counter.fetchone()

    def put_back() -> None:
        with psycopg.connect(url()) as server:
            server.execute("SET session_replication_role = replica; SET lock_timeout = 20000")
            for table, rows in kept.items():
                server.execute(f"DELETE FROM {schema}.{table}")
                with server.cursor().copy(f"COPY {schema}.{table} FROM STDIN") as target:
                    target.write(rows)
            server.execute(f"SELECT setval('{schema}.store_counter', %s, %s)", count)

    return put_back


def _on_redis(folder: Path, _saver: Any) -> PutBack:
    pattern = f"{redis_kit.prefix_for(folder)}:*"
    with redis.Redis.from_url(redis_kit.url()) as server:
        kept = {key: server.dump(key) for key in server.scan_iter(match=pattern, count=1000)}

    def put_back() -> None:
        with redis.Redis.from_url(redis_kit.url()) as server:
            for key in server.scan_iter(match=pattern, count=1000):
                server.unlink(key)
            for key, value in kept.items():
                server.restore(key, 0, value)

    return put_back


def _on_mysql(folder: Path, _saver: Any) -> PutBack:
    database = mysql.database_for(folder)
    tables = mysql.rows(f"SHOW TABLES IN {database}")
    kept = {table: mysql.rows(f"SELECT * FROM {database}.{table}") for (table,) in tables}

    def put_back() -> None:
        with closing(mysql.connected()) as server, server.cursor() as cursor:
            for table, rows in kept.items():
                cursor.execute(f"DELETE FROM {database}.{table}")
                for row in rows:
                    values = ", ".join(["%s"] * len(row))
                    cursor.execute(f"INSERT INTO {database}.{table} VALUES ({values})", row)
            server.commit()

    return put_back


_COPIES = {
    "memory": _in_memory,
    "sqlite": _on_sqlite,
    "postgres": _on_postgres,
    "redis": _on_redis,
    "mysql": _on_mysql,
}
