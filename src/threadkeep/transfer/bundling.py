"""Taking whole threads out of a store, and putting them into another.

Only that lives here; how a thread looks in a file is `bundles`' to say. Invariants: what is
read of a thread is one state of it, and holds no element that its own rows do not refer to; what
is put refers to nothing that is not there yet; a thread that is put loses none of the rows that
stood in its place, unless that was asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import NamedTuple, TypeAlias, TypeVar, cast

from threadkeep.codec.frame import Compression
from threadkeep.cold.stubs import STUB
from threadkeep.engine import (
    thread_entry,
    thread_summary,
)
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

_PAGE = 256
_MOST_BYTES = 4 << 20  # read or written at a time: on Redis nothing else runs meanwhile
_MOST_ROWS = 128


@dataclass(frozen=True, slots=True)
class WholeThread:
    """One state of a thread, complete in itself.

    Segments by (log, start), checkpoints (hidden ones too) and writes (orphans too) by
    namespace and id; the writes of a checkpoint in `seq` order, which counts from 1 without
    gaps. `deleted_at` is the tombstone: 0 if the thread was never deleted. `digests` are those
    of the checkpoints, in their order, where whoever took the thread has noted them; `entry` is
    what the registry says of it, where it says anything.
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
        """Whether there is nothing to tell of the thread, not even that it was deleted."""
        rows = self.segments or self.checkpoints or self.writes
        return not (self.deleted_at or rows or self.entry)


def all_threads(*, empty: bool = True) -> Operation[list[str]]:
    """The ids of all threads, in order; with `empty` also those that hold nothing."""
    names: list[str] = []
    while True:
        after = names[-1] if names else None
        page = cast("list[str]", (yield from fetch(FindThreads(after, _PAGE, empty=empty))))
        names += page
        if len(page) < _PAGE:
            return names


# -- reading -------------------------------------------------------------------------


def read_thread(thread: str, *, stub: bool = True, stubs: bool = False) -> Operation[WholeThread]:
    """One state of the thread, however much others write, seal and prune meanwhile.

    Args:
        thread: its id.
        stub: whether one that is archived stays so, and is read without what is in the archive.
        stubs: whether what was offloaded stays so, and is read as what stands for it.

    Raises:
        ConflictError: segments were removed at every try.
        CorruptionError: rows are damaged that had to be counted anew.
    """
    state = yield from read_state(thread, stub=stub, stubs=stubs)
    return state.whole


class Snapshot(NamedTuple):
    """One state of a thread: as a whole, what a change to it must expect, and uncut segments."""

    whole: WholeThread
    rows: ThreadRows
    entry: ThreadEntry | None
    segments: tuple[Segment, ...] = ()


def read_state(thread: str, *, stub: bool = True, stubs: bool = False) -> Operation[Snapshot]:
    """See `read_thread`."""

    def attempt() -> Operation[Snapshot]:
        rows, entry = yield from read_rows(thread, stub=stub)
        used = _used(rows.checkpoints, rows.orphans)
        places = [s for s in rows.segments if used is None or touches(used, span_of(s))]
        if not places:
            return Snapshot(whole_of(thread, rows, (), entry), rows, entry)
        segments = yield from _segments(thread, places, stubs=stubs)
        # Positions are given again only after a removal, and that raises the generation.
        after = yield from fetch_checkpoint(thread, "", None)
        if after.generation != rows.generation or not _cover(segments, places):
            raise StaleThreadError(thread=thread)
        whole = whole_of(thread, rows, _of_use(segments, used), entry, stubs=stubs)
        return Snapshot(whole, rows, entry, tuple(segments))

    return retry(thread, attempt)


def read_rows(
    thread: str, *, stub: bool = True
) -> Operation[tuple[ThreadRows, ThreadEntry | None]]:
    """A thread without its segments, and its entry; `stub` as in `read_thread`."""
    rows, entry = yield Fetch([ReadThread(thread, stub=stub), ReadEntry(thread)])
    return rows, entry


def _used(
    checkpoints: Iterable[StoredCheckpoint], orphans: Iterable[WriteRow]
) -> dict[int, list[Span]] | None:
    """The positions that a thread's rows refer to; None of damaged rows."""
    try:
        lineage = Lineage(checkpoints)
        return positions(lineage, lineage.stored, orphans)
    except ThreadkeepError:
        return None  # they are taken along as they are, with all that may be theirs


def _of_use(segments: Iterable[Segment], used: Positions | None) -> Sequence[Segment]:
    """Of each segment what is used of it: a shared one also holds what others have said."""
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
        return [segment]  # (damaged, or a stub: whoever opens it is told)


def trimmed(whole: WholeThread) -> WholeThread:
    """The thread without elements that its rows do not refer to, as `read_thread` gives it."""
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
    """What lies at these places now: the same segments, or sealed ones that hold them."""
    found: dict[Span, Segment] = {}
    for part in parts_of(places, lambda place: place.size):
        spans = covering(map(span_of, part))
        for segment in (yield from fetch(ReadSegments(thread, spans, stub=stubs))):
            found[segment.span] = segment
    # A page read later may hold a sealed segment in place of some that an earlier one had.
    return [found[span] for span in _outermost(found)]


def _outermost(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, in order, without those that lie within another."""
    log, stop = -1, 0
    for span in sorted(spans, key=lambda span: (span.log, span.start, -span.stop)):
        if span.log != log or span.stop > stop:
            yield span
            log, stop = span.log, span.stop


def _cover(segments: Iterable[Segment], places: Iterable[SegmentInfo]) -> bool:
    """Whether the segments hold all positions of these places."""
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
    """A thread as it was read (with `stubs`: what was offloaded, too), its writes numbered anew.

    Raises:
        CorruptionError: rows are damaged that had to be counted anew.
    """
    writes = [row for stored in rows.checkpoints for row in stored.writes]
    checkpoints, writes = _numbered(
        [stored.row for stored in rows.checkpoints], [*writes, *rows.orphans]
    )
    keeps = stubs and any(segment.data.startswith(STUB) for segment in segments)
    if entry is not None:
        # (the revision counts in its own store only, and the size is told by the rows; archives
        # are the store's own, but for one that holds all there is)
        kept = entry.labels
        if entry.state != ThreadStatus.ARCHIVED and not keeps:
            kept = thread_entry.without_record(kept, thread_entry.ARCHIVE_RECORD)
        entry = entry._replace(revision=0, size=0, labels=kept)
    return WholeThread(
        thread, rows.deleted_at, tuple(segments), tuple(checkpoints), tuple(writes), entry=entry
    )


def _numbered(
    checkpoints: list[CheckpointRow], writes: list[WriteRow]
) -> tuple[list[CheckpointRow], list[WriteRow]]:
    """The rows with each checkpoint's writes numbered from 1 on, as a store will number them.

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
            checkpoints[at] = _with_seen(row, bisect_right(seqs, row.seen))
    for at, write in enumerate(writes):
        seqs = gaps.get((write.ns, write.checkpoint_id))
        if seqs:
            seen, seq = bisect_right(seqs, write.seen), bisect_right(seqs, write.seq)
            writes[at] = _write_with_seen(write, seen)._replace(seq=seq)
    return checkpoints, writes


def _with_seen(row: CheckpointRow, seen: int) -> CheckpointRow:
    payload = manifest_of(row)
    row = row._replace(seen=seen)
    return with_manifest(row, payload)


def _write_with_seen(row: WriteRow, seen: int) -> WriteRow:
    payload = body_of(row)
    row = row._replace(seen=seen)
    return with_body(row, payload)


# -- putting -------------------------------------------------------------------------


def refuse_loss(whole: WholeThread, *, stubs: bool = False) -> Operation[None]:
    """Refuse to put the thread where something stands that it does not have.

    With `stubs` what was offloaded there is looked at as what stands for it.

    Raises:
        ThreadExistsError: there is such a row or segment.
    """
    there = yield from read_state(whole.thread, stubs=stubs)
    _refuse_loss(whole, there)


def outlook(whole: WholeThread, *, stubs: bool = False) -> Operation[tuple[bool, bool]]:
    """Whether anything would be done to put the thread, and whether something would be lost.

    `stubs` as in `refuse_loss`.
    """
    there = yield from read_state(whole.thread, stubs=stubs)
    return not _is_there(there.whole, whole), _loses(whole, there)


def put_thread(
    whole: WholeThread, now: int, *, replace: bool = False, stubs: bool = False
) -> Operation[bool]:
    """Put a thread where it is not there; what a cut-off put has left is completed.

    Args:
        whole: the thread.
        now: microseconds since 1970.
        replace: whether what stands there may be removed first.
        stubs: as in `refuse_loss`.

    Returns:
        Whether anything had to be done: False where all of it was there.

    Raises:
        ThreadExistsError: rows or segments stand there that would be lost.
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


def _refuse_loss(whole: WholeThread, there: Snapshot) -> None:
    if _loses(whole, there):
        raise ThreadExistsError(
            "The store holds this thread already, in another state.",
            hint="It is left as it is. To put this one in its place: replace=True, or --replace.",
            thread=whole.thread,
        )


def _loses(whole: WholeThread, there: Snapshot) -> bool:
    """Whether something is there, as it is stored or of use, that the thread does not have."""
    parts = _parts_of(whole)
    as_stored = _parts_of(replaced(there.whole, segments=there.segments))
    has_all = as_stored <= parts or _parts_of(there.whole) <= parts
    return is_archived(there.entry) or not has_all


def _parts_of(whole: WholeThread) -> set[Row | Segment]:
    return {*whole.checkpoints, *whole.writes, *whole.segments}


def _is_there(there: WholeThread, whole: WholeThread) -> bool:
    is_same = _parts_of(there) == _parts_of(whole) and _is_as_dead(there, whole)
    return is_same and not is_archived(there.entry)


def _is_as_dead(there: WholeThread, whole: WholeThread) -> bool:
    """Whether the tombstone is right, or does not matter: the thread has been used since."""
    return bool(whole.checkpoints) or there.deleted_at == whole.deleted_at


def _put(whole: WholeThread, there: Snapshot, now: int) -> Operation[None]:
    """Put a thread: in the place of what stands there by one change, else part by part."""
    is_empty = not (there.rows.segments or _parts_of(there.whole) or is_archived(there.entry))
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


def fence_of(state: Snapshot) -> Operation[RowsFence]:
    """What holds as long as nobody adds a row to a thread that was read, or to its family."""
    others: tuple[ThreadRows, ...] = ()
    if state.rows.family:
        others = (yield from read_snapshot(state.whole.thread)).others
    return rows_fence((state.rows, *others))


def _batches(whole: WholeThread, generation: int, now: int) -> Iterator[Batch]:
    """What refers comes after what it refers to, older checkpoints before younger ones.

    The last one raises the generation: what a process remembers of another thread of this id,
    say one that has expired, is no longer relied on.
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
    """What registers the thread as it was, or as its rows show it."""
    entry = whole.entry
    if entry is not None and entry.state == ThreadStatus.DELETED:
        entry = None
    checkpoints, orphans = stored_of(whole)
    if entry is None and whole.checkpoints:
        entry = thread_summary.entry_of(whole.thread, checkpoints, now)
    touch = thread_summary.of_rows(checkpoints, orphans, sum([len(s.data) for s in whole.segments]))
    # (a thread of generation 0 is taken for one that was never archived)
    return Batch(
        whole.thread, now, bump=is_archived(entry), entry=entry, touch=touch._replace(moves=())
    )


def stored_of(whole: WholeThread) -> tuple[list[StoredCheckpoint], list[WriteRow]]:
    """The checkpoints with their writes, and the writes on none of them."""
    writes: dict[tuple[str, str], list[WriteRow]] = {}
    for write in whole.writes:
        writes.setdefault((write.ns, write.checkpoint_id), []).append(write)
    checkpoints = [
        StoredCheckpoint(whole.thread, row, None, tuple(writes.pop((row.ns, row.id), ())))
        for row in whole.checkpoints
    ]
    return checkpoints, [write for some in writes.values() for write in some]


def row_batches(plain: Batch, done: RowsFence, rows: Iterable[Row]) -> Iterator[Batch]:
    """Rows in batches, older checkpoints before younger ones, each with its writes.

    Args:
        plain: what each batch is made from.
        done: how many rows are there before the first one.
        rows: what is to be put.
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


def parts_of(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in order, so many at a time as are neither too many nor too large."""
    part: list[T] = []
    total = 0
    for item in items:
        if part and (len(part) >= _MOST_ROWS or total + size(item) > _MOST_BYTES):
            yield part
            part, total = [], 0
        part.append(item)
        total += size(item)
    if part:
        yield part
