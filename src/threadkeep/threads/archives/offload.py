"""Offload segments that the heads don't need, while their thread is in use.

One change replaces segments by stubs, or stubs by segments. The entry is marked before the first
stub, and changes with every new one. A thread that shares segments has no stubs, so each object
belongs to one thread.

Positions, elements and the generation don't change. Caches may hold the former segments, so this
module reads segments without a generation: no cache answers such reads.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from threadkeep._core.engine import cold_references, registration, thread_summary
from threadkeep._core.engine.cold_references import (
    ArchiveRecord,
    Location,
    archive_of,
    is_stub,
    location_of,
    stubs_for,
    with_archive,
)
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.lineage import (
    ChannelSearch,
    Lineage,
    Positions,
    SegmentKey,
    by_log,
    checkpoint_key,
    overlap,
    parts,
    positions,
    searches,
    segment_key,
    spans_of,
)
from threadkeep._core.engine.model import (
    Batch,
    ReadSegments,
    ReadThread,
    Segment,
    SegmentInfo,
    Span,
    ThreadRows,
)
from threadkeep._core.engine.operation import (
    Operation,
    commit,
    fetch,
    fetch_checkpoint,
    fetch_segments,
)
from threadkeep._core.engine.refs import covering, span_of
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot, retry
from threadkeep._core.engine.rows import heads, unpack_writes
from threadkeep._core.engine.thread_entry import (
    WITH_CHECKPOINTS,
    EntryUpdate,
    ThreadEntry,
    is_archived,
    is_there,
)
from threadkeep._core.engine.thread_summary import bytes_of
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.parts import parts_of
from threadkeep._run.driver import Runner, external, on
from threadkeep.errors import (
    ConflictError,
    CorruptionError,
    StaleThreadError,
    StateError,
    ThreadNotFoundError,
)
from threadkeep.threads.archives.archive import GRACE, announce, exchange
from threadkeep.threads.archives.seals import seal_of
from threadkeep.threads.retention.apply import SEGMENT_ROW

if TYPE_CHECKING:
    from threadkeep._stores.cold_store import ColdStore

_SUFFIX = ".tkp"
_LOOSE = ".loose"  # after an object's key: no stub has named it since this mark was written
_SHARED = "it shares its segments with forks"
_log = logging.getLogger("threadkeep")


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """Values of one thread that were offloaded (in a dry run: would be).

    Args:
        thread: its id.
        segments: stored runs of values.
        bytes: their size in the store.
        skipped: why nothing was offloaded, else None.
    """

    thread: str
    segments: int = 0
    bytes: int = 0
    skipped: str | None = None


# -- the segments to offload -----------------------------------------------------------


class OffloadPiece(NamedTuple):
    """A segment. Its `idle` positions may be offloaded, its `busy` ones stay."""

    segment: SegmentInfo
    idle: tuple[Span, ...]
    busy: tuple[Span, ...]


def _movable(
    engine: Engine, thread: str, over: int, before: int | None, seen: Collection[SegmentKey]
) -> Operation[tuple[ThreadSnapshot, list[OffloadPiece]]]:
    """Find the segments that neither heads nor young checkpoints need.

    Returns segments of more than `over` bytes that are not in `seen`, no keyframes (every history
    reads them), and none of a thread that shares segments. Checkpoints from `before` on
    (microseconds since 1970) are young.
    """
    snapshot = yield from read_snapshot(thread)
    rows, entry = snapshot.rows, snapshot.entry
    if not is_there(entry) or (not rows.checkpoints and entry.state in WITH_CHECKPOINTS):
        raise ThreadNotFoundError(thread=thread)
    if entry.state not in WITH_CHECKPOINTS:
        raise StateError(f"A thread that is {entry.state} cannot be offloaded.", thread=thread)
    if snapshot.others:
        return snapshot, []
    lineage = Lineage(rows.checkpoints)
    stay = set(heads(rows.checkpoints).items())
    if before is not None:  # (a checkpoint of unknown time counts as young)
        stay |= {
            checkpoint_key(stored)
            for stored in rows.checkpoints
            if isinstance(stored.row.ts, str) or stored.row.ts >= before
        }
    deltas = yield from searches(engine, thread, lineage, stay)
    used = by_log([*spans_of(lineage, stay, rows.orphans), *_rebuilding(lineage, deltas)])
    referred = positions(lineage, lineage.stored, rows.orphans)
    keyframes = {stored.row.key_log for stored in rows.checkpoints}
    least = max(over, cold_references.LEAST)
    pieces = [
        _piece(segment, used, referred)
        for segment in rows.segments
        if segment.size > least and segment.log not in keyframes
        if segment_key(segment) not in seen
    ]
    return snapshot, [piece for piece in pieces if piece.idle]


def _rebuilding(lineage: Lineage, deltas: Iterable[ChannelSearch]) -> Iterator[Span]:
    """The values and writes of ancestors that DeltaChannels are rebuilt from."""
    for at, channel in deltas:
        for key in lineage.ancestors([(at, channel)]):
            ref = lineage.value(key, channel)
            yield from ref.needs if ref is not None else ()
            for row in lineage.stored[key].writes:
                for write in unpack_writes(row):
                    yield from write.ref.needs if write.channel == channel else ()


def _piece(segment: SegmentInfo, used: Positions, referred: Positions) -> OffloadPiece:
    """Split a segment. Elements without a reference stay, for `sweep` to remove."""
    span = span_of(segment)
    busy = covering([*overlap(used, span), *_between(span, overlap(referred, span))])
    return OffloadPiece(segment, tuple(_between(span, busy)), busy)


def _between(span: Span, some: Iterable[Span]) -> Iterator[Span]:
    """The gaps between some parts of a span."""
    start = span.start
    for one in (*some, Span(span.log, span.stop, span.stop)):
        if start < one.start:
            yield Span(span.log, start, one.start)
        start = one.stop


# -- out of the store ------------------------------------------------------------------


def move_out(
    store: Runner,
    cold: ColdStore | None,
    engine: Engine,
    thread: str,
    over: int,
    before: int | None,
) -> Operation[OffloadReport]:
    """Offload segments, object by object. For `over` and `before` see `_movable`.

    Call `tidy` first. Without a cold store nothing is moved (a dry run).
    """
    seen: set[SegmentKey] = set()  # segments that stay, or that a dry run has counted

    def attempt() -> Operation[OffloadReport | list[Segment]]:
        """Move one object and return its segments, or the report if nothing is left to move."""
        snapshot, pieces = yield from on(store, _movable(engine, thread, over, before, seen))
        if not pieces:
            return OffloadReport(thread, skipped=_SHARED if snapshot.others else None)
        archive = archive_of(snapshot.entry)
        if cold is not None and not (
            archive and archive.offloaded and archive.folder.startswith(cold.home())
        ):
            yield from announce(store, cold, engine, thread, stubs=True)
            return (yield from attempt())
        some = next(parts_of(pieces, lambda piece: piece.segment.size))
        old, go, stay = yield from on(store, _cut(engine, thread, some, over))
        moved = () if cold is None else set(map(segment_key, old))
        seen.update({segment_key(piece.segment) for piece in some}.difference(moved))
        if cold is not None and archive is not None and go:
            yield from _move(store, cold, engine, snapshot, archive, old, go, stay)
        return go

    segments = size = 0
    while isinstance(moved := (yield from retry(thread, attempt)), list):
        segments += len(moved)
        size += bytes_of(moved)
    return replace(moved, segments=segments, bytes=size)


def _cut(
    engine: Engine, thread: str, pieces: Sequence[OffloadPiece], over: int
) -> Operation[tuple[list[Segment], list[Segment], list[Segment]]]:
    """Read segments, and return those worth offloading, and their offloaded and kept parts."""
    read = yield from _exactly(thread, [span_of(piece.segment) for piece in pieces])
    old, go, stay = list[Segment](), list[Segment](), list[Segment]()
    for piece, segment in zip(pieces, read, strict=True):
        idle, busy = [segment], list[Segment]()
        if piece.busy:
            idle = parts(segment, piece.idle, engine.compression)
            busy = parts(segment, piece.busy, engine.compression)
        stub_bytes = (cold_references.USUAL + SEGMENT_ROW) * len(idle)
        if bytes_of(idle) > over and bytes_of(busy) + stub_bytes < len(segment.data):
            old.append(segment)
            go += idle
            stay += busy
    return old, go, stay


def _exactly(thread: str, spans: Sequence[Span]) -> Operation[list[Segment]]:
    """Read the segments of exactly these spans, with their bytes."""
    by_span = {s.span: s for s in (yield from fetch_segments(thread, covering(spans)))}
    if not by_span.keys() >= set(spans):
        raise StaleThreadError(thread=thread)
    segments = [by_span[span] for span in spans]
    if any(map(is_stub, segments)):
        raise _lost(thread)
    return segments


def _lost(thread: str) -> CorruptionError:
    return CorruptionError(
        "The cold store lacks an object that this thread needs.",
        hint="Check that cold= points to the original bucket. If it does, restore the object named"
        " in the log from a backup.",
        thread=thread,
    )


def _move(
    store: Runner,
    cold: ColdStore,
    engine: Engine,
    snapshot: ThreadSnapshot,
    archive: ArchiveRecord,
    old: Sequence[Segment],
    go: Sequence[Segment],
    stay: Sequence[Segment] = (),
) -> Operation[str]:
    """Write segments to a new object, and replace them by stubs, and return the object's key.

    The old segments may be stubs themselves.
    """
    key = f"{archive.folder}{secrets.token_hex(8)}{_SUFFIX}"
    seal = yield from seal_of(cold, snapshot.thread)
    data, stubs = yield from external(partial(stubs_for, go, key, seal.seal))
    before = sum([location.size for one in old if (location := location_of(one)) is not None])
    size = max(archive.offloaded - before, 0) + bytes_of(go)
    batch = _exchange(engine.now(), snapshot.thread, snapshot.rows, old, [*stay, *stubs])
    total = thread_summary.of_thread(snapshot.rows).size + cast("EntryUpdate", batch.touch).size
    batch = batch._replace(
        fences=snapshot.fences,
        entry=with_archive(cast("ThreadEntry", snapshot.entry), archive._replace(offloaded=size)),
        touch=EntryUpdate(size=total, whole=True),
    )
    yield from exchange(store, cold, key, data, batch, partial(_needs, key))
    engine.working_set.forget(snapshot.thread)
    return key


def write_again(store: Runner, cold: ColdStore, engine: Engine, thread: str) -> Operation[None]:
    """Move offloaded segments to new objects, which have the current key."""
    written: set[str] = set()

    def attempt() -> Operation[bool]:
        """Write one object, or return False if nothing is left."""
        snapshot = yield from on(store, read_snapshot(thread))
        _, stubs = yield from on(store, _stubs_of(thread))
        left = [stub for stub, location in stubs.items() if location.key not in written]
        archive = archive_of(snapshot.entry)
        if not left or archive is None:
            return False
        if not archive.folder.startswith(cold.home()):
            yield from announce(store, cold, engine, thread, stubs=True)
            return (yield from attempt())
        part = next(parts_of(left, lambda stub: stubs[stub].size))
        segments = yield from on(store, _exactly(thread, [stub.span for stub in part]))
        written.add((yield from _move(store, cold, engine, snapshot, archive, part, segments)))
        return True

    while (yield from retry(thread, attempt)):
        pass


def _exchange(
    now: int, thread: str, rows: ThreadRows, old: Sequence[Segment], new: Sequence[Segment]
) -> Batch:
    """Build the change that replaces segments by others with the same positions."""
    return Batch(
        thread,
        now,
        rows.generation,
        segments=tuple(new),
        drop_segments=tuple(map(segment_key, old)),
        touch=EntryUpdate(size=bytes_of(new) - bytes_of(old)),
        link=Link(Proof.of(rows)),
    )


# -- back into the store ---------------------------------------------------------------


def restore(engine: Engine, thread: str) -> Operation[ThreadEntry]:
    """Restore an archived thread, or all offloaded values of a thread."""
    entry = yield from registration.known(thread)
    archive = archive_of(entry)
    if is_archived(entry):
        yield from fetch_checkpoint(thread, "", None)  # (any read restores it)
        return (yield from registration.known(thread))
    if archive is None or not archive.offloaded:
        problem = f"A thread that is {entry.state} is not archived."
        raise StateError(problem, hint="None of its values are offloaded either.", thread=thread)
    now = engine.now()
    yield from bring_back(thread, now)

    def back(entry: ThreadEntry) -> ThreadEntry:
        archive = archive_of(entry)
        return entry if archive is None else with_archive(entry, archive._replace(back_at=now))

    return (yield from registration.change(engine, thread, back))


def bring_back(thread: str, now: int) -> Operation[int]:
    """Restore the offloaded segments, and return their number."""

    def attempt() -> Operation[int]:
        rows, stubs = yield from _stubs_of(thread)
        if not stubs:
            return 0
        part = next(parts_of(stubs, lambda stub: stubs[stub].size))
        segments = yield from _exactly(thread, [stub.span for stub in part])
        yield from commit(_exchange(now, thread, rows, part, segments))
        return len(part)

    count = 0
    while moved := (yield from retry(thread, attempt)):
        count += moved
    return count


def _stubs_of(thread: str) -> Operation[tuple[ThreadRows, dict[Segment, Location]]]:
    """Read a thread's rows and its stubs."""
    rows: ThreadRows = yield from fetch(ReadThread(thread, stub=True))
    small = covering(
        [span_of(segment) for segment in rows.segments if segment.size <= cold_references.MOST]
    )
    found = (yield from fetch(ReadSegments(thread, small, stub=True))) if small else ()
    located = {segment: location_of(segment) for segment in found if is_stub(segment)}
    return rows, {stub: location for stub, location in located.items() if location is not None}


def _objects_of(thread: str) -> Operation[tuple[ThreadRows, dict[str, int]]]:
    """Read a thread's rows, and the bytes that it needs of each object."""
    rows, stubs = yield from _stubs_of(thread)
    needed: dict[str, int] = {}
    for location in stubs.values():
        needed[location.key] = needed.get(location.key, 0) + location.size
    return rows, needed


def _needs(key: str, thread: str) -> Operation[bool]:
    return key in (yield from _objects_of(thread))[1]


# -- objects that no stub names --------------------------------------------------------


def tidy(store: Runner, cold: ColdStore, engine: Engine, thread: str) -> Operation[None]:
    """Remove objects that no stub has named for an hour, and note the bytes left in the entry.

    The hour allows the store to sync the segments that replaced the stubs. Objects of another
    store stay.
    """
    entry = yield from on(store, registration.read(thread))
    archive = archive_of(entry)
    if entry is None or archive is None or not archive.offloaded:
        return
    rows, needed = yield from on(store, _objects_of(thread))
    home, left = cold.home(), dict[str, int]()
    if archive.folder.startswith(home):
        left = yield from external(partial(_tidy, cold, archive.folder, needed))
    elsewhere = {key: size for key, size in needed.items() if not key.startswith(home)}
    missing = needed.keys() - left.keys() - elsewhere.keys()
    if missing:
        _log.error("Objects missing in the cold store: %s", ", ".join(sorted(missing)))
        raise _lost(thread)
    new = with_archive(entry, archive._replace(offloaded=sum((left | elsewhere).values())))
    yield from on(store, _note(engine, ThreadSnapshot(thread, entry, rows), new))


def _tidy(cold: ColdStore, folder: str, needed: Collection[str]) -> dict[str, int]:
    """Mark loose objects, remove those marked for an hour, and return the bytes of the others."""
    there, old = cold.objects(folder), cold.objects(folder, older_than=GRACE)
    left = {key: size for key, size in there.items() if key.endswith(_SUFFIX)}
    for key in tuple(left):
        mark = key + _LOOSE
        if key in needed and mark in there:
            cold.delete(mark)
        elif key not in needed and mark in old:
            cold.delete(key)  # (first, so that a crash in between does not restart the hour)
            cold.delete(mark)
            del left[key]
        elif key not in needed and mark not in there and key in old:
            cold.put(mark, b"")
    for mark in there:
        if mark.endswith(_LOOSE) and mark.removesuffix(_LOOSE) not in there:
            cold.delete(mark)  # (another process has removed the object)
    return left


def _note(engine: Engine, snapshot: ThreadSnapshot, new: ThreadEntry) -> Operation[None]:
    """Write the entry, unless it or the rows have changed.

    This also corrects the size, which is wrong after a process sealed over a stub, or after two
    processes restored the same one.
    """
    rows, is_shared = snapshot.rows, bool(snapshot.rows.family)
    size = new.size if is_shared or is_archived(new) else thread_summary.of_thread(rows).size
    if new == snapshot.entry and size == new.size:
        return
    fences = (snapshot.entry_fence,) if is_shared else snapshot.fences
    touch = None if size == new.size else EntryUpdate(size=size, whole=True)
    with suppress(ConflictError):  # (the next round will do it)
        yield from commit(Batch(new.thread, engine.now(), fences=fences, entry=new, touch=touch))
