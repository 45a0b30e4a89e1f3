"""The MySQL backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from threadkeep._core.engine.usage import ItemUsage
from threadkeep._stores.base import ScrubReport
from threadkeep._stores.database import Database
from threadkeep._stores.derived import derived
from threadkeep._stores.mysql import MysqlOptions, moves, reads
from threadkeep._stores.mysql.server import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    SNAPSHOT,
    MysqlRows,
    MysqlServer,
    MysqlSession,
)
from threadkeep._stores.options import described, from_url

if TYPE_CHECKING:
    from threadkeep._core.engine.heads import Head, Move
    from threadkeep._stores.items.records import SearchOptions


_ITEM_USAGE = """
SELECT COUNT(*), COALESCE(SUM(LENGTH(value)), 0) + (
        SELECT COALESCE(SUM(LENGTH(patch)), 0) FROM tk_item_versions),
    COALESCE(SUM(expires <= %s), 0), COUNT(pending), COALESCE(SUM(LENGTH(vectors)), 0),
    (SELECT COUNT(value) FROM tk_cache), (SELECT COALESCE(SUM(size), 0) FROM tk_cache)
FROM tk_items
"""
_KEPT = (
    "InnoDB's files: run OPTIMIZE TABLE on the tables that begin with tk_.",
    "The redo and binary logs, backups and replicas: remove them, or let them expire.",
)


class MysqlBackend(MysqlServer, Database):
    """Rows in a MySQL or MariaDB database, over connections of PyMySQL.

    Args:
        url: the URL of a database, whose query may have options.
        **options: see `MysqlOptions`.

    Raises:
        OpenError: the URL cannot be read.
        InvalidArgumentError: an option is invalid.
    """

    has_identity = True

    def __init__(self, url: str, **options: Unpack[MysqlOptions]) -> None:
        place, in_url = from_url(url, described(MysqlOptions))
        MysqlServer.__init__(self, place, cast("MysqlOptions", in_url | options))
        Database.__init__(self)

    def fetch(self, reads_: Sequence[Any]) -> list[Any]:
        """Answer each read, in order, all from one snapshot. See `Database.fetch`."""
        return self.call(partial(self._replies, reads_))

    def _replies(self, reads_: Sequence[Any], session: MysqlSession) -> list[Any]:
        queries = [reads.query(read, self.heads.found) for read in reads_]
        if None in queries:
            session.run(SNAPSHOT)
            replies = [self._reply(session, read) for read in reads_]
            session.run([COMMIT])
            return replies
        statements = [one for query in queries if query for one in query.statements]
        if len(statements) == 1:
            results = session.run(statements)
        else:
            results = session.run([*SNAPSHOT, *statements, COMMIT])[len(SNAPSHOT) : -1]
        rows: Iterator[MysqlRows] = iter([result.rows for result in results])
        return [q.reply([next(rows) for _ in q.statements]) for q in queries if q]

    def _reply(self, session: MysqlSession, read: Any) -> Any:
        query = reads.query(read, self.heads.found)
        if query is None:
            return derived(read, partial(self._reply, session))
        return query.reply([result.rows for result in session.run(query.statements)])

    def make(self, many: Sequence[Move]) -> list[Head | None]:
        """Make moves, in one transaction. See `Database.make`."""
        return self.call(partial(self._made, many))

    def _made(self, many: Sequence[Move], session: MysqlSession) -> list[Head | None]:
        statements, places = [BEGIN], {}
        for move in sorted(many, key=lambda one: one.new.thread):  # (so that none wait in a circle)
            places[move.new.thread] = len(statements)
            statements += moves.statements(move)
        beside = len(many[0].beside)  # (if it has any, it is alone)
        found = session.run(statements if beside else [*statements, COMMIT])
        if beside:
            is_made = all(one.found for one in found[1 : 2 + beside])
            session.run([COMMIT if is_made else ROLLBACK])
            if not is_made:
                return [None]
        heads = [(move, found[places[move.new.thread]]) for move in many]
        return [_head(move, head.number) if head.found else None for move, head in heads]

    def identity(self) -> str:
        """Different in each database of a server. See `Backend.identity`."""
        query = "SELECT MD5(CONCAT(identity, DATABASE())) FROM tk_store"
        return str(self.call(lambda session: session.rows(query)[0][0]))

    def items(self, options: SearchOptions) -> Any:
        from threadkeep._stores.mysql.items import MysqlItems  # noqa: PLC0415 - only for a store

        return MysqlItems(self, options)

    def cache(self) -> Any:
        from threadkeep._stores.mysql.cache import MysqlEntries  # noqa: PLC0415 - only for a cache

        return MysqlEntries(self)

    def item_usage(self, now: int) -> ItemUsage:
        (counts,) = self.call(lambda session: session.rows(_ITEM_USAGE, now))
        return ItemUsage._make([*map(int, counts), False])

    def scrub(self, *, rewrite: bool) -> ScrubReport:
        """Name the places that only the server's owner can clear. See `Backend.scrub`."""
        del rewrite
        return ScrubReport(remains=_KEPT)

    def migrate(self) -> None:
        """Make the tables. See `Backend.migrate`."""
        self.call(lambda _: None)


def _head(move: Move, number: int) -> Head:
    return move.new if move.old.tips else move.new._replace(number=number)


opened = MysqlBackend
