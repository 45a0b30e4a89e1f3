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
from functools import lru_cache
from typing import Any, TypeAlias

from threadkeep._core.engine import model
from threadkeep._core.engine.heads import Copying, Head, Move
from threadkeep._core.engine.thread_entry import TIMES, label_prefix
from threadkeep._core.parts import parts_of
from threadkeep._stores.postgres.heads import TEXTS, key_of, name_of
from threadkeep._stores.postgres.message_words import HAS_BEGUN
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


_NUMBER, _TEXT, _BYTES, _TIME = "bigint", "text", "bytea", "timestamptz"
_COLUMN_TYPES = {
    **dict.fromkeys(("log", "start", "count", "run", "seen", "flags", "seq"), _NUMBER),
    **dict.fromkeys(("key_log", "key_pos"), _NUMBER),
    **dict.fromkeys(("data", "exact", "manifest", "body"), _BYTES),
    "ts": _TIME,
    "replaced": "boolean",
}
"""Types of parameters by column: others are texts."""


_CONVERTED = {
    "metadata": "v.{}::jsonb",
    "words": "array_to_tsvector(string_to_array(v.{}, ' '))",
}


class RowKind:
    """Rows that a move adds or drops: their table, columns, and values by column.

    `key` are the columns by which a row replaces another one. `named` are the columns of `v`.
    """

    def __init__(
        self, table: str, columns: str, row_of: Callable[[Any], _Row], key: str = ""
    ) -> None:
        self.table, self.columns, self.row_of = table, columns, row_of
        names = columns.split(", ")
        self.types = tuple([_COLUMN_TYPES.get(name, _TEXT) for name in names])
        self.named = ", ".join([_CONVERTED.get(name, "v.{}").format(name) for name in names])
        new = ", ".join([f"excluded.{name}" for name in names])
        conflict = f" ON CONFLICT (thread_id, {key}) DO UPDATE SET ({columns}) = ROW ({new})"
        self.replacing = conflict if key else ""


def _arrays(types: Iterable[str], rows: Iterable[_Row]) -> list[Array]:
    """Return the columns of rows."""
    columns = zip(*rows, strict=True)
    return [array(type_, column) for type_, column in zip(types, columns, strict=True)]


def _segment(one: model.Segment) -> _Row:
    return Number(one.log), Number(one.start), Number(one.count), one.data


def _checkpoint(row: model.CheckpointRow) -> _Row:
    ns, id, parent, run, seen, flags, ts, metadata, exact, key_log, key_pos, manifest = row
    times = (pack_time(ts), None) if isinstance(ts, int) else (None, pack_text(ts))
    numbers = Number(run), Number(seen), Number(flags)
    ids = pack_text(ns), pack_text(id), pack_optional(parent)
    place = Number(key_log), Number(key_pos)
    return *ids, *numbers, *times, *pack_metadata(metadata), exact, *place, manifest


def _write(row: model.WriteRow) -> _Row:
    ns, checkpoint, run, seen, task, path, body, seq = row
    ids = pack_text(ns), pack_text(checkpoint)
    return *ids, Number(seq), Number(run), Number(seen), pack_text(task), pack_text(path), body


def _key(key: tuple[Any, ...]) -> _Row:
    ns, checkpoint, *seq = key
    return pack_text(ns), pack_text(checkpoint), *map(Number, seq)


_PLACE = "checkpoint_ns, checkpoint_id"
SEGMENTS = RowKind("segments", "log, start, count, data", _segment, "log, start")
CHECKPOINTS = RowKind(
    "checkpoints",
    f"{_PLACE}, parent_checkpoint_id, run, seen, flags, ts, ts_text, metadata, metadata_text,"
    " exact, key_log, key_pos, manifest",
    _checkpoint,
    _PLACE,
)
WRITES = RowKind("writes", f"{_PLACE}, seq, run, seen, task_id, task_path, body", _write)
LABELS = RowKind(
    "thread_labels", "beginning, label", lambda label: (label_prefix(label), label), "beginning"
)
WORDS = RowKind("threadkeep_words", "words", lambda words: (words,))
# (replaced: by a segment that starts where it does)
_GONE = RowKind("segments", "log, start, count, replaced", lambda p: (*map(Number, p[:3]), p[3]))

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


def _tip(head: Head) -> Number | None:
    return Number(head.tips[0]) if head.tips else None


# -- moves that add rows -------------------------------------------------------------------

_ADDS = Move(Head(""), Head(""))[7:-1]


def only_adds(move: Move) -> bool:
    """Return True for a move that adds rows, and replaces segments."""
    return move[7:-1] == _ADDS and (move.words is None or not move.words.whole)


def _indexed(move: Move) -> str:
    """Return the setting that tells the trigger of the index that a move comes with its words."""
    return f"{pack_text(move.new.thread)} {pack_optional(move.new.newest)}"


def _added(move: Move) -> list[tuple[RowKind, Sequence[Any]]]:
    """Return the kinds of rows that a move adds, with its rows, each key once."""
    _, _, segments, checkpoints, writes, labels, *_, words = move
    added: list[tuple[RowKind, Sequence[Any]]] = []
    if segments:
        added.append((SEGMENTS, segments))
    if checkpoints:
        added.append((CHECKPOINTS, [*{row[:2]: row for row in checkpoints}.values()]))
    if writes:
        added.append((WRITES, writes))
    if labels:
        added.append((LABELS, [*{label_prefix(label): label for label in labels}.values()]))
    if words is not None and words.messages:
        added.append((WORDS, words.messages))
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
    gone = _gone(move)
    values: list[Any] = []
    counts: list[tuple[RowKind, int]] = []
    if gone:
        counts.append((_GONE, _pass(values, _GONE, gone)))
    how = _begun(values, move)
    is_checked = bool(gone and move.segments)
    if is_checked:
        values += _gone_values(move)
    for kind, rows in _added(move):
        counts.append((kind, _pass(values, kind, rows)))
    text = _addition(how, tuple(counts), is_checked)
    if move.words is not None:
        values.append(_indexed(move))
        text += f" WHERE set_config('threadkeep.indexed', %s, true) IS NOT NULL AND {HAS_BEGUN}"
    return Statement(text, tuple(values))


def _begun(values: list[Any], move: Move) -> str:
    """Return the SQL that changes the head of a move, and add its values."""
    old, new = move.old, move.new
    name = pack_text(new.thread)
    if not old.number:
        values += (name, *_values(new))
        return _NEW
    is_often = _changes_often(move)
    values += (*(_often if is_often else _values)(new), name, _tip(old))
    return _SET_OFTEN if is_often else _SET_ALL


def _gone_values(move: Move) -> tuple[Any, ...]:
    """Return the values of `_ALL_EXIST`."""
    name = name_of(move.old.heap or pack_text(move.new.thread))
    return name, Number(len(move.drop_segments))


def _pass(values: list[Any], kind: RowKind, rows: Sequence[Any]) -> int:
    """Add the parameters of rows: by value, or by column (then return 0)."""
    row_of = kind.row_of
    if len(rows) > _FEW:
        values += _arrays(kind.types, map(row_of, rows))
        return 0
    for row in rows:
        values += row_of(row)
    return len(rows)


def _rows(kind: RowKind, few: int = 0, first: str = "") -> str:
    """Return SQL for a table `v` of parameters with the columns of `kind`."""
    if few:
        row = ", ".join([f"%s::{type_}" for type_ in kind.types])
        return f"(VALUES {', '.join([f'({row})'] * few)}) v ({kind.columns})"
    types = (_NUMBER, *kind.types) if first else kind.types
    return f"unnest({', '.join([f'%s::{type_}[]' for type_ in types])}) v ({first}{kind.columns})"


_HEAP = "CASE WHEN m.heap IS NULL THEN m.thread_id ELSE m.heap END"
_IS_GONE = "s.log = v.log AND s.start = v.start AND s.count = v.count"
_ALL_EXIST = f"""(
    SELECT count(*) FROM gone v JOIN {{schema}}.segments s ON {_IS_GONE}
    WHERE s.thread_id = %s) = %s"""
_DROP_GONE = f"""DELETE FROM {{schema}}.segments s USING moved m, {{rows}}
    WHERE s.thread_id = {_HEAP} AND {_IS_GONE} AND NOT v.replaced"""


def _insert(kind: RowKind, rows: str, of: str, *, replacing: bool = False) -> str:
    """Return SQL that adds the rows of `moved` threads."""
    owner = _HEAP if kind is SEGMENTS else "m.thread_id"
    conflict = kind.replacing if replacing or kind is not SEGMENTS else ""
    return (
        f"INSERT INTO {{schema}}.{kind.table} (thread_id, {kind.columns})"
        f" SELECT {owner}, {kind.named} FROM moved m {of.format(rows)}{conflict}"
    )


def _changed(how: str, checks: Sequence[str]) -> str:
    """Return SQL that changes a head in this way if its tip is the old one and `checks` hold."""
    if how is _NEW:
        return how + (f" WHERE {' AND '.join(checks)}" if checks else "") + _IS_NEW
    return " AND ".join([how + _IS_OLD, *checks])


@lru_cache(maxsize=256)
def _addition(how: str, counts: tuple[tuple[RowKind, int], ...], is_checked: bool) -> str:  # noqa: FBT001 - cached
    """Return the SQL of a move that changes its head in this way, with these numbers of rows."""
    gone = [f"gone AS (SELECT * FROM {_rows(kind, few)})" for kind, few in counts if kind is _GONE]
    change = _changed(how, [_ALL_EXIST] if is_checked else [])
    parts = [*gone, f"moved AS ({change} RETURNING t.thread_id, t.heap)"]
    if gone:
        parts.append(f"dropped AS ({_DROP_GONE.replace('{rows}', 'gone v')})")
    for kind, few in counts:
        if kind is not _GONE:
            added = _insert(kind, _rows(kind, few), "CROSS JOIN {}", replacing=bool(gone))
            parts.append(f"{kind.table} AS ({added})")
    return f"WITH {', '.join(parts)} SELECT 1 FROM moved"


# -- moves together ------------------------------------------------------------------------


def statements(moves: Sequence[Move]) -> Iterator[tuple[Sequence[int], Sequence[Statement]]]:
    """Yield the statements of moves of different threads, to send together, and whose they are.

    Those are numbers in `moves`. The last statement returns the places, in that list and from 1 on,
    of the moves that were made. Of several moves, each only adds rows, or words, too.
    """
    if len(moves) == 1:
        yield [0], _alone(moves[0])
        return
    alone = [number for number, move in enumerate(moves) if move.words is not None]
    for number in alone:
        yield [number], _alone(moves[number])
    # (in the order of the threads, so that groups do not deadlock, and their collation is "C")
    order = sorted({*range(len(moves))}.difference(alone), key=lambda n: moves[n].new.thread)
    for part in parts_of(order, lambda one: size(moves[one]), len(moves), _MOST_BYTES_TOGETHER):
        some = [moves[one] for one in part]
        yield part, [_together(some) if len(some) > 1 else addition(some[0])]


def _alone(move: Move) -> list[Statement]:
    return [addition(move)] if only_adds(move) else transaction(move)


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
        parts.append(f"gone AS MATERIALIZED (SELECT * FROM {_rows(_GONE, first='n, ')})")
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
        parts.append(f"dropped AS ({_DROP_GONE.replace('{rows}', 'gone v')} AND v.n = m.n)")
    for kind in kinds:
        if kind is not _GONE:
            rows = _rows(kind, first="n, ")
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
# Whether the head has changed is a setting of this transaction.
_SAY = """
WITH {gone}changed AS ({change} RETURNING 1)
SELECT set_config('threadkeep.moved', count(*)::text, true) FROM changed
"""
_IS_MOVED = "current_setting('threadkeep.moved') = '1'"
_THEN = f"""
WITH moved AS (SELECT thread_id, heap FROM {{schema}}.threads WHERE thread_id = %s AND {_IS_MOVED})
"""
_INDEXED = f"SELECT set_config('threadkeep.indexed', %s, true), {HAS_BEGUN}"
_MADE = Statement(f"SELECT 1 WHERE {_IS_MOVED}")
_AT = """c.thread_id = m.thread_id AND c.checkpoint_ns = v.checkpoint_ns
    AND c.checkpoint_id = v.checkpoint_id"""
_PLACES = RowKind("", _PLACE, _key)
_PLACES_OF_WRITES = RowKind("", f"{_PLACE}, seq", _key)
_NEW_BODIES = RowKind(
    "",
    f"{_PLACE}, seq, task_path, body",
    lambda row: (*_key((row.ns, row.checkpoint_id, row.seq)), pack_text(row.task_path), row.body),
)


def lock(threads: Iterable[str]) -> Statement:
    """Return the statement that locks heads, in the order of their ids."""
    return Statement(_LOCK, (sorted(map(pack_text, threads)),))


def transaction(move: Move) -> list[Statement]:
    """Return the statements of any move, to send as one transaction."""
    then = [Statement(_THEN + text, (pack_text(move.new.thread), *v)) for text, v in _steps(move)]
    first = () if move.words is None else (Statement(_INDEXED, (_indexed(move),)),)
    return [*first, *_locked(move), *then, _MADE]


def _locked(move: Move) -> Iterator[Statement]:
    """Yield the statements that lock the heads, and change the move's own one."""
    values: list[Any] = []
    gone, checks, checked = "", [], []
    if move.segments and move.drop_segments:
        gone = f"gone AS (SELECT * FROM {_rows(_GONE)}), "
        values += _arrays(_GONE.types, map(_GONE.row_of, _gone(move)))
        checks, checked = [_ALL_EXIST], [*_gone_values(move)]
    how = _begun(values, move)
    if move.beside:
        names = [pack_text(was.thread) for was, _ in move.beside]
        yield lock([move.new.thread, *[was.thread for was, _ in move.beside]])
        checks.append(_BESIDE)
        tips = array(_NUMBER, [_tip(was) for was, _ in move.beside])
        checked += (names, tips, Number(len(names)))
    text = _SAY.replace("{gone}", gone).replace("{change}", _changed(how, checks))
    yield Statement(text, (*values, *checked))


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
    if move.words is not None and move.words.whole:
        for table in ("threadkeep_words", "threadkeep_unindexed"):
            yield owned.replace("%s", table), ()
    yield from _removed(move)
    for kind, rows in _added(move):
        yield _with_rows(_insert(kind, "{rows}", "CROSS JOIN {}"), kind, rows)


def _with_rows(text: str, kind: RowKind, rows: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Fill in `{rows}`, and return the parameters."""
    return text.replace("{rows}", _rows(kind)), _arrays(kind.types, map(kind.row_of, rows))


def _copied(copies: Copying) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the statements that copy rows of another thread."""
    name = pack_text(copies.source.thread)
    for kind, places, at, wanted in (
        (CHECKPOINTS, _PLACES, _AT, copies.checkpoints),
        (WRITES, _PLACES_OF_WRITES, f"{_AT} AND c.seq = v.seq", copies.writes),
        (SEGMENTS, _PLACES, "", None if copies.segments else ()),
    ):
        owner, source = "m.thread_id", name
        if kind is SEGMENTS:
            owner, source = _HEAP, name_of(copies.source.heap or name)
        text = (
            f"INSERT INTO {{schema}}.{kind.table} (thread_id, {kind.columns}) SELECT {owner},"
            f" c.{kind.columns.replace(', ', ', c.')} FROM moved m, {{schema}}.{kind.table} c"
        )
        if wanted is None:
            yield f"{text} WHERE c.thread_id = %s", (source,)
        elif wanted:
            text += f", {{rows}} WHERE {at.replace('m.thread_id', '%s')}"
            filled, values = _with_rows(text, places, wanted)
            yield filled, (*values, source)


_OF_ROWS = f"moved m, {{rows}} WHERE {_AT}"
_OF_WRITES = f"{_OF_ROWS} AND c.seq = v.seq"
_DROP_CHECKPOINTS = f"DELETE FROM {{schema}}.checkpoints c USING {_OF_ROWS}"
_DROP_WRITES = f"DELETE FROM {{schema}}.writes c USING {_OF_WRITES}"
_REPLACE_WRITES = f"""UPDATE {{schema}}.writes c SET task_path = v.task_path, body = v.body
    FROM {_OF_WRITES}"""
_HIDE = f"UPDATE {{schema}}.checkpoints c SET flags = c.flags | {model.HIDDEN} FROM {_OF_ROWS}"


def _removed(move: Move) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the statements that drop, hide and replace rows."""
    for text, kind, rows in (
        (_DROP_GONE, _GONE, [(*place, False) for place in move.drop_segments]),
        (_DROP_CHECKPOINTS, _PLACES, move.drop_checkpoints),
        (_DROP_WRITES, _PLACES_OF_WRITES, move.drop_writes),
        (_REPLACE_WRITES, _NEW_BODIES, move.replace_writes),
        (_HIDE, _PLACES, move.hide_checkpoints),
    ):
        if rows:
            yield _with_rows(text, kind, rows)
