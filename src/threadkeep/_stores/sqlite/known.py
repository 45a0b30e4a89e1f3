"""LRU cache of the writing connection: rows, log ends and heads of threads.

Used under the write lock. It stays valid until another connection writes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from threadkeep._core.engine.model import (
    HIDDEN,
    ReadCheckpoint,
    Segment,
    StoredCheckpoint,
    ThreadState,
    WriteRow,
)
from threadkeep._core.engine.thread_entry import ThreadStatus
from threadkeep._stores.records import allows
from threadkeep._stores.sqlite.known_segments import KnownHeap, RecentSegments
from threadkeep._stores.sqlite.opening import MEMORY, WalIndex, changes_of, find_index
from threadkeep._stores.sqlite.records import NO_TIPS, pack_id, unpack_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from threadkeep._core.engine.model import Batch, CheckpointRow
    from threadkeep._core.engine.thread_entry import EntryUpdate

NOTHING, SIZE, TIME, ENTRY, NEW = range(5)
"""Kinds of change of a thread's row; each includes the kinds before it."""

_MOST = 1024  # threads, and heaps
_MOST_SPACES = 64  # namespaces of a thread
_MOST_WRITTEN = 8  # checkpoints of a namespace whose writes are counted
_MOST_BYTES = 16 * 1024  # of a head
_LIMIT = 4 * 1024 * 1024  # bytes of all threads
_THREAD, _SPACE = 2500, 400  # bytes in memory of a thread with its heap, of a namespace


class Space:
    """The checkpoints of a namespace: the greatest id, and the last `seq` of writes on some.

    A checkpoint with an id above `below` has no writes unless it is in `written`.
    """

    __slots__ = ("below", "top", "written")

    def __init__(self, top: str = "", below: str = "") -> None:
        self.top, self.below = top, below
        self.written: dict[str, int] = {}

    def last_seq(self, checkpoint: str) -> int | None:
        """Return the last `seq` of a checkpoint's writes, or None if it is unknown."""
        seq = self.written.get(checkpoint)
        return 0 if seq is None and checkpoint > self.below else seq

    def trim(self) -> None:
        """Drop the oldest checkpoints if there are too many."""
        while len(self.written) > _MOST_WRITTEN:
            oldest = next(iter(self.written))
            del self.written[oldest]
            self.below = max(self.below, oldest)


@dataclass(slots=True)
class KnownThread:
    """A thread's columns that batches read and change, its namespaces, and its head.

    `number` is 0 if the thread has no row yet. `changed` says which columns are not stored yet. If
    `is_whole` is set, a namespace without an entry is empty. `head` is the greatest visible
    checkpoint of the root namespace; it has no child. It and the last `keyframe` are stale once the
    keyframe's log has another `layout`.
    """

    thread: str
    number: int = 0
    heap: int = 0
    generation: int = 0
    deleted_at: int | None = None
    life: int = 0
    created_at: int | None = None
    updated_at: int | None = None
    size: int = 0
    revision: int = 0
    state: str | None = None
    waits_at: bytes | str | None = None
    named: tuple[int, ...] = ()  # the tips that the row names
    tips: bytes | bytearray = NO_TIPS  # the same, packed
    changed: int = NOTHING
    is_whole: bool = False
    spaces: defaultdict[str, Space] = field(default_factory=partial(defaultdict, Space))
    head: StoredCheckpoint | None = None
    head_bytes: int = 0  # with its keyframe and writes
    keyframe: Segment | None = None
    layout: object = None
    # writes on the next head, which is not stored yet
    early: list[WriteRow] = field(default_factory=list)
    weighed: int = 0  # as last counted by `Known`

    @property
    def weight(self) -> int:
        """Estimated bytes in memory."""
        held = 0 if self.head is None else self.head_bytes
        if self.early:
            held += _bodies(self.early)
        if self.keyframe is not None and (self.head is None or self.head.keyframe is None):
            held += len(self.keyframe.data)
        return _THREAD + len(self.spaces) * _SPACE + held

    @property
    def has_entry(self) -> bool:
        """True if the thread is in the registry and not deleted."""
        return self.state is not None and self.state != ThreadStatus.DELETED

    def knows(self, ns: str, checkpoint: str) -> bool:
        """True if a namespace is known, with the last `seq` on its checkpoint."""
        space = self.spaces.get(ns)
        if space is None:
            return self.is_whole
        space.trim()
        return space.last_seq(checkpoint) is not None

    # -- the entry ---------------------------------------------------------------------

    def tell(self, touch: EntryUpdate, now: int) -> None:
        """Apply a touch without its labels. See `EntryUpdate`."""
        if touch.size or touch.whole:
            self.size = touch.size + (0 if touch.whole else self.size)
            self.changed = self.changed or SIZE
        for transition in touch.transitions:
            waits_at = None if self.waits_at is None else unpack_id(self.waits_at)
            if allows(transition, self.state, waits_at):
                if not self.has_entry:
                    self.created_at = self.updated_at = now if touch.at is None else touch.at
                self.state = transition.target
                self.waits_at = pack_id(transition.checkpoint) if transition.waits else None
                self.edited()
        late = self.updated_at is not None and touch.at and self.updated_at < touch.at
        if late and self.has_entry:
            self.updated_at = touch.at
            self.changed = max(self.changed, TIME)

    def edited(self) -> None:
        """Record a change that fences compare."""
        self.revision += 1
        self.changed = max(self.changed, ENTRY)

    # -- the head ----------------------------------------------------------------------

    def set_head(self, heap: KnownHeap, head: StoredCheckpoint) -> None:
        """Cache a head if it is complete and small."""
        self.head, self.head_bytes = None, _size(head)
        if head.keyframe is not None and self.head_bytes <= _MOST_BYTES:
            self.head = head
            if self.keyframe is not head.keyframe:
                self.keyframe, self.layout = head.keyframe, heap.layout_of(head.keyframe.log)

    def add_row(self, heap: KnownHeap, row: CheckpointRow, batch: Batch) -> None:
        """Record a checkpoint that a batch adds; it may be the new head."""
        space = self.spaces[row.ns]
        if not row.ns:
            self.head = None
        if row.id <= space.top:
            return
        space.top = row.id
        if row.ns:
            return
        early = self.early
        writes: list[WriteRow] = []
        if early:
            writes = [write for write in early if write.checkpoint_id == row.id]
            self.early = [write for write in early if write.checkpoint_id > row.id]
        keyframe = self._keyframe_of(heap, row, batch)
        if row.flags & HIDDEN or space.last_seq(row.id) != len(writes):
            return
        self.set_head(heap, StoredCheckpoint(self.thread, row, keyframe, tuple(writes)))

    def _keyframe_of(self, heap: KnownHeap, row: CheckpointRow, batch: Batch) -> Segment | None:
        """Return a row's keyframe, from its batch or from an earlier row with the same keyframe."""
        keyframe = _holder(batch.segments, row) if batch.segments else None
        if keyframe is None and (last := self._keyframe_in(heap)) is not None:
            keyframe = _holder((last,), row)
        is_small = keyframe is not None and len(keyframe.data) <= _MOST_BYTES
        self.keyframe = keyframe if is_small else None
        self.layout = None if keyframe is None else heap.layout_of(keyframe.log)
        return keyframe

    def _keyframe_in(self, heap: KnownHeap) -> Segment | None:
        """Return the last keyframe, if it is still in its heap."""
        keyframe = self.keyframe
        is_there = keyframe is not None and self.layout is heap.layout_of(keyframe.log)
        return keyframe if is_there else None

    def head_in(self, heap: KnownHeap | None) -> StoredCheckpoint | None:
        """Return the head, if it is known and its keyframe is still in its heap."""
        is_there = heap is not None and self._keyframe_in(heap) is not None
        return self.head if is_there else None

    def add_write(self, row: WriteRow) -> int:
        """Record a write; return its `seq`."""
        space, checkpoint = self.spaces[row.ns], row.checkpoint_id
        seq = space.written[checkpoint] = (space.last_seq(checkpoint) or 0) + 1
        head = self.head
        if row.ns:
            return seq
        if head is not None and head.row.id == checkpoint:
            self.head_bytes += len(row.body)
            is_small = self.head_bytes <= _MOST_BYTES
            writes = (*head.writes, WriteRow(*row[:-1], seq))
            whole = StoredCheckpoint(head.thread, head.row, head.keyframe, writes)
            self.head = whole if is_small else None
        elif checkpoint > space.top:
            self.early.append(WriteRow(*row[:-1], seq))
            if _bodies(self.early) > _MOST_BYTES:
                self.early = []
        return seq


class Known:
    """Cached threads and segments of one connection.

    `path` is the path of its database file.
    """

    def __init__(self, path: str = MEMORY) -> None:
        self._path = path
        self.last_number = 0  # the greatest thread number; 0: unknown
        self.threads: dict[str, KnownThread] = {}
        self.heaps: dict[int, KnownHeap] = {}
        self.recent = RecentSegments()
        self._bytes = 0  # of all threads
        self._version = 0
        self.others_commit = False  # others did so between the last two transactions
        self._stamp: int | None = None  # `total_changes` at `keep`; None: a transaction is open
        self._index: WalIndex | None = None
        self._has_looked = False  # for the WAL index
        self._before = b""  # header of the index when the open transaction began
        self._begun = 0  # rows that the connection had changed by then
        self._changed: set[str] = set()  # threads that this transaction changed
        # For readers without the lock, also during a transaction: heads, valid while the index has
        # this header. An empty header makes them invalid.
        self._heads: dict[str, ThreadState] = {}
        self._header = b""

    def forget(self) -> None:
        """Know nothing."""
        self.last_number = self._bytes = 0
        self.threads.clear()
        self.heaps.clear()
        self.recent.clear()
        self._heads.clear()

    def begin(self, db: sqlite3.Connection) -> None:
        """Clear the cache if another connection has written. It is invalid until `keep`.

        The caller has begun a transaction that locks out other writers.
        """
        self.others_commit = False
        header = self._newest_header()
        is_kept = self._stamp == db.total_changes
        if not (is_kept and header and header == self._header):
            version = _version(db)
            self.others_commit = self._version not in (0, version)
            if not is_kept or version != self._version:
                self.forget()
            self._version = version
        self._stamp = None
        self._changed.clear()
        self._before, self._begun = header, db.total_changes

    def keep(self, db: sqlite3.Connection) -> None:
        """Mark the cache as valid: the transaction was committed."""
        self._publish(db)
        for name in self._changed:
            if name in self.threads:
                self._weigh(self.threads[name])
        while len(self.threads) > _MOST or self._bytes > _LIMIT:
            oldest = self.threads.pop(next(iter(self.threads)))
            self._heads.pop(oldest.thread, None)
            self._bytes -= oldest.weighed
        while len(self.heaps) > _MOST:
            del self.heaps[next(iter(self.heaps))]
        # (last: after an interrupt, the next transaction forgets everything)
        self._stamp = db.total_changes

    def _weigh(self, thread: KnownThread) -> None:
        weight = thread.weight
        self._bytes += weight - thread.weighed
        thread.weighed = weight

    def holds(self, db: sqlite3.Connection) -> bool:
        """Return True if no other connection has written since `keep`."""
        if self._stamp != db.total_changes:
            return False
        header = self._newest_header()
        return (header != b"" and header == self._header) or _version(db) == self._version

    def _newest_header(self) -> bytes:
        return b"" if self._index is None else self._index.header()

    # -- without the lock ----------------------------------------------------------------

    def _publish(self, db: sqlite3.Connection) -> None:
        """Publish the heads of the changed threads to readers without the lock."""
        if not self._has_looked:
            self._index, self._has_looked = find_index(db, self._path), True
        header = self._newest_header()
        # Another connection may have committed after us, and the index may be another file's: each
        # commit that changes rows adds one to the number of changes.
        is_ours = (
            self._before
            and changes_of(header) == changes_of(self._before) + 1
            and db.total_changes != self._begun
        )
        for name in self._changed:
            self._heads.pop(name, None)
            state = self._head_of(self.threads.get(name)) if is_ours else None
            if state is not None:
                self._heads[name] = state
        self._header = header if is_ours else b""  # (last, so that the heads are at least as new)

    def _is_newest(self, header: bytes) -> bool:
        return header != b"" and self._newest_header() == header

    def at_hand(self, read: ReadCheckpoint) -> ThreadState | None:
        """Return the reply to a read of a head if the cached one is still valid, else None.

        Never waits, and needs no lock.
        """
        header = self._header  # (first: see `_publish`)
        state = self._heads.get(read.thread)
        if state is None or state.found is None or read.ns:
            return None
        is_asked = read.id is None or read.id == state.found.row.id
        return state if is_asked and self._is_newest(header) else None

    def thread(self, name: str) -> tuple[KnownThread | None, KnownHeap | None]:
        """Return a thread that is about to change, and its heap, each None if it is unknown."""
        self._changed.add(name)
        thread = self.threads.pop(name, None)
        if thread is not None and len(thread.spaces) > _MOST_SPACES:
            self._bytes -= thread.weighed
            thread = None
        if thread is None:
            return None, None
        self.threads[name] = thread  # (move it to the end: the first are evicted first)
        heap = self.heaps.pop(thread.heap, None)
        if heap is None or heap.is_large:
            return thread, None
        self.heaps[thread.heap] = heap
        return thread, heap

    def heap_of(self, thread: KnownThread) -> KnownHeap:
        """Return a thread's heap, which is empty if the thread is not stored."""
        if not thread.number:
            return KnownHeap(is_whole=True)
        heap = self.heaps.get(thread.heap)
        if heap is None:
            heap = self.heaps[thread.heap] = KnownHeap(is_whole=False)
        return heap

    def head(self, read: ReadCheckpoint) -> ThreadState | None:
        """Return the reply to a read of a head, or None if it is unknown."""
        state = self._head_of(self.threads.get(read.thread))
        if state is None or state.found is None or read.ns:
            return None
        return state if read.id in (None, state.found.row.id) else None

    def _head_of(self, thread: KnownThread | None) -> ThreadState | None:
        head = None if thread is None else thread.head_in(self.heaps.get(thread.heap))
        if thread is None or head is None:
            return None
        deleted_at = thread.deleted_at or 0
        return ThreadState(thread.generation, deleted_at, head, thread.named, thread.life)

    def remember(self, read: ReadCheckpoint, reply: ThreadState) -> None:
        """Cache a head that the connection has read, if the thread is known.

        If others have written since `keep`, the whole cache is cleared before its next use.
        """
        thread, found = self.threads.get(read.thread), reply.found
        if thread is None or found is None or read.ns or read.id or found.child is not None:
            return
        thread.set_head(self.heap_of(thread), found)
        self._weigh(thread)
        if thread.head is not None and self._is_newest(self._header):
            self._heads[read.thread] = reply


def _size(head: StoredCheckpoint) -> int:
    row, keyframe = head.row, head.keyframe
    size = len(row.manifest) + len(row.metadata) + len(row.exact or b"")
    size += 0 if keyframe is None else len(keyframe.data)
    return size + _bodies(head.writes) if head.writes else size


def _bodies(writes: Sequence[WriteRow]) -> int:
    return sum([len(write.body) for write in writes])


def _holder(segments: Iterable[Segment], row: CheckpointRow) -> Segment | None:
    for one in segments:
        if one.log == row.key_log and one.start <= row.key_pos < one.start + one.count:
            return one
    return None


def _version(db: sqlite3.Connection) -> int:
    """Return a number that changes when another connection commits, and only then."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])
