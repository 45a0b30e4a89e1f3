"""Fast path for batches that only add rows and replace segments.

A run of batches takes one query, checks in Python, and one statement for each table. Each batch
sees the rows of the batches before it. A refused batch adds nothing.
"""

from __future__ import annotations

from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from threadkeep import errors
from threadkeep._core.engine.thread_entry import label_prefix
from threadkeep._core.engine.tips import after as named_after
from threadkeep._stores.records import check_state, tip_of
from threadkeep._stores.sqlite.known import (
    ENTRY,
    NEW,
    NOTHING,
    SIZE,
    TIME,
    Known,
    KnownThread,
    Space,
)
from threadkeep._stores.sqlite.known_segments import (
    NO_SEGMENTS,
    Gaps,
    KnownHeap,
    after,
    emptied,
    filled,
)
from threadkeep._stores.sqlite.records import (
    NO_TIPS,
    TABLES,
    ManyRows,
    pack_id,
    pack_tips,
    split_metadata,
    unpack_id,
    unpack_tips,
    wrong_types,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from threadkeep._core.engine.model import Batch, CheckpointRow, Segment, WriteRow

# -- statements ------------------------------------------------------------------------
# The driver binds None and bytes more slowly than numbers and bytearrays, because it looks for an
# adapter. So we bind 0 and '', which SQLite turns into NULL.

_LAST_NUMBER = "SELECT max(number) FROM tk_threads"
_LAST_SEQ = "SELECT max(seq) FROM tk_writes WHERE thread = {} AND ns = {} AND checkpoint = {}"


def _columns_asked(log: str, ns: str) -> str:
    return f"""
        (SELECT s.start + s.count FROM tk_heap_segments s
            WHERE s.thread = coalesce(t.heap, t.number) AND s.log = {log}
            ORDER BY s.start DESC LIMIT 1),
        (SELECT max(c.id) FROM tk_checkpoints c WHERE c.thread = t.number AND c.ns = {ns}),
        (SELECT max(w.checkpoint) FROM tk_writes w WHERE w.thread = t.number AND w.ns = {ns}),
        t.number, coalesce(t.heap, t.number), t.generation, t.deleted_at, t.life,
        t.created_at, t.updated_at, t.size, t.revision, t.state, t.waits_at, t.tips
    """


_QUESTION = f"SELECT {_columns_asked('?', '?')} FROM tk_threads t WHERE t.thread = ?"
_QUESTIONS = ManyRows(
    f"""
    SELECT ({_LAST_NUMBER}), ({_LAST_SEQ.format("t.number", "q.column3", "q.column4")}),
        {_columns_asked("q.column2", "q.column3")}
    FROM (VALUES {{rows}}) q LEFT JOIN tk_threads t ON t.thread = q.column1
    """,
    "(?, ?, ?, ?)",
)


def _insert(table: str, verb: str = "INSERT") -> str:
    return f"{verb} INTO {table} (thread, {TABLES[table]}) VALUES {{rows}}"


_DROP_SEGMENT = (
    "DELETE FROM tk_heap_segments WHERE thread = ? AND log = ? AND start = ? AND count = ?"
)
_DROP_RANGE = (
    "DELETE FROM tk_heap_segments WHERE thread = ? AND log = ? AND start >= ? AND start < ?"
)
# Stored segments never overlap, so the search starts at the last one that starts at or before ours.
_OVERLAPPED = """
SELECT start, count, data FROM tk_heap_segments s
WHERE thread = :heap AND log = :log AND start < :stop AND start + count > :start
    AND start >= coalesce((SELECT max(start) FROM tk_heap_segments
        WHERE thread = :heap AND log = :log AND start <= :start), 0)
"""
_SEGMENTS = ManyRows(_insert("tk_heap_segments"), "(?, ?, ?, ?, ?)")
_NO_STEP = -(2**63)  # (no step has so many digits: see `metadata`)
_CHECKPOINTS = ManyRows(
    _insert("tk_checkpoints", "INSERT OR REPLACE"),
    "(?, ?, ?, ?, nullif(?, 0), nullif(?, 0), nullif(?, 0), ?,"
    f" nullif(?, ''), nullif(?, {_NO_STEP}), nullif(?, ''), nullif(?, ''),"
    " nullif(?, 0), nullif(?, 0), ?)",
)
_WRITES = ManyRows(
    _insert("tk_writes"),
    "(?, ?, ?, ?, nullif(?, 0), nullif(?, 0), ?, nullif(?, ''), ?)",
)
_LABELS = ManyRows(
    "INSERT OR REPLACE INTO tk_labels (thread, beginning, label) VALUES {rows}", "(?, ?, ?)"
)


class _Columns:
    """UPDATE and INSERT statements for a set of columns of `tk_threads`.

    SQLite rewrites an index whenever one of its columns is set, changed or not. So columns that
    change together have statements of their own.
    """

    def __init__(self, *columns: str) -> None:
        columns = ("tips", *columns)  # (of every commit)
        of_one = ", ".join([f"{name} = ?" for name in columns])
        self._one = f"UPDATE tk_threads SET {of_one} WHERE number = ?"
        self._of_one = attrgetter(*columns, "number")
        names = ("number", "thread", *columns)
        new = ", ".join([f"{name} = excluded.{name}" for name in columns])
        self._many = ManyRows(
            f"INSERT INTO tk_threads ({', '.join(names)}) VALUES {{rows}}"
            f" ON CONFLICT (number) DO UPDATE SET {new}",
            f"({', '.join('?' * len(names))})",
        )
        self._of_many = attrgetter(*names)

    def set(self, db: sqlite3.Connection, threads: Sequence[KnownThread]) -> None:
        """Store these columns of the threads, and insert the new threads."""
        if len(threads) == 1 and threads[0].changed != NEW:
            db.execute(self._one, self._of_one(threads[0]))
        else:
            self._many.run(db, [self._of_many(one) for one in threads])


_TIME = ("size", "updated_at")
_ENTRY = _Columns(*_TIME, "state", "created_at", "waits_at", "revision")
_THREADS = {SIZE: _Columns("size"), TIME: _Columns(*_TIME), ENTRY: _ENTRY, NEW: _ENTRY}


# -- in order --------------------------------------------------------------------------


def add(
    db: sqlite3.Connection, batches: Sequence[Batch], known: Known
) -> list[errors.ThreadkeepError | None]:
    """Carry out batches that only add rows, in order; return the refusal of each, or None.

    Updates `known` at once; its new contents are valid only if the transaction commits.
    """
    questions = [question for batch in batches for question in _questions(known, batch)]
    damaged = _learn(db, known, questions) if questions else ()
    run = _Additions(db, known)
    refusals = [
        wrong_types("tk_threads", batch.thread) if batch.thread in damaged else run.take(batch)
        for batch in batches
    ]
    run.store()
    return refusals


# -- questions -------------------------------------------------------------------------

# A thread; a log, to find its end; a namespace and a checkpoint, to find its last write. The log
# and the namespace are optional.
_Question: TypeAlias = tuple[str, int, str | None, str]
_NO_LOG = -(2**63)
_NO_KEY = (None, "")
_write_key, _checkpoint_key = attrgetter("ns", "checkpoint_id"), attrgetter("ns", "id")


def _questions(known: Known, batch: Batch) -> list[_Question]:
    name = batch.thread
    thread, heap = known.thread(name)
    logs: dict[int, None] = {}  # (in order)
    for one in batch.segments:
        if heap is None or heap.gaps_of(one.log) is None:
            logs[one.log] = None
    keys = [*map(_write_key, batch.writes), *map(_checkpoint_key, batch.checkpoints)]
    if thread is not None:
        keys = [key for key in keys if not thread.knows(*key)]
        if not logs and not keys:
            return []
    pairs = [*zip_longest(logs, keys)] or [(None, None)]
    return [(name, _NO_LOG if log is None else log, *(key or _NO_KEY)) for log, key in pairs]


# An answer: the greatest thread number, the last `seq` on the given checkpoint, the end of the log,
# the namespace's greatest checkpoint, its greatest checkpoint with writes, and the thread's own
# columns (None for a new thread).
_NUMBER_OR_NONE = frozenset((int, type(None)))
_BYTES_OR_NONE = frozenset((bytes, type(None)))
_ID_OR_NONE = frozenset((bytes, str, type(None)))
_ABOVE_ALL = "\U0010ffff"  # replaces an unreadable id; sorts last


def _learn(db: sqlite3.Connection, known: Known, questions: Sequence[_Question]) -> set[str]:
    """Run the queries and update `known`; return the threads whose rows are damaged."""
    damaged: set[str] = set()
    for (name, log, ns, key), answer in zip(questions, _answers(db, questions), strict=True):
        last_number, seq, end, top, below, *columns = answer
        known.last_number = max(known.last_number, last_number or 0)
        thread = known.threads.get(name)
        if thread is None:
            if not _is_sound(columns):
                damaged.add(name)
                continue
            thread = known.threads[name] = _thread(name, *columns)
        if log != _NO_LOG and thread.number:
            known.heap_of(thread).gaps[log] = after(end or 0)
        if ns is not None:
            if ns not in thread.spaces:
                thread.spaces[ns] = Space(_id(top), _id(below))
            thread.spaces[ns].written[key] = seq or 0
    return damaged


def _answers(db: sqlite3.Connection, questions: Sequence[_Question]) -> Sequence[Sequence[Any]]:
    if len(questions) == 1:
        return [_answer(db, *questions[0])]
    rows = [(name, log, ns or "", pack_id(key)) for name, log, ns, key in questions]
    return _QUESTIONS.ask(db, rows)


def _answer(db: sqlite3.Connection, name: str, log: int, ns: str | None, key: str) -> Sequence[Any]:
    """Answer one question. A new connection compiles this in two thirds of the time."""
    found = db.execute(_QUESTION, (log, ns or "", ns or "", name)).fetchone()
    if found is None:
        return (*db.execute(_LAST_NUMBER).fetchone(), *[None] * 16)
    below, number, seq = found[2], found[3], None
    if ns is not None and below is not None and key <= _id(below):
        (seq,) = db.execute(_LAST_SEQ.format("?", "?", "?"), (number, ns, pack_id(key))).fetchone()
    return (None, seq, *found)


def _thread(name: str, number: int | None, *columns: Any) -> KnownThread:
    if number is None:
        return KnownThread(name, is_whole=True)
    heap, generation, deleted_at, life, created_at, updated_at, size, revision, *rest = columns
    own = (heap, generation or 0, deleted_at, life or 0, created_at, updated_at)
    state, waits_at, tips = rest
    last = (size or 0, revision or 0, state, waits_at, unpack_tips(tips))
    is_whole = tips is not None and len(tips) == len(NO_TIPS)
    return KnownThread(name, number, *own, *last, tips if is_whole else NO_TIPS)


def _id(packed: bytes | str | None) -> str:
    try:
        return "" if packed is None else unpack_id(packed)
    except (TypeError, ValueError):
        return _ABOVE_ALL


def _is_sound(columns: Sequence[Any]) -> bool:
    *numbers, _, waits_at, tips = columns
    is_sound = type(waits_at) in _ID_OR_NONE and type(tips) in _BYTES_OR_NONE
    return is_sound and _NUMBER_OR_NONE.issuperset(map(type, numbers))


# -- a run of batches ------------------------------------------------------------------


class _Additions:
    """The rows that a run of batches adds. Everything that the checks need is in `known`."""

    def __init__(self, db: sqlite3.Connection, known: Known) -> None:
        self._db = db
        self._known = known
        self._threads: dict[str, KnownThread] = {}
        self._segments: list[tuple[Any, ...]] = []
        self._checkpoints: list[tuple[Any, ...]] = []
        self._writes: list[tuple[Any, ...]] = []
        self._labels: dict[tuple[int, str], str] = {}

    def take(self, batch: Batch) -> errors.ThreadkeepError | None:
        """Check a batch and collect its rows, or return its refusal."""
        name, known = batch.thread, self._known
        thread = known.threads[name]
        try:
            check_state(batch, thread.generation, thread.named, thread.life)
        except (errors.ThreadDeletedError, errors.StaleThreadError) as refusal:
            return refusal
        heap = known.heap_of(thread)
        if (batch.segments or batch.drop_segments) and not self._take_segments(thread, heap, batch):
            return errors.SegmentTakenError(thread=name)
        if not thread.number:
            known.last_number += 1
            thread.number = thread.heap = known.last_number
            thread.changed = NEW
            known.heaps[thread.heap] = heap
        tip = tip_of(batch)
        if tip not in thread.named:
            thread.named, thread.tips = named_after(thread.named, tip), pack_tips(tip, thread.tips)
        thread.changed = thread.changed or SIZE
        self._threads[name] = thread
        for row in batch.checkpoints:
            self._checkpoints.append(_checkpoint(thread.number, row))
            thread.add_row(heap, row, batch)
        for write in batch.writes:
            self._writes.append(_write(thread.number, write, thread.add_write(write)))
        if batch.touch is not None:
            thread.tell(batch.touch, batch.now)
            if thread.has_entry:
                for label in batch.touch.labels:
                    self._labels[thread.number, label_prefix(label)] = label
                    thread.edited()
        return None

    def _take_segments(self, thread: KnownThread, heap: KnownHeap, batch: Batch) -> bool:
        """Collect a batch's drops and segments. Returns False, without effect, on an overlap."""
        known, drops = self._known, batch.drop_segments
        number = thread.heap or known.last_number + 1
        all_fit = known.recent.drop(number, drops)
        segments = known.recent.without(number, batch.segments)
        gaps: dict[int, Gaps] = {}
        ranges = _ranges(drops) if drops and all_fit else []
        for log, start, stop in ranges:
            before = gaps.get(log) or heap.gaps_of(log)
            if before is not None:  # (else the next segment of the log asks)
                gaps[log] = emptied(before, start, stop)
        for log, start, count, _ in segments:
            before = gaps.get(log) or heap.gaps_of(log) or NO_SEGMENTS
            gaps[log], fits = filled(before, start, start + count)
            all_fit = all_fit and fits
        if all_fit:
            self._drop(number, ranges)
            self._segments += [_segment(number, one) for one in segments]
        elif not self._replace(number, segments, drops):
            return False
        known.recent.add(number, segments)
        heap.gaps |= gaps
        for log, _, _ in drops:
            heap.dropped(log)
        return True

    def _drop(self, number: int, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Drop all segments in ranges of logs, which are all known."""
        if ranges:
            self.store()  # (a dropped segment may be new)
            for log, start, stop in ranges:
                self._db.execute(_DROP_RANGE, (number, log, start, stop))

    def _replace(
        self, number: int, segments: Sequence[Segment], drops: Sequence[tuple[int, int, int]]
    ) -> bool:
        """Drop and add segments of a heap at once. Returns False, without effect, on an overlap."""
        db = self._db
        self.store()
        db.execute("SAVEPOINT tk_segments")
        db.executemany(_DROP_SEGMENT, [(number, *place) for place in drops])
        fits = all(self._fits(number, one) for one in segments)
        if not fits:
            db.execute("ROLLBACK TO tk_segments")
        db.execute("RELEASE tk_segments")
        return fits

    def _fits(self, number: int, one: Segment) -> bool:
        """Add a segment unless it is stored already; False if it overlaps other segments."""
        place = {"heap": number, "log": one.log, "start": one.start, "stop": one.stop}
        found = self._db.execute(_OVERLAPPED, place).fetchall()
        if not found:
            _SEGMENTS.run(self._db, [_segment(number, one)])
        return found in ([], [(one.start, one.count, one.data)])

    def store(self) -> None:
        """Execute the statements for the collected rows."""
        db = self._db
        if self._segments:
            _SEGMENTS.run(db, sorted(self._segments, key=_place))
            self._segments = []
        changed: dict[int, list[KnownThread]] = {}
        for thread in self._threads.values():
            if thread.changed:
                changed.setdefault(thread.changed, []).append(thread)
        for kind, threads in changed.items():
            _THREADS[kind].set(db, threads)
            for thread in threads:
                thread.changed = NOTHING
        if self._checkpoints:
            _CHECKPOINTS.run(db, self._checkpoints)
            self._checkpoints = []
        if self._writes:
            _WRITES.run(db, self._writes)
            self._writes = []
        if self._labels:
            _LABELS.run(db, [(*key, label) for key, label in self._labels.items()])
            self._labels = {}


_place = itemgetter(0, 1, 2)


def _ranges(places: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join places (log, start, count) that follow one another; return log, start and stop."""
    found: list[tuple[int, int, int]] = []
    for log, start, count in sorted(places):
        first = found.pop()[1] if found and found[-1][::2] == (log, start) else start
        found.append((log, first, start + count))
    return found


# -- rows ------------------------------------------------------------------------------


def _blob(value: bytes | str) -> bytes | bytearray | str:
    return bytearray(value) if type(value) is bytes else value


def _segment(heap: int, one: Segment) -> tuple[Any, ...]:
    return (heap, one.log, one.start, one.count, _blob(one.data))


def _checkpoint(number: int, row: CheckpointRow) -> tuple[Any, ...]:
    source, step, text = split_metadata(row.metadata)
    return (
        number,
        row.ns,
        _blob(pack_id(row.id)),
        None if row.parent is None else _blob(pack_id(row.parent)),
        row.run,
        row.seen,
        row.flags,
        row.ts,
        source,
        step if source else _NO_STEP,
        text,
        "" if row.exact is None else row.exact,
        row.key_log,
        row.key_pos,
        _blob(row.manifest),
    )


def _write(number: int, row: WriteRow, seq: int) -> tuple[Any, ...]:
    return (
        number,
        row.ns,
        _blob(pack_id(row.checkpoint_id)),
        seq,
        row.run,
        row.seen,
        _blob(pack_id(row.task_id)),
        row.task_path,
        _blob(row.body),
    )
