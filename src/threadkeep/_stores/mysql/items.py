"""Items in MySQL. Vectors and words are compared in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadkeep._stores.items import ItemBackend, merged, other_dims
from threadkeep._stores.items.filters import best, nearest, word_scores
from threadkeep._stores.items.records import (
    VERSION_STEP,
    EmbedItems,
    FindItems,
    FindNamespaces,
    FindNearest,
    FindText,
    FindVersions,
    GetItems,
    ItemChange,
    ItemRow,
    Namespace,
    PutItems,
    RefreshItems,
    ReplacePatches,
    Scored,
    SearchOptions,
    StoredVersion,
    Vector,
    VersionRow,
    random_bits,
)
from threadkeep._stores.mysql.reads import Term, terms_of
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
_ROWS = """SELECT path, name, is_json, value, created, updated, version, ttl, expires, pending
    FROM tk_items WHERE"""
_COUNT = "UPDATE tk_store SET counter = LAST_INSERT_ID(counter + %s)"
_ITEM = f"INSERT INTO tk_items VALUES ({marks(range(13))})"
_DELETE = f"DELETE FROM tk_items WHERE {_AT}"
_VERSIONS = "SELECT * FROM tk_item_versions WHERE"
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

    def __init__(self, server: MysqlServer, options: SearchOptions) -> None:
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
            if len(reads) == 1 and not isinstance(reads[0], FindNearest | FindText):
                return [self._reply(session, reads[0])]
            session.run(SNAPSHOT)
            found = [self._reply(session, read) for read in reads]
            session.run([COMMIT])
            return found

        return self._server.call(replies)

    def _reply(self, session: MysqlSession, read: Any) -> Any:
        match read:
            case GetItems(keys, now):
                found = _rows(session, [_key(*key) for key in keys])
                rows = [found.get(_key(*key)) for key in keys]
                return [row if row and row.is_there(now) else None for row in rows]
            case FindItems():
                return _items(session, read)
            case FindNamespaces(prefix, now):
                rows = _under(session, "DISTINCT path", prefix, now)
                return [_namespace(path) for (path,) in rows]
            case FindVersions(limit, item, after):
                terms: list[Term] = [] if item is None else [(_AT, _key(*item))]
                if after is not None:
                    place = (*_key(*after[:2]), after.row.version)
                    terms.append(("(path, name, version) > (%s, %s, %s)", place))
                where, values = terms_of(terms)
                sql = f"{_VERSIONS} {where} ORDER BY path, name, version LIMIT %s"
                return [_version(*row) for row in session.rows(sql, *values, limit)]
            case FindText():
                rows = _under(session, "path, name, words", read.prefix, read.now, "words")
                scores = word_scores([words.decode() for *_, words in rows], read.words)
                scored = zip(map(_place, rows), scores, strict=True)
                return _scored(session, best([one for one in scored if one[1]], read.limit))
            case FindNearest():
                rows = _under(session, "path, name, vectors", read.prefix, read.now, "vectors")
                size = len(read.vector)
                pairs = [
                    (_place(row), row[2][at : at + size])
                    for row in rows
                    for at in range(0, len(row[2]), size)
                ]
                places, vectors = [place for place, _ in pairs], [data for _, data in pairs]
                wanted = (read.vector, read.limit)
                return _scored(session, nearest(self._options.metric, places, vectors, *wanted))

    # -- changes -------------------------------------------------------------------------

    def commit(self, change: Any) -> None:
        (refused,) = self.commit_many([change])
        if refused is not None:
            raise refused

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `ItemBackend`. A refused change writes nothing."""
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
        self, session: MysqlSession, change: ItemChange, *, may_be_put: bool
    ) -> ConflictError | None:
        match change:
            case PutItems():
                return self._put(session, change, may_be_put=may_be_put)
            case RefreshItems(keys, now):
                statements = [Sql(_REFRESH, (now, *_key(*key))) for key in keys]
            case EmbedItems(items):
                self._check_dims(session, any(one.vectors for one in items))
                done = [(*_packed(one.vectors), *_key(*one[:2]), one.version) for one in items]
                statements = [Sql(_EMBED, values) for values in done]
            case ReplacePatches(versions):
                places = [(patch, *_key(*one[:2]), one.row.version) for one, patch in versions]
                statements = [Sql(_PATCH, values) for values in places]
        session.run(statements)
        return None

    def _put(
        self, session: MysqlSession, change: PutItems, *, may_be_put: bool
    ) -> ConflictError | None:
        """Put items. The counter's row stays locked until the end, so that puts take turns."""
        puts, now = change
        self._check_dims(session, any(put.vectors for put in puts))
        counted = session.run([Sql(_COUNT, (len(puts),))])[0].number - len(puts)
        keys = [_key(put.namespace, put.key) for put in puts]
        found = _rows(session, keys)
        rows = [found.get(key) for key in keys]
        versions = [row.version if row else 0 for row in rows]
        if any(put.expects not in (None, at) for put, at in zip(puts, versions, strict=True)):
            there = [(row.value, row.updated_at) if row else (None, now) for row in rows]
            is_put = may_be_put and there == [(put.value, now) for put in puts]
            return None if is_put else ConflictError("The item has another version.")
        statements = []
        version = counted * VERSION_STEP + random_bits()
        for at, put, row in zip(keys, puts, rows, strict=True):
            version += VERSION_STEP
            if put.earlier is not None:
                statements.append(Sql(_KEEP, (*at, *put.earlier.row)))
                statements.append(Sql(_OLDEST, (*at, *at, put.earlier.keep)))
            statements.append(Sql(_DELETE, at))
            if put.value is not None:
                expires = None if put.ttl is None else now + put.ttl
                created = row.created_at if row else now
                created, updated, expires = put.times or (created, now, expires)
                times = (version, created, updated, put.ttl, expires)
                texts = (put.pending, *_packed(put.vectors), put.words or None)
                value = (isinstance(put.value, str), put.value)
                statements.append(Sql(_ITEM, (*at, *times, *texts, *value)))
        session.run(statements)
        return None

    def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        where, values = terms_of([("expires <= %s", (now,)), *_begins(prefix)])
        sql = f"SELECT path, name FROM tk_items WHERE {where} LIMIT %s FOR UPDATE"
        expired = Sql(sql, (*values, limit))

        def swept(session: MysqlSession) -> int:
            keys = session.run([BEGIN, expired])[1].rows
            where = f"(path, name) IN ({marks(keys)})" if keys else "FALSE"
            removals = _removals(where, tuple([part for key in keys for part in key]))
            session.run([*removals, COMMIT])
            return len(keys)

        return self._server.call(swept)

    def erase(self, prefix: Namespace) -> int:
        statements = [BEGIN, *_removals(*terms_of(_begins(prefix))), COMMIT]
        return self._server.call(lambda session: session.run(statements)[1].found)


def _removals(where: str, values: tuple[Any, ...]) -> list[Sql]:
    tables = ("tk_items", "tk_item_versions")
    return [Sql(f"DELETE FROM {table} WHERE {where}", values) for table in tables]


# -- rows ----------------------------------------------------------------------------------


def _key(namespace: Namespace, key: str) -> tuple[str, str]:
    """Return the path of an item's namespace, and its name."""
    return "".join([f"{label}." for label in namespace]), key


def _begins(prefix: Namespace) -> list[Term]:
    path, _ = _key(prefix, "")  # (a slash comes after the period)
    return [("path >= %s AND path < %s", (path, f"{path[:-1]}/"))] if path else []


def _place(row: Sequence[Any]) -> tuple[str, str]:
    return row[0].decode(), row[1].decode()


def _namespace(path: bytes) -> Namespace:
    return tuple(path.decode()[:-1].split("."))


def _packed(vectors: Sequence[Vector]) -> tuple[int | None, bytes | None]:
    """Return the dimensions of some vectors, and their data."""
    data = b"".join([one.data for one in vectors])
    return (len(vectors[0].data) // 4, data) if vectors else (None, None)


def _version(path: bytes, key: bytes, *row: Any) -> StoredVersion:
    number, updated, replaced, deleted, patch = row
    version = VersionRow(number, updated, replaced, bool(deleted), patch)
    return StoredVersion(_namespace(path), key.decode(), version)


def _item(row: Sequence[Any]) -> ItemRow:
    path, name, is_json, value, created, updated, version, ttl, expires, pending = row
    value = value.decode() if is_json else value
    item = (_namespace(path), name.decode(), value, created, updated, version, _place(row))
    return ItemRow(*item, ttl, expires, pending and pending.decode())


def _rows(session: MysqlSession, keys: Sequence[tuple[str, str]]) -> dict[Any, ItemRow]:
    """Return the items with these paths and names."""
    any_of = " OR ".join([f"({_AT})"] * len(keys)) or "FALSE"
    rows = session.rows(f"{_ROWS} {any_of}", *[part for key in keys for part in key])
    return {row.place: row for row in map(_item, rows)}


def _items(session: MysqlSession, read: FindItems) -> list[ItemRow]:
    terms = _alive(read.prefix, read.now)
    terms += [("vectors IS NULL", ())] if read.bare else []
    terms += [("pending IS NOT NULL", ())] if read.pending else []
    place, order = "(path, name) >", "path, name"
    if read.newest:
        place, order = "(updated, version) <", "updated DESC, version DESC"
    terms += [(f"{place} (%s, %s)", read.after)] if read.after is not None else []
    where, values = terms_of(terms)
    sql = f"{_ROWS} {where} ORDER BY {order} LIMIT %s OFFSET %s"
    page = (read.limit, 0 if read.where else read.offset)
    return [_item(row) for row in session.rows(sql, *values, *page)]


def _alive(prefix: Namespace, now: int | None) -> list[Term]:
    alive: list[Term] = [] if now is None else [("expires IS NULL OR expires > %s", (now,))]
    return [*_begins(prefix), *alive]


def _under(
    session: MysqlSession, names: str, prefix: Namespace, now: int | None, has: str = "path"
) -> Any:
    where, values = terms_of([*_alive(prefix, now), (f"{has} IS NOT NULL", ())])
    return session.rows(f"SELECT {names} FROM tk_items WHERE {where}", *values)


def _scored(session: MysqlSession, found: Sequence[tuple[Any, float]]) -> list[Scored]:
    rows = _rows(session, [place for place, _ in found])
    return [Scored(rows[place], score) for place, score in found]
