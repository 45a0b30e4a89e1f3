"""Check a store: find damaged rows, segments and values, without changing anything.

A broken row or segment does not stop the check of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from threadkeep._core.codec.frame import unpack
from threadkeep._core.engine import registration
from threadkeep._core.engine.cold_references import STUB, lost_archive
from threadkeep._core.engine.context import NO_CODEC, Engine
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import (
    ChannelSearch,
    CheckpointKey,
    Lineage,
    SegmentKey,
    WriteKey,
    by_log,
    checkpoint_key,
    overlap,
    searches,
    segment_key,
    touches,
    write_key,
)
from threadkeep._core.engine.model import (
    CheckpointRow,
    FindThreads,
    ReadDamage,
    ReadSegments,
    Segment,
    SegmentInfo,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import (
    Operation,
    Progress,
    call,
    fetch,
    fetch_segments,
)
from threadkeep._core.engine.refs import Cell, Ref, span_of
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot
from threadkeep._core.engine.rows import Write, counts_for, manifest_of, unpack_writes
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep._core.engine.thread_sizes import EVERYTHING, all_sizes
from threadkeep._run.driver import Runner, on
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    InvalidArgumentError,
    ThreadArchivedError,
    ThreadkeepError,
    WrongKeyError,
)
from threadkeep.threads.repair.notes import lost_records, registry_problem

UNREADABLE = (CodecError, InvalidArgumentError)
"""Errors that a store raises for rows that it cannot read."""

_PAGE = 256
_LOOKS = 3  # a finding counts if every look finds it


class Kind(StrEnum):
    """Kind of a finding. Quarantine files hold these names, so they never change."""

    STORE = "store"  # damage that the store reports about its own files or tables
    UNREADABLE = "unreadable"  # rows that the store cannot read
    SEGMENT = "segment"  # a stored run of elements
    CHECKPOINT = "checkpoint"  # a checkpoint's row
    KEYFRAME = "keyframe"  # the keyframe of a checkpoint's manifest
    VALUE = "value"  # a channel's value in a checkpoint
    WRITE = "write"  # a task's pending write
    DELTA = "delta"  # a DeltaChannel that is rebuilt through something broken
    UNKNOWN = "unknown"  # written by a newer release, or encrypted
    AWAY = "away"  # a note: in a cold store that is not configured here
    REGISTRY = "registry"  # a note: the thread's entry does not match its rows
    LAYERS = "layers"  # a note: archived messages of layered memory are missing
    BESIDE = "beside"  # a note: LangGraph's tables in the same database have other threads


NOTES = frozenset({Kind.AWAY, Kind.REGISTRY, Kind.LAYERS, Kind.BESIDE})
"""Kinds of findings that are not damage."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem and its place: a thread, checkpoint and channel, or else the whole store."""

    problem: str
    thread: str | None = None
    namespace: str | None = None
    checkpoint: str | None = None
    channel: str | None = None
    kind: Kind = Kind.STORE

    def __str__(self) -> str:
        names = ("thread", "namespace", "checkpoint", "channel")
        place = ", ".join(f"{n} {v!r}" for n in names if (v := getattr(self, n)))
        return f"{place}: {self.problem}" if place else self.problem


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of a check.

    Args:
        threads: number of threads checked.
        findings: all damage.
        notes: findings that are not damage, of the kinds `away`, `registry`, `layers`
            and `beside`.
    """

    threads: int
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing is broken."""
        return not self.findings


def check(
    store: Runner, engine: Engine, progress: Progress | None = None
) -> Operation[CheckReport]:
    findings = yield from on(store, damage())
    threads, unlisted = yield from on(store, threads_to_check())
    findings += unlisted
    beside = yield from on(store, call("notes"))
    notes = [Finding(note, kind=Kind.BESIDE) for note in beside]
    for done, thread in enumerate(threads, 1):
        found, noted = yield from on(store, check_thread(engine, thread))
        findings += found
        notes += noted
        if progress is not None:
            progress("threads checked", done, len(threads))
    return CheckReport(len(threads), tuple(findings), tuple(notes))


def damage() -> Operation[list[Finding]]:
    """Read the damage that the store reports about its own files."""
    return [Finding(problem) for problem in (yield from fetch(ReadDamage()))]


def threads_to_check() -> Operation[tuple[list[str], list[Finding]]]:
    """List the threads that have rows, an archive or a damaged entry, and errors of the listing."""
    try:
        without_rows = yield from registration.damaged_or_archived()
        sizes = yield from all_sizes()
        return sorted({*without_rows, *[size.thread for size in sizes.threads]}), []
    except CorruptionError as exc:
        findings = [Finding(exc.message)]
    names, after = list[str](), None
    try:
        while page := (yield from fetch(FindThreads(after, _PAGE, empty=True))):
            names += page
            after = names[-1]
    except CorruptionError as exc:
        findings.append(Finding(f"not all threads can be listed: {exc.message}"))
    return names, findings


def check_thread(engine: Engine, thread: str) -> Operation[tuple[list[Finding], list[Finding]]]:
    """Verify every checksum, reference and span of a thread, and return findings and notes.

    Programs may write meanwhile, so a finding counts only if every look finds it.
    """
    found: list[Finding] | None = None
    for _ in range(_LOOKS):
        try:
            snapshot = yield from read_snapshot(thread, skip=True, alone=True)
        except UNREADABLE as exc:
            now = [unreadable(thread, exc)]
        else:
            now = (yield from examine(engine, snapshot)).findings
        found = now if found is None else [finding for finding in found if finding in now]
        if not found:
            break
    found = found or []
    notes = [finding for finding in found if finding.kind in NOTES]
    return [finding for finding in found if finding.kind not in NOTES], notes


def unreadable(thread: str, error: ThreadkeepError) -> Finding:
    """Report a thread whose rows the store cannot read at all."""
    return Finding(f"its rows cannot be read: {error.message}", thread, kind=Kind.UNREADABLE)


# -- one thread ------------------------------------------------------------------------


@dataclass(slots=True)
class Examined:
    """Findings of one look at a thread, and the facts that repair needs.

    Attributes:
        damaged: unreadable segments, or None if the store cannot give the bytes.
        away: segments in a cold store that is not configured here.
        lineage: checkpoints with a readable manifest.
        lost: channels with an unreadable value, by checkpoint.
        broken: checkpoints that do not load as they were saved.
        rebuilt: DeltaChannels without a value, which are rebuilt from ancestors.
    """

    thread: str
    rows: ThreadRows
    entry: ThreadEntry | None = None
    findings: list[Finding] = field(default_factory=list)
    segments: dict[SegmentKey, Segment] = field(default_factory=dict)
    damaged: dict[SegmentKey, Segment | None] = field(default_factory=dict)
    away: dict[SegmentKey, Span] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=lambda: Lineage(()))
    lost: dict[CheckpointKey, set[str]] = field(default_factory=dict)
    broken: set[CheckpointKey] = field(default_factory=set)
    broken_writes: set[WriteKey] = field(default_factory=set)
    rebuilt: list[ChannelSearch] = field(default_factory=list)

    def add(
        self, kind: Kind, problem: str, key: CheckpointKey | None = None, channel: str = ""
    ) -> None:
        """Add a finding."""
        ns, checkpoint = key or (None, None)
        place = (self.thread, ns or None, checkpoint, channel or None)
        self.findings.append(Finding(problem, *place, kind))

    def hides(self, table: str) -> bool:
        """Return True if the thread has unreadable rows in this table."""
        return any(row.table == table for row in self.rows.unreadable)


def examine(engine: Engine, snapshot: ThreadSnapshot) -> Operation[Examined]:
    """Check a snapshot of a thread that was read with `skip`."""
    thread, entry, rows, _ = snapshot
    found = Examined(thread, rows, entry)
    for row in rows.unreadable:
        found.add(Kind.UNREADABLE, row.problem)
    if problem := lost_archive(entry):
        found.add(Kind.UNREADABLE, problem)
    yield from _read_segments(found)
    elements = Elements(NO_CODEC, found.segments.values())
    whole = _with_keyframes(rows, found)
    found.lineage = _readable(found, whole)
    for key in found.lineage.stored:
        _look_at_values(found, key, elements)
    _look_at_writes(found, elements)
    if found.broken or found.broken_writes or rows.unreadable:
        yield from _look_at_deltas(engine, found, whole, elements)
    for key, problem in lost_records(rows, found.lineage):
        found.add(Kind.LAYERS, problem, key)
    is_sound = all(finding.kind in NOTES for finding in found.findings)
    sizes = {segment_key(one): len(one.data) for one in found.segments.values()}
    is_padded = any(one.size > sizes.get(segment_key(one), one.size) for one in rows.segments)
    if is_sound and (problem := registry_problem(rows, entry, is_padded=is_padded)):
        found.add(Kind.REGISTRY, problem)
    return found


# -- segments --------------------------------------------------------------------------


def _read_segments(found: Examined) -> Operation[None]:
    """Divide the thread's segments into readable, damaged and away."""
    logs = sorted({info.log for info in found.rows.segments})
    segments: list[Segment] = []
    try:
        segments = yield from _not_away(found, [Span(log, 0, EVERYTHING) for log in logs])
    except UNREADABLE:
        for info in found.rows.segments:
            try:
                segments += yield from _not_away(found, [span_of(info)])
            except UNREADABLE as exc:
                found.damaged[segment_key(info)] = None
                kind = Kind.UNKNOWN if isinstance(exc, WrongKeyError) else Kind.SEGMENT
                found.add(kind, f"{_name(info)} cannot be read: {exc.message}")
    there = set(map(segment_key, segments)) | found.damaged.keys() | found.away.keys()
    read = by_log([segment.span for segment in segments])  # (a sealed one replaces several)
    for info in found.rows.segments:
        key, span = segment_key(info), span_of(info)
        if key not in there and overlap(read, span) != [span]:
            found.damaged[key] = None
            found.add(Kind.SEGMENT, f"{_name(info)} cannot be read")
    for segment in segments:
        _sort(found, segment)
    _find_overlaps(found)


def _name(segment: Segment | SegmentInfo) -> str:
    return f"segment {segment.start} of log {segment.log}"


def _not_away(found: Examined, spans: Sequence[Span]) -> Operation[list[Segment]]:
    """Read segments, except those in a cold store that is not configured here."""
    try:
        return (yield from fetch_segments(found.thread, tuple(spans)))
    except ThreadArchivedError:
        if not found.away:
            found.add(Kind.AWAY, "some of its values are in the cold store and were not checked")
    segments = yield from fetch(ReadSegments(found.thread, tuple(spans), stub=True))
    found.away |= {segment_key(s): s.span for s in segments if s.data.startswith(STUB)}
    return [s for s in segments if segment_key(s) not in found.away]


def _sort(found: Examined, segment: Segment) -> None:
    key = segment_key(segment)
    try:
        count = len(unpack(segment.data))
    except CodecError as exc:
        kind = Kind.SEGMENT if isinstance(exc, CorruptionError) else Kind.UNKNOWN
        found.add(kind, f"{_name(segment)}: {exc.message}")
        found.damaged[key] = segment
        return
    if count != segment.count:
        found.add(Kind.SEGMENT, f"{_name(segment)} holds {count} elements, not {segment.count}")
    (found.segments if count == segment.count else found.damaged)[key] = segment


def _find_overlaps(found: Examined) -> None:
    """Report segments for the same positions: any of them may be wrong."""
    for one, other in pairwise([found.segments[key] for key in sorted(found.segments)]):
        if one.log == other.log and other.start < one.stop:
            found.add(Kind.SEGMENT, f"{_name(other)} overlaps the previous one")
            for segment in (one, other):
                found.damaged[segment_key(segment)] = segment
    for key in found.damaged.keys() & found.segments.keys():
        del found.segments[key]


# -- checkpoints and writes ------------------------------------------------------------


def _with_keyframes(rows: ThreadRows, found: Examined) -> list[StoredCheckpoint]:
    """Attach keyframes to checkpoints: a store may leave them out when it reads with `skip`."""
    logs: dict[int, list[Segment]] = {}
    for segment in (*found.segments.values(), *filter(None, found.damaged.values())):
        logs.setdefault(segment.log, []).append(segment)
    whole = []
    for stored in rows.checkpoints:
        log, pos, keyframe = stored.row.key_log, stored.row.key_pos, stored.keyframe
        over = [segment for segment in logs.get(log, ()) if segment.start <= pos < segment.stop]
        whole.append(stored._replace(keyframe=keyframe or (over[0] if over else None)))
    return whole


def _readable(found: Examined, checkpoints: Iterable[StoredCheckpoint]) -> Lineage:
    """Select the checkpoints with a readable manifest, with their readable writes."""
    lineage = Lineage(checkpoints)
    for key, stored in list(lineage.stored.items()):
        try:
            lineage.manifest(key)
        except CodecError as exc:
            found.broken.add(key)
            found.add(_kind_of(exc, stored.row), exc.message, key)
            del lineage.stored[key]
            continue
        sound = tuple([row for row in stored.writes if _writes(row)[1] is None])
        lineage.stored[key] = stored._replace(writes=sound)
    return lineage


def _kind_of(error: CodecError, row: CheckpointRow) -> Kind:
    """Tell a damaged row from one whose keyframe is the problem."""
    try:
        manifest_of(row)
    except CorruptionError:
        return Kind.CHECKPOINT
    except CodecError:
        return Kind.UNKNOWN
    return Kind.KEYFRAME if isinstance(error, CorruptionError) else Kind.UNKNOWN


def _look_at_values(found: Examined, key: CheckpointKey, elements: Elements) -> None:
    for channel, entry in found.lineage.manifest(key)[0].entries.items():
        if entry.ref is not None and (problem := _problem(found, entry.ref, elements)):
            found.add(Kind.VALUE, problem, key, channel)
            found.lost.setdefault(key, set()).add(channel)
            found.broken.add(key)


def _look_at_writes(found: Examined, elements: Elements) -> None:
    rows = [row for stored in found.rows.checkpoints for row in stored.writes]
    for row in (*rows, *found.rows.orphans):
        key, task = (row.ns, row.checkpoint_id), f"of task {row.task_id!r}"
        writes, problem = _writes(row)
        if problem is not None:
            kind = Kind.UNKNOWN if isinstance(problem, WrongKeyError) else Kind.WRITE
            found.add(kind, f"writes {task}: {problem.message}", key)
            found.broken_writes.add(write_key(row))
        for write in writes:
            if missing := _problem(found, write.ref, elements):
                found.add(Kind.WRITE, f"write {task}: {missing}", key, write.channel)
                found.broken_writes.add(write_key(row))


def _writes(row: WriteRow) -> tuple[Sequence[Write], ThreadkeepError | None]:
    """Unpack a row of pending writes, and return its writes, or why that fails."""
    try:
        return unpack_writes(row), None
    except ThreadkeepError as exc:
        return (), exc


def _problem(found: Examined, ref: Ref, elements: Elements) -> str:
    """Say why a value cannot be read. Empty if it can, or if its elements are away."""
    missing = elements.missing(ref.needs)
    if missing:
        away = by_log(found.away.values())
        if any(touches(away, span) for span in missing):
            return ""
        spans = ", ".join(f"{s.start} to {s.stop} of log {s.log}" for s in missing)
        return f"elements {spans} are missing"
    if isinstance(ref, Cell):
        try:
            elements.raw(ref.log, ref.pos)
        except ThreadkeepError as exc:
            return exc.message
    return ""


def _look_at_deltas(
    engine: Engine, found: Examined, whole: Sequence[StoredCheckpoint], elements: Elements
) -> Operation[None]:
    """Find DeltaChannels that are rebuilt through something broken."""
    lineage = found.lineage
    found.rebuilt = yield from searches(engine, found.thread, lineage, lineage.stored, elements)
    stored = {checkpoint_key(one): one for one in whole}
    causes: dict[ChannelSearch, CheckpointKey | None] = {}
    for key, channel in found.rebuilt:
        cause = _broken_above(found, stored, (key, channel), causes)
        if cause is not None:
            problem = f"it is rebuilt through checkpoint {cause[1]!r}, which is damaged"
            found.add(Kind.DELTA, problem, key, channel)
            found.broken.add(key)


def _broken_above(
    found: Examined,
    stored: dict[CheckpointKey, StoredCheckpoint],
    search: ChannelSearch,
    known: dict[ChannelSearch, CheckpointKey | None],
) -> CheckpointKey | None:
    """Find the nearest ancestor that lacks a value or a write that the channel is rebuilt from."""
    (at, channel), passed = search, []
    while (at, channel) not in known:
        passed.append(at)
        known[at, channel] = None  # (damaged rows may form a circle)
        parent = stored[at].row.parent
        above = (at[0], parent) if parent is not None else None
        if above is None or (above not in stored and not found.hides("checkpoints")):
            break
        is_lost = (
            above not in found.lineage.stored
            or channel in found.lost.get(above, ())
            or found.hides("writes")
            or any(
                counts_for(write, stored[at].row)
                for write in stored[above].writes
                if write_key(write) in found.broken_writes
            )
        )
        if is_lost:
            known[at, channel] = above
            break
        if found.lineage.value(above, channel) is not None:
            break
        at = above
    cause = known[at, channel]
    known.update({(key, channel): cause for key in passed})
    return cause
