"""Queries of items in a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from threadkeep._stores.items.filters import nearest
from threadkeep._stores.items.records import (
    Condition,
    FindItems,
    FindNamespaces,
    FindNearest,
    FindText,
    FindVersions,
    GetItems,
    ItemRow,
    Namespace,
    Scored,
    StoredVersion,
    VectorMetric,
    VersionRow,
)

_COLUMNS = (
    "i.path, i.key, i.value, i.created, i.updated, i.version, i.ttl, i.expires, i.pending, i.number"
)
_GET = f"SELECT {_COLUMNS} FROM tk_items i WHERE i.path = ? AND i.key = ?"
_GET_MANY = f"""
SELECT {_COLUMNS} FROM json_each(?) j CROSS JOIN tk_items i
    ON i.path = json_extract(j.value, '$[0]') AND i.key = json_extract(j.value, '$[1]')
"""
_UNDER = "i.path >= ? AND i.path < ?"
_BARE = "NOT EXISTS (SELECT 1 FROM tk_item_vectors v WHERE v.item = i.number)"
_ALIVE = "(i.expires IS NULL OR i.expires > ?)"
_OPERATORS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_DISTANCES = {"cosine": "1 - vec_distance_cosine", "l2": "-vec_distance_L2"}


def path_of(namespace: Namespace) -> str:
    """Return the path of a namespace: its labels, each followed by a period."""
    return "".join([f"{label}." for label in namespace])


def bounds_of(prefix: Namespace) -> tuple[str, str | bytes]:
    """Return the first path of a prefix, and the first path after all of them."""
    path = path_of(prefix)
    return path, (path[:-1] + "/" if path else b"")  # (/ is after the period, bytes after all)


def _namespace_of(path: Any) -> Namespace:
    return tuple(path[:-1].split(".")) if type(path) is str else (ascii(path),)


def _row_of(row: Sequence[Any]) -> ItemRow:
    """Return the item of a row of `_COLUMNS`."""
    path, key, value, created, updated, version, *ends = row[:9]
    return ItemRow(_namespace_of(path), key, value, created, updated, version, (path, key), *ends)


def get_items(db: sqlite3.Connection, read: GetItems) -> list[ItemRow | None]:
    """Answer `GetItems`."""
    keys = [(path_of(namespace), key) for namespace, key in read.keys]
    if len(keys) == 1 or any("\0" in key for _, key in keys):  # (JSON ends at a NUL)
        found = [db.execute(_GET, key).fetchone() for key in keys]
    else:
        rows = db.execute(_GET_MANY, (json.dumps(keys, ensure_ascii=False),))
        by_key = {(row[0], row[1]): row for row in rows}
        found = [by_key.get(key) for key in keys]
    items = [None if row is None else _row_of(row) for row in found]
    return [row if row and row.is_there(read.now) else None for row in items]


# (sorts without the values)
_CHOSEN = f"""
SELECT {_COLUMNS}, f.score FROM ({{chosen}}) f CROSS JOIN tk_items i ON i.number = f.item
ORDER BY {{order}}
"""
_IN_PLACE, _NEWEST = "i.path, i.key", "i.updated DESC, i.version DESC"
_BEST = "f.score DESC, i.path, i.key"


def find_items(db: sqlite3.Connection, read: FindItems) -> list[ItemRow]:
    """Answer `FindItems`."""
    where, values = _where(read)
    if read.after is not None:
        where += f" AND ({'i.updated, i.version' if read.newest else 'i.path, i.key'})"
        where += f" {'<' if read.newest else '>'} (?, ?)"
        values += read.after
    if read.bare:
        where += f" AND {_BARE}"
    if read.pending:
        where += " AND i.pending IS NOT NULL"
    order = _NEWEST if read.newest else _IN_PLACE
    chosen = f"""
        SELECT i.number AS item, 0 AS score FROM tk_items i {where}
        ORDER BY {order} LIMIT ? OFFSET ?"""
    query = _CHOSEN.format(chosen=chosen, order=order)
    values += (read.limit, 0 if read.where else read.offset)
    return [_row_of(row) for row in db.execute(query, values)]


def _where(read: FindItems | FindNearest | FindText) -> tuple[str, list[Any]]:
    """Return the conditions of a read, and their values."""
    tests = ["TRUE"]
    values: list[Any] = []
    if read.prefix:
        tests.append(_UNDER)
        values += bounds_of(read.prefix)
    if read.now is not None:
        tests.append(_ALIVE)
        values.append(read.now)
    for one in read.where:
        path = _json_path(one.path)
        if path is not None:
            tests.append(_test(one))
            values += (path, one.value) if one.operator == "$eq" else (path, path, one.value)
    return f"WHERE {' AND '.join(tests)}", values


def _test(one: Condition) -> str:
    """Return the SQL of a condition. It is tested on JSON. Texts as numbers are left to Python."""
    found = f"json_extract(i.value, ?) {_OPERATORS[one.operator]} ?"
    if one.operator != "$eq":
        joined = "AND" if isinstance(one.value, str) else "OR"
        found = f"(json_type(i.value, ?) = 'text' {joined} {found})"
    is_json = "typeof(i.value) = 'text' AND json_valid(i.value)"  # (else it may be damaged)
    return f"CASE WHEN {is_json} THEN {found} ELSE 1 END"


def _json_path(path: Iterable[str]) -> str | None:
    """Return a path in SQLite's form, or None if a label cannot be quoted."""
    labels = list(path)
    if any(set(label) & set('"\\\0') for label in labels):
        return None
    return "$" + "".join([f'."{label}"' for label in labels])


# Steps from each path to the next one by the index.
_NAMESPACES = f"""
WITH RECURSIVE n (path) AS (
    SELECT min(path) FROM tk_items WHERE path >= ?1 AND path < ?2
    UNION ALL
    SELECT (SELECT min(path) FROM tk_items WHERE path > n.path AND path < ?2) FROM n
    WHERE n.path IS NOT NULL)
SELECT n.path FROM n WHERE n.path IS NOT NULL AND (
    ?3 IS NULL OR EXISTS (SELECT 1 FROM tk_items i WHERE i.path = n.path
        AND {_ALIVE.replace("?", "?3")}))
"""


def find_namespaces(db: sqlite3.Connection, read: FindNamespaces) -> list[Namespace]:
    """Answer `FindNamespaces`."""
    rows = db.execute(_NAMESPACES, (*bounds_of(read.prefix), read.now))
    return [_namespace_of(path) for (path,) in rows if type(path) is str]


def find_versions(db: sqlite3.Connection, read: FindVersions) -> list[StoredVersion]:
    """Answer `FindVersions`."""
    tests = ["TRUE"]
    values: list[Any] = []
    if read.item is not None:
        tests.append("path = ? AND key = ?")
        values += (path_of(read.item[0]), read.item[1])
    if read.after is not None:
        namespace, key, row = read.after
        tests.append("(path, key, version) > (?, ?, ?)")
        values += (path_of(namespace), key, row.version)
    query = f"""
        SELECT path, key, version, updated, replaced, deleted, patch FROM tk_item_versions
        WHERE {" AND ".join(tests)} ORDER BY path, key, version LIMIT ?"""
    return [
        StoredVersion(
            _namespace_of(path), key, VersionRow(version, updated, replaced, bool(deleted), patch)
        )
        for path, key, version, updated, replaced, deleted, patch in db.execute(
            query, (*values, read.limit)
        )
    ]


# -- searches ----------------------------------------------------------------------------


def find_nearest(db: sqlite3.Connection, read: FindNearest, metric: VectorMetric) -> list[Scored]:
    """Answer `FindNearest`."""
    where, values = _where(read)
    source = f"FROM tk_item_vectors v JOIN tk_items i ON i.number = v.item {where} AND {_IS_VECTOR}"
    values.append(len(read.vector))
    distance = _DISTANCES.get(metric)
    if distance is not None and has_vec(db):
        chosen = f"""
            SELECT v.item, max(coalesce({distance}(v.vector, ?), 0.0)) AS score {source}
            GROUP BY v.item ORDER BY score DESC, i.path, i.key LIMIT ?"""
        return _scored(db, chosen, (read.vector, *values, read.limit))
    rows = db.execute(f"SELECT v.item, v.vector {source}", values).fetchall()
    query = f"SELECT {_COLUMNS} FROM tk_items i WHERE i.number = ?"

    @cache
    def row(item: int) -> ItemRow:
        return _row_of(db.execute(query, (item,)).fetchone())

    items, vectors = [item for item, _ in rows], [vector for _, vector in rows]
    # (a damaged key has any type)
    found = nearest(
        metric, items, vectors, read.vector, read.limit, lambda item: [*map(str, row(item).place)]
    )
    return [Scored(row(item), score) for item, score in found]


_IS_VECTOR = "typeof(v.vector) = 'blob' AND length(v.vector) = ?"


def find_text(db: sqlite3.Connection, read: FindText) -> list[Scored]:
    """Answer `FindText`."""
    where, values = _where(read)
    words = " OR ".join([f'"{word}"' for word in read.words])
    chosen = f"""
        SELECT i.number AS item, -rank AS score
        FROM tk_item_words w JOIN tk_items i ON i.number = w.rowid
        {where} AND tk_item_words MATCH ? ORDER BY rank, i.path, i.key LIMIT ?"""
    return _scored(db, chosen, (*values, words, read.limit))


def _scored(db: sqlite3.Connection, chosen: str, values: Sequence[Any]) -> list[Scored]:
    """Return the items whose numbers and scores a query chooses."""
    query = _CHOSEN.format(chosen=chosen, order=_BEST)
    return [Scored(_row_of(row), row[-1]) for row in db.execute(query, values)]


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
