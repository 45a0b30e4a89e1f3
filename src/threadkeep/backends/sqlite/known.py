"""LRU cache of what the writing connection knows of threads: their rows, log ends and heads.

Used under the write lock; it holds until another process has written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from threadkeep.backends.sqlite.records import pack_id, unpack_id
from threadkeep.engine.model import HIDDEN, Segment, StoredCheckpoint, ThreadState
from threadkeep.engine.thread_entry import ThreadStatus

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from threadkeep.engine.model import Batch, CheckpointRow, ReadCheckpoint, WriteRow
    from threadkeep.engine.thread_entry import Move, Touch

NOTHING, SIZE, TIME, ENTRY, NEW = range(5)
"""Changes of a thread's row: each includes those before it."""

_MOST = 1024  # threads, and heaps
_MOST_PARTS = 64  # namespaces of a thread, logs of a heap
_MOST_WRITTEN = 8  # checkpoints of a namespace whose writes are counted
_MOST_BYTES = 16 * 1024  # of a head


class Head(NamedTuple):
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


class Heap:
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
class Thread:
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
    head: Head | None = None

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

    def tell(self, touch: Touch, now: int) -> None:
        """Apply a touch, but for its labels. See `Touch`."""
        if touch.size or touch.whole:
            self.size = touch.size + (0 if touch.whole else self.size)
            self.changed = self.changed or SIZE
        for move in touch.moves:
            if (self.state or "") in move.sources and self._is_past(move):
                if not self.has_entry:
                    self.created_at = self.updated_at = now if touch.at is None else touch.at
                self.state = move.target
                self.waits_at = pack_id(move.checkpoint) if move.waits else None
                self.edited()
        late = self.updated_at is not None and touch.at and self.updated_at < touch.at
        if late and self.has_entry:
            self.updated_at = touch.at
            self.changed = max(self.changed, TIME)

    def _is_past(self, move: Move) -> bool:
        """Return True if nothing waits that the move does not end."""
        if self.waits_at is None:
            return True
        waits_at = unpack_id(self.waits_at)
        return waits_at < move.checkpoint or (move.same and waits_at == move.checkpoint)

    def edited(self) -> None:
        """Note a change that a fence notices."""
        self.revision += 1
        self.changed = max(self.changed, ENTRY)

    # -- the head ----------------------------------------------------------------------

    def set_head(
        self, heap: Heap, row: CheckpointRow, keyframe: Segment | None, writes: list[WriteRow]
    ) -> None:
        """Remember a head, if it is whole and small."""
        head = None if keyframe is None else Head(row, keyframe, writes, heap.layout)
        self.head = head if head is not None and head.is_small else None

    def add_row(self, heap: Heap, row: CheckpointRow, batch: Batch) -> None:
        """Note a checkpoint that a batch adds: it may be the new head."""
        space = self.space(row.ns)
        old = self.head
        if not row.ns:
            self.head = None
        if row.id <= space.top:
            return
        space.top = row.id
        if row.ns or row.flags & HIDDEN or space.last_seq(row.id) != 0:
            return
        keyframe = _holder(batch.segments, row)
        if keyframe is None and old is not None and old.layout is heap.layout:
            keyframe = _holder((old.keyframe,), row)
        self.set_head(heap, row, keyframe, [])

    def add_write(self, row: WriteRow) -> int:
        """Note a write; return its `seq`."""
        space, checkpoint = self.space(row.ns), row.checkpoint_id
        seq = space.written[checkpoint] = (space.last_seq(checkpoint) or 0) + 1
        head = self.head
        if head is not None and not row.ns and head.row.id == checkpoint:
            head.writes.append(row._replace(seq=seq))
            if not head.is_small:
                self.head = None
        return seq


class Known:
    """Threads and segments that one connection has read or written."""

    def __init__(self) -> None:
        self.last_number = 0  # the greatest of all threads; 0: not known
        self.threads: dict[str, Thread] = {}
        self.heaps: dict[int, Heap] = {}
        self._version = 0
        self._stamp: tuple[int, int] | None = None  # None: a write is under way

    def forget(self) -> None:
        """Know nothing."""
        self.last_number = 0
        self.threads.clear()
        self.heaps.clear()

    def begin(self, db: sqlite3.Connection) -> None:
        """Forget all if anybody else has written. Until `keep`, nothing of it holds.

        The caller has begun a transaction that nobody else can write beside.
        """
        self._version = _version(db)
        if self._stamp != (self._version, db.total_changes):
            self.forget()
        self._stamp = None

    def keep(self, db: sqlite3.Connection) -> None:
        """Let what is known hold: the transaction was committed."""
        self._stamp = (self._version, db.total_changes)
        while len(self.threads) > _MOST:
            del self.threads[next(iter(self.threads))]
        while len(self.heaps) > _MOST:
            del self.heaps[next(iter(self.heaps))]

    def holds(self, db: sqlite3.Connection) -> bool:
        """Return True if nobody else has written since `keep`."""
        return self._stamp is not None and self._stamp == (_version(db), db.total_changes)

    def thread(self, name: str) -> tuple[Thread | None, Heap | None]:
        """Return a thread and its heap, as far as they are known, before anything is added."""
        thread = self.threads.pop(name, None)
        if thread is None or len(thread.spaces) > _MOST_PARTS:
            return None, None
        self.threads[name] = thread  # (to the end: those in front are forgotten first)
        heap = self.heaps.pop(thread.heap, None)
        if heap is None or len(heap.ends) > _MOST_PARTS:
            return thread, None
        self.heaps[thread.heap] = heap
        return thread, heap

    def heap_of(self, thread: Thread) -> Heap:
        """Return a thread's heap. A thread that is not stored has an empty one."""
        if not thread.number:
            return Heap(is_whole=True)
        heap = self.heaps.get(thread.heap)
        if heap is None:
            heap = self.heaps[thread.heap] = Heap(is_whole=False)
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


def _holder(segments: Iterable[Segment], row: CheckpointRow) -> Segment | None:
    for one in segments:
        if one.log == row.key_log and one.start <= row.key_pos < one.start + one.count:
            return one
    return None


def _version(db: sqlite3.Connection) -> int:
    """Return a number that is another one after commits of others, and of nobody else."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])
