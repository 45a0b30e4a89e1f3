"""Full-text index in a saver's SQLite file (FTS5), over connections of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from threadkeep.backends.sqlite.connections import Connections
from threadkeep.backends.sqlite.failures import named
from threadkeep.backends.sqlite.opening import Location, transaction
from threadkeep.errors import NewerDatabaseError, StateError
from threadkeep.memory.index import Hit, indexed, wanted
from threadkeep.memory.summaries import Messages

T = TypeVar("T")

_TABLES = """
CREATE TABLE threadkeep_memory_threads (number INTEGER PRIMARY KEY, thread TEXT NOT NULL UNIQUE);
CREATE TABLE threadkeep_memory_records (
    thread INTEGER NOT NULL, lane INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (thread, lane, start), UNIQUE (thread, record)
) WITHOUT ROWID;
CREATE TABLE threadkeep_memory_messages (key INTEGER PRIMARY KEY, id TEXT);
CREATE INDEX threadkeep_memory_ids ON threadkeep_memory_messages (id);
CREATE VIRTUAL TABLE threadkeep_memory_text USING fts5(
    words, detail = none, tokenize = "ascii tokenchars '-_.'"{option}
)"""
# No second copy of the words, in versions of SQLite that can delete without it.
_CONTENTLESS = ", content = '', contentless_delete = 1"
_CONTENTLESS_SINCE = (3, 43)
_TABLE = "SELECT sql FROM sqlite_master WHERE name = 'threadkeep_memory_text'"

# A message's key is the number of its thread, its position and a lane, so that hits are in the
# order of keys. Records of one lane do not overlap; those of branches do, and have lanes above.
_THREAD_BITS, _LANE_BITS = 40, 12
_LANES = 1 << _LANE_BITS
_HITS = """
SELECT (SELECT r.record FROM threadkeep_memory_records r
        WHERE r.thread = m.key >> 40 AND r.lane = m.key & 0xFFF
            AND r.start <= ((m.key >> 12) & 0xFFFFFFF)
        ORDER BY r.start DESC LIMIT 1), (m.key >> 12) & 0xFFFFFFF, m.id
FROM threadkeep_memory_messages m
"""
_MATCHES = """
WHERE m.key IN (
    SELECT rowid FROM threadkeep_memory_text
    WHERE threadkeep_memory_text MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?)
ORDER BY m.key DESC
"""
_SEARCH = _HITS + _MATCHES
_FIND = _HITS + "WHERE m.key BETWEEN ? AND ? AND m.id = ? ORDER BY m.key DESC"
_NUMBER = "SELECT number FROM threadkeep_memory_threads WHERE thread = ?"
_LANE = """
SELECT coalesce(max(lane) + 1, 0) FROM threadkeep_memory_records
WHERE thread = ? AND start < ? AND stop > ?
"""
_RECORDS = """
SELECT record FROM threadkeep_memory_records
WHERE thread = (SELECT number FROM threadkeep_memory_threads WHERE thread = ?)
"""
_REMOVE_TEXT = """
DELETE FROM threadkeep_memory_text
WHERE rowid IN (SELECT key FROM threadkeep_memory_messages WHERE key BETWEEN ? AND ?)
"""
_REMOVE_MESSAGES = "DELETE FROM threadkeep_memory_messages WHERE key BETWEEN ? AND ?"


def has_fts5() -> bool:
    """Return True if this SQLite has FTS5."""
    with closing(sqlite3.connect(":memory:")) as db:
        (found,) = db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()
        return bool(found)


class SqliteIndex:
    """Index in tables `threadkeep_memory_*` of a saver's file, made by the first `add`.

    Args:
        path: the file, which is there.
        busy_timeout: seconds to wait for others who write.

    Raises:
        OpenError: and its kinds, if the file cannot be opened.
    """

    def __init__(self, path: str, *, busy_timeout: float = 30.0) -> None:
        self._path = path
        self._connections = Connections(Location(path, "normal", busy_timeout, "rw"))

    # -- connections -----------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connections.write_lock, named(self._path):
            db = self._connections.writer()
            with transaction(db):
                yield db

    def _read(self, query: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Return what a query finds; the default where there are no tables."""
        with named(self._path):
            db = self._connections.take()
            try:
                db.execute("BEGIN")
                return query(db) if _has_tables(db) else default
            finally:
                self._connections.give(db)

    # -- the index -------------------------------------------------------------------

    def add(self, thread: str, record: str, start: int, messages: Messages) -> None:
        """See `ArchiveIndex.add`."""
        words = [indexed(message) for message in messages]
        stop = start + len(words)
        with self._writing() as db:
            if not _has_tables(db):
                option = _CONTENTLESS if sqlite3.sqlite_version_info >= _CONTENTLESS_SINCE else ""
                for statement in _TABLES.replace("{option}", option).split(";\n"):
                    db.execute(statement)
            if (record,) in db.execute(_RECORDS, (thread,)).fetchall():
                return
            found = (
                db.execute(_NUMBER, (thread,)).fetchone()
                or db.execute(
                    "INSERT INTO threadkeep_memory_threads (thread) VALUES (?) RETURNING number",
                    (thread,),
                ).fetchone()
            )
            number = found[0]
            (lane,) = db.execute(_LANE, (number, stop, start)).fetchone()
            if lane >= _LANES:
                raise StateError(
                    f"Messages from {start} on are in {_LANES} records, as many as can be indexed.",
                    thread=thread,
                )
            db.execute(
                "INSERT INTO threadkeep_memory_records VALUES (?, ?, ?, ?, ?)",
                (number, lane, start, stop, record),
            )
            keys = [_key(number, position) + lane for position in range(start, stop)]
            ids = [message.id for message in messages]
            db.executemany(
                "INSERT INTO threadkeep_memory_messages VALUES (?, ?)",
                zip(keys, ids, strict=True),
            )
            db.executemany(
                "INSERT INTO threadkeep_memory_text (rowid, words) VALUES (?, ?)",
                zip(keys, words, strict=True),
            )

    def search(
        self, thread: str, query: str, *, after: int | None = None, limit: int | None = None
    ) -> list[Hit]:
        """See `ArchiveIndex.search`."""
        words = " ".join(f'"{word}"' for word in wanted(query))

        def search(db: sqlite3.Connection) -> list[Hit]:
            first, last = _keys(db, thread)
            if after is not None:
                last = min(last, first + (max(after, 0) << _LANE_BITS) - 1)
            values = (words, first, last, -1 if limit is None else limit)
            return _hits(db.execute(_SEARCH, values))

        return self._read(search, []) if words else []

    def find(self, thread: str, ids: Iterable[str]) -> dict[str, list[Hit]]:
        """See `ArchiveIndex.find`."""

        def find(db: sqlite3.Connection) -> dict[str, list[Hit]]:
            place = _keys(db, thread)
            found = {one: _hits(db.execute(_FIND, (*place, one))) for one in set(ids)}
            return {one: hits for one, hits in found.items() if hits}

        return self._read(find, {})

    def records(self, thread: str) -> set[str]:
        """See `ArchiveIndex.records`."""
        return self._read(lambda db: _column(db.execute(_RECORDS, (thread,))), set())

    def remove(self, *threads: str) -> None:
        """See `ArchiveIndex.remove`. Rewrites the index, so that no word stays in the file.

        (A page that was freed holds its bytes until the file is vacuumed, as `erase` does.)
        """
        if self._read(lambda db: not any(_number(db, one) for one in threads), default=True):
            return
        with self._writing() as db:
            for thread in threads:
                place = _keys(db, thread)
                db.execute(_REMOVE_TEXT, place)
                db.execute(_REMOVE_MESSAGES, place)
                number = _number(db, thread)
                db.execute("DELETE FROM threadkeep_memory_records WHERE thread = ?", (number,))
                db.execute("DELETE FROM threadkeep_memory_threads WHERE number = ?", (number,))
            db.execute(
                "INSERT INTO threadkeep_memory_text (threadkeep_memory_text) VALUES ('optimize')"
            )

    def threads(self) -> set[str]:
        """See `ArchiveIndex.threads`."""
        query = "SELECT thread FROM threadkeep_memory_threads"
        return self._read(lambda db: _column(db.execute(query)), set())

    def close(self) -> None:
        """See `ArchiveIndex.close`."""
        self._connections.close()


def _has_tables(db: sqlite3.Connection) -> bool:
    found = db.execute(_TABLE).fetchone()
    is_old = sqlite3.sqlite_version_info < _CONTENTLESS_SINCE
    if found and is_old and "contentless_delete" in found[0]:
        raise NewerDatabaseError(
            "A newer SQLite has made the full-text index of this file.",
            hint="Use SQLite 3.43 or newer, or drop the table threadkeep_memory_text.",
        )
    return bool(found)


def _number(db: sqlite3.Connection, thread: str) -> int | None:
    found = db.execute(_NUMBER, (thread,)).fetchone()
    return found[0] if found else None


def _key(number: int, position: int) -> int:
    return number << _THREAD_BITS | position << _LANE_BITS


def _keys(db: sqlite3.Connection, thread: str) -> tuple[int, int]:
    """Return the first and the last key that a thread's messages may have."""
    number = _number(db, thread)
    return (_key(number, 0), _key(number + 1, 0) - 1) if number else (0, -1)


def _hits(rows: Iterable[Any]) -> list[Hit]:
    return [Hit(*row) for row in rows]


def _column(rows: Iterable[Any]) -> set[str]:
    return {value for (value,) in rows}
