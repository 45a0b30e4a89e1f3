"""The savers that are compared, by name, each opened on a file in the same way.

Only the list, how each is opened, its tables created, and how large its store is live
here. threadkeep's are opened as a user opens them; LangGraph's as its documentation says,
which leaves SQLite at `synchronous=FULL`. A path stands for a store, whatever kind it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import threadkeep
from bench import mysql, postgres, redis
from bench.floor import ReferenceSaver
from bench.opening import Opened, OpenedAsync, ready, ready_async
from bench.servers import Server


def bytes_on_disk(path: Path) -> int:
    """The database with its log and index files, in bytes."""
    return sum(
        file.stat().st_size
        for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm"))
        if file.exists()
    )


def settled_bytes(path: Path) -> int:
    """The same after the log was written back into the database, as at a close."""
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return bytes_on_disk(path)


def remove(path: Path) -> None:
    """The file and those beside it."""
    for file in path.parent.glob(path.name + "*"):
        file.unlink()


class Store(NamedTuple):
    """Store of a saver: its size in use and closed, and its removal.

    `server` gets the server ready, where there is one, for as long as it is measured.
    """

    size: Callable[[Path], int]
    closed_size: Callable[[Path], int]
    remove: Callable[[Path], None]
    server: Callable[[], AbstractContextManager[Server]] | None = None


FILE = Store(settled_bytes, bytes_on_disk, remove)
DATABASE = Store(postgres.size, postgres.size, postgres.drop, postgres.server)
SCHEMA = Store(mysql.size, mysql.size, mysql.drop, mysql.server)
PREFIX = Store(redis.size, redis.size, redis.drop, redis.server)


@dataclass(frozen=True)
class Kind:
    """One saver in one setting. `quick`: cheap enough to be run several times over."""

    key: str
    label: str
    open: Callable[[Path], Opened]
    store: Store | None  # None: it is in our own memory
    delta: bool = False
    quick: bool = False
    open_async: Callable[[Path], OpenedAsync] | None = None

    @property
    def on_postgres(self) -> bool:
        return self.store is DATABASE

    @property
    def lasts(self) -> bool:
        return self.store is not None

    def size(self, path: Path) -> int:
        """Bytes in the store, while it is in use."""
        return self.store.size(path) if self.store else 0

    def closed_size(self, path: Path) -> int:
        """Bytes in the store, once it was closed."""
        return self.store.closed_size(path) if self.store else 0

    def remove(self, path: Path) -> None:
        """Remove whatever is stored."""
        if self.store:
            self.store.remove(path)


def threadkeep_sqlite(path: Path, **options: Any) -> Opened:
    return ready(threadkeep.SqliteSaver(path, **options))


def threadkeep_sqlite_async(path: Path, **options: Any) -> OpenedAsync:
    return ready_async(threadkeep.SqliteSaver(path, **options))


def threadkeep_memory(_path: Path) -> Opened:
    return threadkeep.MemorySaver()


def threadkeep_memory_async(_path: Path) -> OpenedAsync:
    return threadkeep.MemorySaver()


@contextmanager
def langgraph_sqlite(path: Path, synchronous: str) -> Iterator[SqliteSaver]:
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        connection.execute(f"PRAGMA synchronous={synchronous}")
        saver = SqliteSaver(connection)
        saver.setup()
        yield saver


@asynccontextmanager
async def langgraph_sqlite_async(path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await saver.setup()
        yield saver


def floor(_path: Path) -> Opened:
    return nullcontext(ReferenceSaver())


def floor_async(_path: Path) -> OpenedAsync:
    return nullcontext(ReferenceSaver())


def langgraph_memory(_path: Path) -> Opened:
    return InMemorySaver()


def langgraph_memory_async(_path: Path) -> OpenedAsync:
    return InMemorySaver()


FULL = partial(langgraph_sqlite, synchronous="full")
NORMAL = partial(langgraph_sqlite, synchronous="normal")

KINDS = {
    kind.key: kind
    for kind in (
        Kind(
            "floor",
            "floor (references only)",
            floor,
            store=None,
            quick=True,
            open_async=floor_async,
        ),
        Kind(
            "memory",
            "threadkeep memory",
            threadkeep_memory,
            store=None,
            quick=True,
            open_async=threadkeep_memory_async,
        ),
        Kind(
            "normal",
            "threadkeep SQLite, normal",
            partial(threadkeep_sqlite, synchronous="normal"),
            store=FILE,
            quick=True,
            open_async=partial(threadkeep_sqlite_async, synchronous="normal"),
        ),
        Kind(
            "full",
            "threadkeep SQLite, full",
            threadkeep_sqlite,
            store=FILE,
            quick=True,
            open_async=threadkeep_sqlite_async,
        ),
        Kind(
            "lg-memory",
            "LangGraph InMemorySaver",
            langgraph_memory,
            store=None,
            open_async=langgraph_memory_async,
        ),
        Kind("lg-normal", "LangGraph SqliteSaver, normal", NORMAL, store=FILE),
        Kind(
            "lg-full",
            "LangGraph SqliteSaver, full",
            FULL,
            store=FILE,
            open_async=langgraph_sqlite_async,
        ),
        Kind(
            "lg-delta-normal",
            "LangGraph SqliteSaver + DeltaChannel, normal",
            NORMAL,
            store=FILE,
            delta=True,
        ),
        Kind(
            "lg-delta-full",
            "LangGraph SqliteSaver + DeltaChannel, full",
            FULL,
            store=FILE,
            delta=True,
        ),
        Kind(
            "pg",
            "threadkeep PostgreSQL",
            postgres.ours,
            store=DATABASE,
            quick=True,
            open_async=postgres.ours_async,
        ),
        Kind(
            "pg-pool",
            "threadkeep PostgreSQL, a pool given",
            postgres.ours,
            store=DATABASE,
            open_async=postgres.ours_pooled,
        ),
        Kind(
            "redis",
            "threadkeep Redis",
            redis.ours,
            store=PREFIX,
            quick=True,
            open_async=redis.ours_async,
        ),
        Kind(
            "mysql",
            "threadkeep MySQL",
            mysql.ours,
            store=SCHEMA,
            quick=True,
            open_async=mysql.ours_async,
        ),
        Kind(
            "lg-pg",
            "LangGraph PostgresSaver, pooled",
            postgres.official,
            store=DATABASE,
            open_async=postgres.official_async,
        ),
    )
}


OURS = ("memory", "normal", "full", "pg", "pg-pool", "redis", "mysql")
ON_SQLITE = tuple(key for key, kind in KINDS.items() if kind.store in {None, FILE})
ON_POSTGRES = ("floor", "pg", "lg-pg")
# LangGraph's saver for Redis needs modules; the comparison is with its own saver for many machines.
ON_REDIS = ("floor", "redis", "lg-pg")
ON_MYSQL = ("floor", "mysql", "lg-pg")
