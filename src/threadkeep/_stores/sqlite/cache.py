"""Cache in a SQLite file, over the connections of a saver's backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from threadkeep._stores.caches import (
    PAGE,
    CacheBackend,
    CacheChange,
    CacheRow,
    Claim,
    ClearEntries,
    GetEntries,
    RemoveEntries,
    SetEntries,
    TrimEntries,
    UseEntries,
    end_of,
)
from threadkeep._stores.sqlite.connections import MadeTables
from threadkeep._stores.sqlite.opening import statements
from threadkeep.errors import OpenError, ThreadkeepError

_IS_MADE = "SELECT count(*) FROM sqlite_master WHERE name = 'tk_cache_expiring'"
_GET = """
SELECT value, owner FROM tk_cache WHERE id = ? AND (expires IS NULL OR expires > ?)
"""
_SET = "INSERT OR REPLACE INTO tk_cache (id, used, expires, size, value) VALUES (?, ?, ?, ?, ?)"
_CLAIM = """
INSERT INTO tk_cache (id, used, expires, size, owner) VALUES (?1, ?2, ?3, 0, ?4)
ON CONFLICT (id) DO UPDATE SET used = ?2, expires = ?3, size = 0, owner = ?4, value = NULL
    WHERE expires <= ?2
"""
_EXPIRED = """
DELETE FROM tk_cache WHERE rowid IN (SELECT rowid FROM tk_cache WHERE expires <= ? LIMIT ?)
"""
_OLDEST = """
WITH total (entries, bytes) AS (SELECT count(*), sum(size) FROM tk_cache),
    oldest (id, size, entries, bytes) AS (
        SELECT rowid, size, row_number() OVER older, sum(size) OVER older
        FROM (SELECT rowid, used, size FROM tk_cache ORDER BY used LIMIT ?)
        WINDOW older AS (ORDER BY used ROWS UNBOUNDED PRECEDING))
DELETE FROM tk_cache WHERE rowid IN (
    SELECT id FROM oldest, total
    WHERE oldest.entries <= total.entries - ? OR oldest.bytes - size < total.bytes - ?)
RETURNING 1
"""


class SqliteEntries(MadeTables, CacheBackend):
    """Rows in a table of a saver's file, created at the first use."""

    commits_groups = True

    content = "cache"
    missing = OpenError  # (a cache that cannot be read is a miss)

    def _is_made(self, db: sqlite3.Connection) -> bool:
        return bool(db.execute(_IS_MADE).fetchone()[0])

    def _make(self, db: sqlite3.Connection) -> None:
        for statement in statements("cache.sql"):
            db.execute(statement)

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        return self._connections.answered(reads, _get, begin=True)

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        with self._connections.writing() as db:
            for change in changes:
                _carry_out(db, change)
        return [None] * len(changes)

    def claim(self, claim: Claim) -> list[bytes]:
        with self._connections.writing() as db:
            return [
                id_
                for id_ in claim.ids
                if db.execute(_CLAIM, (id_, claim.now, claim.until, claim.owner)).rowcount
            ]

    def trim(self, trim: TrimEntries) -> int:
        with self._connections.writing() as db:
            db.execute(_EXPIRED, (trim.now, PAGE))
            limits = (PAGE, trim.max_entries, trim.max_bytes)
            return len(db.execute(_OLDEST, limits).fetchall())


def _get(db: sqlite3.Connection, read: GetEntries) -> dict[bytes, CacheRow]:
    rows = {id_: db.execute(_GET, (id_, read.now)).fetchone() for id_ in read.ids}
    return {id_: row for id_, row in rows.items() if row is not None}


def _carry_out(db: sqlite3.Connection, change: CacheChange) -> None:
    match change:
        case SetEntries(entries, now):
            rows = [(id_, now, end, len(value), value) for id_, value, end in entries]
            db.executemany(_SET, rows)
        case UseEntries(ids, now):
            used = [(now, id_) for id_ in ids]
            db.executemany("UPDATE tk_cache SET used = ? WHERE id = ?", used)
        case RemoveEntries(ids, owner):
            query = "DELETE FROM tk_cache WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)"
            db.executemany(query, [(id_, owner) for id_ in ids])
        case ClearEntries(None):
            db.execute("DELETE FROM tk_cache")
        case ClearEntries(spaces):
            ranges = [(space, end_of(space)) for space in spaces or ()]
            db.executemany("DELETE FROM tk_cache WHERE id >= ? AND id < ?", ranges)
