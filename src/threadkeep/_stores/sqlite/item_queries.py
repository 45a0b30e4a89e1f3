"""Queries of items in a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from threadkeep._stores.items import records
from threadkeep._stores.items.filters import nearest
from threadkeep._stores.items.records import ItemRow, Namespace
from threadkeep._stores.items.sql import (
    ALIVE,
    IN_PLACE,
    Dialect,
    key_of,
    namespace_of,
    stored,
    where,
)

_COLUMNS = (
    "i.path, i.key, i.value, i.created, i.updated, i.version, i.ttl, i.expires, i.pending, i.number"
)
_GET = f"SELECT {_COLUMNS} FROM tk_items i WHERE i.path = ? AND i.key = ?"
_GET_MANY = f"""
SELECT {_COLUMNS} FROM json_each(?) j CROSS JOIN tk_items i
    ON i.path = json_extract(j.value, '$[0]') AND i.key = json_extract(j.value, '$[1]')
"""
_OPERATORS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_DISTANCES = {"cosine": "1 - vec_distance_cosine", "l2": "-vec_distance_L2"}


def _namespace_of(path: Any) -> Namespace:
    return namespace_of(path) if type(path) is str else (ascii(path),)


def _row_of(row: Sequence[Any]) -> ItemRow:
    """Return the item of a row of `_COLUMNS`."""
    path, key, value, created, updated, version, *ends = row[:9]
    return ItemRow(_namespace_of(path), key, value, created, updated, version, (path, key), *ends)


def answer(db: sqlite3.Connection, read: records.ItemRead, metric: records.VectorMetric) -> Any:
    """Return the reply to a read."""
    if isinstance(read, records.FindNearest):
        return _find_nearest(db, read, metric)
    return _ANSWERS[type(read)](db, read)


def _get_items(db: sqlite3.Connection, read: records.GetItems) -> list[ItemRow | None]:
    keys = [key_of(*key) for key in read.keys]
    if len(keys) == 1 or any("\0" in key for _, key in keys):  # (JSON ends at a NUL)
        found = [db.execute(_GET, key).fetchone() for key in keys]
    else:
        rows = db.execute(_GET_MANY, (json.dumps(keys, ensure_ascii=False),))
        by_key = {(row[0], row[1]): row for row in rows}
        found = [by_key.get(key) for key in keys]
    items = [None if row is None else _row_of(row) for row in found]
    return [row if row and row.is_there(read.now) else None for row in items]


@lru_cache(maxsize=256)
def _chosen(chosen: str, order: str) -> str:
    """Return a query of the items that another one chooses, so that this sorts without values."""
    items = f"({chosen}) f CROSS JOIN tk_items i ON i.number = f.item"
    return f"SELECT {_COLUMNS}, f.score FROM {items} ORDER BY {order}".replace("%s", "?")


_BEST = f"f.score DESC, {IN_PLACE}"


def _find_items(db: sqlite3.Connection, read: records.FindItems) -> list[ItemRow]:
    end, order, values = DIALECT.find(read)
    chosen = f"SELECT i.number AS item, 0 AS score FROM tk_items i {end}"
    return [_row_of(row) for row in db.execute(_chosen(chosen, order), values)]


def _test(one: records.Condition) -> tuple[str, Sequence[Any]] | None:
    """Return a condition on JSON. Texts as numbers are left to Python."""
    if any(set(label) & set('"\\\0') for label in one.path):  # (which cannot be quoted)
        return None
    path = "$" + "".join([f'."{label}"' for label in one.path])
    values: tuple[Any, ...] = (path, one.value)
    found = f"json_extract(i.value, %s) {_OPERATORS[one.operator]} %s"
    if one.operator != "$eq":
        joined = "AND" if isinstance(one.value, str) else "OR"
        found, values = f"(json_type(i.value, %s) = 'text' {joined} {found})", (path, *values)
    is_json = "typeof(i.value) = 'text' AND json_valid(i.value)"  # (else it may be damaged)
    return f"CASE WHEN {is_json} THEN {found} ELSE 1 END", values


_BARE = "NOT EXISTS (SELECT 1 FROM tk_item_vectors v WHERE v.item = i.number)"
DIALECT = Dialect(key_of, b"", _BARE, _test)  # (bytes are after all texts)


# Steps from each path to the next one by the index.
_NAMESPACES = f"""
WITH RECURSIVE n (path) AS (
    SELECT min(path) FROM tk_items WHERE path >= ?1 AND path < ?2
    UNION ALL
    SELECT (SELECT min(path) FROM tk_items WHERE path > n.path AND path < ?2) FROM n
    WHERE n.path IS NOT NULL)
SELECT n.path FROM n WHERE n.path IS NOT NULL AND (
    ?3 IS NULL OR EXISTS (SELECT 1 FROM tk_items i WHERE i.path = n.path
        AND {ALIVE.replace("%s", "?3")}))
"""


def _find_namespaces(db: sqlite3.Connection, read: records.FindNamespaces) -> list[Namespace]:
    rows = db.execute(_NAMESPACES, (*DIALECT.bounds(read.prefix), read.now))
    return [_namespace_of(path) for (path,) in rows if type(path) is str]


def _find_versions(
    db: sqlite3.Connection, read: records.FindVersions
) -> list[records.StoredVersion]:
    end, values = DIALECT.versions(read)
    query = f"""
        SELECT path, key, version, updated, replaced, deleted, patch FROM tk_item_versions i {end}
    """
    rows = db.execute(query.replace("%s", "?"), values)
    return [stored(_namespace_of(path), key, row) for path, key, *row in rows]


# -- searches ----------------------------------------------------------------------------


def _find_nearest(
    db: sqlite3.Connection, read: records.FindNearest, metric: records.VectorMetric
) -> list[records.Scored]:
    tests, values = DIALECT.tests(read)
    found = where(["typeof(v.vector) = 'blob'", "length(v.vector) = %s", *tests])
    source = f"FROM tk_item_vectors v JOIN tk_items i ON i.number = v.item {found}"
    values.insert(0, len(read.vector))
    distance = _DISTANCES.get(metric)
    if distance is not None and has_vec(db):
        chosen = f"""
            SELECT v.item, max(coalesce({distance}(v.vector, %s), 0.0)) AS score {source}
            GROUP BY v.item ORDER BY score DESC, {IN_PLACE} LIMIT %s"""
        return _scored(db, chosen, (read.vector, *values, read.limit))
    sql = f"SELECT v.item, v.vector {source}".replace("%s", "?")
    vectors = db.execute(sql, values).fetchall()
    query = f"SELECT {_COLUMNS} FROM tk_items i WHERE i.number = ?"

    @cache
    def row(item: int) -> ItemRow:
        return _row_of(db.execute(query, (item,)).fetchone())

    def order(item: int) -> list[str]:
        return [*map(str, row(item).place)]  # (a damaged key has any type)

    best = nearest(metric, vectors, read.vector, read.limit, order)
    return [records.Scored(row(item), score) for item, score in best]


def _find_text(db: sqlite3.Connection, read: records.FindText) -> list[records.Scored]:
    tests, values = DIALECT.tests(read)
    words = " OR ".join([f'"{word}"' for word in read.words])
    chosen = f"""
        SELECT i.number AS item, -rank AS score
        FROM tk_item_words w JOIN tk_items i ON i.number = w.rowid
        {where([*tests, "tk_item_words MATCH %s"])} ORDER BY rank, {IN_PLACE} LIMIT %s"""
    return _scored(db, chosen, (*values, words, read.limit))


def _scored(db: sqlite3.Connection, chosen: str, values: Sequence[Any]) -> list[records.Scored]:
    """Return the items whose numbers and scores a query chooses."""
    rows = db.execute(_chosen(chosen, _BEST), values)
    return [records.Scored(_row_of(row), row[-1]) for row in rows]


_ANSWERS: dict[type, Callable[[sqlite3.Connection, Any], Any]] = {
    records.GetItems: _get_items,
    records.FindItems: _find_items,
    records.FindNamespaces: _find_namespaces,
    records.FindText: _find_text,
    records.FindVersions: _find_versions,
}


def has_vec(db: sqlite3.Connection) -> bool:
    """Return True if the connection has sqlite-vec. Loads it if this Python can."""
    with suppress(sqlite3.Error):
        db.execute("SELECT vec_version()")
        return True
    with suppress(ImportError, AttributeError, sqlite3.Error):
        extension = import_module("sqlite_vec")
        db.enable_load_extension(True)  # noqa: FBT003 - as sqlite3 has it
        try:
            extension.load(db)
        finally:
            db.enable_load_extension(False)  # noqa: FBT003 - as sqlite3 has it
        return True
    return False
