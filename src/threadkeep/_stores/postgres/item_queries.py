"""Reads of items as SQL."""

from __future__ import annotations

import json
import re
import sys
from array import array as numbers_of
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from threadkeep._stores.items import records
from threadkeep._stores.items.records import ItemRow, Namespace, VectorMetric
from threadkeep._stores.items.sql import Dialect, namespace_of, path_of, stored, where
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

_EXACT = 1000  # vectors that are compared one by one, without the index
_MORE = 4  # vectors read from the index for each wanted item, which may have several
_MOST_EF = 1000  # the largest hnsw.ef_search
_SCORES = {"cosine": "1 - distance", "l2": "-distance", "inner_product": "-distance"}


def query(read: records.ItemRead, metric: VectorMetric) -> Query:
    """Return the statements that answer a read."""
    if isinstance(read, records.FindNearest):
        return _nearest(read, metric)
    return _QUERIES[type(read)](read)


# -- parameters of statements -----------------------------------------------------


def key_of(namespace: Namespace, key: str) -> tuple[str, str]:
    """Return the values of the columns path and key."""
    return pack_text(path_of(namespace)), pack_text(key)


def _namespace(path: str) -> Namespace:
    return namespace_of(unpack_text(path))


def arrays(items: Iterable[Sequence[Any]]) -> tuple[Array, Array]:
    """Return the columns path and key of tuples that begin with a namespace and a key."""
    pairs = [key_of(*one[:2]) for one in items]
    return array("text", [path for path, _ in pairs]), array("text", [name for _, name in pairs])


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
    "i.path, i.key, i.value IS NOT NULL, i.body, i.created_at, i.updated_at, i.version,"
    " i.ttl, i.expires_at, i.pending"
)
_GET = f"SELECT {_COLUMNS} FROM {{schema}}.store_items i WHERE i.path = %s AND i.key = %s"
_GET_MANY = f"""
SELECT {_COLUMNS}, p.place FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY p (path, key, place)
JOIN {{schema}}.store_items i USING (path, key)
"""
_ALIVE = "(i.expires_at IS NULL OR i.expires_at > %s)"


def _row(row: Sequence[Any]) -> ItemRow:
    path, key, is_json, body, created, updated, version, ttl, expires, pending = row[:10]
    times, ends = (created, updated, version), (ttl, expires, unpack_optional(pending))
    value = _decoded(body) if is_json else body
    return ItemRow(_namespace(path), unpack_text(key), value, *times, (path, key), *ends)


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
    alive = () if read.now is None else (Number(read.now),)
    if len(read.keys) == 1:
        text = f"{_GET} AND {_ALIVE}" if alive else _GET
        one = Statement(text, (*key_of(*read.keys[0]), *alive))
        return Query((one,), lambda answers: _rows(answers) or [None])
    text = f"{_GET_MANY} WHERE {_ALIVE}" if alive else _GET_MANY

    def reply(answers: Sequence[Rows]) -> list[ItemRow | None]:
        found = {row[-1]: _row(row) for row in answers[0]}
        return [found.get(place) for place in range(1, len(read.keys) + 1)]

    return Query((Statement(text, (*arrays(read.keys), *alive)),), reply)


_OPERATORS = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def _test(one: records.Condition) -> tuple[str, list[Any]] | None:
    """Return the SQL of a condition. Rows that Python may compare in another way match."""
    if any("\0" in text for text in (*one.path, str(one.value))):
        return None
    path, operator = list(one.path), _OPERATORS[one.operator]
    found = "i.value" + " -> %s::text" * len(path)
    if isinstance(one.value, str):
        text = " ->> %s::text".join(found.rsplit(" -> %s::text", 1))
        text, values = f'({text}) {operator} %s::text COLLATE "C"', [*path, one.value]
    else:
        others = "'boolean'" if one.operator == "$eq" else "'boolean', 'string'"
        text = f"({found}) {operator} %s::jsonb OR jsonb_typeof({found}) IN ({others})"
        values = [*path, json.dumps(one.value + 0), *path]
    return f"(i.value IS NULL OR {text})", values


_BARE = (
    "NOT EXISTS (SELECT FROM {schema}.store_item_vectors v WHERE v.path = i.path AND v.key = i.key)"
)
DIALECT = Dialect(key_of, "\U0010ffff" * 64, _BARE, _test)


def _statement(text: str, values: Sequence[Any], *, keep: bool = True) -> Statement:
    given = [Number(one) if isinstance(one, int) else one for one in values]
    return Statement(_named(text), tuple(given), keep)


@lru_cache(maxsize=256)
def _named(text: str) -> str:
    """Return a query with the columns' names in this database."""
    return _TIMES.sub(r"\g<0>_at", text)


_TIMES = re.compile(r"\bi\.(?:updated|expires)\b")


# (sorts without the values)
_FIND = """
SELECT {columns} FROM (SELECT i.path, i.key FROM {schema}.store_items i {end}) f
JOIN {schema}.store_items i USING (path, key) ORDER BY {order}
"""


def _find(read: records.FindItems) -> Query:
    end, order, values = DIALECT.find(read)
    text = _FIND.replace("{columns}", _COLUMNS).replace("{end}", end).replace("{order}", order)
    return Query((_statement(text, values),), _rows)


# Steps from each path to the next one by the index.
_NAMESPACES = """
WITH RECURSIVE n AS (
    (SELECT path FROM {schema}.store_items WHERE path >= %s AND path < %s ORDER BY path LIMIT 1)
    UNION ALL
    SELECT (SELECT i.path FROM {schema}.store_items i WHERE i.path > n.path AND i.path < %s
            ORDER BY i.path LIMIT 1)
    FROM n WHERE n.path IS NOT NULL)
SELECT n.path FROM n WHERE n.path IS NOT NULL
"""


def _namespaces(read: records.FindNamespaces) -> Query:
    first, stop = DIALECT.bounds(read.prefix)
    text = _NAMESPACES
    values: tuple[Any, ...] = (first, stop, stop)
    if read.now is not None:
        one = "EXISTS (SELECT FROM {schema}.store_items i WHERE i.path = n.path AND"
        text, values = f"{text} AND {one} {_ALIVE})", (*values, Number(read.now))
    statement = Statement(text, values)
    return Query((statement,), lambda answers: [_namespace(path) for (path,) in answers[0]])


def _versions(read: records.FindVersions) -> Query:
    end, values = DIALECT.versions(read)
    text = f"""
        SELECT path, key, version, updated_at, replaced_at, deleted, patch
        FROM {{schema}}.store_item_versions i {end}"""

    def reply(answers: Sequence[Rows]) -> list[records.StoredVersion]:
        return [stored(_namespace(path), unpack_text(key), row) for path, key, *row in answers[0]]

    return Query((_statement(text, values),), reply)


# ts_rank ignores how rare a word is. So each word is weighed as in BM25, by the number of items
# with this word in a sample of the matching items.
_TEXT = """
WITH words AS (SELECT word::tsquery FROM unnest(%s::text[]) w (word)
), matching AS MATERIALIZED (
    SELECT i.path, i.key, i.words FROM {schema}.store_items i {where}
), sample AS MATERIALIZED (SELECT m.words FROM matching m LIMIT 1000
), weights AS MATERIALIZED (
    SELECT w.word, ln(1 + (s.size - s.having + 0.5) / (s.having + 0.5)) AS weight
    FROM words w CROSS JOIN LATERAL (
        SELECT count(*) AS size, count(*) FILTER (WHERE s.words @@ w.word) AS having
        FROM sample s) s
), scored AS (
    SELECT m.path, m.key,
        (SELECT sum(w.weight * ts_rank(m.words, w.word, 1)) FROM weights w) AS score
    FROM matching m ORDER BY score DESC, m.path, m.key LIMIT %s
)
SELECT {columns}, s.score::double precision FROM scored s
JOIN {schema}.store_items i USING (path, key) ORDER BY s.score DESC, i.path, i.key
"""


def _text(read: records.FindText) -> Query:
    if not read.words:
        return Query((), lambda _: [])
    words = [quoted(word) for word in read.words]
    tests, values = DIALECT.tests(read)
    text = _TEXT.replace("{where}", where(["i.words @@ %s::tsquery", *tests]))
    given = (array("text", words), " | ".join(words), *values, read.limit)
    return Query((_statement(text.replace("{columns}", _COLUMNS), given),), _scored)


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
    SELECT v.path, v.key, {schema}.store_distance_{metric}(v.vector, %s) AS distance
    FROM {joined} WHERE NOT (SELECT holds FROM few) {tests}
    ORDER BY {schema}.store_order_{metric}(v.vector, %s) LIMIT %s
), scored AS (
    SELECT path, key, max({score}) AS score FROM (
        SELECT * FROM near
        UNION ALL
        SELECT v.path, v.key, {schema}.store_distance_{metric}(v.vector, %s)
        FROM {joined} WHERE ((SELECT holds FROM few)
            OR (SELECT count(DISTINCT (near.path, near.key)) FROM near) < %s) {tests}
    ) found GROUP BY path, key ORDER BY score DESC, path, key LIMIT %s
)
SELECT {columns}, s.score FROM scored s
JOIN {schema}.store_items i USING (path, key) ORDER BY s.score DESC, i.path, i.key
"""


def _nearest(read: records.FindNearest, metric: VectorMetric) -> Query:
    bounds: tuple[Any, ...] = DIALECT.bounds(read.prefix) if read.prefix else ()
    tests, values = DIALECT.tests(read)
    counted = joined = "{schema}.store_item_vectors v"
    if len(values) > len(bounds):
        joined += " JOIN {schema}.store_items i USING (path, key)"
    else:
        tests = [test.replace("i.", "v.") for test in tests]
    if bounds:
        counted += " WHERE v.path >= %s AND v.path < %s"
    text = _NEAREST
    for name, part in (
        *(("counted", counted), ("joined", joined), ("exact", str(_EXACT)), ("metric", metric)),
        *(("tests", "".join([f" AND {test}" for test in tests])), ("columns", _COLUMNS)),
        ("score", f"CASE WHEN distance = 'NaN' THEN 0 ELSE {_SCORES[metric]} END"),
    ):
        text = text.replace(f"{{{name}}}", part)
    taken, limit, wanted = _MORE * read.limit, read.limit, _vector(read.vector)
    near = (wanted, *values, wanted, taken)
    given = (*bounds, *near, wanted, limit, *values, limit)
    statement = _statement(text, given, keep=not bounds)
    settings = Statement(_SETTINGS, (str(min(max(taken, 40), _MOST_EF)),))
    return Query((settings, statement), _scored)


_QUERIES: dict[type, Callable[[Any], Query]] = {
    records.GetItems: _get,
    records.FindItems: _find,
    records.FindNamespaces: _namespaces,
    records.FindText: _text,
    records.FindVersions: _versions,
}
