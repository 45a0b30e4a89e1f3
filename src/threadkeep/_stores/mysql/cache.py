"""Cache in MySQL, over the connections of a saver's backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from threadkeep._stores.caches import (
    PAGE,
    CacheBackend,
    CacheChange,
    ClearEntries,
    LeaseEntries,
    ReadUses,
    RemoveEntries,
    SetEntries,
    UseEntries,
    Uses,
    end_of,
)
from threadkeep._stores.mysql.server import BEGIN, COMMIT, MysqlServer, MysqlSession, Sql, marks
from threadkeep.errors import ThreadkeepError

_SET = "REPLACE INTO tk_cache (id, used, expires, size, value) VALUES (%s, %s, %s, %s, %s)"
_GET = "SELECT id, value, owner FROM tk_cache WHERE id IN ({}) AND COALESCE(expires > %s, TRUE)"
_LEASE = "INSERT IGNORE INTO tk_cache (id, used, expires, size, owner) VALUES (%s, %s, %s, 0, %s)"
_TOTALS = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM tk_cache"
_EXPIRED = "SELECT id, size FROM tk_cache WHERE expires <= %s LIMIT %s"
_OLDEST = "SELECT id, size FROM tk_cache ORDER BY used LIMIT %s"


class MysqlEntries(CacheBackend):
    """Rows in a table of a saver's database."""

    commits_groups = True

    def __init__(self, server: MysqlServer) -> None:
        self._server = server

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        return self._server.call(lambda session: [_reply(session, read) for read in reads])

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        statements = [one for change in changes for one in _statements(change)]
        self._server.call(lambda session: session.run([BEGIN, *statements, COMMIT]))
        return [None] * len(changes)


def _reply(session: MysqlSession, read: Any) -> Any:
    if isinstance(read, ReadUses):
        ((entries, size),) = session.rows(_TOTALS)
        expired = [*session.rows(_EXPIRED, read.now, PAGE)]
        return Uses(entries, int(size), expired, [*session.rows(_OLDEST, PAGE)])
    rows = session.rows(_GET.format(marks(read.ids)), *read.ids, read.now)
    return {id_: (value, owner) for id_, value, owner in rows}


def _statements(change: CacheChange) -> Iterator[Sql]:
    match change:
        case SetEntries(entries, now):
            for id_, value, end in entries:
                yield Sql(_SET, (id_, now, end, len(value), value))
        case LeaseEntries(ids, owner, now, until):
            expired = f"DELETE FROM tk_cache WHERE expires <= %s AND id IN ({marks(ids)})"
            yield Sql(expired, (now, *ids))
            yield from [Sql(_LEASE, (id_, now, until, owner)) for id_ in ids]
        case UseEntries(ids, now):
            yield Sql(f"UPDATE tk_cache SET used = %s WHERE id IN ({marks(ids)})", (now, *ids))
        case RemoveEntries(ids, owner):
            of_owner, last = ("", ()) if owner is None else (" AND owner = %s", (owner,))
            yield Sql(f"DELETE FROM tk_cache WHERE id IN ({marks(ids)}){of_owner}", (*ids, *last))
        case ClearEntries(None):
            yield Sql("DELETE FROM tk_cache")
        case ClearEntries(spaces):
            for space in spaces or ():
                yield Sql("DELETE FROM tk_cache WHERE id >= %s AND id < %s", (space, end_of(space)))
