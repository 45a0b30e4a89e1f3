"""Rows in memory, dicts by id and sorted lists of ids, and changes of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from threadkeep._core.engine import model, thread_entry, tips
from threadkeep._stores.records import Log, allows, check_ends, check_state, tip_of
from threadkeep.errors import ConflictError, SegmentTakenError, StaleThreadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class MemoryNamespace:
    """The checkpoints of one namespace, and its writes, with or without their checkpoint."""

    __slots__ = ("children", "ids", "rows", "writes")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, model.CheckpointRow] = {}
        self.children: dict[str, list[str]] = {}  # parent id -> ids, both ascending
        self.writes: dict[str, list[model.WriteRow]] = {}  # checkpoint id -> rows by seq

    def put(self, row: model.CheckpointRow) -> None:
        """Add the row, or replace the one of the same id."""
        key, parent = row.id, row.parent
        if key in self.rows:
            self.drop(key)
        self.rows[key] = row
        insort(self.ids, key)
        if parent is not None:
            insort(self.children.setdefault(parent, []), key)

    def drop(self, key: str) -> None:
        """Remove the checkpoint, if it exists; its writes stay."""
        row = self.rows.pop(key, None)
        if row is None:
            return
        del self.ids[bisect_left(self.ids, key)]
        if row.parent is not None:
            siblings = self.children[row.parent]
            siblings.remove(key)
            if not siblings:
                del self.children[row.parent]

    def hide(self, key: str) -> None:
        """Flag the checkpoint as hidden, if it exists."""
        row = self.rows.get(key)
        if row is not None:
            self.rows[key] = row._replace(flags=row.flags | model.HIDDEN)

    def add_write(self, row: model.WriteRow) -> None:
        """Add the row with the next `seq` of its checkpoint."""
        rows = self.writes.setdefault(row.checkpoint_id, [])
        rows.append(model.WriteRow(*row[:-1], seq=rows[-1].seq + 1 if rows else 1))

    def replace_write(self, row: model.WriteRow) -> None:
        """Put a row in place of the one with its `seq`, if it exists."""
        rows = self.writes.get(row.checkpoint_id, [])
        rows[:] = [row if one.seq == row.seq else one for one in rows]

    def drop_write(self, key: str, seq: int) -> None:
        """Remove one write of checkpoint `key`, if it exists."""
        rows = [row for row in self.writes.pop(key, ()) if row.seq != seq]
        if rows:
            self.writes[key] = rows

    def child(self, key: str) -> model.Child | None:
        """The child with the smallest id greater than `key`."""
        ids = self.children.get(key, [])
        at = bisect_right(ids, key)
        if at == len(ids):
            return None
        row = self.rows[ids[at]]
        return model.Child(row.id, row.run, row.seen)

    def head(self) -> model.CheckpointRow | None:
        """The visible checkpoint with the greatest id."""
        return next(self.visible_down(), None)

    def visible_down(
        self, before: str | None = None, newest: str | None = None
    ) -> Iterator[model.CheckpointRow]:
        """Yield visible rows, newest first, with ids `< before` and `<= newest`."""
        stop = len(self.ids) if before is None else bisect_left(self.ids, before)
        if newest is not None:
            stop = min(stop, bisect_right(self.ids, newest))
        for at in range(stop - 1, -1, -1):
            row = self.rows[self.ids[at]]
            if not row.flags & model.HIDDEN:
                yield row


class MemoryHeap:
    """The logs that its `members`, the names of one or several threads, share."""

    __slots__ = ("logs", "members")

    def __init__(self) -> None:
        self.logs: defaultdict[int, Log] = defaultdict(Log)
        self.members: set[str] = set()


class MemoryThread:
    """All rows of one thread."""

    __slots__ = (
        *("deleted_at", "entry", "generation", "heap", "life", "namespaces", "revision", "size"),
        "tips",
    )

    def __init__(self) -> None:
        self.generation = 0
        self.tips: tuple[int, ...] = ()
        self.life = 0
        self.deleted_at = 0
        self.namespaces: defaultdict[str, MemoryNamespace] = defaultdict(MemoryNamespace)
        self.heap = MemoryHeap()
        self.entry: thread_entry.ThreadEntry | None = None
        self.size = 0
        self.revision = 0

    def rows(self) -> Iterator[model.CheckpointRow]:
        """All checkpoints, hidden ones too."""
        for namespace in self.namespaces.values():
            yield from namespace.rows.values()

    def writes(self) -> Iterator[model.WriteRow]:
        """All writes, orphans too; those of one checkpoint by `seq`."""
        for namespace in self.namespaces.values():
            for rows in namespace.writes.values():
                yield from rows

    def add_rows(
        self, rows: Iterable[model.CheckpointRow], writes: Iterable[model.WriteRow]
    ) -> None:
        """Add rows of another thread."""
        for row in rows:
            self.namespaces[row.ns].put(row)
        for write in writes:
            self.namespaces[write.ns].writes.setdefault(write.checkpoint_id, []).append(write)

    def segments(self) -> Iterator[model.Segment]:
        """All segments by (log, start)."""
        for number in sorted(self.heap.logs):
            log = self.heap.logs[number]
            yield from (log.segments[start] for start in log.starts)

    @property
    def entry_revision(self) -> int:
        """The revision of its entry; 0 without one."""
        return self.revision if self.entry is not None else 0

    def holds_rows(self) -> bool:
        """True if there is any row: checkpoint, write or segment."""
        return any(self.rows()) or any(self.writes()) or any(self.segments())

    def stored(self, name: str, row: model.CheckpointRow) -> model.StoredCheckpoint:
        """Return the row with its keyframe, writes and child."""
        namespace = self.namespaces[row.ns]
        writes = tuple(namespace.writes.get(row.id, ()))
        return model.StoredCheckpoint(
            name, row, self._keyframe(row), writes, namespace.child(row.id)
        )

    def _keyframe(self, row: model.CheckpointRow) -> model.Segment | None:
        log = self.heap.logs.get(row.key_log)
        return next(log.between(row.key_pos, row.key_pos + 1), None) if log else None


MemoryThreads: TypeAlias = dict[str, MemoryThread]

# Stand for an unknown thread and namespace; never changed.
EMPTY = MemoryThread()
EMPTY_NAMESPACE = MemoryNamespace()


def entry_of(thread: MemoryThread) -> thread_entry.ThreadEntry | None:
    """Return the thread's entry."""
    if thread.entry is None:
        return None
    return thread.entry._replace(
        size=thread.size, deleted_at=thread.deleted_at, revision=thread.revision
    )


def _replace_entry(thread: MemoryThread, entry: thread_entry.ThreadEntry) -> None:
    """Set the thread's entry; see `Batch.entry`."""
    known = thread.entry
    if thread_entry.is_there(known):
        times = (known.created_at, known.updated_at)
        entry = entry._replace(created_at=times[0], updated_at=times[1], waits_at=known.waits_at)
    thread.entry = entry._replace(labels=_joined(entry.labels))
    thread.revision += 1


def _touch(thread: MemoryThread, name: str, touched: thread_entry.EntryUpdate, now: int) -> None:
    """Update the thread's entry; see `EntryUpdate`."""
    thread.size = touched.size if touched.whole else thread.size + touched.size
    for transition in touched.transitions:
        _make_transition(thread, name, transition, now if touched.at is None else touched.at)
    entry = thread.entry
    if not thread_entry.is_there(entry):
        return
    if touched.at is not None:
        entry = entry._replace(updated_at=max(entry.updated_at, touched.at))
    if touched.labels:
        thread.revision += 1
        entry = entry._replace(labels=_joined((*entry.labels, *touched.labels)))
    thread.entry = entry


def _make_transition(
    thread: MemoryThread, name: str, transition: thread_entry.StateTransition, at: int
) -> None:
    entry = thread.entry
    if not allows(transition, entry and entry.state, entry and entry.waits_at):
        return
    if not thread_entry.is_there(entry):
        entry = thread_entry.ThreadEntry(name, transition.target, at, at)
    waits = transition.checkpoint if transition.waits else None
    thread.entry = entry._replace(state=transition.target, waits_at=waits)
    thread.revision += 1


def _copy_entry(
    copy: MemoryThread, name: str, source: MemoryThread, target: MemoryThread, now: int
) -> None:
    """Register a copy; see `CopyThread`."""
    copy.size, copy.revision = source.size, target.revision + 1
    if source.entry is None:
        return
    own = target.entry or thread_entry.ThreadEntry(name, "", now, now)
    copy.entry = source.entry._replace(
        thread=name,
        created_at=now,
        updated_at=now,
        labels=_joined((*source.entry.labels, *own.labels)),
        pinned=own.pinned,
        ttl=source.entry.ttl if own.ttl is None else own.ttl,
        origin=own.origin,
    )


def _joined(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels in order; of labels with one prefix only the last."""
    return tuple(sorted({thread_entry.label_prefix(label): label for label in labels}.values()))


# -- changes -------------------------------------------------------------------------


def carry_out(threads: MemoryThreads, change: model.Change) -> None:
    """Make one change as its docstring says, all or nothing.

    Everything is checked before any row is changed.
    """
    _CHANGES[type(change)](threads, change)


def _apply(threads: MemoryThreads, batch: model.Batch) -> None:
    known = threads.get(batch.thread)
    thread = known or MemoryThread()
    _check(batch, thread, threads)
    _move_segments(batch, thread)
    _move_rows(batch, thread)
    thread.revision += batch.removes
    thread.tips = tips.after(thread.tips, tip_of(batch))
    if known is None:
        threads[batch.thread] = thread
        thread.heap.members.add(batch.thread)
    if batch.bump_generation:
        _bump(threads, thread)
    if batch.entry is not None:
        _replace_entry(thread, batch.entry._replace(thread=batch.thread))
    if batch.touch is not None:
        _touch(thread, batch.thread, batch.touch, batch.now)


def _bump(threads: MemoryThreads, thread: MemoryThread) -> None:
    for name in thread.heap.members:
        threads[name].generation += 1


def _drop(threads: MemoryThreads, change: model.DropThread) -> None:
    gone, before = MemoryThread(), threads.get(change.thread, EMPTY)
    _check(change.expected, before, threads)
    gone.generation = before.generation + 1
    gone.tips = (tip_of(change),)
    gone.life = gone.tips[0] if change.ends else before.life
    gone.deleted_at = change.now
    before.heap.members.discard(change.thread)
    _bump(threads, before)
    gone.heap.members.add(change.thread)
    gone.revision = before.revision + 1
    if change.now:
        gone.entry = thread_entry.ThreadEntry(
            change.thread, thread_entry.ThreadStatus.DELETED, change.now, change.now
        )
    if change.entry is not None:
        _replace_entry(gone, change.entry)
    threads[change.thread] = gone
    if change.rows is not None:
        _apply(threads, change.rows)


def _copy(threads: MemoryThreads, change: model.CopyThread) -> None:
    source = threads.get(change.source, EMPTY)
    target = threads.get(change.target, EMPTY)
    if not source.holds_rows():
        return
    check_ends(change, source.generation, source.entry_revision, target_holds=any(target.rows()))
    copy = threads[change.target] = MemoryThread()
    copy.generation, copy.life = target.generation + 1, target.life
    copy.tips = (tip_of(change),)
    copy.add_rows(source.rows(), source.writes())
    for segment in source.segments():
        copy.heap.logs[segment.log].put(segment)
    target.heap.members.discard(change.target)
    copy.heap.members.add(change.target)
    _copy_entry(copy, change.target, source, target, change.now)


def _fork(threads: MemoryThreads, change: model.ForkThread) -> None:
    source = threads.get(change.source, EMPTY)
    target = threads.get(change.target, EMPTY)
    if source is EMPTY:
        raise StaleThreadError(thread=change.source)
    check_ends(change, source.generation, source.entry_revision, target_holds=any(target.rows()))
    fork = threads[change.target] = MemoryThread()
    target.heap.members.discard(change.target)
    fork.heap = source.heap
    fork.heap.members.add(change.target)
    fork.generation, fork.revision = target.generation + 1, target.revision
    fork.tips, fork.life = (tip_of(change),), target.life
    _bump(threads, source)
    checkpoints, writes = set(change.checkpoints), set(change.writes)
    fork.add_rows(
        (row for row in source.rows() if (row.ns, row.id) in checkpoints),
        (row for row in source.writes() if (row.ns, row.checkpoint_id, row.seq) in writes),
    )
    _replace_entry(fork, change.entry)
    fork.size = change.entry.size


# -- steps of a batch ----------------------------------------------------------------


def _check(batch: model.Batch, thread: MemoryThread, threads: MemoryThreads) -> None:
    check_state(batch, thread.generation, thread.tips, thread.life)
    for fence in batch.fences:
        _check_fence(fence, batch, thread, threads)


def _check_fence(
    fence: model.Fence, batch: model.Batch, thread: MemoryThread, threads: MemoryThreads
) -> None:
    at: dict[str, str] = {}
    match fence:
        case model.HeadFence(ns, expected):
            namespace = thread.namespaces.get(ns, EMPTY_NAMESPACE)
            first = 0 if expected is None else bisect_right(namespace.ids, expected)
            own = {row.id for row in batch.checkpoints if row.ns == ns}
            newer = (key for key in islice(namespace.ids, first, None) if key not in own)
            found = next(
                (key for key in newer if not namespace.rows[key].flags & model.NESTED), None
            )
            holds = found is None
            at = {} if found is None else {"namespace": ns, "checkpoint": found}
        case model.WritesFence(ns, key, run, seen):
            rows = thread.namespaces.get(ns, EMPTY_NAMESPACE).writes.get(key, ())
            holds = all(row.run == run or row.seq <= seen for row in rows)
            at = {"namespace": ns, "checkpoint": key}
        case model.RowsFence(checkpoints, writes):
            family = [threads[name] for name in thread.heap.members]
            holds = checkpoints == sum(len([*one.rows()]) for one in family)
            holds = holds and writes == sum(len([*one.writes()]) for one in family)
        case thread_entry.EntryFence(revision):
            holds = thread.entry_revision == revision
    if not holds:
        raise ConflictError(thread=batch.thread, **at)


def _move_segments(batch: model.Batch, thread: MemoryThread) -> None:
    """Drop and add segments; if one overlaps another, undo all of it."""
    if not (batch.segments or batch.drop_segments):
        return
    logs = thread.heap.logs
    dropped = [logs[n].drop(start, count) for n, start, count in batch.drop_segments if n in logs]
    added: list[model.Segment] = []
    try:
        added.extend(s for s in batch.segments if thread.heap.logs[s.log].put(s))
    except SegmentTakenError as error:
        for segment in added:
            logs[segment.log].drop(segment.start, segment.count)
        for gone in filter(None, dropped):
            logs[gone.log].put(gone)
        error.at(thread=batch.thread)
        raise


def _move_rows(batch: model.Batch, thread: MemoryThread) -> None:
    for row in batch.checkpoints:
        thread.namespaces[row.ns].put(row)
    for write in batch.writes:
        thread.namespaces[write.ns].add_write(write)
    for ns, key in batch.drop_checkpoints:
        thread.namespaces[ns].drop(key)
    for ns, key, seq in batch.drop_writes:
        thread.namespaces[ns].drop_write(key, seq)
    for write in batch.replace_writes:
        thread.namespaces[write.ns].replace_write(write)
    for ns, key in batch.hide_checkpoints:
        thread.namespaces[ns].hide(key)


_CHANGES: dict[type[model.Change], Callable[[MemoryThreads, Any], None]] = {
    model.Batch: _apply,
    model.DropThread: _drop,
    model.CopyThread: _copy,
    model.ForkThread: _fork,
}
