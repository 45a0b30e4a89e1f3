"""Reader of the database of LangGraph's SqliteSaver and AsyncSqliteSaver.

The file is opened for reading only. (SQLite itself may leave an empty WAL beside a database in that
mode.) The tables are the same since langgraph-checkpoint-sqlite 2.0, except `writes.task_path`. A
checkpoint is one payload with all its values.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from threadkeep._core.langgraph_internals import HAS_TASK_PATH
from threadkeep._stores.sqlite.failures import named as mapped
from threadkeep._stores.sqlite.opening import APPLICATION_ID, MEMORY, DatabaseLocation
from threadkeep.errors import NotLangGraphError, OpenError
from threadkeep.threads.transfer.sources.base import (
    Payloads,
    Source,
    SourceCheckpoint,
    SourceWrite,
    naming,
    needs,
    own_store,
)
from threadkeep.threads.transfer.whole_thread import CheckpointKey

_BUSY_SECONDS = 30.0
_CHECKPOINTS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
    " FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id"
)
_PARENTS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?"
)
_WRITES = (
    "SELECT task_id, {path}, idx, channel, type, value FROM writes"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
    " ORDER BY {path}, task_id, idx"
)
_COLUMNS = {
    "checkpoints": "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id type checkpoint"
    " metadata",
    "writes": "thread_id checkpoint_ns checkpoint_id task_id idx channel type value",
}


def open_sqlite(path: str, payloads: Payloads) -> SqliteSource:
    """Open a file."""
    file = Path(path)
    if not file.is_file():
        raise OpenError(f"There is no file {path}.", hint="Use the path of LangGraph's database.")
    with mapped(path):
        mode = "immutable" if _is_frozen(file) else "ro"
        db = DatabaseLocation(path, "full", _BUSY_SECONDS, mode).connect_reader()
    return _checked(db, path, payloads)


def copy_of(saver: Any, payloads: Payloads) -> SqliteSource:
    """Copy the database in memory of a SqliteSaver."""
    db = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
    with mapped(MEMORY), saver.lock:
        saver.conn.backup(db)
    return _checked(db, MEMORY, payloads)


def _is_frozen(file: Path) -> bool:
    """Return True if no file can be created beside it, as SQLite would for one with a WAL."""
    wal = file.with_name(file.name + "-wal")
    return not wal.exists() and not os.access(file.parent, os.W_OK)


def _checked(db: sqlite3.Connection, path: str, payloads: Payloads) -> SqliteSource:
    try:
        with mapped(path):
            return SqliteSource(db, path, payloads, _writes_columns(db, path))
    except BaseException as error:
        db.close()
        if getattr(error.__cause__, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise NotLangGraphError(f"{path} is not a SQLite database.") from error
        raise


def _writes_columns(db: sqlite3.Connection, path: str) -> set[str]:
    """Return the columns of `writes`, in a database with LangGraph's tables."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application == APPLICATION_ID:
        raise own_store(path)
    found = {
        table: {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
        for table in _COLUMNS
    }
    if any(set(names.split()) - found[table] for table, names in _COLUMNS.items()):
        raise NotLangGraphError(
            f"{path} has no tables of LangGraph's SqliteSaver.",
            hint="Use the file that SqliteSaver or AsyncSqliteSaver (2.0 or newer) writes.",
        )
    return found["writes"]


class SqliteSource(Source):
    """See `Source`."""

    def __init__(
        self, db: sqlite3.Connection, path: str, payloads: Payloads, writes: set[str]
    ) -> None:
        super().__init__(payloads)
        self._db = db
        self._path = path
        self._has_paths = "task_path" in writes
        self._writes = _WRITES.format(path="task_path" if self._has_paths else "''")

    def threads(self) -> dict[str, int]:
        """See `Source.threads`."""
        with mapped(self._path):
            counted = "SELECT thread_id, count(*) FROM checkpoints GROUP BY thread_id ORDER BY 1"
            return {str(thread): count for thread, count in self._db.execute(counted)}

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        """See `Source.parents`."""
        with mapped(self._path):
            rows = self._db.execute(_PARENTS, (thread,))
            return {(ns, checkpoint): parent or None for ns, checkpoint, parent in rows}

    def begin(self) -> None:
        """See `Source.begin`."""
        with mapped(self._path):
            self._db.execute("BEGIN")

    def end(self) -> None:
        """See `Source.begin`."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        """See `Source.checkpoints`."""
        with mapped(self._path), closing(self._db.execute(_CHECKPOINTS, (thread,))) as rows:
            for row in rows:
                with naming(thread, row[0], row[1]):
                    found = self._found(thread, *row)
                yield found

    def _found(
        self,
        thread: str,
        ns: str,
        id: str,
        parent: str | None,
        kind: str,
        data: bytes,
        metadata: bytes | None,
    ) -> SourceCheckpoint:
        rows = self._db.execute(self._writes, (thread, ns, id)).fetchall()
        writes = [
            SourceWrite(task, path, idx, channel, self._payloads.value(*payload))
            for task, path, idx, channel, *payload in rows
        ]
        size = len(data) + sum([len(row[5] or b"") for row in rows])
        value = self._payloads.value(kind, data)
        own = self._payloads.metadata(metadata)
        return SourceCheckpoint(ns, id, parent or None, value, own, writes, size)

    def saver(self) -> BaseCheckpointSaver[Any]:
        """See `Source.saver`."""
        with needs("langgraph-checkpoint-sqlite", "verify"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - only to verify
        saver = SqliteSaver(self._db, serde=self._payloads.serde)
        saver.is_setup = True  # else it would create tables
        setattr(saver, HAS_TASK_PATH, self._has_paths)
        return saver

    def close(self) -> None:
        """See `Source.close`."""
        self._db.close()
