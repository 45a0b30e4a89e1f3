"""Reader of the tables of LangGraph's SqliteSaver and AsyncSqliteSaver.

Files are opened for reading only. SQLite itself may leave an empty WAL next to them. The tables are
the same since langgraph-checkpoint-sqlite 2.0, except `writes.task_path`. A checkpoint is one
payload with all its values.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Collection, Generator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from platform import node
from time import monotonic
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from ormsgpack import OPT_NON_STR_KEYS, unpackb

from threadkeep._core.engine.thread_summary import CONTROL
from threadkeep._core.langgraph_internals import HAS_TASK_PATH
from threadkeep._stores.sqlite.failures import named as mapped
from threadkeep._stores.sqlite.opening import APPLICATION_ID, MEMORY, DatabaseLocation
from threadkeep.errors import CorruptionError, NotLangGraphError, OpenError
from threadkeep.threads.transfer.sources import (
    DatabaseSource,
    MissingTablesError,
    Payloads,
    SourceCheckpoint,
    SourceStep,
    SourceWindow,
    SourceWrite,
    naming,
    needs,
    own_store,
)

_BUSY_SECONDS = 30.0
_CHECKPOINTS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
    " FROM checkpoints WHERE {where} ORDER BY "
)
_ALL = _CHECKPOINTS.format(where="thread_id = ? AND checkpoint_id >= ?")
_ALL += "checkpoint_ns, checkpoint_id"
_NEWEST = _CHECKPOINTS + "checkpoint_id DESC LIMIT 1"
_WRITES = (
    "SELECT task_id, {path}, idx, channel, type, value FROM writes"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
    " ORDER BY {path}, task_id, idx"
)
_BYTES = """(
    SELECT coalesce(sum(length(checkpoint) + coalesce(length(metadata), 0)), 0)
    FROM checkpoints AS own WHERE own.thread_id = {thread}
) + (SELECT coalesce(sum(length(value)), 0) FROM writes AS own WHERE own.thread_id = {thread})"""
# (a view of a stranger may be a query that never ends, and a virtual table has no page)
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
_TOTAL = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
# The inner query reads only the index, the outer one no payload.
_STEPS = """
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, metadata,
    coalesce(length(checkpoint), 0), rowid
FROM checkpoints WHERE rowid IN (
    SELECT rowid FROM checkpoints WHERE {where} ORDER BY checkpoint_id DESC LIMIT ?
) ORDER BY checkpoint_id DESC, checkpoint_ns
"""
_WRITTEN = """
SELECT task_id, channel FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?
"""
_SCANNED = 8 << 20  # bytes of payloads that a window reads to name their channels
_LARGEST = 64 << 20  # of the first one
_HEAD = 128  # bytes of a larger payload
_TIME = re.compile(rb'(?:\xa2ts(?:[\xa0-\xbf]|\xd9.)|"ts": ?")(\d{4}-[0-9T:.+Z-]+)', re.DOTALL)
_STEPS_OF_LIMIT = 10_000  # of SQLite's machine, between looks at the clock
_COLUMNS = {
    "checkpoints": "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id type checkpoint"
    " metadata",
    "writes": "thread_id checkpoint_ns checkpoint_id task_id idx channel type value",
}


def open_sqlite(path: str, payloads: Payloads, saver: Any = None) -> DatabaseSource:
    """Open the file of a SqliteSaver for reading only, or copy its database in memory."""
    if path == MEMORY and saver is not None:
        return _copied(saver, payloads)
    file = Path(path)
    if not file.is_file():
        raise OpenError(f"There is no file {path}.", hint="Use the path of LangGraph's database.")
    with mapped(path):
        mode = "immutable" if _is_frozen(file) else "ro"
        db = DatabaseLocation(path, "full", _BUSY_SECONDS, mode).connect_reader()
    return _checked(db, path, payloads)


def _copied(saver: Any, payloads: Payloads) -> DatabaseSource:
    if not isinstance(saver.conn, sqlite3.Connection):
        raise OpenError(
            "A database in memory cannot be read through an async saver.",
            hint="Copy it to a file first: VACUUM INTO 'file.db'.",
        )
    db = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
    with mapped(MEMORY), saver.lock:
        saver.conn.backup(db)
    return _checked(db, MEMORY, payloads)


def _is_frozen(file: Path) -> bool:
    """True if SQLite cannot create a WAL next to the file."""
    wal = file.with_name(file.name + "-wal")
    return not wal.exists() and not os.access(file.parent, os.W_OK)


def _identity(path: str) -> tuple[object, ...]:
    """Return the values that change if another file takes the path, or a WAL has to be read."""
    file = Path(path)
    found = file.stat() if file.exists() else None
    return (found and found.st_ino, found and found.st_dev, _is_frozen(file))


def _checked(db: sqlite3.Connection, path: str, payloads: Payloads) -> DatabaseSource:
    try:
        return _SqliteSource(db, path, payloads)
    except BaseException as error:
        db.close()
        if getattr(error.__cause__, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise NotLangGraphError(f"{path} is not a SQLite database.") from error
        raise


class _SqliteSource(DatabaseSource):
    seconds = 10.0  # (others do not wait for it)
    size, total = _BYTES.format(thread="c.thread_id"), _TOTAL
    between = "SELECT " + _BYTES.format(thread="? AND checkpoint_id BETWEEN ? AND ?")
    digest = "group_concat(task_id || idx || hex(value))"

    def __init__(self, db: sqlite3.Connection, path: str, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._db = db
        self._path = path
        self._opened = _identity(path)
        self._has_paths = "task_path" in self._checked_columns()["writes"]
        self._writes = _WRITES.format(path="task_path" if self._has_paths else "''")

    @property
    def place(self) -> tuple[str, str]:
        return f"sqlite {Path(self._path).resolve()}", node()

    def _checked_columns(self) -> dict[str, set[str]]:
        """Return the columns of LangGraph's tables, and raise an error if any are missing."""
        ((application,),) = self.rows("PRAGMA application_id")
        if application == APPLICATION_ID:
            raise own_store(self._path)
        stored = {name for (name,) in self.rows(_TABLES)}.intersection(_COLUMNS)
        tables = {table: self.rows(f"PRAGMA table_info({table})") for table in sorted(stored)}
        found = {table: {name for _, name, *_ in rows} for table, rows in tables.items()}
        if any(set(names.split()) - found.get(table, set()) for table, names in _COLUMNS.items()):
            raise MissingTablesError(
                f"{self._path} has no tables of LangGraph's SqliteSaver.",
                hint="Use the file that SqliteSaver or AsyncSqliteSaver (2.0 or newer) writes.",
            )
        return found

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with mapped(self._path):
            return self._db.execute(text, parameters).fetchall()

    def begin(self) -> None:
        self.rows("BEGIN")

    def end(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def checkpoints(self, thread: str, first: str = "") -> Generator[SourceCheckpoint, None, None]:
        with mapped(self._path), closing(self._db.execute(_ALL, (thread, first))) as rows:
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
        data: bytes | None,
        own: Any,
        *,
        channels: Collection[str] | None = None,
    ) -> SourceCheckpoint:
        rows = self.rows(self._writes, (thread, ns, id))
        if channels is not None:
            rows = [row for row in rows if row[3] in channels]
        writes = [
            SourceWrite(task, path, idx, channel, self._payloads.value(*payload))
            for task, path, idx, channel, *payload in rows
        ]
        size = len(data or b"") + sum([len(row[5] or b"") for row in rows])
        value, metadata = self._payloads.value(kind, data), _json(own)
        return SourceCheckpoint(ns, id, parent or None, value, metadata, writes, size)

    def version(self) -> int:
        ((version,),) = self.rows("PRAGMA data_version")
        return int(version)

    def steps(self, window: SourceWindow) -> list[SourceStep]:
        where, parameters = window.where(self.mark)
        left, found = _SCANNED, list[SourceStep]()
        for row in self.rows(_STEPS.format(where=where), (*parameters, window.limit)):
            ns, id, parent, kind, metadata, size, place = row
            is_scanned = size <= (left if found else _LARGEST)
            left -= size
            head = self._head(place, kind, size if is_scanned else _HEAD)
            values = head.pop("channel_values", None)
            names = None if values is None else {name: _length(values[name]) for name in values}
            written = self.rows(_WRITTEN, (window.thread, ns, id))
            with naming(window.thread, ns, id):
                own = _json(metadata)
            found.append(SourceStep(ns, id, parent or None, head, own, names, written, size))
        return found

    def _head(self, place: int, kind: str, size: int) -> dict[str, Any]:
        """Read the beginning of a payload: its time, or, if it is whole, all but the values."""
        with (
            mapped(self._path),
            self._db.blobopen("checkpoints", "checkpoint", place, readonly=True) as blob,
        ):
            data = blob.read(size)
            if kind == "msgpack" and len(data) == len(blob):
                with suppress(ValueError):
                    whole = unpackb(data, ext_hook=lambda *_: None, option=OPT_NON_STR_KEYS)
                    if type(whole) is dict and type(whole.get("channel_values")) is dict:
                        return whole
        time = _TIME.search(data)
        return {"ts": time[1].decode()} if time else {}

    def checkpoint(
        self, window: SourceWindow, channels: Collection[str] | None = None
    ) -> SourceCheckpoint | None:
        where, values = window.where(self.mark)
        text = _NEWEST.format(where=where)
        if channels is not None and CONTROL.issuperset(channels):  # (none of the state)
            text = text.replace("type, checkpoint,", "'null', NULL,")
        for row in self.rows(text, values):
            with naming(window.thread, row[0], row[1]):
                return self._found(window.thread, *row, channels=channels)
        return None

    def limit(self, seconds: float) -> None:
        end = 0.0

        def is_late() -> bool:
            return monotonic() > end

        def begin(_: object) -> None:
            nonlocal end
            end = monotonic() + seconds

        self._db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
        self._db.set_trace_callback(begin)
        self._db.set_progress_handler(is_late, _STEPS_OF_LIMIT)

    def is_current(self) -> bool:
        return self._path != MEMORY and _identity(self._path) == self._opened  # (else: a copy)

    def saver(self) -> BaseCheckpointSaver[Any]:
        with needs("langgraph-checkpoint-sqlite", "verify"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - only to verify
        saver = SqliteSaver(self._db, serde=self._payloads.serde)
        saver.is_setup = True  # so that it creates no tables
        setattr(saver, HAS_TASK_PATH, self._has_paths)
        return saver

    def close(self) -> None:
        self._db.close()


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list | dict) else None


def _json(text: str | bytes | None) -> Any:
    """Read metadata, which in a damaged file may also be a number."""
    try:
        return {} if text is None else json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptionError("The metadata of a checkpoint is not valid JSON.") from error
