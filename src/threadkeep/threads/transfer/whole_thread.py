"""Whole threads, read from a store: one state, without elements that its rows do not refer to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from threadkeep._core.codec.frame import Compression
from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.cold_references import STUB
from threadkeep._core.engine.lineage import (
    Lineage,
    Positions,
    overlap,
    parts,
    positions,
    touches,
)
from threadkeep._core.engine.model import (
    OWN_NS,
    CheckpointRow,
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
from threadkeep._core.engine.operation import Fetch, Operation, fetch, fetch_checkpoint
from threadkeep._core.engine.refs import covering, span_of
from threadkeep._core.engine.registration import read_snapshot, retry, rows_fence
from threadkeep._core.engine.rows import body_of, manifest_of, with_body, with_manifest
from threadkeep._core.engine.thread_entry import (
    ReadEntry,
    ThreadEntry,
    ThreadStatus,
    is_there,
)
from threadkeep.errors import StaleThreadError, ThreadkeepError

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
        segments = yield from segments_of(thread, infos, stubs=stubs)
        if infos:
            # Positions are given again only after a removal, and that raises the generation.
            after = yield from fetch_checkpoint(thread, "", None)
            if after.generation != rows.generation or uncovered(infos, segments):
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


def segments_of(
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


# -- parts ---------------------------------------------------------------------------


def rows_of(whole: WholeThread) -> set[Row]:
    """Return the rows of a thread, which are the same bytes in each of its copies."""
    return {*whole.checkpoints, *whole.writes}


def marks_of(entry: ThreadEntry | None) -> set[Any]:
    """Return the labels, pin and time to live of a thread."""
    if not is_there(entry):
        return set()
    marks = {("pinned", True)} if entry.pinned else set()
    return {*entry.labels, *marks, *([] if entry.ttl is None else [("ttl", entry.ttl)])}


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


def uncovered(wanted: Iterable[S], stored: Iterable[Segment | SegmentInfo]) -> list[S]:
    """Return the segments of which some position is not stored."""
    spans: dict[int, list[Span]] = {}
    for span in covering(map(span_of, stored)):
        spans.setdefault(span.log, []).append(span)

    def is_covered(wanted: Span) -> bool:
        some = spans.get(wanted.log, [])  # (apart, and in order)
        at = bisect_right(some, wanted.start, key=lambda span: span.start)
        return at > 0 and holds(some[at - 1], wanted)

    return [one for one in wanted if not is_covered(span_of(one))]


def holds(outer: Span, inner: Span) -> bool:
    """Return True if a span holds all of another one."""
    return outer.log == inner.log and outer.start <= inner.start and inner.stop <= outer.stop


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
