"""Items in MySQL. Vectors and words are compared in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep._stores.items import ItemBackend, are_of, merged, other_dims, records
from threadkeep._stores.items.filters import best_texts, nearest
from threadkeep._stores.items.records import ItemRow, Namespace
from threadkeep._stores.items.sql import Dialect, key_of, namespace_of, stored, where
from threadkeep._stores.mysql.server import (
    BEGIN,
    COMMIT,
    SNAPSHOT,
    MysqlServer,
    MysqlSession,
    Sql,
    marks,
)
from threadkeep.errors import ConflictError, ThreadkeepError

_AT = "path = %s AND name = %s"
_UNDER = "path >= %s AND path < %s"
_ROWS = """SELECT path, name, is_json, value, created, updated, version, ttl, expires, pending
    FROM tk_items i"""
_COUNT = "UPDATE tk_store SET counter = LAST_INSERT_ID(counter + %s)"
_ITEM = f"REPLACE INTO tk_items VALUES ({marks(range(13))})"
_DELETE = f"DELETE FROM tk_items WHERE {_AT}"
_EXPIRED = f"""SELECT path, name FROM tk_items
    WHERE {_UNDER} AND expires <= %s LIMIT %s FOR UPDATE"""
_VERSIONS = "SELECT * FROM tk_item_versions i"
_KEEP = f"REPLACE INTO tk_item_versions VALUES ({marks(range(7))})"
_OLDEST = f"""DELETE FROM tk_item_versions WHERE {_AT} AND version <= (SELECT version FROM (
    SELECT version FROM tk_item_versions WHERE {_AT} ORDER BY version DESC LIMIT 1 OFFSET %s) v)"""
_EMBED = f"""UPDATE tk_items SET dims = %s, vectors = %s, pending = NULL
    WHERE {_AT} AND version = %s AND pending IS NOT NULL"""
_REFRESH = f"UPDATE tk_items SET expires = %s + ttl WHERE {_AT} AND ttl IS NOT NULL"
_PATCH = f"UPDATE tk_item_versions SET patch = %s WHERE {_AT} AND version = %s"


class MysqlItems(ItemBackend):
    """Rows in the tables of a saver's database. Hints of filters are left to the caller."""

    commits_groups = True
    newest_first = True

    def __init__(self, server: MysqlServer, options: records.SearchOptions) -> None:
        self._server, self._options = server, options

    def migrate(self) -> None:
        """Make the tables, and check the dimensions of their vectors."""
        self._server.call(lambda session: self._check_dims(session, self._options.dims))

    def _check_dims(self, session: MysqlSession, is_used: object) -> None:
        sql = "SELECT dims FROM tk_items WHERE dims <> %s LIMIT 1"
        for (dims,) in session.rows(sql, self._options.dims) if is_used else ():
            raise other_dims(self._options.dims, dims)

    # -- reads ---------------------------------------------------------------------------

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        def replies(session: MysqlSession) -> list[Any]:
            if len(reads) == 1 and not isinstance(reads[0], records.FindNearest | records.FindText):
                return [self._reply(session, reads[0])]
            session.run(SNAPSHOT)
            found = [self._reply(session, read) for read in reads]
            session.run([COMMIT])
            return found

        return self._server.call(replies)

    def _reply(self, session: MysqlSession, read: Any) -> Any:
        match read:
            case records.GetItems(keys, now):
                found = _rows(session, [key_of(*key) for key in keys])
                rows = [found.get(key_of(*key)) for key in keys]
                return [row if row and row.is_there(now) else None for row in rows]
            case records.FindItems():
                end, _, values = _DIALECT.find(read)
                return [_item(row) for row in _found(session, f"{_ROWS} {end}", values)]
            case records.FindNamespaces():
                rows = _under(session, "DISTINCT path", read)
                return [_namespace(path) for (path,) in rows]
            case records.FindVersions():
                end, values = _DIALECT.versions(read)
                rows = _found(session, f"{_VERSIONS} {end}", values)
                return [stored(_namespace(row[0]), row[1].decode(), row[2:]) for row in rows]
            case records.FindText():
                rows = _under(session, "path, name, words", read, "words IS NOT NULL")
                texts = {_place(row): row[2].decode() for row in rows}
                return _scored(session, best_texts(texts, read.words, read.limit))
            case records.FindNearest():
                rows = _under(session, "path, name, vectors", read, "vectors IS NOT NULL")
                vectors = [(_place(row), row[2]) for row in rows]
                metric = self._options.metric
                return _scored(session, nearest(metric, vectors, read.vector, read.limit))

    # -- changes -------------------------------------------------------------------------

    def commit(self, change: Any) -> None:
        (refused,) = self.commit_many([change])
        if refused is not None:
            raise refused

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """A refused change writes nothing."""
        retries, together = self._server.retries, merged(changes)

        def made(session: MysqlSession) -> list[ThreadkeepError | None]:
            session.run([BEGIN])
            lost = self._server.retries > retries
            some = changes if together is None else [together]
            found = [self._carried_out(session, change, may_be_put=lost) for change in some]
            session.run([COMMIT])
            return [*found] if together is None else [None] * len(changes)

        return self._server.call(made)

    def _carried_out(
        self, session: MysqlSession, change: records.ItemChange, *, may_be_put: bool
    ) -> ConflictError | None:
        match change:
            case records.PutItems():
                return self._put(session, change, may_be_put=may_be_put)
            case records.RefreshItems(keys, now):
                statements = [Sql(_REFRESH, (now, *key_of(*key))) for key in keys]
            case records.EmbedItems(items):
                self._check_dims(session, any(one.vectors for one in items))
                done = [(*_packed(one.vectors), *key_of(*one[:2]), one.version) for one in items]
                statements = [Sql(_EMBED, values) for values in done]
            case records.ReplacePatches(versions):
                places = [(patch, *key_of(*one[:2]), one.row.version) for one, patch in versions]
                statements = [Sql(_PATCH, values) for values in places]
        session.run(statements)
        return None

    def _put(
        self, session: MysqlSession, change: records.PutItems, *, may_be_put: bool
    ) -> ConflictError | None:
        """Put items. The counter's row stays locked until the end, so that puts take turns."""
        puts, now = change
        self._check_dims(session, any(put.vectors for put in puts))
        counted = session.run([Sql(_COUNT, (len(puts),))])[0].number - len(puts)
        keys = [key_of(put.namespace, put.key) for put in puts]
        found = _rows(session, keys)
        rows = [found.get(key) for key in keys]
        versions = [row.version if row else 0 for row in rows]
        if any(put.expects not in (None, at) for put, at in zip(puts, versions, strict=True)):
            is_put = may_be_put and are_of(change, rows)
            return None if is_put else ConflictError("The item has another version.")
        statements = []
        version = counted * records.VERSION_STEP + records.random_bits()
        for at, put, row in zip(keys, puts, rows, strict=True):
            version += records.VERSION_STEP
            if put.earlier is not None:
                statements.append(Sql(_KEEP, (*at, *put.earlier.row)))
                statements.append(Sql(_OLDEST, (*at, *at, put.earlier.keep)))
            if put.value is None:
                statements.append(Sql(_DELETE, at))
            else:
                created, updated, expires = put.times_at(now, row.created_at if row else now)
                times = (version, created, updated, put.ttl, expires)
                texts = (put.pending, *_packed(put.vectors), put.words or None)
                value = (isinstance(put.value, str), put.value)
                statements.append(Sql(_ITEM, (*at, *times, *texts, *value)))
        session.run(statements)
        return None

    def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        expired = Sql(_EXPIRED, (*_DIALECT.bounds(prefix), now, limit))

        def swept(session: MysqlSession) -> int:
            keys = session.run([BEGIN, expired])[1].rows
            chosen = f"(path, name) IN ({marks(keys)})" if keys else "FALSE"
            removals = _removals(chosen, tuple([part for key in keys for part in key]))
            session.run([*removals, COMMIT])
            return len(keys)

        return self._server.call(swept)

    def erase(self, prefix: Namespace) -> int:
        statements = [BEGIN, *_removals(_UNDER, _DIALECT.bounds(prefix)), COMMIT]
        return self._server.call(lambda session: session.run(statements)[1].found)


def _removals(chosen: str, values: tuple[Any, ...]) -> list[Sql]:
    tables = ("tk_items", "tk_item_versions")
    return [Sql(f"DELETE FROM {table} WHERE {chosen}", values) for table in tables]


# -- rows ----------------------------------------------------------------------------------


# (hints are left to the caller; texts are valid UTF-8)
_DIALECT = Dialect(key_of, b"\xff", "i.vectors IS NULL", lambda _: None)


def _place(row: Sequence[Any]) -> tuple[str, str]:
    return row[0].decode(), row[1].decode()


def _namespace(path: bytes) -> Namespace:
    return namespace_of(path.decode())


def _packed(vectors: Sequence[records.Vector]) -> tuple[int | None, bytes | None]:
    """Return the dimensions of some vectors, and their data."""
    data = b"".join([one.data for one in vectors])
    return (len(vectors[0].data) // 4, data) if vectors else (None, None)


def _item(row: Sequence[Any]) -> ItemRow:
    path, name, is_json, value, created, updated, version, ttl, expires, pending = row
    value = value.decode() if is_json else value
    item = (_namespace(path), name.decode(), value, created, updated, version, _place(row))
    return ItemRow(*item, ttl, expires, pending and pending.decode())


def _rows(session: MysqlSession, keys: Sequence[tuple[str, str]]) -> dict[Any, ItemRow]:
    """Return the items with these paths and names."""
    any_of = " OR ".join([f"({_AT})"] * len(keys)) or "FALSE"
    rows = session.rows(f"{_ROWS} WHERE {any_of}", *[part for key in keys for part in key])
    return {row.place: row for row in map(_item, rows)}


def _found(session: MysqlSession, sql: str, values: Sequence[Any]) -> Any:
    return session.rows(sql.replace("i.key", "i.name"), *values)


def _under(session: MysqlSession, names: str, read: Any, *tests: str) -> Any:
    found, values = _DIALECT.tests(read)
    return _found(session, f"SELECT {names} FROM tk_items i {where([*found, *tests])}", values)


def _scored(session: MysqlSession, found: Sequence[tuple[Any, float]]) -> list[records.Scored]:
    rows = _rows(session, [place for place, _ in found])
    return [records.Scored(rows[place], score) for place, score in found]
