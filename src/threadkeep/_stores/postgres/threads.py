"""Reads of the registry and reads that span threads, as SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from psycopg.types.numeric import Int8

from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.model import (
    THREADS,
    FindThreads,
    ReadDamage,
    ReadSizes,
    Sizes,
    StoredThreadSize,
    UnreadableRow,
)
from threadkeep._core.engine.thread_entry import (
    EARLIEST,
    LARGEST,
    LATEST,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
    checked,
    is_count,
)
from threadkeep._stores.postgres.statement import (
    Query,
    Rows,
    Statement,
    pack_text,
    unpack_optional,
    unpack_text,
)

MICROSECONDS = """(CASE WHEN isfinite({0}) THEN (extract(epoch from {0}) * 1000000)::bigint
    WHEN {0} > 'epoch' THEN 9223372036854775807 WHEN {0} < 'epoch' THEN -9223372036854775808 END)"""
"""A timestamp as microseconds since 1970; the greatest or smallest number if it is infinite."""

# -- entries -------------------------------------------------------------------------

_COLUMNS = f"""
    t.thread_id, t.state, {MICROSECONDS.format("t.created_at")},
    {MICROSECONDS.format("t.updated_at")}, t.size,
    ARRAY(SELECT l.label FROM {{schema}}.thread_labels l WHERE l.thread_id = t.thread_id
        ORDER BY l.label),
    t.pinned, t.ttl, t.origin, t.origin_checkpoint, t.waits_at,
    coalesce({MICROSECONDS.format("t.deleted_at")}, 0), t.revision
"""
ENTRY = f"""
SELECT {_COLUMNS} FROM {{schema}}.threads t WHERE t.thread_id = %s AND t.state IS NOT NULL
"""
_LONGEST = 10**18  # microseconds of a ttl: more would be out of a timestamp's range
_TIMES = ("updated_at", "created_at")
_ORDERS = {name: f"t.{name}" for name in (*_TIMES, "size")} | {"thread": "t.thread_id"}


def entry(read: thread_entry.ReadEntry) -> Query:
    """Answer a `ReadEntry`."""
    statement = Statement(ENTRY, (pack_text(read.thread),))
    return Query((statement,), lambda results: _entry(results[0][0]) if results[0] else None)


def search(read: thread_entry.SearchThreads) -> Query:
    """Answer a `SearchThreads`."""
    conditions, values = _where(read.query)
    order = _ORDERS[read.order]
    if read.after is not None:
        value = "{schema}.time_of(%s)" if read.order in _TIMES else "%s"
        sign = "<" if read.descending else ">"
        conditions.append(f'({order}, t.thread_id) {sign} ({value}, %s COLLATE "C")')
        place, thread = read.after
        values += [Int8(place) if isinstance(place, int) else pack_text(place), pack_text(thread)]
    down = " DESC" if read.descending else ""
    sql = (
        f"SELECT {_COLUMNS} FROM {{schema}}.threads t WHERE {' AND '.join(conditions)}"
        f" ORDER BY {order}{down}, t.thread_id{down} LIMIT %s"
    )
    # Which index is best depends on how many threads have a label: planned each time.
    statement = Statement(sql, (*values, Int8(read.limit)), keep=False)
    return Query((statement,), lambda results: [_entry(row) for row in results[0]])


def count(read: thread_entry.CountThreads) -> Query:
    """Answer a `CountThreads`."""
    conditions, values = _where(read.query)
    sql = f"SELECT count(*) FROM {{schema}}.threads t WHERE {' AND '.join(conditions)}"
    statement = Statement(sql, tuple(values), keep=False)
    return Query((statement,), lambda results: int(results[0][0][0]))


def _entry(row: Sequence[Any]) -> ThreadEntry:
    thread, state, created_at, updated_at, size, labels, pinned, ttl, *rest = row
    origin, origin_checkpoint, waits_at, deleted_at, revision = rest
    begun: Any = None
    if origin is not None:
        begun = (unpack_text(origin), unpack_optional(origin_checkpoint))
    entry = ThreadEntry(
        thread=unpack_text(thread),
        state=state,
        created_at=created_at,
        updated_at=updated_at,
        size=size,
        labels=tuple(labels),
        pinned=pinned,
        ttl=ttl,
        origin=begun,
        waits_at=unpack_optional(waits_at),
        deleted_at=deleted_at,
        revision=revision,
    )
    return checked(entry)


def damaged(results: Rows, thread: str, generation: int) -> tuple[UnreadableRow, ...]:
    """The thread's own row, of the rows of its entry, if that or its generation is damaged."""
    problem = _entry(results[0]).damage if results else ""
    if not is_count(generation):
        problem = "its generation is damaged"
    data = repr((generation, *results)).encode()
    return (UnreadableRow(THREADS, thread.encode(), problem, data),) if problem else ()


# What is damaged gets safe values, also if the change that follows is refused.
_IS_TIME = f"BETWEEN {{schema}}.time_of({EARLIEST}) AND {{schema}}.time_of({LATEST})"
_MAKE_SOUND = f"""
UPDATE {{schema}}.threads SET
    state = CASE WHEN state = ANY(%s) THEN state END,
    created_at = CASE WHEN created_at {_IS_TIME} THEN created_at ELSE now() END,
    updated_at = CASE WHEN updated_at {_IS_TIME} THEN updated_at ELSE now() END,
    deleted_at = CASE WHEN deleted_at {_IS_TIME} THEN deleted_at END,
    size = CASE WHEN size BETWEEN -{LARGEST} AND {LARGEST} THEN size ELSE 0 END,
    ttl = CASE WHEN ttl BETWEEN 0 AND {LARGEST} THEN ttl END,
    revision = CASE WHEN revision BETWEEN 0 AND {LARGEST} THEN revision
        ELSE (random() * 2 ^ 52)::bigint END,
    generation = CASE WHEN generation BETWEEN 0 AND {LARGEST} THEN generation
        ELSE (random() * 2 ^ 52)::bigint END
WHERE thread_id = %s
"""


def make_sound(thread: str) -> Statement:
    """Give what is damaged in a thread's own row safe values."""
    return Statement(_MAKE_SOUND, ([str(one) for one in ThreadStatus], pack_text(thread)))


_HAS_LABEL = """EXISTS (
    SELECT FROM {schema}.thread_labels l WHERE l.thread_id = t.thread_id AND l.label = %s)"""


def _where(query: ThreadQuery) -> tuple[list[str], list[Any]]:
    terms = list(_conditions(query))
    return [term for term, _ in terms], [value for _, values in terms for value in values]


def _conditions(query: ThreadQuery) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if query.states:
        yield "t.state = ANY(%s)", (list(query.states),)
    else:
        yield f"t.state <> '{ThreadStatus.DELETED}'", ()
    for label in query.labels:
        yield _HAS_LABEL, (label,)
    yield from _between("created_at", *query.created)
    yield from _between("updated_at", *query.updated)
    if query.waits is not None:
        yield f"t.waits_at IS {'NOT ' if query.waits else ''}NULL", ()
    if query.pinned is not None:
        yield "t.pinned" if query.pinned else "NOT t.pinned", ()
    if query.size is not None:
        yield "t.size >= %s", (Int8(query.size),)
    if query.origin is not None:
        yield "t.origin = %s", (pack_text(query.origin),)
    if query.rested is not None:
        rest = f"least(t.ttl, {_LONGEST}) * interval '1 microsecond'"
        time = f"least(t.updated_at, {{schema}}.time_of({LATEST})) + {rest}"
        yield f"t.ttl IS NOT NULL AND {time} < {{schema}}.time_of(%s)", (Int8(query.rested),)


def _between(
    column: str, first: int | None, last: int | None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for sign, limit in ((">=", first), ("<", last)):
        if limit is not None:
            yield f"t.{column} {sign} {{schema}}.time_of(%s)", (Int8(limit),)


# -- rows of all threads ---------------------------------------------------------------

_HOLDS_CHECKPOINTS = "EXISTS (SELECT FROM {schema}.checkpoints h WHERE h.thread_id = t.thread_id)"
_HOLDS_ANY = f"""{_HOLDS_CHECKPOINTS}
    OR EXISTS (SELECT FROM {{schema}}.writes h WHERE h.thread_id = t.thread_id)
    OR EXISTS (
        SELECT FROM {{schema}}.segments h WHERE h.thread_id = coalesce(t.heap, t.thread_id))"""
_THREADS = """
SELECT t.thread_id, t.heap FROM {schema}.threads t WHERE {conditions} ORDER BY t.thread_id LIMIT %s
"""
# The few rows of these runs first: the planner would rather walk through all threads in order.
_THREADS_OF_RUNS = """
WITH found AS MATERIALIZED (
    SELECT h.thread_id FROM unnest(%s::text[]) wanted (run_id) JOIN {schema}.checkpoints h
        ON h.metadata @> jsonb_build_object('run_id', wanted.run_id)
)
SELECT DISTINCT t.thread_id, NULL FROM found t WHERE {conditions} ORDER BY t.thread_id LIMIT %s
"""


def _page(text: str, condition: str, after: str | None) -> tuple[str, list[str]]:
    # (a cursor that may be NULL could not be looked up in an index)
    if after is None:
        return text.replace("{conditions}", condition), []
    return text.replace("{conditions}", f"t.thread_id > %s AND ({condition})"), [pack_text(after)]


def find(read: FindThreads) -> Query:
    """Answer a `FindThreads`."""
    runs = [[pack_text(run) for run in read.run_ids]] if read.run_ids else []
    condition = "true" if runs or read.empty else _HOLDS_CHECKPOINTS
    text, behind = _page(_THREADS_OF_RUNS if runs else _THREADS, condition, read.after)
    statement = Statement(text, (*runs, *behind, Int8(read.limit)))
    return Query((statement,), lambda results: [unpack_text(thread) for thread, _ in results[0]])


_SIZES = """
SELECT t.thread_id, c.number, w.number, s.number, c.bytes + w.bytes, s.bytes
FROM ({threads}) t,
    LATERAL (
        SELECT count(*) AS number, coalesce(sum(
            octet_length(checkpoint_ns) + octet_length(checkpoint_id)
            + coalesce(octet_length(parent_checkpoint_id), 0) + pg_column_size(metadata)
            + coalesce(octet_length(metadata_text), 0) + coalesce(octet_length(exact), 0)
            + octet_length(manifest)), 0)::bigint AS bytes
        FROM {schema}.checkpoints h WHERE h.thread_id = t.thread_id
    ) c,
    LATERAL (
        SELECT count(*) AS number, coalesce(sum(
            octet_length(checkpoint_ns) + octet_length(checkpoint_id) + octet_length(task_id)
            + octet_length(task_path) + octet_length(body)), 0)::bigint AS bytes
        FROM {schema}.writes h WHERE h.thread_id = t.thread_id
    ) w,
    LATERAL (
        SELECT count(*) AS number, coalesce(sum(octet_length(data)), 0)::bigint AS bytes
        FROM {schema}.segments h WHERE h.thread_id = coalesce(t.heap, t.thread_id)
            AND (t.heap IS NULL OR t.thread_id = (
                SELECT min(f.thread_id) FROM {schema}.threads f WHERE f.heap = t.heap))
    ) s
ORDER BY t.thread_id
"""
TOTAL = Statement("""
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = $name${schema}$name$::regnamespace AND relkind = 'r'
""")


def sizes(read: ReadSizes) -> Query:
    """Answer a `ReadSizes`."""
    threads, behind = _page(_THREADS, _HOLDS_ANY, read.after)

    def reply(results: Sequence[Rows]) -> Sizes:
        ((total,),), rows = results
        return Sizes(
            total, tuple(StoredThreadSize(unpack_text(t), *numbers) for t, *numbers in rows)
        )

    each = Statement(_SIZES.replace("{threads}", threads), (*behind, Int8(read.limit)))
    return Query((TOTAL, each), reply)


_STRAYS = " UNION ALL ".join(
    f"""
    SELECT '{table}', h.thread_id, count(*) FROM {{schema}}.{table} h
    WHERE NOT EXISTS (SELECT FROM {{schema}}.threads t WHERE {known} = h.thread_id)
    GROUP BY h.thread_id
    """
    for table, known in (
        *(("checkpoints", "t.thread_id"), ("writes", "t.thread_id")),
        ("segments", "coalesce(t.heap, t.thread_id)"),
    )
)


def damage(_read: ReadDamage) -> Query:
    """Answer a `ReadDamage`."""
    text = "{} rows of {} are of thread {!r}, which is not there"

    def reply(results: Sequence[Rows]) -> list[str]:
        return [text.format(number, table, unpack_text(one)) for table, one, number in results[0]]

    return Query((Statement(_STRAYS),), reply)
