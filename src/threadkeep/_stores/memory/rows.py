"""Rows in memory, dicts by id and sorted lists of ids, and changes of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from typing import TYPE_CHECKING

from threadkeep._core.engine import model
from threadkeep._core.engine.heads import Copying, Head, Move, entry_of
from threadkeep._core.engine.thread_entry import WITH_CHECKPOINTS, label_prefix
from threadkeep._stores.records import Log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from threadkeep._core.engine.thread_entry import ThreadEntry, ThreadQuery


class MemoryNamespace:
    """The checkpoints of one namespace, and its writes, with or without their checkpoint."""

    __slots__ = ("children", "ids", "rows", "writes")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, model.CheckpointRow] = {}
        self.children: dict[str, list[str]] = {}  # parent id -> ids, both ascending
        self.writes: dict[str, list[model.WriteRow]] = {}  # checkpoint id -> rows by seq

    def put(self, row: model.CheckpointRow) -> None:
        """Add the row, or replace the row of the same id."""
        key, parent = row.id, row.parent
        if key in self.rows:
            self.drop(key)
        self.rows[key] = row
        insort(self.ids, key)
        if parent is not None:
            insort(self.children.setdefault(parent, []), key)

    def drop(self, key: str) -> None:
        """Remove the checkpoint, if it exists. Its writes stay."""
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
        """Add the row."""
        self.writes.setdefault(row.checkpoint_id, []).append(row)

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


class MemoryHeap(dict[int, Log]):
    """The logs that one thread or several share."""

    def __missing__(self, number: int) -> Log:
        log = self[number] = Log()
        return log

    def all(self) -> Iterator[model.Segment]:
        """All segments by (log, start)."""
        for number in sorted(self):
            yield from (self[number].segments[start] for start in self[number].starts)


class MemoryThread:
    """All rows of one thread."""

    __slots__ = ("head", "heap", "labels", "namespaces")

    def __init__(self, head: Head, heap: MemoryHeap) -> None:
        self.head = head
        self.heap = heap
        self.labels: dict[str, str] = {}  # by prefix
        self.namespaces: defaultdict[str, MemoryNamespace] = defaultdict(MemoryNamespace)

    def rows(self) -> Iterator[model.CheckpointRow]:
        """All checkpoints, hidden ones too."""
        for namespace in self.namespaces.values():
            yield from namespace.rows.values()

    def writes(self) -> Iterator[model.WriteRow]:
        """All writes, orphans too, and by `seq` for each checkpoint."""
        for namespace in self.namespaces.values():
            for rows in namespace.writes.values():
                yield from rows

    @property
    def entry(self) -> ThreadEntry | None:
        """Its entry in the registry."""
        return entry_of(self.head, self.labels.values())

    def stored(self, row: model.CheckpointRow) -> model.StoredCheckpoint:
        """Return the row with its keyframe, writes and child."""
        namespace = self.namespaces[row.ns]
        writes = tuple(namespace.writes.get(row.id, ()))
        child = namespace.child(row.id)
        log = self.heap.get(row.key_log)
        keyframe = next(log.between(row.key_pos, row.key_pos + 1), None) if log else None
        return model.StoredCheckpoint(self.head.thread, row, keyframe, writes, child)


EMPTY = MemoryThread(Head(""), MemoryHeap())
EMPTY_NAMESPACE = MemoryNamespace()
"""These stand for an unknown thread and namespace, and are never changed."""


class MemoryRows:
    """The threads of a store."""

    def __init__(self) -> None:
        self.threads: dict[str, MemoryThread] = {}
        self._heaps: defaultdict[int, MemoryHeap] = defaultdict(MemoryHeap)
        self._last_number = 0
        self.words: MemoryWords | None = None

    def of(self, name: str) -> MemoryThread:
        """Return a thread, or an empty one."""
        return self.threads.get(name, EMPTY)

    def head(self, name: str) -> Head:
        thread = self.threads.get(name)
        return Head(name) if thread is None else thread.head

    def clear(self) -> None:
        self.threads.clear()
        self._heaps.clear()

    def make(self, move: Move) -> Head | None:
        """Make a move, and return its new head, or None if it was refused."""
        old, new = move.old, move.new
        for was, _ in ((old, new), *move.beside):
            if self.head(was.thread).tips != was.tips:
                return None
        thread = self.threads.get(old.thread)
        logs = None if thread is None or move.clears else thread.heap
        drops = move.drop_segments if move.segments else ()
        if any(logs is None or not logs[log].has(*at) for log, *at in drops):
            return None
        if thread is None:
            self._last_number += 1
            new = new._replace(number=self._last_number)
            thread = self.threads[old.thread] = MemoryThread(new, MemoryHeap())
        self._clear(thread, move)
        thread.head = new
        thread.heap = self._heaps[new.heap or new.number]
        if move.copies is not None:
            self._copy(thread, move.copies)
        _change(thread, move)
        if move.words is not None:
            self.keep_words(kept=True)
        if self.words is not None:
            self.words.note(old, new, move.words)
        for _, other in move.beside:
            self.threads[other.thread].head = other
            self.threads[other.thread].heap = self._heaps[other.heap or other.number]
        return new

    def keep_words(self, *, kept: bool) -> None:
        """Create the index of messages if there is none, or remove it."""
        if not kept:
            self.words = None
        elif self.words is None:
            heads = [one.head for one in self.threads.values() if one.head.newest is not None]
            self.words = MemoryWords({head.thread: None for head in heads})

    def _clear(self, thread: MemoryThread, move: Move) -> None:
        if move.clears:
            thread.namespaces.clear()
        if move.clears_heap:
            self._heaps.pop(move.old.heap or thread.head.number, None)
        if move.clears_labels:
            thread.labels.clear()

    def _copy(self, thread: MemoryThread, copies: Copying) -> None:
        source, checkpoints, writes = (
            self.of(copies.source.thread),
            copies.checkpoints,
            copies.writes,
        )
        for row in [*source.rows()]:
            if checkpoints is None or (row.ns, row.id) in checkpoints:
                thread.namespaces[row.ns].put(row)
        for write in [*source.writes()]:
            if writes is None or (write.ns, write.checkpoint_id, write.seq) in writes:
                thread.namespaces[write.ns].add_write(write)
        for segment in source.heap.all() if copies.segments else ():
            thread.heap[segment.log].put(segment)


class MemoryWords:
    """The index of messages. See `model.Words`.

    Args:
        unindexed: the threads that are not indexed, with the last checkpoint that is.
    """

    def __init__(self, unindexed: dict[str, str | None]) -> None:
        self.unindexed = unindexed
        self._messages: dict[str, list[str]] = {}  # by thread

    def note(self, old: Head, new: Head, words: model.Words | None) -> None:
        """Note a new head of a thread, with the words of its new messages."""
        name, is_same = new.thread, old.deleted_at == new.deleted_at
        if not is_same or (words is not None and words.whole):
            self._messages.pop(name, None)
        if new.newest is None:
            self.unindexed.pop(name, None)
        elif not is_same or new.newest != old.newest:
            self.unindexed.setdefault(name, old.newest if is_same else None)
        if words is not None:
            self._messages.setdefault(name, []).extend([f" {one} " for one in words.messages])
            if words.whole or self.unindexed.get(name, "") == old.newest:
                self.unindexed.pop(name, None)

    def matches(self, head: Head, query: ThreadQuery) -> bool:
        """Return True if a thread matches the words of a query."""
        if head.state in WITH_CHECKPOINTS and head.thread in self.unindexed:
            return True
        wanted = [f" {word} " for word in query.words]
        return not query.unindexed and any(
            all(map(message.__contains__, wanted))
            for message in self._messages.get(head.thread, ())
        )


def _change(thread: MemoryThread, move: Move) -> None:
    for number, start, count in move.drop_segments:
        thread.heap[number].drop(start, count)
    for ns, key in move.drop_checkpoints:
        thread.namespaces[ns].drop(key)
    for ns, key, seq in move.drop_writes:
        thread.namespaces[ns].drop_write(key, seq)
    for write in move.replace_writes:
        thread.namespaces[write.ns].replace_write(write)
    for ns, key in move.hide_checkpoints:
        thread.namespaces[ns].hide(key)
    for segment in move.segments:
        thread.heap[segment.log].put(segment)
    for row in move.checkpoints:
        thread.namespaces[row.ns].put(row)
    for write in move.writes:
        thread.namespaces[write.ns].add_write(write)
    for label in move.labels:
        thread.labels[label_prefix(label)] = label
