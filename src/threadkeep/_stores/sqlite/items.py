"""Items in a SQLite file, over the connections of a saver's backend.

Vectors are compared by sqlite-vec where this Python can load it, else by numpy: the file is the
same. Texts are searched by FTS5.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from threadkeep._stores.items import ItemBackend, merged, other_dims
from threadkeep._stores.items.filters import best, nearest
from threadkeep._stores.items.records import (
    Earlier,
    EmbedItems,
    FindEveryVersion,
    FindItems,
    FindNamespaces,
    FindNearest,
    FindPending,
    FindText,
    FindVersions,
    GetItems,
    ItemChange,
    ItemPut,
    ItemRead,
    Namespace,
    PutItems,
    RefreshItems,
    ReplacePatches,
    Scored,
    SearchOptions,
    VersionRow,
)
from threadkeep._stores.sqlite.connections import Connections, MadeTables
from threadkeep._stores.sqlite.item_queries import (
    GET,
    UNDER,
    bounds_of,
    every_version,
    find_items,
    find_namespaces,
    find_text,
    get_items,
    has_vec,
    path_of,
    row_of,
    scored_items,
    vectors_under,
)
from threadkeep._stores.sqlite.opening import statements
from threadkeep.errors import ConflictError, ThreadkeepError

_COPIED = {
    "tk_items": {
        "tk_store": "counter",
        "tk_namespaces": "number, path",
        "tk_items": "number, ns, key, version, created, updated, ttl, expires, pending, value",
        "tk_item_vectors": "ns, item, path, vector",
        "tk_item_versions": "ns, key, version, updated, replaced, deleted, patch",
    },
    "tk_item_words": {"tk_item_words": "rowid, words"},
}
_IS_MADE = "SELECT count(*) FROM sqlite_master WHERE name = ?"

_PUT = """
INSERT INTO tk_items (number, ns, key, version, created, updated, ttl, expires, pending, value)
VALUES (?1, ?2, ?3, ?1, coalesce(?4, ?5), ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (ns, key) DO UPDATE SET version = ?1, created = coalesce(?4, created), updated = ?5,
    ttl = ?6, expires = ?7, pending = ?8, value = ?9
"""
_COUNT = "UPDATE tk_store SET counter = counter + ? RETURNING counter"
_REFRESH_TIMEOUT = 0.05  # seconds
_DISTANCES = {"cosine": "1 - vec_distance_cosine", "l2": "-vec_distance_L2"}


class SqliteItems(MadeTables, ItemBackend):
    """Rows in tables of a saver's file, created at their first use."""

    commits_groups = True
    newest_first = True
    content = "store"

    def __init__(self, connections: Connections, options: SearchOptions) -> None:
        self._options = options
        super().__init__(connections)

    def _is_made(self, db: sqlite3.Connection) -> bool:
        missing = [name for name in self._names if not db.execute(_IS_MADE, (name,)).fetchone()[0]]
        if self._options.dims and "tk_items" not in missing:
            _check_dims(db, self._options.dims)
        return not missing

    def _make(self, db: sqlite3.Connection) -> None:
        _make(db, self._names)

    @property
    def _names(self) -> list[str]:
        return ["tk_items", "tk_item_words"] if self._options.text else ["tk_items"]

    # -- reads ---------------------------------------------------------------------------

    def fetch(self, reads: Sequence[Any]) -> list[Any]:
        return self._connections.answered(reads, self._reply, begin=len(reads) > 1)

    def _reply(self, db: sqlite3.Connection, read: ItemRead) -> Any:
        match read:
            case GetItems():
                return get_items(db, read)
            case FindItems():
                return find_items(db, read)
            case FindNamespaces():
                return find_namespaces(db, read)
            case FindNearest():
                return self._nearest(db, read)
            case FindText():
                return find_text(db, read)
            case FindPending():
                where = "i.pending IS NOT NULL AND i.number > ? ORDER BY i.number LIMIT ?"
                query = f"{GET} WHERE {where}".replace("expires FROM", "expires, i.pending FROM")
                after = read.after[1] if read.after else 0
                rows = db.execute(query, (after, read.limit))
                return [(row_of(row), row[-1]) for row in rows]
            case FindVersions():
                query = """
                    SELECT version, updated, replaced, deleted, patch FROM tk_item_versions
                    WHERE ns = (SELECT number FROM tk_namespaces WHERE path = ?) AND key = ?
                    ORDER BY version DESC"""
                values = (path_of(read.namespace), read.key)
                return [
                    VersionRow(version, updated, replaced, bool(deleted), patch)
                    for version, updated, replaced, deleted, patch in db.execute(query, values)
                ]

            case FindEveryVersion():
                return every_version(db, read)

    def _nearest(self, db: sqlite3.Connection, read: FindNearest) -> list[Scored]:
        source, values = vectors_under(read)
        distance = _DISTANCES.get(self._options.metric)
        if distance is None or not has_vec(db):
            rows = db.execute(f"SELECT v.ns, v.item, v.vector {source}", values).fetchall()
            places = [(ns, item) for ns, item, _ in rows]
            vectors = [vector for *_, vector in rows]
            found = nearest(self._options.metric, places, vectors, read.vector, read.limit)
        else:
            query = f"""
                SELECT v.ns, v.item, coalesce({distance}(v.vector, ?), 0.0) AS score {source}
                ORDER BY score DESC, v.ns, v.item LIMIT ?"""
            found, size = [], read.limit
            while len(found) < read.limit:  # (an item may have several vectors)
                scored = db.execute(query, (read.vector, *values, size)).fetchall()
                found = best([((ns, item), score) for ns, item, score in scored], read.limit)
                if len(scored) < size:
                    break
                size *= 4
        rows = scored_items(db, [item for (_, item), _ in found], [score for _, score in found])
        if len(rows) < len(found) == read.limit:  # (in place of missing items)
            more = read._replace(limit=2 * read.limit - len(rows))
            return self._nearest(db, more)[: read.limit]
        return rows

    # -- changes -------------------------------------------------------------------------

    def commit(self, change: Any) -> None:
        # (a read is not to wait for others until its lifetime is noted)
        timeout = _REFRESH_TIMEOUT if isinstance(change, RefreshItems) else None
        with self._connections.writing(timeout) as db:
            self._carry_out(db, change)

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """See `ItemBackend`. A change that is refused leaves the others alone."""
        if len(changes) == 1:
            self.commit(changes[0])
            return [None]
        together = merged(changes)
        if together is not None:
            self.commit(together)
            return [None] * len(changes)
        refusals: list[ThreadkeepError | None] = []
        with self._connections.writing() as db:
            for change in changes:
                db.execute("SAVEPOINT change")
                try:
                    self._carry_out(db, change)
                    refusals.append(None)
                except ConflictError as error:
                    db.execute("ROLLBACK TO change")
                    refusals.append(error)
                db.execute("RELEASE change")
        return refusals

    def _carry_out(self, db: sqlite3.Connection, change: ItemChange) -> None:
        match change:
            case PutItems():
                self._put(db, change)
            case RefreshItems():
                keys = [(change.now, path_of(namespace), key) for namespace, key in change.keys]
                query = """
                    UPDATE tk_items SET expires = ? + ttl
                    WHERE ns = (SELECT number FROM tk_namespaces WHERE path = ?) AND key = ?
                        AND ttl IS NOT NULL"""
                db.executemany(query, keys)
            case EmbedItems():
                for one in change.items:
                    query = """
                        UPDATE tk_items SET pending = NULL
                        WHERE ns = (SELECT number FROM tk_namespaces WHERE path = ?) AND key = ?
                            AND version = ? AND pending IS NOT NULL RETURNING ns, number"""
                    values = (path_of(one.namespace), one.key, one.version)
                    for ns, number in db.execute(query, values).fetchall():
                        vectors = [(ns, number, path, data) for path, data in one.vectors]
                        _add_vectors(db, vectors, self._options.dims)
            case ReplacePatches():
                query = "UPDATE tk_item_versions SET patch = ? WHERE (ns, key, version) = (?, ?, ?)"
                db.executemany(query, [(patch, *one.place) for one, patch in change.versions])

    def _put(self, db: sqlite3.Connection, change: PutItems) -> None:
        now, puts = change.now, change.puts
        spaces = _numbers(db, puts)
        for put in puts:
            if put.expects is not None:
                _check(db, spaces[put.namespace], put)
        (last,) = db.execute(_COUNT, (len(puts),)).fetchone()
        for put in puts:
            if put.earlier is not None:
                _keep(db, spaces[put.namespace], put.key, put.earlier)
        written = []
        gone = []
        for number, put in enumerate(puts, last - len(puts) + 1):
            namespace, key, value, ttl, _, _, pending, _, _, times = put
            at = (spaces[namespace], key)
            if value is None:
                gone.append(at)
            else:
                expires = None if ttl is None else now + ttl
                created, updated, expires = times or (None, now, expires)
                written.append((number, *at, created, updated, ttl, expires, pending, value))
        db.executemany(_PUT, written)
        if gone:
            db.executemany("DELETE FROM tk_items WHERE ns = ? AND key = ?", gone)
        indexed = [(spaces[put.namespace], put) for put in puts if put.vectors or put.words]
        if indexed:
            self._index(db, indexed)

    def _index(self, db: sqlite3.Connection, puts: Sequence[tuple[int, ItemPut]]) -> None:
        numbers = _existing(db, [(ns, put.key) for ns, put in puts])
        vectors = []
        words = []
        for ns, put in puts:
            number = numbers[ns, put.key]
            vectors += [(ns, number, path, data) for path, data in put.vectors]
            if put.words:
                words.append((number, put.words))
        _add_vectors(db, vectors, self._options.dims)
        if words:
            db.executemany("INSERT INTO tk_item_words (rowid, words) VALUES (?, ?)", words)

    def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        with self._connections.writing() as db:
            under, bounds = (f"AND {UNDER}", bounds_of(prefix)) if prefix else ("", ())
            query = f"SELECT ns, number, key FROM tk_items i WHERE expires <= ? {under} LIMIT ?"
            return self._remove(db, db.execute(query, (now, *bounds, limit)).fetchall())

    def erase(self, prefix: Namespace) -> int:
        with self._connections.writing() as db:
            query = f"SELECT i.ns, i.number, i.key FROM tk_items i WHERE {UNDER}"
            removed = self._remove(db, db.execute(query, bounds_of(prefix)).fetchall())
            inner = "SELECT number FROM tk_namespaces WHERE path >= ? AND path < ?"
            delete = f"DELETE FROM tk_item_versions WHERE ns IN ({inner})"
            db.execute(delete, bounds_of(prefix))
            db.execute("DELETE FROM tk_namespaces WHERE path >= ? AND path < ?", bounds_of(prefix))
            return removed

    def _remove(self, db: sqlite3.Connection, rows: Sequence[tuple[int, int, str]]) -> int:
        keys = [(ns, key) for ns, _, key in rows]
        db.executemany("DELETE FROM tk_items WHERE ns = ? AND key = ?", keys)
        db.executemany("DELETE FROM tk_item_versions WHERE ns = ? AND key = ?", keys)
        emptied = """
            DELETE FROM tk_namespaces WHERE number = ?1
                AND NOT EXISTS (SELECT 1 FROM tk_items WHERE ns = ?1)
                AND NOT EXISTS (SELECT 1 FROM tk_item_versions WHERE ns = ?1)"""
        db.executemany(emptied, {(ns,) for ns, _ in keys})
        return len(rows)


def _make(db: sqlite3.Connection, names: Iterable[str]) -> None:
    """Make the tables that are missing."""
    for name in names:
        if db.execute(_IS_MADE, (name,)).fetchone()[0]:
            continue
        for statement in statements(f"{name.removeprefix('tk_')}.sql"):
            db.execute(statement)


def holds_items(db: sqlite3.Connection) -> bool:
    """Return True if a database has items."""
    (is_made,) = db.execute(_IS_MADE, ("tk_items",)).fetchone()
    return bool(is_made) and db.execute("SELECT 1 FROM tk_items").fetchone() is not None


def copy_items(db: sqlite3.Connection) -> None:
    """Replace all items of a database by the items of the attached one, `backup`."""
    for name, tables in _COPIED.items():
        (is_there,) = db.execute(_IS_MADE, (name,)).fetchone()
        (is_copied,) = db.execute(_IS_MADE.replace("sqlite", "backup.sqlite"), (name,)).fetchone()
        if is_copied:
            _make(db, [name])
        for table, columns in tables.items():
            if is_there or is_copied:
                db.execute(f"DELETE FROM main.{table}")
            if is_copied:
                insert = f"INSERT INTO main.{table} ({columns}) SELECT {columns}"
                db.execute(f"{insert} FROM backup.{table}")


def _add_vectors(
    db: sqlite3.Connection, rows: Sequence[tuple[int, int, str, bytes]], dims: int
) -> None:
    if rows:
        _check_dims(db, dims)  # (another process may have begun with a model of its own)
        db.executemany("INSERT INTO tk_item_vectors VALUES (?, ?, ?, ?)", rows)


def _check_dims(db: sqlite3.Connection, dims: int) -> None:
    for (size,) in db.execute("SELECT length(vector) FROM tk_item_vectors LIMIT 1"):
        if size != 4 * dims:
            raise other_dims(dims, size // 4)


def _numbers(db: sqlite3.Connection, puts: Sequence[ItemPut]) -> dict[Namespace, int]:
    """Return the numbers of the puts' namespaces. A namespace gets one with its first item."""
    paths = {put.namespace: path_of(put.namespace) for put in puts}
    query = "SELECT path, number FROM tk_namespaces WHERE path IN (SELECT value FROM json_each(?))"
    wanted = json.dumps(list(paths.values()), ensure_ascii=False)
    known = dict(db.execute(query, (wanted,)).fetchall())
    if len(known) < len(paths):
        made = {paths[put.namespace]: None for put in puts if put.value is not None}
        for path in made:
            if path not in known:
                insert = "INSERT INTO tk_namespaces (path) VALUES (?)"
                known[path] = db.execute(insert, (path,)).lastrowid
    return {namespace: known.get(path, 0) for namespace, path in paths.items()}


def _existing(
    db: sqlite3.Connection, keys: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], int]:
    query = "SELECT ns, key, number FROM tk_items WHERE ns = ? AND key = ?"
    rows = [row for key in keys for row in db.execute(query, key)]
    return {(ns, key): number for ns, key, number in rows}


def _check(db: sqlite3.Connection, ns: int, put: ItemPut) -> None:
    query = "SELECT version FROM tk_items WHERE ns = ? AND key = ?"
    found = db.execute(query, (ns, put.key)).fetchone()
    if (found[0] if found else 0) != put.expects:
        raise ConflictError("The item has another version.")


def _keep(db: sqlite3.Connection, ns: int, key: str, earlier: Earlier) -> None:
    """Add an earlier version, and remove the oldest ones beyond its limit."""
    insert = "INSERT INTO tk_item_versions VALUES (?, ?, ?, ?, ?, ?, ?)"
    db.execute(insert, (ns, key, *earlier.row))
    remove = """
        DELETE FROM tk_item_versions WHERE ns = ?1 AND key = ?2 AND version <= (
            SELECT version FROM tk_item_versions WHERE ns = ?1 AND key = ?2
            ORDER BY version DESC LIMIT 1 OFFSET ?3)"""
    db.execute(remove, (ns, key, earlier.keep))
