"""Moves as SQL, and the reads of the rules. See `_core.engine.heads`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from threadkeep._core.engine import model, rule_reads
from threadkeep._core.engine.heads import Copying, Head, Move, sound
from threadkeep._core.engine.model import HIDDEN, NESTED, THREADS
from threadkeep._core.engine.thread_entry import label_prefix
from threadkeep._stores.records import pack_logs
from threadkeep._stores.sqlite import damage, message_words, threads
from threadkeep._stores.sqlite.records import (
    HEAD_COLUMNS,
    TABLES,
    ManyRows,
    bound_id,
    head_values,
    pack_id,
    pack_tip,
    pack_tips,
    read_family,
    read_head,
    read_mended,
    split_metadata,
    unpack_id,
)

# The driver binds None and bytes more slowly than numbers and bytearrays, because it looks for an
# adapter. So we bind 0, '' and bytearrays.

# -- statements --------------------------------------------------------------------------


def _insert(table: str, verb: str = "INSERT") -> str:
    return f"{verb} INTO {table} (thread, {TABLES[table]}) VALUES {{rows}}"


_NO_STEP = -(2**63)  # (no step has so many digits: see `metadata`)
_SEGMENTS = ManyRows(_insert("tk_heap_segments"), "(?, ?, ?, ?, ?)")
_CHECKPOINTS = ManyRows(
    _insert("tk_checkpoints", "INSERT OR REPLACE"),
    "(?, ?, ?, ?, nullif(?, 0), nullif(?, 0), nullif(?, 0), ?,"
    f" nullif(?, ''), nullif(?, {_NO_STEP}), nullif(?, ''), nullif(?, ''),"
    " nullif(?, 0), nullif(?, 0), ?)",
)
_WRITES = ManyRows(
    _insert("tk_writes"), "(?, ?, ?, ?, nullif(?, 0), nullif(?, 0), ?, nullif(?, ''), ?)"
)
_LABELS = ManyRows(
    "INSERT OR REPLACE INTO tk_labels (thread, beginning, label) VALUES {rows}", "(?, ?, ?)"
)
# SQLite rewrites an index whenever one of its columns is set, changed or not. So columns that
# change together have statements of their own.
_OFTEN = ("tips", "seq", "newest", "logs", "size")
_TIMED = (*_OFTEN, "updated_at")
_STATUS = ("status", "status_at", "failed_node")
_ALL = tuple([name for name in HEAD_COLUMNS if name not in {"thread", "number"}])


def _update(columns: Sequence[str]) -> str:
    """SQL that sets columns of a thread whose newest tip is still the given one."""
    values = ", ".join([f"{name} = ?" for name in columns])
    return f"UPDATE tk_threads SET {values} WHERE number = ? AND substr(tips, 1, 8) = ?"


def _update_many(columns: Sequence[str]) -> ManyRows:
    """The same for several threads: their values, numbers and tips are rows of a table."""
    values = ", ".join([f"{name} = v.column{n}" for n, name in enumerate(columns, 1)])
    number, tip = (f"v.column{len(columns) + n}" for n in (1, 2))
    text = (
        f"UPDATE tk_threads SET {values} FROM (VALUES {{rows}}) AS v"
        f" WHERE tk_threads.number = {number} AND substr(tk_threads.tips, 1, 8) = {tip}"
    )
    return ManyRows(text, f"({', '.join('?' * (len(columns) + 2))})")


_SET_OFTEN, _SET_TIMED, _SET_ALL = map(_update, (_OFTEN, _TIMED, _ALL))
_SET_STATUS: dict[tuple[str, ...], str] = {
    one: _update((*one, *_STATUS)) for one in (_OFTEN, _TIMED)
}
_SET_MANY = {_SET_OFTEN: _update_many(_OFTEN), _SET_TIMED: _update_many(_TIMED)}
# So many heads share a statement: at each statement, another thread of the program may take the
# GIL. (A table of 16 rows costs as much CPU time as 16 statements, a smaller one more.)
_MANY = 4
_SET_DAMAGED = _SET_ALL.replace("substr(tips, 1, 8) = ?", "? = x''")
_NEW = (
    f"INSERT INTO tk_threads (thread, {', '.join(_ALL)}) VALUES (?{', ?' * len(_ALL)})"
    " ON CONFLICT (thread) DO NOTHING"
)
_IS_PRESENT = "SELECT 1 FROM tk_threads WHERE number = ? AND substr(tips, 1, 8) = ?"
_IS_ABSENT = "SELECT 1 FROM tk_threads WHERE thread = ?"

_AT = "thread = ? AND ns = ? AND"
_DROP_SEGMENTS = (
    "DELETE FROM tk_heap_segments WHERE thread = ? AND log = ?"
    " AND start BETWEEN ?3 AND ? AND count = ?5 AND (start - ?3) % max(?5, 1) = 0"
)
_DROP_CHECKPOINT = f"DELETE FROM tk_checkpoints WHERE {_AT} id = ?"
_DROP_WRITE = f"DELETE FROM tk_writes WHERE {_AT} checkpoint = ? AND seq = ?"
_REPLACE_WRITE = (
    f"UPDATE tk_writes SET body = ?, path = nullif(?, '') WHERE {_AT} checkpoint = ? AND seq = ?"
)
_HIDE = f"UPDATE tk_checkpoints SET flags = coalesce(flags, 0) | {HIDDEN} WHERE {_AT} id = ?"


def _copying(table: str) -> str:
    """SQL that copies rows. The numbers of the target and of the source are its parameters."""
    columns = TABLES[table]
    return (
        f"INSERT INTO {table} (thread, {columns}) SELECT ?, {columns} FROM {table} WHERE thread = ?"
    )


_COPY_CHECKPOINTS, _COPY_WRITES, _COPY_SEGMENTS = map(_copying, TABLES)


# -- moves -------------------------------------------------------------------------------

_BoundRows: TypeAlias = "list[tuple[Any, ...]]"


def make(db: sqlite3.Connection, moves: Sequence[Move]) -> list[Head | None]:
    """Make moves in an open transaction, and return the new head of each, None if it is refused."""
    making = _Making(db)
    are_set = _set_many(db, moves) if len(moves) >= _MANY else ()
    made = [making.one(move, is_set=move.new.thread in are_set) for move in moves]
    making.insert()
    return made


class _Making:
    """Moves on their way: the rows that they add share their statements."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: tuple[_BoundRows, ...] = ([], [], [], [])  # of `_KINDS`

    def one(self, move: Move, *, is_set: bool) -> Head | None:
        """Make a move. `is_set`: its head is set already. Its rows may be inserted later."""
        if move[6:] == _ADDS:
            head = move.new if is_set else _set(self._db, move.old, move.new)
        else:
            self.insert()
            head = self._guarded(move)
        if head is not None:
            self._add(head, move)
        return head

    def _guarded(self, move: Move) -> Head | None:
        """Make a move that does more than to add rows, all or nothing."""
        db = self._db
        db.execute("SAVEPOINT tk")
        head = None
        try:
            head = self._change(move)
        finally:
            if head is None:
                db.execute("ROLLBACK TO tk")
            db.execute("RELEASE tk")
        return head

    def _change(self, move: Move) -> Head | None:
        db = self._db
        if not all(_is_moved(db, was, will) for was, will in move.beside):
            return None
        head = _set(db, move.old, move.new)
        if head is None:
            return None
        _clear(db, head.number, move)
        if move.copies is not None:
            _copy(db, head, move.copies)
        if not _drop_segments(db, head, move.drop_segments) and move.segments:
            return None
        _remove(db, head, move)
        if move.words is not None:
            message_words.add(db, head.number, move)
        return head

    def _add(self, head: Head, move: Move) -> None:
        number = head.number
        heap = head.heap or number
        segments, checkpoints, writes, labels = self._rows
        for segment in move.segments:
            segments.append(_segment(heap, segment))
        for row in move.checkpoints:
            checkpoints.append(_checkpoint(number, row))
        for write in move.writes:
            writes.append(_write(number, write))
        for label in move.labels:
            labels.append((number, label_prefix(label), label))

    def insert(self) -> None:
        """Insert the rows of the moves so far."""
        for statement, rows in zip(_KINDS, self._rows, strict=True):
            if rows:
                statement.run(self._db, rows)
                rows.clear()


_KINDS = (_SEGMENTS, _CHECKPOINTS, _WRITES, _LABELS)
_ADDS = Move(Head(""), Head(""))[6:]


def _set(db: sqlite3.Connection, old: Head, new: Head) -> Head | None:
    """Let a head take the place of another. Return it with its number, None if it is refused."""
    if not old.number:
        done = db.execute(_NEW, (new.thread, *head_values(new, _ALL)))
        return new._replace(number=done.lastrowid or 0) if done.rowcount == 1 else None
    statement, bound = _setting(old, new)
    return new if db.execute(statement, bound).rowcount == 1 else None


def _setting(old: Head, new: Head) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that sets a stored head, and its parameters."""
    own: tuple[Any, ...]
    tip = pack_tip(old.tips[0]) if old.tips else b""
    # (without tips it is damaged, and its fields have any types)
    is_near = bool(old.tips) and old[3:7] == new[3:7] and old[13:16] == new[13:16]
    is_usual = is_near and old[17:] == new[17:]
    if is_usual or (is_near and old[17:20] == new[17:20] and old[23:] == new[23:]):
        newest = None if new.newest is None else bound_id(new.newest)
        own = (pack_tips(new.tips), new.seq, newest, bytearray(pack_logs(new)), new.size)
        statement = _SET_OFTEN
        columns: tuple[str, ...] = _OFTEN
        if old.updated_at != new.updated_at:
            statement, columns, own = _SET_TIMED, _TIMED, (*own, new.updated_at)
        if not is_usual:
            at = None if new.status_at is None else bound_id(new.status_at)
            statement, own = _SET_STATUS[columns], (*own, new.status, at, new.failed_node)
    else:
        statement, own = _SET_ALL if old.tips else _SET_DAMAGED, head_values(new, _ALL)
    return statement, (*own, old.number, tip)


def _set_many(db: sqlite3.Connection, moves: Sequence[Move]) -> set[str]:
    """Set the heads of plain moves with few statements, all or none, and return their threads."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    threads: set[str] = set()
    for move in moves:
        if move.old.number and move[6:] == _ADDS:
            statement, bound = _setting(move.old, move.new)
            if statement in _SET_MANY:
                groups.setdefault(statement, []).append(bound)
                threads.add(move.new.thread)
    if len(threads) < _MANY:
        return set()
    db.execute("SAVEPOINT tk")
    is_done = False
    try:
        counts = [_SET_MANY[one].run(db, rows) for one, rows in groups.items()]
        is_done = len(threads) == sum(counts)
    finally:
        if not is_done:  # (then each is set, or refused, by itself)
            db.execute("ROLLBACK TO tk")
        db.execute("RELEASE tk")
    return threads if is_done else set()


def _is_moved(db: sqlite3.Connection, head: Head, new: Head) -> bool:
    if head is not new:
        return _set(db, head, new) is not None
    if not head.number:
        return db.execute(_IS_ABSENT, (head.thread,)).fetchone() is None
    return db.execute(_IS_PRESENT, (head.number, pack_tip(head.tips[0]))).fetchone() is not None


def _clear(db: sqlite3.Connection, number: int, move: Move) -> None:
    for table, owner, is_cleared in (
        ("tk_checkpoints", number, move.clears),
        ("tk_writes", number, move.clears),
        ("tk_heap_segments", move.old.heap or number, move.clears_heap),
        ("tk_labels", number, move.clears_labels),
    ):
        if is_cleared:
            db.execute(f"DELETE FROM {table} WHERE thread = ?", (owner,))


def _drop_segments(
    db: sqlite3.Connection, head: Head, places: Sequence[tuple[int, int, int]]
) -> bool:
    """Remove segments, or return False if one does not exist."""
    if not places:
        return True
    heap, dropped = head.heap or head.number, 0
    for bound in _runs(places):
        dropped += db.execute(_DROP_SEGMENTS, (heap, *bound)).rowcount
    return dropped == len(places)


def _runs(places: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Join places of one size that follow one another. Return log, first and last start, size."""
    found: list[tuple[int, int, int, int]] = []
    for log, start, count in sorted(places):
        first = start
        if found and (found[-1][0], *found[-1][2:]) == (log, start - count, count):
            first = found.pop()[1]
        found.append((log, first, start, count))
    return found


def _key(place: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the parameters of a place: the namespace, the checkpoint, perhaps the write."""
    return (place[0], pack_id(place[1]), *place[2:])


def _copy(db: sqlite3.Connection, head: Head, copies: Copying) -> None:
    source, number = copies.source, head.number
    ends = (number, source.number)
    for text, key, wanted in (
        (_COPY_CHECKPOINTS, "id = ?", copies.checkpoints),
        (_COPY_WRITES, "checkpoint = ? AND seq = ?", copies.writes),
    ):
        if wanted is None:
            db.execute(text, ends)
        else:
            rows = [(*ends, *_key(place)) for place in wanted]
            db.executemany(f"{text} AND ns = ? AND {key}", rows)
    if copies.segments:
        db.execute(_COPY_SEGMENTS, (head.heap or number, source.heap or source.number))


def _remove(db: sqlite3.Connection, head: Head, move: Move) -> None:
    number = head.number
    for text, places in (
        (_DROP_CHECKPOINT, move.drop_checkpoints),
        (_DROP_WRITE, move.drop_writes),
        (_HIDE, move.hide_checkpoints),
    ):
        for place in places:
            db.execute(text, (number, *_key(place)))
    for row in move.replace_writes:
        key = _key((row.ns, row.checkpoint_id, row.seq))
        db.execute(_REPLACE_WRITE, (row.body, row.task_path, number, *key))
    for unreadable in move.drop_unreadable:
        if unreadable.table != THREADS:
            damage.drop(db, number, head.heap or number, unreadable)


# -- rows --------------------------------------------------------------------------------


def _segment(heap: int, one: model.Segment) -> tuple[Any, ...]:
    return (heap, one.log, one.start, one.count, bytearray(one.data))


def _checkpoint(number: int, row: model.CheckpointRow) -> tuple[Any, ...]:
    ns, id, parent, run, seen, flags, ts, metadata, exact, key_log, key_pos, manifest = row
    source, step, text = split_metadata(metadata)
    ids = bound_id(id), None if parent is None else bound_id(parent)
    plain = source, step if source else _NO_STEP, text, "" if exact is None else exact
    return number, ns, *ids, run, seen, flags, ts, *plain, key_log, key_pos, bytearray(manifest)


def _write(number: int, row: model.WriteRow) -> tuple[Any, ...]:
    ns, checkpoint, run, seen, task, path, body, seq = row
    place = number, ns, bound_id(checkpoint), seq
    return *place, run, seen, bound_id(task), path, bytearray(body)


# -- reads of the rules ------------------------------------------------------------------

_BEFORE_ALL = 0  # a number sorts before every text and blob
_NEWER = f"""
SELECT id FROM tk_checkpoints
WHERE thread = ? AND ns = ? AND id > ? AND (flags & {NESTED}) IS NOT {NESTED}
ORDER BY id LIMIT ?
"""
_OTHERS_WRITE = """
SELECT 1 FROM tk_writes
WHERE thread = ? AND ns = ? AND checkpoint = ? AND seq > ? AND run IS NOT ? LIMIT 1
"""
_ROW_COUNTS = """
SELECT (SELECT count(*) FROM tk_checkpoints WHERE thread = ?1),
    (SELECT count(*) FROM tk_writes WHERE thread = ?1)
"""
_HAS_CHECKPOINT = "SELECT 1 FROM tk_checkpoints WHERE thread = ? LIMIT 1"
_HAS_ROW = f"SELECT 1 FROM tk_threads t WHERE t.number = ? AND {threads.HOLDS_ROWS}"
_END = """
SELECT start + count FROM tk_heap_segments
WHERE thread = ? AND log = ? ORDER BY start DESC LIMIT 1
"""


def _read_damaged(db: sqlite3.Connection, read: rule_reads.ReadDamaged) -> Head | None:
    is_stored = read.key == damage.key_of_thread(db, read.thread)
    return read_mended(db, read.thread) if is_stored else None


def _read_newer(db: sqlite3.Connection, read: rule_reads.ReadNewer) -> list[str]:
    first = _BEFORE_ALL if read.id is None else pack_id(read.id)
    rows = db.execute(_NEWER, (read.head.number, read.ns, first, read.limit))
    return [unpack_id(packed) for (packed,) in rows]


def _has_others(db: sqlite3.Connection, read: rule_reads.HasOthers) -> bool:
    key = (read.head.number, read.ns, pack_id(read.checkpoint_id), read.seen, read.run or None)
    return db.execute(_OTHERS_WRITE, key).fetchone() is not None


def _count_rows(db: sqlite3.Connection, read: rule_reads.CountRows) -> tuple[int, int]:
    counts = [db.execute(_ROW_COUNTS, (head.number,)).fetchone() for head in read.heads]
    return sum(rows for rows, _ in counts), sum(writes for _, writes in counts)


def _holds(db: sqlite3.Connection, read: rule_reads.HoldsCheckpoints) -> bool:
    statement = _HAS_ROW if read.any_row else _HAS_CHECKPOINT
    return db.execute(statement, (read.head.number,)).fetchone() is not None


def _read_ends(db: sqlite3.Connection, read: rule_reads.ReadEnds) -> dict[int, int]:
    heap = read.head.heap or read.head.number
    found = {log: db.execute(_END, (heap, log)).fetchone() for log in read.logs}
    return {log: row[0] for log, row in found.items() if row is not None}


REPLIES: dict[type[rule_reads.OfRules], Callable[[sqlite3.Connection, Any], Any]] = {
    rule_reads.ReadHead: lambda db, read: sound(read_head(db, read.thread)),
    rule_reads.ReadDamaged: _read_damaged,
    rule_reads.ReadFamily: lambda db, read: read_family(db, read.heap),
    rule_reads.ReadNewer: _read_newer,
    rule_reads.HasOthers: _has_others,
    rule_reads.CountRows: _count_rows,
    rule_reads.HoldsCheckpoints: _holds,
    rule_reads.ReadEnds: _read_ends,
}
