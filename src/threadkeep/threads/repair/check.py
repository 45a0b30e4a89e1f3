"""Checking a store: damage, its kind, and the values that are rebuilt through it.

Nothing is changed, and one broken row or segment never keeps the others from being checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from threadkeep._core.codec.frame import unpack
from threadkeep._core.engine import registration, thread_summary
from threadkeep._core.engine.cold_references import STUB, lost_archive, says_active
from threadkeep._core.engine.context import NO_CODEC, Engine
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import (
    CheckpointKey,
    Lineage,
    Search,
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
    LAYERS_KEY,
    LAYERS_NS,
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
from threadkeep._core.engine.operation import Operation, Progress, fetch, fetch_segments
from threadkeep._core.engine.refs import Cell, Ref, span_of
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot
from threadkeep._core.engine.rows import counts_for, manifest_of, unpack_writes
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep._core.engine.thread_sizes import (
    EVERYTHING,
    all_sizes,
)
from threadkeep._run.layers.driver import Runner, Workflow, on
from threadkeep.errors import (
    CodecError,
    CorruptionError,
    InvalidArgumentError,
    ThreadArchivedError,
    ThreadkeepError,
)

UNREADABLE = (CodecError, InvalidArgumentError)
"""Errors of a store about rows that it cannot read."""

_PAGE = 256
_LOOKS = 3


class Kind(StrEnum):
    """Kind of a finding; quarantine files hold these names, so they never change."""

    STORE = "store"  # what the store finds wrong with its own files or tables
    UNREADABLE = "unreadable"  # rows that the store cannot give
    SEGMENT = "segment"  # a stored run of elements
    CHECKPOINT = "checkpoint"  # a checkpoint's row
    METADATA = "metadata"  # a checkpoint's metadata
    KEYFRAME = "keyframe"  # what a checkpoint's manifest is written against
    VALUE = "value"  # a channel's value in a checkpoint
    WRITE = "write"  # what a task wrote
    DELTA = "delta"  # a DeltaChannel that is rebuilt through something broken
    UNKNOWN = "unknown"  # no damage: of a newer release, or encrypted
    AWAY = "away"  # no damage: in the cold store, which is not known here
    REGISTRY = "registry"  # no damage: the thread's entry does not fit its rows
    LAYERS = "layers"  # no damage: archived messages of layered memory are missing


NOTES = frozenset({Kind.AWAY, Kind.REGISTRY, Kind.LAYERS})
"""Kinds that are no damage."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and its place; without a place it is the store's."""

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
    """The result of a check: how many threads were checked, and all that is broken.

    `notes` are no damage: findings of a kind in `NOTES`.
    """

    threads: int
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing is broken."""
        return not self.findings


def check(store: Runner, engine: Engine, progress: Progress | None = None) -> Workflow[CheckReport]:
    """Verify a whole store; see `Saver.check`."""
    findings = yield from on(store, damage())
    threads, unlisted = yield from on(store, threads_to_check())
    findings += unlisted
    notes: list[Finding] = []
    for done, thread in enumerate(threads, 1):
        found, noted = yield from on(store, check_thread(engine, thread))
        findings += found
        notes += noted
        if progress is not None:
            progress("threads checked", done, len(threads))
    return CheckReport(len(threads), tuple(findings), tuple(notes))


def damage() -> Operation[list[Finding]]:
    """Return what the store finds wrong with its own files."""
    return [Finding(problem) for problem in (yield from fetch(ReadDamage()))]


def threads_to_check() -> Operation[tuple[list[str], list[Finding]]]:
    """Return the threads that hold any row, are archived or damaged, or all that can be listed.

    And the reasons if not all can be.
    """
    try:
        without_rows = yield from registration.damaged_or_archived()
        sizes = yield from all_sizes()
        return sorted({*without_rows, *[size.thread for size in sizes.threads]}), []
    except CorruptionError as exc:
        findings = [Finding(exc.message)]
    names: list[str] = []
    try:
        page = yield from fetch(FindThreads(None, _PAGE, empty=True))
        while page:
            names += page
            page = yield from fetch(FindThreads(names[-1], _PAGE, empty=True))
    except CorruptionError as exc:
        findings.append(Finding(f"not all threads can be listed: {exc.message}"))
    return names, findings


def check_thread(engine: Engine, thread: str) -> Operation[tuple[list[Finding], list[Finding]]]:
    """Verify every checksum, reference and span of a thread; return findings and notes.

    The store may be written while it is read: only what was found at every look counts.
    """
    found = yield from _findings(engine, thread)
    for _ in range(_LOOKS - 1):
        if found:
            again = yield from _findings(engine, thread)
            found = [finding for finding in found if finding in again]
    notes = [finding for finding in found if finding.kind in NOTES]
    return [finding for finding in found if finding.kind not in NOTES], notes


def _findings(engine: Engine, thread: str) -> Operation[list[Finding]]:
    try:
        snapshot = yield from read_snapshot(thread, skip=True, alone=True)
    except UNREADABLE as exc:
        return [unreadable(thread, exc)]
    return (yield from examine(engine, snapshot)).findings


def unreadable(thread: str, error: ThreadkeepError) -> Finding:
    """Return the finding where a store cannot read a thread's rows at all."""
    return Finding(f"its rows cannot be read: {error.message}", thread, kind=Kind.UNREADABLE)


# -- one thread ------------------------------------------------------------------------


@dataclass(slots=True)
class Examined:
    """The findings of one look at a thread, and the facts behind them.

    `damaged` segments cannot be read, and have their bytes where the store gives them; those of
    `away` are in a cold store that is not known here. `lineage` holds the checkpoints whose
    manifest can be read, `lost` the channels of each whose values cannot, `broken` all checkpoints
    that cannot be loaded as they were, and `rebuilt` their DeltaChannels without a value.
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
    rebuilt: list[Search] = field(default_factory=list)

    def add(
        self, kind: Kind, problem: str, key: CheckpointKey | None = None, channel: str = ""
    ) -> None:
        """Add a finding."""
        ns, checkpoint = key or (None, None)
        place = (self.thread, ns or None, checkpoint, channel or None)
        self.findings.append(Finding(problem, *place, kind))

    def hides(self, table: str) -> bool:
        """Return whether this table has unreadable rows of the thread."""
        return any(row.table == table for row in self.rows.unreadable)


def examine(engine: Engine, snapshot: ThreadSnapshot) -> Operation[Examined]:
    """Look at all of a thread, read with its unreadable rows apart."""
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
        yield from _look_at_deltas(engine, found, whole)
    for key, problem in lost_records(rows, found.lineage):
        found.add(Kind.LAYERS, problem, key)
    is_sound = all(finding.kind in NOTES for finding in found.findings)
    if is_sound and (problem := _registry_problem(rows, entry)):
        found.add(Kind.REGISTRY, problem)
    return found


# -- segments --------------------------------------------------------------------------


def _read_segments(found: Examined) -> Operation[None]:
    """Sort the thread's segments into those that can be read, and the others."""
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
                found.add(Kind.SEGMENT, f"{_name(info)} cannot be read: {exc.message}")
    there = set(map(segment_key, segments)) | found.damaged.keys() | found.away.keys()
    read = by_log([segment.span for segment in segments])  # (sealed ones hold others' positions)
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
    """The segments but for those whose bytes are in a cold store that is not known here."""
    try:
        return (yield from fetch_segments(found.thread, tuple(spans)))
    except ThreadArchivedError:
        if not found.away:
            found.add(Kind.AWAY, "some of its values are in the cold store, and were not checked")
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
    """Find segments for the same positions: which one is right is unknown."""
    for one, other in pairwise([found.segments[key] for key in sorted(found.segments)]):
        if one.log == other.log and other.start < one.stop:
            found.add(Kind.SEGMENT, f"{_name(other)} overlaps the one before")
            for segment in (one, other):
                found.damaged[segment_key(segment)] = segment
    for key in found.damaged.keys() & found.segments.keys():
        del found.segments[key]


# -- checkpoints and writes ------------------------------------------------------------


def _with_keyframes(rows: ThreadRows, found: Examined) -> list[StoredCheckpoint]:
    """The checkpoints with their keyframes, which a read of unreadable rows leaves out."""
    logs: dict[int, list[Segment]] = {}
    for segment in (*found.segments.values(), *filter(None, found.damaged.values())):
        logs.setdefault(segment.log, []).append(segment)
    whole = []
    for stored in rows.checkpoints:
        log, pos, keyframe = stored.row.key_log, stored.row.key_pos, stored.keyframe
        over = [segment for segment in logs.get(log, ()) if segment.start <= pos < segment.stop]
        whole.append(stored._replace(keyframe=keyframe or next(iter(over), None)))
    return whole


def _readable(found: Examined, checkpoints: Iterable[StoredCheckpoint]) -> Lineage:
    """The checkpoints whose manifest can be read, with the writes that can."""
    lineage = Lineage(checkpoints)
    for key, stored in list(lineage.stored.items()):
        try:
            lineage.manifest(key)
        except CodecError as exc:
            found.broken.add(key)
            _add_manifest(found, stored, exc)
            del lineage.stored[key]
            continue
        sound = tuple([row for row in stored.writes if not _write_problem(row)])
        lineage.stored[key] = stored._replace(writes=sound)
    return lineage


def _add_manifest(found: Examined, stored: StoredCheckpoint, error: CodecError) -> None:
    row, key = stored.row, checkpoint_key(stored)
    try:
        manifest_of(row)
    except CorruptionError:
        found.add(Kind.CHECKPOINT, error.message, key)
        with suppress(ValueError, RecursionError):
            if isinstance(json.loads(row.metadata), dict):
                return
        found.add(Kind.METADATA, "its metadata is no JSON", key)
    else:
        kind = Kind.KEYFRAME if isinstance(error, CorruptionError) else Kind.UNKNOWN
        found.add(kind, error.message, key)


def _look_at_values(found: Examined, key: CheckpointKey, elements: Elements) -> None:
    for channel, entry in found.lineage.manifest(key)[0].entries.items():
        problem = _problem(found, entry.ref, elements) if entry.ref is not None else ""
        if problem:
            found.add(Kind.VALUE, problem, key, channel)
            found.lost.setdefault(key, set()).add(channel)
            found.broken.add(key)


def _look_at_writes(found: Examined, elements: Elements) -> None:
    rows = [row for stored in found.rows.checkpoints for row in stored.writes]
    for row in (*rows, *found.rows.orphans):
        key, task = (row.ns, row.checkpoint_id), f"of task {row.task_id!r}"
        problem = _write_problem(row)
        if problem:
            found.add(Kind.WRITE, f"writes {task}: {problem}", key)
            found.broken_writes.add(write_key(row))
        for write in unpack_writes(row) if not problem else ():
            problem = _problem(found, write.ref, elements)
            if problem:
                found.add(Kind.WRITE, f"write {task}: {problem}", key, write.channel)
                found.broken_writes.add(write_key(row))


def _write_problem(row: WriteRow) -> str:
    try:
        unpack_writes(row)
    except ThreadkeepError as exc:
        return exc.message
    return ""


def _problem(found: Examined, ref: Ref, elements: Elements) -> str:
    """Why the value cannot be read; empty where it can, or where that is unknown."""
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
    engine: Engine, found: Examined, whole: Sequence[StoredCheckpoint]
) -> Operation[None]:
    """Find the DeltaChannels that are rebuilt through something broken."""
    lineage, elements = found.lineage, Elements(NO_CODEC, found.segments.values())
    found.rebuilt = yield from searches(engine, found.thread, lineage, lineage.stored, elements)
    stored = {checkpoint_key(one): one for one in whole}
    causes: dict[Search, CheckpointKey | None] = {}
    for key, channel in found.rebuilt:
        cause = _broken_above(found, stored, (key, channel), causes)
        if cause is not None:
            problem = f"it is rebuilt through checkpoint {cause[1]!r}, of which something is broken"
            found.add(Kind.DELTA, problem, key, channel)
            found.broken.add(key)


def _broken_above(
    found: Examined,
    stored: dict[CheckpointKey, StoredCheckpoint],
    search: Search,
    known: dict[Search, CheckpointKey | None],
) -> CheckpointKey | None:
    """The nearest ancestor that the channel is rebuilt through and that lacks it."""
    (at, channel), passed = search, []
    while (at, channel) not in known:
        passed.append(at)
        known[at, channel] = None  # (a checkpoint may be its own ancestor)
        parent = stored[at].row.parent
        above = (at[0], parent) if parent is not None else None
        if above is None or (above not in stored and not found.hides("checkpoints")):
            break
        is_lost = above not in found.lineage.stored or channel in found.lost.get(above, ())
        if is_lost or _lacks_writes(found, stored[above], stored[at]):
            known[at, channel] = above
            break
        if found.lineage.value(above, channel) is not None:
            break
        at = above
    cause = known[at, channel]
    known.update({(key, channel): cause for key in passed})
    return cause


def _lacks_writes(found: Examined, above: StoredCheckpoint, below: StoredCheckpoint) -> bool:
    """Return True if writes on the one that led to the other are broken."""
    return found.hides("writes") or any(
        counts_for(row, below.row) for row in above.writes if write_key(row) in found.broken_writes
    )


def _registry_problem(rows: ThreadRows, entry: ThreadEntry | None) -> str:
    """Return how the entry of a sound thread differs from its rows; empty if it does not.

    Sizes of forks, and of threads that share segments, are not compared: what is shared counts for
    one of them.
    """
    if not rows.checkpoints:
        return "its rows are archived, and its state is another" if says_active(entry) else ""
    if entry is None or not entry.state:
        return "the registry does not know it"
    size = thread_summary.of_thread(rows).size
    waits_at = thread_summary.waits_at(rows.checkpoints, rows.orphans)
    if not thread_summary.fits(entry, waits_at):
        at = f"an interrupt waits at {waits_at!r}" if waits_at else "nothing waits"
        return f"the registry has it as {entry.state!r}, and {at}"
    if not rows.family and entry.origin is None and entry.size != size:
        return f"the registry counts {entry.size} bytes, its rows are {size}"
    return ""


def lost_records(rows: ThreadRows, lineage: Lineage) -> Iterator[tuple[CheckpointKey, str]]:
    """Yield the readable checkpoints whose archived messages are missing, and the problems."""
    there = {stored.row.id for stored in rows.checkpoints if stored.row.ns == LAYERS_NS}
    for (ns, id), stored in lineage.stored.items():
        row = stored.row
        if ns == LAYERS_NS:
            record = row.parent
        elif not ns and LAYERS_KEY in row.metadata:
            record = json.loads(row.metadata).get(LAYERS_KEY)
        else:
            continue
        if record and record not in there:
            yield (ns, id), f"archived messages are missing: there is no record {record}"
