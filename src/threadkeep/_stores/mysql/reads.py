"""Reads as queries, and rows as records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from threadkeep._core.engine import model, rule_reads, thread_entry
from threadkeep._core.engine.heads import Head, entry_of, readable, sound
from threadkeep._stores.mysql.server import MysqlRows, Sql, marks
from threadkeep._stores.records import (
    Term,
    begins_with,
    page_terms,
    query_terms,
    terms_of,
    unpack_record,
    with_writes,
)
from threadkeep.errors import CorruptionError

HEAP = "COALESCE(t.heap, t.number)"
_HEAD = "SELECT t.number, t.record FROM tk_threads t"
_OWN = f"{_HEAD} WHERE t.thread = %s"
_OF_THREAD = "SELECT c.number, c.ns, c.id FROM tk_threads t JOIN tk_checkpoints c USING (number)"
_VISIBLE = f"c.flags < {model.HIDDEN}"


class Lookup(NamedTuple):
    """The statements that answer a read, and a function from their rows to the reply."""

    statements: tuple[Sql, ...]
    reply: Callable[[Sequence[MysqlRows]], Any]


def _one(sql: str, values: Iterable[Any], reply: Callable[[MysqlRows], Any]) -> Lookup:
    return Lookup((Sql(sql, tuple(values)),), lambda results: reply(results[0]))


def _head(row: tuple[Any, ...]) -> Head:
    return unpack_record(Head, row[1])._replace(number=row[0])


def _first(rows: MysqlRows, thread: str) -> Head:
    try:
        return _head(rows[0]) if rows else Head(thread)
    except CorruptionError as error:
        raise error.at(thread=thread) from None


def _names(rows: MysqlRows) -> list[str]:
    return [name.decode() for (name,) in rows]


def _segment(log: int, start: int, stop: int, data: bytes) -> model.Segment:
    return model.Segment(log, start, stop - start, data)


# -- reads of one checkpoint, of pages, and of their segments ------------------------------


def _stored(page: str, values: tuple[Any, ...]) -> tuple[Sql, ...]:
    """Return statements for checkpoints, their keyframes and writes. `page` selects their keys."""
    of_page = f"""FROM ({page}) p JOIN tk_checkpoints c USING (number, ns, id)
        JOIN tk_threads t USING (number)"""
    child = "x.number = c.number AND x.ns = c.ns AND x.parent = c.id AND x.id > c.id"
    rows = f"""SELECT t.thread, c.ns, {HEAP}, c.number, c.flags, c.metadata, c.record, y.record
        {of_page} LEFT JOIN tk_checkpoints y ON y.number = c.number AND y.ns = c.ns AND y.id = (
            SELECT x.id FROM tk_checkpoints x WHERE {child} ORDER BY x.id LIMIT 1)"""
    # (from the end of the log, where most keyframes are)
    keyframes = f"""SELECT k.heap, k.log, k.start, k.stop, k.data FROM (
            SELECT DISTINCT {HEAP} AS heap, c.key_log AS log, c.key_pos AS pos {of_page}
        ) d JOIN tk_segments k ON k.heap = d.heap AND k.log = d.log AND k.stop = (
            SELECT s.stop FROM tk_segments s WHERE s.heap = d.heap AND s.log = d.log
            AND s.start <= d.pos ORDER BY s.stop DESC LIMIT 1)"""
    writes = f"""SELECT w.number, w.record FROM ({page}) p JOIN tk_writes w
        ON w.number = p.number AND w.ns = p.ns AND w.checkpoint = p.id ORDER BY w.seq"""
    return tuple([Sql(sql, values) for sql in (rows, keyframes, writes)])


def _checkpoints(results: Sequence[MysqlRows]) -> list[model.StoredCheckpoint]:
    """Return the checkpoints of `_stored`: the greatest id first, then by thread and namespace."""
    keyframes: dict[tuple[int, int], list[model.Segment]] = {}
    for heap, *segment in results[1]:
        keyframes.setdefault((heap, segment[0]), []).append(_segment(*segment))
    writes: dict[tuple[int, str, str], list[model.WriteRow]] = {}
    for number, record in results[2]:
        write = unpack_record(model.WriteRow, record)
        writes.setdefault((number, write.ns, write.checkpoint_id), []).append(write)
    found = []
    for thread, _, heap, number, flags, metadata, record, next_ in sorted(results[0]):
        row = unpack_record(model.CheckpointRow, record)._replace(flags=flags, metadata=metadata)
        near = keyframes.get((heap, row.key_log), ())
        keyframe = next((one for one in near if one.start <= row.key_pos < one.stop), None)
        own = tuple(writes.get((number, row.ns, row.id), ()))
        later = None if next_ is None else unpack_record(model.CheckpointRow, next_)
        child = None if later is None else model.Child(later.id, later.run, later.seen)
        found.append(model.StoredCheckpoint(thread.decode(), row, keyframe, own, child))
    return sorted(found, key=lambda one: one.row.id, reverse=True)


def _checkpoint(read: model.ReadCheckpoint, known: Callable[[Head], None]) -> Lookup:
    which, values = (_VISIBLE, ()) if read.id is None else ("c.id = %s", (read.id,))
    page = f"{_OF_THREAD} WHERE t.thread = %s AND c.ns = %s AND {which} ORDER BY c.id DESC LIMIT 1"

    def reply(results: Sequence[MysqlRows]) -> model.ThreadState:
        found = _first(results[0], read.thread)
        head = readable(found)
        if head is found:
            known(head)
        stored = next(iter(_checkpoints(results[1:])), None)
        state = (head.generation, head.deleted_at, stored, head.tips, head.life, head.logs)
        return model.ThreadState(*state)

    own = Sql(_OWN, (read.thread,))
    return Lookup((own, *_stored(page, (read.thread, read.ns, *values))), reply)


def _scan(read: model.ScanCheckpoints) -> Lookup:
    terms: list[Term] = [(_VISIBLE, ()), *begins_with("t.thread", read.prefix)]
    for name, value in (
        *(("t.thread =", read.thread), ("c.ns =", read.ns)),
        *(("c.id =", read.id), ("c.id <", read.before)),
    ):
        terms += [] if value is None else [(f"{name} %s", (value,))]
    if read.after:
        after = "(c.id < %s OR (c.id = %s AND (t.thread, c.ns) > (%s, %s)))"
        terms.append((after, (read.after[0], *read.after)))
    where, values = terms_of(terms)
    page = f"{_OF_THREAD} WHERE {where} ORDER BY c.id DESC, t.thread, c.ns LIMIT %s"
    return Lookup(_stored(page, (*values, read.limit)), _checkpoints)


def _segments(read: model.ReadSegments) -> Lookup:
    spans = [span for span in read.spans if span.start < span.stop]
    any_of = " OR ".join(["(s.log = %s AND s.start < %s AND s.stop > %s)"] * len(spans))
    # (a join would read the logs from their beginning)
    sql = f"""SELECT s.log, s.start, s.stop, s.data FROM tk_segments s
        WHERE s.heap = (SELECT {HEAP} FROM tk_threads t WHERE t.thread = %s)
        AND ({any_of or "FALSE"}) ORDER BY s.log, s.stop"""
    values = [value for log, start, stop in spans for value in (log, stop, start)]

    def reply(results: Sequence[MysqlRows]) -> list[model.Segment]:
        head = readable(_first(results[0], read.thread))
        is_same = read.generation in (None, head.generation) and {*read.base} <= {*head.tips}
        return [_segment(*row) for row in results[1]] if is_same else []

    own = Sql(_OWN, (read.thread,))
    return Lookup((own, Sql(sql, (read.thread, *values))), reply)


# -- reads of the rules ----------------------------------------------------------------------


def _read_head(read: rule_reads.ReadHead) -> Lookup:
    return _one(_OWN, (read.thread,), lambda rows: sound(_first(rows, read.thread)))


def _family(read: rule_reads.ReadFamily) -> Lookup:
    sql = f"{_HEAD} WHERE t.heap = %s"
    return _one(sql, (read.heap,), lambda rows: [readable(_head(row)) for row in rows])


def _ends(read: rule_reads.ReadEnds) -> Lookup:
    values = (read.head.heap or read.head.number, *read.logs)
    sql = f"""SELECT log, MAX(stop) FROM tk_segments WHERE heap = %s
        AND log IN ({marks(read.logs)}) GROUP BY log"""
    return _one(sql, values, dict)


def _newer(read: rule_reads.ReadNewer) -> Lookup:
    later: list[Term] = [] if read.id is None else [("id > %s", (read.id,))]
    own = (read.head.number, read.ns)
    where, values = terms_of([("number = %s AND ns = %s", own), *later])
    sql = f"""SELECT id FROM tk_checkpoints WHERE {where} AND flags & {model.NESTED} = 0
        ORDER BY id LIMIT %s"""
    return _one(sql, (*values, read.limit), _names)


def _has_others(read: rule_reads.HasOthers) -> Lookup:
    sql = """SELECT EXISTS (SELECT 1 FROM tk_writes WHERE number = %s AND ns = %s
        AND checkpoint = %s AND seq > %s AND run <> %s)"""
    values = (read.head.number, read.ns, read.checkpoint_id, read.seen, read.run)
    return _one(sql, values, lambda rows: bool(rows[0][0]))


# -- whole threads, and all threads ----------------------------------------------------------


def _thread(read: model.ReadThread) -> Lookup:
    writes = """SELECT w.record FROM tk_threads t JOIN tk_writes w USING (number)
        WHERE t.thread = %s ORDER BY w.ns, w.checkpoint, w.seq"""
    places = f"""SELECT s.log, s.start, s.stop - s.start, LENGTH(s.data) FROM tk_threads t
        JOIN tk_segments s ON s.heap = {HEAP} WHERE t.thread = %s ORDER BY s.log, s.start"""
    family = """SELECT o.thread FROM tk_threads t JOIN tk_threads o USING (heap)
        WHERE t.thread = %s AND o.number <> t.number ORDER BY o.thread"""

    def reply(results: Sequence[MysqlRows]) -> model.ThreadRows:
        heads, writes, places, family, *parts = results
        head = readable(_first(heads, read.thread), skip=read.skip)
        found = sorted(_checkpoints(parts), key=lambda one: (one.row.ns, one.row.id))
        rows, keyframes = [one.row for one in found], [one.keyframe for one in found]
        all_writes = [unpack_record(model.WriteRow, record) for (record,) in writes]
        stored = with_writes(read.thread, rows, keyframes, all_writes)
        segments = tuple([model.SegmentInfo(*place) for place in places])
        state = (head.generation, head.deleted_at, *stored, segments, tuple(_names(family)))
        return model.ThreadRows(*state, tips=head.tips, life=head.life)

    texts = [Sql(text, (read.thread,)) for text in (_OWN, writes, places, family)]
    return Lookup((*texts, *_stored(f"{_OF_THREAD} WHERE t.thread = %s", (read.thread,))), reply)


_RUN = "JSON_EXTRACT(c.metadata, '$.run_id')"
_HAS_RUN = f"""JSON_VALID(c.metadata) AND JSON_TYPE({_RUN}) = 'STRING'
    AND CAST(JSON_UNQUOTE({_RUN}) AS BINARY) IN"""
_HOLDS = "EXISTS (SELECT 1 FROM tk_checkpoints c WHERE c.number = t.number AND {})"


def _find(read: model.FindThreads) -> Lookup:
    terms: list[Term] = []
    if read.run_ids:
        terms.append((_HOLDS.format(f"{_HAS_RUN} ({marks(read.run_ids)})"), read.run_ids))
    elif not read.empty:
        terms.append((_HOLDS.format("TRUE"), ()))
    return _page("SELECT t.thread FROM tk_threads t", terms, read, _names)


_FIRST = "SELECT MIN(f.thread) FROM tk_threads f WHERE f.heap = t.heap"
_PARTS = (
    ("tk_checkpoints c WHERE c.number = t.number", "LENGTH(c.metadata) + LENGTH(c.record)"),
    ("tk_writes c WHERE c.number = t.number", "LENGTH(c.record)"),
    (
        f"tk_segments c WHERE c.heap = {HEAP} AND t.thread <=> COALESCE(({_FIRST}), t.thread)",
        "LENGTH(c.data)",
    ),
)
_SIZES = ", ".join(
    [f"(SELECT COUNT(*) FROM {of})" for of, _ in _PARTS]
    + [f"COALESCE((SELECT SUM({size}) FROM {of}), 0)" for of, size in _PARTS]
)
_HAS_ROW = " OR ".join([f"EXISTS (SELECT 1 FROM {of.partition(' AND ')[0]})" for of, _ in _PARTS])
_TOTAL = """(SELECT SUM(data_length + index_length) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name LIKE 'tk$_%%' ESCAPE '$')"""


def _sizes(read: model.ReadSizes) -> Lookup:
    def reply(rows: MysqlRows) -> model.Sizes:
        sizes = [
            model.StoredThreadSize(name.decode(), *row[:3], *map(int, (row[3] + row[4], row[5])))
            for _, name, *row in rows
        ]
        return model.Sizes(int(rows[0][0]) if rows and not read.prefix else 0, tuple(sizes))

    sql = f"SELECT {_TOTAL}, t.thread, {_SIZES} FROM tk_threads t"
    return _page(sql, [(f"({_HAS_ROW})", ())], read, reply)


def _page(sql: str, terms: list[Term], read: Any, reply: Callable[[MysqlRows], Any]) -> Lookup:
    where, values = terms_of([*page_terms("t.thread", read), *terms])
    return _one(f"{sql} WHERE {where} ORDER BY t.thread LIMIT %s", (*values, read.limit), reply)


# -- the registry ----------------------------------------------------------------------------


def _entry(read: thread_entry.ReadEntry) -> Lookup:
    return _entries("WHERE t.thread = %s", (read.thread,), lambda found: next(iter(found), None))


def _search(read: thread_entry.SearchThreads) -> Lookup:
    terms, direction = [*_conditions(read.query)], " DESC" if read.descending else ""
    if read.after is not None:
        sign = "<" if read.descending else ">"
        terms.append((f"(t.{read.order}, t.thread) {sign} (%s, %s)", read.after))
    where, values = terms_of(terms)
    sql = f"WHERE {where} ORDER BY t.{read.order}{direction}, t.thread{direction} LIMIT %s"
    return _entries(sql, (*values, read.limit), list)


def _entries(sql: str, values: tuple[Any, ...], reply: Callable[[list[Any]], Any]) -> Lookup:
    labels = f"""SELECT l.number, l.label FROM (SELECT t.number FROM tk_threads t {sql}) p
        JOIN tk_labels l USING (number)"""

    def answer(results: Sequence[MysqlRows]) -> Any:
        by_number: dict[int, list[str]] = {}
        for number, label in results[1]:
            by_number.setdefault(number, []).append(label.decode())
        entries = [entry_of(_listed(row), by_number.get(row[0], ())) for row in results[0]]
        return reply([entry for entry in entries if entry is not None])

    heads = f"SELECT t.number, t.record, t.thread, {', '.join(_SHOWN)} FROM tk_threads t {sql}"
    return Lookup((Sql(heads, values), Sql(labels, values)), answer)


_SHOWN = ("state", "created_at", "updated_at", "size", "pinned")


def _listed(row: tuple[Any, ...]) -> Head:
    """Return a head for a list. If its record is damaged, the columns fill it in part."""
    try:
        return _head(row)
    except CorruptionError:
        shown: dict[str, Any] = dict(zip(_SHOWN, row[3:], strict=True))
        shown |= {"state": shown["state"] and shown["state"].decode(), "status_at": row[1]}
        return Head(row[2].decode(), **shown)


def _count(read: thread_entry.CountThreads) -> Lookup:
    where, values = terms_of([*_conditions(read.query)])
    return _one(f"SELECT COUNT(*) FROM tk_threads t WHERE {where}", values, lambda rows: rows[0][0])


_HAS_LABEL = "t.number IN (SELECT l.number FROM tk_labels l WHERE l.label = %s)"


def _conditions(query: thread_entry.ThreadQuery) -> Iterator[Term]:
    yield from begins_with("t.thread", query.prefix)
    if query.states:
        yield f"t.state IN ({marks(query.states)})", query.states
    else:
        yield "t.state <> %s", (thread_entry.Lifecycle.DELETED,)
    yield from [(_HAS_LABEL, (label,)) for label in query.labels]
    for term, values in query_terms(query):
        filled = term.replace("{time}", "%s").replace("{rest}", "t.updated_at + t.ttl")
        yield filled, values


# (in UTC: an hour of another zone may repeat)
_CLOCK = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


def _clock(_: thread_entry.ReadClock) -> Lookup:
    return _one(_CLOCK, (), lambda rows: rows[0][0])


_QUERIES: dict[Any, Callable[[Any], Lookup]] = {
    rule_reads.ReadHead: _read_head,
    rule_reads.ReadFamily: _family,
    rule_reads.ReadNewer: _newer,
    rule_reads.HasOthers: _has_others,
    rule_reads.ReadEnds: _ends,
    model.ReadSegments: _segments,
    model.ScanCheckpoints: _scan,
    model.ReadThread: _thread,
    model.FindThreads: _find,
    model.ReadSizes: _sizes,
    thread_entry.ReadClock: _clock,
    thread_entry.ReadEntry: _entry,
    thread_entry.SearchThreads: _search,
    thread_entry.CountThreads: _count,
}


def query(read: Any, known: Callable[[Head], None]) -> Lookup | None:
    """Return the query that answers a read; None if other reads do.

    `known` gets the heads read with checkpoints.
    """
    if type(read) is model.ReadCheckpoint:
        return _checkpoint(read, known)
    of = _QUERIES.get(type(read))
    return None if of is None else of(read)
