"""Moves as plain SQL. See `_core.engine.heads`.

A move that only adds rows is one statement, and so are many of different threads: the head changes
if its newest tip is still the expected one, and rows are added for the heads that have changed. If
another transaction changes a head meanwhile, the statement waits for it and looks at the tip again.
Any other move is a transaction, whose later statements do nothing unless the first one has changed
the head.

A statement's text depends only on the kinds of rows and on small numbers of them, so few statements
are prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from threadkeep._core.engine import model
from threadkeep._core.engine.heads import Copying, Head, Move
from threadkeep._core.engine.thread_entry import TIMES, label_prefix
from threadkeep._stores.postgres.heads import TEXTS, key_of, name_of
from threadkeep._stores.postgres.statement import (
    Array,
    Number,
    Statement,
    array,
    pack_metadata,
    pack_optional,
    pack_time,
)
from threadkeep._stores.records import COLUMNS, columns_of, pack_logs, pack_text
from threadkeep.errors import InvalidArgumentError

_Row: TypeAlias = tuple[Any, ...]

_MOST_BYTES = 1_000_000_000  # of one message to the server, with room for the rest of it
_MOST_BYTES_TOGETHER = 64 * 1024 * 1024  # of moves in one statement
# Up to so many rows of a kind are passed value by value. Each number of rows is another statement.
_FEW = 3


@dataclass(frozen=True, eq=False, slots=True)  # (a key of caches, by identity)
class RowKind:
    """Rows that a move adds or drops: their table, columns, and values by column.

    `types` are the parameters' types. `values` is SQL for the values of the columns, of `v`.
    """

    table: str
    columns: str
    types: tuple[str, ...]
    row_of: Callable[[Any], _Row]
    values: str = ""
    conflict: str = ""

    @property
    def names(self) -> str:
        return ", ".join([f"c{n}" for n in range(len(self.types))])


def _arrays(types: Iterable[str], rows: Iterable[_Row]) -> list[Array]:
    """Return the columns of rows."""
    columns = zip(*rows, strict=True)
    return [array(type_, column) for type_, column in zip(types, columns, strict=True)]


def _segment(one: model.Segment) -> _Row:
    return Number(one.log), Number(one.start), Number(one.count), one.data


def _checkpoint(row: model.CheckpointRow) -> _Row:
    return (
        pack_text(row.ns),
        pack_text(row.id),
        pack_optional(row.parent),
        Number(row.run),
        Number(row.seen),
        Number(row.flags),
        pack_time(row.ts) if isinstance(row.ts, int) else None,
        None if isinstance(row.ts, int) else pack_text(row.ts),
        *pack_metadata(row.metadata),
        row.exact,
        Number(row.key_log),
        Number(row.key_pos),
        row.manifest,
    )


def _write(row: model.WriteRow) -> _Row:
    return (
        pack_text(row.ns),
        pack_text(row.checkpoint_id),
        Number(row.seq),
        Number(row.run),
        Number(row.seen),
        pack_text(row.task_id),
        pack_text(row.task_path),
        row.body,
    )


def _key(key: tuple[Any, ...]) -> _Row:
    ns, checkpoint, *seq = key
    return pack_text(ns), pack_text(checkpoint), *map(Number, seq)


_CHECKPOINT_COLUMNS = (
    "checkpoint_ns, checkpoint_id, parent_checkpoint_id, run, seen, flags, ts, ts_text, metadata,"
    " metadata_text, exact, key_log, key_pos, manifest"
)
_WRITE_COLUMNS = "checkpoint_ns, checkpoint_id, seq, run, seen, task_id, task_path, body"
_SEGMENT_COLUMNS = "log, start, count, data"
_NUMBER, _TEXT, _BYTES, _TIME = "bigint", "text", "bytea", "timestamptz"

SEGMENTS = RowKind(
    "segments",
    _SEGMENT_COLUMNS,
    (_NUMBER, _NUMBER, _NUMBER, _BYTES),
    _segment,
)
CHECKPOINTS = RowKind(
    "checkpoints",
    _CHECKPOINT_COLUMNS,
    (
        *(_TEXT, _TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, _TIME, _TEXT, _TEXT, _TEXT, _BYTES),
        *(_NUMBER, _NUMBER, _BYTES),
    ),
    _checkpoint,
    "v.c0, v.c1, v.c2, v.c3, v.c4, v.c5, v.c6, v.c7, v.c8::jsonb, v.c9, v.c10, v.c11, v.c12, v.c13",
    f" ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET ({_CHECKPOINT_COLUMNS})"
    f" = ROW ({', '.join([f'excluded.{one.strip()}' for one in _CHECKPOINT_COLUMNS.split(',')])})",
)
WRITES = RowKind(
    "writes",
    _WRITE_COLUMNS,
    (_TEXT, _TEXT, _NUMBER, _NUMBER, _NUMBER, _TEXT, _TEXT, _BYTES),
    _write,
)
LABELS = RowKind(
    "thread_labels",
    "beginning, label",
    (_TEXT, _TEXT),
    lambda label: (label_prefix(label), label),
    conflict=" ON CONFLICT (thread_id, beginning) DO UPDATE SET label = excluded.label",
)
# The last column says that the segment is replaced by one that starts where it does.
_GONE = RowKind(
    "segments",
    "",
    (_NUMBER, _NUMBER, _NUMBER, "boolean"),
    lambda place: (*map(Number, place[:3]), place[3]),
)

# -- heads -------------------------------------------------------------------------------

_OFTEN = ("tips", "seq", "newest", "logs", "size")
_REST = tuple([name for name in COLUMNS if name not in {*_OFTEN, "thread"}])
_ALL = (*_OFTEN, *_REST)
_TYPES = {
    **dict.fromkeys(_ALL, _NUMBER),
    **dict.fromkeys(("tips", "heap", *TEXTS), _TEXT),
    **dict.fromkeys(TIMES, _TIME),
    "logs": _BYTES,
    "pinned": "boolean",
}


def _often(head: Head) -> _Row:
    """Return the values of `_OFTEN`."""
    tips = array(_NUMBER, head.tips)  # (the driver converts a list many times more slowly)
    return tips, Number(head.seq), pack_optional(head.newest), pack_logs(head), Number(head.size)


def _values(head: Head) -> _Row:
    """Return the values of `_ALL`."""
    columns = columns_of(head)
    columns["heap"] = name_of(head.heap) if head.heap else None
    columns["deleted_at"] = head.deleted_at or None
    for name in _REST:
        if name in TIMES:
            columns[name] = pack_time(columns[name])
        elif type(columns[name]) is int:
            columns[name] = Number(columns[name])
        elif name in TEXTS:
            columns[name] = pack_optional(columns[name])
    return (*_often(head), *[columns[name] for name in _REST])


def _cast(name: str) -> str:
    return f"%s::{_NUMBER}[]" if name == "tips" else f"%s::{_TYPES[name]}"


def _value(name: str) -> str:
    """Return SQL for the value of a column, of `g`."""
    return f"g.tips::{_NUMBER}[]" if name == "tips" else f"g.{name}"


def _changes_often(move: Move) -> bool:
    """Return True if a move changes nothing of its head but the columns of `_OFTEN`."""
    old, new = move.old, move.new
    return old[3:7] == new[3:7] and old[13:] == new[13:]


_SET_OFTEN, _SET_ALL = (
    f"UPDATE {{schema}}.threads t SET {', '.join([f'{name} = {_cast(name)}' for name in names])}"
    for names in (_OFTEN, _ALL)
)
_IS_OLD = " WHERE t.thread_id = %s AND t.tips[1] IS NOT DISTINCT FROM %s::bigint"
_NEW = f"""INSERT INTO {{schema}}.threads AS t (thread_id, {", ".join(_ALL)})
    SELECT %s::text, {", ".join(map(_cast, _ALL))}"""
_IS_NEW = " ON CONFLICT (thread_id) DO NOTHING"
_MOVED = " RETURNING t.thread_id, t.heap"


def _tip(head: Head) -> Number | None:
    return Number(head.tips[0]) if head.tips else None


# -- moves that add rows -------------------------------------------------------------------

_ADDS = Move(Head(""), Head(""))[7:]


def only_adds(move: Move) -> bool:
    """Return True for a move that adds rows, and replaces segments."""
    return move[7:] == _ADDS


def _added(move: Move) -> list[tuple[RowKind, Sequence[Any]]]:
    """Return the kinds of rows that a move adds, with its rows, each key once."""
    _, _, segments, checkpoints, writes, labels, *_ = move
    added: list[tuple[RowKind, Sequence[Any]]] = []
    if segments:
        added.append((SEGMENTS, segments))
    if checkpoints:
        added.append((CHECKPOINTS, [*{row[:2]: row for row in checkpoints}.values()]))
    if writes:
        added.append((WRITES, writes))
    if labels:
        added.append((LABELS, [*{label_prefix(label): label for label in labels}.values()]))
    return added


def _gone(move: Move) -> list[_Row]:
    """Return the rows of `_GONE`."""
    starts = {one[:2] for one in move.segments}
    return [(*place, place[:2] in starts) for place in move.drop_segments]


def made(move: Move) -> Head:
    """Return the new head of a move that was made."""
    old, new = move.old, move.new
    return new if old.number else new._replace(number=key_of(pack_text(new.thread)))


def size(move: Move) -> int:
    """Count the bytes of a move's values."""
    return sum([len(one.data) for one in move.segments]) + sum([len(w.body) for w in move.writes])


def addition(move: Move) -> Statement:
    """Return the statement of a move that only adds rows. It returns a row if it was made."""
    if size(move) > _MOST_BYTES:  # the server would just close the connection
        raise InvalidArgumentError(
            f"The values of one save take {size(move):,} bytes; PostgreSQL takes 1 GB.",
            hint="Keep larger values outside the state.",
            thread=move.new.thread,
        )
    old, new = move.old, move.new
    name = pack_text(new.thread)
    gone = _gone(move)
    values: list[Any] = []
    counts: list[tuple[RowKind, int]] = []
    if gone:
        counts.append((_GONE, _pass(values, _GONE, gone)))
    if not old.number:
        how = _NEW
        values += (name, *_values(new))
    elif _changes_often(move):
        how = _SET_OFTEN
        values += (*_often(new), name, _tip(old))
    else:
        how = _SET_ALL
        values += (*_values(new), name, _tip(old))
    is_checked = bool(gone and move.segments)
    if is_checked:
        values += (name_of(old.heap or name), Number(len(gone)))
    for kind, rows in _added(move):
        counts.append((kind, _pass(values, kind, rows)))
    return Statement(_addition(how, tuple(counts), is_checked), tuple(values))


def _pass(values: list[Any], kind: RowKind, rows: Sequence[Any]) -> int:
    """Add the parameters of rows: by value, or by column (then return 0)."""
    row_of = kind.row_of
    if len(rows) > _FEW:
        values += _arrays(kind.types, map(row_of, rows))
        return 0
    for row in rows:
        values += row_of(row)
    return len(rows)


def _rows(kind: RowKind, few: int, first: str = "") -> str:
    """Return SQL for a table `v` of parameters, whose columns are `c0` and so on."""
    if few:
        row = ", ".join([f"%s::{type_}" for type_ in kind.types])
        return f"(VALUES {', '.join([f'({row})'] * few)}) v ({kind.names})"
    types = (_NUMBER, *kind.types) if first else kind.types
    return f"unnest({', '.join([f'%s::{type_}[]' for type_ in types])}) v ({first}{kind.names})"


_HEAP = "CASE WHEN m.heap IS NULL THEN m.thread_id ELSE m.heap END"
_IS_GONE = "s.log = v.c0 AND s.start = v.c1 AND s.count = v.c2"
_ALL_EXIST = f"""(
    SELECT count(*) FROM gone v JOIN {{schema}}.segments s ON {_IS_GONE}
    WHERE s.thread_id = %s) = %s"""
_DROP_GONE = f"""DELETE FROM {{schema}}.segments s USING moved m, gone v
    WHERE s.thread_id = {_HEAP} AND {_IS_GONE} AND NOT v.c3"""
_REPLACING = """ ON CONFLICT (thread_id, log, start) DO UPDATE
    SET count = excluded.count, data = excluded.data"""


def _insert(kind: RowKind, rows: str, of: str, *, replacing: bool = False) -> str:
    """Return SQL that adds the rows of `moved` threads."""
    owner = _HEAP if kind is SEGMENTS else "m.thread_id"
    values = kind.values or ", ".join([f"v.c{n}" for n in range(len(kind.types))])
    conflict = _REPLACING if replacing and kind is SEGMENTS else kind.conflict
    return (
        f"INSERT INTO {{schema}}.{kind.table} (thread_id, {kind.columns})"
        f" SELECT {owner}, {values} FROM moved m {of.format(rows)}{conflict}"
    )


@lru_cache(maxsize=256)
def _addition(how: str, counts: tuple[tuple[RowKind, int], ...], is_checked: bool) -> str:  # noqa: FBT001 - cached
    """Return the SQL of a move that changes its head in this way, with these numbers of rows."""
    gone = [f"gone AS (SELECT * FROM {_rows(kind, few)})" for kind, few in counts if kind is _GONE]
    change = how + ("" if how is _NEW else _IS_OLD)
    if is_checked:
        change += f" AND {_ALL_EXIST}" if how is not _NEW else f" WHERE {_ALL_EXIST}"
    change += (_IS_NEW if how is _NEW else "") + _MOVED
    parts = [*gone, f"moved AS ({change})"]
    if gone:
        parts.append(f"dropped AS ({_DROP_GONE})")
    for kind, few in counts:
        if kind is not _GONE:
            added = _insert(kind, _rows(kind, few), "CROSS JOIN {}", replacing=bool(gone))
            parts.append(f"{kind.table} AS ({added})")
    return f"WITH {', '.join(parts)} SELECT 1 FROM moved"


# -- moves together ------------------------------------------------------------------------


def statements(moves: Sequence[Move]) -> Iterator[tuple[list[int], Sequence[Statement]]]:
    """Yield the statements of moves of different threads, to send together, and whose they are.

    Those are numbers in `moves`. The last statement returns the places, in that list and from 1 on,
    of the moves that were made. Of several moves, each only adds rows.
    """
    if len(moves) == 1:
        (move,) = moves
        yield [0], [addition(move)] if only_adds(move) else transaction(move)
        return
    part: list[int] = []
    bytes_ = 0
    # (in the order of the threads, so that groups do not deadlock, and their collation is "C")
    for number in sorted(range(len(moves)), key=lambda one: moves[one].new.thread):
        bytes_ += size(moves[number])
        if part and bytes_ > _MOST_BYTES_TOGETHER:
            yield part, [_together([moves[one] for one in part])]
            part, bytes_ = [], size(moves[number])
        part.append(number)
    if len(part) == 1:
        yield part, [addition(moves[part[0]])]
    elif part:
        yield part, [_together([moves[one] for one in part])]


_HEADS = (_TEXT, "boolean", _NUMBER, _NUMBER)  # id, is it new, its newest tip, segments to check


def _together(moves: Sequence[Move]) -> Statement:
    names = _OFTEN if all(m.old.number and _changes_often(m) for m in moves) else _ALL
    values_of = _often if names is _OFTEN else _values
    heads: list[_Row] = []
    rows: dict[RowKind, list[_Row]] = {}
    for number, move in enumerate(moves, 1):
        gone = _gone(move)
        checked = len(gone) if move.segments else 0
        first = (pack_text(move.new.thread), not move.old.number, _tip(move.old), checked)
        # (no array has arrays as elements)
        tips = f"{{{','.join(map(str, move.new.tips))}}}"
        heads.append((*first, tips, *values_of(move.new)[1:]))
        for kind, some in ((_GONE, gone), *_added(move)):
            if some:
                own = rows.setdefault(kind, [])
                own += [(number, *kind.row_of(row)) for row in some]
    types = (*_HEADS, *[_TYPES[name] for name in names])
    values = _arrays(types, heads)
    kinds = tuple([kind for kind in (_GONE, SEGMENTS, CHECKPOINTS, WRITES, LABELS) if kind in rows])
    for kind in kinds:
        values += _arrays((_NUMBER, *kind.types), rows[kind])
    has_new = any(not move.old.number for move in moves)
    return Statement(_group(names, kinds, has_new), tuple(values))


@lru_cache(maxsize=64)
def _group(names: tuple[str, ...], kinds: tuple[RowKind, ...], has_new: bool) -> str:  # noqa: FBT001 - cached
    types = (*_HEADS, *[_TYPES[name] for name in names])
    arrays = ", ".join([f"%s::{type_}[]" for type_ in types])
    sets = ", ".join([f"{name} = {_value(name)}" for name in names])
    columns = f"thread_id, is_new, tip, checked, {', '.join(names)}, n"
    given = f"SELECT * FROM unnest({arrays}) WITH ORDINALITY g ({columns})"
    parts = [f"g AS MATERIALIZED ({given})"]
    check = ""
    if _GONE in kinds:
        parts.append(f"gone AS MATERIALIZED (SELECT * FROM {_rows(_GONE, 0, 'n, ')})")
        heap = _HEAP.replace("m.", "t.")
        check = f""" AND (g.checked = 0 OR g.checked = (
            SELECT count(*) FROM gone v JOIN {{schema}}.segments s ON {_IS_GONE}
            WHERE v.n = g.n AND s.thread_id = {heap}))"""
    parts += [
        """locked AS MATERIALIZED (
        SELECT t.thread_id FROM (SELECT * FROM g ORDER BY g.n) g CROSS JOIN LATERAL (
            SELECT t.thread_id FROM {schema}.threads t WHERE t.thread_id = g.thread_id
            FOR NO KEY UPDATE) t)""",
        f"""updated AS (
        UPDATE {{schema}}.threads t SET {sets} FROM g JOIN locked l ON l.thread_id = g.thread_id
        WHERE t.thread_id = g.thread_id AND NOT g.is_new
            AND t.tips[1] IS NOT DISTINCT FROM g.tip{check}
        RETURNING g.n, t.thread_id, t.heap)""",
    ]
    moved = "SELECT * FROM updated"
    if has_new:
        values = ", ".join(map(_value, names))
        parts.append(f"""inserted AS (
        INSERT INTO {{schema}}.threads AS t (thread_id, {", ".join(names)})
        SELECT g.thread_id, {values} FROM g WHERE g.is_new ORDER BY g.n
        ON CONFLICT (thread_id) DO NOTHING RETURNING t.thread_id, t.heap)""")
        moved += " UNION ALL SELECT g.n, i.* FROM inserted i JOIN g ON g.thread_id = i.thread_id"
    parts.append(f"moved AS MATERIALIZED ({moved})")
    if _GONE in kinds:
        parts.append(f"dropped AS ({_DROP_GONE} AND v.n = m.n)")
    for kind in kinds:
        if kind is not _GONE:
            rows = _rows(kind, 0, "n, ")
            added = _insert(kind, rows, "JOIN {} ON v.n = m.n", replacing=_GONE in kinds)
            parts.append(f"{kind.table} AS ({added})")
    return f"WITH {', '.join(parts)} SELECT n FROM moved"


# -- other moves -----------------------------------------------------------------------------

_LOCK = """
SELECT FROM {schema}.threads WHERE thread_id = ANY(%s) ORDER BY thread_id FOR NO KEY UPDATE
"""
_BESIDE = """(
    SELECT count(*) FROM unnest(%s::text[], %s::bigint[]) o (thread_id, tip)
    JOIN {schema}.threads b ON b.thread_id = o.thread_id AND b.tips[1] = o.tip) = %s"""
_EXIST = f"""(
    SELECT count(*) FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) v (c0, c1, c2)
    JOIN {{schema}}.segments s ON {_IS_GONE} WHERE s.thread_id = %s) = %s"""
# Whether the head has changed is a setting of this transaction.
_SAY = """
WITH changed AS ({}) SELECT set_config('threadkeep.moved', count(*)::text, true) FROM changed
"""
_IS_MOVED = "current_setting('threadkeep.moved') = '1'"
_THEN = f"""
WITH moved AS (SELECT thread_id, heap FROM {{schema}}.threads WHERE thread_id = %s AND {_IS_MOVED})
"""
_AT = "c.thread_id = m.thread_id AND c.checkpoint_ns = v.c0 AND c.checkpoint_id = v.c1"
_PLACES = RowKind("", "", (_TEXT, _TEXT), _key)
_PLACES_OF_WRITES = RowKind("", "", (_TEXT, _TEXT, _NUMBER), _key)
_NEW_BODIES = RowKind(
    "",
    "",
    (_TEXT, _TEXT, _NUMBER, _TEXT, _BYTES),
    lambda row: (*_key((row.ns, row.checkpoint_id, row.seq)), pack_text(row.task_path), row.body),
)


def lock(threads: Iterable[str]) -> Statement:
    """Return the statement that locks heads, in the order of their ids."""
    return Statement(_LOCK, (sorted(map(pack_text, threads)),))


def transaction(move: Move) -> list[Statement]:
    """Return the statements of any move, to send as one transaction."""
    name = pack_text(move.new.thread)
    return [*_begun(move), *[_after(name, *step) for step in _steps(move)], _MADE]


_MADE = Statement(f"SELECT 1 WHERE {_IS_MOVED}")


def _begun(move: Move) -> Iterator[Statement]:
    """Yield the statements that lock the heads, and change the move's own one."""
    old, new = move.old, move.new
    name = pack_text(new.thread)
    conditions: list[tuple[str, _Row]] = []
    if move.beside:
        names = [pack_text(was.thread) for was, _ in move.beside]
        yield lock([move.new.thread, *[was.thread for was, _ in move.beside]])
        tips = array(_NUMBER, [_tip(was) for was, _ in move.beside])
        conditions.append((_BESIDE, (names, tips, Number(len(names)))))
    if move.segments and move.drop_segments:
        columns = [array(_NUMBER, one) for one in zip(*move.drop_segments, strict=True)]
        count = Number(len(move.drop_segments))
        conditions.append((_EXIST, (*columns, name_of(old.heap or name), count)))
    terms = [text for text, _ in conditions]
    values = [value for _, some in conditions for value in some]
    if old.number:
        change = " AND ".join([_SET_ALL + _IS_OLD, *terms])
        values = [*_values(new), name, _tip(old), *values]
    else:
        change = _NEW + (f" WHERE {' AND '.join(terms)}" if terms else "") + _IS_NEW
        values = [name, *_values(new), *values]
    yield Statement(_SAY.format(change + " RETURNING 1"), tuple(values))


def _after(name: str, text: str, values: Sequence[Any] = ()) -> Statement:
    return Statement(_THEN + text, (name, *values))


def _steps(move: Move) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the changes of rows, and of the other heads."""
    name = pack_text(move.new.thread)
    for was, will in move.beside:
        if was is not will:
            text = f"{_SET_ALL} FROM moved m WHERE t.thread_id = %s"
            yield text, (*_values(will), pack_text(was.thread))
    owned = "DELETE FROM {schema}.%s c USING moved m WHERE c.thread_id = m.thread_id"
    for table in ("checkpoints", "writes") if move.clears else ():
        yield owned.replace("%s", table), ()
    if move.clears_heap:
        text = "DELETE FROM {schema}.segments s USING moved m WHERE s.thread_id = %s"
        yield text, (name_of(move.old.heap or name),)
    if move.clears_labels:
        yield owned.replace("%s", "thread_labels"), ()
    if move.copies is not None:
        yield from _copied(move.copies)
    yield from _removed(move)
    for kind, rows in _added(move):
        yield _with_rows(_insert(kind, "{rows}", "CROSS JOIN {}"), kind, rows)


def _with_rows(text: str, kind: RowKind, rows: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Fill in `{rows}`, and return the parameters."""
    values = _arrays(kind.types, map(kind.row_of, rows))
    return text.replace("{rows}", _rows(kind, 0)), values


def _copied(copies: Copying) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the statements that copy rows of another thread."""
    source = pack_text(copies.source.thread)
    for table, columns, kind, wanted in (
        ("checkpoints", _CHECKPOINT_COLUMNS, _PLACES, copies.checkpoints),
        ("writes", _WRITE_COLUMNS, _PLACES_OF_WRITES, copies.writes),
    ):
        named = ", ".join([f"c.{one.strip()}" for one in columns.split(",")])
        text = (
            f"INSERT INTO {{schema}}.{table} (thread_id, {columns})"
            f" SELECT m.thread_id, {named} FROM moved m, {{schema}}.{table} c"
        )
        if wanted is None:
            yield f"{text} WHERE c.thread_id = %s", (source,)
        elif wanted:
            seq = " AND c.seq = v.c2" if table == "writes" else ""
            at = _AT.replace("m.thread_id", "%s") + seq
            filled, values = _with_rows(f"{text}, {{rows}} WHERE {at}", kind, wanted)
            yield filled, (*values, source)
    if copies.segments:
        text = (
            f"INSERT INTO {{schema}}.segments (thread_id, {_SEGMENT_COLUMNS})"
            f" SELECT {_HEAP}, s.log, s.start, s.count, s.data"
            " FROM moved m, {schema}.segments s WHERE s.thread_id = %s"
        )
        yield text, (name_of(copies.source.heap or source),)


def _removed(move: Move) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the statements that drop, hide and replace rows."""
    if move.drop_segments:
        text = "DELETE FROM {schema}.segments s USING moved m, {rows} WHERE s.thread_id = "
        yield _with_rows(
            f"{text}{_HEAP} AND {_IS_GONE}", _GONE, [(*p, False) for p in move.drop_segments]
        )
    if move.drop_checkpoints:
        text = f"DELETE FROM {{schema}}.checkpoints c USING moved m, {{rows}} WHERE {_AT}"
        yield _with_rows(text, _PLACES, move.drop_checkpoints)
    if move.drop_writes:
        text = f"DELETE FROM {{schema}}.writes c USING moved m, {{rows}} WHERE {_AT}"
        yield _with_rows(f"{text} AND c.seq = v.c2", _PLACES_OF_WRITES, move.drop_writes)
    if move.replace_writes:
        text = "UPDATE {schema}.writes c SET task_path = v.c3, body = v.c4 FROM moved m, {rows} "
        text += f"WHERE {_AT} AND c.seq = v.c2"
        yield _with_rows(text, _NEW_BODIES, move.replace_writes)
    if move.hide_checkpoints:
        text = f"UPDATE {{schema}}.checkpoints c SET flags = c.flags | {model.HIDDEN} "
        yield _with_rows(
            text + f"FROM moved m, {{rows}} WHERE {_AT}", _PLACES, move.hide_checkpoints
        )
