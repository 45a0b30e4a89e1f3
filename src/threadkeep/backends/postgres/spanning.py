"""Reads that span threads: as SQL, and what the answers mean.

Only `FindThreads`, `ReadSizes` and `ReadDamage` live here. Invariant: whatever is asked page by
page is looked up in an index from the cursor on.
"""
# ruff: noqa: S608 - texts are put together from constants of this module only

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.numeric import Int8

from threadkeep.backends.postgres.statement import Query, Rows, Statement
from threadkeep.backends.postgres.text import pack_text, unpack_text
from threadkeep.engine.model import FindThreads, ReadDamage, ReadSizes, Sizes, ThreadSize

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


def _threads(condition: str, after: str | None, text: str = _THREADS) -> tuple[str, list[str]]:
    """The SQL that asks for threads in order, and the values of its cursor."""
    # (a cursor that may be NULL could not be looked up in an index)
    if after is None:
        return text.replace("{conditions}", condition), []
    return text.replace("{conditions}", f"t.thread_id > %s AND ({condition})"), [pack_text(after)]


def find(read: FindThreads) -> Query:
    """Answer `FindThreads`."""
    runs = [[pack_text(run) for run in read.run_ids]] if read.run_ids else []
    condition = "true" if runs or read.empty else _HOLDS_CHECKPOINTS
    text, behind = _threads(condition, read.after, _THREADS_OF_RUNS if runs else _THREADS)
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
_TOTAL = """
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = $name${schema}$name$::regnamespace AND relkind = 'r'
"""


def sizes(read: ReadSizes) -> Query:
    """Answer `ReadSizes`."""
    threads, behind = _threads(_HOLDS_ANY, read.after)

    def reply(results: Sequence[Rows]) -> Sizes:
        ((total,),), rows = results
        return Sizes(total, tuple(ThreadSize(unpack_text(t), *numbers) for t, *numbers in rows))

    each = Statement(_SIZES.replace("{threads}", threads), (*behind, Int8(read.limit)))
    return Query((Statement(_TOTAL), each), reply)


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
    """Answer `ReadDamage`."""

    def reply(results: Sequence[Rows]) -> list[str]:
        return [
            f"{count} rows of {table} are of thread {unpack_text(thread)!r}, which is not there"
            for table, thread, count in results[0]
        ]

    return Query((Statement(_STRAYS),), reply)
