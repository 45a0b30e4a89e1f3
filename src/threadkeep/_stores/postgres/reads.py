"""Reads of one thread as SQL, and rows as records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from threadkeep._core.engine import model, thread_entry
from threadkeep._core.engine.heads import Head, readable
from threadkeep._core.engine.usage import ReadUsage
from threadkeep._core.texts import is_unicode
from threadkeep._stores.postgres import heads, threads
from threadkeep._stores.postgres.statement import (
    Number,
    Query,
    Rows,
    Statement,
    array,
    pack_json,
    single,
    unpack_metadata,
    unpack_optional,
    unpack_time,
)
from threadkeep._stores.records import (
    Term,
    begins_with,
    pack_text,
    terms_of,
    unpack_text,
    with_writes,
)

_LARGEST_EXACT = 2**53  # up to here, SQL compares floats and integers as Python does


def query(read: Any, found: Callable[[Head], None] = lambda _: None) -> Query:
    """Return the query that answers a read, also one of the rules.

    `found` is called with the head of a thread that was read with a checkpoint.
    """
    if type(read) is model.ReadCheckpoint:
        return _checkpoint(read, found)
    return _QUERIES[type(read)](read)


# -- rows as records -----------------------------------------------------------------

_ROW = """
    c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.run, c.seen, c.flags::bigint,
    timestamptz_send(c.ts), c.ts_text, c.metadata::text, c.metadata_text, c.exact,
    c.key_log, c.key_pos, c.manifest
"""
_ROW_COLUMNS = 14
# Of rows that share a keyframe, only the first returns its bytes.
_KEYFRAME = """
    k.start, k.count,
    CASE WHEN row_number() OVER (PARTITION BY c.thread_id, k.log, k.start ORDER BY {order}) = 1
        THEN k.data END
"""
# (not coalesce: for a role with policies, it would keep the planner from the index)
_KEYFRAME_OF = """
    LEFT JOIN LATERAL (
        SELECT s.log, s.start, s.count, s.data FROM {schema}.segments s
        WHERE s.thread_id = CASE WHEN t.heap IS NULL THEN c.thread_id ELSE t.heap END
            AND s.log = c.key_log AND s.start <= c.key_pos
        ORDER BY s.start DESC LIMIT 1
    ) k ON k.start + k.count > c.key_pos
"""
_KEYFRAMES = f"""
    LEFT JOIN {{schema}}.threads t ON t.thread_id = c.thread_id {_KEYFRAME_OF}
"""
_CHILDREN = """
    LEFT JOIN LATERAL (
        SELECT x.checkpoint_id, x.run, x.seen FROM {schema}.checkpoints x
        WHERE x.thread_id = c.thread_id AND x.checkpoint_ns = c.checkpoint_ns
            AND x.parent_checkpoint_id = c.checkpoint_id AND x.checkpoint_id > c.checkpoint_id
        ORDER BY x.checkpoint_id LIMIT 1
    ) x ON true
"""
_WRITES = """
    LEFT JOIN LATERAL (
        SELECT array_agg(w.run) AS runs, array_agg(w.seen) AS seens, array_agg(w.task_id) AS tasks,
            array_agg(w.task_path) AS paths, array_agg(w.body) AS bodies, array_agg(w.seq) AS seqs
        FROM (
            SELECT * FROM {schema}.writes w
            WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
                AND w.checkpoint_id = c.checkpoint_id
            ORDER BY w.seq
        ) w
    ) w ON true
"""
_MORE = """x.checkpoint_id, x.run, x.seen,
    w.runs, w.seens, w.tasks, w.paths, w.bodies, w.seqs"""
_WHOLE = f"{_ROW}, {_KEYFRAME}, {_MORE}"
_OF_PAGE = f"""
SELECT c.thread_id, {_WHOLE}
FROM page JOIN {{schema}}.checkpoints c USING (thread_id, checkpoint_ns, checkpoint_id)
{_KEYFRAMES} {_CHILDREN} {_WRITES} ORDER BY {{order}}
"""


def _checkpoint_row(row: Sequence[Any]) -> model.CheckpointRow:
    ns, key, parent, run, seen, flags, sent, time, stored, text, *rest = row
    micros = unpack_time(sent)
    return model.CheckpointRow(
        unpack_text(ns),
        unpack_text(key),
        unpack_optional(parent),
        run,
        seen,
        flags,
        unpack_text(time) if micros is None else micros,
        unpack_metadata(stored, text),
        *rest,
    )


_Keyframes: TypeAlias = dict[tuple[str, int, int], model.Segment]


def _keyframe(
    known: _Keyframes, thread: str, log: int, found: Sequence[Any]
) -> model.Segment | None:
    """Return the segment of the columns start, count, and data (None: an earlier row has it)."""
    start, count, data = found
    if data is not None:
        known[thread, log, start] = model.Segment(log, start, count, data)
    return known.get((thread, log, start))


def _stored(thread: str, row: Sequence[Any], keyframes: _Keyframes) -> model.StoredCheckpoint:
    found = _checkpoint_row(row[:_ROW_COLUMNS])
    start, count, data, child, run, seen, *writes = row[_ROW_COLUMNS:]
    return model.StoredCheckpoint(
        thread,
        found,
        _keyframe(keyframes, thread, found.key_log, (start, count, data)),
        tuple(_writes(found, writes)),
        None if child is None else model.Child(unpack_text(child), run, seen),
    )


def _writes(
    row: model.CheckpointRow, columns: Sequence[list[Any] | None]
) -> Iterator[model.WriteRow]:
    for run, seen, task, path, body, seq in zip(*[c or () for c in columns], strict=True):
        task_id, task_path = unpack_text(task), unpack_text(path)
        yield model.WriteRow(row.ns, row.id, run, seen, task_id, task_path, body, seq)


def _page(rows: Rows) -> list[model.StoredCheckpoint]:
    keyframes: _Keyframes = {}
    return [_stored(unpack_text(thread), row, keyframes) for thread, *row in rows]


# -- one checkpoint, and its ancestors -------------------------------------------------

_VISIBLE = f"c.flags < {model.HIDDEN}"  # (the greatest flag: the planner can estimate a range)
_HEAP_OF_T = "CASE WHEN t.heap IS NULL THEN t.thread_id ELSE t.heap END"
# The heap of a thread, given twice. A subquery, so that it is looked up once.
_HEAP = """
    (SELECT coalesce((SELECT t.heap FROM {schema}.threads t WHERE t.thread_id = %s), %s))
"""
_ONE = f"""
SELECT {heads.SELECTED}, {_ROW}, k.start, k.count, k.data, {_MORE}
FROM (SELECT %s::text COLLATE "C" AS thread_id) q
LEFT JOIN {{schema}}.threads t ON t.thread_id = q.thread_id
LEFT JOIN LATERAL (
    SELECT * FROM {{schema}}.checkpoints c
    WHERE c.thread_id = q.thread_id AND c.checkpoint_ns = %s AND {{which}}
    ORDER BY c.checkpoint_id DESC LIMIT 1
) c ON true
{_KEYFRAME_OF} {_CHILDREN} {_WRITES}
"""
_HEAD = _ONE.replace("{which}", _VISIBLE)
_BY_ID = _ONE.replace("{which}", "c.checkpoint_id = %s")


def _checkpoint(read: model.ReadCheckpoint, found: Callable[[Head], None]) -> Query:
    values = [pack_text(read.thread), pack_text(read.ns)]
    if read.id is not None:
        values.append(pack_text(read.id))

    def reply(results: Sequence[Rows]) -> model.ThreadState:
        (row,) = results[0]
        read_now = heads.head_of(read.thread, row[: heads.WIDTH])
        head = readable(read_now)
        if head is read_now:
            found(head)
        row = row[heads.WIDTH :]
        stored = _stored(read.thread, row, {}) if row[1] is not None else None
        state = (head.generation, head.deleted_at, stored, head.tips, head.life, head.logs)
        return model.ThreadState(*state)

    return Query((Statement(_HEAD if read.id is None else _BY_ID, tuple(values)),), reply)


_PATH = """
WITH RECURSIVE page (thread_id, checkpoint_ns, checkpoint_id, parent_id, step) AS (
    SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, 1
    FROM {schema}.checkpoints
    WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s
    UNION ALL
    SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, page.step + 1
    FROM page JOIN {schema}.checkpoints c ON c.thread_id = page.thread_id
        AND c.checkpoint_ns = page.checkpoint_ns AND c.checkpoint_id = page.parent_id
    WHERE page.step < %s
)""" + _OF_PAGE.replace("{order}", "page.step")


def _path(read: model.ReadPath) -> Query:
    key = (pack_text(read.thread), pack_text(read.ns), pack_text(read.id), Number(read.limit))
    return single(_PATH, key, _page)


# -- segments ------------------------------------------------------------------------

# Stored segments never overlap, so the last that starts at or before a span is the first to read.
_SEGMENTS = f"""
SELECT DISTINCT ON (s.log, s.start) s.log, s.start, s.count, s.data
FROM {{schema}}.threads t
CROSS JOIN unnest(%s::bigint[], %s::bigint[], %s::bigint[]) span (log, start, stop)
LEFT JOIN LATERAL (
    SELECT b.start FROM {{schema}}.segments b
    WHERE b.thread_id = {_HEAP_OF_T} AND b.log = span.log AND b.start <= span.start
    ORDER BY b.start DESC LIMIT 1
) b ON true
JOIN LATERAL (
    SELECT s.log, s.start, s.count, s.data FROM {{schema}}.segments s
    WHERE s.thread_id = {_HEAP_OF_T} AND s.log = span.log AND s.start < span.stop
        AND s.start + s.count > span.start
        AND s.start >= CASE WHEN b.start IS NULL THEN 0 ELSE b.start END
    OFFSET 0  -- by index for each span, never a join with all segments of the thread
) s ON span.start < span.stop
WHERE t.thread_id = %s AND (%s::bigint IS NULL OR %s = t.generation) AND %s::bigint[] <@ t.tips
ORDER BY s.log, s.start
"""


def _segments(read: model.ReadSegments) -> Query:
    columns = tuple(zip(*read.spans, strict=True)) or ((), (), ())
    spans = [array("bigint", column) for column in columns]
    generation = None if read.generation is None else Number(read.generation)
    base = array("bigint", read.base)
    values = (*spans, pack_text(read.thread), generation, generation, base)
    return single(_SEGMENTS, values, lambda rows: [model.Segment(*row) for row in rows])


# -- scans ---------------------------------------------------------------------------

_NEWEST_FIRST = "c.checkpoint_id DESC, c.thread_id, c.checkpoint_ns"
_SCAN = f"""
WITH page AS MATERIALIZED (
    SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id FROM {{schema}}.checkpoints c
    WHERE {{conditions}} ORDER BY {_NEWEST_FIRST} LIMIT %s
)""" + _OF_PAGE.replace("{order}", _NEWEST_FIRST)
_AFTER = """c.checkpoint_id <= %s AND (c.checkpoint_id < %s
    OR (c.thread_id, c.checkpoint_ns) > (%s COLLATE "C", %s COLLATE "C"))"""


def _scan(read: model.ScanCheckpoints) -> Query:
    where, values = terms_of(_scan_terms(read))
    sql = _SCAN.replace("{conditions}", where)
    # (the best plan depends on how many rows match the filter's values, or have the prefix)
    keep = not (read.filter or read.prefix)
    statement = Statement(sql, (*values, Number(read.limit)), keep=keep)
    return Query((statement,), lambda results: _page(results[0]))


def _scan_terms(read: model.ScanCheckpoints) -> Iterator[Term]:
    yield _VISIBLE, ()
    for term, value in (
        ("c.thread_id = %s", read.thread),
        ("c.checkpoint_ns = %s", read.ns),
        ("c.checkpoint_id = %s", read.id),
        ("c.checkpoint_id < %s", read.before),
    ):
        if value is not None:
            yield term, (pack_text(value),)
    yield from begins_with("c.thread_id", pack_text(read.prefix))
    if read.after is not None:
        key, thread, ns = map(pack_text, read.after)
        yield _AFTER, (key, key, thread, ns)
    for term, values in _filter_conditions(read.filter):
        yield f"c.exact IS NOT NULL OR {term}", values


def _filter_conditions(wanted: Mapping[str, Any]) -> Iterator[Term]:
    """Yield a condition for each metadata key whose value PostgreSQL compares as Python does."""
    for key, value in wanted.items():
        if not all(is_unicode(one) for one in (key, value) if isinstance(one, str)):
            # (jsonb holds no such text, a row with `exact` may)
            if value is not None:
                yield "false", []
        elif value is None:  # also if the key is missing
            yield "coalesce(c.metadata -> %s, 'null') = 'null'", [pack_text(key)]
        else:
            alike = list(_alike(value))
            if alike:
                term = " OR ".join(["c.metadata @> %s::jsonb"] * len(alike))
                yield f"({term})", [pack_json(json.dumps({key: one})) for one in alike]


def _alike(value: object) -> Iterator[object]:
    """Yield the SQL values that equal a value in Python, or none if unsure."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (bool, int, float)) and abs(value) < _LARGEST_EXACT:
        if value in (0, 1):
            yield bool(value)
        yield value if not isinstance(value, bool) else int(value)


# -- housekeeping --------------------------------------------------------------------

_ALL_ROWS = f"""
SELECT {_ROW}, {_KEYFRAME.replace("{order}", "c.checkpoint_ns, c.checkpoint_id")}
FROM {{schema}}.checkpoints c {_KEYFRAMES}
WHERE c.thread_id = %s ORDER BY c.checkpoint_ns, c.checkpoint_id
"""
_ALL_WRITES = """
SELECT checkpoint_ns, checkpoint_id, run, seen, task_id, task_path, body, seq
FROM {schema}.writes WHERE thread_id = %s ORDER BY checkpoint_ns, checkpoint_id, seq
"""
_ALL_SEGMENTS = f"""
SELECT log, start, count, length(data)::bigint
FROM {{schema}}.segments WHERE thread_id = {_HEAP} ORDER BY log, start
"""
_FAMILY = """
SELECT o.thread_id FROM {schema}.threads t JOIN {schema}.threads o ON o.heap = t.heap
WHERE t.thread_id = %s AND o.thread_id <> t.thread_id ORDER BY o.thread_id
"""


def _thread(read: model.ReadThread) -> Query:
    key = (pack_text(read.thread),)
    texts = [threads.OWN_ROW, _ALL_ROWS, _ALL_WRITES, _ALL_SEGMENTS, _FAMILY]

    def reply(results: Sequence[Rows]) -> model.ThreadRows:
        own, rows, writes, segments, others = results
        head = threads.own_row(own[0])[0] if own else Head(read.thread)
        head = readable(head, skip=read.skip)
        keyframes: _Keyframes = {}
        found = [_checkpoint_row(row[:_ROW_COLUMNS]) for row in rows]
        checkpoints, orphans = with_writes(
            read.thread,
            found,
            [
                _keyframe(keyframes, read.thread, one.key_log, row[_ROW_COLUMNS:])
                for one, row in zip(found, rows, strict=True)
            ],
            map(_write_row, writes),
        )
        places = tuple(model.SegmentInfo(*row) for row in segments)
        family = tuple([unpack_text(other) for (other,) in others])
        broken = threads.damaged(own) if read.skip else ()
        return model.ThreadRows(
            *(head.generation, head.deleted_at, checkpoints, orphans, places, family, broken),
            *(head.tips, head.life),
        )

    return Query(tuple(Statement(text, key * text.count("%s")) for text in texts), reply)


def _write_row(row: Sequence[Any]) -> model.WriteRow:
    ns, checkpoint, run, seen, task, path, body, seq = row
    ns, checkpoint, task, path = map(unpack_text, (ns, checkpoint, task, path))
    return model.WriteRow(ns, checkpoint, run, seen, task, path, body, seq)


_QUERIES: dict[type, Callable[[Any], Query]] = {
    **heads.QUERIES,
    model.ReadSegments: _segments,
    model.ReadPath: _path,
    model.ScanCheckpoints: _scan,
    model.ReadThread: _thread,
    model.FindThreads: threads.find,
    model.ReadSizes: threads.sizes,
    ReadUsage: threads.usage,
    thread_entry.ReadEntry: threads.entry,
    thread_entry.SearchThreads: threads.search,
    thread_entry.CountThreads: threads.count,
    model.ReadDamage: threads.damage,
}
