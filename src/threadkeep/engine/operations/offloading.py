"""Offloading: segments that the heads do not need, put aside while their thread is in use.

Only rows and entries are dealt with here; where the bytes lie is the affair of `tiers`.
Invariants: a stub comes into the store in the change that takes its segment away, and the other
way round; the entry says that there may be stubs in the very change that brings the first. A
thread that shares its segments has none, so that an object belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from threadkeep.engine import offloaded
from threadkeep.engine.calls import Operation, commit, fetch, fetch_segments
from threadkeep.engine.entries import Entry, EntryFence, Touch
from threadkeep.engine.lifecycle import Cause, allows
from threadkeep.engine.model import (
    Batch,
    ReadSegments,
    Segment,
    SegmentInfo,
    Span,
    StoredCheckpoint,
    ThreadRows,
)
from threadkeep.engine.operations import registration
from threadkeep.engine.operations.archiving import Archive, naming
from threadkeep.engine.operations.bundling import parts_of
from threadkeep.engine.operations.context import ATTEMPTS, Engine
from threadkeep.engine.operations.housekeeping import nothing_new, positions, read_family
from threadkeep.engine.operations.lineage import Key, Lineage, needed
from threadkeep.engine.operations.shortening import Used, alive, parts
from threadkeep.engine.refs import covering, length, span_of
from threadkeep.engine.rows import heads
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    SegmentTakenError,
    StaleThreadError,
    StateError,
    ThreadNotFoundError,
)


class Piece(NamedTuple):
    """A segment of which some positions, the `idle` ones, may be offloaded, and others not."""

    place: SegmentInfo
    idle: tuple[Span, ...]
    busy: tuple[Span, ...]

    @property
    def bytes(self) -> int:
        """About how many bytes the idle ones take."""
        return self.place.size * length(self.idle) // self.place.count

    def is_worth(self, over: int) -> bool:
        """Whether that is more than so many, and each run of them more than its stub takes."""
        return self.bytes > max(over, offloaded.MOST * len(self.idle))


class Movable(NamedTuple):
    """What may be offloaded of a thread, and the thread as it was read.

    `shared`: nothing may, as other threads share its segments.
    """

    entry: Entry
    rows: ThreadRows
    pieces: tuple[Piece, ...]
    shared: bool = False

    @property
    def bytes(self) -> int:
        """About how many bytes that takes."""
        return sum([piece.bytes for piece in self.pieces])


def movable(engine: Engine, thread: str, over: int, before: int | None) -> Operation[Movable]:
    """What of a thread may be offloaded: what neither its heads need nor its young checkpoints.

    Keyframes stay, as every look at the history reads them.

    Args:
        engine: the engine's parts.
        thread: its name.
        over: of each segment, if that takes more bytes than this.
        before: checkpoints from this time on (microseconds since 1970) are young; None: none is.

    Raises:
        ThreadNotFoundError: it is not there.
        StateError: it is archived, or holds nothing.
        CorruptionError: it is damaged.
    """
    entry = yield from registration.known(thread)
    if not allows(Cause.ARCHIVE, entry.state):
        raise StateError(f"Nothing of a thread that is {entry.state} can be moved.", thread=thread)
    rows, others = yield from read_family(thread, stub=True)
    if others:
        return Movable(entry, rows, (), shared=True)
    if not rows.checkpoints:
        raise ThreadNotFoundError(thread=thread)
    lineage = Lineage(rows.checkpoints)
    stay = set(heads(rows.checkpoints).items()) | set(_young(rows.checkpoints, before))
    stay |= yield from needed(engine, thread, lineage, stay)
    used = positions(lineage, stay, rows.orphans, ())
    keyframes = {stored.row.key_log for stored in rows.checkpoints}
    pieces = [_piece(place, used) for place in rows.segments if place.log not in keyframes]
    return Movable(entry, rows, tuple([piece for piece in pieces if piece.is_worth(over)]))


def _piece(place: SegmentInfo, used: Used) -> Piece:
    busy = alive(span_of(place), used)
    idle, start = [], place.start
    for span in busy:
        idle.append(Span(place.log, start, span.start))
        start = span.stop
    idle.append(Span(place.log, start, place.start + place.count))
    return Piece(place, tuple([span for span in idle if span.start < span.stop]), tuple(busy))


def _young(checkpoints: Iterable[StoredCheckpoint], before: int | None) -> Iterator[Key]:
    """The checkpoints that are not from before this; those of no known time count as young."""
    for stored in checkpoints if before is not None else ():
        ts = stored.row.ts
        if isinstance(ts, str) or before is None or ts >= before:
            yield stored.row.ns, stored.row.id


class Taken(NamedTuple):
    """Segments as they were read, what of them goes, and what stays in shorter ones."""

    movable: Movable
    old: tuple[Segment, ...]
    go: tuple[Segment, ...]
    stay: tuple[Segment, ...]

    @property
    def bytes(self) -> int:
        """How many bytes go."""
        return bytes_of(self.go)


def take(engine: Engine, found: Movable) -> Operation[Taken]:
    """Read some of the segments: as many as are moved at a time.

    Raises:
        StaleThreadError: segments were removed meanwhile.
        CorruptionError: one is damaged.
    """
    pieces = next(parts_of(found.pieces, lambda piece: piece.place.size))
    spans = [span_of(piece.place) for piece in pieces]
    old = yield from _at_once(found.entry.thread, spans, found.rows.generation)
    go, stay = list[Segment](), list[Segment]()
    for piece, segment in zip(pieces, old, strict=True):
        if not piece.busy:
            go.append(segment)
            continue
        go += parts(segment, piece.idle, engine.compression)
        stay += parts(segment, piece.busy, engine.compression)
    return Taken(found, old, tuple(go), tuple(stay))


def _at_once(thread: str, spans: Sequence[Span], generation: int) -> Operation[tuple[Segment, ...]]:
    """The segments that lie at just these places.

    Raises:
        StaleThreadError: others do.
        CorruptionError: the cold store does not have one that was put there.
    """
    there = yield from fetch_segments(thread, covering(spans), generation)
    by_span = {segment.span: segment for segment in there}
    if not by_span.keys() >= set(spans):
        raise StaleThreadError(thread=thread)
    segments = tuple([by_span[span] for span in spans])
    if any(map(_is_stub, segments)):
        raise CorruptionError(
            "The cold store does not have what was put there.",
            hint="Put the object back from a backup of it; the log names it.",
            thread=thread,
        )
    return segments


def close(
    engine: Engine, taken: Taken, archive: Archive, stubs: Sequence[Segment]
) -> Operation[None]:
    """Put the stubs in the place of what goes.

    Raises:
        ConflictError, StaleThreadError: the thread has changed since it was read.
    """
    entry, rows, *_ = taken.movable
    entry = naming(entry, archive._replace(offloaded=archive.offloaded + taken.bytes))
    new = (*taken.stay, *stubs)
    batch = _exchange(engine.now(), entry.thread, rows.generation, taken.old, new)
    fences = (nothing_new((rows,)), EntryFence(entry.revision))
    yield from commit(batch._replace(fences=fences, entry=entry))
    engine.working_set.forget(entry.thread)


def _exchange(
    now: int, thread: str, generation: int, old: Sequence[Segment], new: Sequence[Segment]
) -> Batch:
    """What puts segments in the place of the same ones in another form."""
    return Batch(
        thread,
        now,
        generation,
        segments=tuple(new),
        drop_segments=tuple([(s.log, s.start, s.count) for s in old]),
        bump=True,
        touch=Touch(size=bytes_of(new) - bytes_of(old)),
    )


def note(engine: Engine, entry: Entry, archive: Archive) -> Operation[None]:
    """Let the entry say this of the cold store, if it is the one that was read."""
    new = naming(entry, archive)
    if new == entry:
        return
    fence = EntryFence(entry.revision)
    with suppress(ConflictError):  # something else was said of it: the next time will do
        yield from commit(Batch(entry.thread, engine.now(), fences=(fence,), entry=new))


def bytes_of(segments: Iterable[Segment]) -> int:
    """How many bytes segments take."""
    return sum([len(segment.data) for segment in segments])


# -- what was offloaded ----------------------------------------------------------------


def stubs_of(thread: str) -> Operation[tuple[ThreadRows, list[Segment]]]:
    """A thread's rows, and its stubs among them."""
    rows, _ = yield from read_family(thread, stub=True)
    small = covering([span_of(place) for place in rows.segments if place.size <= offloaded.MOST])
    if not small:
        return rows, []
    found = yield from fetch(ReadSegments(thread, small, rows.generation, stub=True))
    return rows, [s for s in found if _is_stub(s)]


def _is_stub(segment: Segment) -> bool:
    try:
        return offloaded.place_of(segment) is not None
    except CorruptionError:
        return False


def objects_of(thread: str) -> Operation[set[str]]:
    """The objects of the cold store that a thread needs."""
    _, stubs = yield from stubs_of(thread)
    places = [offloaded.place_of(stub) for stub in stubs]
    return {place.key for place in places if place is not None}


def bring_back(thread: str, now: int) -> Operation[int]:
    """Put the segments back into the store; gives how many these were.

    Raises:
        ConflictError: others change the thread all the time.
        CorruptionError: the cold store does not have what was put there.
    """
    count = refused = 0
    while refused < ATTEMPTS:
        rows, stubs = yield from stubs_of(thread)
        if not stubs:
            return count
        part = next(parts_of(stubs, _size_of))
        try:
            whole = yield from _at_once(thread, [stub.span for stub in part], rows.generation)
            yield from commit(_exchange(now, thread, rows.generation, part, whole))
        except (ConflictError, StaleThreadError, SegmentTakenError):
            refused += 1  # somebody else did it, or something was removed: look again
        else:
            count += len(part)
    raise registration.busy(thread)


def _size_of(stub: Segment) -> int:
    place = offloaded.place_of(stub)
    return 0 if place is None else place.size
