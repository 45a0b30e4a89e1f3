"""Queries of items in a SQLite file."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from threadkeep._stores.items.records import (
    Condition,
    FindEveryVersion,
    FindItems,
    FindNamespaces,
    FindNearest,
    FindText,
    GetItems,
    ItemRow,
    Namespace,
    Scored,
    StoredVersion,
    VersionRow,
)

_log = logging.getLogger("threadkeep")

_COLUMNS = (
    "n.path, i.key, i.value, i.created, i.updated, i.version, i.ns, i.number, i.ttl, i.expires"
)
GET = f"SELECT {_COLUMNS} FROM tk_namespaces n JOIN tk_items i ON i.ns = n.number"
_GET_MANY = f"""
SELECT {_COLUMNS} FROM json_each(?) j
CROSS JOIN tk_namespaces n ON n.path = json_extract(j.value, '$[0]')
CROSS JOIN tk_items i ON i.ns = n.number AND i.key = json_extract(j.value, '$[1]')
"""
UNDER = "i.ns IN (SELECT number FROM tk_namespaces WHERE path >= ? AND path < ?)"
_BARE = "NOT EXISTS (SELECT 1 FROM tk_item_vectors v WHERE v.ns = i.ns AND v.item = i.number)"
_ALIVE = "(i.expires IS NULL OR i.expires > ?)"
_OPERATORS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def path_of(namespace: Namespace) -> str:
    """Return the path of a namespace: its labels, each followed by a period."""
    return "".join([f"{label}." for label in namespace])


def bounds_of(prefix: Namespace) -> tuple[str, str | bytes]:
    """Return the first path of a prefix, and the first one behind all of them."""
    path = path_of(prefix)
    return path, (path[:-1] + "/" if path else b"")  # (/ is behind the period, bytes behind all)


def row_of(row: Sequence[Any]) -> ItemRow:
    """Return the item of a row of `_COLUMNS`."""
    path, key, value, created, updated, version, ns, number, ttl, expires = row[:10]
    namespace = tuple(path[:-1].split(".")) if type(path) is str else (ascii(path),)
    return ItemRow(namespace, key, value, created, updated, version, (ns, number), ttl, expires)


def get_items(db: sqlite3.Connection, read: GetItems) -> list[ItemRow | None]:
    """Answer `GetItems`."""
    keys = [(path_of(namespace), key) for namespace, key in read.keys]
    if len(keys) == 1 or any("\0" in key for _, key in keys):  # (JSON ends at a NUL)
        query = f"{GET} WHERE n.path = ? AND i.key = ?"
        found = [db.execute(query, key).fetchone() for key in keys]
    else:
        rows = db.execute(_GET_MANY, (json.dumps(keys, ensure_ascii=False),))
        by_key = {(row[0], row[1]): row for row in rows}
        found = [by_key.get(key) for key in keys]
    items = [None if row is None else row_of(row) for row in found]
    return [row if row and row.is_there(read.now) else None for row in items]


_BEHIND = "(i.ns, i.number) > (?, ?)"
_FIND = f"""
SELECT {_COLUMNS} FROM tk_items i CROSS JOIN tk_namespaces n ON n.number = i.ns {{where}}
ORDER BY i.ns, i.number LIMIT ? OFFSET ?
"""
# (sorts without the values)
_FIND_NEWEST = f"""
SELECT {_COLUMNS} FROM (
    SELECT i.number AS item FROM tk_items i {{where}}
    ORDER BY i.updated DESC, i.version DESC LIMIT ? OFFSET ?) f
CROSS JOIN tk_items i ON i.number = f.item CROSS JOIN tk_namespaces n ON n.number = i.ns
ORDER BY i.updated DESC, i.version DESC
"""


def find_items(db: sqlite3.Connection, read: FindItems) -> list[ItemRow]:
    """Answer `FindItems`."""
    tests, values = _under(read.prefix)
    if read.after is not None:
        tests.append("(i.updated, i.version) < (?, ?)" if read.newest else _BEHIND)
        values += read.after
    if read.bare:
        tests.append(_BARE)
    _narrow(read.where, read.now, tests, values)
    where = f"WHERE {' AND '.join(tests)}" if tests else ""
    text = _FIND_NEWEST if read.newest else _FIND
    query = text.replace("{where}", where)
    values += (read.limit, 0 if read.where else read.offset)
    return [row_of(row) for row in db.execute(query, values)]


def _narrow(
    where: Iterable[Condition], now: int | None, tests: list[str], values: list[Any]
) -> None:
    """Add the conditions of a read and their values."""
    if now is not None:
        tests.append(_ALIVE)
        values.append(now)
    for one in where:
        path = _json_path(one.path)
        if path is not None:
            tests.append(_test(one))
            values += (path, one.value) if one.operator == "$eq" else (path, path, one.value)


def _test(one: Condition) -> str:
    """Return the SQL of a condition. It is tested on JSON; texts as numbers are left to Python."""
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


def find_namespaces(db: sqlite3.Connection, read: FindNamespaces) -> list[Namespace]:
    """Answer `FindNamespaces`."""
    alive = f"AND {_ALIVE}" if read.now is not None else ""
    query = f"""
        SELECT path FROM tk_namespaces n WHERE path >= ? AND path < ?
            AND EXISTS (SELECT 1 FROM tk_items i WHERE i.ns = n.number {alive})"""
    values = (*bounds_of(read.prefix), *(() if read.now is None else (read.now,)))
    paths = [path for (path,) in db.execute(query, values) if type(path) is str]
    return [tuple(path[:-1].split(".")) for path in paths]


def every_version(db: sqlite3.Connection, read: FindEveryVersion) -> list[StoredVersion]:
    """Answer `FindEveryVersion`."""
    query = """
        SELECT n.path, v.ns, v.key, v.version, v.updated, v.replaced, v.deleted, v.patch
        FROM tk_item_versions v JOIN tk_namespaces n ON n.number = v.ns
        WHERE (v.ns, v.key, v.version) > (?, ?, ?) ORDER BY v.ns, v.key, v.version LIMIT ?"""
    rows = db.execute(query, (*(read.after or (0, "", 0)), read.limit))
    return [
        StoredVersion(
            tuple(path[:-1].split(".")),
            key,
            VersionRow(version, updated, replaced, bool(deleted), patch),
            (ns, key, version),
        )
        for path, ns, key, version, updated, replaced, deleted, patch in rows
    ]


def vectors_under(read: FindNearest) -> tuple[str, list[Any]]:
    """Return the part of a query that names the vectors, and its values."""
    tests, values = _under(read.prefix)
    tests.append(_IS_VECTOR)
    values.append(len(read.vector))
    _narrow(read.where, read.now, tests, values)
    joined = bool(read.where) or read.now is not None
    source = "FROM tk_item_vectors v"
    if joined:
        source += " JOIN tk_items i ON i.number = v.item"
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    return source + (where if joined else where.replace("i.ns", "v.ns")), values


_IS_VECTOR = """typeof(v.vector) = 'blob' AND length(v.vector) = ?
    AND typeof(v.ns) = 'integer' AND typeof(v.item) = 'integer'"""


def _under(prefix: Namespace) -> tuple[list[str], list[Any]]:
    return ([UNDER], list(bounds_of(prefix))) if prefix else ([], [])


def find_text(db: sqlite3.Connection, read: FindText) -> list[Scored]:
    """Answer `FindText`."""
    tests, values = _under(read.prefix)
    _narrow(read.where, read.now, tests, values)
    words = " OR ".join([f'"{word}"' for word in read.words])
    where = "".join([f" AND {test}" for test in tests])
    query = f"""
        SELECT i.number, -rank FROM tk_item_words w JOIN tk_items i ON i.number = w.rowid
        WHERE tk_item_words MATCH ?{where} ORDER BY rank, i.ns, i.number LIMIT ?"""
    found = db.execute(query, (words, *values, read.limit)).fetchall()
    return scored_items(db, [item for item, _ in found], [score for _, score in found])


def scored_items(
    db: sqlite3.Connection, items: Sequence[int], scores: Iterable[float]
) -> list[Scored]:
    """Return items by their numbers, with their scores. Missing items are left out."""
    query = f"{GET} WHERE i.number = ?"
    rows = [db.execute(query, (item,)).fetchone() for item in items]
    if None in rows:
        _log.warning("Vectors or words of items that are not there: %d.", rows.count(None))
    return [Scored(row_of(row), score) for row, score in zip(rows, scores, strict=True) if row]


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
