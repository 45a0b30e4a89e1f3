"""The registry as SQL: what a batch tells it, a thread's entry, finding and counting entries.

Invariants: as in `reads` and `changes`; an entry is there where the thread's row has a state.
"""
# ruff: noqa: S608 - texts are put together from constants of this module only

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from psycopg.types.numeric import Int8

from threadkeep.backends.postgres.statement import Query, Rows, Statement
from threadkeep.backends.postgres.text import pack_text, unpack_text
from threadkeep.engine.model import Batch
from threadkeep.engine.thread_entry import (
    CountThreads,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
    ThreadQuery,
    ThreadStatus,
    Touch,
    label_prefix,
)

Argument: TypeAlias = tuple[str, tuple[Any, ...]]
"""An argument of a function as SQL, and the values of its parameters."""

_FEW = 3  # values of an array that are given one by one: each number is another statement


# -- telling -------------------------------------------------------------------------


def arguments(batch: Batch) -> list[Argument]:
    """What the function `register` is given, behind the thread and the time."""
    given: list[Argument] = []
    if batch.entry is not None:
        given += _entry_arguments(batch.entry)
    if batch.touch is not None:
        given += _touch_arguments(batch.touch)
    return given


def _entry_arguments(entry: ThreadEntry) -> Iterator[Argument]:
    origin, checkpoint = entry.origin or (None, None)
    yield "entry_state => %s", (entry.state,)
    yield "entry_created => %s", (Int8(entry.created_at),)
    yield "entry_updated => %s", (Int8(entry.updated_at),)
    yield "entry_pinned => %s", (entry.pinned,)
    yield "entry_ttl => %s::bigint", (None if entry.ttl is None else Int8(entry.ttl),)
    yield "entry_origin => %s", (_packed(origin),)
    yield "entry_origin_checkpoint => %s", (_packed(checkpoint),)
    yield "entry_waits_at => %s", (_packed(entry.waits_at),)
    yield _array("entry_beginnings", "text", map(label_prefix, entry.labels))
    yield _array("entry_labels", "text", entry.labels)


def _touch_arguments(touch: Touch) -> Iterator[Argument]:
    yield "touch_size => %s", (Int8(touch.size),)
    if touch.whole:
        yield "touch_whole => true", ()
    if touch.at is not None:
        yield "touch_at => %s", (Int8(touch.at),)
    if touch.labels:
        yield _array("touch_beginnings", "text", map(label_prefix, touch.labels))
        yield _array("touch_labels", "text", touch.labels)
    if touch.moves:
        sources, targets, checkpoints, waits, same = zip(*touch.moves, strict=True)
        yield _array("move_sources", "text", [f"|{'|'.join(states)}|" for states in sources])
        yield _array("move_targets", "text", targets)
        yield _array("move_checkpoints", "text", map(pack_text, checkpoints))
        yield _array("move_waits", "boolean", waits)
        yield _array("move_same", "boolean", same)


def _array(name: str, kind: str, values: Iterable[Any]) -> Argument:
    found = tuple(values)
    if len(found) > _FEW:
        return f"{name} => %s::{kind}[]", (list(found),)
    return f"{name} => ARRAY[{', '.join(['%s'] * len(found))}]::{kind}[]", found


def _packed(text: str | None) -> str | None:
    return None if text is None else pack_text(text)


# -- reading -------------------------------------------------------------------------

_MICROSECONDS = "(extract(epoch from {}) * 1000000)::bigint"
_COLUMNS = f"""
    t.thread_id, t.state, {_MICROSECONDS.format("t.created_at")},
    {_MICROSECONDS.format("t.updated_at")}, t.size,
    ARRAY(SELECT l.label FROM {{schema}}.thread_labels l WHERE l.thread_id = t.thread_id
        ORDER BY l.label),
    t.pinned, t.ttl, t.origin, t.origin_checkpoint, t.waits_at,
    coalesce({_MICROSECONDS.format("t.deleted_at")}, 0), t.revision
"""
_ENTRY = f"""
SELECT {_COLUMNS} FROM {{schema}}.threads t WHERE t.thread_id = %s AND t.state IS NOT NULL
"""
_ORDERS = {
    "updated_at": "t.updated_at",
    "created_at": "t.created_at",
    "size": "t.size",
    "thread": "t.thread_id",
}
_TIMES = ("updated_at", "created_at")


def entry(read: ReadEntry) -> Query:
    """What answers a `ReadEntry`."""

    def reply(results: Sequence[Rows]) -> ThreadEntry | None:
        return _entry(results[0][0]) if results[0] else None

    return Query((Statement(_ENTRY, (pack_text(read.thread),)),), reply)


def search(read: SearchThreads) -> Query:
    """What answers a `SearchThreads`."""
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


def count(read: CountThreads) -> Query:
    """What answers a `CountThreads`."""
    conditions, values = _where(read.query)
    sql = f"SELECT count(*) FROM {{schema}}.threads t WHERE {' AND '.join(conditions)}"
    statement = Statement(sql, tuple(values), keep=False)
    return Query((statement,), lambda results: int(results[0][0][0]))


def _entry(row: Sequence[Any]) -> ThreadEntry:
    thread, state, created_at, updated_at, size, labels, pinned, ttl, *rest = row
    origin, origin_checkpoint, waits_at, deleted_at, revision = rest
    return ThreadEntry(
        thread=unpack_text(thread),
        state=state,
        created_at=created_at,
        updated_at=updated_at,
        size=size,
        labels=tuple(labels),
        pinned=pinned,
        ttl=ttl,
        origin=None if origin is None else (unpack_text(origin), unpack_text(origin_checkpoint)),
        waits_at=None if waits_at is None else unpack_text(waits_at),
        deleted_at=deleted_at,
        revision=revision,
    )


_HAS_LABEL = """EXISTS (
    SELECT FROM {schema}.thread_labels l WHERE l.thread_id = t.thread_id AND l.label = %s)"""


def _where(query: ThreadQuery) -> tuple[list[str], list[Any]]:
    """The WHERE clause's terms, and the values for their parameters."""
    conditions, values = list[str](), list[Any]()
    for condition, given in _conditions(query):
        conditions.append(condition)
        values += given
    return conditions, values


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
        rest = "t.ttl IS NOT NULL AND t.updated_at + t.ttl * interval '1 microsecond'"
        yield f"{rest} < {{schema}}.time_of(%s)", (Int8(query.rested),)


def _between(
    column: str, first: int | None, last: int | None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if first is not None:
        yield f"t.{column} >= {{schema}}.time_of(%s)", (Int8(first),)
    if last is not None:
        yield f"t.{column} < {{schema}}.time_of(%s)", (Int8(last),)
