"""How rows lie in memory: dicts by id beside lists of ids in order.

Only storing and finding single records may live here. Invariant: each list of ids is
sorted and holds exactly the keys of the dict beside it. No locks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, TypeAlias

from threadkeep.backends.logs import Log
from threadkeep.engine.model import (
    HIDDEN,
    CheckpointRow,
    Child,
    Segment,
    StoredCheckpoint,
    WriteRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadkeep.engine.thread_entry import ThreadEntry


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


class Heap:
    """The logs of a thread, or of several that share them, whose names are its `members`."""

    __slots__ = ("logs", "members")

    def __init__(self) -> None:
        self.logs: dict[int, Log] = {}
        self.members: set[str] = set()


class Thread:
    """All rows of one thread."""

    __slots__ = ("deleted_at", "entry", "generation", "heap", "namespaces", "revision", "size")

    def __init__(self) -> None:
        self.generation = 0
        self.deleted_at = 0
        self.namespaces: dict[str, Namespace] = {}
        self.heap = Heap()
        self.entry: ThreadEntry | None = None
        self.size = 0
        self.revision = 0

    def namespace(self, ns: str) -> Namespace:
        """The namespace, made where it is not there yet."""
        found = self.namespaces.get(ns)
        if found is None:
            found = self.namespaces[ns] = Namespace()
        return found

    @property
    def logs(self) -> dict[int, Log]:
        """Its logs by number."""
        return self.heap.logs

    def log(self, number: int) -> Log:
        """The log, made where it is not there yet."""
        found = self.logs.get(number)
        if found is None:
            found = self.logs[number] = Log()
        return found

    def rows(self) -> Iterator[CheckpointRow]:
        """All checkpoints, hidden ones too."""
        for namespace in self.namespaces.values():
            yield from namespace.rows.values()

    def writes(self) -> Iterator[WriteRow]:
        """All writes, orphans too; those of one checkpoint by `seq`."""
        for namespace in self.namespaces.values():
            for rows in namespace.writes.values():
                yield from rows

    def segments(self) -> Iterator[Segment]:
        """All segments by (log, start)."""
        for number in sorted(self.logs):
            log = self.logs[number]
            yield from (log.segments[start] for start in log.starts)

    @property
    def entry_revision(self) -> int:
        """The revision of its entry; 0 without one."""
        return self.revision if self.entry is not None else 0

    def holds_checkpoints(self) -> bool:
        """Whether there is a checkpoint, visible or hidden."""
        return any(namespace.rows for namespace in self.namespaces.values())

    def holds_rows(self) -> bool:
        """Whether there is any row: checkpoint, write or segment."""
        return any(n.rows or n.writes for n in self.namespaces.values()) or any(
            log.starts for log in self.logs.values()
        )

    def stored(self, name: str, row: CheckpointRow) -> StoredCheckpoint:
        """The row as it is read: with keyframe, writes and child."""
        namespace = self.namespaces[row.ns]
        writes = tuple(namespace.writes.get(row.id, ()))
        return StoredCheckpoint(name, row, self._keyframe(row), writes, namespace.child(row.id))

    def _keyframe(self, row: CheckpointRow) -> Segment | None:
        log = self.logs.get(row.key_log)
        return next(log.between(row.key_pos, row.key_pos + 1), None) if log else None


Threads: TypeAlias = dict[str, Thread]

# What an unknown thread and namespace look like; never written to.
EMPTY = Thread()
EMPTY_NAMESPACE = Namespace()
