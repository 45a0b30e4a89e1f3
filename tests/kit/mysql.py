"""Databases for tests on a real MySQL server: one for each folder that a test names.

`scripts/services` starts the server and says where it is. A database is emptied when it is
another folder's turn, and removed at the end.
"""

import atexit
import os
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql


def url() -> str:
    """The URL of the server's database."""
    found = os.environ.get("TK_TEST_MYSQL")
    assert found, "no MySQL server: run the tests with `make test`, or scripts/services"
    return found


def connected() -> Any:
    """A connection with the server, without a database."""
    at = urlsplit(url())
    login = {"user": at.username or "root", "password": at.password or ""}
    return pymysql.connect(host=at.hostname, port=at.port or 3306, **login)


@cache
def _server() -> Any:
    connection = connected()
    connection.autocommit(True)
    atexit.register(connection.close)
    return connection


def rows(query: str, *values: Any) -> Any:
    """The rows of a query that names its database."""
    with _server().cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


_numbers = count()
_databases: dict[str, str] = {}
_MOST = 4  # a test uses no more folders at a time


def _empty(database: str) -> None:
    tables = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}'"
    for (table,) in rows(tables):
        if table != "tk_store":
            rows(f"DELETE FROM {database}.{table}")


def _remove_all() -> None:
    for database in _databases.values():
        rows(f"DROP DATABASE IF EXISTS {database}")


def database_for(folder: Path | str) -> str:
    """The database that stands for a folder: as empty as that when a test begins."""
    if not _databases:
        _server()  # (it is closed last)
        atexit.register(_remove_all)
    known = _databases.get(str(folder))
    if known is None:
        if len(_databases) < _MOST:
            known = f"test_{os.getpid()}_{next(_numbers)}"
            rows(f"CREATE DATABASE {known}")
        else:
            known = _databases.pop(next(iter(_databases)))
            _empty(known)
        _databases[str(folder)] = known
    return known


def url_for(folder: Path | str) -> str:
    """The URL of what stands for a folder."""
    return f"{url().rpartition('/')[0]}/{database_for(folder)}"
