"""LRU cache of what the writing connection knows of threads: their rows, log ends and heads.

Used under the write lock; it holds until another connection has written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from threadkeep._core.engine.model import (
    HIDDEN,
    ReadCheckpoint,
    Segment,
    StoredCheckpoint,
    ThreadState,
)
from threadkeep._core.engine.thread_entry import ThreadStatus
from threadkeep._stores.records import allows
from threadkeep._stores.sqlite.opening import MEMORY, WalIndex, find_index
from threadkeep._stores.sqlite.records import pack_id, unpack_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from threadkeep._core.engine.model import Batch, CheckpointRow, WriteRow
    from threadkeep._core.engine.thread_entry import EntryUpdate

NOTHING, SIZE, TIME, ENTRY, NEW = range(5)
"""Changes of a thread's row: each includes those before it."""

_MOST = 1024  # threads, and heaps
_MOST_PARTS = 64  # namespaces of a thread, logs of a heap
_MOST_WRITTEN = 8  # checkpoints of a namespace whose writes are counted
_MOST_BYTES = 16 * 1024  # of a head


class KnownHead(NamedTuple):
    """The greatest visible checkpoint of a thread's root namespace, which has no child.

    It is out of date once the heap has another `layout`.
    """

    row: CheckpointRow
    keyframe: Segment
    writes: list[WriteRow]
    layout: object

    @property
    def is_small(self) -> bool:
        """True if it is worth remembering."""
        row = self.row
        size = len(self.keyframe.data) + len(row.manifest) + len(row.metadata)
        size += len(row.exact or b"") + sum([len(write.body) for write in self.writes])
        return size <= _MOST_BYTES


class KnownHeap:
    """The ends of the logs of a thread, or of several that share them.

    With `is_whole`, a log that has no end here is known to be empty. `layout` is another object
    after each batch that drops segments.
    """

    __slots__ = ("ends", "is_whole", "layout")

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.ends: dict[int, int] = {}
        self.layout = object()

    def end(self, log: int) -> int | None:
        """Return the position behind the last segment of a log; None if that is not known."""
        return self.ends.get(log, 0 if self.is_whole else None)


class Space:
    """The checkpoints of a namespace: the greatest id, and the last `seq` of writes on some.

    Those with an id above `below` that are not `written` have no writes.
    """

    __slots__ = ("below", "top", "written")

    def __init__(self, top: str = "", below: str = "") -> None:
        self.top, self.below = top, below
        self.written: dict[str, int] = {}

    def last_seq(self, checkpoint: str) -> int | None:
        """Return the last `seq` of a checkpoint's writes; None if that is not known."""
        seq = self.written.get(checkpoint)
        return 0 if seq is None and checkpoint > self.below else seq

    def trim(self) -> None:
        """Forget the oldest of many checkpoints."""
        while len(self.written) > _MOST_WRITTEN:
            oldest = next(iter(self.written))
            del self.written[oldest]
            self.below = max(self.below, oldest)


@dataclass(slots=True)
class KnownThread:
    """The columns that batches read and change, the namespaces, and the head.

    `number` is 0 where there is no row yet; `changed` tells what of it is not stored yet. With
    `is_whole`, a namespace that is not here is known to be empty.
    """

    thread: str
    number: int = 0
    heap: int = 0
    generation: int = 0
    deleted_at: int | None = None
    created_at: int | None = None
    updated_at: int | None = None
    size: int = 0
    revision: int = 0
    state: str | None = None
    waits_at: bytes | str | None = None
    changed: int = NOTHING
    is_whole: bool = False
    spaces: dict[str, Space] = field(default_factory=dict)
    head: KnownHead | None = None
    keyframe: tuple[Segment, object] | None = None  # the last one, and the heap's layout then
    early: list[WriteRow] = field(default_factory=list)  # on the next head, which is not there yet

    @property
    def has_entry(self) -> bool:
        """True if the registry knows the thread, and not as deleted."""
        return self.state is not None and self.state != ThreadStatus.DELETED

    def knows(self, ns: str, checkpoint: str) -> bool:
        """Return True if a namespace is known, and the last `seq` on its checkpoint."""
        space = self.spaces.get(ns)
        if space is None:
            return self.is_whole
        space.trim()
        return space.last_seq(checkpoint) is not None

    def space(self, ns: str) -> Space:
        """Return a namespace that is known."""
        space = self.spaces.get(ns)
        if space is None:
            space = self.spaces[ns] = Space()
        return space

    # -- the entry ---------------------------------------------------------------------

    def tell(self, touch: EntryUpdate, now: int) -> None:
        """Apply a touch, but for its labels. See `EntryUpdate`."""
        if touch.size or touch.whole:
            self.size = touch.size + (0 if touch.whole else self.size)
            self.changed = self.changed or SIZE
        for move in touch.moves:
            waits_at = None if self.waits_at is None else unpack_id(self.waits_at)
            if allows(move, self.state, waits_at):
                if not self.has_entry:
                    self.created_at = self.updated_at = now if touch.at is None else touch.at
                self.state = move.target
                self.waits_at = pack_id(move.checkpoint) if move.waits else None
                self.edited()
        late = self.updated_at is not None and touch.at and self.updated_at < touch.at
        if late and self.has_entry:
            self.updated_at = touch.at
            self.changed = max(self.changed, TIME)

    def edited(self) -> None:
        """Note a change that a fence notices."""
        self.revision += 1
        self.changed = max(self.changed, ENTRY)

    # -- the head ----------------------------------------------------------------------

    def set_head(
        self, heap: KnownHeap, row: CheckpointRow, keyframe: Segment | None, writes: list[WriteRow]
    ) -> None:
        """Remember a head, if it is whole and small."""
        head = None if keyframe is None else KnownHead(row, keyframe, writes, heap.layout)
        self.head = head if head is not None and head.is_small else None
        if self.head is not None:
            self.keyframe = self.head.keyframe, heap.layout

    def add_row(self, heap: KnownHeap, row: CheckpointRow, batch: Batch) -> None:
        """Note a checkpoint that a batch adds: it may be the new head."""
        space = self.space(row.ns)
        if not row.ns:
            self.head = None
        if row.id <= space.top:
            return
        space.top = row.id
        if row.ns:
            return
        writes = [write for write in self.early if write.checkpoint_id == row.id]
        self.early = [write for write in self.early if write.checkpoint_id > row.id]
        keyframe = self._keyframe_of(heap, row, batch)
        if row.flags & HIDDEN or space.last_seq(row.id) != len(writes):
            return
        self.set_head(heap, row, keyframe, writes)

    def _keyframe_of(self, heap: KnownHeap, row: CheckpointRow, batch: Batch) -> Segment | None:
        """Return a row's keyframe, if its batch has it or the rows before have the same."""
        keyframe = _holder(batch.segments, row)
        if keyframe is None and self.keyframe is not None and self.keyframe[1] is heap.layout:
            keyframe = _holder((self.keyframe[0],), row)
        is_small = keyframe is not None and len(keyframe.data) <= _MOST_BYTES
        self.keyframe = (keyframe, heap.layout) if keyframe is not None and is_small else None
        return keyframe

    def add_write(self, row: WriteRow) -> int:
        """Note a write; return its `seq`."""
        space, checkpoint = self.space(row.ns), row.checkpoint_id
        seq = space.written[checkpoint] = (space.last_seq(checkpoint) or 0) + 1
        head = self.head
        if row.ns:
            return seq
        if head is not None and head.row.id == checkpoint:
            head.writes.append(row._replace(seq=seq))
            if not head.is_small:
                self.head = None
        elif checkpoint > space.top:
            self.early.append(row._replace(seq=seq))
            if sum([len(write.body) for write in self.early]) > _MOST_BYTES:
                self.early = []
        return seq


class Known:
    """Threads and segments that one connection has read or written.

    `path` is that of its file.
    """

    def __init__(self, path: str = MEMORY) -> None:
        self._path = path
        self.last_number = 0  # the greatest of all threads; 0: not known
        self.threads: dict[str, KnownThread] = {}
        self.heaps: dict[int, KnownHeap] = {}
        self._version = 0
        self._stamp: tuple[int, int] | None = None  # None: a write is under way
        self._index: WalIndex | None = None
        self._has_looked = False  # for the index
        self._before = b""  # its header as the transaction under way began
        self._changed: set[str] = set()  # threads of that transaction
        # For readers without the lock, also during a transaction: heads, which hold as long as the
        # index has this header (empty: they do not).
        self._heads: dict[str, ThreadState] = {}
        self._header = b""

    def forget(self) -> None:
        """Know nothing."""
        self.last_number = 0
        self.threads.clear()
        self.heaps.clear()
        self._heads.clear()

    def begin(self, db: sqlite3.Connection) -> None:
        """Forget all if anybody else has written. Until `keep`, nothing of it holds.

        The caller has begun a transaction that nobody else can write beside.
        """
        if not self.holds(db):
            self.forget()
            self._version = _version(db)
        self._stamp = None
        self._changed.clear()
        self._before = b"" if self._index is None else self._index.header()

    def keep(self, db: sqlite3.Connection) -> None:
        """Let what is known hold: the transaction was committed."""
        self._stamp = (self._version, db.total_changes)
        self._publish(db)
        while len(self.threads) > _MOST:
            del self.threads[next(iter(self.threads))]
        while len(self.heaps) > _MOST:
            del self.heaps[next(iter(self.heaps))]

    def holds(self, db: sqlite3.Connection) -> bool:
        """Return True if nobody else has written since `keep`."""
        if self._stamp is None or self._stamp[1] != db.total_changes:
            return False
        return self._is_newest(self._header) or self._stamp[0] == _version(db)

    # -- without the lock ----------------------------------------------------------------

    def _publish(self, db: sqlite3.Connection) -> None:
        """Let readers without the lock have the heads of the threads that were changed."""
        if not self._has_looked:
            self._index, self._has_looked = find_index(db, self._path), True
        header = b"" if self._index is None else self._index.header()
        # Others may have committed since we did: the version tells, which is read after the header.
        # A header that our commit did not change is not that of our file.
        is_ours = self._before and header != self._before and _version(db) == self._version
        for name in self._changed:
            self._heads.pop(name, None)
            state = self.head(ReadCheckpoint(name, ""))
            if is_ours and state is not None:
                self._heads[name] = state
        while len(self._heads) > _MOST:
            del self._heads[next(iter(self._heads))]
        self._header = header if is_ours else b""  # (last: the heads are at least as new)

    def _is_newest(self, header: bytes) -> bool:
        index = self._index
        return bool(header) and index is not None and index.header() == header

    def at_hand(self, read: ReadCheckpoint) -> ThreadState | None:
        """Return the reply to a read of a head, if memory shows that it holds; else None.

        Waits for nothing, and needs no lock.
        """
        header = self._header  # (first: see `_publish`)
        state = self._heads.get(read.thread)
        if state is None or state.found is None or read.ns:
            return None
        is_asked = read.id is None or read.id == state.found.row.id
        return state if is_asked and self._is_newest(header) else None

    def thread(self, name: str) -> tuple[KnownThread | None, KnownHeap | None]:
        """Return a thread that is about to change, and its heap, as far as they are known."""
        self._changed.add(name)
        thread = self.threads.pop(name, None)
        if thread is None or len(thread.spaces) > _MOST_PARTS:
            return None, None
        self.threads[name] = thread  # (to the end: those in front are forgotten first)
        heap = self.heaps.pop(thread.heap, None)
        if heap is None or len(heap.ends) > _MOST_PARTS:
            return thread, None
        self.heaps[thread.heap] = heap
        return thread, heap

    def heap_of(self, thread: KnownThread) -> KnownHeap:
        """Return a thread's heap. A thread that is not stored has an empty one."""
        if not thread.number:
            return KnownHeap(is_whole=True)
        heap = self.heaps.get(thread.heap)
        if heap is None:
            heap = self.heaps[thread.heap] = KnownHeap(is_whole=False)
        return heap

    def head(self, read: ReadCheckpoint) -> ThreadState | None:
        """Return the reply to a read of a head; None if it is not known."""
        thread = self.threads.get(read.thread)
        head = None if thread is None else thread.head
        if thread is None or head is None or read.ns or read.id not in (None, head.row.id):
            return None
        heap = self.heaps.get(thread.heap)
        if heap is None or heap.layout is not head.layout:
            return None
        found = StoredCheckpoint(read.thread, head.row, head.keyframe, tuple(head.writes))
        return ThreadState(thread.generation, thread.deleted_at or 0, found)

    def remember(self, read: ReadCheckpoint, reply: ThreadState) -> None:
        """Remember the head that the connection has read, if the thread is known.

        Where others have written since `keep`, all is forgotten before it is used.
        """
        thread, found = self.threads.get(read.thread), reply.found
        if thread is None or found is None or read.ns or read.id or found.child is not None:
            return
        thread.set_head(self.heap_of(thread), found.row, found.keyframe, [*found.writes])
        if thread.head is not None and self._is_newest(self._header):
            self._heads[read.thread] = reply


def _holder(segments: Iterable[Segment], row: CheckpointRow) -> Segment | None:
    for one in segments:
        if one.log == row.key_log and one.start <= row.key_pos < one.start + one.count:
            return one
    return None


def _version(db: sqlite3.Connection) -> int:
    """Return a number that is another one after commits of others, and of nobody else."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])
