"""Full-text index in a saver's SQLite file (FTS5), over connections of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from threadkeep._stores.message_index import ArchiveIndex, Hit, IndexRows, Key, wanted
from threadkeep._stores.sqlite.connections import Connections, MadeTables
from threadkeep._stores.sqlite.message_words import CONTENTLESS
from threadkeep._stores.sqlite.opening import DatabaseLocation, statements
from threadkeep.errors import NewerDatabaseError, StateError

_LANES = 1 << 12
_TABLE = "SELECT sql FROM sqlite_master WHERE name = 'threadkeep_memory_text'"
_NUMBER = "SELECT number FROM threadkeep_memory_threads WHERE thread = ?"
_HAS = f"SELECT 1 FROM threadkeep_memory_records WHERE thread = ({_NUMBER}) AND record = ?"
_LANE = """
SELECT coalesce(max(key & 0xFFF) + 1, 0) FROM threadkeep_memory_messages
WHERE key >= ? AND key < ?
"""
_EMPTY = """
SELECT coalesce(max(start) + 1, 0) FROM threadkeep_memory_records WHERE thread = ? AND lane = ?
"""
_HITS = """
SELECT (SELECT r.record FROM threadkeep_memory_records r
        WHERE r.thread = m.key >> 40 AND r.lane = m.key & 0xFFF
            AND r.start <= ((m.key >> 12) & 0xFFFFFFF)
        ORDER BY r.start DESC LIMIT 1), (m.key >> 12) & 0xFFFFFFF, m.id
FROM threadkeep_memory_messages m
"""
_MATCHING = """
WHERE m.key IN (
    SELECT rowid FROM threadkeep_memory_text
    WHERE threadkeep_memory_text MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?)
ORDER BY m.key DESC
"""
_BY_ID = "WHERE m.key BETWEEN ? AND ? AND m.id = ? ORDER BY m.key DESC"


def has_fts5() -> bool:
    """Return True if this SQLite has FTS5."""
    with closing(sqlite3.connect(":memory:")) as db:
        (found,) = db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()
        return bool(found)


class SqliteIndex(MadeTables, ArchiveIndex):
    """Index in tables `threadkeep_memory_*` of a saver's file, created with the first index.

    Args:
        path: the file.
        busy_timeout: seconds to wait for another process that is writing.
        given: see `DatabaseLocation`.

    Raises:
        OpenError: and its kinds, if the file cannot be opened.
    """

    content = "full-text index"

    def __init__(self, path: str, *, busy_timeout: float = 30.0, given: Any = None) -> None:
        location = DatabaseLocation(path, "normal", busy_timeout, "rw", given)
        super().__init__(Connections(lambda: location))

    def _is_made(self, db: sqlite3.Connection) -> bool:
        found = db.execute(_TABLE).fetchone()
        if found and not CONTENTLESS and "contentless_delete" in found[0]:
            raise NewerDatabaseError(
                "A newer SQLite has made the full-text index of this file.",
                hint="Use SQLite 3.43 or newer.",
            )
        return bool(found)

    def _make(self, db: sqlite3.Connection) -> None:
        for statement in statements("message_index.sql"):
            db.execute(statement.replace("{option}", CONTENTLESS))

    def _add(
        self, key: Key, start: int, messages: IndexRows, edits: IndexRows, after: str | None
    ) -> bool:
        thread, record = key
        with self._connections.writing() as db:
            if db.execute(_HAS, key).fetchone():
                return True
            if after is not None and not db.execute(_HAS, (thread, after)).fetchone():
                return False
            insert = "INSERT OR IGNORE INTO threadkeep_memory_threads (thread) VALUES (?)"
            db.execute(insert, (thread,))
            _insert(db, thread, record, start, messages)
            for one in edits:
                _insert(db, thread, f"{record}/{one.position}", one.position, [one])
        return True

    def has(self, thread: str, record: str) -> bool:
        with self._connections.reading() as db:
            return db.execute(_HAS, (thread, record)).fetchone() is not None

    def search(
        self, thread: str, query: str, *, after: int | None = None, limit: int | None = None
    ) -> list[Hit]:
        words = " ".join(f'"{word}"' for word in wanted(query))
        if not words:
            return []
        with self._connections.reading() as db:
            first, last = _keys(db, thread)
            if after is not None:
                last = min(last, first + _key(0, max(after, 0)) - 1)
            values = (words, first, last, -1 if limit is None else limit)
            return [_hit(row) for row in db.execute(_HITS + _MATCHING, values)]

    def find(self, thread: str, ids: Iterable[str]) -> dict[str, list[Hit]]:
        found: dict[str, list[Hit]] = {}
        with self._connections.reading() as db:
            keys = _keys(db, thread)
            for one in ids:
                if rows := db.execute(_HITS + _BY_ID, (*keys, one)).fetchall():
                    found[one] = [_hit(row) for row in rows]
        return found

    def remove(self, *threads: str) -> None:
        with self._connections.writing() as db:
            delete = "DELETE FROM threadkeep_memory_threads WHERE thread = ?"
            db.executemany(delete, [(thread,) for thread in threads])

    def threads(self) -> set[str]:
        with self._given.reading() as db:
            if not self._is_made(db):
                return set()
            rows = db.execute("SELECT thread FROM threadkeep_memory_threads")
            return {thread for (thread,) in rows}

    def close(self) -> None:
        self._given.close()


def _insert(db: sqlite3.Connection, thread: str, record: str, start: int, rows: IndexRows) -> None:
    """Insert a record, or an edit of one, whose first message is at a position."""
    stop = start + len(rows)
    (number,) = db.execute(_NUMBER, (thread,)).fetchone()
    (lane,) = db.execute(_LANE, (_key(number, start), _key(number, stop))).fetchone()
    if lane >= _LANES:
        raise StateError(
            f"Message {start} is in {_LANES} records, and no more can be indexed.", thread=thread
        )
    if not rows:
        lane = _LANES
        (start,) = db.execute(_EMPTY, (number, lane)).fetchone()
    row = (number, lane, start, record)
    db.execute("INSERT INTO threadkeep_memory_records VALUES (?, ?, ?, ?)", row)
    ids = [(_key(number, row.position) + lane, row.id) for row in rows]
    db.executemany("INSERT INTO threadkeep_memory_messages VALUES (?, ?)", ids)
    words = [(key, row.words) for (key, _), row in zip(ids, rows, strict=True)]
    db.executemany("INSERT INTO threadkeep_memory_text (rowid, words) VALUES (?, ?)", words)


def _hit(row: tuple[str, int, str | None]) -> Hit:
    """Return a row of the hits, of an edit the record alone, without the position in its name."""
    record, position, id = row
    return Hit(record.partition("/")[0], position, id)


def _key(number: int, position: int) -> int:
    return number << 40 | position << 12


def _keys(db: sqlite3.Connection, thread: str) -> tuple[int, int]:
    """Return the first and the last key that a thread's messages may have."""
    found = db.execute(_NUMBER, (thread,)).fetchone()
    return (_key(found[0], 0), _key(found[0] + 1, 0) - 1) if found else (0, -1)
