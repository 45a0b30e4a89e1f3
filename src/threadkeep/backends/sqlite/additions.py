"""Batches that add rows and drop segments: checked together, stored by few statements.

The driver lets go of the interpreter's lock around every statement, and a busy program
may be slow to give it back. So a run of batches is one question about all of their threads,
checks in Python, and one statement for each table that gets rows.

Invariants: the caller has begun a transaction that nobody else can write beside; each batch
finds what those before it left; one that is refused has added nothing, and leaves the others
alone; values reach SQL as bound parameters only.
"""
# ruff: noqa: S608 - texts are put together from constants of this module only

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from threadkeep.backends.sqlite import metadata
from threadkeep.backends.sqlite.failures import DAMAGED
from threadkeep.backends.sqlite.ids import pack_id, unpack_id
from threadkeep.backends.sqlite.statements import ManyRows
from threadkeep.engine.labels import beginning_of
from threadkeep.engine.lifecycle import State
from threadkeep.engine.model import Batch
from threadkeep.errors import (
    CorruptionError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from threadkeep.engine.entries import Move, Touch
    from threadkeep.engine.model import Change, CheckpointRow, Segment, WriteRow

_Place: TypeAlias = tuple[int, int, int, int]  # heap, log, start, count

# -- statements ------------------------------------------------------------------------
# A bound None takes the driver longer than a number: 0 and '' are made NULL by SQLite.

# Stored segments never overlap: the last that starts at or before ours is the first to look at.
_QUESTIONS = ManyRows(
    """
    SELECT
        (SELECT max(number) FROM tk_threads),
        (SELECT group_concat(CAST(s.start AS INTEGER) || '+' || CAST(s.count AS INTEGER))
            FROM tk_heap_segments s
            WHERE s.thread = coalesce(t.heap, t.number) AND s.log = q.column2
                AND s.start < q.column4 AND s.start + s.count > q.column3
                AND s.start >= coalesce(
                    (SELECT max(p.start) FROM tk_heap_segments p
                        WHERE p.thread = coalesce(t.heap, t.number) AND p.log = q.column2
                            AND p.start <= q.column3),
                    0)),
        (SELECT max(w.seq) FROM tk_writes w
            WHERE w.thread = t.number AND w.ns = q.column5 AND w.checkpoint = q.column6),
        t.number, coalesce(t.heap, t.number), t.generation, t.deleted_at,
        t.created_at, t.updated_at, t.size, t.revision, t.state, t.waits_at
    FROM (VALUES {rows}) q LEFT JOIN tk_threads t ON t.thread = q.column1
    """,
    "(?, ?, ?, ?, ?, ?)",
)
_SAME_DATA = """
SELECT 1 FROM tk_heap_segments WHERE thread = ? AND log = ? AND start = ? AND count = ? AND data = ?
"""
_DROP_SEGMENTS = ManyRows(
    "DELETE FROM tk_heap_segments WHERE {rows}",
    "(thread = ? AND log = ? AND start = ? AND count = ?)",
    " OR ",
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


def _of_threads(*columns: str) -> tuple[ManyRows, Callable[[_Thread], tuple[Any, ...]]]:
    """Return the statement that sets columns of threads, and its row for a thread.

    It adds the threads that are new. An index is written whenever one of its columns is set,
    changed or not: so there is a statement for each few columns that change together.
    """
    names = ("number", "thread", *columns)
    new = ", ".join([f"{name} = excluded.{name}" for name in columns])
    statement = ManyRows(
        f"INSERT INTO tk_threads ({', '.join(names)}) VALUES {{rows}}"
        f" ON CONFLICT (number) DO UPDATE SET {new}",
        f"({', '.join('?' * len(names))})",
    )
    return statement, attrgetter(*names)


_NOTHING, _SIZE, _TIME, _ENTRY = range(4)  # what of a thread changes: each includes those before
_THREADS = {
    _SIZE: _of_threads("size"),
    _TIME: _of_threads("size", "updated_at"),
    _ENTRY: _of_threads("size", "updated_at", "state", "created_at", "waits_at", "revision"),
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


def add(db: sqlite3.Connection, batches: Sequence[Batch]) -> list[ThreadkeepError | None]:
    """Carry out batches that `suffice`, in order.

    Returns:
        For each batch None, or the `ThreadDeletedError`, `StaleThreadError` or
        `SegmentTakenError` that it was refused with.

    Raises:
        CorruptionError, DRIVER_ERRORS: roll back to where this began.
    """
    asked = [_questions(batch) for batch in batches]
    answers = _QUESTIONS.run(db, [question for questions in asked for question in questions])
    run = _Run(db)
    refusals = []
    start = 0
    for batch, questions in zip(batches, asked, strict=True):
        stop = start + len(questions)
        refusals.append(run.take(batch, answers[start:stop]))
        start = stop
    run.store()
    return refusals


_ASKS_NO_SEGMENT = (0, 0, 0)
_ASKS_NO_WRITE = ("", 0)


def _questions(batch: Batch) -> list[tuple[Any, ...]]:
    """Return a question for each segment and each write, at least one of the thread."""
    thread = batch.thread
    return [
        (
            thread,
            *(_ASKS_NO_SEGMENT if one is None else (one.log, one.start, one.start + one.count)),
            *(_ASKS_NO_WRITE if row is None else (row.ns, pack_id(row.checkpoint_id))),
        )
        for one, row in zip_longest(batch.segments, batch.writes)
    ] or [(thread, *_ASKS_NO_SEGMENT, *_ASKS_NO_WRITE)]


# An answer: the greatest number of all threads, what is stored in the segment's way, the last
# `seq` on the write's checkpoint, and the thread's own columns, which are None where it is new.
_OVERLAPS, _LAST_SEQ, _COLUMNS = 1, 2, 3
_NUMBER_OR_NONE = frozenset((int, type(None)))
_ID_OR_NONE = frozenset((bytes, str, type(None)))


@dataclass(slots=True)
class _Thread:
    """A thread's row, as the run leaves it."""

    thread: str
    number: int
    heap: int
    generation: int
    deleted_at: int | None
    created_at: int | None
    updated_at: int | None
    size: int
    revision: int
    state: str | None
    waits_at: bytes | str | None
    changed: int

    @property
    def has_entry(self) -> bool:
        """True if the registry knows the thread, and not as deleted."""
        return self.state is not None and self.state != State.DELETED

    def tell(self, touch: Touch, now: int) -> None:
        """Apply a touch, but for its labels. See `Touch`."""
        if touch.size or touch.whole:
            self.size = touch.size + (0 if touch.whole else self.size)
            self.changed = self.changed or _SIZE
        for move in touch.moves:
            if (self.state or "") in move.sources and self._is_past(move):
                self._move(move, now if touch.at is None else touch.at)
        late = self.updated_at is not None and touch.at and self.updated_at < touch.at
        if late and self.has_entry:
            self.updated_at = touch.at
            self.changed = max(self.changed, _TIME)

    def _is_past(self, move: Move) -> bool:
        """Return True if nothing waits that the move does not end."""
        if self.waits_at is None:
            return True
        waits_at = unpack_id(self.waits_at)
        return waits_at < move.checkpoint or (move.same and waits_at == move.checkpoint)

    def _move(self, move: Move, at: int) -> None:
        if not self.has_entry:
            self.created_at = self.updated_at = at
        self.state = move.target
        self.waits_at = pack_id(move.checkpoint) if move.waits else None
        self.edited()

    def edited(self) -> None:
        """Note a change that a fence notices."""
        self.revision += 1
        self.changed = _ENTRY


class _Run:
    """The rows that a run of batches adds."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._threads: dict[str, _Thread] = {}
        self._last_number = 0
        self._segments = _Segments(db)
        self._checkpoints: list[tuple[Any, ...]] = []
        self._writes: list[tuple[Any, ...]] = []
        self._last_seqs: dict[tuple[int, str, str], int] = {}
        self._labels: dict[tuple[int, str], str] = {}

    def take(self, batch: Batch, answers: Sequence[tuple[Any, ...]]) -> ThreadkeepError | None:
        """Check a batch and take its rows, or return its refusal."""
        name = batch.thread
        thread = self._threads.get(name)
        if thread is None:
            if not _is_sound(answers[0]):
                return _damaged(name)
            thread = self._found(name, answers[0])
        if batch.born is not None and is_deleted(thread.deleted_at, batch.born):
            return ThreadDeletedError(thread=name)
        if batch.generation is not None and batch.generation != thread.generation:
            return StaleThreadError(thread=name)
        if (batch.segments or batch.drop_segments) and not self._segments.take(
            thread.heap, batch, answers
        ):
            return SegmentTakenError(thread=name)
        self._threads[name] = thread
        self._last_number = max(self._last_number, thread.number)
        for new in batch.checkpoints:
            self._checkpoints.append(_checkpoint(thread.number, new))
        for row, answer in zip(batch.writes, answers, strict=False):
            seq = self._next_seq(thread.number, row, answer[_LAST_SEQ] or 0)
            self._writes.append(_write(thread.number, row, seq))
        if batch.touch is not None:
            self._tell(thread, batch.touch, batch.now)
        return None

    def _found(self, name: str, answer: tuple[Any, ...]) -> _Thread:
        """Return the thread as it is stored, or a new one."""
        number, heap, generation, *rest = answer[_COLUMNS:]
        deleted_at, created_at, updated_at, size, revision, state, waits_at = rest
        changed = _NOTHING
        if number is None:
            number = heap = max(self._last_number, answer[0] or 0) + 1
            changed = _SIZE
        return _Thread(
            thread=name,
            number=number,
            heap=heap,
            generation=generation or 0,
            deleted_at=deleted_at,
            created_at=created_at,
            updated_at=updated_at,
            size=size or 0,
            revision=revision or 0,
            state=state,
            waits_at=waits_at,
            changed=changed,
        )

    def _next_seq(self, number: int, row: WriteRow, stored: int) -> int:
        """Return the `seq` of a write that comes now, behind the `stored` ones."""
        key = (number, row.ns, row.checkpoint_id)
        seq = self._last_seqs[key] = self._last_seqs.get(key, stored) + 1
        return seq

    def _tell(self, thread: _Thread, touch: Touch, now: int) -> None:
        thread.tell(touch, now)
        if thread.has_entry:
            for label in touch.labels:
                self._labels[thread.number, beginning_of(label)] = label
                thread.edited()

    def store(self) -> None:
        """Execute what was taken."""
        db = self._db
        self._segments.store()
        for changed, (statement, row) in _THREADS.items():
            statement.run(
                db, [row(one) for one in self._threads.values() if one.changed == changed]
            )
        _CHECKPOINTS.run(db, self._checkpoints)
        _WRITES.run(db, self._writes)
        _LABELS.run(db, [(*key, label) for key, label in self._labels.items()])


def _is_sound(answer: tuple[Any, ...]) -> bool:
    """Tell whether the thread's columns have the types that they are to have."""
    numbers = _NUMBER_OR_NONE.issuperset(map(type, answer[_COLUMNS:-2]))
    return numbers and type(answer[-1]) in _ID_OR_NONE


def _damaged(thread: str) -> CorruptionError:
    return CorruptionError(
        "A row of tk_threads holds values of the wrong types.", hint=DAMAGED, thread=thread
    )


def is_deleted(deleted_at: int | None, born: int) -> bool:
    """Tell whether a thread was deleted after something of it was born."""
    return deleted_at is not None and deleted_at >= born


class _Segments:
    """The segments that a run drops and adds, over those that are stored."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._dropped: set[_Place] = set()
        # By heap and log: in order, and apart from each other.
        self._added: dict[tuple[int, int], list[Segment]] = {}

    def take(self, heap: int, batch: Batch, answers: Sequence[tuple[Any, ...]]) -> bool:
        """Take a batch's drops and segments; False, and nothing is taken, if one overlaps."""
        dropped: set[_Place] = set()
        added: dict[tuple[int, int], list[Segment]] = {}
        for log, start, count in batch.drop_segments:
            line = self._line(added, (heap, log))
            same = [one for one in line if (one.start, one.count) == (start, count)]
            if same:
                line.remove(same[0])
            else:
                dropped.add((heap, log, start, count))
        for one, answer in zip(batch.segments, answers, strict=False):
            overlaps = answer[_OVERLAPS]
            stored = overlaps and self._overlapped(heap, one.log, overlaps, dropped)
            if not stored:
                if not _insert(self._line(added, (heap, one.log)), one):
                    return False
            elif stored != [(one.start, one.count)] or not self._is_stored(heap, one):
                return False
        self._dropped |= dropped
        self._added |= added
        return True

    def _line(
        self, added: dict[tuple[int, int], list[Segment]], key: tuple[int, int]
    ) -> list[Segment]:
        """Return what the run adds to a log, as a list of the batch's own."""
        if key not in added:
            added[key] = [*self._added.get(key, ())]
        return added[key]

    def _overlapped(
        self, heap: int, log: int, places: str, dropped: set[_Place]
    ) -> list[tuple[int, int]]:
        """Return the stored places, as a question tells them, that nobody has dropped."""
        pairs = [place.split("+") for place in places.split(",")]
        found = [(int(start), int(count)) for start, count in pairs]
        gone = self._dropped | dropped
        return [place for place in found if (heap, log, *place) not in gone]

    def _is_stored(self, heap: int, one: Segment) -> bool:
        place = (heap, one.log, one.start, one.count, one.data)
        return self._db.execute(_SAME_DATA, place).fetchone() is not None

    def store(self) -> None:
        """Execute what was taken."""
        _DROP_SEGMENTS.run(self._db, sorted(self._dropped))
        rows = [
            (*key, one.start, one.count, one.data)
            for key, line in self._added.items()
            for one in line
        ]
        _SEGMENTS.run(self._db, rows)


def _insert(line: list[Segment], one: Segment) -> bool:
    """Insert a segment in its place; False if it overlaps another one than its equal."""
    if not line or line[-1].stop <= one.start:
        line.append(one)
        return True
    place = bisect_left(line, one.stop, key=attrgetter("start"))
    if place and line[place - 1].stop > one.start:
        return line[place - 1] == one
    line.insert(place, one)
    return True


# -- rows ------------------------------------------------------------------------------


def _checkpoint(number: int, row: CheckpointRow) -> tuple[Any, ...]:
    source, step, text = metadata.split(row.metadata)
    return (
        number,
        row.ns,
        pack_id(row.id),
        None if row.parent is None else pack_id(row.parent),
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
        row.manifest,
    )


def _write(number: int, row: WriteRow, seq: int) -> tuple[Any, ...]:
    return (
        number,
        row.ns,
        pack_id(row.checkpoint_id),
        seq,
        row.run,
        row.seen,
        pack_id(row.task_id),
        row.task_path,
        row.body,
    )
