"""The savers that are compared, by name, each opened on a file in the same way.

Only the list and how each is opened, its tables created, live here. threadkeep's are
opened as a user opens them; LangGraph's `SqliteSaver` as its documentation says, which
leaves SQLite at `synchronous=FULL`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

import threadkeep
from bench.floor import ReferenceSaver

Opened: TypeAlias = AbstractContextManager[BaseCheckpointSaver[Any]]


@dataclass(frozen=True)
class Kind:
    """One saver in one setting. `quick`: cheap enough to be run several times over."""

    key: str
    label: str
    open: Callable[[Path], Opened]
    on_disk: bool
    delta: bool = False
    quick: bool = False


@contextmanager
def threadkeep_sqlite(path: Path, **options: Any) -> Iterator[BaseCheckpointSaver[Any]]:
    with threadkeep.SqliteSaver(path, **options) as saver:
        saver.setup()
        yield saver


def threadkeep_memory(_path: Path) -> Opened:
    return threadkeep.MemorySaver()


@contextmanager
def langgraph_sqlite(path: Path, synchronous: str) -> Iterator[SqliteSaver]:
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        connection.execute(f"PRAGMA synchronous={synchronous}")
        saver = SqliteSaver(connection)
        saver.setup()
        yield saver


def floor(_path: Path) -> Opened:
    return nullcontext(ReferenceSaver())


def langgraph_memory(_path: Path) -> Opened:
    return InMemorySaver()


FULL = partial(langgraph_sqlite, synchronous="full")
NORMAL = partial(langgraph_sqlite, synchronous="normal")

KINDS = {
    kind.key: kind
    for kind in (
        Kind("floor", "floor (references only)", floor, on_disk=False, quick=True),
        Kind("memory", "threadkeep memory", threadkeep_memory, on_disk=False, quick=True),
        Kind(
            "normal",
            "threadkeep SQLite, normal",
            partial(threadkeep_sqlite, synchronous="normal"),
            on_disk=True,
            quick=True,
        ),
        Kind("full", "threadkeep SQLite, full", threadkeep_sqlite, on_disk=True, quick=True),
        Kind("lg-memory", "LangGraph InMemorySaver", langgraph_memory, on_disk=False),
        Kind("lg-normal", "LangGraph SqliteSaver, normal", NORMAL, on_disk=True),
        Kind("lg-full", "LangGraph SqliteSaver, full", FULL, on_disk=True),
        Kind(
            "lg-delta-normal",
            "LangGraph SqliteSaver + DeltaChannel, normal",
            NORMAL,
            on_disk=True,
            delta=True,
        ),
        Kind(
            "lg-delta-full",
            "LangGraph SqliteSaver + DeltaChannel, full",
            FULL,
            on_disk=True,
            delta=True,
        ),
    )
}


OURS = ("memory", "normal", "full")


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
