"""Reads of the registry, of several threads, and counts of the store, as SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg.types.numeric import Float4

from threadkeep._core.engine import model, thread_entry
from threadkeep._core.engine.heads import Head, entry_of, problem_of
from threadkeep._core.engine.thread_entry import LATEST, WITH_CHECKPOINTS, Lifecycle, ThreadQuery
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
from threadkeep._stores.postgres.connections import PostgresDatabase
from threadkeep._stores.postgres.heads import SELECTED, head_of
from threadkeep._stores.postgres.message_words import HAS_BEGUN
from threadkeep._stores.postgres.messages import ONE_STATE
from threadkeep._stores.postgres.statement import (
    Number,
    Query,
    Rows,
    Statement,
    single,
    unpack_time,
)
from threadkeep._stores.records import (
    Term,
    begins_with,
    pack_text,
    page_terms,
    query_terms,
    terms_of,
    unpack_text,
)

# -- entries -------------------------------------------------------------------------

# The fields of a head, and its labels.
_COLUMNS = f"""
    {SELECTED},
    ARRAY(SELECT l.label FROM {{schema}}.thread_labels l WHERE l.thread_id = t.thread_id)
"""
OWN_ROW = f"SELECT {_COLUMNS} FROM {{schema}}.threads t WHERE t.thread_id = %s"
# (more microseconds of a ttl would exceed a timestamp's range)
_REST = f"""least(t.updated_at, {{schema}}.time_of({LATEST}))
    + least(t.ttl, {10**18}) * interval '1 microsecond'"""
_TIMES = ("updated_at", "created_at")
_ORDERS = {name: f"t.{name}" for name in (*_TIMES, "size")} | {"thread": "t.thread_id"}


def entry(read: thread_entry.ReadEntry) -> Query:
    """Answer a `ReadEntry`."""
    key = (pack_text(read.thread),)
    return single(OWN_ROW, key, lambda rows: _entry(rows[0]) if rows else None)


def search(read: thread_entry.SearchThreads) -> Query:
    """Answer a `SearchThreads`."""
    terms, order = [*_conditions(read.query)], _ORDERS[read.order]
    if read.after is not None:
        value = "{schema}.time_of(%s)" if read.order in _TIMES else "%s"
        sign = "<" if read.descending else ">"
        later = f'({order}, t.thread_id) {sign} ({value}, %s COLLATE "C")'
        terms.append((later, tuple(map(_packed, read.after))))
    where, values = terms_of(terms)
    down = " DESC" if read.descending else ""
    sql = (
        f"SELECT {_COLUMNS} FROM {{schema}}.threads t WHERE {where}"
        f" ORDER BY {order}{down}, t.thread_id{down} LIMIT %s"
    )
    # (the best index depends on how many threads have a label)
    statement = Statement(sql, (*values, Number(read.limit)), keep=False)
    return Query((statement,), lambda results: [_entry(row) for row in results[0]])


def count(read: thread_entry.CountThreads) -> Query:
    """Answer a `CountThreads`."""
    where, values = terms_of(_conditions(read.query))
    sql = f"SELECT count(*) FROM {{schema}}.threads t WHERE {where}"
    return Query((Statement(sql, values, keep=False),), lambda results: results[0][0][0])


def own_row(row: Sequence[Any]) -> tuple[Head, list[str]]:
    """Return a thread's own row as its head and its labels."""
    *columns, labels = row
    return head_of(unpack_text(columns[0]), columns), labels


def _entry(row: Sequence[Any]) -> Any:
    return entry_of(*own_row(row))


def damaged(rows: Rows) -> tuple[model.UnreadableRow, ...]:
    """Return the thread's own row if it is damaged."""
    for row in rows:
        head, labels = own_row(row)
        problem, key = problem_of(head, labels), head.thread.encode()
        if problem:
            return (model.UnreadableRow(model.THREADS, key, problem, repr(row).encode()),)
    return ()


_HAS_LABEL = """EXISTS (
    SELECT FROM {schema}.thread_labels l WHERE l.thread_id = t.thread_id AND l.label = %s)"""


_UNINDEXED = f"""(t.thread_id IN (SELECT thread_id FROM {{schema}}.threadkeep_unindexed)
    AND t.state IN {WITH_CHECKPOINTS}
    AND {HAS_BEGUN})"""


def _conditions(query: ThreadQuery) -> Iterator[Term]:
    yield from begins_with("t.thread_id", pack_text(query.prefix))
    if query.states:
        yield "t.state = ANY(%s)", (list(query.states),)
    else:
        yield f"t.state <> '{Lifecycle.DELETED}'", ()
    for label in query.labels:
        yield _HAS_LABEL, (label,)
    if query.words:
        words = " & ".join([f"'{word}'" for word in query.words])
        # (a role with policies finds its threads by their prefix alone)
        within = begins_with("w.thread_id", pack_text(query.prefix))
        where, matched = terms_of([*within, ("w.words @@ %s::tsquery", (words,))])
        found = f"SELECT w.thread_id FROM {{schema}}.threadkeep_words w WHERE {where}"
        yield f"t.thread_id IN ({found}) OR {_UNINDEXED}", matched
    if query.unindexed:
        yield _UNINDEXED, ()
    for term, values in query_terms(query):
        filled = term.replace("{rest}", _REST).replace("{time}", "{schema}.time_of(%s)")
        yield filled, tuple(map(_packed, values))


def _packed(value: Any) -> Any:
    if isinstance(value, str):
        return pack_text(value)
    return value if isinstance(value, bool) else Number(value)


# -- rows of all threads ---------------------------------------------------------------

# (not coalesce: see reads.py)
_HEAP = "CASE WHEN t.heap IS NULL THEN t.thread_id ELSE t.heap END"
_HOLDS_CHECKPOINTS = "EXISTS (SELECT FROM {schema}.checkpoints h WHERE h.thread_id = t.thread_id)"
_HOLDS_ANY = f"""{_HOLDS_CHECKPOINTS}
    OR EXISTS (SELECT FROM {{schema}}.writes h WHERE h.thread_id = t.thread_id)
    OR EXISTS (
        SELECT FROM {{schema}}.segments h WHERE h.thread_id = {_HEAP})"""
_PAGE = """
SELECT t.thread_id, t.heap FROM {schema}.threads t WHERE {conditions} ORDER BY t.thread_id LIMIT %s
"""
# (MATERIALIZED: the planner would otherwise walk through all threads in order)
_THREADS_OF_RUNS = """
WITH found AS MATERIALIZED (
    SELECT h.thread_id FROM unnest(%s::text[]) wanted (run_id) JOIN {schema}.checkpoints h
        ON h.metadata @> jsonb_build_object('run_id', wanted.run_id) AND {within}
)
SELECT DISTINCT t.thread_id, NULL FROM found t WHERE {conditions} ORDER BY t.thread_id LIMIT %s
"""


def _page(
    text: str, condition: str, read: model.FindThreads | model.ReadSizes
) -> tuple[str, list[Any]]:
    # (a cursor that may be NULL cannot use an index)
    where, values = terms_of([*page_terms("t.thread_id", read), (condition, ())])
    return text.replace("{conditions}", where), [*map(pack_text, values), Number(read.limit)]


def find(read: model.FindThreads) -> Query:
    """Answer a `FindThreads`."""
    firsts: list[Any] = []
    condition = "true" if read.empty else _HOLDS_CHECKPOINTS
    text, behind = _page(_PAGE, condition, read)
    if read.run_ids:
        # (also before the outer condition: a role with policies cannot use the index of metadata)
        within, limits = terms_of(begins_with("h.thread_id", pack_text(read.prefix)))
        text, behind = _page(_THREADS_OF_RUNS.replace("{within}", within), "true", read)
        firsts = [[pack_text(run) for run in read.run_ids], *limits]
    return single(text, (*firsts, *behind), lambda rows: [unpack_text(row[0]) for row in rows])


_SIZES = f"""
SELECT t.thread_id, c.number, w.number, s.number, c.bytes + w.bytes, s.bytes
FROM ({{threads}}) t,
    LATERAL (
        SELECT count(*) AS number, coalesce(sum(
            octet_length(checkpoint_ns) + octet_length(checkpoint_id)
            + coalesce(octet_length(parent_checkpoint_id), 0) + pg_column_size(metadata)
            + coalesce(octet_length(metadata_text), 0) + coalesce(octet_length(exact), 0)
            + octet_length(manifest)), 0)::bigint AS bytes
        FROM {{schema}}.checkpoints h WHERE h.thread_id = t.thread_id
    ) c,
    LATERAL (
        SELECT count(*) AS number, coalesce(sum(
            octet_length(checkpoint_ns) + octet_length(checkpoint_id) + octet_length(task_id)
            + octet_length(task_path) + octet_length(body)), 0)::bigint AS bytes
        FROM {{schema}}.writes h WHERE h.thread_id = t.thread_id
    ) w,
    LATERAL (
        SELECT count(*) AS number, coalesce(sum(octet_length(data)), 0)::bigint AS bytes
        FROM {{schema}}.segments h WHERE h.thread_id = {_HEAP}
            AND (t.heap IS NULL OR t.thread_id = (
                SELECT min(f.thread_id) FROM {{schema}}.threads f WHERE f.heap = t.heap))
    ) s
ORDER BY t.thread_id
"""
TOTAL = Statement("""
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = $name${schema}$name$::regnamespace AND relkind = 'r'
""")


def sizes(read: model.ReadSizes) -> Query:
    """Answer a `ReadSizes`."""
    threads, behind = _page(_PAGE, _HOLDS_ANY, read)

    def reply(results: Sequence[Rows]) -> model.Sizes:
        *totals, rows = results
        return model.Sizes(
            sum([total for ((total,),) in totals]),
            tuple([model.StoredThreadSize(unpack_text(t), *numbers) for t, *numbers in rows]),
        )

    each = Statement(_SIZES.replace("{threads}", threads), tuple(behind))
    return Query((each,) if read.prefix else (TOTAL, each), reply)


_STRAYS = " UNION ALL ".join(
    f"""
    SELECT '{table}', h.thread_id, count(*) FROM {{schema}}.{table} h
    WHERE NOT EXISTS (SELECT FROM {{schema}}.threads t WHERE {known} = h.thread_id)
    GROUP BY h.thread_id
    """
    for table, known in (
        *(("checkpoints", "t.thread_id"), ("writes", "t.thread_id")),
        ("segments", _HEAP),
    )
)


def damage(_read: model.ReadDamage) -> Query:
    """Answer a `ReadDamage`."""
    text = "{2} rows of {0} belong to thread {1!r}, which does not exist"
    return single(
        _STRAYS,
        (),
        lambda rows: [text.format(row[0], unpack_text(row[1]), row[2]) for row in rows],
    )


# -- counts of the store ---------------------------------------------------------------

# (compared in this way, as `starts_with` takes twice as long)
_AFTER_OWN = model.AFTER_OWN.replace("%", "%%")
_IS_USED = f"""t.state IN {WITH_CHECKPOINTS}
    AND (t.thread_id < '{model.OWN_NS}' OR t.thread_id >= '{_AFTER_OWN}')"""
# (counting every row, then threadkeep's own, is quicker than leaving these out)
_ROWS = f"""(SELECT count(*) FROM {{{{schema}}}}.{{0}}) - (
    SELECT count(*) FROM {{{{schema}}}}.{{0}}
    WHERE thread_id >= '{model.OWN_NS}' AND thread_id < '{_AFTER_OWN}')"""
_TOTALS = f"""
SELECT count(*), coalesce(sum(t.size), 0)::bigint,
    {_ROWS.format("checkpoints")}, {_ROWS.format("writes")},
    count(*) FILTER (WHERE t.updated_at < q.since),
    coalesce(sum(t.size) FILTER (WHERE t.updated_at < q.since), 0)::bigint
FROM (SELECT {{schema}}.time_of(%s) AS since) q, {{schema}}.threads t WHERE {_IS_USED}
"""
_COUNTS = """
    (SELECT count(*) FROM {schema}.writes w WHERE w.thread_id = t.thread_id), {recent},
    timestamptz_send(t.updated_at)
"""
# The hours (their number, checkpoints and bytes), and the busiest threads.
# (a save may leave its thread's `updated_at` up to a second old)
_ACTIVITY = f"""
WITH q AS MATERIALIZED (SELECT {{schema}}.time_of(%s) AS since),
recent AS MATERIALIZED (
    SELECT t.thread_id, t.size, t.updated_at, count(*) AS rows,
        count(*) FILTER (WHERE c.ts >= q.since) AS recent
    FROM q, {{schema}}.threads t JOIN {{schema}}.checkpoints c ON c.thread_id = t.thread_id
    WHERE {_IS_USED} AND t.updated_at >= q.since - interval '1 second'
    GROUP BY t.thread_id
)
SELECT NULL, floor(extract(epoch FROM c.ts - q.since) * 1000000 / {HOUR})::bigint AS hour,
    count(*), round(sum(t.size::float8 / t.rows))::bigint, NULL, NULL
FROM q, recent t JOIN {{schema}}.checkpoints c ON c.thread_id = t.thread_id
WHERE t.recent > 0 AND c.ts >= q.since GROUP BY hour
UNION ALL (
    SELECT t.thread_id, t.size, t.rows, {_COUNTS.replace("{recent}", "t.recent")}
    FROM (
        SELECT * FROM recent WHERE recent > 0 ORDER BY recent DESC, thread_id LIMIT %s
    ) t ORDER BY t.recent DESC, t.thread_id
)
"""
_RECENT = """(SELECT count(*) FROM {schema}.checkpoints c
    WHERE c.thread_id = t.thread_id AND c.ts >= q.since)"""
_SOME = f"""
WITH q AS (SELECT {{schema}}.time_of(%s) AS since),
t AS MATERIALIZED (
    SELECT * FROM {{schema}}.threads t WHERE {_IS_USED} ORDER BY {{order}}, thread_id LIMIT %s
)
SELECT t.thread_id, t.size,
    (SELECT count(*) FROM {{schema}}.checkpoints c WHERE c.thread_id = t.thread_id),
    {_COUNTS.replace("{recent}", _RECENT)}
FROM q, t ORDER BY {{order}}, thread_id
"""
_LARGEST = _SOME.replace("{order}", "t.size DESC")
_SAMPLE = _SOME.replace("{order}", "md5(t.thread_id)")
_INDEXES = Statement("""
SELECT $name${schema}$name$, c.relname::text,
    split_part(pg_get_indexdef(i.indexrelid), ' USING ', 2)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relnamespace = $name${schema}$name$::regnamespace AND i.indisvalid
""")
# Items and cached results. Of a large table, the same sample of pages is read each time.
_SAMPLED_PAGES = 1024
_TABLE_PAGES = Statement("""
SELECT pg_relation_size(($name${schema}$name$ || '.store_items')::regclass) / 8192,
    pg_relation_size(($name${schema}$name$ || '.store_item_versions')::regclass) / 8192,
    to_regclass($name${schema}.store_item_vectors$name$) IS NOT NULL, pg_is_in_recovery()
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
_NO_ENTRIES = Statement("SELECT 0::bigint, 0::bigint")
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
    since, most = Number(read.now - DAY), Number(read.most)
    statements = (
        TOTAL,
        Statement(_TOTALS, (Number(read.idle_since),)),
        *[Statement(text, (since, most)) for text in (_ACTIVITY, _LARGEST, _SAMPLE)],
        _INDEXES,
    )

    def reply(results: Sequence[Rows]) -> StoreUsage:
        ((total,),), (totals,), active, largest, sample, indexes = results
        hours = hours_of([row[1:4] for row in active if row[0] is None])
        busiest = [row for row in active if row[0] is not None]
        threads = map(_threads, (largest, busiest, sample))
        parts: list[Any] = [hours, *threads, _missing(indexes)]
        return StoreUsage(total, *totals, *parts)

    return Query(statements, reply)


async def item_usage(database: PostgresDatabase, now: int) -> ItemUsage:
    """Count items and cached results. See `Backend.item_usage`."""
    ((*pages, has_vectors, is_standby),), *_ = await database.answered([_TABLE_PAGES], ONE_STATE)
    shares = [min(1.0, _SAMPLED_PAGES / max(number, 1)) for number in pages]
    percents = [Float4(100 * share) for share in shares]
    # (a standby cannot read unlogged tables)
    cached = _NO_ENTRIES if is_standby else _ENTRIES
    statements = [Statement(_ITEMS, (Number(now), *percents)), cached]
    if has_vectors:
        statements.append(_VECTORS)
    found = await database.answered(statements, ONE_STATE)
    ((items, expired, waiting, *sizes),), ((entries, held),), *vectors = found
    values = sum([(size or 0) / share for size, share in zip(sizes, shares, strict=True)])
    vector_bytes = vectors[0][0][0] if vectors else 0
    counts = (items, round(values), expired, waiting, vector_bytes, entries, held)
    return ItemUsage(*counts, items_sampled=min(shares) < 1)


def _threads(rows: Rows) -> tuple[ThreadUsage, ...]:
    found = [(unpack_text(name), *rest, unpack_time(sent) or 0) for name, *rest, sent in rows]
    return tuple(map(ThreadUsage._make, found))


def _missing(there: Rows) -> tuple[str, ...]:
    known = {_indexed(table, definition) for _, table, definition in there}
    schema = there[0][0]
    sql = ";".join([one.sql for one in migrations.migrations()])
    missing = [found[0] for found in _INDEX.finditer(sql) if _indexed(*found.groups()) not in known]
    return tuple([" ".join(text.replace("{schema}", schema).split()) for text in missing])


def _indexed(table: str, definition: str) -> tuple[str, str, bool]:
    """Return an index's table and columns, and True if it is partial. Its name may differ."""
    columns, end, condition = definition.partition(")")
    return table, columns.partition("(")[2] + end, "WHERE" in condition
