"""Changes to the rows in memory.

A change is checked whole before any row moves, so that one that raises has changed nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine.model import (
    NESTED,
    Batch,
    Change,
    CopyThread,
    DropThread,
    Fence,
    ForkThread,
    HeadFence,
    RowsFence,
    Segment,
    WritesFence,
)
from threadkeep._core.engine.thread_entry import EntryFence
from threadkeep._stores.memory.rows import (
    EMPTY,
    EMPTY_NAMESPACE,
    MemoryThread,
    Threads,
    bury,
    copy_entry,
    replace_entry,
    touch,
)
from threadkeep.errors import (
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadExistsError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def carry_out(threads: Threads, change: Change) -> None:
    """Carry out one change as its docstring says, all or nothing."""
    _CHANGES[type(change)](threads, change)


def _apply(threads: Threads, batch: Batch) -> None:
    known = threads.get(batch.thread)
    thread = known or MemoryThread()
    _check(batch, thread, threads)
    _move_segments(batch, thread)
    _move_rows(batch, thread)
    thread.revision += batch.removes
    if known is None:
        threads[batch.thread] = thread
        thread.heap.members.add(batch.thread)
    if batch.bump_generation:
        _bump(threads, thread)
    if batch.entry is not None:
        replace_entry(thread, batch.entry)
    if batch.touch is not None:
        touch(thread, batch.thread, batch.touch, batch.now)


def _bump(threads: Threads, thread: MemoryThread) -> None:
    for name in thread.heap.members:
        threads[name].generation += 1


def _drop(threads: Threads, change: DropThread) -> None:
    gone, before = MemoryThread(), threads.get(change.thread, EMPTY)
    _check(change.expected, before, threads)
    gone.generation = before.generation + 1
    gone.deleted_at = change.now
    before.heap.members.discard(change.thread)
    _bump(threads, before)
    gone.heap.members.add(change.thread)
    bury(gone, change.thread, before)
    if change.entry is not None:
        replace_entry(gone, change.entry)
    threads[change.thread] = gone
    if change.rows is not None:
        _apply(threads, change.rows)


def _copy(threads: Threads, change: CopyThread) -> None:
    source = threads.get(change.source, EMPTY)
    target = threads.get(change.target, EMPTY)
    if not source.holds_rows():
        return
    _check_source(change, source)
    if any(target.rows()) or source is target:
        raise ThreadExistsError(thread=change.target)
    copy = threads[change.target] = MemoryThread()
    copy.generation = target.generation + 1
    copy.add_rows(source.rows(), source.writes())
    for segment in source.segments():
        copy.logs[segment.log].put(segment)
    target.heap.members.discard(change.target)
    copy.heap.members.add(change.target)
    copy_entry(copy, change.target, source, target, change.now)


def _fork(threads: Threads, change: ForkThread) -> None:
    source = threads.get(change.source, EMPTY)
    target = threads.get(change.target, EMPTY)
    if source.generation != change.generation:
        raise StaleThreadError(thread=change.source)
    _check_source(change, source)
    if any(target.rows()) or source is target:
        raise ThreadExistsError(thread=change.target)
    fork = threads[change.target] = MemoryThread()
    target.heap.members.discard(change.target)
    fork.heap = source.heap
    fork.heap.members.add(change.target)
    fork.generation, fork.revision = target.generation + 1, target.revision
    _bump(threads, source)
    checkpoints, writes = set(change.checkpoints), set(change.writes)
    fork.add_rows(
        (row for row in source.rows() if (row.ns, row.id) in checkpoints),
        (row for row in source.writes() if (row.ns, row.checkpoint_id, row.seq) in writes),
    )
    replace_entry(fork, change.entry)
    fork.size = change.entry.size


def _check_source(change: CopyThread | ForkThread, source: MemoryThread) -> None:
    if change.revision not in (None, source.entry_revision):
        raise ConflictError(thread=change.source)


# -- steps of a batch ----------------------------------------------------------------


def _check(batch: Batch, thread: MemoryThread, threads: Threads) -> None:
    if batch.born is not None and thread.deleted_at and batch.born <= thread.deleted_at:
        raise ThreadDeletedError(thread=batch.thread)
    if batch.generation is not None and batch.generation != thread.generation:
        raise StaleThreadError(thread=batch.thread)
    for fence in batch.fences:
        _check_fence(fence, batch, thread, threads)


def _check_fence(fence: Fence, batch: Batch, thread: MemoryThread, threads: Threads) -> None:
    at: dict[str, str] = {}
    match fence:
        case HeadFence(ns, expected):
            namespace = thread.namespaces.get(ns, EMPTY_NAMESPACE)
            first = 0 if expected is None else bisect_right(namespace.ids, expected)
            own = {row.id for row in batch.checkpoints if row.ns == ns}
            newer = (key for key in islice(namespace.ids, first, None) if key not in own)
            found = next((key for key in newer if not namespace.rows[key].flags & NESTED), None)
            holds = found is None
            at = {} if found is None else {"namespace": ns, "checkpoint": found}
        case WritesFence(ns, key, run, seen):
            rows = thread.namespaces.get(ns, EMPTY_NAMESPACE).writes.get(key, ())
            holds = all(row.run == run or row.seq <= seen for row in rows)
            at = {"namespace": ns, "checkpoint": key}
        case RowsFence(checkpoints, writes):
            family = [threads[name] for name in thread.heap.members]
            holds = checkpoints == sum(len([*one.rows()]) for one in family)
            holds = holds and writes == sum(len([*one.writes()]) for one in family)
        case EntryFence(revision):
            holds = thread.entry_revision == revision
    if not holds:
        raise ConflictError(thread=batch.thread, **at)


def _move_segments(batch: Batch, thread: MemoryThread) -> None:
    """Drop and add segments; where one is taken, put everything back as it was."""
    if not (batch.segments or batch.drop_segments):
        return
    logs = thread.logs
    dropped = [logs[n].drop(start, count) for n, start, count in batch.drop_segments if n in logs]
    added: list[Segment] = []
    try:
        added.extend(s for s in batch.segments if thread.logs[s.log].put(s))
    except SegmentTakenError as error:
        for segment in added:
            logs[segment.log].drop(segment.start, segment.count)
        for gone in filter(None, dropped):
            logs[gone.log].put(gone)
        error.at(thread=batch.thread)
        raise


def _move_rows(batch: Batch, thread: MemoryThread) -> None:
    for row in batch.checkpoints:
        thread.namespaces[row.ns].put(row)
    for write in batch.writes:
        thread.namespaces[write.ns].add_write(write)
    for ns, key in batch.drop_checkpoints:
        thread.namespaces[ns].drop(key)
    for ns, key, seq in batch.drop_writes:
        thread.namespaces[ns].drop_write(key, seq)
    for ns, key in batch.hide_checkpoints:
        thread.namespaces[ns].hide(key)


_CHANGES: dict[type[Change], Callable[[Threads, Any], None]] = {
    Batch: _apply,
    DropThread: _drop,
    CopyThread: _copy,
    ForkThread: _fork,
}
