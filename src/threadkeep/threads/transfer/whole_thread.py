"""Whole threads: one consistent state, read from a store and put into another.

A whole thread holds only the elements that its rows refer to. While it is put, no row refers to
anything that is not stored yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias, TypeVar, cast

from threadkeep._core import validation
from threadkeep._core.codec.frame import Compression, unpack
from threadkeep._core.engine import thread_entry, thread_summary
from threadkeep._core.engine.cold_references import STUB
from threadkeep._core.engine.lineage import (
    CheckpointKey,
    Lineage,
    Positions,
    by_log,
    overlap,
    parts,
    positions,
    segment_key,
    touches,
)
from threadkeep._core.engine.model import (
    INPUTS_NS,
    OWN_NS,
    Batch,
    CheckpointRow,
    DropThread,
    FindThreads,
    ReadSegments,
    RowsFence,
    Segment,
    SegmentInfo,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Operation, commit, fetch, fetch_checkpoint
from threadkeep._core.engine.refs import covering, span_of
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot, retry
from threadkeep._core.engine.thread_entry import (
    Lifecycle,
    ThreadEntry,
    is_archived,
    is_there,
)
from threadkeep._core.engine.thread_summary import bytes_of
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.parts import parts_of
from threadkeep._stores.records import with_writes
from threadkeep.errors import (
    CodecError,
    StaleThreadError,
    ThreadExistsError,
    ThreadkeepError,
    ThreadNotFoundError,
)
from threadkeep.threads.transfer.meter import QUIET, Meter

T = TypeVar("T")
S = TypeVar("S", Segment, SegmentInfo)
ThreadRow: TypeAlias = CheckpointRow | WriteRow
Outcome: TypeAlias = Literal["unchanged", "added", "extended", "replaced"]

_PAGE = 256


class ChangedError(Exception):
    """A thread has changed since its rows were read."""


@dataclass(frozen=True, slots=True)
class WholeThread:
    """One state of a thread, complete in itself.

    Attributes:
        thread: its id.
        deleted_at: its tombstone, or 0 if it was never deleted.
        segments: by log and start.
        checkpoints: by namespace and id, hidden ones included.
        writes: by namespace, id and `seq`, orphans included.
        digests: of the checkpoints, in their order, if they were computed.
        entry: the registry's entry, if there is one.
        spare: bytes of memory that an untrusted thread may take in addition to its elements.
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
    def by_checkpoint(self) -> dict[CheckpointKey, bytes]:
        """The digest of each checkpoint."""
        keys = [(row.ns, row.id) for row in self.checkpoints]
        return dict(zip(keys, self.digests or (), strict=True))

    @property
    def is_nothing(self) -> bool:
        """True if the thread left no trace, not even a tombstone."""
        return self == WholeThread(self.thread, 0, (), (), ())

    @property
    def is_listed(self) -> bool:
        """True if `threads` lists it: it has checkpoints, or an entry that is not deleted."""
        has_entry = self.entry is not None and self.entry.state not in ("", Lifecycle.DELETED)
        return has_entry or bool(self.checkpoints)


# -- reading -------------------------------------------------------------------------


def all_threads(prefix: str = "") -> Operation[list[str]]:
    """List the ids of all threads but threadkeep's own, sorted, with or without checkpoints."""
    names: list[str] = []
    while True:
        after = names[-1] if names else None
        read = FindThreads(after, _PAGE, empty=True, prefix=prefix)
        page = cast("list[str]", (yield from fetch(read)))
        names += page
        if len(page) < _PAGE:
            return [name for name in names if not name.startswith(OWN_NS)]


def chosen(threads: str | Iterable[str] | None) -> Operation[Sequence[str]]:
    """List the threads with these ids, which must exist, or all (None)."""
    names, known = validation.thread_ids(threads), (yield from all_threads())
    for name in set(names or ()).difference(known):
        raise ThreadNotFoundError(hint="Correct the ids of threads.", thread=name)
    return known if names is None else names


def read_thread(
    thread: str,
    *,
    stub: bool = True,
    stubs: bool = False,
    inputs: bool = True,
    meter: Meter = QUIET,
) -> Operation[WholeThread]:
    """Read one state of a thread while others write, seal and prune it.

    `stub` leaves an archived thread in the cold store (it has no rows then), `stubs` offloaded
    segments. Without `inputs`, stored inputs are left out.

    Raises:
        ConflictError: segments were removed at every attempt.
    """

    def attempt() -> Operation[WholeThread]:
        snapshot = yield from read_snapshot(thread, alone=True, stub=stub)
        if not inputs:
            snapshot = without_inputs(snapshot)
        rows = snapshot.rows
        used = _used(rows)
        infos = [s for s in rows.segments if used is None or touches(used, span_of(s))]
        meter.begin(thread, len(rows.checkpoints), bytes_of(infos))
        segments = yield from _segments(thread, infos, stubs=stubs, meter=meter)
        if infos:
            # Positions are reused only after a removal, which raises the generation.
            after = yield from fetch_checkpoint(thread, "", None)
            if after.generation != rows.generation or _uncovered(infos, segments):
                raise StaleThreadError(thread=thread)
        if used is not None:  # a shared segment also holds elements of other threads
            segments = [part for one in segments for part in _parts_in_use(one, used)]
        return whole_of(snapshot, segments, stubs=stubs)

    return retry(thread, attempt)


def without_inputs(snapshot: ThreadSnapshot) -> ThreadSnapshot:
    """Return a thread without its stored inputs."""
    rows = snapshot.rows
    others = tuple([stored for stored in rows.checkpoints if stored.row.ns != INPUTS_NS])
    return snapshot._replace(rows=rows._replace(checkpoints=others))


def _used(rows: ThreadRows) -> Positions | None:
    """Find the positions that rows refer to, or None for damaged rows, whose segments all stay."""
    try:
        lineage = Lineage(rows.checkpoints)
        return positions(lineage, lineage.stored, rows.orphans)
    except ThreadkeepError:
        return None


def _parts_in_use(segment: Segment, used: Positions) -> Sequence[Segment]:
    spans = overlap(used, segment.span)
    if not spans or spans == [segment.span]:
        return [segment] if spans else ()
    try:
        return parts(segment, spans, Compression())
    except ThreadkeepError:
        return [segment]  # (a damaged segment or a stub cannot be opened)


def _segments(
    thread: str, places: Iterable[SegmentInfo], *, stubs: bool, meter: Meter = QUIET
) -> Operation[list[Segment]]:
    """Read the segments at these places: the same ones, or sealed ones that hold them."""
    found: dict[Span, Segment] = {}
    for part in parts_of(places, attrgetter("size")):
        spans = covering(map(span_of, part))
        for segment in (yield from fetch(ReadSegments(thread, spans, stub=stubs))):
            found[segment.span] = segment
        meter.add(size=bytes_of(part))
    # A later page may have a sealed segment that holds segments of an earlier page.
    outermost: list[Segment] = []
    log, stop = -1, 0
    for span in sorted(found, key=lambda span: (span.log, span.start, -span.stop)):
        if span.log != log or span.stop > stop:
            outermost.append(found[span])
            log, stop = span.log, span.stop
    return outermost


def whole_of(
    snapshot: ThreadSnapshot, segments: Sequence[Segment] = (), *, stubs: bool = False
) -> WholeThread:
    """Make a whole thread of rows, with `stubs`, with the record of their archive."""
    thread, entry, rows, _ = snapshot
    keeps = stubs and any(segment.data.startswith(STUB) for segment in segments)
    if entry is not None:
        # (the revision and an archive belong to the store, and the rows give the size. Only an
        # archived thread, or one with stubs, still needs the archive)
        own = entry.labels
        if entry.state != Lifecycle.ARCHIVED and not keeps:
            own = thread_entry.without_record(own, thread_entry.ARCHIVE_RECORD)
        entry = entry._replace(revision=0, size=0, labels=own)
    checkpoints = tuple([stored.row for stored in rows.checkpoints])
    writes = (*[row for stored in rows.checkpoints for row in stored.writes], *rows.orphans)
    return WholeThread(thread, rows.deleted_at, tuple(segments), checkpoints, writes, entry=entry)


# -- parts ---------------------------------------------------------------------------


def rows_of(whole: WholeThread) -> set[ThreadRow]:
    """Return a thread's rows, whose bytes are the same in each copy."""
    return {*whole.checkpoints, *whole.writes}


def marks_of(entry: ThreadEntry | None) -> set[Any]:
    """Return the labels, pin and time to live of a thread."""
    if not is_there(entry):
        return set()
    marks = {("pinned", True)} if entry.pinned else set()
    return {*entry.labels, *marks, *([] if entry.ttl is None else [("ttl", entry.ttl)])}


def stored_of(whole: WholeThread) -> tuple[Sequence[StoredCheckpoint], Sequence[WriteRow]]:
    """Return the checkpoints with their writes, and the writes without a checkpoint."""
    keyframes = [None] * len(whole.checkpoints)
    return with_writes(whole.thread, whole.checkpoints, keyframes, whole.writes)


def _uncovered(wanted: Iterable[S], stored: Iterable[Segment | SegmentInfo]) -> list[S]:
    """Return the segments that are not stored in full."""
    known = by_log(map(span_of, stored))
    return [one for one in wanted if overlap(known, span_of(one)) != [span_of(one)]]


# -- putting -------------------------------------------------------------------------


def put_thread(
    whole: WholeThread,
    now: int,
    *,
    replace: bool = False,
    dry_run: bool = False,
    meter: Meter = QUIET,
) -> Operation[Outcome]:
    """Put a thread into a store, or add its missing parts. Repeat it after an interruption.

    `now` are microseconds since 1970. With `replace` it replaces a thread with other rows.

    Raises:
        ThreadExistsError: rows in the store would be lost.
        ConflictError: others keep changing this thread.
    """

    def attempt() -> Operation[Outcome]:
        there = yield from read_snapshot(whole.thread)
        known = whole_of(there)
        is_lost = is_archived(there.entry) or not rows_of(known) <= rows_of(whole)
        if known.checkpoints and not is_lost:
            is_lost = not (yield from _is_sound(whole, there.rows))
        if is_lost and not replace:
            raise ThreadExistsError(
                "The store has this thread already, in another state.",
                hint="It is not changed. To replace it: replace=True, or --replace.",
                thread=whole.thread,
            )
        outcome: Outcome = "extended" if known.checkpoints else "added"
        if is_lost:
            outcome = "replaced"
        elif _is_complete(whole, known, there):
            outcome = "unchanged"
        if not (dry_run or outcome == "unchanged"):
            yield from put_rows(whole, there, now, meter, replace=is_lost)
        return outcome

    return retry(whole.thread, attempt)


def _is_sound(whole: WholeThread, rows: ThreadRows) -> Operation[bool]:
    """Check that the store has the same elements at the thread's positions."""
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
    """Iterate over elements with their log and position. Stubs are left out."""
    for segment in segments:
        if not segment.data.startswith(STUB):
            for n, data in enumerate(unpack(segment.data, segment.count)):
                yield (segment.log, segment.start + n), data


def _is_complete(whole: WholeThread, known: WholeThread, there: ThreadSnapshot) -> bool:
    """True if the store has all rows and positions, an entry and the tombstone."""
    return (  # (the tombstone of a thread with checkpoints does not matter)
        (bool(whole.checkpoints) or there.rows.deleted_at == whole.deleted_at)
        and is_there(there.entry) >= is_there(whole.entry)
        and rows_of(known) == rows_of(whole)
        and not _uncovered(whole.segments, there.rows.segments)
    )


def put_rows(
    whole: WholeThread, there: ThreadSnapshot, now: int, meter: Meter, *, replace: bool
) -> Operation[None]:
    """Put a thread part by part, or in one change if it cannot be extended (see `_fits`).

    It also gets the thread's labels, pin and time to live. Raises an error of `OVERTAKEN` if it is
    not as in the snapshot `there`.
    """
    known = whole_of(there)
    if replace or not _fits(whole, known, there.rows):
        rows = registered(whole, now)
        drop = DropThread(whole.thread, whole.deleted_at, there.rows.generation, there.fences)
        yield from commit(drop._replace(rows=rows if replace else _merged(rows, known.entry)))
        return
    batches = [*_batches(whole, rows_of(known), there, now)] or [Batch(whole.thread, now)]
    sizes = [(len(one.checkpoints), bytes_of(one.segments)) for one in batches]
    meter.begin(whole.thread, *map(sum, zip(*sizes, strict=True)))
    for number, batch in enumerate(batches, 1):
        yield from commit(batch) if number < len(batches) else _merge_entry(whole, now, batch)
        meter.add(*sizes[number - 1])


def _merged(batch: Batch, there: ThreadEntry | None) -> Batch:
    """Return a batch of a whole thread that keeps the labels, pin and time to live there."""
    if batch.entry is None or not is_there(there):
        return batch
    own = batch.entry
    both = (*there.labels, *own.labels)
    labels = {thread_entry.label_prefix(label): label for label in both}
    pinned, ttl = own.pinned or there.pinned, own.ttl or there.ttl
    entry = there._replace(labels=tuple(sorted(labels.values())), pinned=pinned, ttl=ttl)
    return batch._replace(entry=entry)


def _fits(whole: WholeThread, known: WholeThread, rows: ThreadRows) -> bool:
    """True if the stored thread can be extended: positions stay, and missing writes come last."""
    if not rows_of(known):
        return not rows.segments and rows.deleted_at == whole.deleted_at
    if rows.family and rows_of(known) != rows_of(whole):
        return False  # (another thread may have stored other elements at missing positions)
    last = {(row.ns, row.checkpoint_id): row.seq for row in known.writes}
    missing = {*whole.writes}.difference(known.writes)
    follow = all(row.seq > last.get((row.ns, row.checkpoint_id), 0) for row in missing)
    return follow and all(
        segment.start <= one.start and one.stop <= segment.stop
        for segment in _uncovered(whole.segments, rows.segments)
        for one in _overlapping(segment, rows.segments)
    )


def _overlapping(segment: Segment, stored: Iterable[SegmentInfo]) -> list[Span]:
    spans = [span_of(one) for one in stored if one.log == segment.log]
    return [span for span in spans if span.start < segment.stop and segment.start < span.stop]


def _batches(
    whole: WholeThread, stored: set[ThreadRow], there: ThreadSnapshot, now: int
) -> Iterator[Batch]:
    """Yield the missing records: segments before rows, older checkpoints before younger ones.

    A larger segment replaces small ones, as in sealing. The last batch of a new thread raises the
    generation: a process may still know an expired thread of the same id. Each builds on the one
    before.
    """
    segments, old = _uncovered(whole.segments, there.rows.segments), there.rows.segments
    missing, done = sorted(rows_of(whole) - stored, key=_age), there.rows_fence
    left, proof = len(segments) + len(missing), Proof.of(there.rows)
    for part in parts_of([*segments, *missing], _size):
        some: dict[type, list[Any]] = {Segment: [], CheckpointRow: [], WriteRow: []}
        for record in part:
            some[type(record)].append(record)
        drops = [span for one in some[Segment] for span in _overlapping(one, old)]
        left -= len(part)
        yield Batch(
            whole.thread,
            now,
            there.rows.generation,
            bump_generation=not (left or stored) and bool(missing),
            segments=tuple(some[Segment]),
            drop_segments=tuple([(s.log, s.start, s.stop - s.start) for s in drops]),
            checkpoints=tuple(some[CheckpointRow]),
            writes=tuple(some[WriteRow]),
            fences=(done,),
            link=Link(proof),
            numbered=True,
        )
        rows = len(some[CheckpointRow]), len(some[WriteRow])
        done = RowsFence(done.checkpoints + rows[0], done.writes + rows[1])


def _size(record: Segment | ThreadRow) -> int:
    return record.size if isinstance(record, Segment) else thread_summary.row_size(record)


def _age(row: ThreadRow) -> tuple[str, str, int]:
    if isinstance(row, CheckpointRow):
        return (row.id, row.ns, 0)
    return (row.checkpoint_id, row.ns, row.seq)


def registered(whole: WholeThread, now: int) -> Batch:
    """Make the batch of all of a thread, with its entry or one derived from its rows."""
    entry = whole.entry if is_there(whole.entry) else None
    if entry is None and whole.checkpoints:
        entry = thread_summary.entry_of(whole.thread, *stored_of(whole), now)
    touch = thread_summary.of_rows(*stored_of(whole), bytes_of(whole.segments))
    batch = Batch(whole.thread, now, bump_generation=True, entry=entry, touch=touch)
    batch = batch._replace(checkpoints=whole.checkpoints, writes=whole.writes, numbered=True)
    return batch._replace(segments=whole.segments)


def _merge_entry(whole: WholeThread, now: int, last: Batch) -> Operation[None]:
    """Commit the last rows, with the labels, pin and time to live of both entries."""
    there = yield from read_snapshot(whole.thread, alone=True)
    own, entry = whole.entry if is_there(whole.entry) else None, there.entry
    if own is None and entry is None and whole.checkpoints:
        own = thread_summary.entry_of(whole.thread, *stored_of(whole), now)
    stay = [one for one in there.rows.segments if segment_key(one) not in last.drop_segments]
    size = bytes_of([*stay, *last.segments])
    touch = thread_summary.of_rows(*stored_of(whole), size)
    if own is not None:
        touch = touch._replace(at=own.updated_at, labels=own.labels)
        if not is_there(entry):
            entry = own
        entry = entry._replace(pinned=own.pinned or entry.pinned, ttl=own.ttl or entry.ttl)
    bumps = last.bump_generation or is_archived(own)  # (generation 0 means never archived)
    last = last._replace(fences=(*last.fences, there.entry_fence), bump_generation=bumps)
    yield from commit(last._replace(entry=entry, touch=touch))
