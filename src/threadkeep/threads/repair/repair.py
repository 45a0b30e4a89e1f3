"""Repair: what is broken is taken out of threads, so that the rest of them loads.

What goes out of a thread is in the quarantine file, on the disk, before it goes. What is sound
stays as it is. One thread that cannot be repaired never keeps the others from it.
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
    ThreadEntry,
    ThreadStatus,
    find_record,
    is_archived,
    is_time,
)
from threadkeep._run.layered_store import LayeredStore
from threadkeep._run.layers.driver import Runner, Workflow, external, on
from threadkeep.errors import CodecError, InvalidArgumentError, ThreadNotFoundError
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
from threadkeep.threads.repair.quarantine import QuarantineFile, Removed
from threadkeep.threads.transfer.whole_thread import WholeThread

HINTS = {
    Kind.STORE: "Damage of the store's own files or tables is not repaired by this: restore a"
    " backup, or (SQLite) rebuild the file with `sqlite3 FILE .recover`.",
    Kind.UNREADABLE: "The store cannot read these rows at all: look at its own log, and restore a"
    " backup.",
    Kind.UNKNOWN: "Read it with the release, or the key, that it was written with: it is left as it"
    " is.",
    Kind.AWAY: WITH_COLD,
    Kind.SEGMENT: "A thread that shares it is broken too: name both, or none.",
}
"""Advice for a finding that is left, by its kind."""


_ELSEWHERE = (
    "values are missing, no segment is damaged, and all of it stays: the number of its heap may be"
    " wrong; restore a backup, or delete the thread if nobody needs it"
)


@dataclass(frozen=True, slots=True)
class NewHead:
    """A namespace whose newest checkpoint was broken: its id, and the newest sound one."""

    namespace: str
    before: str
    after: str | None


@dataclass(frozen=True, slots=True)
class RepairedThread:
    """The result for one thread: what was wrong, and what was taken out of it.

    `checkpoints` are (namespace, id) of those that were taken out; `writes`, `segments` and
    `unreadable` count rows. `heads` are the namespaces whose newest checkpoint was one of them.
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
    """The result of a repair: how many threads were examined, and those that were repaired.

    `unrepaired` findings stay, each with the reason. `file` holds what was taken out; None where
    nothing was.
    """

    threads: int
    repaired: tuple[RepairedThread, ...]
    unrepaired: tuple[Finding, ...]
    file: Path | None = None

    @property
    def ok(self) -> bool:
        """True if nothing is broken any more."""
        return not self.unrepaired


class Repair(NamedTuple):
    """The change that repairs a thread; None where nothing can be done.

    `removed` is None where nothing goes: then only the registry's entry is put right.
    """

    report: RepairedThread
    batch: Batch | None = None
    removed: Removed | None = None
    unrepaired: tuple[Finding, ...] = ()


# -- a store ---------------------------------------------------------------------------


def repair(
    store: LayeredStore,
    engine: Engine,
    threads: str | Iterable[str] | None,
    file: str | os.PathLike[str] | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Workflow[RepairReport]:
    """See `Threads.repair`."""
    named, beneath = validation.thread_ids(threads), store.beneath()
    if file is None and not dry_run:
        raise InvalidArgumentError(
            "A quarantine file is needed.",
            hint='Use file="quarantine.tkq", or dry_run=True to see what would be done.',
        )
    names, unlisted = yield from on(beneath, threads_to_check())
    for name in named or ():
        if name not in names:
            raise ThreadNotFoundError(hint="Nothing was changed.", thread=name)
    quarantine = None
    if file is not None and not dry_run:
        quarantine = yield from external(partial(QuarantineFile, Path(file)))
    names = names if named is None else named
    try:
        done, unrepaired = yield from _repair_all(beneath, engine, names, quarantine, progress)
        if quarantine is not None:
            yield from external(quarantine.end)
    finally:
        if quarantine is not None:
            quarantine.close()
    if named is None:
        unrepaired += unlisted + (yield from on(beneath, damage()))
    path = quarantine.path if quarantine is not None and quarantine.is_used else None
    return RepairReport(len(names), tuple(done), tuple(unrepaired), path)


def _repair_all(
    store: Runner,
    engine: Engine,
    names: Sequence[str],
    quarantine: QuarantineFile | None,
    progress: Progress | None,
) -> Workflow[tuple[list[RepairedThread], list[Finding]]]:
    """Repair each thread; return the results, and the findings that stay."""
    done, unrepaired, again = list[RepairedThread](), list[Finding](), list[str]()
    for number, thread in enumerate(names, 1):
        found = yield from _repair(store, engine, thread, quarantine)
        if found is not None and found.unrepaired:
            again.append(thread)
        if found is not None and found.batch is not None:
            done.append(found.report)
        if progress is not None:
            progress("threads repaired", number, len(names))
    for thread in again:  # (what it shares with others may have been repaired since)
        found = yield from _repair(store, engine, thread, quarantine)
        unrepaired += found.unrepaired if found is not None else ()
    return done, unrepaired


def _repair(
    store: Runner, engine: Engine, thread: str, quarantine: QuarantineFile | None
) -> Workflow[Repair | None]:
    def attempt() -> Workflow[Repair | None]:
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
    """Return what would repair a thread as it is now; None where nothing is wrong with it."""
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
        # A newer release, a key or a cold store may be able to read something. Whoever finds the
        # archive of a thread needs the entry as it is.
        return Repair(report, unrepaired=report.findings)
    if _is_elsewhere(found):
        left = Finding(_ELSEWHERE, thread, kind=Kind.VALUE)
        return Repair(report, unrepaired=(left,))
    if kinds <= NOTES:
        return Repair(report, _registering(engine, snapshot))
    return _removing(engine, found, snapshot, report)


def _is_elsewhere(found: Examined) -> bool:
    """Return True if values are missing and no segment is damaged.

    Then the number of a fork's heap may be wrong, or that of a thread without any segment.
    """
    is_fork = found.entry is not None and found.entry.origin is not None
    is_missing = any(one.kind in (Kind.KEYFRAME, Kind.VALUE) for one in found.findings)
    return is_missing and not found.damaged and (is_fork or not found.rows.segments)


def _registering(engine: Engine, snapshot: ThreadSnapshot) -> Batch:
    """The change that puts the entry of a sound thread right."""
    rows, entry, now, new = snapshot.rows, snapshot.entry, engine.now(), None
    touch = thread_summary.of_thread(rows)
    if rows.family or (entry is not None and entry.origin is not None):
        touch = touch._replace(size=0, whole=False)  # (what is shared counts for one of them)
    if entry is None or entry.state in ("", ThreadStatus.DELETED):
        new = thread_summary.entry_of(snapshot.thread, rows.checkpoints, rows.orphans, now)
    elif not rows.checkpoints:
        new, touch = entry._replace(state=ThreadStatus.ARCHIVED), EntryUpdate()
    thread, fences = snapshot.thread, snapshot.fences
    return Batch(thread, now, rows.generation, fences=fences, entry=new, touch=touch)


# -- rows and segments -----------------------------------------------------------------


def _removing(
    engine: Engine, found: Examined, snapshot: ThreadSnapshot, report: RepairedThread
) -> Repair:
    """The change that removes what is broken.

    Broken checkpoints that a sound one's DeltaChannel is rebuilt through stay, hidden and without
    the values that are lost.
    """
    rows = found.rows
    sound = [search for search in found.rebuilt if search[0] not in found.broken]
    ancestors = found.lineage.ancestors(sound) & found.broken
    stripped = {key: _without_lost(found, key) for key in ancestors}
    stay = _sound_checkpoints(found, stripped)
    orphans = [row for row in rows.orphans if write_key(row) not in found.broken_writes]
    used = _used(found, stay, orphans, snapshot.others)
    damaged = sorted(found.damaged)
    dropped = [key for key in damaged if not touches(used, _span(key))]
    removed = _removed(found, dropped, {write_key(w) for s in stay for w in s.writes}, orphans)
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
    unrepaired = tuple([_still_used(found, snapshot, key) for key in damaged if key not in dropped])
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


def _new_entry(
    snapshot: ThreadSnapshot,
    stay: Sequence[StoredCheckpoint],
    orphans: Sequence[WriteRow],
    now: int,
) -> ThreadEntry:
    """The entry of a thread whose own row is damaged: of its rows, and what is sound of the old."""
    new, old = thread_summary.entry_of(snapshot.thread, stay, orphans, now), snapshot.entry
    if old is None:
        return new
    if not stay:
        new = new._replace(state=old.state or _state_without_rows(old))
    pinned = old.pinned
    if is_archived(new):  # (its rows, which tell where it waits, are in the cold store)
        new = new._replace(waits_at=old.waits_at)
        pinned = pinned or old.hides("waits_at")  # rather kept than deleted
    return new._replace(
        created_at=old.created_at if _is_known(old.created_at) else new.created_at,
        updated_at=old.updated_at if _is_known(old.updated_at) else new.updated_at,
        labels=old.labels or new.labels,
        pinned=pinned,
        ttl=old.ttl,
        origin=old.origin,
    )


def _is_known(time: int) -> bool:
    return time != 0 and is_time(time)


def _state_without_rows(entry: ThreadEntry) -> ThreadStatus:
    if find_record(entry.labels, ARCHIVE_RECORD) is not None:
        return ThreadStatus.ARCHIVED
    return ThreadStatus.DELETED if entry.deleted_at else ThreadStatus.CREATED


def _without_lost(found: Examined, key: CheckpointKey) -> CheckpointRow:
    """The checkpoint's row, hidden, and without the values that cannot be read."""
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
    """The checkpoints that stay, as they will be."""
    stay = []
    for stored in found.rows.checkpoints:
        key = checkpoint_key(stored)
        if key in stripped or key not in found.broken:
            row = stripped.get(key, stored.row)
            writes = [w for w in stored.writes if write_key(w) not in found.broken_writes]
            stay.append(stored._replace(row=row, writes=tuple(writes)))
    return stay


def _used(
    found: Examined,
    stay: Sequence[StoredCheckpoint],
    orphans: Sequence[WriteRow],
    others: Sequence[ThreadRows],
) -> dict[int, list[Span]]:
    """All positions that sound rows refer to, and of other threads all rows."""
    known = found.lineage.stored  # with the keyframes that they were examined with
    lineage = Lineage([s._replace(keyframe=known[checkpoint_key(s)].keyframe) for s in stay])
    spans = list(spans_of(lineage, lineage.stored, orphans))
    for rows in others:
        spans += _readable_spans(rows)
    return by_log(spans)


def _still_used(found: Examined, snapshot: ThreadSnapshot, key: SegmentKey) -> Finding:
    why = "sound rows refer to it"
    for name, rows in zip(found.rows.family, snapshot.others, strict=True):
        if touches(by_log(_readable_spans(rows)), _span(key)):
            why = f"thread {name!r} needs it too: repair that one, then this one again"
            break
    log, start, _ = key
    problem = f"segment {start} of log {log} is damaged, and stays: {why}"
    return Finding(problem, found.thread, kind=Kind.SEGMENT)


def _removed(
    found: Examined,
    dropped: Sequence[SegmentKey],
    stay: set[WriteKey],
    orphans: Sequence[WriteRow],
) -> Removed:
    """The rows that go, those of stripped checkpoints too, and segments that they refer to."""
    rows, stay = found.rows, stay | set(map(write_key, orphans))
    checkpoints = [s.row for s in rows.checkpoints if checkpoint_key(s) in found.broken]
    writes = [row for s in rows.checkpoints for row in s.writes] + list(rows.orphans)
    writes = [row for row in writes if write_key(row) not in stay]
    spans = [span for row in writes for span in _readable_write(row)]
    for row in checkpoints:
        spans.append(Span(row.key_log, row.key_pos, row.key_pos + 1))
        if (row.ns, row.id) in found.lineage.stored:
            spans += found.lineage.manifest((row.ns, row.id))[0].needs()
    needs = by_log(spans)
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
        tuple(checkpoints),
        tuple(writes),
        entry=found.entry,
    )
    return Removed(whole, tuple(found.findings), rows.unreadable)


def _span(key: SegmentKey) -> Span:
    log, start, count = key
    return Span(log, start, start + count)


def _readable_spans(rows: ThreadRows) -> Iterator[Span]:
    """The spans that a thread's rows refer to, as far as they can be read."""
    lineage = Lineage(rows.checkpoints)
    for key, stored in lineage.stored.items():
        row = stored.row
        yield Span(row.key_log, row.key_pos, row.key_pos + 1)
        with suppress(CodecError):
            yield from lineage.manifest(key)[0].needs()
        for write in stored.writes:
            yield from _readable_write(write)
    for write in rows.orphans:
        yield from _readable_write(write)


def _readable_write(row: WriteRow) -> list[Span]:
    try:
        return write_spans(row)
    except CodecError:
        return []


def _new_heads(rows: ThreadRows, stay: Iterable[StoredCheckpoint]) -> Iterator[NewHead]:
    """The namespaces whose head goes."""
    after = heads(stay)
    for ns, head in heads(rows.checkpoints).items():
        if after.get(ns) != head:
            yield NewHead(ns, head, after.get(ns))
