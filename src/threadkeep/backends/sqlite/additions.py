"""Batches that only add rows and drop segments: checked together, stored by few statements.

A run of batches is one question about all of their threads, checks in Python, and one statement
for each table that gets rows. Each batch sees what those before it left; one that is refused adds
nothing. The caller has begun a write transaction.
"""
# ruff: noqa: S608 - texts are put together from constants of this module only

from __future__ import annotations

from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from threadkeep.backends.sqlite.failures import DAMAGED
from threadkeep.backends.sqlite.known import (
    ENTRY,
    NEW,
    NOTHING,
    SIZE,
    TIME,
    Heap,
    Known,
    Line,
    Place,
    Space,
    Thread,
    ThreadRow,
    add_row,
    add_write,
    insert,
)
from threadkeep.backends.sqlite.records import pack_id, split_metadata, unpack_id
from threadkeep.backends.sqlite.statements import ManyRows
from threadkeep.engine.model import Batch
from threadkeep.engine.thread_entry import label_prefix
from threadkeep.errors import (
    CorruptionError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from threadkeep.engine.model import Change, CheckpointRow, Segment, WriteRow
    from threadkeep.engine.thread_entry import Touch

_Stored: TypeAlias = tuple[int, int, int]  # log, start, stop

# -- statements ------------------------------------------------------------------------
# A bound None or bytes takes the driver longer than a number or a bytearray, for it looks for an
# adapter: 0 and '' are made NULL by SQLite.

# Stored segments never overlap: the last that starts at or before ours is the first to look at.
_QUESTIONS = ManyRows(
    """
    SELECT
        (SELECT max(number) FROM tk_threads),
        (SELECT group_concat(CAST(s.start AS INTEGER) || '+' || CAST(s.count AS INTEGER))
            FROM tk_heap_segments s
            WHERE s.thread = coalesce(t.heap, t.number) AND s.log = q.column2
                AND s.start >= coalesce(
                    (SELECT max(p.start) FROM tk_heap_segments p
                        WHERE p.thread = coalesce(t.heap, t.number) AND p.log = q.column2
                            AND p.start <= q.column3),
                    0)),
        (SELECT max(c.id) FROM tk_checkpoints c WHERE c.thread = t.number AND c.ns = q.column4),
        (SELECT max(w.checkpoint) FROM tk_writes w
            WHERE w.thread = t.number AND w.ns = q.column4),
        (SELECT max(w.seq) FROM tk_writes w
            WHERE w.thread = t.number AND w.ns = q.column4 AND w.checkpoint = q.column5),
        t.number, coalesce(t.heap, t.number), t.generation, t.deleted_at,
        t.created_at, t.updated_at, t.size, t.revision, t.state, t.waits_at
    FROM (VALUES {rows}) q LEFT JOIN tk_threads t ON t.thread = q.column1
    """,
    "(?, ?, ?, ?, ?)",
)
_SAME_DATA = """
SELECT 1 FROM tk_heap_segments WHERE thread = ? AND log = ? AND start = ? AND count = ? AND data = ?
"""
_DROP_SEGMENTS = (
    "DELETE FROM tk_heap_segments WHERE thread = ? AND log = ? AND start BETWEEN ? AND ?"
)
_SEGMENTS = ManyRows(
    "INSERT INTO tk_heap_segments (thread, log, start, count, data) VALUES {rows}",
    "(?, ?, ?, ?, ?)",
)
_NO_STEP = -(2**63)  # (no step has so many digits: see `metadata`)
_CHECKPOINTS = ManyRows(
    """
    INSERT OR REPLACE INTO tk_checkpoints (thread, ns, id, parent, run, seen, flags, ts,
        source, step, metadata, exact, key_log, key_pos, manifest) VALUES {rows}
    """,
    "(?, ?, ?, ?, nullif(?, 0), nullif(?, 0), nullif(?, 0), ?,"
    f" nullif(?, ''), nullif(?, {_NO_STEP}), nullif(?, ''), nullif(?, ''),"
    " nullif(?, 0), nullif(?, 0), ?)",
)
_WRITES = ManyRows(
    """
    INSERT INTO tk_writes (thread, ns, checkpoint, seq, run, seen, task, path, body)
    VALUES {rows}
    """,
    "(?, ?, ?, ?, nullif(?, 0), nullif(?, 0), ?, nullif(?, ''), ?)",
)
_LABELS = ManyRows(
    "INSERT OR REPLACE INTO tk_labels (thread, beginning, label) VALUES {rows}", "(?, ?, ?)"
)


class _Columns:
    """Statements that set columns of threads.

    An index is written whenever one of its columns is set, changed or not: so there are statements
    for each few columns that change together.
    """

    def __init__(self, *columns: str) -> None:
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

    def set(self, db: sqlite3.Connection, threads: Sequence[ThreadRow]) -> None:
        """Set them as these threads have them, and add those that are new."""
        if len(threads) == 1 and threads[0].changed != NEW:
            db.execute(self._one, self._of_one(threads[0]))
        else:
            self._many.run(db, [self._of_many(one) for one in threads])


_TIME = ("size", "updated_at")
_ENTRY = _Columns(*_TIME, "state", "created_at", "waits_at", "revision")
_THREADS = {
    SIZE: _Columns("size"),
    TIME: _Columns(*_TIME),
    ENTRY: _ENTRY,
    NEW: _ENTRY,
}


# -- a run of batches ------------------------------------------------------------------


def suffice(change: Change) -> bool:
    """Tell whether the change is a batch of rows to add and segments to drop, and no more."""
    return type(change) is Batch and not (
        change.fences
        or change.drop_checkpoints
        or change.drop_writes
        or change.hide_checkpoints
        or change.drop_unreadable
        or change.entry
        or change.bump
    )


def add(
    db: sqlite3.Connection, batches: Sequence[Batch], known: Known
) -> list[ThreadkeepError | None]:
    """Carry out batches that `suffice`, in order.

    Args:
        db: the connection.
        batches: the batches.
        known: what the connection knows. It is brought up to date: right if this is committed.

    Returns:
        For each batch None, or the `ThreadDeletedError`, `StaleThreadError` or
        `SegmentTakenError` that it was refused with.

    Raises:
        CorruptionError, DRIVER_ERRORS: roll back to where this began.
    """
    questions = [question for batch in batches for question in _questions(known, batch)]
    damaged = _learn(db, known, questions) if questions else ()
    run = _Run(db, known)
    refusals = [
        _damaged(batch.thread) if batch.thread in damaged else run.take(batch) for batch in batches
    ]
    run.store()
    return refusals


# -- questions -------------------------------------------------------------------------

# Of a thread: the segments of a log from a position on, and the writes on a checkpoint (of a
# namespace); either may be left out.
_Question: TypeAlias = tuple[str, tuple[int, int] | None, tuple[str, str] | None]


def _questions(known: Known, batch: Batch) -> list[_Question]:
    """Return what must be asked before the batch is taken."""
    name = batch.thread
    thread, heap = known.thread(name)
    starts: dict[int, int] = {}
    wanted = [(one.log, one.start) for one in batch.segments]
    if batch.drop_segments:
        wanted += [(log, start) for log, start, _ in batch.drop_segments]
    for log, start in wanted:
        if (heap is None or not heap.knows(log, start)) and start <= starts.get(log, start):
            starts[log] = start
    keys = [(row.ns, row.checkpoint_id) for row in batch.writes]
    keys += [(row.ns, row.id) for row in batch.checkpoints]
    if thread is not None:
        keys = [key for key in keys if not thread.knows(*key)]
    if thread is not None and not starts and not keys:
        return []
    return [(name, *pair) for pair in zip_longest(starts.items(), keys)] or [(name, None, None)]


# An answer: the greatest number of all threads, the segments, the namespace's greatest
# checkpoint, and greatest with writes, the last `seq` on the checkpoint that was asked for, and
# the thread's own columns, which are None where it is new.
_COLUMNS = 5
_NO_SEGMENT = (-1, 0)
_NO_KEY = ("", 0)
_NUMBER_OR_NONE = frozenset((int, type(None)))
_ID_OR_NONE = frozenset((bytes, str, type(None)))
_ABOVE_ALL = "\U0010ffff"  # in place of an id that cannot be read: nothing is above it


def _learn(db: sqlite3.Connection, known: Known, questions: Sequence[_Question]) -> set[str]:
    """Ask, and bring what is known up to date; return the threads whose rows are damaged."""
    rows = [
        (
            name,
            *(segments or _NO_SEGMENT),
            *(_NO_KEY if key is None else (key[0], pack_id(key[1]))),
        )
        for name, segments, key in questions
    ]
    damaged: set[str] = set()
    for (name, segments, key), answer in zip(questions, _QUESTIONS.ask(db, rows), strict=True):
        known.last_number = max(known.last_number, answer[0] or 0)
        thread = known.threads.get(name)
        if thread is None:
            if not _is_sound(answer):
                damaged.add(name)
                continue
            thread = known.threads[name] = Thread(_thread_row(name, answer[_COLUMNS:]))
        if segments is not None and thread.row.number:
            lines, (log, start) = known.heap_of(thread.row).lines, segments
            if log not in lines or start < lines[log].since:
                lines[log] = Line(start, _places(answer[1]))
        if key is not None:
            ns, checkpoint = key
            if ns not in thread.spaces:
                thread.spaces[ns] = Space(_id(answer[2]), _id(answer[3]))
            space = thread.spaces[ns]
            space.written[checkpoint] = answer[4] or 0
    return damaged


def _thread_row(name: str, columns: tuple[Any, ...]) -> ThreadRow:
    number, heap, generation, deleted_at, created_at, updated_at, size, revision, *rest = columns
    if number is None:
        return ThreadRow(name)
    times = (deleted_at, created_at, updated_at)
    return ThreadRow(name, number, heap, generation or 0, *times, size or 0, revision or 0, *rest)


def _places(text: str | None) -> list[Place]:
    """Return the places of segments, as an answer tells them."""
    pairs = [place.split("+") for place in text.split(",")] if text else []
    return sorted([(int(start), int(start) + int(count)) for start, count in pairs])


def _id(packed: bytes | str | None) -> str:
    try:
        return "" if packed is None else unpack_id(packed)
    except (TypeError, ValueError):
        return _ABOVE_ALL


def _is_sound(answer: tuple[Any, ...]) -> bool:
    """Tell whether the thread's columns have the types that they are to have."""
    numbers = _NUMBER_OR_NONE.issuperset(map(type, answer[_COLUMNS:-2]))
    return numbers and type(answer[-1]) in _ID_OR_NONE


def _damaged(thread: str) -> CorruptionError:
    return CorruptionError(
        "A row of tk_threads holds values of the wrong types.", hint=DAMAGED, thread=thread
    )


# -- a run of batches ------------------------------------------------------------------


class _Run:
    """The rows that a run of batches adds; all that they need is known."""

    def __init__(self, db: sqlite3.Connection, known: Known) -> None:
        self._db = db
        self._known = known
        self._threads: dict[str, ThreadRow] = {}
        self._dropped: list[tuple[int, int, int, int]] = []  # heap, log, start, stop
        self._added: dict[tuple[int, int, int], Segment] = {}  # by heap, log, start
        self._checkpoints: list[tuple[Any, ...]] = []
        self._writes: list[tuple[Any, ...]] = []
        self._labels: dict[tuple[int, str], str] = {}

    def take(self, batch: Batch) -> ThreadkeepError | None:
        """Check a batch and take its rows, or return its refusal."""
        name, known = batch.thread, self._known
        thread = known.threads[name]
        row = thread.row
        if batch.born is not None and row.was_deleted(batch.born):
            return ThreadDeletedError(thread=name)
        if batch.generation is not None and batch.generation != row.generation:
            return StaleThreadError(thread=name)
        heap = known.heap_of(row)
        if (batch.segments or batch.drop_segments) and not self._take_segments(row, heap, batch):
            return SegmentTakenError(thread=name)
        if not row.number:
            known.last_number += 1
            row.number = row.heap = known.last_number
            row.changed = NEW
            known.heaps[row.heap] = heap
        self._threads[name] = row
        self._take_rows(thread, heap, batch)
        if batch.touch is not None:
            self._tell(row, batch.touch, batch.now)
        return None

    def _take_segments(self, row: ThreadRow, heap: Heap, batch: Batch) -> bool:
        """Take a batch's drops and segments; False, and nothing is taken, if one overlaps."""
        places = {one.log: [*heap.line(one.log).places] for one in batch.segments}
        dropped = _drop(places, heap, batch) if batch.drop_segments else ()
        added: list[Segment] = []
        for one in batch.segments:
            place = (one.start, one.start + one.count)
            there = insert(places[one.log], place)
            if there is None:
                added.append(one)
            elif there != place or not self._is_same(row.heap, one, added):
                return False
        for log, line in places.items():
            heap.line(log).places = line
        number = row.heap or self._known.last_number + 1
        for log, start, stop in dropped:
            if self._added.pop((number, log, start), None) is None:
                self._dropped.append((number, log, start, stop))
        for one in added:
            self._added[number, one.log, one.start] = one
        if dropped:
            heap.move_keyframes(batch)
        return True

    def _is_same(self, heap: int, one: Segment, added: Sequence[Segment]) -> bool:
        """Tell whether the segment that is stored in a place, or will be, is the same."""
        if one in added:
            return True
        mine = self._added.get((heap, one.log, one.start))
        if mine is not None:
            return mine == one
        place = (heap, one.log, one.start, one.count, one.data)
        return self._db.execute(_SAME_DATA, place).fetchone() is not None

    def _take_rows(self, thread: Thread, heap: Heap, batch: Batch) -> None:
        row = thread.row
        for new in batch.checkpoints:
            self._checkpoints.append(_checkpoint(row.number, new))
            add_row(heap, row.thread, thread.space(new.ns), new, batch)
        for write in batch.writes:
            space, checkpoint = thread.space(write.ns), write.checkpoint_id
            seq = space.written[checkpoint] = (space.last_seq(checkpoint) or 0) + 1
            self._writes.append(_write(row.number, write, seq))
            add_write(heap, row.thread, space, write, seq)

    def _tell(self, thread: ThreadRow, touch: Touch, now: int) -> None:
        thread.tell(touch, now)
        if thread.has_entry:
            for label in touch.labels:
                self._labels[thread.number, label_prefix(label)] = label
                thread.edited()

    def store(self) -> None:
        """Execute what was taken."""
        db = self._db
        for place in _joined(self._dropped):
            db.execute(_DROP_SEGMENTS, place)
        if self._added:
            _SEGMENTS.run(
                db,
                [
                    (heap, log, start, one.count, _blob(one.data))
                    for (heap, log, start), one in sorted(self._added.items())
                ],
            )
        changed: dict[int, list[ThreadRow]] = {}
        for thread in self._threads.values():
            if thread.changed:
                changed.setdefault(thread.changed, []).append(thread)
        for kind, threads in changed.items():
            _THREADS[kind].set(db, threads)
            for thread in threads:
                thread.changed = NOTHING
        if self._checkpoints:
            _CHECKPOINTS.run(db, self._checkpoints)
        if self._writes:
            _WRITES.run(db, self._writes)
        if self._labels:
            _LABELS.run(db, [(*key, label) for key, label in self._labels.items()])


def _drop(places: dict[int, list[Place]], heap: Heap, batch: Batch) -> list[_Stored]:
    """Remove what a batch drops from the places of the heap's logs; return what was there."""
    wanted: dict[int, set[Place]] = {}
    for log, start, count in batch.drop_segments:
        wanted.setdefault(log, set()).add((start, start + count))
    dropped: list[_Stored] = []
    for log, gone in wanted.items():
        line = places[log] if log in places else heap.line(log).places
        dropped += [(log, *place) for place in line if place in gone]
        places[log] = [place for place in line if place not in gone]
    return dropped


def _joined(dropped: list[tuple[int, int, int, int]]) -> list[list[int]]:
    """Join neighbors: where there is no gap, no other segment lies in between.

    Returns:
        For each run of them the heap, the log, the first start and the last one.
    """
    runs: list[list[int]] = []
    end = (0, 0, 0)
    for heap, log, start, stop in sorted(dropped):
        if runs and end == (heap, log, start):
            runs[-1][3] = start
        else:
            runs.append([heap, log, start, start])
        end = (heap, log, stop)
    return runs


# -- rows ------------------------------------------------------------------------------


def _blob(value: bytes | str) -> bytes | bytearray | str:
    return bytearray(value) if type(value) is bytes else value


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
