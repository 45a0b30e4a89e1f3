"""Records that the engine and every backend exchange, each complete in itself.

Ids (of threads, namespaces, checkpoints, tasks) are any text that UTF-8 can hold, ordered by code
point. Numbers fit in 64 bits, signed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.engine.thread_entry import (
    CountThreads,
    EntryFence,
    EntryUpdate,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
)
from threadkeep._core.engine.usage import ReadUsage

OWN_NS = "threadkeep$"
"""The beginning of namespaces that hold what threadkeep stores beside a thread's checkpoints.

They go where the thread goes. Listings of all namespaces leave them out, and retention keeps them.
"""
LAYERS_NS = f"{OWN_NS}memory"
LAYERS_KEY = "threadkeep_memory"  # in metadata: the record of what layered memory has archived


class Span(NamedTuple):
    """The positions `start <= p < stop` of log `log`."""

    log: int
    start: int
    stop: int


class Segment(NamedTuple):
    """An immutable stored run of a log: `count` (at least 1) elements from `start` on."""

    log: int
    start: int
    count: int  # type: ignore[assignment]  # (nobody asks a segment how often it holds a value)
    data: bytes  # a frame (`_core.codec.frame`): the backend never looks inside

    @property
    def stop(self) -> int:
        """The position behind the last element."""
        return self.start + self.count

    @property
    def span(self) -> Span:
        """All of the segment's positions."""
        return Span(self.log, self.start, self.stop)


# How a checkpoint came to be, as bits of `CheckpointRow.flags`.
FREE = 1  # of a run that chose its checkpoint, or of a fork: never fenced
NESTED = 2  # put by an update from inside a running task: does not move the fence
HIDDEN = 4  # pruned, kept only because a DeltaChannel is rebuilt through it


class CheckpointRow(NamedTuple):
    """One checkpoint as stored; `run` and `seen` say which writes on the parent led here."""

    ns: str
    id: str
    parent: str | None
    run: int  # 0: the run that put the parent went on; else the token of this run's first load
    seen: int  # the `seq` of the newest write on the parent which that load returned
    flags: int
    ts: int | str  # microseconds since 1970 (UTC), or the text where that is no ISO time
    metadata: str  # JSON text, for queries and people
    exact: bytes | None  # the codec's bytes, where JSON would not give the same metadata back
    key_log: int  # where the keyframe is stored that `manifest` is encoded against
    key_pos: int
    manifest: bytes


class WriteRow(NamedTuple):
    """The writes of one `put_writes` call, by one task, in one row.

    `seq` is assigned by the backend at commit and grows with every row of the same checkpoint (any
    value put in is ignored). Rows are only ever added: the engine decides which of them count.
    """

    ns: str
    checkpoint_id: str
    run: int  # 0: of the run that put the checkpoint; else the token of the writer's load
    seen: int  # as in `CheckpointRow`
    task_id: str
    task_path: str
    body: bytes
    seq: int = 0


class Child(NamedTuple):
    """The part of a checkpoint's first child that says which writes led to it."""

    id: str
    run: int
    seen: int


class StoredCheckpoint(NamedTuple):
    """A checkpoint as read: its row, its keyframe, all its write rows in `seq` order."""

    thread: str
    row: CheckpointRow
    keyframe: Segment | None  # the whole segment that holds it; None: missing (damage)
    writes: tuple[WriteRow, ...] = ()
    child: Child | None = None  # with the smallest greater id, hidden ones included


class ThreadState(NamedTuple):
    """The state of a thread, part of every reply about one, and a checkpoint if it was found.

    `generation` grows whenever segments of the thread are removed (delete, prune): anything cached
    under an older generation must be read again. It is 0 where the thread is not there; where
    threads can vanish by themselves, each life of one has other generations, and a number is valid
    only for the backend object that returned it. `deleted_at` is the tombstone: microseconds since
    1970, 0 if the thread was never deleted.
    """

    generation: int
    deleted_at: int
    found: StoredCheckpoint | None = None


# -- reads: a closed set -------------------------------------------------------------


class ReadCheckpoint(NamedTuple):
    """One checkpoint, or the head: the greatest id that is not hidden.

    Reply: one `ThreadState`. An explicit id finds hidden checkpoints too.
    """

    thread: str
    ns: str
    id: str | None = None


class ReadSegments(NamedTuple):
    """The segments that overlap the spans. Reply: `Segment`s, each once, in (log, start) order.

    With `generation`, none where that is not the thread's own any more: then other bytes may be at
    these positions. `stub` is ignored by a store: it leaves bytes in the cold store where they are.
    """

    thread: str
    spans: tuple[Span, ...]
    generation: int | None = None
    stub: bool = False


class ReadPath(NamedTuple):
    """The checkpoint `id` and its ancestors, nearest first, at most `limit`, hidden ones too.

    Reply: `StoredCheckpoint`s with their writes; stops where a parent is absent.
    """

    thread: str
    ns: str
    id: str
    limit: int


class ScanCheckpoints(NamedTuple):
    """A page of visible checkpoints, newest id first, over one thread or all of them.

    `id` asks for exactly this id, `before` for smaller ids. `filter` maps metadata keys
    to str, int, float, bool or None: a backend may use it to return fewer rows, but
    must never drop a match (the engine checks each row again); a row that has `exact`
    always counts as a possible match. `after` continues
    behind the last row of the page before: its `(id, thread, ns)`; the order is by id
    descending, then thread, then ns, both ascending. Reply: at most `limit`
    `StoredCheckpoint`s with their writes.
    """

    thread: str | None
    ns: str | None
    id: str | None
    before: str | None
    filter: Mapping[str, Any]
    after: tuple[str, str, str] | None
    limit: int


class ReadThread(NamedTuple):
    """Everything but the segments' data of one thread, for maintenance.

    Reply: one `ThreadRows`. A row that cannot be made a record is a `CorruptionError`; with `skip`
    it is returned as unreadable instead, and the checkpoints may come without their keyframes. So
    is then the thread's own row, if its entry, generation (then 0) or tombstone is damaged.
    `stub` is ignored by a store: it leaves an archived thread where it is.
    """

    thread: str
    skip: bool = False
    stub: bool = False


THREADS = "threads"
"""The table of threads' own rows: of one that is damaged, `UnreadableRow.table`."""


class UnreadableRow(NamedTuple):
    """A row that is there and cannot be made a record."""

    table: str  # "threads", "checkpoints", "writes", "segments", or another that the store has
    key: bytes  # finds the row again in the store that it was read from
    problem: str
    data: bytes  # what it holds, for a person to read


class SegmentInfo(NamedTuple):
    """The position of a segment, and how many bytes it takes as stored."""

    log: int
    start: int
    count: int  # type: ignore[assignment]  # (see `Segment`)
    size: int


class ThreadRows(NamedTuple):
    """All rows of a thread, and where its segments are.

    Checkpoints (hidden too) by ns, then id ascending, each with its own writes; orphans
    are writes whose checkpoint is not there. `family` are the other threads that share the
    segments, in ascending order: what one of them does not need, another may. `unreadable` are
    the rows that a read with `skip` has left out.
    """

    generation: int
    deleted_at: int
    checkpoints: tuple[StoredCheckpoint, ...]
    orphans: tuple[WriteRow, ...]
    segments: tuple[SegmentInfo, ...]
    family: tuple[str, ...] = ()
    unreadable: tuple[UnreadableRow, ...] = ()


class FindThreads(NamedTuple):
    """Ids of the threads that hold checkpoints (hidden ones count), in ascending order.

    With `run_ids`, only those with a checkpoint whose metadata has one of them as
    `run_id`. With `empty` (and no `run_ids`) all that the store knows of, also those that
    hold nothing (any more): found without a look at their rows, which may be damaged.
    `after` continues behind that thread id. Reply: at most `limit` `str`s.
    """

    after: str | None
    limit: int
    run_ids: tuple[str, ...] = ()
    empty: bool = False


class ReadSizes(NamedTuple):
    """The sizes of threads that hold any row at all (orphans too).

    Reply: one `Sizes` with at most `limit` threads, in ascending order, from behind `after` on.
    """

    after: str | None
    limit: int


class StoredThreadSize(NamedTuple):
    """The number of a thread's rows (hidden checkpoints count), and their contents in bytes."""

    thread: str
    checkpoints: int
    writes: int
    segments: int
    row_bytes: int
    segment_bytes: int  # those of several threads count for the first


class Sizes(NamedTuple):
    """The sizes of some threads, and of the store."""

    total: int  # bytes that the whole store takes, with its own overhead and free space
    threads: tuple[StoredThreadSize, ...]


class ReadDamage(NamedTuple):
    """The damage in the store's own files. Reply: a line of text (`str`) for each finding."""


Read: TypeAlias = (
    ReadCheckpoint
    | ReadSegments
    | ReadPath
    | ScanCheckpoints
    | ReadThread
    | FindThreads
    | ReadSizes
    | ReadUsage
    | ReadEntry
    | SearchThreads
    | CountThreads
    | ReadDamage
)


# -- changes: a closed set, each atomic ----------------------------------------------


class HeadFence(NamedTuple):
    """Holds if no checkpoint of `ns` has an id greater than `expected`.

    Not counted are the batch's own checkpoints (a retry is harmless) and checkpoints
    flagged NESTED. `expected` None: the namespace has no such checkpoint at all.
    """

    ns: str
    expected: str | None


class WritesFence(NamedTuple):
    """Holds if `checkpoint_id` has no write row of another run with `seq > seen`."""

    ns: str
    checkpoint_id: str
    run: int
    seen: int


class RowsFence(NamedTuple):
    """Holds if the thread has exactly this many checkpoint rows and write rows.

    Then nobody has added one since they were read, and what looked unused still is. The rows of
    all threads that share its segments count. With an `EntryFence` beside it, nobody has removed
    one either and added another: removing rows raises the entry's revision.
    """

    checkpoints: int
    writes: int


Fence: TypeAlias = HeadFence | WritesFence | RowsFence | EntryFence


class Batch(NamedTuple):
    """Rows to add and remove, all or nothing.

    Checked first, in this order: `born` (if given) must be greater than the thread's
    `deleted_at` if it was ever deleted, else `ThreadDeletedError`; `generation` (if given)
    must be the thread's own, else `StaleThreadError`; each fence must hold, else
    `ConflictError`. Then `drop_segments` (each only where log, start and count all match),
    then `segments`: one that is there with the same bytes is skipped, one that overlaps
    stored positions in any other way is a `SegmentTakenError`. Checkpoint rows replace
    by (ns, id). Drops of what is absent are harmless. A batch that drops or hides rows raises the
    revision of the entry, if there is one. `bump_generation` raises the generation, of all
    threads that share the segments. If the thread's own row is one of `drop_unreadable`, that comes
    first: what is damaged gets safe values (a generation that it never had), and the entry counts
    as absent. Where the row can be compared, it is a `ConflictError` if it has changed.
    `now` is the time in microseconds since 1970. `made` is nothing that is stored: what the engine
    made the batch of.

    Last comes the registry: of an `entry`, its state, labels, pin, ttl and origin are the
    thread's from now on (where there was none, so are its times and its `waits_at`; its size
    never); then the `touch`.
    """

    thread: str
    now: int
    generation: int | None = None
    born: int | None = None
    fences: tuple[Fence, ...] = ()
    segments: tuple[Segment, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    writes: tuple[WriteRow, ...] = ()
    drop_segments: tuple[tuple[int, int, int], ...] = ()  # log, start, count
    drop_checkpoints: tuple[tuple[str, str], ...] = ()  # ns, id
    drop_writes: tuple[tuple[str, str, int], ...] = ()  # ns, checkpoint id, seq
    hide_checkpoints: tuple[tuple[str, str], ...] = ()  # ns, id
    drop_unreadable: tuple[UnreadableRow, ...] = ()
    bump_generation: bool = False
    entry: ThreadEntry | None = None
    touch: EntryUpdate | None = None
    made: object = None

    @property
    def removes(self) -> bool:
        """True if the batch drops or hides rows."""
        drops = (self.drop_checkpoints, self.drop_writes, self.drop_unreadable)
        return any((*drops, self.hide_checkpoints))


class DropThread(NamedTuple):
    """Remove everything of a thread and leave a tombstone.

    Segments that others share go with the last of these, whose generation is raised too.
    `deleted_at` becomes `now`, the generation is raised. A thread that never was gets the
    tombstone too. Its entry says "deleted" and the time, and nothing else. `now` 0 leaves no
    tombstone, and no entry: the thread was never deleted.

    `generation` and `fences` are checked first, as a `Batch`'s are. An `entry` is, with its
    times and its `waits_at`, what the registry says of the thread from then on. Or `rows` take its
    place: a batch that expects and drops nothing, and whose segments are apart.
    """

    thread: str
    now: int
    generation: int | None = None
    fences: tuple[Fence, ...] = ()
    entry: ThreadEntry | None = None
    rows: Batch | None = None

    @property
    def expected(self) -> Batch:
        """The generation and fences, as a batch that adds nothing."""
        return Batch(self.thread, self.now, self.generation, fences=self.fences)


class CopyThread(NamedTuple):
    """Copy all rows of `source` (hidden ones, writes and segments too) to `target`.

    `ThreadExistsError` if `target` holds checkpoints; orphans of an earlier life of it are removed
    first, its tombstone is cleared and its generation raised. A source without rows changes
    nothing; else `ConflictError` if `revision` is not its entry's.
    """

    source: str
    target: str
    now: int
    revision: int | None = None

    @property
    def thread(self) -> str:
        """The thread that is written to."""
        return self.target


class ForkThread(NamedTuple):
    """Let `target` begin with some rows of `source`, sharing its segments where the store can.

    Elsewhere they are copied. `checkpoints` (ns, id) and `writes` (ns, checkpoint id, seq) are
    the target's, as they are; those that are not there are left out. `StaleThreadError` if
    `generation` is not the source's own, `ConflictError` if `revision` is not its entry's,
    `ThreadExistsError` if the target holds rows. Its tombstone is cleared, the generation of all
    that share segments now is raised, and `entry`, as of `now`, is the target's whole.
    """

    source: str
    target: str
    now: int
    generation: int
    checkpoints: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str, int], ...]
    entry: ThreadEntry
    revision: int | None = None

    @property
    def thread(self) -> str:
        """The thread that is written to."""
        return self.target


Change: TypeAlias = Batch | DropThread | CopyThread | ForkThread
