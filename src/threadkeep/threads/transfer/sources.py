"""Readers of the stores of LangGraph's savers: `open_source`, InMemorySaver and SQLite.

SQLite files are opened for reading only; SQLite itself may leave an empty WAL beside them. The
tables are the same since langgraph-checkpoint-sqlite 2.0, except `writes.task_path`. A checkpoint
is one payload with all its values.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep._core.codec import Codec
from threadkeep._core.langgraph_internals import HAS_TASK_PATH
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.external import extra
from threadkeep._stores.open import named
from threadkeep._stores.options import described, from_url
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.sqlite import path_in
from threadkeep._stores.sqlite.failures import named as mapped
from threadkeep._stores.sqlite.opening import APPLICATION_ID, MEMORY, DatabaseLocation, path_of
from threadkeep.errors import InvalidArgumentError, NotLangGraphError, OpenError
from threadkeep.threads.transfer.source import (
    Payloads,
    Source,
    SourceCheckpoint,
    SourceWrite,
    naming,
    needs,
    own_store,
)
from threadkeep.threads.transfer.whole_thread import CheckpointKey

_HOME = "langgraph.checkpoint."
_HINT = (
    "Use the path or URL (sqlite:///, postgresql://) of a database of LangGraph's SqliteSaver or"
    " PostgresSaver, or one of these savers, or an InMemorySaver."
)
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


def open_source(source: Any, codec: Codec, key: str | bytes | None) -> Source:
    """Open a LangGraph store for reading."""
    if isinstance(getattr(source, "_store", None), LayeredBackend):
        raise own_store("The saver")
    if isinstance(source, BaseCheckpointSaver):
        return _of_saver(source, Payloads(codec, source.serde, key))
    if not isinstance(source, str | os.PathLike):
        raise InvalidArgumentError(f"Invalid source: {type(source).__name__}.", hint=_HINT)
    return _of_name(os.fspath(source), Payloads(codec, None, key))


def _of_name(name: str, payloads: Payloads) -> Source:
    if not isinstance(name, str):
        raise InvalidArgumentError("Invalid path: bytes.", hint=_HINT)
    database = named(name)
    if database == "postgres":
        name, options = from_url(name, described(PostgresOptions))
        with extra("PostgreSQL", "postgres"):
            from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - an extra, only where it is used
        return source_postgres.open_postgres(name, payloads, options.get("schema"))
    if "://" in name:
        path = path_in(name) if database == "sqlite" else None
        if path is None:
            raise OpenError("This URL does not name a LangGraph store.", hint=_HINT)
        return _open_sqlite(path, payloads)
    return _open_sqlite(path_of(name), payloads)


def _of_saver(saver: Any, payloads: Payloads) -> Source:
    if isinstance(saver, InMemorySaver):
        return _MemorySource(saver, payloads)
    homes = [cls.__module__.removeprefix(_HOME).partition(".")[0] for cls in type(saver).__mro__]
    if "sqlite" in homes:
        return _of_sqlite(saver, payloads)
    if "postgres" in homes:
        with extra("PostgreSQL", "postgres"):
            from threadkeep.threads.transfer import source_postgres  # noqa: PLC0415 - as above
        return source_postgres.open_postgres(source_postgres.conninfo_of(saver.conn), payloads)
    raise InvalidArgumentError(f"{type(saver).__name__} cannot be read losslessly.", hint=_HINT)


def _of_sqlite(saver: Any, payloads: Payloads) -> Source:
    path = path_of(saver.conn)
    if path != MEMORY:
        return _open_sqlite(path, payloads)
    if not isinstance(saver.conn, sqlite3.Connection):
        raise OpenError(
            "A database in memory cannot be read through an async saver.",
            hint="Copy it to a file first: VACUUM INTO 'file.db'.",
        )
    return _copy_of(saver, payloads)


# -- SQLite ----------------------------------------------------------------------------


def _open_sqlite(path: str, payloads: Payloads) -> Source:
    file = Path(path)
    if not file.is_file():
        raise OpenError(f"There is no file {path}.", hint="Use the path of LangGraph's database.")
    with mapped(path):
        mode = "immutable" if _is_frozen(file) else "ro"
        db = DatabaseLocation(path, "full", _BUSY_SECONDS, mode).connect_reader()
    return _checked(db, path, payloads)


def _copy_of(saver: Any, payloads: Payloads) -> Source:
    """Copy the in-memory database of a SqliteSaver."""
    db = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
    with mapped(MEMORY), saver.lock:
        saver.conn.backup(db)
    return _checked(db, MEMORY, payloads)


def _is_frozen(file: Path) -> bool:
    """True if SQLite cannot create a WAL beside the file."""
    wal = file.with_name(file.name + "-wal")
    return not wal.exists() and not os.access(file.parent, os.W_OK)


def _checked(db: sqlite3.Connection, path: str, payloads: Payloads) -> Source:
    try:
        with mapped(path):
            return _SqliteSource(db, path, payloads, _writes_columns(db, path))
    except BaseException as error:
        db.close()
        if getattr(error.__cause__, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise NotLangGraphError(f"{path} is not a SQLite database.") from error
        raise


def _writes_columns(db: sqlite3.Connection, path: str) -> set[str]:
    """Check that the database has LangGraph's tables; return the columns of `writes`."""
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


class _SqliteSource(Source):
    def __init__(
        self, db: sqlite3.Connection, path: str, payloads: Payloads, writes: set[str]
    ) -> None:
        super().__init__(payloads)
        self._db = db
        self._path = path
        self._has_paths = "task_path" in writes
        self._writes = _WRITES.format(path="task_path" if self._has_paths else "''")

    def threads(self) -> dict[str, int]:
        with mapped(self._path):
            counted = "SELECT thread_id, count(*) FROM checkpoints GROUP BY thread_id ORDER BY 1"
            return {str(thread): count for thread, count in self._db.execute(counted)}

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        with mapped(self._path):
            rows = self._db.execute(_PARENTS, (thread,))
            return {(ns, checkpoint): parent or None for ns, checkpoint, parent in rows}

    def begin(self) -> None:
        with mapped(self._path):
            self._db.execute("BEGIN")

    def end(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
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
        with needs("langgraph-checkpoint-sqlite", "verify"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - only to verify
        saver = SqliteSaver(self._db, serde=self._payloads.serde)
        saver.is_setup = True  # so that it creates no tables
        setattr(saver, HAS_TASK_PATH, self._has_paths)
        return saver

    def close(self) -> None:
        self._db.close()


# -- InMemorySaver ---------------------------------------------------------------------


class _MemorySource(Source):
    """Reader of InMemorySaver's three dicts: its methods do not return the paths of tasks.

    The saver replaces the objects in these dicts, and never changes them.
    """

    def __init__(self, saver: InMemorySaver, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._saver = saver
        self._keys: dict[str, Any] = {}  # (there an id may have any type)

    def threads(self) -> dict[str, int]:
        self._keys = {str(key): key for key in list(self._saver.storage)}
        counts = {name: self._count(key) for name, key in sorted(self._keys.items())}
        return {name: count for name, count in counts.items() if count}

    def _count(self, key: Any) -> int:
        return sum(map(len, list(self._saver.storage.get(key, {}).values())))

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        found = dict(self._saver.storage[self._keys.get(thread, thread)])
        return {
            (ns, checkpoint): parent or None
            for ns, rows in found.items()
            for checkpoint, (_, _, parent) in list(rows.items())
        }

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        key = self._keys.get(thread, thread)
        namespaces = {ns: dict(found) for ns, found in dict(self._saver.storage[key]).items()}
        for ns in sorted(namespaces):
            for checkpoint, row in sorted(namespaces[ns].items()):
                with naming(thread, ns, checkpoint):
                    found = self._found(key, ns, checkpoint, *row)
                yield found

    def _found(
        self, key: Any, ns: str, checkpoint: str, stored: Any, metadata: Any, parent: str | None
    ) -> SourceCheckpoint:
        writes, value = self._writes(key, ns, checkpoint), self._payloads.value(*stored)
        blobs = self._blobs(key, ns, value["channel_versions"])
        values = {channel: self._payloads.value(*blob) for channel, blob in blobs.items()}
        size = len(stored[1]) + sum([len(blob[1]) for blob in blobs.values()])
        own = self._payloads.value(*metadata)
        whole = {**value, "channel_values": values}
        return SourceCheckpoint(ns, checkpoint, parent or None, whole, own, writes, size)

    def _blobs(self, key: Any, ns: str, versions: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
        found = {c: self._saver.blobs.get((key, ns, c, version)) for c, version in versions.items()}
        return {c: blob for c, blob in found.items() if blob is not None and blob[0] != "empty"}

    def _writes(self, key: Any, ns: str, checkpoint: str) -> list[SourceWrite]:
        rows = dict(self._saver.writes.get((key, ns, checkpoint), {}))
        writes = [
            SourceWrite(task, path, idx, channel, self._payloads.value(*stored))
            for (_, idx), (task, channel, stored, path) in rows.items()
        ]
        return sorted(writes, key=lambda one: writes_sort_key(one.task_path, one.task_id, one.idx))

    def saver(self) -> BaseCheckpointSaver[Any]:
        return self._saver
