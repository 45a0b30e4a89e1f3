"""Reads of items as SQL."""

from __future__ import annotations

import json
import sys
from array import array as numbers_of
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from threadkeep._stores.items import records
from threadkeep._stores.items.records import ItemRow, Namespace, VectorMetric
from threadkeep._stores.postgres.statement import (
    Array,
    Number,
    Query,
    Rows,
    Statement,
    array,
    unpack_optional,
)
from threadkeep._stores.records import pack_text, unpack_text

_Source: TypeAlias = tuple[list[str], list[Any]]  # conditions as SQL, and their parameters

_EXACT = 1000  # vectors that are compared one by one, without the index
_MORE = 4  # vectors read from the index for each wanted item, which may have several
_MOST_EF = 1000  # the largest hnsw.ef_search
_LAST = "\U0010ffff" * 64  # sorts after all paths
_SCORES = {"cosine": "1 - distance", "l2": "-distance", "inner_product": "-distance"}


def query(read: records.ItemRead, metric: VectorMetric) -> Query:
    """Return the statements that answer a read."""
    if isinstance(read, records.FindNearest):
        return _nearest(read, metric)
    return _QUERIES[type(read)](read)


# -- parameters of statements -----------------------------------------------------


@lru_cache(maxsize=4096)
def path_of(namespace: Namespace) -> str:
    """Return the path of a namespace: its labels, each followed by a period."""
    return pack_text("".join([f"{label}." for label in namespace]))


@lru_cache(maxsize=4096)
def _namespace(path: str) -> Namespace:
    return tuple(unpack_text(path)[:-1].split("."))


def bounds_of(prefix: Namespace) -> tuple[str, str]:
    """Return the first path of a prefix, and the first path after all of them."""
    path = path_of(prefix)
    return path, (path[:-1] + "/" if path else _LAST)  # (/ sorts after the period)


def big_endian(vectors: bytes) -> numbers_of[int]:
    """Return the elements of vectors with their bytes in network order."""
    numbers = numbers_of("I", vectors)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _vector(data: bytes) -> Array:
    """Encode a vector in pgvector's binary form."""
    size = len(data) // 4
    return Array(size.to_bytes(2, "big") + b"\0\0" + big_endian(data).tobytes())


def quoted(word: str) -> str:
    """Quote a word for the input of a tsvector or tsquery."""
    return "'" + pack_text(word).replace("\\", "\\\\").replace("'", "''") + "'"


# -- reads -------------------------------------------------------------------------------

_COLUMNS = (
    "n.path, i.key, i.value IS NOT NULL, i.body, i.created_at, i.updated_at, i.version,"
    " i.namespace, i.number, i.ttl, i.expires_at"
)
_ITEMS = "{schema}.store_items i JOIN {schema}.store_namespaces n ON n.number = i.namespace"
_GET = f"SELECT {_COLUMNS} FROM {_ITEMS} WHERE n.path = %s AND i.key = %s"
_GET_MANY = f"""
SELECT {_COLUMNS}, p.place FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY p (path, key, place)
JOIN {{schema}}.store_namespaces n ON n.path = p.path COLLATE "C"
JOIN {{schema}}.store_items i ON i.namespace = n.number AND i.key = p.key
"""
_UNDER = "n.path >= %s AND n.path < %s"
_ALIVE = "(i.expires_at IS NULL OR i.expires_at > %s)"
_BARE = (
    "NOT EXISTS (SELECT FROM {schema}.store_item_vectors v"
    " WHERE v.namespace = i.namespace AND v.item = i.number)"
)


def _row(row: Sequence[Any]) -> ItemRow:
    path, key, is_json, body, created, updated, version, namespace, number, ttl, expires = row[:11]
    value, place = _decoded(body) if is_json else body, (namespace, number)
    return ItemRow(
        _namespace(path), unpack_text(key), value, created, updated, version, place, ttl, expires
    )


def _decoded(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body  # (damaged)


def _rows(answers: Sequence[Rows]) -> list[ItemRow]:
    return [_row(row) for row in answers[0]]


def _scored(answers: Sequence[Rows]) -> list[records.Scored]:
    return [records.Scored(_row(row), row[-1]) for row in answers[-1]]


def _get(read: records.GetItems) -> Query:
    alive: tuple[Any, ...] = ()
    if read.now is not None:
        alive = (Number(read.now),)
    if len(read.keys) == 1:
        ((namespace, key),) = read.keys
        text = f"{_GET} AND {_ALIVE}" if alive else _GET
        one = Statement(text, (path_of(namespace), pack_text(key), *alive))
        return Query((one,), lambda answers: _rows(answers) or [None])
    paths = array("text", [path_of(namespace) for namespace, _ in read.keys])
    keys = array("text", [pack_text(key) for _, key in read.keys])
    text = f"{_GET_MANY} WHERE {_ALIVE}" if alive else _GET_MANY

    def reply(answers: Sequence[Rows]) -> list[ItemRow | None]:
        found = {row[-1]: _row(row) for row in answers[0]}
        return [found.get(place) for place in range(1, len(read.keys) + 1)]

    return Query((Statement(text, (paths, keys, *alive)),), reply)


def _narrowed(prefix: Namespace, where: Iterable[records.Condition], now: int | None) -> _Source:
    """Return the conditions that rows must fulfil."""
    tests: list[str] = []
    values: list[Any] = []
    if prefix:
        tests.append(_UNDER)
        values += bounds_of(prefix)
    if now is not None:
        tests.append(_ALIVE)
        values.append(Number(now))
    for one in where:
        if not any("\0" in text for text in (*one.path, str(one.value))):
            text, some = _test(one)
            tests.append(f"(i.value IS NULL OR {text})")
            values += some
    return tests, values


_OPERATORS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def _test(one: records.Condition) -> tuple[str, list[Any]]:
    """Return the SQL of a condition. Rows that Python may compare in another way match."""
    path, operator = list(one.path), _OPERATORS[one.operator]
    found = "i.value" + " -> %s::text" * len(path)
    if isinstance(one.value, str):
        text = " ->> %s::text".join(found.rsplit(" -> %s::text", 1))
        return f'({text}) {operator} %s::text COLLATE "C"', [*path, one.value]
    others = "'boolean'" if one.operator == "$eq" else "'boolean', 'string'"
    text = f"(({found}) {operator} %s::jsonb OR jsonb_typeof({found}) IN ({others}))"
    return text, [*path, json.dumps(one.value + 0), *path]


def _where(tests: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(tests)}" if tests else ""


# Reads one namespace after the other, each in the order of its index, until there are enough rows.
# The plan does not depend on the estimated sizes of namespaces.
_FIND = """
SELECT {columns} FROM (
    SELECT n.number, n.path, f.number AS item
    FROM (SELECT n.number, n.path FROM {schema}.store_namespaces n {namespaces} ORDER BY n.number) n
    CROSS JOIN LATERAL (
        SELECT i.number FROM {schema}.store_items i {items} ORDER BY i.number LIMIT %s) f
    ORDER BY n.number, f.number LIMIT %s OFFSET %s) n
JOIN {schema}.store_items i ON i.namespace = n.number AND i.number = n.item
ORDER BY i.namespace, i.number
"""

_FIND_NEWEST = """
SELECT {columns} FROM (
    SELECT n.number, n.path, f.number AS item
    FROM (SELECT n.number, n.path FROM {schema}.store_namespaces n {namespaces}) n
    CROSS JOIN LATERAL (
        SELECT i.number, i.updated_at, i.version FROM {schema}.store_items i {items}
        ORDER BY i.updated_at DESC, i.version DESC LIMIT %s) f
    ORDER BY f.updated_at DESC, f.version DESC LIMIT %s OFFSET %s) n
JOIN {schema}.store_items i ON i.namespace = n.number AND i.number = n.item
ORDER BY i.updated_at DESC, i.version DESC
"""


def _find(read: records.FindItems) -> Query:
    spaces: list[str] = []
    values: list[Any] = []
    if read.prefix:
        spaces.append(_UNDER)
        values += bounds_of(read.prefix)
    tests, some = _narrowed((), read.where, read.now)
    if read.after is not None and read.newest:
        tests.append("(i.updated_at, i.version) < (%s, %s)")
        some += map(Number, read.after)
    elif read.after is not None:
        spaces.append("n.number >= %s")
        values.append(Number(read.after[0]))
        tests.append("(i.namespace, i.number) > (%s, %s)")
        some += map(Number, read.after)
    if read.bare:
        tests.append(_BARE)
    text = _FIND_NEWEST if read.newest else _FIND
    text = text.replace("{columns}", _COLUMNS).replace("{namespaces}", _where(spaces))
    text = text.replace("{items}", _where(["i.namespace = n.number", *tests]))
    offset = 0 if read.where else read.offset
    values += (*some, *map(Number, (read.limit + offset, read.limit, offset)))
    return Query((Statement(text, tuple(values)),), _rows)


def _namespaces(read: records.FindNamespaces) -> Query:
    alive = "" if read.now is None else f" AND {_ALIVE}"
    values = () if read.now is None else (Number(read.now),)
    text = f"""
        SELECT n.path FROM {{schema}}.store_namespaces n WHERE {_UNDER} AND EXISTS (
            SELECT FROM {{schema}}.store_items i WHERE i.namespace = n.number{alive})"""
    statement = Statement(text, (*bounds_of(read.prefix), *values))
    return Query((statement,), lambda answers: [_namespace(path) for (path,) in answers[0]])


_VERSIONS = """
SELECT v.version, v.updated_at, v.replaced_at, v.deleted, v.patch
FROM {schema}.store_item_versions v JOIN {schema}.store_namespaces n ON n.number = v.namespace
WHERE n.path = %s AND v.key = %s ORDER BY v.version DESC
"""


def _versions(read: records.FindVersions) -> Query:
    statement = Statement(_VERSIONS, (path_of(read.namespace), pack_text(read.key)))
    return Query((statement,), lambda answers: [records.VersionRow(*row) for row in answers[0]])


_EVERY_VERSION = """
SELECT n.path, v.namespace, v.key, v.version, v.updated_at, v.replaced_at, v.deleted, v.patch
FROM {schema}.store_item_versions v JOIN {schema}.store_namespaces n ON n.number = v.namespace
WHERE (v.namespace, v.key, v.version) > (%s, %s::text, %s)
ORDER BY v.namespace, v.key, v.version LIMIT %s
"""


def _every_version(read: records.FindEveryVersion) -> Query:
    number, key, version = read.after or (0, "", 0)
    values = (Number(number), key, Number(version), Number(read.limit))

    def reply(answers: Sequence[Rows]) -> list[records.StoredVersion]:
        return [
            records.StoredVersion(
                _namespace(path),
                unpack_text(key),
                records.VersionRow(version, *rest),
                (number, key, version),
            )
            for path, number, key, version, *rest in answers[0]
        ]

    return Query((Statement(_EVERY_VERSION, values),), reply)


def _pending(read: records.FindPending) -> Query:
    text = f"""
        SELECT {_COLUMNS}, i.pending FROM {_ITEMS}
        WHERE i.pending IS NOT NULL AND (i.namespace, i.number) > (%s, %s)
        ORDER BY i.namespace, i.number LIMIT %s"""
    values = tuple(map(Number, (*(read.after or (0, 0)), read.limit)))

    def reply(answers: Sequence[Rows]) -> list[tuple[ItemRow, str | None]]:
        return [(_row(row), unpack_optional(row[-1])) for row in answers[0]]

    return Query((Statement(text, values),), reply)


# ts_rank ignores how rare a word is. So each word is weighed as in BM25, by the number of items
# with this word in a sample of the matching items.
_TEXT = """
WITH words AS (SELECT word::tsquery FROM unnest(%s::text[]) w (word)
), matching AS MATERIALIZED (
    SELECT i.namespace, i.number, i.words FROM {from}
), sample AS MATERIALIZED (SELECT m.words FROM matching m LIMIT 1000
), weights AS MATERIALIZED (
    SELECT w.word, ln(1 + (s.size - s.having + 0.5) / (s.having + 0.5)) AS weight
    FROM words w CROSS JOIN LATERAL (
        SELECT count(*) AS size, count(*) FILTER (WHERE s.words @@ w.word) AS having
        FROM sample s) s
), scored AS (
    SELECT m.namespace, m.number,
        (SELECT sum(w.weight * ts_rank(m.words, w.word, 1)) FROM weights w) AS score
    FROM matching m ORDER BY score DESC, m.namespace, m.number LIMIT %s
)
SELECT {columns}, s.score::double precision FROM scored s
JOIN {schema}.store_items i ON i.namespace = s.namespace AND i.number = s.number
JOIN {schema}.store_namespaces n ON n.number = i.namespace
ORDER BY s.score DESC, i.namespace, i.number
"""


def _text(read: records.FindText) -> Query:
    if not read.words:
        return Query((), lambda _: [])
    words = [quoted(word) for word in read.words]
    tests, values = _narrowed(read.prefix, read.where, read.now)
    where = _where(["i.words @@ %s::tsquery", *tests])
    text = _TEXT.replace("{from}", f"{_ITEMS} {where}").replace("{columns}", _COLUMNS)
    given = (array("text", words), " | ".join(words), *values, Number(read.limit))
    return Query((Statement(text, given),), _scored)


# For one transaction. Versions of pgvector before 0.8 have no iterative scan: if the index returns
# too few vectors, an exact scan follows. Compiling (jit) takes longer than it saves.
_SETTINGS = """
SELECT set_config('jit', 'off', true), set_config('hnsw.ef_search', %s, true),
    CASE WHEN string_to_array(e.extversion, '.')::integer[] >= '{0,8}'
        THEN set_config('hnsw.iterative_scan', 'strict_order', true) END
FROM pg_extension e WHERE e.extname = 'vector'
"""
# The index answers if there are many vectors. If it finds too few, all vectors are compared.
_NEAREST = """
WITH few AS (
    SELECT count(*) <= {exact} AS holds FROM (SELECT FROM {counted} LIMIT {exact} + 1) counted
), near AS MATERIALIZED (
    SELECT v.namespace, v.item, {schema}.store_distance_{metric}(v.vector, %s) AS distance
    FROM {joined} WHERE NOT (SELECT holds FROM few) {tests}
    ORDER BY {schema}.store_order_{metric}(v.vector, %s) LIMIT %s
), scored AS (
    SELECT namespace, item, max({score}) AS score FROM (
        SELECT * FROM near
        UNION ALL
        SELECT v.namespace, v.item, {schema}.store_distance_{metric}(v.vector, %s)
        FROM {joined} WHERE ((SELECT holds FROM few)
            OR (SELECT count(DISTINCT (near.namespace, near.item)) FROM near) < %s) {tests}
    ) found GROUP BY namespace, item ORDER BY score DESC, namespace, item LIMIT %s
)
SELECT {columns}, s.score FROM scored s
JOIN {schema}.store_items i ON i.namespace = s.namespace AND i.number = s.item
JOIN {schema}.store_namespaces n ON n.number = i.namespace
ORDER BY s.score DESC, i.namespace, i.number
"""
_JOIN_ITEMS = " JOIN {schema}.store_items i ON i.namespace = v.namespace AND i.number = v.item"
_JOIN_NAMESPACES = " JOIN {schema}.store_namespaces n ON n.number = v.namespace"


def _nearest(read: records.FindNearest, metric: VectorMetric) -> Query:
    bounds: tuple[Any, ...] = bounds_of(read.prefix) if read.prefix else ()
    tests, values = _narrowed(read.prefix, read.where, read.now)
    counted = "{schema}.store_item_vectors v"
    if bounds:
        counted += _JOIN_NAMESPACES
    joined = counted + (_JOIN_ITEMS if len(values) > len(bounds) else "")
    if bounds:
        counted += f" WHERE {_UNDER}"
    text = _NEAREST
    for name, part in (
        *(("counted", counted), ("joined", joined), ("exact", str(_EXACT)), ("metric", metric)),
        *(("tests", "".join([f" AND {test}" for test in tests])), ("columns", _COLUMNS)),
        ("score", f"CASE WHEN distance = 'NaN' THEN 0 ELSE {_SCORES[metric]} END"),
    ):
        text = text.replace(f"{{{name}}}", part)
    taken, limit, wanted = _MORE * read.limit, Number(read.limit), _vector(read.vector)
    near = (wanted, *values, wanted, Number(taken))
    given = (*bounds, *near, wanted, limit, *values, limit)
    statement = Statement(text, given, keep=not bounds)
    settings = Statement(_SETTINGS, (str(min(max(taken, 40), _MOST_EF)),))
    return Query((settings, statement), _scored)


_QUERIES: dict[type, Callable[[Any], Query]] = {
    records.GetItems: _get,
    records.FindItems: _find,
    records.FindNamespaces: _namespaces,
    records.FindText: _text,
    records.FindPending: _pending,
    records.FindVersions: _versions,
    records.FindEveryVersion: _every_version,
}
