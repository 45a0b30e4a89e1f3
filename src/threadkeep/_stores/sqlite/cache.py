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
    ClearEntries,
    GetEntries,
    LeaseEntries,
    ReadUses,
    RemoveEntries,
    SetEntries,
    UseEntries,
    Uses,
    end_of,
)
from threadkeep._stores.sqlite.connections import MadeTables
from threadkeep.errors import OpenError, ThreadkeepError

_GET = """
SELECT value, owner FROM tk_cache WHERE id = ? AND (expires IS NULL OR expires > ?)
"""
_SET = "INSERT OR REPLACE INTO tk_cache (id, used, expires, size, value) VALUES (?, ?, ?, ?, ?)"
_LEASE = """
INSERT INTO tk_cache (id, used, expires, size, owner) VALUES (?1, ?2, ?3, 0, ?4)
ON CONFLICT (id) DO UPDATE SET used = ?2, expires = ?3, size = 0, owner = ?4, value = NULL
    WHERE expires <= ?2
"""
_TOTALS = "SELECT count(*), coalesce(sum(size), 0) FROM tk_cache"
_EXPIRED = "SELECT id, size FROM tk_cache WHERE expires <= ? LIMIT ?"
_OLDEST = """
SELECT c.id, c.size FROM (SELECT rowid AS row FROM tk_cache ORDER BY used LIMIT ?) o
CROSS JOIN tk_cache c ON c.rowid = o.row
"""


class SqliteEntries(MadeTables, CacheBackend):
    """Rows in a table of a saver's file, created at the first use."""

    commits_groups = True

    content, schema, last = "cache", "cache.sql", "tk_cache_expiring"
    missing = OpenError  # (a cache that cannot be read is a miss)

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        return self._connections.answered(reads, _reply, begin=True)

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        with self._connections.writing() as db:
            for change in changes:
                _carry_out(db, change)
        return [None] * len(changes)


def _reply(db: sqlite3.Connection, read: GetEntries | ReadUses) -> dict[bytes, CacheRow] | Uses:
    if isinstance(read, ReadUses):
        entries, size = db.execute(_TOTALS).fetchone()
        expired = db.execute(_EXPIRED, (read.now, PAGE)).fetchall()
        return Uses(entries, size, expired, db.execute(_OLDEST, (PAGE,)).fetchall())
    rows = {id_: db.execute(_GET, (id_, read.now)).fetchone() for id_ in read.ids}
    return {id_: row for id_, row in rows.items() if row is not None}


def _carry_out(db: sqlite3.Connection, change: CacheChange) -> None:
    match change:
        case SetEntries(entries, now):
            rows = [(id_, now, end, len(value), value) for id_, value, end in entries]
            db.executemany(_SET, rows)
        case LeaseEntries(ids, owner, now, until):
            db.executemany(_LEASE, [(id_, now, until, owner) for id_ in ids])
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
