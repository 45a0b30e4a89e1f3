"""Counts of the whole store as SQL: rows of entries and keys, and no segment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from threadkeep._core.engine.model import OWN_NS
from threadkeep._core.engine.thread_entry import LARGEST as MOST
from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS
from threadkeep._core.engine.usage import (
    DAY,
    HOUR,
    SAMPLED_ITEMS,
    ItemUsage,
    ReadUsage,
    StoreUsage,
    ThreadUsage,
    hours_of,
)

if TYPE_CHECKING:
    import sqlite3

_IS_USED = f"""t.state IN {WITH_CHECKPOINTS} AND substr(t.thread, 1, {len(OWN_NS)}) <> '{OWN_NS}'
    AND typeof(t.thread) = 'text' AND typeof(t.updated_at) = 'integer'
    AND coalesce(t.size, 0) BETWEEN -{MOST} AND {MOST}"""
TOTALS = f"""
SELECT count(*), coalesce(sum(t.size), 0), coalesce(sum(t.updated_at < :idle_since), 0),
    coalesce(sum(iif(t.updated_at < :idle_since, t.size, 0)), 0),
    (SELECT count(*) FROM tk_checkpoints),
    (SELECT count(*) FROM tk_writes),
    (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)
FROM tk_threads t WHERE {_IS_USED}
"""
# (a save leaves its thread's `updated_at` as it is if that is less than a second old)
_RECENT = f"""
WITH recent AS MATERIALIZED (
    SELECT t.number, coalesce(t.size, 0) AS size, count(*) AS rows,
        sum(c.ts >= :since AND typeof(c.ts) = 'integer') AS recent
    FROM tk_threads t CROSS JOIN tk_checkpoints c
    WHERE {_IS_USED} AND t.updated_at >= :since - 1000000 AND c.thread = t.number
    GROUP BY t.number
)
"""
HOURS = f"""
{_RECENT}
SELECT (c.ts - :since) / {HOUR}, count(*), total(r.size * 1.0 / r.rows)
FROM recent r CROSS JOIN tk_checkpoints c
WHERE r.recent AND c.thread = r.number AND c.ts >= :since AND typeof(c.ts) = 'integer' GROUP BY 1
"""
_THREAD = """
SELECT t.thread, coalesce(t.size, 0),
    (SELECT count(*) FROM tk_checkpoints c WHERE c.thread = t.number),
    (SELECT count(*) FROM tk_writes w WHERE w.thread = t.number),
    (SELECT count(*) FROM tk_checkpoints c
        WHERE c.thread = t.number AND c.ts >= :since AND typeof(c.ts) = 'integer'),
    t.updated_at
"""
BUSIEST = f"""
{_RECENT} {_THREAD} FROM recent r JOIN tk_threads t ON t.number = r.number
WHERE r.recent ORDER BY r.recent DESC, t.thread LIMIT :most
"""
LARGEST = f"""
{_THREAD} FROM tk_threads t WHERE {_IS_USED} ORDER BY t.size DESC, t.thread LIMIT :most
"""
# Multiplied, numbers are in no order that has to do with when a thread was made.
SAMPLE = f"""
{_THREAD} FROM tk_threads t WHERE {_IS_USED}
ORDER BY t.number * 2654435761 % 4294967296 LIMIT :most
"""
# Of items and cached results; their tables are there once a store or a cache was opened.
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_ITEMS = """
SELECT (SELECT count(*) FROM tk_items),
    (SELECT count(*) FROM tk_items WHERE expires <= ?),
    (SELECT count(*) FROM tk_items WHERE pending IS NOT NULL),
    (SELECT count(*) FROM tk_item_vectors),
    (SELECT length(vector) FROM tk_item_vectors LIMIT 1)
"""
_BYTES = """
SELECT (SELECT total(length(CAST(value AS BLOB))) FROM tk_items)
    + (SELECT total(length(patch)) FROM tk_item_versions)
"""
# (`count` rows that are spread evenly over the numbers of all)
_MEAN_BYTES = """
WITH RECURSIVE ends (first, last) AS (SELECT min(number), max(number) FROM tk_items),
    spread (at) AS (
        SELECT first FROM ends
        UNION ALL SELECT at + max((last - first) / :count, 1) FROM spread, ends
        WHERE at + max((last - first) / :count, 1) <= last)
SELECT avg(
    length(CAST(i.value AS BLOB))
    + (SELECT total(length(patch)) FROM tk_item_versions v WHERE v.ns = i.ns AND v.key = i.key))
FROM spread CROSS JOIN tk_items i
WHERE i.number = (SELECT number FROM tk_items WHERE number >= at ORDER BY number LIMIT 1)
"""
_ENTRIES = "SELECT count(*), total(size) FROM tk_cache WHERE size > 0"
_INDEX = re.compile(r"CREATE INDEX (\w+)[^;]*")


def usage(db: sqlite3.Connection, read: ReadUsage) -> StoreUsage:
    """Answer a `ReadUsage`."""
    values = {**read._asdict(), "since": read.now - DAY}
    threads, size, idle, idle_bytes, checkpoints, writes, total = db.execute(
        TOTALS, values
    ).fetchone()
    largest, busiest, sample = (
        tuple([ThreadUsage(*row) for row in db.execute(text, values)])
        for text in (LARGEST, BUSIEST, SAMPLE)
    )
    return StoreUsage(
        total=total,
        threads=threads,
        bytes=size,
        checkpoints=checkpoints,
        writes=writes,
        idle_threads=idle,
        idle_bytes=idle_bytes,
        hours=hours_of(db.execute(HOURS, values)),
        largest=largest,
        busiest=busiest,
        sample=sample,
        missing_indexes=_missing(db),
    )


def item_usage(db: sqlite3.Connection, now: int) -> ItemUsage:
    """Count items and cached results. See `Backend.item_usage`."""
    tables = {name for (name,) in db.execute(_TABLES)}
    found = ItemUsage()
    if "tk_items" in tables:
        items, expired, waiting, vectors, length = db.execute(_ITEMS, (now,)).fetchone()
        is_sampled = items > SAMPLED_ITEMS
        if is_sampled:
            (mean,) = db.execute(_MEAN_BYTES, {"count": SAMPLED_ITEMS}).fetchone()
            size = mean * items
        else:
            (size,) = db.execute(_BYTES).fetchone()
        found = ItemUsage(items, round(size), expired, waiting, vectors * (length or 0))
        found = found._replace(items_sampled=is_sampled)
    if "tk_cache" in tables:
        entries, held = db.execute(_ENTRIES).fetchone()
        found = found._replace(cache_entries=entries, cache_bytes=round(held))
    return found


def _missing(db: sqlite3.Connection) -> tuple[str, ...]:
    schema = Path(__file__).with_name("schema.sql").read_text("utf-8")
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    wanted = [(found[1], found[0]) for found in _INDEX.finditer(schema)]
    return tuple([" ".join(text.split()) for name, text in wanted if name not in there])
