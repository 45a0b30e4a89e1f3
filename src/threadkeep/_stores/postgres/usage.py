"""Counts of the whole store as SQL: rows of entries and keys, and no segment."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from psycopg.types.numeric import Float4, Int8

from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS
from threadkeep._core.engine.usage import (
    DAY,
    HOUR,
    ItemUsage,
    ReadUsage,
    StoreUsage,
    ThreadUsage,
    hours_of,
)
from threadkeep._stores.postgres import migrations
from threadkeep._stores.postgres.statement import Query, Rows, Statement, unpack_text
from threadkeep._stores.postgres.threads import MICROSECONDS, TOTAL

_IS_USED = f"t.state IN {WITH_CHECKPOINTS} AND NOT starts_with(t.thread_id, '{OWN_NS}')"
_TOTALS = f"""
SELECT count(*), coalesce(sum(t.size), 0)::bigint,
    count(*) FILTER (WHERE t.updated_at < q.since),
    coalesce(sum(t.size) FILTER (WHERE t.updated_at < q.since), 0)::bigint,
    (SELECT count(*) FROM {{schema}}.checkpoints),
    (SELECT count(*) FROM {{schema}}.writes)
FROM (SELECT {{schema}}.time_of(%s) AS since) q, {{schema}}.threads t WHERE {_IS_USED}
"""
# (a save leaves its thread's `updated_at` as it is if that is less than a second old)
_RECENT = f"""
WITH q AS MATERIALIZED (SELECT {{schema}}.time_of(%s) AS since),
recent AS MATERIALIZED (
    SELECT t.thread_id, t.size, count(*) AS rows, count(*) FILTER (WHERE c.ts >= q.since) AS recent
    FROM q, {{schema}}.threads t JOIN {{schema}}.checkpoints c ON c.thread_id = t.thread_id
    WHERE {_IS_USED} AND t.updated_at >= q.since - interval '1 second'
    GROUP BY t.thread_id, t.size
)
"""
_HOURS = f"""
{_RECENT}
SELECT floor(extract(epoch FROM c.ts - q.since) * 1000000 / {HOUR})::bigint, count(*),
    sum(r.size::float8 / r.rows)
FROM q, recent r JOIN {{schema}}.checkpoints c ON c.thread_id = r.thread_id
WHERE r.recent > 0 AND c.ts >= q.since GROUP BY 1
"""
_THREAD = f"""
SELECT t.thread_id, t.size,
    (SELECT count(*) FROM {{schema}}.checkpoints c WHERE c.thread_id = t.thread_id),
    (SELECT count(*) FROM {{schema}}.writes w WHERE w.thread_id = t.thread_id),
    (SELECT count(*) FROM {{schema}}.checkpoints c
        WHERE c.thread_id = t.thread_id AND c.ts >= q.since),
    {MICROSECONDS.format("t.updated_at")}
"""
_BUSIEST = f"""
{_RECENT} {_THREAD} FROM q, recent r JOIN {{schema}}.threads t ON t.thread_id = r.thread_id
WHERE r.recent > 0 ORDER BY r.recent DESC, t.thread_id LIMIT %s
"""
_SOME = f"""
WITH q AS (SELECT {{schema}}.time_of(%s) AS since),
t AS MATERIALIZED (
    SELECT * FROM {{schema}}.threads t WHERE {_IS_USED} ORDER BY {{order}}, thread_id LIMIT %s
)
{_THREAD} FROM q, t ORDER BY {{order}}, thread_id
"""
_LARGEST = _SOME.replace("{order}", "t.size DESC")
_SAMPLE = _SOME.replace("{order}", "md5(t.thread_id)")
_INDEXES = Statement("""
SELECT $name${schema}$name$, c.relname::text,
    split_part(pg_get_indexdef(i.indexrelid), ' USING ', 2)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relnamespace = $name${schema}$name$::regnamespace AND i.indisvalid
""")
# Of items and cached results. Of a large table some pages are read, the same ones each time.
_PAGES = 1024
_SIZES = Statement("""
SELECT pg_relation_size(($name${schema}$name$ || '.store_items')::regclass) / 8192,
    pg_relation_size(($name${schema}$name$ || '.store_item_versions')::regclass) / 8192,
    {schema}.store_has_vectors()
""")
_ITEMS = """
SELECT (SELECT count(*) FROM {schema}.store_items),
    (SELECT count(*) FROM {schema}.store_items WHERE expires_at <= %s),
    (SELECT count(*) FROM {schema}.store_items WHERE pending IS NOT NULL),
    (SELECT sum(octet_length(body))
        FROM {schema}.store_items TABLESAMPLE SYSTEM (%s) REPEATABLE (0))::float8,
    (SELECT sum(octet_length(patch))
        FROM {schema}.store_item_versions TABLESAMPLE SYSTEM (%s) REPEATABLE (0))::float8
"""
_ENTRIES = Statement(
    "SELECT count(*), coalesce(sum(size), 0)::bigint FROM {schema}.cache WHERE size > 0"
)
_VECTORS = Statement("""
SELECT count(*) * 4 * (
    SELECT a.atttypmod FROM pg_attribute a
    WHERE a.attrelid = ($name${schema}$name$ || '.store_item_vectors')::regclass
        AND a.attname = 'vector')
FROM {schema}.store_item_vectors
""")
_INDEX = re.compile(r"CREATE INDEX \w+\s+ON {schema}\.(\w+)([^;]*)")


def usage(read: ReadUsage) -> Query:
    """Answer a `ReadUsage`."""
    since, most = Int8(read.now - DAY), Int8(read.most)
    statements = (
        TOTAL,
        Statement(_TOTALS, (Int8(read.idle_since),)),
        Statement(_HOURS, (since,)),
        *[Statement(text, (since, most)) for text in (_LARGEST, _BUSIEST, _SAMPLE)],
        _INDEXES,
    )

    def reply(results: Sequence[Rows]) -> StoreUsage:
        ((total,),), ((threads, size, idle, idle_bytes, rows, writes),), hours, *some = results
        largest, busiest, sample, indexes = some
        return StoreUsage(
            total=total,
            threads=threads,
            bytes=size,
            checkpoints=rows,
            writes=writes,
            idle_threads=idle,
            idle_bytes=idle_bytes,
            hours=hours_of(hours),
            largest=_threads(largest),
            busiest=_threads(busiest),
            sample=_threads(sample),
            missing_indexes=_missing(indexes),
        )

    return Query(statements, reply)


Answered: TypeAlias = Callable[[Sequence[Statement]], Awaitable[list[Rows]]]


async def item_usage(answered: Answered, now: int) -> ItemUsage:
    """Count items and cached results. See `Backend.item_usage`."""
    ((*pages, has_vectors),), *_ = await answered([_SIZES])
    shares = [min(1.0, _PAGES / max(number, 1)) for number in pages]
    percents = [Float4(100 * share) for share in shares]
    statements = [Statement(_ITEMS, (Int8(now), *percents)), _ENTRIES]
    found = await answered([*statements, _VECTORS] if has_vectors else statements)
    ((items, expired, waiting, *sizes),), ((entries, held),), *vectors = found
    values = sum([(size or 0) / share for size, share in zip(sizes, shares, strict=True)])
    return ItemUsage(
        items=items,
        item_bytes=round(values),
        expired_items=expired,
        waiting_items=waiting,
        vector_bytes=vectors[0][0][0] if vectors else 0,
        cache_entries=entries,
        cache_bytes=held,
        items_sampled=min(shares) < 1,
    )


def _threads(rows: Rows) -> tuple[ThreadUsage, ...]:
    return tuple([ThreadUsage(unpack_text(name), *counts) for name, *counts in rows])


def _missing(there: Rows) -> tuple[str, ...]:
    known = {_indexed(table, definition) for _, table, definition in there}
    schema = there[0][0]
    sql = ";".join([one.sql for one in migrations.migrations()])
    missing = [found[0] for found in _INDEX.finditer(sql) if _indexed(*found.groups()) not in known]
    return tuple([" ".join(text.replace("{schema}", schema).split()) for text in missing])


def _indexed(table: str, definition: str) -> tuple[str, str, bool]:
    """Return an index's table, its columns, and True if it is partial: names may differ."""
    columns, end, condition = definition.partition(")")
    return table, columns.partition("(")[2] + end, "WHERE" in condition
