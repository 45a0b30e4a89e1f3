"""Cache in a PostgreSQL schema, over the connections of a saver's backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep.backends.postgres.backend import AsyncPostgresBackend
from threadkeep.backends.postgres.connections import NEWEST_STATE, ONE_STATE
from threadkeep.backends.postgres.statement import Rows, Statement, array
from threadkeep.cache.backend import (
    AT_ONCE,
    AsyncCacheBackend,
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
from threadkeep.errors import ThreadkeepError

# (Arrays come first: see `connections.send`. Rows are locked in the order of ids.)
_GET = """
SELECT id, value, owner, used FROM {schema}.cache
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
_CLAIM = """
INSERT INTO {schema}.cache AS c (id, used, expires, size, owner)
SELECT o.id, %s, %s, 0, %s::bytea FROM unnest(%s::bytea[]) o (id) ORDER BY o.id
ON CONFLICT (id) DO UPDATE SET used = excluded.used, expires = excluded.expires, size = 0,
    owner = excluded.owner, value = NULL
    WHERE c.expires <= excluded.used
RETURNING id
"""
_EXPIRED = """
DELETE FROM {schema}.cache WHERE id IN (
    SELECT id FROM {schema}.cache WHERE expires <= %s LIMIT %s FOR UPDATE SKIP LOCKED)
"""
_TOTALS = "SELECT count(*), coalesce(sum(size), 0)::bigint FROM {schema}.cache"
_OLDEST = "SELECT id, size FROM {schema}.cache ORDER BY used LIMIT %s"


class PostgresEntries(AsyncCacheBackend):
    """Rows in the table `cache`, which migrations make."""

    commits_groups = True

    def __init__(self, database: AsyncPostgresBackend) -> None:
        self._database = database

    async def _send(
        self, statements: Sequence[Statement], isolation: str = NEWEST_STATE
    ) -> list[Rows]:
        with self._database.mapped_errors():
            return await self._database.answered(statements, isolation)

    async def fetch(self, reads: Sequence[Any]) -> list[Any]:
        """See `CacheBackend`."""
        statements = [Statement(_GET, (_array(read.ids), read.now)) for read in reads]
        answers = await self._send(statements, ONE_STATE)
        return [_rows(read, rows) for read, rows in zip(reads, answers, strict=True)]

    async def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `CacheBackend`."""
        await self._send([_statement(change) for change in changes])
        return [None] * len(changes)

    async def claim(self, claim: Claim) -> list[bytes]:
        """See `CacheBackend.claim`."""
        values = (claim.now, claim.until, claim.owner, list(claim.ids))
        (rows,) = await self._send([Statement(_CLAIM, values)])
        return [id_ for (id_,) in rows]

    async def trim(self, now: int, limits: Limits) -> None:
        """See `CacheBackend.trim`."""
        gone = Statement(_EXPIRED, (now, AT_ONCE))
        _, ((count, size),) = await self._send([gone, Statement(_TOTALS)])
        over = Limits(count - limits.entries, size - limits.size)
        if max(over) > 0:
            (oldest,) = await self._send([Statement(_OLDEST, (AT_ONCE,))])
            ids = tuple(surplus(((id_, bytes_) for id_, bytes_ in oldest), over))
            await self.commit(RemoveEntries(ids))

    async def migrate(self) -> None:
        """See `Backend.migrate`."""
        await self._database.migrate()


def _array(ids: Sequence[bytes]) -> Any:
    return array("bytea", ids)


def _rows(read: GetEntries, rows: Rows) -> list[Row | None]:
    found = {id_: Row(value, owner, used) for id_, value, owner, used in rows}
    return [found.get(id_) for id_ in read.ids]


def _statement(change: Change) -> Statement:
    match change:
        case SetEntries():
            ids = _array([one.id for one in change.entries])
            expiring = array("bigint", [one.expires_at for one in change.entries])
            values = _array([one.value for one in change.entries])
            return Statement(_SET, (ids, expiring, values, change.now))
        case UseEntries():
            return Statement(_USE, (change.now, list(change.ids)))
        case RemoveEntries():
            return Statement(_REMOVE, (_array(change.ids), change.owner, change.owner))
        case ClearEntries(spaces=None):
            return Statement("DELETE FROM {schema}.cache")
        case ClearEntries():
            spaces = change.spaces or ()
            return Statement(_CLEAR, (_array(spaces), _array([end_of(one) for one in spaces])))


entries_over = PostgresEntries
