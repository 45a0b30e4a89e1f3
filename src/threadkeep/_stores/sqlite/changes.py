"""Commits: a group of changes in one transaction. A change that fails leaves the others alone."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine import model
from threadkeep._core.engine.thread_entry import EntryFence
from threadkeep._stores.records import check_ends, check_state, confirm, only_adds, tie, tip_of
from threadkeep._stores.sqlite import additions, damage, threads
from threadkeep._stores.sqlite.failures import DRIVER_ERRORS
from threadkeep._stores.sqlite.known import Known
from threadkeep._stores.sqlite.records import TABLES, pack_id, pack_tips, unpack_id
from threadkeep._stores.sqlite.threads import read_thread_head
from threadkeep.errors import ConflictError, StaleThreadError, ThreadkeepError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from threadkeep._stores.sqlite.connections import Connections


# -- batches -------------------------------------------------------------------------


def _apply(db: sqlite3.Connection, batch: model.Batch) -> None:
    damage.forget_entry(db, batch)
    number = _checked(db, batch)
    if batch.entry is not None:
        threads.replace_entry(db, number, batch.entry)
    (refusal,) = additions.add(db, [batch._replace(life=None, generation=None)], Known())
    if refusal is not None:
        raise refusal
    for row in batch.replace_writes:
        key = (number, row.ns, pack_id(row.checkpoint_id), row.seq)
        db.execute(_REPLACE_WRITE, (row.body, row.task_path, *key))
    if batch.removes:
        _remove_rows(db, number, batch)
    if batch.bump_generation:
        db.execute(_BUMP, (number, number))


def _remove_rows(db: sqlite3.Connection, number: int, batch: model.Batch) -> None:
    for ns, key in batch.drop_checkpoints:
        db.execute(_DROP_CHECKPOINT, (number, ns, pack_id(key)))
    for ns, key, seq in batch.drop_writes:
        db.execute(_DROP_WRITE, (number, ns, pack_id(key), seq))
    for ns, key in batch.hide_checkpoints:
        db.execute(_HIDE, (number, ns, pack_id(key)))
    if batch.drop_unreadable:
        heap = read_thread_head(db, batch.thread).heap
        for row in batch.drop_unreadable:
            if row.table != model.THREADS:
                damage.drop(db, number, heap, row)
    db.execute(threads.RAISE_REVISION, (number,))


def _checked(db: sqlite3.Connection, batch: model.Batch) -> int:
    """Return the number of a batch's thread, after checking the batch's expectations."""
    head = read_thread_head(db, batch.thread)
    check_state(batch, head.generation, head.tips, head.life)
    number = _number(db, batch.thread)
    for fence in batch.fences:
        _check(db, batch, number, fence)
    return number


_NEW_THREAD = "INSERT INTO tk_threads (thread) VALUES (?)"
_FAMILY = "number = ? OR heap = (SELECT heap FROM tk_threads WHERE number = ?)"
_BUMP = f"UPDATE tk_threads SET generation = coalesce(generation, 0) + 1 WHERE {_FAMILY}"


def _number(db: sqlite3.Connection, thread: str) -> int:
    """Return the thread's number; a thread without one gets it now."""
    number = read_thread_head(db, thread).number
    return number or int(db.execute(_NEW_THREAD, (thread,)).lastrowid or 0)


_NEWER_HEADS = f"""
SELECT id FROM tk_checkpoints
WHERE thread = ? AND ns = ? AND id > ? AND (flags & {model.NESTED}) IS NOT {model.NESTED}
ORDER BY id DESC LIMIT ?
"""
_BEFORE_ALL = 0  # a number sorts before every text and blob
_OTHERS_WRITE = """
SELECT 1 FROM tk_writes
WHERE thread = ? AND ns = ? AND checkpoint = ? AND seq > ? AND run IS NOT ? LIMIT 1
"""
_COUNT_ROWS = f"""
WITH family AS (SELECT number FROM tk_threads WHERE {_FAMILY})
SELECT (SELECT count(*) FROM tk_checkpoints WHERE thread IN family),
       (SELECT count(*) FROM tk_writes WHERE thread IN family)
"""


def _check(db: sqlite3.Connection, batch: model.Batch, number: int, fence: model.Fence) -> None:
    thread = batch.thread
    match fence:
        case model.HeadFence(ns, expected):
            after = _BEFORE_ALL if expected is None else pack_id(expected)
            # One more than the batch's own that are there already is one too many.
            most = len(batch.checkpoints) + 1
            own = {row.id for row in batch.checkpoints if row.ns == ns}
            for (packed,) in db.execute(_NEWER_HEADS, (number, ns, after, most)).fetchall():
                if unpack_id(packed) not in own:
                    raise ConflictError(thread=thread, namespace=ns, checkpoint=unpack_id(packed))
        case model.WritesFence(ns, checkpoint, run, seen):
            key = (number, ns, pack_id(checkpoint))
            if db.execute(_OTHERS_WRITE, (*key, seen, run or None)).fetchone():
                raise ConflictError(thread=thread, namespace=ns, checkpoint=checkpoint)
        case model.RowsFence():
            if db.execute(_COUNT_ROWS, (number, number)).fetchone() != fence:
                raise ConflictError(thread=thread)
        case EntryFence(revision):
            if threads.revision(db, number) != revision:
                raise ConflictError(thread=thread)


# -- rows of a batch -----------------------------------------------------------------

_DROP_CHECKPOINT = "DELETE FROM tk_checkpoints WHERE thread = ? AND ns = ? AND id = ?"
_DROP_WRITE = "DELETE FROM tk_writes WHERE thread = ? AND ns = ? AND checkpoint = ? AND seq = ?"
_REPLACE_WRITE = """
UPDATE tk_writes SET body = ?, path = nullif(?, '')
WHERE thread = ? AND ns = ? AND checkpoint = ? AND seq = ?
"""
_HIDE = f"""
UPDATE tk_checkpoints SET flags = coalesce(flags, 0) | {model.HIDDEN}
WHERE thread = ? AND ns = ? AND id = ?
"""


# -- whole threads -------------------------------------------------------------------

_DELETE_ALL = (
    "DELETE FROM tk_checkpoints WHERE thread = ?",
    "DELETE FROM tk_writes WHERE thread = ?",
    """DELETE FROM tk_heap_segments WHERE thread = (
        SELECT coalesce(t.heap, t.number) FROM tk_threads t WHERE t.number = ?
            AND NOT EXISTS (
                SELECT 1 FROM tk_threads o WHERE o.heap = t.heap AND o.number <> t.number))""",
    # Threads that share segments must count again which parts they need.
    """UPDATE tk_threads SET generation = coalesce(generation, 0) + 1
        WHERE heap = (SELECT heap FROM tk_threads WHERE number = ?)""",
    # Shared segments stay with the other threads; this thread continues with a new, unshared heap.
    """UPDATE tk_threads SET heap = -abs(random() / 2) - 1 WHERE number = ? AND EXISTS (
        SELECT 1 FROM tk_threads o WHERE o.heap = tk_threads.heap
            AND o.number <> tk_threads.number)""",
)
_BURY = """
UPDATE tk_threads SET deleted_at = ?, generation = coalesce(generation, 0) + 1, tips = ?,
    life = coalesce(?, life) WHERE number = ?
"""
_HOLDS_CHECKPOINTS = "SELECT 1 FROM tk_checkpoints WHERE thread = ? LIMIT 1"
_HOLDS_ROWS = f"SELECT 1 FROM tk_threads t WHERE t.number = ? AND {threads.HOLDS_ROWS}"
_HEAP_OF = "(SELECT coalesce(t.heap, t.number) FROM tk_threads t WHERE t.number = ?)"


def _copying(table: str, number: str = "?") -> str:
    """SQL that copies rows; the numbers of the target and of the source are its parameters."""
    columns = TABLES[table]
    insert = f"INSERT INTO {table} (thread, {columns}) SELECT {number}, {columns}"
    return f"{insert} FROM {table} WHERE thread = {number}"


_COPY_CHECKPOINTS, _COPY_WRITES = _copying("tk_checkpoints"), _copying("tk_writes")
_COPY_ALL = (_COPY_CHECKPOINTS, _COPY_WRITES, _copying("tk_heap_segments", _HEAP_OF))


def _drop(db: sqlite3.Connection, change: model.DropThread) -> None:
    number = _checked(db, change.expected)
    _empty(db, number)
    _bury(db, number, change.now, change)
    threads.forget(db, number, change.now)
    if change.entry is not None:
        threads.replace_entry(db, number, change.entry)
    if change.rows is not None:
        _apply(db, change.rows)


def _copy(db: sqlite3.Connection, change: model.CopyThread) -> None:
    source = read_thread_head(db, change.source).number
    if source is None or not db.execute(_HOLDS_ROWS, (source,)).fetchone():
        return
    target = _emptied_target(db, change, source)
    for statement in _COPY_ALL:
        db.execute(statement, (target, source))
    _bury(db, target, None, change)
    threads.copy_entry(db, source, target, change)


def _emptied_target(
    db: sqlite3.Connection,
    change: model.CopyThread | model.ForkThread,
    source: int,
    generation: int = 0,
) -> int:
    """Return the number of the target, emptied, if the change is allowed."""
    target = _number(db, change.target)
    holds = db.execute(_HOLDS_CHECKPOINTS, (target,)).fetchone() is not None
    check_ends(change, generation, threads.revision(db, source), target_holds=holds)
    _empty(db, target)
    return target


_SET_SIZE = "UPDATE tk_threads SET size = ? WHERE number = ?"
_SHARE = "UPDATE tk_threads SET heap = ? WHERE number IN (?, ?)"
_FORK_CHECKPOINT = f"{_COPY_CHECKPOINTS} AND ns = ? AND id = ?"
_FORK_WRITE = f"{_COPY_WRITES} AND ns = ? AND checkpoint = ? AND seq = ?"


def _fork(db: sqlite3.Connection, change: model.ForkThread) -> None:
    source, generation, _, heap, *_ = read_thread_head(db, change.source)
    if source is None:
        raise StaleThreadError(thread=change.source)
    target = _emptied_target(db, change, source, generation)
    db.execute(_SHARE, (heap, source, target))
    db.executemany(
        _FORK_CHECKPOINT, [(target, source, ns, pack_id(key)) for ns, key in change.checkpoints]
    )
    db.executemany(
        _FORK_WRITE, [(target, source, ns, pack_id(key), seq) for ns, key, seq in change.writes]
    )
    db.execute(_BUMP, (source, source))
    _bury(db, target, None, change)
    threads.forget(db, target, 0)
    threads.replace_entry(db, target, change.entry)
    db.execute(_SET_SIZE, (change.entry.size, target))


def _bury(db: sqlite3.Connection, number: int, at: int | None, change: model.Change) -> None:
    """Set the tombstone of a thread whose rows were removed; None: it has none."""
    tip = tip_of(change)
    is_end = isinstance(change, model.DropThread) and change.ends
    db.execute(_BURY, (at, pack_tips(tip), tip if is_end else None, number))


def _empty(db: sqlite3.Connection, number: int) -> None:
    for statement in _DELETE_ALL:
        db.execute(statement, (number,))


_CHANGES: dict[type[model.Change], Callable[[sqlite3.Connection, Any], None]] = {
    model.Batch: _apply,
    model.DropThread: _drop,
    model.CopyThread: _copy,
    model.ForkThread: _fork,
}

_SPARE_PAGES = 16  # free pages to keep for later writes
_STEP_PAGES = 256  # pages freed at a time; other processes may commit in between
_STEPS = 4  # at most, for one commit


def commit_many(
    connections: Connections, changes: Sequence[model.Change]
) -> list[ThreadkeepError | None]:
    """Carry out the changes, in order; return the refusal of each. See `Backend`."""
    connections.open()
    with connections.write_lock:
        try:
            return _commit(connections, changes) if changes else []
        except BaseException:  # also if it was interrupted
            connections.rest_writer()
            raise


def _commit(
    connections: Connections, changes: Sequence[model.Change]
) -> list[ThreadkeepError | None]:
    try:
        in_turns = connections.known.others_commit
        db, known = connections.writer(in_turns=in_turns), connections.known
        connections.begin(db)
    except DRIVER_ERRORS as error:
        return [_mapped(error, connections) for _ in changes]
    except ThreadkeepError as error:
        return [error.fresh() for _ in changes]
    try:
        known.begin(db)
        refusals = _carry_out(db, changes, known)
        if all(refusals):
            db.execute("ROLLBACK")
        else:
            db.execute("COMMIT")
            known.keep(db)
    except DRIVER_ERRORS as error:
        connections.rest_writer()
        if len(changes) == 1:
            return [_mapped(error, connections)]
        return [refusal for change in changes for refusal in _commit_alone(connections, change)]
    for change, refusal in zip(changes, refusals, strict=True):
        is_done = refusal is None
        if is_done and (type(change) is model.DropThread or getattr(change, "drop_segments", None)):
            _give_back(db)
            break
    return refusals


def _commit_alone(connections: Connections, change: model.Change) -> list[ThreadkeepError | None]:
    tie([change])
    refusals = _commit(connections, [change])
    confirm([change], refusals)
    return refusals


def _mapped(error: Exception, connections: Connections) -> ThreadkeepError:
    failure = connections.location.failure(error)
    failure.__cause__ = error
    return failure


def _carry_out(
    db: sqlite3.Connection, changes: Sequence[model.Change], known: Known
) -> list[ThreadkeepError | None]:
    """Carry out the changes. Neighbours that only add rows share their statements."""
    refusals: list[ThreadkeepError | None] = []
    for is_plain, run in groupby(changes, only_adds):
        if is_plain:
            batches = [change for change in run if isinstance(change, model.Batch)]
            refusals += additions.add(db, batches, known)
        else:  # rarer: clear the cache, which does not follow it
            known.forget()
            refusals += [_attempt(db, change, guarded=len(changes) > 1) for change in run]
    return refusals


def _attempt(
    db: sqlite3.Connection, change: model.Change, *, guarded: bool
) -> ThreadkeepError | None:
    """Carry out one change. If it is `guarded`, a failure rolls back this change alone."""
    if guarded:
        db.execute("SAVEPOINT tk")
    failure = None
    try:
        _CHANGES[type(change)](db, change)
    except ThreadkeepError as error:
        failure = error
        if guarded:
            db.execute("ROLLBACK TO tk")
    if guarded:
        db.execute("RELEASE tk")
    return failure


def _give_back(db: sqlite3.Connection) -> None:
    """Return free pages to the file system, a little at a time."""
    # The changes are committed, so this can wait for the next time.
    with suppress(*DRIVER_ERRORS):
        for _ in range(_STEPS):
            (free,) = db.execute("PRAGMA freelist_count").fetchone()
            if free <= _SPARE_PAGES:
                return
            pages = min(free - _SPARE_PAGES, _STEP_PAGES)
            # Each step frees one page; `execute` would take only one step.
            db.executescript(f"PRAGMA incremental_vacuum({pages})")
