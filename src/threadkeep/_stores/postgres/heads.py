"""Heads of threads as rows of `threads`, and the other reads of the rules. See `rule_reads`.

A thread's rows have its id, its segments have the name of its heap: `Head.number` is the stored id,
and `Head.heap` the name. The stored id "" has another key, as "" means none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from threadkeep._core.engine import model, rule_reads
from threadkeep._core.engine.heads import Head, readable, sound
from threadkeep._core.engine.thread_entry import FIELDS, TIMES, ReadClock
from threadkeep._stores import records
from threadkeep._stores.postgres.statement import (
    Number,
    Query,
    Rows,
    array,
    first_value,
    single,
    unpack_optional,
    unpack_time,
)
from threadkeep._stores.records import COLUMNS, mended, pack_text, unpack_text


def _selected(name: str) -> str:
    if name == "thread":
        return "t.thread_id"
    return f"timestamptz_send(t.{name})" if name in TIMES else f"t.{name}"


_EMPTY = "\1"  # (no id is stored like this: see `pack_text`)


def key_of(stored: str | None) -> str:
    """Return the key of stored rows, or "" for None."""
    return "" if stored is None else stored or _EMPTY


def name_of(key: str) -> str:
    """Return the name under which rows with this key are stored."""
    return "" if key == _EMPTY else key


SELECTED = ", ".join(map(_selected, COLUMNS))
WIDTH = len(COLUMNS)
_TEXTS = [name for name, field in FIELDS.items() if str in field.kinds and name != "heap"]
TEXTS = (*_TEXTS, "origin", "origin_checkpoint")
"""Columns of packed texts."""
_HEAD = f"SELECT {SELECTED} FROM {{schema}}.threads t WHERE t.thread_id = %s"
_FAMILY = f"SELECT {SELECTED} FROM {{schema}}.threads t WHERE t.heap = %s"


def head_of(thread: str, row: Sequence[Any]) -> Head:
    """Return `SELECTED` as a head, damaged fields as they are."""
    columns = dict(zip(COLUMNS, row, strict=True))
    stored = columns["thread"]
    if stored is None:
        return Head(thread)
    columns["thread"], columns["tips"] = thread, tuple(columns["tips"])
    columns["heap"] = key_of(columns["heap"])
    for name in TIMES:
        columns[name] = unpack_time(columns[name])
    columns["deleted_at"] = columns["deleted_at"] or 0
    for name in TEXTS:
        if columns[name] is not None:
            columns[name] = unpack_text(columns[name])
    return records.head_of(columns, key_of(stored))


# -- reads of the rules ------------------------------------------------------------------


def _read_head(read: rule_reads.ReadHead) -> Query:
    def reply(rows: Rows) -> Head:
        return sound(head_of(read.thread, rows[0])) if rows else Head(read.thread)

    return single(_HEAD, (pack_text(read.thread),), reply)


def _read_family(read: rule_reads.ReadFamily) -> Query:
    def reply(rows: Rows) -> list[Head]:
        return [readable(head_of(unpack_text(row[0]), row)) for row in rows]

    return single(_FAMILY, (name_of(read.heap),), reply)


_DAMAGED = f"""
SELECT {SELECTED}, (SELECT max(seq) FROM {{schema}}.writes w WHERE w.thread_id = q.thread_id),
    (SELECT max(checkpoint_id) FROM {{schema}}.checkpoints c
        WHERE c.thread_id = q.thread_id AND checkpoint_ns = '')
FROM (SELECT %s::text COLLATE "C" AS thread_id) q
LEFT JOIN {{schema}}.threads t ON t.thread_id = q.thread_id
"""


def _read_damaged(read: rule_reads.ReadDamaged) -> Query:
    def reply(rows: Rows) -> Head:
        ((*row, seq, newest),) = rows
        found = head_of(read.thread, row)
        return mended(found, found.heap, seq or 0, unpack_optional(newest))

    return single(_DAMAGED, (pack_text(read.thread),), reply)


_NEWER = f"""
SELECT checkpoint_id FROM {{schema}}.checkpoints
WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id > %s AND flags & {model.NESTED} = 0
ORDER BY checkpoint_id LIMIT %s
"""


def _read_newer(read: rule_reads.ReadNewer) -> Query:
    later = () if read.id is None else (pack_text(read.id),)
    text = _NEWER if later else _NEWER.replace("AND checkpoint_id > %s ", "")
    values = (pack_text(read.head.thread), pack_text(read.ns), *later, Number(read.limit))
    return single(text, values, lambda rows: [unpack_text(row[0]) for row in rows])


_OTHERS_WRITE = """
SELECT EXISTS (
    SELECT FROM {schema}.writes WHERE thread_id = %s AND checkpoint_ns = %s
        AND checkpoint_id = %s AND seq > %s AND run <> %s)
"""


def _has_others(read: rule_reads.HasOthers) -> Query:
    place = map(pack_text, (read.head.thread, read.ns, read.checkpoint_id))
    return single(_OTHERS_WRITE, (*place, Number(read.seen), Number(read.run)), first_value)


_COUNTS = """
SELECT (SELECT count(*) FROM {schema}.checkpoints WHERE thread_id = ANY(%s)),
    (SELECT count(*) FROM {schema}.writes WHERE thread_id = ANY(%s))
"""


def _count_rows(read: rule_reads.CountRows) -> Query:
    names = [pack_text(head.thread) for head in read.heads]
    return single(_COUNTS, (names, names), lambda rows: rows[0])


_HOLDS = """
SELECT EXISTS (SELECT FROM {schema}.checkpoints WHERE thread_id = %s) OR (%s AND (
    EXISTS (SELECT FROM {schema}.writes WHERE thread_id = %s)
    OR EXISTS (SELECT FROM {schema}.segments WHERE thread_id = %s)))
"""


def _holds(read: rule_reads.HoldsCheckpoints) -> Query:
    if not read.head.number:  # (rows without it are damage)
        return Query((), lambda _: False)
    name = pack_text(read.head.thread)
    return single(_HOLDS, (name, read.any_row, name, name_of(read.head.heap or name)), first_value)


_ENDS = """
SELECT o.log, (
    SELECT s.start + s.count FROM {schema}.segments s WHERE s.thread_id = %s AND s.log = o.log
    ORDER BY s.start DESC LIMIT 1)
FROM unnest(%s::bigint[]) o (log)
"""


def _read_ends(read: rule_reads.ReadEnds) -> Query:
    heap = name_of(read.head.heap or pack_text(read.head.thread))
    values = (heap, array("bigint", read.logs))
    return single(_ENDS, values, lambda rows: {log: end for log, end in rows if end})


_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def _clock(_: ReadClock) -> Query:
    return single(_CLOCK, (), first_value)


QUERIES: dict[type, Callable[[Any], Query]] = {
    ReadClock: _clock,
    rule_reads.ReadHead: _read_head,
    rule_reads.ReadDamaged: _read_damaged,
    rule_reads.ReadFamily: _read_family,
    rule_reads.ReadNewer: _read_newer,
    rule_reads.HasOthers: _has_others,
    rule_reads.CountRows: _count_rows,
    rule_reads.HoldsCheckpoints: _holds,
    rule_reads.ReadEnds: _read_ends,
}
