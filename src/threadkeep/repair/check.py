"""Whether what is stored is sound: what is broken, of which kind, and what depends on it.

Only looking lives here; what comes of it is `repairing`'s. Invariants: nothing is changed, and
one broken row or segment never keeps the others from being looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

from threadkeep.codec.frame import unpack
from threadkeep.cold.offloaded import STUB
from threadkeep.engine import (
    thread_summary,
)
from threadkeep.engine.context import (
    NO_CODEC,
    Engine,
)
from threadkeep.engine.elements import Elements
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
    Search,
    searches,
)
from threadkeep.engine.model import (
    FindThreads,
    ReadDamage,
    ReadSegments,
    ReadThread,
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
    fetch,
    fetch_segments,
)
from threadkeep.engine.refs import Cell, Ref, span_of
from threadkeep.engine.rows import counts_for, manifest_of, unpack_writes
from threadkeep.engine.thread_entry import (
    ReadEntry,
    ThreadEntry,
)
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    InvalidArgumentError,
    ThreadArchivedError,
    ThreadkeepError,
)
from threadkeep.repair.findings import (
    NOTES,
    Examined,
    Finding,
    Kind,
    SegmentKey,
)
from threadkeep.retention.prune import (
    by_log,
    touches,
)
from threadkeep.stats import (
    EVERYTHING,
    all_sizes,
)

_PAGE = 256
_LOOKS = 3
_UNREADABLE = (CodecError, InvalidArgumentError)  # what a store says of rows that it cannot read


# -- all of a store --------------------------------------------------------------------


def damage() -> Operation[list[Finding]]:
    """What the store finds wrong with its own files."""
    reply = yield from fetch(ReadDamage())
    return [Finding(problem) for problem in cast("list[str]", reply)]


def threads_to_check() -> Operation[tuple[list[str], list[Finding]]]:
    """The threads that hold any row, or all that can be listed; and what was in the way."""
    try:
        found = yield from all_sizes()
    except CorruptionError as exc:
        return (yield from _all_names([Finding(exc.message)]))
    return [size.thread for size in found.threads], []


def _all_names(findings: list[Finding]) -> Operation[tuple[list[str], list[Finding]]]:
    names: list[str] = []
    while True:
        try:
            page = yield from fetch(FindThreads(names[-1] if names else None, _PAGE, empty=True))
        except CorruptionError as exc:
            return names, [*findings, Finding(f"not all threads can be listed: {exc.message}")]
        names += page
        if len(page) < _PAGE:
            return names, findings


def check_thread(engine: Engine, thread: str) -> Operation[tuple[list[Finding], list[Finding]]]:
    """Verify every checksum, reference and span of a thread: findings, and notes.

    The store may be written while it is read: what is told was found at every look.
    """
    found = yield from _found(engine, thread)
    for _ in range(_LOOKS - 1):
        if found:
            again = yield from _found(engine, thread)
            found = [finding for finding in found if finding in again]
    notes = [finding for finding in found if finding.kind in NOTES]
    return [finding for finding in found if finding.kind not in NOTES], notes


def _found(engine: Engine, thread: str) -> Operation[list[Finding]]:
    try:
        rows, entry = yield from _read(thread)
    except _UNREADABLE as exc:
        problem = f"its rows cannot be read: {exc.message}"
        return [Finding(problem, thread, kind=Kind.UNREADABLE)]
    found = yield from examine(engine, thread, rows, entry)
    return found.findings


def _read(thread: str) -> Operation[tuple[ThreadRows, ThreadEntry | None]]:
    """Return a thread's rows and its entry in the registry."""
    rows, entry = yield Fetch([ReadThread(thread, skip=True), ReadEntry(thread)])
    return rows, entry


# -- one thread ------------------------------------------------------------------------


def examine(
    engine: Engine, thread: str, rows: ThreadRows, entry: ThreadEntry | None
) -> Operation[Examined]:
    """Look at all of a thread.

    Args:
        engine: the parts.
        thread: its id.
        rows: its rows, those that cannot be read told apart.
        entry: what the registry says of it.
    """
    found = Examined(thread, rows, entry)
    for row in rows.unreadable:
        found.tell(Kind.UNREADABLE, row.problem)
    yield from _read_segments(found)
    elements = Elements(NO_CODEC, found.segments.values())
    whole = _with_keyframes(rows, found)
    found.lineage = _readable(found, whole)
    for stored in found.lineage.stored.values():
        _look_at_values(found, stored, elements)
    _look_at_writes(found, elements)
    if found.broken or found.broken_writes or rows.unreadable:
        yield from _look_at_deltas(engine, found, whole)
    if all(finding.kind in NOTES for finding in found.findings):
        problem = registry_problem(rows, entry)
        if problem:
            found.tell(Kind.REGISTRY, problem)
    return found


def _read_segments(found: Examined) -> Operation[None]:
    """Sort the thread's segments into those that can be read, and the others."""
    segments: list[Segment] = []
    try:
        segments = yield from _those_here(found, [Span(log, 0, EVERYTHING) for log in _logs(found)])
    except _UNREADABLE:
        segments = yield from _one_by_one(found)
    there = {_key(s) for s in segments} | found.damaged.keys() | found.away.keys()
    for place in found.rows.segments:
        key = (place.log, place.start, place.count)
        if key not in there and not _is_sealed(place, segments):
            found.damaged[key] = None
            found.tell(Kind.SEGMENT, f"segment {place.start} of log {place.log} cannot be read")
    for segment in segments:
        _sort(found, segment)
    _tell_overlaps(found)


def _logs(found: Examined) -> list[int]:
    return sorted({place.log for place in found.rows.segments})


def _those_here(found: Examined, spans: Sequence[Span]) -> Operation[list[Segment]]:
    """The segments but for those whose bytes are in a cold store that is not known here."""
    try:
        return (yield from fetch_segments(found.thread, tuple(spans)))
    except ThreadArchivedError:
        if not found.away:
            problem = "values of it are in the cold store, and were not looked at"
            found.tell(Kind.AWAY, problem)
    segments = yield from fetch(ReadSegments(found.thread, tuple(spans), stub=True))
    found.away |= {_key(s): s.span for s in segments if s.data.startswith(STUB)}
    return [s for s in segments if _key(s) not in found.away]


def _is_sealed(place: SegmentInfo, segments: Iterable[Segment]) -> bool:
    """Whether another segment holds the same positions: it took the place's meanwhile."""
    stop = place.start + place.count
    return any(s.log == place.log and s.start <= place.start and s.stop >= stop for s in segments)


def _one_by_one(found: Examined) -> Operation[list[Segment]]:
    """The segments log by log, and place by place in those that cannot be read at once."""
    segments: list[Segment] = []
    for log in _logs(found):
        try:
            segments += yield from _those_here(found, [Span(log, 0, EVERYTHING)])
        except _UNREADABLE:
            places = [place for place in found.rows.segments if place.log == log]
            segments += yield from _placed(found, places)
    return segments


def _placed(found: Examined, places: Iterable[SegmentInfo]) -> Operation[list[Segment]]:
    segments: list[Segment] = []
    for place in places:
        span = span_of(place)
        try:
            segments += yield from _those_here(found, [span])
        except _UNREADABLE as exc:
            found.damaged[place.log, place.start, place.count] = None
            where = f"segment {place.start} of log {place.log}"
            found.tell(Kind.SEGMENT, f"{where} cannot be read: {exc.message}")
    return segments


def _sort(found: Examined, segment: Segment) -> None:
    key, where = _key(segment), f"segment {segment.start} of log {segment.log}"
    try:
        count = len(unpack(segment.data))
    except CodecError as exc:
        is_damage = isinstance(exc, CorruptionError)
        found.tell(Kind.SEGMENT if is_damage else Kind.UNKNOWN, f"{where}: {exc.message}")
        found.damaged[key] = segment
        return
    if count == segment.count:
        found.segments[key] = segment
        return
    found.tell(Kind.SEGMENT, f"{where} holds {count} elements, not {segment.count}")
    found.damaged[key] = segment


def _tell_overlaps(found: Examined) -> None:
    """Of two segments for the same positions nobody knows which one is right."""
    for one, other in pairwise([found.segments[key] for key in sorted(found.segments)]):
        if one.log == other.log and other.start < one.stop:
            where = f"segment {other.start} of log {other.log}"
            found.tell(Kind.SEGMENT, f"{where} overlaps the one before")
            for segment in (one, other):
                found.damaged[_key(segment)] = segment
    for key in found.damaged.keys() & found.segments.keys():
        del found.segments[key]


def _key(segment: Segment) -> SegmentKey:
    return segment.log, segment.start, segment.count


# -- checkpoints -----------------------------------------------------------------------


def _with_keyframes(rows: ThreadRows, found: Examined) -> list[StoredCheckpoint]:
    """The checkpoints, with the keyframes that a careful read leaves out."""
    by_log: dict[int, list[Segment]] = {}
    for segment in (*found.segments.values(), *filter(None, found.damaged.values())):
        by_log.setdefault(segment.log, []).append(segment)
    whole = []
    for stored in rows.checkpoints:
        if stored.keyframe is None:
            log, pos = stored.row.key_log, stored.row.key_pos
            over = [s for s in by_log.get(log, ()) if s.start <= pos < s.stop]
            stored = stored._replace(keyframe=over[0] if over else None)  # noqa: PLW2901
        whole.append(stored)
    return whole


def _readable(found: Examined, checkpoints: Iterable[StoredCheckpoint]) -> Lineage:
    """The checkpoints whose manifest can be read, with the writes that can."""
    lineage = Lineage(checkpoints)
    for key, stored in list(lineage.stored.items()):
        try:
            lineage.manifest(key)
        except CodecError as exc:
            found.broken.add(key)
            _tell_manifest(found, stored, exc)
            del lineage.stored[key]
        else:
            sound = tuple([row for row in stored.writes if not _write_problem(row)])
            lineage.stored[key] = stored._replace(writes=sound)
    return lineage


def _tell_manifest(found: Examined, stored: StoredCheckpoint, error: CodecError) -> None:
    row = stored.row
    key = row.ns, row.id
    try:
        manifest_of(row)
    except CorruptionError:
        found.tell(Kind.CHECKPOINT, error.message, key)
        if not _is_json(row.metadata):
            found.tell(Kind.METADATA, "its metadata is no JSON", key)
    else:
        known = isinstance(error, CorruptionError)
        found.tell(Kind.KEYFRAME if known else Kind.UNKNOWN, error.message, key)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _look_at_values(found: Examined, stored: StoredCheckpoint, elements: Elements) -> None:
    key = stored.row.ns, stored.row.id
    for channel, entry in found.lineage.manifest(key)[0].entries.items():
        problem = _problem(found, entry.ref, elements) if entry.ref is not None else ""
        if problem:
            found.tell(Kind.VALUE, problem, key, channel)
            found.lost.setdefault(key, set()).add(channel)
            found.broken.add(key)


def _look_at_writes(found: Examined, elements: Elements) -> None:
    rows = [row for stored in found.rows.checkpoints for row in stored.writes]
    for row in (*rows, *found.rows.orphans):
        key, task = (row.ns, row.checkpoint_id), f"of task {row.task_id!r}"
        problem = _write_problem(row)
        if problem:
            found.tell(Kind.WRITE, f"writes {task}: {problem}", key)
            found.broken_writes.add((*key, row.seq))
            continue
        for write in unpack_writes(row):
            problem = _problem(found, write.ref, elements)
            if problem:
                found.tell(Kind.WRITE, f"write {task}: {problem}", key, write.channel)
                found.broken_writes.add((*key, row.seq))


def _write_problem(row: WriteRow) -> str:
    try:
        unpack_writes(row)
    except ThreadkeepError as exc:
        return exc.message
    return ""


def _told(missing: Iterable[Span]) -> str:
    places = ", ".join(f"{s.start} to {s.stop} of log {s.log}" for s in missing)
    return f"elements {places} are missing"


def _problem(found: Examined, ref: Ref, elements: Elements) -> str:
    """Why the value cannot be read; nothing where it can, or where that cannot be told."""
    missing = elements.missing(ref.needs)
    if missing and found.away:
        away = by_log(found.away.values())
        return "" if any(touches(away, span) for span in missing) else _told(missing)
    if missing:
        return _told(missing)
    if isinstance(ref, Cell):
        try:
            elements.raw(ref.log, ref.pos)
        except ThreadkeepError as exc:
            return exc.message
    return ""


# -- what is rebuilt through it --------------------------------------------------------


def _look_at_deltas(
    engine: Engine, found: Examined, whole: Sequence[StoredCheckpoint]
) -> Operation[None]:
    """Find the DeltaChannels that are rebuilt through something broken."""
    lineage, elements = found.lineage, Elements(NO_CODEC, found.segments.values())
    found.rebuilt = yield from searches(engine, found.thread, lineage, lineage.stored, elements)
    stored = {(s.row.ns, s.row.id): s for s in whole}
    through: dict[Search, CheckpointKey | None] = {}
    for key, channel in found.rebuilt:
        cause = _broken_above(found, stored, (key, channel), through)
        if cause is not None:
            problem = f"it is rebuilt through checkpoint {cause[1]!r}, of which something is broken"
            found.tell(Kind.DELTA, problem, key, channel)
            found.broken.add(key)


def _broken_above(
    found: Examined,
    stored: dict[CheckpointKey, StoredCheckpoint],
    search: Search,
    known: dict[Search, CheckpointKey | None],
) -> CheckpointKey | None:
    """The nearest ancestor that the channel is rebuilt through and that does not tell it."""
    (at, channel), passed = search, []
    while (at, channel) not in known:
        passed.append(at)
        known[at, channel] = None  # (a checkpoint may be its own ancestor)
        parent = stored[at].row.parent
        above = (at[0], parent) if parent is not None else None
        if above is None or (above not in stored and not found.hides("checkpoints")):
            break
        if above not in found.lineage.stored or channel in found.lost.get(above, ()):
            known[at, channel] = above
            break
        if _lacks_writes(found, stored[above], stored[at]):
            known[at, channel] = above
            break
        if found.lineage.value(above, channel) is not None:
            break
        at = above
    cause = known[at, channel]
    known.update({(key, channel): cause for key in passed})
    return cause


def _lacks_writes(found: Examined, above: StoredCheckpoint, below: StoredCheckpoint) -> bool:
    """Whether writes on the one that led to the other are broken."""
    return found.hides("writes") or any(
        counts_for(row, below.row)
        for row in above.writes
        if (row.ns, row.checkpoint_id, row.seq) in found.broken_writes
    )


# -- the registry ----------------------------------------------------------------------


def registry_problem(rows: ThreadRows, entry: ThreadEntry | None) -> str:
    """What the registry says that a thread's sound rows do not; nothing where they agree.

    Sizes of forks, and of threads that share segments, are not compared: what was there before a
    fork counts for its origin.
    """
    if not rows.checkpoints:
        return ""
    if entry is None or not entry.state:
        return "the registry does not know it"
    wanted = thread_summary.of_thread(rows)
    waits_at = next((m.checkpoint for m in wanted.moves if m.waits), None)
    if not thread_summary.fits(entry, waits_at):
        at = f"an interrupt waits at {waits_at!r}" if waits_at else "nothing waits"
        return f"the registry has it as {entry.state!r}, and {at}"
    if not rows.family and entry.origin is None and entry.size != wanted.size:
        return f"the registry counts {entry.size} bytes, its rows are {wanted.size}"
    return ""
