"""Whole threads: read from one store, put into another.

What is read is one state of a thread, without elements that its own rows do not refer to. What is
put refers to nothing that is not there yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from threadkeep.codec.frame import Compression, unpack
from threadkeep.engine import thread_entry, thread_summary
from threadkeep.engine.cold_references import STUB
from threadkeep.engine.lineage import (
    Lineage,
    Positions,
    by_log,
    overlap,
    parts,
    positions,
    touches,
)
from threadkeep.engine.model import (
    OWN_NS,
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
from threadkeep.engine.operation import Fetch, Operation, commit, fetch, fetch_checkpoint
from threadkeep.engine.optimistic import Snapshot, read_snapshot, retry, rows_fence
from threadkeep.engine.refs import covering, span_of
from threadkeep.engine.rows import body_of, manifest_of, with_body, with_manifest
from threadkeep.engine.thread_entry import (
    ReadEntry,
    ThreadEntry,
    ThreadStatus,
    is_archived,
    is_there,
)
from threadkeep.errors import CodecError, StaleThreadError, ThreadExistsError, ThreadkeepError

T = TypeVar("T")
S = TypeVar("S", Segment, SegmentInfo)
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
        spare: bytes of memory that reading it may take beside its elements, if it is not trusted.
    """

    thread: str
    deleted_at: int
    segments: tuple[Segment, ...]
    checkpoints: tuple[CheckpointRow, ...]
    writes: tuple[WriteRow, ...]
    digests: tuple[bytes, ...] | None = None
    entry: ThreadEntry | None = None
    spare: int | None = field(default=None, compare=False)

    @property
    def is_nothing(self) -> bool:
        """True if there is no trace of the thread, not even a tombstone."""
        return self == WholeThread(self.thread, 0, (), (), ())

    @property
    def is_listed(self) -> bool:
        """True if `threads` lists it: it has checkpoints, or an entry that is not deleted."""
        has_entry = self.entry is not None and self.entry.state not in ("", ThreadStatus.DELETED)
        return has_entry or bool(self.checkpoints)


def all_threads() -> Operation[list[str]]:
    """Return the ids of all threads, in order, also of those without checkpoints.

    Those of threadkeep's own, such as what a monitor has left behind, are left out.
    """
    names: list[str] = []
    while True:
        after = names[-1] if names else None
        page = cast("list[str]", (yield from fetch(FindThreads(after, _PAGE, empty=True))))
        names += page
        if len(page) < _PAGE:
            return [name for name in names if not name.startswith(OWN_NS)]


# -- reading -------------------------------------------------------------------------


class StoredThread(NamedTuple):
    """A whole thread, with its rows and entry as they are in the store."""

    whole: WholeThread
    rows: ThreadRows
    entry: ThreadEntry | None


def read_thread(thread: str, *, stub: bool = True, stubs: bool = False) -> Operation[WholeThread]:
    """Read one state of a thread; see `read_state`."""
    return (yield from read_state(thread, stub=stub, stubs=stubs)).whole


def read_state(thread: str, *, stub: bool = True, stubs: bool = False) -> Operation[StoredThread]:
    """Read one state of a thread, while others write, seal and prune it.

    `stub` leaves an archived thread in the cold store (it has no rows then), `stubs` offloaded
    segments.

    Raises:
        ConflictError: segments were removed at every attempt.
        CorruptionError: damaged rows had to be numbered again.
    """

    def attempt() -> Operation[StoredThread]:
        rows, entry = yield from read_rows(thread, stub=stub)
        used = _used(rows)
        infos = [s for s in rows.segments if used is None or touches(used, span_of(s))]
        segments = yield from _segments(thread, infos, stubs=stubs)
        if infos:
            # Positions are given again only after a removal, and that raises the generation.
            after = yield from fetch_checkpoint(thread, "", None)
            if after.generation != rows.generation or _uncovered(infos, segments):
                raise StaleThreadError(thread=thread)
        whole = whole_of(thread, rows, _in_use(segments, used), entry, stubs=stubs)
        return StoredThread(whole, rows, entry)

    return retry(thread, attempt)


def read_rows(
    thread: str, *, stub: bool = True
) -> Operation[tuple[ThreadRows, ThreadEntry | None]]:
    """Read a thread without its segments, and its entry; `stub` as in `read_thread`."""
    rows, entry = yield Fetch([ReadThread(thread, stub=stub), ReadEntry(thread)])
    return rows, thread_entry.sound(entry)


def _used(rows: ThreadRows) -> Positions | None:
    """Return the positions that a thread's rows refer to; None of damaged rows."""
    try:
        lineage = Lineage(rows.checkpoints)
        return positions(lineage, lineage.stored, rows.orphans)
    except ThreadkeepError:
        return None  # they are copied as they are, with all that may be theirs


def _in_use(segments: list[Segment], used: Positions | None) -> list[Segment]:
    """Cut segments to the positions in use: a shared one also holds elements of other threads."""
    if used is None:
        return segments
    return [part for segment in segments for part in _parts_in_use(segment, used)]


def _parts_in_use(segment: Segment, used: Positions) -> Sequence[Segment]:
    spans = overlap(used, segment.span)
    if not spans or spans == [segment.span]:
        return [segment] if spans else ()
    try:
        return parts(segment, spans, Compression())
    except ThreadkeepError:
        return [segment]  # (damaged, or a stub: opening it raises)


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
    """Sort spans, without those within another."""
    log, stop = -1, 0
    for span in sorted(spans, key=lambda span: (span.log, span.start, -span.stop)):
        if span.log != log or span.stop > stop:
            yield span
            log, stop = span.log, span.stop


def whole_of(
    thread: str,
    rows: ThreadRows,
    segments: Sequence[Segment] = (),
    entry: ThreadEntry | None = None,
    *,
    stubs: bool = False,
) -> WholeThread:
    """Make a whole thread of what was read, its writes numbered again from 1.

    With `stubs`, stubs among the segments stay, and so does the record of their archive.

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


def fence_of(state: StoredThread) -> Operation[RowsFence]:
    """Return a fence that holds as long as nobody adds a row to the thread or its family."""
    others: tuple[ThreadRows, ...] = ()
    if state.rows.family:
        others = (yield from read_snapshot(state.whole.thread)).others
    return rows_fence((state.rows, *others))


# -- putting -------------------------------------------------------------------------

Outcome: TypeAlias = Literal["unchanged", "added", "extended", "replaced"]


def put_thread(
    whole: WholeThread,
    now: int,
    *,
    replace: bool = False,
    marks: bool = False,
    dry_run: bool = False,
) -> Operation[Outcome]:
    """Put a thread, or what the one of its id lacks; repeat it after it was cut off.

    `now` are microseconds since 1970. With `replace` it takes the place of one with other rows,
    with `marks` one with the same rows gets its labels, pin and time to live.

    Raises:
        ThreadExistsError: rows in the store would be lost.
        ConflictError: others keep changing this thread.
    """

    def attempt() -> Operation[Outcome]:
        there = yield from read_snapshot(whole.thread)
        numbered = whole_of(whole.thread, there.rows)
        is_lost = is_archived(there.entry) or not rows_of(numbered) <= rows_of(whole)
        if numbered.checkpoints and not (is_lost or marks):  # (a mirror looks at rows alone)
            is_lost = not (yield from _is_sound(whole, there.rows))
        if is_lost and not replace:
            raise ThreadExistsError(
                "The store holds this thread already, in another state.",
                hint="It is left as it is. To replace it: replace=True, or --replace.",
                thread=whole.thread,
            )
        outcome: Outcome = (
            "replaced" if is_lost else "extended" if numbered.checkpoints else "added"
        )
        has_marks = not marks or marks_of(whole.entry) <= marks_of(there.entry)
        if not is_lost and has_marks and _is_complete(whole, numbered, there):
            outcome = "unchanged"
        if not (dry_run or outcome == "unchanged"):
            yield from _put(whole, numbered, there, outcome, now)
        return outcome

    return retry(whole.thread, attempt)


def _is_sound(whole: WholeThread, rows: ThreadRows) -> Operation[bool]:
    """Return True if what is stored at a thread's positions holds the same elements."""
    wanted = by_log([segment.span for segment in whole.segments])
    infos = [one for one in rows.segments if touches(wanted, span_of(one))]
    try:
        stored = yield from _segments(whole.thread, infos, stubs=True)
        other = set(stored).difference(whole.segments)
        own = dict(_elements(whole.segments)) if other else {}
        return all(own.get(place, data) == data for place, data in _elements(other))
    except CodecError:
        return False


def _elements(segments: Iterable[Segment]) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Iterate over the elements of segments, each with log and position; stubs have none here."""
    for segment in segments:
        if not segment.data.startswith(STUB):
            for n, data in enumerate(unpack(segment.data, segment.count)):
                yield (segment.log, segment.start + n), data


def rows_of(whole: WholeThread) -> set[Row]:
    """Return the rows of a thread, which are the same bytes in each of its copies."""
    return {*whole.checkpoints, *whole.writes}


def marks_of(entry: ThreadEntry | None) -> set[Any]:
    """Return the labels, pin and time to live of a thread."""
    if not is_there(entry):
        return set()
    marks = {("pinned", True)} if entry.pinned else set()
    return {*entry.labels, *marks, *([] if entry.ttl is None else [("ttl", entry.ttl)])}


def _is_complete(whole: WholeThread, numbered: WholeThread, there: Snapshot) -> bool:
    """Return True if a thread has all rows and positions of another, an entry and its tombstone."""
    # (the tombstone does not matter if the thread has been used since)
    same_tombstone = bool(whole.checkpoints) or there.rows.deleted_at == whole.deleted_at
    return (
        same_tombstone
        and is_there(there.entry) >= is_there(whole.entry)
        and rows_of(numbered) == rows_of(whole)
        and not _uncovered(whole.segments, there.rows.segments)
    )


def _put(
    whole: WholeThread, numbered: WholeThread, there: Snapshot, outcome: Outcome, now: int
) -> Operation[None]:
    """Put a thread part by part, or by one change where rows or segments have to give way."""
    if outcome != "replaced" and _fits(whole, numbered, there.rows):
        last = Batch(whole.thread, now)
        for batch in _batches(whole, rows_of(numbered), there, now):
            ready = batch
            if batch.checkpoints or batch.writes:
                ready, last = last, batch
            if ready.segments or ready.checkpoints or ready.writes:
                yield from commit(ready)
        yield from _merge_entry(whole, now, last)
    else:
        rows = _registered(whole, now)
        yield from commit(
            DropThread(
                whole.thread, whole.deleted_at, there.rows.generation, there.fences, rows=rows
            )
        )


def _fits(whole: WholeThread, numbered: WholeThread, rows: ThreadRows) -> bool:
    """Return True if a thread can be extended: what is there keeps its numbers and positions."""
    if not rows_of(numbered):
        return not rows.segments and rows.deleted_at == whole.deleted_at
    stored = [row for one in rows.checkpoints for row in one.writes]
    return {*stored, *rows.orphans} == set(numbered.writes) and all(
        _holds(segment.span, one)
        for segment in _uncovered(whole.segments, rows.segments)
        for one in _overlapping(segment, rows.segments)
    )


def _uncovered(wanted: Iterable[S], stored: Iterable[Segment | SegmentInfo]) -> list[S]:
    """Return the segments of which some position is not stored."""
    spans: dict[int, list[Span]] = {}
    for span in covering(map(span_of, stored)):
        spans.setdefault(span.log, []).append(span)

    def is_covered(wanted: Span) -> bool:
        some = spans.get(wanted.log, [])  # (apart, and in order)
        at = bisect_right(some, wanted.start, key=lambda span: span.start)
        return at > 0 and _holds(some[at - 1], wanted)

    return [one for one in wanted if not is_covered(span_of(one))]


def _holds(outer: Span, inner: Span) -> bool:
    return outer.log == inner.log and outer.start <= inner.start and inner.stop <= outer.stop


def _overlapping(segment: Segment, stored: Iterable[SegmentInfo]) -> list[Span]:
    spans = [span_of(one) for one in stored if one.log == segment.log]
    return [span for span in spans if span.start < segment.stop and segment.start < span.stop]


def _batches(whole: WholeThread, stored: set[Row], there: Snapshot, now: int) -> Iterator[Batch]:
    """Yield what is missing: segments before rows, older checkpoints before younger ones.

    Small segments give way to a larger one, as in sealing. The last batch of a new thread raises
    the generation: a process may remember another thread of this id, say one that has expired.
    """
    plain = Batch(whole.thread, now, there.rows.generation, fences=(there.rows_fence,))
    for part in parts_of(_uncovered(whole.segments, there.rows.segments), lambda s: len(s.data)):
        drops = [span for one in part for span in _overlapping(one, there.rows.segments)]
        keys = tuple([(span.log, span.start, span.stop - span.start) for span in drops])
        yield plain._replace(segments=tuple(part), drop_segments=keys)
    batches = list(_row_batches(plain, there.rows_fence, rows_of(whole) - stored))
    yield from batches[:-1]
    for last in batches[-1:]:
        yield last._replace(bump=not stored)


def _registered(whole: WholeThread, now: int) -> Batch:
    """Return a batch of all of a thread, with its entry, or else one made of its rows."""
    entry = whole.entry if is_there(whole.entry) else None
    checkpoints, orphans = stored_of(whole)
    if entry is None and whole.checkpoints:
        entry = thread_summary.entry_of(whole.thread, checkpoints, orphans, now)
    touch = thread_summary.of_rows(checkpoints, orphans, sum([len(s.data) for s in whole.segments]))
    return Batch(
        whole.thread,
        now,
        segments=whole.segments,
        checkpoints=whole.checkpoints,
        writes=whole.writes,
        bump=True,
        entry=entry,
        touch=touch,
    )


def _merge_entry(whole: WholeThread, now: int, last: Batch) -> Operation[None]:
    """Commit the last rows, with the labels, pin and time to live of both entries."""
    there = yield from read_snapshot(whole.thread, alone=True)
    own = whole.entry if is_there(whole.entry) else None
    if own is None and there.entry is None and whole.checkpoints:
        own = thread_summary.entry_of(whole.thread, *stored_of(whole), now)
    size, entry = thread_summary.bytes_of(there.rows.segments), there.entry
    touch = thread_summary.of_rows(*stored_of(whole), size)
    if own is not None:
        touch = touch._replace(at=own.updated_at, labels=own.labels)
        if not is_there(entry):
            entry = own
        entry = entry._replace(pinned=own.pinned or entry.pinned, ttl=own.ttl or entry.ttl)
    # (a thread of generation 0 counts as never archived)
    bump, fences = last.bump or is_archived(own), (*last.fences, there.entry_fence)
    yield from commit(last._replace(fences=fences, bump=bump, entry=entry, touch=touch))


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


def _row_batches(plain: Batch, done: RowsFence, rows: Iterable[Row]) -> Iterator[Batch]:
    """Yield rows in batches like `plain`, older checkpoints first, each with its writes.

    `done` is the number of rows before the first one.
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
