"""Moves as statements. Those after the one that moves the head do nothing if it did not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

from threadkeep._core.engine.heads import Copying, Head, Move
from threadkeep._core.engine.model import HIDDEN
from threadkeep._core.engine.thread_entry import label_prefix
from threadkeep._core.parts import parts_of
from threadkeep._stores.mysql.reads import HEAP
from threadkeep._stores.mysql.server import Sql, marks
from threadkeep._stores.records import pack_record

Values: TypeAlias = tuple[Any, ...]
_SEARCHED = (
    "state",
    "created_at",
    "updated_at",
    "size",
    "status",
    "failed_node",
    "holder",
    "lease_until",
    "pinned",
    "ttl",
)
_HEAD = ("thread", "tip", "heap", "origin", "record", *_SEARCHED)
_INSERT = f"""INSERT INTO tk_threads ({", ".join(_HEAD)}) SELECT {marks(_HEAD)} FROM DUAL
    WHERE NOT EXISTS (SELECT 1 FROM tk_threads t WHERE t.thread = %s)"""
_UPDATE = f"""UPDATE tk_threads SET {", ".join([f"{name} = %s" for name in _HEAD])}
    WHERE thread = %s AND tip = %s"""
_MADE = "t.thread = %s AND t.tip = %s"
_TABLES = {
    "checkpoints": ("ns", "id", "parent", "flags", "key_log", "key_pos", "metadata", "record"),
    "writes": ("ns", "checkpoint", "seq", "run", "record"),
    "segments": ("log", "start", "stop", "data"),
    "labels": ("prefix", "label"),
}
"""Columns of each table, after the number of the thread or the heap."""
_PAGE = 100  # rows of a statement


def _moved(old: Head, new: Head) -> tuple[str, Values]:
    """Return the statement that moves a head: it finds or adds one row, or none."""
    origin = new.origin and new.origin[0]
    own = (new.thread, new.tips[0], new.heap or None, origin, pack_record(new))
    values = (*own, *[getattr(new, name) for name in _SEARCHED], old.thread)
    return (_UPDATE, (*values, old.tips[0])) if old.tips else (_INSERT, values)


def statements(move: Move) -> Iterator[Sql]:
    """Yield the statements of a move. The first `1 + len(move.beside)` are those of heads."""
    old, new = move.old, move.new
    made = (new.thread, new.tips[0])
    sql, values = _moved(old, new)
    drops = tuple([(log, start, start + count) for log, start, count in move.drop_segments])
    dropped = (new.heap or old.number, *chain(*drops))
    among = f"heap = %s AND (log, start, stop) IN ({marks(drops)})" if drops else ""
    if drops and move.segments:
        sql += f" AND (SELECT COUNT(*) FROM tk_segments WHERE {among}) = %s"
        values += (*dropped, len(drops))
    yield Sql(sql, values)
    for was, then in move.beside:
        yield Sql(*_moved(was, then))
    if drops:
        yield _changed("DELETE c FROM tk_segments c", f"c.{among}", dropped, made)
    yield from _cleared(move, made)
    if move.copies is not None:
        yield from _copies(move.copies, made)
    yield from _removals(move, made)
    for row in move.replace_writes:
        keys = f"{_OWN} AND c.ns = %s AND c.checkpoint = %s AND c.seq = %s"
        own = (row.run, pack_record(row), row.ns, row.checkpoint_id, row.seq)
        yield _changed("UPDATE tk_writes c SET c.run = %s, c.record = %s", keys, own, made)
    for table, rows in (
        ("segments", [(one.log, one.start, one.stop, one.data) for one in move.segments]),
        ("checkpoints", [_checkpoint(row) for row in move.checkpoints]),
        ("writes", [(row.ns, row[1], row.seq, row.run, pack_record(row)) for row in move.writes]),
        ("labels", [(label_prefix(label), label) for label in move.labels]),
    ):
        yield from _added(table, rows, made)


def _checkpoint(row: Any) -> Values:
    record = pack_record(row._replace(metadata=""))
    return (row.ns, row.id, row.parent, row.flags, row.key_log, row.key_pos, row.metadata, record)


def _added(table: str, rows: Sequence[Values], made: Values) -> Iterator[Sql]:
    """Yield statements that add rows, in place of those with the same keys."""
    of, first = ("heap", HEAP) if table == "segments" else ("number", "t.number")
    one = f"SELECT {first}, {marks(_TABLES[table])} FROM tk_threads t WHERE {_MADE}"
    for page in parts_of(rows, _size, _PAGE):
        sql = f"REPLACE INTO tk_{table} ({of}, {', '.join(_TABLES[table])}) "
        sql += " UNION ALL ".join([one] * len(page))
        yield Sql(sql, tuple(chain(*[(*row, *made) for row in page])))


def _size(row: Values) -> int:
    return sum([len(value) for value in row if isinstance(value, str | bytes)])


_OWN = "c.number = t.number"


def _changed(text: str, keys: str, values: Values, made: Values) -> Sql:
    """Return a statement for rows `c`, if the head `h` was moved."""
    before, set_, after = text.partition(" SET ")
    sql = f"{before} JOIN tk_threads t{set_}{after} WHERE {keys} AND {_MADE}"
    return Sql(sql, (*values, *made))


def _cleared(move: Move, made: Values) -> Iterator[Sql]:
    heap = (move.old.heap or move.old.number,)
    for table, keys, values, is_cleared in (
        ("checkpoints", _OWN, (), move.clears),
        ("writes", _OWN, (), move.clears),
        ("labels", _OWN, (), move.clears_labels),
        ("segments", "c.heap = %s", heap, move.clears_heap),
    ):
        if is_cleared:
            yield _changed(f"DELETE c FROM tk_{table} c", keys, values, made)


def _removals(move: Move, made: Values) -> Iterator[Sql]:
    for text, names, places in (
        ("DELETE c FROM tk_checkpoints c", "id", move.drop_checkpoints),
        ("DELETE c FROM tk_writes c", "checkpoint, c.seq", move.drop_writes),
        (f"UPDATE tk_checkpoints c SET c.flags = c.flags | {HIDDEN}", "id", move.hide_checkpoints),
    ):
        if places:
            keys = f"{_OWN} AND (c.ns, c.{names}) IN ({marks(places)})"
            yield _changed(text, keys, tuple(chain(*places)), made)


def _copies(copies: Copying, made: Values) -> Iterator[Sql]:
    source = copies.source
    for table, of, key, first, names, places in (
        ("checkpoints", "number", source.number, "t.number", "id", copies.checkpoints),
        ("writes", "number", source.number, "t.number", "checkpoint, c.seq", copies.writes),
        ("segments", "heap", source.heap or source.number, HEAP, "", None),
    ):
        if places == () or (table == "segments" and not copies.segments):
            continue
        among = f" AND (c.ns, c.{names}) IN ({marks(places)})" if places else ""
        columns = _TABLES[table]
        # (a repeated move, which is rolled back, finds its own rows)
        text = f"""INSERT IGNORE INTO tk_{table} ({of}, {", ".join(columns)})
            SELECT {first}, {", ".join([f"c.{name}" for name in columns])} FROM tk_{table} c"""
        values = (key, *chain(*(places or ())))
        yield _changed(text, f"c.{of} = %s{among}", values, made)
