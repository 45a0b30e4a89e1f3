"""Offloading: segments that the heads do not need, put aside while their thread is in use.

Only rows and entries are dealt with here; where the bytes lie is the affair of `tiers`.
Invariants: a stub comes into the store in the change that takes its segment away, and the other
way round; the entry says that there may be stubs before there is one, and changes with each that
comes. A thread that shares its segments has none, so that an object belongs to one thread.

Positions and what lies there stay as they are, so the generation does, too: what others remember
is still right, and a run is not kept from going on. As segments change their form meanwhile, and
a cache may have the former one, they are read here past all caches: under no generation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from threadkeep.cold import offloaded
from threadkeep.cold.archive import (
    Archive,
    archive_of,
    naming,
)
from threadkeep.engine import (
    registration,
    thread_summary,
)
from threadkeep.engine.context import (
    ATTEMPTS,
    Engine,
)
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
    Search,
    searches,
)
from threadkeep.engine.model import (
    Batch,
    ReadSegments,
    ReadThread,
    Segment,
    SegmentInfo,
    Span,
    StoredCheckpoint,
    ThreadRows,
)
from threadkeep.engine.operation import (
    Operation,
    commit,
    fetch,
    fetch_segments,
)
from threadkeep.engine.refs import covering, span_of
from threadkeep.engine.rows import heads, unpack_writes
from threadkeep.engine.thread_entry import (
    Cause,
    EntryFence,
    ThreadEntry,
    Touch,
    allows,
    is_archived,
)
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    SegmentTakenError,
    StaleThreadError,
    StateError,
    ThreadNotFoundError,
)
from threadkeep.repair.findings import SegmentKey
from threadkeep.retention.prune import (
    by_log,
    nothing_new,
    read_family,
    referred,
    spans_of,
)
from threadkeep.retention.shortening import (
    ROW,
    Used,
    alive,
    parts,
)
from threadkeep.transfer.bundling import parts_of


class Piece(NamedTuple):
    """A segment of which some positions, the `idle` ones, may be offloaded, and others not."""

    place: SegmentInfo
    idle: tuple[Span, ...]
    busy: tuple[Span, ...]

    @property
    def key(self) -> SegmentKey:
        """Where it lies."""
        return self.place.log, self.place.start, self.place.count


class Movable(NamedTuple):
    """What may be offloaded of a thread, and the thread as it was read.

    `shared`: nothing may, as other threads share its segments.
    """

    entry: ThreadEntry
    rows: ThreadRows
    pieces: tuple[Piece, ...]
    shared: bool = False


def movable(
    engine: Engine, thread: str, over: int, before: int | None, known: Collection[SegmentKey] = ()
) -> Operation[Movable]:
    """What of a thread may be offloaded: what neither its heads need nor its young checkpoints.

    Keyframes stay, as every look at the history reads them.

    Args:
        engine: the engine's parts.
        thread: its name.
        over: of segments that take more bytes than this.
        before: checkpoints from this time on (microseconds since 1970) are young; None: none is.
        known: segments that were looked at before, and are to stay.

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
    deltas = yield from searches(engine, thread, lineage, stay)
    used = by_log([*spans_of(lineage, stay, rows.orphans), *_rebuilding(lineage, deltas)])
    known_to = referred(lineage, rows.orphans)
    keyframes = {stored.row.key_log for stored in rows.checkpoints}
    least = max(over, offloaded.LEAST)
    large = [p for p in rows.segments if p.size > least and p.log not in keyframes]
    pieces = [piece for piece in (_piece(p, used, known_to) for p in large) if piece.idle]
    return Movable(entry, rows, tuple([piece for piece in pieces if piece.key not in known]))


def _rebuilding(lineage: Lineage, deltas: Iterable[Search]) -> Iterator[Span]:
    """What DeltaChannels are rebuilt from: of each ancestor their own values and writes."""
    for at, channel in deltas:
        for key in lineage.ancestors([(at, channel)]):
            ref = lineage.value(key, channel)
            yield from ref.needs if ref is not None else ()
            for row in lineage.stored[key].writes:
                for write in unpack_writes(row):
                    yield from write.ref.needs if write.channel == channel else ()


def _piece(place: SegmentInfo, used: Used, known_to: Used) -> Piece:
    """What nothing refers to stays: a former origin may have said it, and it is swept here."""
    span = span_of(place)
    busy = covering([*alive(span, used), *_between(span, alive(span, known_to))])
    return Piece(place, tuple(_between(span, busy)), busy)


def _between(span: Span, some: Iterable[Span]) -> Iterator[Span]:
    """What these leave of a span."""
    start = span.start
    for one in some:
        if start < one.start:
            yield Span(span.log, start, one.start)
        start = one.stop
    if start < span.stop:
        yield Span(span.log, start, span.stop)


def _young(checkpoints: Iterable[StoredCheckpoint], before: int | None) -> Iterator[CheckpointKey]:
    """The checkpoints that are not from before this; those of no known time count as young."""
    if before is None:
        return
    for stored in checkpoints:
        ts = stored.row.ts
        if isinstance(ts, str) or ts >= before:
            yield stored.row.ns, stored.row.id


class Taken(NamedTuple):
    """Segments as they were read, what of them goes, and what stays in shorter ones.

    `left` are those that were read and are not worth it.
    """

    movable: Movable
    old: tuple[Segment, ...]
    go: tuple[Segment, ...]
    stay: tuple[Segment, ...]
    left: tuple[SegmentKey, ...]

    @property
    def bytes(self) -> int:
        """How many bytes go."""
        return bytes_of(self.go)


def in_parts(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """As many of the pieces at a time as are moved together."""
    return parts_of(pieces, lambda piece: piece.place.size)


def take(engine: Engine, found: Movable, some: Sequence[Piece], over: int) -> Operation[Taken]:
    """Read some of the segments, and see what of each is to go.

    Raises:
        StaleThreadError: segments were removed, or sealed, meanwhile.
        CorruptionError: one is damaged.
    """
    read = yield from _at_once(found.entry.thread, [span_of(piece.place) for piece in some])
    old, go, stay, left = list[Segment](), list[Segment](), list[Segment](), list[SegmentKey]()
    for piece, segment in zip(some, read, strict=True):
        whole = not piece.busy
        idle = [segment] if whole else parts(segment, piece.idle, engine.compression)
        busy = [] if whole else parts(segment, piece.busy, engine.compression)
        stubs = (offloaded.USUAL + ROW) * len(idle)
        if bytes_of(idle) > over and bytes_of(busy) + stubs < len(segment.data):
            old.append(segment)
            go += idle
            stay += busy
        else:
            left.append(piece.key)
    return Taken(found, tuple(old), tuple(go), tuple(stay), tuple(left))


def _at_once(thread: str, spans: Sequence[Span]) -> Operation[tuple[Segment, ...]]:
    """The segments that lie at just these places.

    Raises:
        StaleThreadError: others do.
        CorruptionError: the cold store does not have one that was put there.
    """
    by_span = {s.span: s for s in (yield from fetch_segments(thread, covering(spans)))}
    if not by_span.keys() >= set(spans):
        raise StaleThreadError(thread=thread)
    segments = tuple([by_span[span] for span in spans])
    if any(map(_is_stub, segments)):
        raise lacking(thread)
    return segments


def lacking(thread: str) -> CorruptionError:
    """The error where an object is not there, or not what was put there."""
    return CorruptionError(
        "The cold store does not have what was put there.",
        hint="Is it the same one? Else put the object back from a backup; the log names it.",
        thread=thread,
    )


def close(
    engine: Engine, taken: Taken, archive: Archive, stubs: Sequence[Segment]
) -> Operation[None]:
    """Put the stubs in the place of what goes.

    Raises:
        ConflictError, StaleThreadError: the thread has changed since it was read.
    """
    entry, rows, *_ = taken.movable
    entry = naming(entry, archive._replace(offloaded=max(archive.offloaded, 0) + taken.bytes))
    new = (*taken.stay, *stubs)
    batch = _exchange(engine.now(), entry.thread, rows.generation, taken.old, new)
    fences = (nothing_new((rows,)), EntryFence(entry.revision))
    size = thread_summary.of_thread(rows).size + bytes_of(new) - bytes_of(taken.old)
    touch = Touch(size=size, whole=True)
    yield from commit(batch._replace(fences=fences, entry=entry, touch=touch))
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
        touch=Touch(size=bytes_of(new) - bytes_of(old)),
    )


def note(engine: Engine, entry: ThreadEntry, archive: Archive, rows: ThreadRows) -> Operation[None]:
    """Let the entry say this of the cold store, if it and the rows are those that were read.

    It says the size anew, too: whoever seals over a stub, or brings one back that somebody else
    has brought back meanwhile, counts what was there before.
    """
    new, size = naming(entry, archive), thread_summary.of_thread(rows).size
    if rows.family or is_archived(entry):
        size = entry.size
    if new == entry and size == entry.size:
        return
    fences = (EntryFence(entry.revision), nothing_new((rows,)))
    batch = Batch(entry.thread, engine.now(), fences=fences if not rows.family else fences[:1])
    touch = None if size == entry.size else Touch(size=size, whole=True)
    with suppress(ConflictError):  # something else was written or said: the next time will do
        yield from commit(batch._replace(entry=new, touch=touch))


def bytes_of(segments: Iterable[Segment]) -> int:
    """How many bytes segments take."""
    return sum([len(segment.data) for segment in segments])


# -- what was offloaded ----------------------------------------------------------------


def stubs_of(thread: str) -> Operation[tuple[ThreadRows, list[Segment]]]:
    """A thread's rows, and its stubs among them."""
    rows: ThreadRows = yield from fetch(ReadThread(thread, stub=True))
    small = covering([span_of(place) for place in rows.segments if place.size <= offloaded.MOST])
    if not small:
        return rows, []
    found = yield from fetch(ReadSegments(thread, small, stub=True))
    return rows, [s for s in found if _is_stub(s)]


def _is_stub(segment: Segment) -> bool:
    try:
        return offloaded.place_of(segment) is not None
    except CorruptionError:
        return False


def objects_of(thread: str) -> Operation[tuple[ThreadRows, dict[str, int]]]:
    """A thread's rows, and the objects of the cold store that it needs: how many bytes of each."""
    rows, stubs = yield from stubs_of(thread)
    needed: dict[str, int] = {}
    for place in filter(None, map(offloaded.place_of, stubs)):
        needed[place.key] = needed.get(place.key, 0) + place.size
    return rows, needed


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
            whole = yield from _at_once(thread, [stub.span for stub in part])
            yield from commit(_exchange(now, thread, rows.generation, part, whole))
        except (ConflictError, StaleThreadError, SegmentTakenError):
            refused += 1  # somebody else did it, or something was removed: look again
        else:
            count += len(part)
    raise registration.busy(thread)


def restore(engine: Engine, thread: str) -> Operation[None]:
    """Put the segments back, and note in the entry when that was. Raises as `bring_back`."""
    now = engine.now()
    yield from bring_back(thread, now)

    def back(entry: ThreadEntry) -> ThreadEntry:
        archive = archive_of(entry)
        return entry if archive is None else naming(entry, archive._replace(back_at=now))

    yield from registration.change(engine, thread, back)


def _size_of(stub: Segment) -> int:
    place = offloaded.place_of(stub)
    return 0 if place is None else place.size
