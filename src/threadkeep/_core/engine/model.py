"""Records that the engine and every backend exchange, each complete in itself.

Ids (of threads, namespaces, checkpoints, tasks) are any text that UTF-8 can encode, ordered by code
point. Numbers are signed and fit in 64 bits.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.engine.records import quick
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    EntryFence,
    EntryUpdate,
    ReadClock,
    ReadEntry,
    SearchThreads,
    ThreadEntry,
)
from threadkeep._core.engine.tips import Link
from threadkeep._core.engine.usage import ReadUsage

OWN_NS = "threadkeep$"
"""Prefix of the namespaces in which threadkeep stores its own data of a thread.

They are copied, moved and erased with the thread. Listings of all namespaces leave them out, and
retention keeps them.
"""
AFTER_OWN = OWN_NS[:-1] + chr(ord(OWN_NS[-1]) + 1)
"""The first text after all that begin with `OWN_NS`."""
INPUTS_NS = f"{OWN_NS}inputs"
"""Namespace of inputs that are stored before they run. Their ids are in order of time."""
INPUT_KEY = "threadkeep_input"  # in metadata: the key of a stored input
LAYERS_NS = f"{OWN_NS}memory"
LAYERS_KEY = "threadkeep_memory"  # in metadata: layered memory's record of archived messages


@quick
class Span(NamedTuple):
    """The positions `start <= p < stop` of log `log`."""

    log: int
    start: int
    stop: int


@quick
class Segment(NamedTuple):
    """An immutable stored run of a log: `count` (at least 1) elements from `start` on."""

    log: int
    start: int
    count: int  # type: ignore[assignment]  # (`tuple.count` is never used on a segment)
    data: bytes  # a frame (`_core.codec.frame`): the backend never looks inside

    @property
    def stop(self) -> int:
        """The position after the last element."""
        return self.start + self.count

    @property
    def size(self) -> int:
        """The bytes of the frame."""
        return len(self.data)

    @property
    def span(self) -> Span:
        """All of the segment's positions."""
        return Span(self.log, self.start, self.stop)


# Bits of `CheckpointRow.flags`: the origin of a checkpoint, and what follows it. HIDDEN is the
# greatest, so that SQL can select visible checkpoints by a range.
FREE = 1  # by a run that chose its checkpoint, or a fork: never fenced
NESTED = 2  # by an update from inside a running task: does not move the fence
CONTINUES = 4  # nodes run next
HIDDEN = 8  # pruned, and kept only because a DeltaChannel is rebuilt through it


@quick
class CheckpointRow(NamedTuple):
    """One checkpoint as stored. `run` and `seen` say which writes on the parent led to it."""

    ns: str
    id: str
    parent: str | None
    run: int  # 0: the run that put the parent continues, else the token of this run's first load
    seen: int  # the `seq` of the newest write on the parent that this load returned
    flags: int
    ts: int | str  # microseconds since 1970 (UTC), or the text if it is not an ISO time
    metadata: str  # JSON text, for queries and people
    exact: bytes | None  # the codec's bytes, if JSON would not return the same metadata
    key_log: int  # position of the keyframe that `manifest` is encoded against
    key_pos: int
    manifest: bytes


@quick
class WriteRow(NamedTuple):
    """The writes of one `put_writes` call, by one task, in one row.

    `seq` is assigned at commit, by the rules of moves (any given value is ignored, except in a
    `numbered` batch): it grows with every row of the same checkpoint. Rows are only ever added. The
    engine decides which of them count.
    """

    ns: str
    checkpoint_id: str
    run: int  # 0: the run that put the checkpoint, else the token of the writer's load
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


@quick
class StoredCheckpoint(NamedTuple):
    """A checkpoint as read: its row, its keyframe, and all its write rows in `seq` order."""

    thread: str
    row: CheckpointRow
    keyframe: Segment | None  # the whole segment that holds it, or None (damage)
    writes: tuple[WriteRow, ...] = ()
    child: Child | None = None  # with the smallest greater id, hidden ones included


@quick
class ThreadState(NamedTuple):
    """The state of a thread, part of every reply about one, and a checkpoint if it was found.

    `generation` grows whenever segments of the thread are removed (delete, prune). Anything cached
    under an older generation must be read again. It is 0 for a missing thread. `deleted_at` is the
    tombstone: microseconds since 1970, or 0 if the thread was never deleted. `tips` are its last
    commits', newest first (see `tips`): a process may only use memory of tips that the row still
    names. `life` is the tip of its last deletion, 0 if there was none. `logs` are the ends of its
    logs, as far as the store knows them.
    """

    generation: int
    deleted_at: int
    found: StoredCheckpoint | None = None
    tips: tuple[int, ...] = ()
    life: int = 0
    logs: Mapping[int, int] = MappingProxyType({})


# -- reads: a closed set -------------------------------------------------------------


class ReadCheckpoint(NamedTuple):
    """One checkpoint, or the head: the greatest id that is not hidden.

    Reply: one `ThreadState`. An explicit id also finds hidden checkpoints.
    """

    thread: str
    ns: str
    id: str | None = None


class ReadSegments(NamedTuple):
    """The segments that overlap the spans. Reply: `Segment`s, each once, in (log, start) order.

    If `generation` is given and is not the thread's, the reply is empty, as other bytes may be at
    these positions. It is also empty if the thread's row does not name each tip of `base`. Stores
    ignore `stub`, which leaves offloaded bytes in the cold store.
    """

    thread: str
    spans: tuple[Span, ...]
    generation: int | None = None
    stub: bool = False
    base: tuple[int, ...] = ()


class ReadPath(NamedTuple):
    """The checkpoint `id` and its ancestors, nearest first, at most `limit`, hidden ones included.

    Reply: `StoredCheckpoint`s with their writes. The path ends at a missing parent.
    """

    thread: str
    ns: str
    id: str
    limit: int


class ScanCheckpoints(NamedTuple):
    """A page of visible checkpoints, newest id first, of one thread or of all threads.

    `id` asks for exactly this id, `before` for smaller ids. `filter` maps metadata keys to str,
    int, float, bool or None: a backend may use it to return fewer rows, but must never drop a match
    (the engine checks each row again), and a row that has `exact` is always a possible match.
    `after` continues after the last row of the previous page: its `(id, thread, ns)`. The order is
    by id descending, then thread, then ns, both ascending. With a `prefix`, only threads whose ids
    begin with it. Reply: at most `limit` `StoredCheckpoint`s with their writes.
    """

    thread: str | None
    ns: str | None
    id: str | None
    before: str | None
    filter: Mapping[str, Any]
    after: tuple[str, str, str] | None
    limit: int
    prefix: str = ""


class ReadThread(NamedTuple):
    """Everything of one thread except the data of its segments, for maintenance.

    Reply: one `ThreadRows`. An unreadable row raises `CorruptionError`. With `skip` it is returned
    as unreadable instead, and checkpoints may come without their keyframes. The thread's own row is
    unreadable, too, if its entry, generation (then 0) or tombstone is damaged. Stores ignore
    `stub`: it leaves an archived thread in the cold store.
    """

    thread: str
    skip: bool = False
    stub: bool = False


THREADS = "threads"
"""`UnreadableRow.table` of a damaged row of a thread itself."""


class UnreadableRow(NamedTuple):
    """A stored row that cannot be turned into a record."""

    table: str  # "threads", "checkpoints", "writes", "segments", or another table of the store
    key: bytes  # finds the row again in the store that it was read from
    problem: str
    data: bytes  # its contents, for a person to read


class SegmentInfo(NamedTuple):
    """The position of a segment, and the bytes of its data."""

    log: int
    start: int
    count: int  # type: ignore[assignment]  # (see `Segment`)
    size: int


class ThreadRows(NamedTuple):
    """All rows of a thread, and the positions of its segments.

    Checkpoints (hidden ones included) are ordered by ns, then id, each with its own writes. Orphans
    are writes whose checkpoint is missing. `family` holds the other threads that share the
    segments, in ascending order: they may need segments that this thread does not use.
    `unreadable` holds the rows that a read with `skip` left out.
    """

    generation: int
    deleted_at: int
    checkpoints: tuple[StoredCheckpoint, ...]
    orphans: tuple[WriteRow, ...]
    segments: tuple[SegmentInfo, ...]
    family: tuple[str, ...] = ()
    unreadable: tuple[UnreadableRow, ...] = ()
    tips: tuple[int, ...] = ()
    life: int = 0


class FindThreads(NamedTuple):
    """Ids of the threads that hold checkpoints (hidden ones count), in ascending order.

    With `run_ids`, only threads with a checkpoint whose metadata's `run_id` is among them. With
    `empty` (and no `run_ids`), all threads that the store knows, including empty ones. Their rows,
    which may be damaged, are not read. `after` continues after that thread id. With a `prefix`,
    only ids that begin with it. Reply: at most `limit` `str`s.
    """

    after: str | None
    limit: int
    run_ids: tuple[str, ...] = ()
    empty: bool = False
    prefix: str = ""


class ReadSizes(NamedTuple):
    """The sizes of threads that hold any row, orphans included.

    Reply: one `Sizes` with at most `limit` threads after `after`, in ascending order. With a
    `prefix`, only threads whose ids begin with it, and the total may be 0.
    """

    after: str | None
    limit: int
    prefix: str = ""


class StoredThreadSize(NamedTuple):
    """The number of a thread's rows (hidden checkpoints count), and the bytes of their contents."""

    thread: str
    checkpoints: int
    writes: int
    segments: int
    row_bytes: int
    segment_bytes: int  # shared ones count for the first thread


class Sizes(NamedTuple):
    """The sizes of some threads, and of the store."""

    total: int  # bytes of the whole store, with its own overhead (may be 0 on later pages)
    threads: tuple[StoredThreadSize, ...]


class ReadDamage(NamedTuple):
    """The damage in the store's own files. Reply: one line of text (`str`) per finding."""


Read: TypeAlias = (
    ReadCheckpoint
    | ReadSegments
    | ReadPath
    | ScanCheckpoints
    | ReadThread
    | FindThreads
    | ReadSizes
    | ReadUsage
    | ReadClock
    | ReadEntry
    | SearchThreads
    | CountThreads
    | ReadDamage
)


# -- changes: a closed set, each atomic ----------------------------------------------


@quick
class HeadFence(NamedTuple):
    """Holds if no checkpoint of `ns` has an id greater than `expected`.

    The batch's own checkpoints do not count (so a retry is harmless), nor do checkpoints flagged
    NESTED. If `expected` is None, the namespace must have no such checkpoint at all.
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

    Then no row was added since they were read, and unused rows are still unused. The rows of all
    threads that share its segments count. Together with an `EntryFence` it also excludes that one
    row was removed and another added, as removing rows raises the revision of the entry.
    """

    checkpoints: int
    writes: int


class Words(NamedTuple):
    """Words of messages for the index of messages: each message's, with spaces between them.

    A thread is indexed as long as each change of its newest checkpoint comes with the words of the
    messages that it adds to the one before. Those of a `whole` thread replace all that are indexed
    of it, and it is indexed then. A store removes them when a thread's time of deletion changes.
    """

    messages: tuple[str, ...] = ()
    whole: bool = False


Fence: TypeAlias = HeadFence | WritesFence | RowsFence | EntryFence


@quick
class Batch(NamedTuple):
    """Rows to add and remove, all or nothing.

    Checked first, in this order:

    - `life` (if given) must be the thread's, else `ThreadDeletedError`;
    - `guard` (if given) must be the thread's holder, else `LeaseLostError`;
    - `generation` (if given) must be the thread's, and its row must name each tip of `base`, else
      `StaleThreadError`;
    - each fence must hold, else `ConflictError`.

    Then come `drop_segments` (each only if log, start and count all match), then `segments`: an
    existing one with the same bytes is skipped, and one that overlaps stored positions in any other
    way is a `SegmentTakenError`. Checkpoint rows replace by (ns, id), and `replace_writes` by (ns,
    checkpoint id, seq). Dropping or replacing a missing row is harmless. A batch that drops or
    hides rows raises the revision of the entry, if there is one. `bump_generation` raises the
    generation of all threads that share the segments. If the thread's own row is in
    `drop_unreadable`, it is handled first: damaged fields get safe values (a generation that it
    never had), and the entry counts as missing. A row that can be compared and has changed is a
    `ConflictError`. `now` is the time in microseconds since 1970. `made` is not stored: it is the
    source that the engine built the batch from.

    With `numbered`, writes keep their `seq`, as in another copy of the thread. For each
    checkpoint, these numbers follow its stored writes'.

    The row then names `tip` first. A change without one gets a random tip from the store.

    If the batch `asks`, or adds a row to `INPUTS_NS`, the thread is due (see `LeaseThread`).

    The registry comes last. The state, labels, pin, ttl and origin of an `entry` become the
    thread's (if it had no entry, so do its times and status, but never its size). Then the
    `touch` is applied.
    """

    thread: str
    now: int
    generation: int | None = None
    life: int | None = None
    fences: tuple[Fence, ...] = ()
    segments: tuple[Segment, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    writes: tuple[WriteRow, ...] = ()
    drop_segments: tuple[tuple[int, int, int], ...] = ()  # log, start, count
    drop_checkpoints: tuple[tuple[str, str], ...] = ()  # ns, id
    drop_writes: tuple[tuple[str, str, int], ...] = ()  # ns, checkpoint id, seq
    replace_writes: tuple[WriteRow, ...] = ()
    hide_checkpoints: tuple[tuple[str, str], ...] = ()  # ns, id
    drop_unreadable: tuple[UnreadableRow, ...] = ()
    bump_generation: bool = False
    entry: ThreadEntry | None = None
    touch: EntryUpdate | None = None
    link: Link | None = None
    numbered: bool = False
    guard: str | None = None
    asks: bool = False
    words: Words | None = None

    @property
    def base(self) -> tuple[int, ...]:
        """The tips that the thread's row must name."""
        return () if self.link is None else self.link.base

    @property
    def tip(self) -> int:
        """The tip of this change, or 0 if the store chooses it."""
        return 0 if self.link is None else self.link.tip

    @property
    def removes(self) -> bool:
        """True if the batch drops or hides rows."""
        drops = (self.drop_checkpoints, self.drop_writes, self.drop_unreadable)
        return any((*drops, self.hide_checkpoints))


class DropThread(NamedTuple):
    """Remove everything of a thread and leave a tombstone.

    Shared segments are removed with the last thread that uses them. The generation of the others is
    raised too. `deleted_at` becomes `now`, and the generation is raised. A thread that never
    existed gets the tombstone too. Its entry then holds only the state "deleted" and the time. With
    `now` 0 neither tombstone nor entry remains, as if the thread was never deleted.

    The thread's row then names the tip of this change alone. If the thread ends (see `ends`), this
    tip is also its new `life`.

    `generation`, `fences` and the base are checked first, as in a `Batch`. An `entry`, with its
    times and its status, becomes the thread's entry. Or `rows` take its place: a batch that
    expects and drops nothing, with segments of its own.
    """

    thread: str
    now: int
    generation: int | None = None
    fences: tuple[Fence, ...] = ()
    entry: ThreadEntry | None = None
    rows: Batch | None = None
    link: Link | None = None

    @property
    def expected(self) -> Batch:
        """The generation, fences and base, as a batch that adds nothing."""
        return Batch(self.thread, self.now, self.generation, fences=self.fences, link=self.link)

    @property
    def ends(self) -> bool:
        """True if nothing takes the thread's place: runs that have loaded it are refused."""
        return bool(self.now) and self.entry is None and self.rows is None

    @property
    def tip(self) -> int:
        """The tip of this change, or 0 if the store chooses it."""
        return 0 if self.link is None else self.link.tip


class CopyThread(NamedTuple):
    """Copy all rows of `source` (hidden ones, writes and segments included) to `target`.

    Stored inputs are not copied: they run once.

    `ThreadExistsError` if `target` holds checkpoints. Orphans of an earlier life of it are removed
    first, its tombstone is cleared and its generation raised. A source without rows changes
    nothing. Otherwise `ConflictError` if `revision` is not the source entry's.
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
    """Begin `target` with some rows of `source`, sharing its segments if the store can.

    Other stores copy the segments. `checkpoints` (ns, id) and `writes` (ns, checkpoint id, seq)
    become the target's unchanged. Missing ones are left out. `StaleThreadError` if `generation` is
    not the source's, `ConflictError` if `revision` is not its entry's, `ThreadExistsError` if
    the target holds rows. The target's tombstone is cleared, the generation of all threads that now
    share segments is raised, and `entry`, as of `now`, becomes the target's whole entry.
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


class LeaseThread(NamedTuple):
    """Take, renew or give back the lease of a thread. It ends by the store's clock.

    A thread with a holder is its own until `lease_until`. Without a holder, `lease_until` is the
    time from which a worker should resume the thread (`DUE`: at once), `HELD_UNTIL` if none may, or
    None if there is nothing to resume. `does` is one of:

    - "take": `holder` becomes the holder for `length` microseconds. `ThreadLockedError` if another
      one holds it. A holder whose lease has ended counts as dead, which is an attempt. `HeldError`
      if the thread is held, or this is its attempt number `most`;
    - "hold": the thread is held, if "take" is refused for its attempts;
    - "release": a thread is held no longer, and has no attempts;
    - "free": the same, and also of a thread that has a holder;
    - "ask": the thread is due, unless it has a holder or is held;
    - "renew": the lease ends later. `LeaseLostError` if it has ended, or is another one's;
    - "end": the holder has finished, but for stored inputs, and runs that the store has lost: then
      the thread's row does not name the tips of the link. This and the last two are also refused if
      the lease is another one's;
    - "yield": the holder stops, and the thread is due if there is anything to resume;
    - "fail": the same after an error, which is an attempt, but only after `length` for each
      attempt. Attempt number `most` holds the thread.

    `last` is the tip of the last renewal of this lease, whose place in the
    row the new tip takes: the row names few tips.
    """

    thread: str
    does: str
    holder: str = ""
    length: int = 0
    most: int = 0
    last: int = 0
    link: Link | None = None

    @property
    def tip(self) -> int:
        """The tip of this change, or 0 if the store chooses it."""
        return 0 if self.link is None else self.link.tip


Change: TypeAlias = Batch | DropThread | CopyThread | ForkThread | LeaseThread
