"""Whole threads: read from one store, put into another.

What is read is one state of a thread, without elements that its own rows do not refer to. What is
put refers to nothing that is not there yet, and no row that it replaces is lost, unless the caller
says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import NamedTuple, TypeAlias, TypeVar, cast

from threadkeep.codec.frame import Compression
from threadkeep.engine import thread_entry, thread_summary
from threadkeep.engine.cold_references import STUB
from threadkeep.engine.lineage import Lineage, Positions, overlap, parts, positions, touches
from threadkeep.engine.model import (
    Batch,
    CheckpointRow,
    DropThread,
    FindThreads,
    ReadSegments,
    ReadThread,
    RowsFence,
    Segment,
    SegmentInfo,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep.engine.operation import (
    Fetch,
    Operation,
    commit,
    fetch,
    fetch_checkpoint,
)
from threadkeep.engine.optimistic import read_snapshot, retry, rows_fence
from threadkeep.engine.refs import covering, span_of
from threadkeep.engine.rows import body_of, manifest_of, with_body, with_manifest
from threadkeep.engine.thread_entry import (
    EntryFence,
    ReadEntry,
    ThreadEntry,
    ThreadStatus,
    is_archived,
)
from threadkeep.errors import (
    StaleThreadError,
    ThreadExistsError,
    ThreadkeepError,
)

T = TypeVar("T")
Row: TypeAlias = CheckpointRow | WriteRow
CheckpointKey: TypeAlias = tuple[str, str]
"""The namespace and id of a checkpoint."""

_PAGE = 256
_MOST_BYTES = 4 << 20  # in one read or write: Redis runs nothing else meanwhile
_MOST_ROWS = 128


@dataclass(frozen=True, slots=True)
class WholeThread:
    """One state of a thread, complete in itself.

    Attributes:
        thread: its id.
        deleted_at: its tombstone; 0 if it was never deleted.
        segments: by log and start.
        checkpoints: by namespace and id, hidden ones included.
        writes: by namespace and id, orphans included; those of a checkpoint in `seq` order,
            which counts from 1 without gaps.
        digests: of the checkpoints, in their order, if they were computed.
        entry: the registry's entry, if there is one.
    """

    thread: str
    deleted_at: int
    segments: tuple[Segment, ...]
    checkpoints: tuple[CheckpointRow, ...]
    writes: tuple[WriteRow, ...]
    digests: tuple[bytes, ...] | None = None
    entry: ThreadEntry | None = None

    @property
    def is_nothing(self) -> bool:
        """True if there is no trace of the thread, not even a tombstone."""
        rows = self.segments or self.checkpoints or self.writes
        return not (self.deleted_at or rows or self.entry)


def all_threads(*, empty: bool = True) -> Operation[list[str]]:
    """Return the ids of all threads, in order; with `empty` also those without checkpoints."""
    names: list[str] = []
    while True:
        after = names[-1] if names else None
        page = cast("list[str]", (yield from fetch(FindThreads(after, _PAGE, empty=empty))))
        names += page
        if len(page) < _PAGE:
            return names


# -- reading -------------------------------------------------------------------------


def read_thread(thread: str, *, stub: bool = True, stubs: bool = False) -> Operation[WholeThread]:
    """Read one state of a thread, while others write, seal and prune it.

    Args:
        thread: its id.
        stub: leave an archived thread in the cold store; it has no rows then.
        stubs: leave offloaded segments in the cold store, and read their stubs.

    Raises:
        ConflictError: segments were removed at every attempt.
        CorruptionError: damaged rows had to be numbered again.
    """
    state = yield from read_state(thread, stub=stub, stubs=stubs)
    return state.whole


class StoredThread(NamedTuple):
    """A whole thread, with its rows, entry and uncut segments as they are in the store."""

    whole: WholeThread
    rows: ThreadRows
    entry: ThreadEntry | None
    segments: tuple[Segment, ...] = ()


def read_state(thread: str, *, stub: bool = True, stubs: bool = False) -> Operation[StoredThread]:
    """See `read_thread`."""

    def attempt() -> Operation[StoredThread]:
        rows, entry = yield from read_rows(thread, stub=stub)
        used = _used(rows.checkpoints, rows.orphans)
        places = [s for s in rows.segments if used is None or touches(used, span_of(s))]
        if not places:
            return StoredThread(whole_of(thread, rows, (), entry), rows, entry)
        segments = yield from _segments(thread, places, stubs=stubs)
        # Positions are given again only after a removal, and that raises the generation.
        after = yield from fetch_checkpoint(thread, "", None)
        if after.generation != rows.generation or not _cover(segments, places):
            raise StaleThreadError(thread=thread)
        whole = whole_of(thread, rows, _of_use(segments, used), entry, stubs=stubs)
        return StoredThread(whole, rows, entry, tuple(segments))

    return retry(thread, attempt)


def read_rows(
    thread: str, *, stub: bool = True
) -> Operation[tuple[ThreadRows, ThreadEntry | None]]:
    """Read a thread without its segments, and its entry; `stub` as in `read_thread`."""
    rows, entry = yield Fetch([ReadThread(thread, stub=stub), ReadEntry(thread)])
    return rows, entry


def _used(
    checkpoints: Iterable[StoredCheckpoint], orphans: Iterable[WriteRow]
) -> dict[int, list[Span]] | None:
    """Return the positions that a thread's rows refer to; None of damaged rows."""
    try:
        lineage = Lineage(checkpoints)
        return positions(lineage, lineage.stored, orphans)
    except ThreadkeepError:
        return None  # they are copied as they are, with all that may be theirs


def _of_use(segments: Iterable[Segment], used: Positions | None) -> Sequence[Segment]:
    """Cut segments to the positions in use: a shared one also holds elements of other threads."""
    if used is None:
        return tuple(segments)
    return [part for segment in segments for part in _parts_used(segment, used)]


def _parts_used(segment: Segment, used: Positions) -> Sequence[Segment]:
    spans = overlap(used, segment.span)
    if not spans or spans == [segment.span]:
        return [segment] if spans else ()
    try:
        return parts(segment, spans, Compression())
    except ThreadkeepError:
        return [segment]  # (damaged, or a stub: opening it raises)


def trimmed(whole: WholeThread) -> WholeThread:
    """Return a thread without elements that its rows do not refer to, as `read_thread` does."""
    by_span = sorted(whole.segments, key=lambda segment: segment.span)

    def key_of(row: CheckpointRow) -> Segment | None:
        at = bisect_right(by_span, (row.key_log, row.key_pos), key=lambda s: (s.log, s.start))
        return by_span[at - 1] if at else None

    stored = [StoredCheckpoint(whole.thread, row, key_of(row), ()) for row in whole.checkpoints]
    used = _used(stored, whole.writes)
    return replaced(whole, segments=tuple(_of_use(whole.segments, used)))


def _segments(
    thread: str, places: Iterable[SegmentInfo], *, stubs: bool
) -> Operation[list[Segment]]:
    """Read what is at these places now: the same segments, or sealed ones that hold them."""
    found: dict[Span, Segment] = {}
    for part in parts_of(places, lambda place: place.size):
        spans = covering(map(span_of, part))
        for segment in (yield from fetch(ReadSegments(thread, spans, stub=stubs))):
            found[segment.span] = segment
    # A page read later may hold a sealed segment in place of some that an earlier one had.
    return [found[span] for span in _outermost(found)]


def _outermost(spans: Iterable[Span]) -> Iterator[Span]:
    """Sort spans, without those that lie within another."""
    log, stop = -1, 0
    for span in sorted(spans, key=lambda span: (span.log, span.start, -span.stop)):
        if span.log != log or span.stop > stop:
            yield span
            log, stop = span.log, span.stop


def _cover(segments: Iterable[Segment], places: Iterable[SegmentInfo]) -> bool:
    """Return True if the segments hold all positions of these places."""
    wanted = covering(map(span_of, places))
    return covering([*wanted, *(s.span for s in segments)]) == covering(s.span for s in segments)


def whole_of(
    thread: str,
    rows: ThreadRows,
    segments: Sequence[Segment] = (),
    entry: ThreadEntry | None = None,
    *,
    stubs: bool = False,
) -> WholeThread:
    """Make a whole thread of what was read, its writes numbered again from 1.

    Args:
        thread: its id.
        rows: its rows.
        segments: its segments.
        entry: its entry.
        stubs: stubs among the segments stay: keep the record of their archive.

    Raises:
        CorruptionError: damaged rows had to be numbered again.
    """
    writes = [row for stored in rows.checkpoints for row in stored.writes]
    checkpoints, writes = _numbered(
        [stored.row for stored in rows.checkpoints], [*writes, *rows.orphans]
    )
    keeps = stubs and any(segment.data.startswith(STUB) for segment in segments)
    if entry is not None:
        # (the revision counts in its own store only, the rows give the size, and an archive is
        # the store's own, unless it holds all there is)
        own = entry.labels
        if entry.state != ThreadStatus.ARCHIVED and not keeps:
            own = thread_entry.without_record(own, thread_entry.ARCHIVE_RECORD)
        entry = entry._replace(revision=0, size=0, labels=own)
    return WholeThread(
        thread, rows.deleted_at, tuple(segments), tuple(checkpoints), tuple(writes), entry=entry
    )


def _numbered(
    checkpoints: list[CheckpointRow], writes: list[WriteRow]
) -> tuple[list[CheckpointRow], list[WriteRow]]:
    """Number each checkpoint's writes from 1, as a store will.

    `seen` is such a number: where there was a gap it changes, and with it the checksum.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for write in writes:
        places.setdefault((write.ns, write.checkpoint_id), []).append(write.seq)
    gaps = {place: seqs for place, seqs in places.items() if seqs[-1] != len(seqs)}
    if not gaps:
        return checkpoints, writes
    for at, row in enumerate(checkpoints):
        seqs = gaps.get((row.ns, row.parent)) if row.parent is not None else None
        if seqs:
            seen = bisect_right(seqs, row.seen)
            checkpoints[at] = with_manifest(row._replace(seen=seen), manifest_of(row))
    for at, write in enumerate(writes):
        seqs = gaps.get((write.ns, write.checkpoint_id))
        if seqs:
            seen, seq = bisect_right(seqs, write.seen), bisect_right(seqs, write.seq)
            numbered = with_body(write._replace(seen=seen), body_of(write))
            writes[at] = numbered._replace(seq=seq)
    return checkpoints, writes


# -- putting -------------------------------------------------------------------------


def refuse_loss(whole: WholeThread, *, stubs: bool = False) -> Operation[None]:
    """Refuse to put a thread that lacks a row or segment of the one in the store.

    Raises:
        ThreadExistsError: there is such a row or segment.
    """
    _refuse_loss(whole, (yield from read_state(whole.thread, stubs=stubs)))


def outlook(whole: WholeThread, *, stubs: bool = False) -> Operation[tuple[bool, bool]]:
    """Return what putting a thread would do: if it changes anything, and if something is lost."""
    there = yield from read_state(whole.thread, stubs=stubs)
    return not _is_there(there.whole, whole), _loses(whole, there)


def put_thread(
    whole: WholeThread, now: int, *, replace: bool = False, stubs: bool = False
) -> Operation[bool]:
    """Put a thread that is not there, and complete a put that was cut off.

    Args:
        whole: the thread.
        now: microseconds since 1970.
        replace: remove the thread of this id that is there.
        stubs: compare stubs of offloaded segments, instead of what they stand for.

    Returns:
        False if all of it was there.

    Raises:
        ThreadExistsError: rows or segments in the store would be lost.
        ConflictError: others write to this thread all the time.
    """

    def attempt() -> Operation[bool]:
        state = yield from read_state(whole.thread, stubs=stubs)
        there = state.whole
        if not replace:
            _refuse_loss(whole, state)
        if _is_there(there, whole):
            if there.entry is None and whole.entry is not None:
                yield from commit(_registered(whole, now))
            return False
        yield from _put(whole, state, now)
        return True

    return retry(whole.thread, attempt)


def _refuse_loss(whole: WholeThread, there: StoredThread) -> None:
    if _loses(whole, there):
        raise ThreadExistsError(
            "The store holds this thread already, in another state.",
            hint="It is left as it is. To replace it: replace=True, or --replace.",
            thread=whole.thread,
        )


def _loses(whole: WholeThread, there: StoredThread) -> bool:
    """Return True if something in the store, uncut or in use, is not in the thread."""
    own = _rows_of(whole)
    uncut = _rows_of(replaced(there.whole, segments=there.segments))
    has_all = uncut <= own or _rows_of(there.whole) <= own
    return is_archived(there.entry) or not has_all


def _rows_of(whole: WholeThread) -> set[Row | Segment]:
    return {*whole.checkpoints, *whole.writes, *whole.segments}


def _is_there(there: WholeThread, whole: WholeThread) -> bool:
    # (the tombstone does not matter if the thread has been used since)
    same_tombstone = bool(whole.checkpoints) or there.deleted_at == whole.deleted_at
    is_same = same_tombstone and _rows_of(there) == _rows_of(whole)
    return is_same and not is_archived(there.entry)


def _put(whole: WholeThread, there: StoredThread, now: int) -> Operation[None]:
    """Put a thread: by one change if it replaces another one, else part by part."""
    is_empty = not (there.rows.segments or _rows_of(there.whole) or is_archived(there.entry))
    if is_empty and there.whole.deleted_at == whole.deleted_at:
        for batch in _batches(whole, there.rows.generation, now):
            yield from commit(batch)
        return
    fence = yield from fence_of(there)
    fences = (fence, EntryFence(there.entry.revision if there.entry else 0))
    rows = _registered(whole, now)._replace(
        segments=whole.segments, checkpoints=whole.checkpoints, writes=whole.writes, bump=True
    )
    generation = there.rows.generation
    yield from commit(DropThread(whole.thread, whole.deleted_at, generation, fences, rows=rows))


def fence_of(state: StoredThread) -> Operation[RowsFence]:
    """Return a fence that holds as long as nobody adds a row to the thread or its family."""
    others: tuple[ThreadRows, ...] = ()
    if state.rows.family:
        others = (yield from read_snapshot(state.whole.thread)).others
    return rows_fence((state.rows, *others))


def _batches(whole: WholeThread, generation: int, now: int) -> Iterator[Batch]:
    """Yield segments before rows, older checkpoints before younger ones.

    The last batch raises the generation: a process may remember another thread of this id, say
    one that has expired.
    """
    plain = Batch(whole.thread, now, generation, fences=(RowsFence(0, 0),))
    for segments in parts_of(whole.segments, lambda segment: len(segment.data)):
        yield plain._replace(segments=tuple(segments))
    batches = list(row_batches(plain, RowsFence(0, 0), [*whole.checkpoints, *whole.writes]))
    last = _registered(whole, now)
    yield from batches[:-1]
    if batches:
        last = batches[-1]._replace(bump=True, entry=last.entry, touch=last.touch)
    if last.entry is not None:
        yield last


def _registered(whole: WholeThread, now: int) -> Batch:
    """Return a batch that registers the thread by its entry, or else by its rows."""
    entry = whole.entry
    if entry is not None and entry.state == ThreadStatus.DELETED:
        entry = None
    checkpoints, orphans = stored_of(whole)
    if entry is None and whole.checkpoints:
        entry = thread_summary.entry_of(whole.thread, checkpoints, now)
    touch = thread_summary.of_rows(checkpoints, orphans, sum([len(s.data) for s in whole.segments]))
    # (a thread of generation 0 counts as never archived)
    return Batch(
        whole.thread, now, bump=is_archived(entry), entry=entry, touch=touch._replace(moves=())
    )


def stored_of(whole: WholeThread) -> tuple[list[StoredCheckpoint], list[WriteRow]]:
    """Return the checkpoints with their writes, and the writes on none of them."""
    writes: dict[tuple[str, str], list[WriteRow]] = {}
    for write in whole.writes:
        writes.setdefault((write.ns, write.checkpoint_id), []).append(write)
    checkpoints = [
        StoredCheckpoint(whole.thread, row, None, tuple(writes.pop((row.ns, row.id), ())))
        for row in whole.checkpoints
    ]
    return checkpoints, [write for some in writes.values() for write in some]


def row_batches(plain: Batch, done: RowsFence, rows: Iterable[Row]) -> Iterator[Batch]:
    """Yield rows in batches, older checkpoints before younger ones, each with its writes.

    Args:
        plain: a batch without rows.
        done: the number of rows before the first one.
        rows: the rows.
    """
    for part in parts_of(sorted(rows, key=_age), thread_summary.row_size):
        checkpoints = tuple([row for row in part if isinstance(row, CheckpointRow)])
        writes = tuple([row for row in part if isinstance(row, WriteRow)])
        yield plain._replace(fences=(done,), checkpoints=checkpoints, writes=writes)
        done = RowsFence(done.checkpoints + len(checkpoints), done.writes + len(writes))


def _age(row: Row) -> tuple[str, str, int]:
    if isinstance(row, CheckpointRow):
        return (row.id, row.ns, 0)
    return (row.checkpoint_id, row.ns, row.seq)


def parts_of(
    items: Iterable[T],
    size: Callable[[T], int],
    most_items: int | None = None,
    most_bytes: int | None = None,
) -> Generator[list[T], None, None]:
    """Yield the items in parts that are neither too many nor too large."""
    most_items, most_bytes = most_items or _MOST_ROWS, most_bytes or _MOST_BYTES
    part: list[T] = []
    total = 0
    for item in items:
        if part and (len(part) >= most_items or total + size(item) > most_bytes):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part
