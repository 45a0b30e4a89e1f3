"""Cache in a SQLite file, over the connections of a saver's backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from threadkeep.backends.sqlite.connections import Connections
from threadkeep.cache.backend import (
    AT_ONCE,
    CacheBackend,
    Change,
    Claim,
    ClearEntries,
    GetEntries,
    Limits,
    RemoveEntries,
    Row,
    SetEntries,
    UseEntries,
    end_of,
    surplus,
)
from threadkeep.errors import OpenError, ThreadkeepError

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS tk_cache (
        id BLOB PRIMARY KEY, used INTEGER NOT NULL, expires INTEGER, size INTEGER NOT NULL,
        owner BLOB, value BLOB)
    """,
    "CREATE INDEX IF NOT EXISTS tk_cache_used ON tk_cache (used, size)",
    """
    CREATE INDEX IF NOT EXISTS tk_cache_expiring ON tk_cache (expires)
    WHERE expires IS NOT NULL
    """,
)
_IS_MADE = "SELECT count(*) FROM sqlite_master WHERE name = 'tk_cache_expiring'"
_GET = """
SELECT id, value, owner, used FROM tk_cache
WHERE id IN ({ids}) AND (expires IS NULL OR expires > ?)
"""
_SET = """
INSERT INTO tk_cache (id, used, expires, size, value) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET used = excluded.used, expires = excluded.expires,
    size = excluded.size, owner = NULL, value = excluded.value
"""
_CLAIM = """
INSERT INTO tk_cache (id, used, expires, size, owner) VALUES (?1, ?2, ?3, 0, ?4)
ON CONFLICT (id) DO UPDATE SET used = ?2, expires = ?3, size = 0, owner = ?4, value = NULL
    WHERE expires <= ?2
"""
_EXPIRED = """
DELETE FROM tk_cache WHERE rowid IN (SELECT rowid FROM tk_cache WHERE expires <= ? LIMIT ?)
"""
_PAGE = 500  # parameters of one query


class SqliteEntries(CacheBackend):
    """Rows in a table of a saver's file, made where there is none."""

    commits_groups = True

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        location = connections.location
        with connections.reading() as db:
            (is_made,) = db.execute(_IS_MADE).fetchone()
        if not is_made and location.is_read_only:
            raise OpenError(
                f"{location.path} has no cache, and is read only.",
                hint="Open it for writing once.",
            )
        if not is_made:
            with connections.writing() as db:
                for statement in _TABLES:
                    db.execute(statement)

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """See `CacheBackend`."""
        with self._connections.reading() as db:
            return [_get(db, read) for read in reads]

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `CacheBackend`."""
        with self._connections.writing() as db:
            for change in changes:
                _carry_out(db, change)
        return [None] * len(changes)

    def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        with self._connections.writing() as db:
            return [
                id_
                for id_ in claim.ids
                if db.execute(_CLAIM, (id_, claim.now, claim.until, claim.owner)).rowcount
            ]

    def trim(self, now: int, limits: Limits) -> None:
        """See `CacheBackend.trim`."""
        with self._connections.writing() as db:
            db.execute(_EXPIRED, (now, AT_ONCE))
            query = "SELECT count(*), coalesce(sum(size), 0) FROM tk_cache"
            count, size = db.execute(query).fetchone()
            over = Limits(count - limits.entries, size - limits.size)
            if max(over) > 0:
                query = "SELECT rowid, size FROM tk_cache ORDER BY used LIMIT ?"
                oldest = db.execute(query, (AT_ONCE,)).fetchall()
                gone = [(rowid,) for rowid in surplus(oldest, over)]
                db.executemany("DELETE FROM tk_cache WHERE rowid = ?", gone)


def _get(db: sqlite3.Connection, read: GetEntries) -> list[Row | None]:
    found: dict[bytes, Row] = {}
    for first in range(0, len(read.ids), _PAGE):
        ids = read.ids[first : first + _PAGE]
        query = _GET.replace("{ids}", ", ".join("?" * len(ids)))
        for id_, value, owner, used in db.execute(query, (*ids, read.now)):
            found[id_] = Row(value, owner, used)
    return [found.get(id_) for id_ in read.ids]


def _carry_out(db: sqlite3.Connection, change: Change) -> None:
    match change:
        case SetEntries():
            rows = [
                (id_, change.now, expires_at, len(value), value)
                for id_, value, expires_at in change.entries
            ]
            db.executemany(_SET, rows)
        case UseEntries():
            used = [(change.now, id_) for id_ in change.ids]
            db.executemany("UPDATE tk_cache SET used = ? WHERE id = ?", used)
        case RemoveEntries():
            query = "DELETE FROM tk_cache WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)"
            db.executemany(query, [(id_, change.owner) for id_ in change.ids])
        case ClearEntries(spaces=None):
            db.execute("DELETE FROM tk_cache")
        case ClearEntries():
            ranges = [(space, end_of(space)) for space in change.spaces or ()]
            db.executemany("DELETE FROM tk_cache WHERE id >= ? AND id < ?", ranges)
