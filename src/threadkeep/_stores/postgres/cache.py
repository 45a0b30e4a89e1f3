"""Cache in a PostgreSQL schema, over the connections of a saver's backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep._stores import caches
from threadkeep._stores.postgres.connections import PostgresDatabase
from threadkeep._stores.postgres.messages import NEWEST_STATE
from threadkeep._stores.postgres.statement import Number, Query, Statement, array
from threadkeep.errors import ThreadkeepError

# An `Array` must be the first parameter: see `connections._execute`. `_SET` and `_LEASE` lock rows
# in the order of ids.
_GET = """
SELECT id, value, owner FROM {schema}.cache
WHERE id = ANY (%s::bytea[]) AND (expires IS NULL OR expires > %s)
"""
_SET = """
WITH e AS (
    SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[]) o (id, expires, value))
INSERT INTO {schema}.cache (id, used, expires, size, value)
SELECT e.id, %s, e.expires, octet_length(e.value), e.value FROM e ORDER BY e.id
ON CONFLICT (id) DO UPDATE SET used = excluded.used, expires = excluded.expires,
    size = excluded.size, owner = NULL, value = excluded.value
"""
_USE = """
UPDATE {schema}.cache SET used = %s WHERE id IN (
    SELECT id FROM {schema}.cache WHERE id = ANY (%s::bytea[]) FOR UPDATE SKIP LOCKED)
"""
_REMOVE = """
DELETE FROM {schema}.cache
WHERE id = ANY (%s::bytea[]) AND (%s::bytea IS NULL OR owner = %s::bytea)
"""
_CLEAR = """
DELETE FROM {schema}.cache c USING unnest(%s::bytea[], %s::bytea[]) o (first, stop)
WHERE c.id >= o.first AND c.id < o.stop
"""
_LEASE = """
INSERT INTO {schema}.cache AS c (id, used, expires, size, owner)
SELECT o.id, %s, %s, 0, %s::bytea FROM unnest(%s::bytea[]) o (id) ORDER BY o.id
ON CONFLICT (id) DO UPDATE SET used = excluded.used, expires = excluded.expires, size = 0,
    owner = excluded.owner, value = NULL
    WHERE c.expires <= excluded.used
"""
_TOTALS = Statement("SELECT count(*), coalesce(sum(size), 0)::bigint FROM {schema}.cache")
_EXPIRED = "SELECT id, size FROM {schema}.cache WHERE expires <= %s LIMIT %s"
_OLDEST = Statement(
    "SELECT id, size FROM {schema}.cache ORDER BY used LIMIT %s", (Number(caches.PAGE),)
)


class PostgresEntries(caches.AsyncCacheBackend):
    """Rows in the table `cache`, which migrations create."""

    commits_groups = True

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        return await self._database.replies([_query(read) for read in reads])

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        await self._database.answered(list(map(_statement, changes)), NEWEST_STATE)
        return [None] * len(changes)

    async def migrate(self) -> None:
        await self._database.migrate()


def _query(read: caches.GetEntries | caches.ReadUses) -> Query:
    if isinstance(read, caches.GetEntries):
        get = Statement(_GET, (array("bytea", read.ids), read.now))
        return Query((get,), lambda answers: {row[0]: row[1:] for row in answers[0]})
    expired = Statement(_EXPIRED, (Number(read.now), Number(caches.PAGE)))
    return Query(
        (_TOTALS, expired, _OLDEST), lambda answers: caches.Uses(*answers[0][0], *answers[1:])
    )


def _statement(change: caches.CacheChange) -> Statement:
    match change:
        case caches.SetEntries(entries, now):
            ids, values, ends = zip(*entries, strict=True)
            columns = (array("bytea", ids), array("bigint", ends), array("bytea", values))
            return Statement(_SET, (*columns, now))
        case caches.LeaseEntries(ids, owner, now, until):
            return Statement(_LEASE, (now, until, owner, list(ids)))
        case caches.UseEntries(ids, now):
            return Statement(_USE, (now, list(ids)))
        case caches.RemoveEntries(ids, owner):
            return Statement(_REMOVE, (array("bytea", ids), owner, owner))
        case caches.ClearEntries(spaces):
            if spaces is None:
                return Statement("DELETE FROM {schema}.cache")
            stops = [caches.end_of(space) for space in spaces]
            return Statement(_CLEAR, (array("bytea", spaces), array("bytea", stops)))
