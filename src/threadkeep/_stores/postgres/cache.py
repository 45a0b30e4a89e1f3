"""Cache in a PostgreSQL schema, over the connections of a saver's backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep._stores import caches
from threadkeep._stores.postgres.connections import PostgresDatabase
from threadkeep._stores.postgres.messages import NEWEST_STATE, ONE_STATE
from threadkeep._stores.postgres.statement import Statement, array
from threadkeep.errors import ThreadkeepError

# An `Array` must be the first parameter: see `connections._execute`. `_SET` and `_CLAIM` lock rows
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
# (an earlier try may have made the claim, and lost the answer)
_CLAIM = """
INSERT INTO {schema}.cache AS c (id, used, expires, size, owner)
SELECT o.id, %s, %s, 0, %s::bytea FROM unnest(%s::bytea[]) o (id) ORDER BY o.id
ON CONFLICT (id) DO UPDATE SET used = excluded.used, expires = excluded.expires, size = 0,
    owner = excluded.owner, value = NULL
    WHERE c.expires <= excluded.used OR c.owner = excluded.owner
RETURNING id
"""
_EXPIRED = """
DELETE FROM {schema}.cache WHERE id IN (
    SELECT id FROM {schema}.cache WHERE expires <= %s LIMIT %s FOR UPDATE SKIP LOCKED)
"""
_OLDEST = """
WITH total (entries, bytes) AS (SELECT count(*), sum(size) FROM {schema}.cache),
    oldest (id, size, entries, bytes) AS (
        SELECT id, size, row_number() OVER older, sum(size) OVER older
        FROM (SELECT id, used, size FROM {schema}.cache ORDER BY used LIMIT %s) o
        WINDOW older AS (ORDER BY used ROWS UNBOUNDED PRECEDING)),
    surplus (id) AS (
        SELECT id FROM oldest, total
        WHERE oldest.entries <= total.entries - %s OR oldest.bytes - size < total.bytes - %s),
    gone AS (
        DELETE FROM {schema}.cache WHERE id IN (
            SELECT id FROM {schema}.cache JOIN surplus USING (id) FOR UPDATE OF cache SKIP LOCKED)
        RETURNING 1)
SELECT count(*) FROM gone
"""


class PostgresEntries(caches.AsyncCacheBackend):
    """Rows in the table `cache`, which migrations create."""

    commits_groups = True

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        statements = [Statement(_GET, (array("bytea", read.ids), read.now)) for read in reads]
        answers = await self._database.answered(statements, ONE_STATE)
        return [{id_: (value, owner) for id_, value, owner in rows} for rows in answers]

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        await self._database.answered(list(map(_statement, changes)), NEWEST_STATE)
        return [None] * len(changes)

    async def claim(self, claim: caches.Claim) -> list[bytes]:
        values = (claim.now, claim.until, claim.owner, list(claim.ids))
        (rows,) = await self._database.answered([Statement(_CLAIM, values)], NEWEST_STATE)
        return [id_ for (id_,) in rows]

    async def trim(self, trim: caches.TrimEntries) -> int:
        expired = Statement(_EXPIRED, (trim.now, caches.PAGE))
        oldest = Statement(_OLDEST, (caches.PAGE, trim.max_entries, trim.max_bytes))
        _, ((removed,),) = await self._database.answered([expired, oldest], NEWEST_STATE)
        return int(removed)

    async def migrate(self) -> None:
        await self._database.migrate()


def _statement(change: caches.CacheChange) -> Statement:
    match change:
        case caches.SetEntries(entries, now):
            ids, values, ends = zip(*entries, strict=True)
            columns = (array("bytea", ids), array("bigint", ends), array("bytea", values))
            return Statement(_SET, (*columns, now))
        case caches.UseEntries(ids, now):
            return Statement(_USE, (now, list(ids)))
        case caches.RemoveEntries(ids, owner):
            return Statement(_REMOVE, (array("bytea", ids), owner, owner))
        case caches.ClearEntries(spaces):
            if spaces is None:
                return Statement("DELETE FROM {schema}.cache")
            stops = [caches.end_of(space) for space in spaces]
            return Statement(_CLEAR, (array("bytea", spaces), array("bytea", stops)))
