"""Rows in memory: dicts by id beside sorted lists of ids."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from threadkeep._core.engine.model import (
    HIDDEN,
    CheckpointRow,
    Child,
    Segment,
    StoredCheckpoint,
    WriteRow,
)
from threadkeep._core.engine.thread_entry import (
    EntryUpdate,
    StateTransition,
    ThreadEntry,
    ThreadStatus,
    label_prefix,
)
from threadkeep._stores.records import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Namespace:
    """The checkpoints of one namespace, and the writes on checkpoints there or not."""

    __slots__ = ("children", "ids", "rows", "writes")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, CheckpointRow] = {}
        self.children: dict[str, list[str]] = {}  # parent id -> ids, both ascending
        self.writes: dict[str, list[WriteRow]] = {}  # checkpoint id -> rows by seq

    def put(self, row: CheckpointRow) -> None:
        """Add the row, or replace the one of the same id."""
        key, parent = row.id, row.parent
        if key in self.rows:
            self.drop(key)
        self.rows[key] = row
        insort(self.ids, key)
        if parent is not None:
            insort(self.children.setdefault(parent, []), key)

    def drop(self, key: str) -> None:
        """Take the checkpoint out, if it is there; its writes stay."""
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
        """Flag the checkpoint as hidden, if it is there."""
        row = self.rows.get(key)
        if row is not None:
            self.rows[key] = row._replace(flags=row.flags | HIDDEN)

    def add_write(self, row: WriteRow) -> None:
        """Add the row with the next `seq` of its checkpoint."""
        rows = self.writes.setdefault(row.checkpoint_id, [])
        rows.append(WriteRow(*row[:-1], seq=rows[-1].seq + 1 if rows else 1))

    def drop_write(self, key: str, seq: int) -> None:
        """Take one write of checkpoint `key` out, if it is there."""
        rows = [row for row in self.writes.pop(key, ()) if row.seq != seq]
        if rows:
            self.writes[key] = rows

    def child(self, key: str) -> Child | None:
        """The child with the smallest id greater than `key`."""
        ids = self.children.get(key, [])
        at = bisect_right(ids, key)
        if at == len(ids):
            return None
        row = self.rows[ids[at]]
        return Child(row.id, row.run, row.seen)

    def head(self) -> CheckpointRow | None:
        """The visible checkpoint with the greatest id."""
        return next(self.visible_down(), None)

    def visible_down(
        self, before: str | None = None, newest: str | None = None
    ) -> Iterator[CheckpointRow]:
        """Visible rows, newest first, with ids `< before` and `<= newest`."""
        stop = len(self.ids) if before is None else bisect_left(self.ids, before)
        if newest is not None:
            stop = min(stop, bisect_right(self.ids, newest))
        for at in range(stop - 1, -1, -1):
            row = self.rows[self.ids[at]]
            if not row.flags & HIDDEN:
                yield row


class MemoryHeap:
    """The logs of a thread, or of several that share them, whose names are its `members`."""

    __slots__ = ("logs", "members")

    def __init__(self) -> None:
        self.logs: defaultdict[int, Log] = defaultdict(Log)
        self.members: set[str] = set()


class MemoryThread:
    """All rows of one thread."""

    __slots__ = ("deleted_at", "entry", "generation", "heap", "namespaces", "revision", "size")

    def __init__(self) -> None:
        self.generation = 0
        self.deleted_at = 0
        self.namespaces: defaultdict[str, Namespace] = defaultdict(Namespace)
        self.heap = MemoryHeap()
        self.entry: ThreadEntry | None = None
        self.size = 0
        self.revision = 0

    @property
    def logs(self) -> defaultdict[int, Log]:
        """Its logs by number."""
        return self.heap.logs

    def rows(self) -> Iterator[CheckpointRow]:
        """All checkpoints, hidden ones too."""
        for namespace in self.namespaces.values():
            yield from namespace.rows.values()

    def writes(self) -> Iterator[WriteRow]:
        """All writes, orphans too; those of one checkpoint by `seq`."""
        for namespace in self.namespaces.values():
            for rows in namespace.writes.values():
                yield from rows

    def add_rows(self, rows: Iterable[CheckpointRow], writes: Iterable[WriteRow]) -> None:
        """Add rows of another thread as they are."""
        for row in rows:
            self.namespaces[row.ns].put(row)
        for write in writes:
            self.namespaces[write.ns].writes.setdefault(write.checkpoint_id, []).append(write)

    def segments(self) -> Iterator[Segment]:
        """All segments by (log, start)."""
        for number in sorted(self.logs):
            log = self.logs[number]
            yield from (log.segments[start] for start in log.starts)

    @property
    def entry_revision(self) -> int:
        """The revision of its entry; 0 without one."""
        return self.revision if self.entry is not None else 0

    def holds_rows(self) -> bool:
        """True if there is any row: checkpoint, write or segment."""
        return any(self.rows()) or any(self.writes()) or any(self.segments())

    def stored(self, name: str, row: CheckpointRow) -> StoredCheckpoint:
        """The row as it is read: with keyframe, writes and child."""
        namespace = self.namespaces[row.ns]
        writes = tuple(namespace.writes.get(row.id, ()))
        return StoredCheckpoint(name, row, self._keyframe(row), writes, namespace.child(row.id))

    def _keyframe(self, row: CheckpointRow) -> Segment | None:
        log = self.logs.get(row.key_log)
        return next(log.between(row.key_pos, row.key_pos + 1), None) if log else None


Threads: TypeAlias = dict[str, MemoryThread]

# What an unknown thread and namespace look like; never written to.
EMPTY = MemoryThread()
EMPTY_NAMESPACE = Namespace()


def entry_of(thread: MemoryThread) -> ThreadEntry | None:
    """The thread's entry, as it is read."""
    if thread.entry is None:
        return None
    return thread.entry._replace(
        size=thread.size, deleted_at=thread.deleted_at, revision=thread.revision
    )


def replace_entry(thread: MemoryThread, entry: ThreadEntry) -> None:
    """Let the thread be registered so; see `Batch.entry`."""
    known = thread.entry
    if known is not None and known.state != ThreadStatus.DELETED:
        times = (known.created_at, known.updated_at)
        entry = entry._replace(created_at=times[0], updated_at=times[1], waits_at=known.waits_at)
    thread.entry = entry._replace(labels=_joined(entry.labels))
    thread.revision += 1


def touch(thread: MemoryThread, name: str, touched: EntryUpdate, now: int) -> None:
    """Let the thread's entry say what was done; see `EntryUpdate`."""
    thread.size = touched.size if touched.whole else thread.size + touched.size
    for move in touched.moves:
        _move(thread, name, move, now if touched.at is None else touched.at)
    entry = thread.entry
    if entry is None or entry.state == ThreadStatus.DELETED:
        return
    if touched.at is not None:
        entry = entry._replace(updated_at=max(entry.updated_at, touched.at))
    if touched.labels:
        thread.revision += 1
        entry = entry._replace(labels=_joined((*entry.labels, *touched.labels)))
    thread.entry = entry


def _move(thread: MemoryThread, name: str, move: StateTransition, at: int) -> None:
    entry = thread.entry
    if (entry.state if entry else "") not in move.sources:
        return
    waits_at = entry.waits_at if entry else None
    if waits_at is not None and not _is_later(move, waits_at):
        return
    if entry is None or entry.state == ThreadStatus.DELETED:
        entry = ThreadEntry(name, move.target, at, at)
    waits = move.checkpoint if move.waits else None
    thread.entry = entry._replace(state=move.target, waits_at=waits)
    thread.revision += 1


def _is_later(move: StateTransition, waits_at: str) -> bool:
    return move.checkpoint > waits_at or (move.same and move.checkpoint == waits_at)


def bury(thread: MemoryThread, name: str, before: MemoryThread) -> None:
    """Leave the entry of a deleted thread, if it has a tombstone."""
    thread.revision = before.revision + 1
    if thread.deleted_at:
        thread.entry = ThreadEntry(name, ThreadStatus.DELETED, thread.deleted_at, thread.deleted_at)


def copy_entry(
    copy: MemoryThread, name: str, source: MemoryThread, target: MemoryThread, now: int
) -> None:
    """Register a copy; see `CopyThread`."""
    copy.size, copy.revision = source.size, target.revision + 1
    if source.entry is None:
        return
    own = target.entry or ThreadEntry(name, "", now, now)
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
    """The labels in order; of those with the same beginning the last."""
    return tuple(sorted({label_prefix(label): label for label in labels}.values()))
