"""Items in a SQLite file, over the connections of a saver's backend.

Vectors are compared by sqlite-vec where this Python can load it, else by numpy: the file is the
same. Texts are searched by FTS5.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from threadkeep._stores.items import ItemBackend, merged, other_dims, records
from threadkeep._stores.items.records import Namespace
from threadkeep._stores.items.sql import key_of
from threadkeep._stores.sqlite.connections import Connections, MadeTables
from threadkeep._stores.sqlite.item_queries import DIALECT, answer
from threadkeep._stores.sqlite.opening import statements
from threadkeep.errors import ConflictError, ThreadkeepError

_COPIED = {
    "tk_items": {
        "tk_store": "counter",
        "tk_items": "number, path, key, version, created, updated, ttl, expires, pending, value",
        "tk_item_vectors": "item, field, vector",
        "tk_item_versions": "path, key, version, updated, replaced, deleted, patch",
    },
    "tk_item_words": {"tk_item_words": "rowid, words"},
}
_IS_MADE = "SELECT count(*) FROM sqlite_master WHERE name = ?"
_KEY = "path = ? AND key = ?"
_UNDER = "path >= ? AND path < ?"
_PUT = """
INSERT INTO tk_items (path, key, version, created, updated, ttl, expires, pending, value)
VALUES (?1, ?2, ?3, coalesce(?4, ?5), ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (path, key) DO UPDATE SET version = ?3, created = coalesce(?4, created), updated = ?5,
    ttl = ?6, expires = ?7, pending = ?8, value = ?9
"""
_DELETE = f"DELETE FROM tk_items WHERE {_KEY}"
_COUNT = f"""
UPDATE tk_store SET counter = counter + ?1
RETURNING (counter - ?1) * {records.VERSION_STEP} + (random() & {records.VERSION_STEP - 1})
"""
_VERSION = f"SELECT version FROM tk_items WHERE {_KEY}"
_ADD_WORDS = f"""
INSERT INTO tk_item_words (words, rowid) SELECT ?, number FROM tk_items WHERE {_KEY}
"""
_ADD_VECTOR = f"INSERT INTO tk_item_vectors SELECT number, ?, ? FROM tk_items WHERE {_KEY}"
_EMBED = f"""
UPDATE tk_items SET pending = NULL WHERE {_KEY} AND version = ? AND pending IS NOT NULL
"""
_REFRESH = f"UPDATE tk_items SET expires = ? + ttl WHERE {_KEY} AND ttl IS NOT NULL"
_KEEP = "INSERT INTO tk_item_versions VALUES (?, ?, ?, ?, ?, ?, ?)"
_DROP_OLDEST = """
DELETE FROM tk_item_versions WHERE path = ?1 AND key = ?2 AND version <= (
    SELECT version FROM tk_item_versions WHERE path = ?1 AND key = ?2
    ORDER BY version DESC LIMIT 1 OFFSET ?3)
"""
_PATCH = f"UPDATE tk_item_versions SET patch = ? WHERE {_KEY} AND version = ?"
_REFRESH_TIMEOUT = 0.05  # seconds


class SqliteItems(MadeTables, ItemBackend):
    """Rows in tables of a saver's file, created at their first use."""

    commits_groups = True
    newest_first = True
    content = "store"

    def __init__(self, connections: Connections, options: records.SearchOptions) -> None:
        self._options = options
        self._reply = partial(answer, metric=options.metric)
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
        begin = len(reads) > 1 or isinstance(reads[0], records.FindNearest)
        return self._connections.answered(reads, self._reply, begin=begin)

    # -- changes -------------------------------------------------------------------------

    def commit(self, change: Any) -> None:
        # (a read is not to wait for others until its lifetime is noted)
        timeout = _REFRESH_TIMEOUT if isinstance(change, records.RefreshItems) else None
        with self._connections.writing(timeout) as db:
            self._carry_out(db, change)

    def commit_many(self, changes: Sequence[Any]) -> list[ThreadkeepError | None]:
        """A change that is refused leaves the others alone."""
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

    def _carry_out(self, db: sqlite3.Connection, change: records.ItemChange) -> None:
        match change:
            case records.PutItems(puts, now):
                self._put(db, [(*key_of(*put[:2]), put) for put in puts], now)
            case records.RefreshItems(keys, now):
                db.executemany(_REFRESH, [(now, *key_of(*key)) for key in keys])
            case records.EmbedItems(items):
                for namespace, key, version, vectors in items:
                    place = key_of(namespace, key)
                    if db.execute(_EMBED, (*place, version)).rowcount:
                        self._add_vectors(db, [(*vector, *place) for vector in vectors])
            case records.ReplacePatches(versions):
                places = [(patch, *key_of(*one[:2]), one.row.version) for one, patch in versions]
                db.executemany(_PATCH, places)

    def _put(
        self, db: sqlite3.Connection, puts: Sequence[tuple[str, str, records.ItemPut]], now: int
    ) -> None:
        for path, key, put in puts:
            if put.expects is not None:
                (version,) = db.execute(_VERSION, (path, key)).fetchone() or (0,)
                if version != put.expects:
                    raise ConflictError("The item has another version.")
        version, gone, words, vectors = 0, [], [], []
        written: list[tuple[Any, ...]] = []
        for path, key, put in puts:
            _, _, value, ttl, some, text, pending, _, earlier, times = put
            if earlier is not None:
                db.execute(_KEEP, (path, key, *earlier.row))
                db.execute(_DROP_OLDEST, (path, key, earlier.keep))
            if value is None:
                gone.append((path, key))
                continue
            if not written:
                (version,) = db.execute(_COUNT, (len(puts),)).fetchone()
            version += records.VERSION_STEP
            created, updated, expires = times or (None, now, None if ttl is None else now + ttl)
            written.append((path, key, version, created, updated, ttl, expires, pending, value))
            vectors += [(*vector, path, key) for vector in some]
            words += [(text, path, key)] if text else []
        db.executemany(_PUT, written)
        db.executemany(_DELETE, gone)
        self._add_vectors(db, vectors)
        if words:
            db.executemany(_ADD_WORDS, words)

    def _add_vectors(
        self, db: sqlite3.Connection, rows: Sequence[tuple[str, bytes, str, str]]
    ) -> None:
        if rows:
            # (another process may have begun with a model of its own)
            _check_dims(db, self._options.dims)
            db.executemany(_ADD_VECTOR, rows)

    def sweep(self, now: int, limit: int, prefix: Namespace = ()) -> int:
        with self._connections.writing() as db:
            # (the signs: by the index of times)
            expired = "expires <= ? AND +path >= ? AND +path < ?"
            return _remove(db, expired, (now, *DIALECT.bounds(prefix)), limit)

    def erase(self, prefix: Namespace) -> int:
        with self._connections.writing() as db:
            removed = _remove(db, _UNDER, DIALECT.bounds(prefix), -1)
            db.execute(f"DELETE FROM tk_item_versions WHERE {_UNDER}", DIALECT.bounds(prefix))
            return removed


def _remove(db: sqlite3.Connection, where: str, values: Sequence[Any], limit: int) -> int:
    """Remove items and their versions; return the number of items."""
    query = f"SELECT path, key FROM tk_items WHERE {where} LIMIT ?"
    keys = db.execute(query, (*values, limit)).fetchall()
    db.executemany(_DELETE, keys)
    db.executemany(f"DELETE FROM tk_item_versions WHERE {_KEY}", keys)
    return len(keys)


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
            if is_copied or (is_there and table != "tk_store"):  # (else its counter stays)
                db.execute(f"DELETE FROM main.{table}")
            if is_copied:
                insert = f"INSERT INTO main.{table} ({columns}) SELECT {columns}"
                db.execute(f"{insert} FROM backup.{table}")


def _check_dims(db: sqlite3.Connection, dims: int) -> None:
    for (size,) in db.execute("SELECT length(vector) FROM tk_item_vectors LIMIT 1"):
        if size != 4 * dims:
            raise other_dims(dims, size // 4)
