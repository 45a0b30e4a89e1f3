"""Repair threads: remove damaged rows, so that the rest of the thread loads.

Everything removed is written to the quarantine file and synced to disk first. Sound rows are not
changed. A thread that cannot be repaired does not stop the repair of the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from threadkeep._core import validation
from threadkeep._core.engine import refs, thread_summary
from threadkeep._core.engine.cold_references import WITH_COLD, lost_archive
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.lineage import (
    CheckpointKey,
    Lineage,
    SegmentKey,
    WriteKey,
    by_log,
    checkpoint_key,
    segment_key,
    spans_of,
    touches,
    write_key,
    write_spans,
)
from threadkeep._core.engine.model import (
    HIDDEN,
    THREADS,
    Batch,
    CheckpointRow,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Operation, Progress, commit
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot, retry
from threadkeep._core.engine.rows import heads, with_manifest
from threadkeep._core.engine.thread_entry import (
    ARCHIVE_RECORD,
    EntryUpdate,
    Lifecycle,
    ThreadEntry,
    find_record,
    is_archived,
)
from threadkeep._run.driver import Runner, external, on
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.sealers import file_sealer
from threadkeep.errors import CodecError, InvalidArgumentError, ThreadNotFoundError
from threadkeep.threads.repair import QuarantineFile, Removed
from threadkeep.threads.repair.check import (
    NOTES,
    UNREADABLE,
    Examined,
    Finding,
    Kind,
    damage,
    examine,
    threads_to_check,
    unreadable,
)
from threadkeep.threads.retention.apply import all_writes
from threadkeep.threads.transfer.meter import Meter
from threadkeep.threads.transfer.whole_thread import WholeThread

HINTS = {
    Kind.STORE: "Repair does not mend the store's own files or tables: restore a backup, or"
    " (SQLite) rebuild the file with `sqlite3 FILE .recover`.",
    Kind.UNREADABLE: "The store cannot read these rows at all: see its log, and restore a backup.",
    Kind.UNKNOWN: "This thread is not changed: read it with the release or the key that it was"
    " written with.",
    Kind.AWAY: WITH_COLD,
    Kind.SEGMENT: "Another thread shares this segment and is damaged too: repair both, or all.",
}
"""Advice for a finding that is left, by its kind."""

_WRONG_HEAP = (
    "values are missing, but no segment is damaged: the thread's heap number may be wrong, so"
    " nothing is removed; restore a backup, or delete the thread if you don't need it"
)


@dataclass(frozen=True, slots=True)
class NewHead:
    """A namespace whose newest checkpoint was damaged: its id, and the newest sound one's."""

    namespace: str
    before: str
    after: str | None


@dataclass(frozen=True, slots=True)
class RepairedThread:
    """Findings about one thread, and the rows removed from it.

    Args:
        thread: its id.
        findings: the findings of `check`.
        checkpoints: namespace and id of each checkpoint removed.
        writes, segments, unreadable: number of rows removed.
        heads: namespaces whose newest checkpoint was removed.
    """

    thread: str
    findings: tuple[Finding, ...]
    checkpoints: tuple[CheckpointKey, ...] = ()
    writes: int = 0
    segments: int = 0
    unreadable: int = 0
    heads: tuple[NewHead, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Result of a repair, or of a dry run.

    Args:
        threads: number of threads checked.
        repaired: threads that were repaired.
        unrepaired: findings that are left, each with the reason.
        file: the quarantine file, or None if nothing was removed.
    """

    threads: int
    repaired: tuple[RepairedThread, ...]
    unrepaired: tuple[Finding, ...]
    file: Path | None = None

    @property
    def ok(self) -> bool:
        """True if no damage is left."""
        return not self.unrepaired


class Repair(NamedTuple):
    """The change that repairs a thread. `batch` is None if it cannot be repaired.

    `removed` is None if only the registry's entry is corrected.
    """

    report: RepairedThread
    batch: Batch | None = None
    removed: Removed | None = None
    unrepaired: tuple[Finding, ...] = ()


# -- a store ---------------------------------------------------------------------------


def repair(
    store: LayeredBackend,
    engine: Engine,
    threads: str | Iterable[str] | None,
    file: str | os.PathLike[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Operation[RepairReport]:
    named = validation.thread_ids(threads)
    if file is None and not dry_run:
        raise InvalidArgumentError(
            "A quarantine file is needed.",
            hint='Use file="quarantine.tkq", or dry_run=True for a report only.',
        )
    names, unlisted = yield from on(store, threads_to_check())
    for name in named or ():
        if name not in names:
            raise ThreadNotFoundError(hint="Nothing was changed.", thread=name)
    quarantine = None
    if file is not None and not dry_run:
        sealer = yield from file_sealer(store)
        quarantine = yield from external(partial(QuarantineFile, Path(file), sealer))
    names = names if named is None else named
    try:
        done, unrepaired = yield from _repair_all(store, engine, names, quarantine, progress)
        if quarantine is not None:
            yield from external(quarantine.end)
    finally:
        if quarantine is not None:
            quarantine.close()
    if named is None:
        unrepaired += unlisted + (yield from on(store, damage()))
    path = quarantine.path if quarantine is not None and quarantine.is_used else None
    return RepairReport(len(names), tuple(done), tuple(unrepaired), path)


def _repair_all(
    store: Runner,
    engine: Engine,
    names: Sequence[str],
    quarantine: QuarantineFile | None,
    progress: Progress | None,
) -> Operation[tuple[list[RepairedThread], list[Finding]]]:
    """Repair each thread, and return the results, and the findings that are left."""
    done, unrepaired, again = list[RepairedThread](), list[Finding](), list[str]()

    def visit(thread: str) -> Operation[None]:
        found = yield from _repair(store, engine, thread, quarantine)
        if found is not None and found.unrepaired:
            again.append(thread)
        if found is not None and found.batch is not None:
            done.append(found.report)

    yield from Meter(progress, "repaired", len(names)).each(names, visit)
    for thread in again:  # (threads that share its segments may have been repaired since)
        found = yield from _repair(store, engine, thread, quarantine)
        unrepaired += found.unrepaired if found is not None else ()
    return done, unrepaired


def _repair(
    store: Runner, engine: Engine, thread: str, quarantine: QuarantineFile | None
) -> Operation[Repair | None]:
    def attempt() -> Operation[Repair | None]:
        found = yield from on(store, plan(engine, thread))
        if found is not None and found.batch is not None and quarantine is not None:
            if found.removed is not None:
                yield from external(partial(quarantine.add, found.removed))
            yield from on(store, carry_out(engine, found.batch))
        return found

    return retry(thread, attempt)


def carry_out(engine: Engine, batch: Batch) -> Operation[None]:
    """Commit a repair."""
    yield from commit(batch._replace(now=engine.now()))
    engine.working_set.forget(batch.thread)


def plan(engine: Engine, thread: str) -> Operation[Repair | None]:
    """Plan the repair of a thread as it is now, or None if there is nothing to repair."""
    try:
        snapshot = yield from read_snapshot(thread, skip=True)
    except UNREADABLE as exc:
        unread = (unreadable(thread, exc),)
        return Repair(RepairedThread(thread, unread), unrepaired=unread)
    found = yield from examine(engine, snapshot)
    report = RepairedThread(thread, tuple(found.findings))
    kinds = {finding.kind for finding in found.findings}
    if kinds <= {Kind.AWAY, Kind.LAYERS}:
        return None
    is_away = Kind.AWAY in kinds and not kinds <= NOTES
    if Kind.UNKNOWN in kinds or is_away or lost_archive(snapshot.entry):
        # Another release, a key or the cold store may read it. A lost archive is found with the
        # entry as it is.
        return Repair(report, unrepaired=report.findings)
    if _has_wrong_heap(found):
        left = Finding(_WRONG_HEAP, thread, kind=Kind.VALUE)
        return Repair(report, unrepaired=(left,))
    if kinds <= NOTES:
        return Repair(report, _registering(engine, snapshot))
    return _removing(engine, found, snapshot, report)


def _has_wrong_heap(found: Examined) -> bool:
    """Return True if values are missing, no segment is damaged, and the heap may be the cause.

    That is so for a fork, whose entry names the heap of its origin, and for a thread without
    any segment.
    """
    is_fork = found.entry is not None and found.entry.origin is not None
    is_missing = any(one.kind in (Kind.KEYFRAME, Kind.VALUE) for one in found.findings)
    return is_missing and not found.damaged and (is_fork or not found.rows.segments)


def _registering(engine: Engine, snapshot: ThreadSnapshot) -> Batch:
    """Build the change that corrects the registry's entry of a sound thread."""
    rows, entry, now, new = snapshot.rows, snapshot.entry, engine.now(), None
    touch = thread_summary.of_thread(rows)
    if rows.family or (entry is not None and entry.origin is not None):
        # (a shared segment counts for only one, so the size stays)
        known = 0 if entry is None else entry.size
        touch = touch._replace(size=known, whole=entry is not None)
    if entry is None or entry.state in ("", Lifecycle.DELETED):
        new = thread_summary.entry_of(snapshot.thread, rows.checkpoints, rows.orphans, now)
    elif not rows.checkpoints:
        new, touch = entry._replace(state=Lifecycle.ARCHIVED), EntryUpdate()
    thread, fences = snapshot.thread, snapshot.fences
    return Batch(thread, now, rows.generation, fences=fences, entry=new, touch=touch)


# -- rows and segments -----------------------------------------------------------------


def _removing(
    engine: Engine, found: Examined, snapshot: ThreadSnapshot, report: RepairedThread
) -> Repair:
    """Build the change that removes everything damaged.

    A damaged checkpoint that a sound one's DeltaChannel is rebuilt through stays: hidden, and
    without its unreadable values.
    """
    rows = found.rows
    sound = [search for search in found.rebuilt if search[0] not in found.broken]
    ancestors = found.lineage.ancestors(sound) & found.broken
    stripped = {key: _without_lost(found, key) for key in ancestors}
    stay = _sound_checkpoints(found, stripped)
    orphans = [row for row in rows.orphans if write_key(row) not in found.broken_writes]
    known = found.lineage.stored  # (with keyframes, which stored rows may lack)
    lineage = Lineage([s._replace(keyframe=known[checkpoint_key(s)].keyframe) for s in stay])
    used = {found.thread: by_log(spans_of(lineage, lineage.stored, orphans))}
    for name, other in zip(rows.family, snapshot.others, strict=True):
        used[name] = by_log(_readable_spans(Lineage(other.checkpoints), all_writes(other)))
    users = {
        key: [name for name, positions in used.items() if touches(positions, _span(key))]
        for key in sorted(found.damaged)
    }
    dropped = [key for key, names in users.items() if not names]
    kept_writes = [*orphans, *[write for s in stay for write in s.writes]]
    removed = _removed(found, dropped, set(map(write_key, kept_writes)))
    size = snapshot.segment_bytes(without=[s for s in rows.segments if segment_key(s) in dropped])
    checkpoints = tuple([(row.ns, row.id) for row in removed.whole.checkpoints])
    is_damaged = found.hides(THREADS)
    batch = Batch(
        found.thread,
        engine.now(),
        None if is_damaged else rows.generation,
        fences=(snapshot.rows_fence,) if is_damaged else snapshot.fences,
        entry=_new_entry(snapshot, stay, orphans, engine.now()) if is_damaged else None,
        checkpoints=tuple(stripped.values()),
        drop_checkpoints=tuple([key for key in checkpoints if key not in stripped]),
        drop_writes=tuple(map(write_key, removed.whole.writes)),
        drop_segments=tuple(dropped),
        drop_unreadable=rows.unreadable,
        bump_generation=True,
        touch=thread_summary.of_rows(stay, orphans, size),
    )
    unrepaired = tuple([_still_used(found, key, names) for key, names in users.items() if names])
    drops = (batch.drop_checkpoints, batch.drop_writes, batch.drop_segments)
    if not any((*drops, batch.drop_unreadable, batch.checkpoints)):
        return Repair(report, unrepaired=unrepaired)
    report = replace(
        report,
        checkpoints=checkpoints,
        writes=len(batch.drop_writes),
        segments=len(dropped),
        unreadable=len(rows.unreadable),
        heads=tuple(_new_heads(rows, stay)),
    )
    return Repair(report, batch, removed, unrepaired)


_STATUS = ("status", "status_at", "failed_node")
_COMPUTED = {"thread", "state", "size", "deleted_at", *_STATUS, "revision", "damage"}


def _new_entry(
    snapshot: ThreadSnapshot,
    stay: Sequence[StoredCheckpoint],
    orphans: Sequence[WriteRow],
    now: int,
) -> ThreadEntry:
    """Build the entry of a thread whose own row is damaged, from its rows and the sound fields."""
    new, old = thread_summary.entry_of(snapshot.thread, stay, orphans, now), snapshot.entry
    if old is None:
        return new
    values = {
        name: getattr(old, name)
        for name in {*ThreadEntry._fields} - _COMPUTED
        if name in {"labels", "pinned"} or not old.hides(name)
    }
    new = new._replace(**{name: one for name, one in values.items() if one})
    if not stay:
        state = Lifecycle.DELETED if old.deleted_at else Lifecycle.CREATED
        if find_record(old.labels, ARCHIVE_RECORD) is not None:
            state = Lifecycle.ARCHIVED
        new = new._replace(state=old.state or state)
    if is_archived(new):  # (its rows, which tell the status, are in the cold store)
        pinned = old.pinned or old.hides("status")  # so that no policy deletes it
        new = new._replace(pinned=pinned, **{name: getattr(old, name) for name in _STATUS})
    return new


def _without_lost(found: Examined, key: CheckpointKey) -> CheckpointRow:
    """Rewrite a checkpoint's row: hidden, and without its unreadable values."""
    row, lost = found.lineage.stored[key].row, found.lost.get(key, set())
    read, keyframe = found.lineage.manifest(key)
    entries = {
        channel: entry._replace(ref=None) if channel in lost else entry
        for channel, entry in read.entries.items()
    }
    data = refs.encode_manifest(read._replace(entries=entries), keyframe.manifest)
    return with_manifest(row._replace(flags=row.flags | HIDDEN), data)


def _sound_checkpoints(
    found: Examined, stripped: Mapping[CheckpointKey, CheckpointRow]
) -> list[StoredCheckpoint]:
    """List the checkpoints that stay, as they will be stored."""
    stay = []
    for stored in found.rows.checkpoints:
        key = checkpoint_key(stored)
        if key in stripped or key not in found.broken:
            row = stripped.get(key, stored.row)
            writes = [w for w in stored.writes if write_key(w) not in found.broken_writes]
            stay.append(stored._replace(row=row, writes=tuple(writes)))
    return stay


def _still_used(found: Examined, key: SegmentKey, names: Sequence[str]) -> Finding:
    others = [name for name in names if name != found.thread]
    why = "sound rows refer to it"
    if others:
        why = f"thread {others[0]!r} needs it too: repair that thread, then this one again"
    log, start, _ = key
    problem = f"segment {start} of log {log} is damaged but not removed: {why}"
    return Finding(problem, found.thread, kind=Kind.SEGMENT)


def _removed(found: Examined, dropped: Sequence[SegmentKey], kept_writes: set[WriteKey]) -> Removed:
    """Collect the rows to remove or rewrite, with all segments that they refer to."""
    rows, known = found.rows, found.lineage.stored
    writes = [row for row in all_writes(rows) if write_key(row) not in kept_writes]
    checkpoints = [s for s in rows.checkpoints if checkpoint_key(s) in found.broken]
    lineage = Lineage([known.get(checkpoint_key(s), s) for s in checkpoints])
    needs = by_log(_readable_spans(lineage, writes))
    segments = {key: s for key, s in found.segments.items() if touches(needs, s.span)}
    segments |= {
        key: segment
        for key, segment in found.damaged.items()
        if segment is not None and (key in dropped or touches(needs, _span(key)))
    }
    whole = WholeThread(
        found.thread,
        rows.deleted_at,
        tuple([segments[key] for key in sorted(segments)]),
        tuple([stored.row for stored in checkpoints]),
        tuple(writes),
        entry=found.entry,
    )
    return Removed(whole, tuple(found.findings), rows.unreadable)


def _span(key: SegmentKey) -> Span:
    log, start, count = key
    return Span(log, start, start + count)


def _readable_spans(lineage: Lineage, writes: Iterable[WriteRow]) -> Iterator[Span]:
    """Iterate over the spans that rows refer to, as far as the rows are readable."""
    for key, stored in lineage.stored.items():
        yield Span(stored.row.key_log, stored.row.key_pos, stored.row.key_pos + 1)
        with suppress(CodecError):
            yield from lineage.manifest(key)[0].needs()
    for row in writes:
        with suppress(CodecError):
            yield from write_spans(row)


def _new_heads(rows: ThreadRows, stay: Iterable[StoredCheckpoint]) -> Iterator[NewHead]:
    """Find the namespaces whose newest checkpoint is removed."""
    after = heads(stay)
    for ns, head in heads(rows.checkpoints).items():
        if after.get(ns) != head:
            yield NewHead(ns, head, after.get(ns))
