"""LRU cache of what the writing connection knows of threads: their rows, log ends and heads.

Used under the write lock. It holds as long as nobody else has written, which is checked
before each use; what is not in it is asked of the database.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from threadkeep.backends.sqlite.records import (
    pack_id,
    unpack_id,
)
from threadkeep.engine.model import HIDDEN, Segment, StoredCheckpoint, ThreadState
from threadkeep.engine.thread_entry import ThreadStatus

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from threadkeep.engine.model import Batch, CheckpointRow, ReadCheckpoint, WriteRow
    from threadkeep.engine.thread_entry import (
        Move,
        Touch,
    )


NOTHING, SIZE, TIME, ENTRY, NEW = range(5)
"""Changes of a thread's row: each includes those before it."""


@dataclass(slots=True)
class ThreadRow:
    """The columns that batches read and change; `number` is 0 where there is no row yet.

    `changed` tells what of it is not stored yet.
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

    @property
    def has_entry(self) -> bool:
        """True if the registry knows the thread, and not as deleted."""
        return self.state is not None and self.state != ThreadStatus.DELETED

    def was_deleted(self, born: int) -> bool:
        """Return True if the thread was deleted after something of it was born."""
        return is_deleted(self.deleted_at, born)

    def tell(self, touch: Touch, now: int) -> None:
        """Apply a touch, but for its labels. See `Touch`."""
        if touch.size or touch.whole:
            self.size = touch.size + (0 if touch.whole else self.size)
            self.changed = self.changed or SIZE
        for move in touch.moves:
            if (self.state or "") in move.sources and self._is_past(move):
                self._move(move, now if touch.at is None else touch.at)
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

    def _move(self, move: Move, at: int) -> None:
        if not self.has_entry:
            self.created_at = self.updated_at = at
        self.state = move.target
        self.waits_at = pack_id(move.checkpoint) if move.waits else None
        self.edited()

    def edited(self) -> None:
        """Note a change that a fence notices."""
        self.revision += 1
        self.changed = max(self.changed, ENTRY)


def is_deleted(deleted_at: int | None, born: int) -> bool:
    """Tell whether a thread was deleted after something of it was born."""
    return deleted_at is not None and deleted_at >= born


Place: TypeAlias = tuple[int, int]
"""Start and stop of a stored segment."""

_MOST = 1024  # threads, and heaps
_MOST_PARTS = 64  # namespaces of a thread, logs of a heap, segments of a log
_MOST_HEADS = 4  # of a heap
_MOST_WRITTEN = 8  # checkpoints of a namespace whose writes are counted
_MOST_BYTES = 16 * 1024  # of a head


class Line:
    """Stored segments of a log: all that end behind `since`, in order."""

    __slots__ = ("places", "since")

    def __init__(self, since: int, places: list[Place]) -> None:
        self.since, self.places = since, places

    def trim(self) -> None:
        """Forget the first of very many."""
        if len(self.places) > _MOST_PARTS:
            self.places = self.places[-_MOST_PARTS // 2 :]
            self.since = self.places[0][0]


def insert(places: list[Place], place: Place) -> Place | None:
    """Insert a segment's place; if it overlaps one, return that and insert nothing."""
    start, stop = place
    if not places or places[-1][1] <= start:
        places.append(place)
        return None
    at = bisect_left(places, (stop,))
    if at and places[at - 1][1] > start:
        return places[at - 1]
    places.insert(at, place)
    return None


class Head:
    """The greatest visible checkpoint of a thread's root namespace, which has no child."""

    __slots__ = ("keyframe", "row", "writes")

    def __init__(self, row: CheckpointRow, keyframe: Segment, writes: list[WriteRow]) -> None:
        self.row, self.keyframe, self.writes = row, keyframe, writes

    @property
    def is_small(self) -> bool:
        """True if it is worth remembering."""
        row = self.row
        size = len(self.keyframe.data) + len(row.manifest) + len(row.metadata)
        return size + len(row.exact or b"") <= _MOST_BYTES and _are_small(self.writes)


def _are_small(writes: list[WriteRow]) -> bool:
    return sum([len(write.body) for write in writes]) <= _MOST_BYTES


class Heap:
    """The segments of a thread, or of several that share them.

    With `is_whole`, a log that has no line here is known to be empty.
    """

    __slots__ = ("heads", "is_whole", "lines")

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.lines: dict[int, Line] = {}
        self.heads: dict[str, Head] = {}  # by thread: a head lasts as long as its keyframe

    def knows(self, log: int, start: int) -> bool:
        """Return True if all segments of the log that end behind `start` are known."""
        line = self.lines.get(log)
        if line is None:
            return self.is_whole
        line.trim()
        return line.since <= start

    def trim(self) -> None:
        """Forget what is too much."""
        if len(self.lines) > _MOST_PARTS:
            self.lines.clear()
            self.is_whole = False
        if len(self.heads) > _MOST_HEADS:
            self.heads.clear()

    def line(self, log: int) -> Line:
        """Return the line of a log that is known."""
        line = self.lines.get(log)
        if line is None:
            line = self.lines[log] = Line(0, [])
        return line

    def move_keyframes(self, batch: Batch) -> None:
        """Follow the heads' keyframes to the segments that take the place of dropped ones."""
        dropped = set(batch.drop_segments)
        for thread, head in [*self.heads.items()]:
            old = head.keyframe
            if (old.log, old.start, old.count) in dropped:
                keyframe = _holder(batch.segments, head.row)
                if keyframe is None:
                    del self.heads[thread]
                else:
                    head.keyframe = keyframe


class Space:
    """The checkpoints of a namespace: the greatest id, and the last `seq` of writes on some.

    Those with an id above `below` that are not `written` have no writes. `early` are the last
    writes of the root namespace that came before their checkpoint.
    """

    __slots__ = ("below", "early", "top", "written")

    def __init__(self, top: str = "", below: str = "") -> None:
        self.top, self.below = top, below
        self.written: dict[str, int] = {}
        self.early: list[WriteRow] = []

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


class Thread:
    """A thread's row and namespaces; `is_whole`: one that is not here is empty."""

    __slots__ = ("is_whole", "row", "spaces")

    def __init__(self, row: ThreadRow) -> None:
        self.row = row
        self.is_whole = not row.number
        self.spaces: dict[str, Space] = {}

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

    def trim(self) -> None:
        """Forget what is too much."""
        if len(self.spaces) > _MOST_PARTS:
            self.spaces.clear()
            self.is_whole = False


class Known:
    """Threads and segments that one connection has read or written."""

    def __init__(self) -> None:
        self.last_number = 0  # the greatest of all threads; 0: not known
        self.threads: dict[str, Thread] = {}
        self.heaps: dict[int, Heap] = {}
        self._version = 0
        self._stamp: tuple[int, int] | None = None  # None: somebody is at it

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

    # -- threads -----------------------------------------------------------------------

    def thread(self, name: str) -> tuple[Thread | None, Heap | None]:
        """Return a thread and its segments, as far as they are known, before anything is added."""
        thread = self.threads.pop(name, None)
        if thread is None:
            return None, None
        self.threads[name] = thread  # (to the end: those in front are forgotten first)
        thread.trim()
        number = thread.row.heap
        heap = self.heaps.pop(number, None)
        if heap is not None:
            self.heaps[number] = heap
            heap.trim()
        return thread, heap

    def heap_of(self, row: ThreadRow) -> Heap:
        """Return what is known of a thread's segments. A thread that is not stored has none."""
        if not row.number:
            return Heap(is_whole=True)
        heap = self.heaps.get(row.heap)
        if heap is None:
            heap = self.heaps[row.heap] = Heap(is_whole=False)
        return heap

    # -- heads -------------------------------------------------------------------------

    def head(self, read: ReadCheckpoint) -> ThreadState | None:
        """Return the reply to a read of a head; None if it is not known."""
        thread = self.threads.get(read.thread)
        heap = None if thread is None or read.ns else self.heaps.get(thread.row.heap)
        head = None if heap is None else heap.heads.get(read.thread)
        if thread is None or head is None or read.id not in (None, head.row.id):
            return None
        found = StoredCheckpoint(read.thread, head.row, head.keyframe, tuple(head.writes))
        return ThreadState(thread.row.generation, thread.row.deleted_at or 0, found)

    def remember(self, read: ReadCheckpoint, reply: ThreadState) -> None:
        """Remember the head that the connection has read, if the thread is known.

        Where others have written since `keep`, all is forgotten before it is used.
        """
        thread, found = self.threads.get(read.thread), reply.found
        heap = None if thread is None else self.heaps.get(thread.row.heap)
        if heap is None or found is None or read.ns or read.id is not None:
            return
        if found.keyframe is not None and found.child is None:
            head = Head(found.row, found.keyframe, [*found.writes])
            if head.is_small:
                heap.heads[read.thread] = head


def add_row(heap: Heap, name: str, space: Space, row: CheckpointRow, batch: Batch) -> None:
    """Note a checkpoint that a batch adds to a thread: it may be the new head."""
    if row.id <= space.top:
        if not row.ns:
            heap.heads.pop(name, None)
        return
    space.top = row.id
    if row.ns:
        return
    old = heap.heads.pop(name, None)
    keyframe = _holder(batch.segments, row)
    if keyframe is None and old is not None:
        keyframe = _holder((old.keyframe,), row)
    early, space.early = space.early, []
    writes = [write for write in early if write.checkpoint_id == row.id]
    if keyframe is not None and not row.flags & HIDDEN and space.last_seq(row.id) == len(writes):
        head = Head(row, keyframe, writes)
        if head.is_small:
            heap.heads[name] = head


def add_write(heap: Heap, name: str, space: Space, row: WriteRow, seq: int) -> None:
    """Note a write that a thread gets, as its last `seq`."""
    if row.ns:
        return
    head = heap.heads.get(name)
    if head is not None and head.row.id == row.checkpoint_id:
        head.writes.append(row._replace(seq=seq))
        if not head.is_small:
            del heap.heads[name]
    elif row.checkpoint_id > space.top:
        space.early = [one for one in space.early if one.checkpoint_id == row.checkpoint_id]
        space.early.append(row._replace(seq=seq))
        if not _are_small(space.early):
            space.early = []


def _holder(segments: Iterable[Segment], row: CheckpointRow) -> Segment | None:
    """Return the segment that holds a checkpoint's keyframe."""
    for one in segments:
        if one.log == row.key_log and one.start <= row.key_pos < one.stop:
            return one
    return None


def _version(db: sqlite3.Connection) -> int:
    """Return a number that is another one after commits of others, and of nobody else."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])
