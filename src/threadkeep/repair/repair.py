"""Repair: what is broken is taken out of threads, so that the rest of them loads.

Whatever goes out of a thread is in the quarantine file, byte by byte and on the disk, before it
goes. What is sound stays as it is, and a sound thread is not written to. One thread that cannot be
read or repaired never keeps the others from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from threadkeep import validation
from threadkeep.cold.layer import WITH_COLD
from threadkeep.engine import manifest, thread_summary
from threadkeep.engine.context import Engine
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
    SegmentKey,
    by_log,
    checkpoint_key,
    segment_key,
    spans_of,
    touches,
    write_key,
    write_spans,
)
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import (
    HIDDEN,
    Batch,
    CheckpointRow,
    Span,
    StoredCheckpoint,
    ThreadRows,
    WriteRow,
)
from threadkeep.engine.operation import Operation, Progress, commit
from threadkeep.engine.optimistic import Snapshot, read_snapshot, retry
from threadkeep.engine.rows import heads, with_manifest
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import CodecError, InvalidArgumentError, ThreadNotFoundError
from threadkeep.repair.check import (
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
from threadkeep.repair.quarantine import QuarantineFile, Taken
from threadkeep.store.driver import Runner, Workflow, aside, on
from threadkeep.store.store import LayeredStore
from threadkeep.transfer.whole_thread import WholeThread

if TYPE_CHECKING:
    from threadkeep.engine.operation import Progress


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

_SHARED = "thread {0!r} needs it too: repair that one, then this one again"


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
    """The result of a repair: how many threads were looked at, and those that were repaired.

    `left` cannot be repaired by this, each with the reason. `file` holds what was taken out; None
    where nothing was.
    """

    threads: int
    repaired: tuple[RepairedThread, ...]
    left: tuple[Finding, ...]
    file: Path | None = None

    @property
    def ok(self) -> bool:
        """True if nothing is broken any more."""
        return not self.left


@dataclass(frozen=True, slots=True)
class Repair:
    """The findings of a thread, and the change that repairs it.

    `taken` is None where nothing goes: then only the registry's entry is put right, or nothing
    can be done (`batch` is None). `left` are findings that stay, each with the reason.
    """

    thread: str
    findings: tuple[Finding, ...]
    batch: Batch | None = None
    taken: Taken | None = None
    heads: tuple[NewHead, ...] = ()
    left: tuple[Finding, ...] = ()

    @property
    def report(self) -> RepairedThread:
        """The result, once it is done."""
        batch, taken = self.batch, self.taken
        if batch is None or taken is None:
            return RepairedThread(self.thread, self.findings)
        return RepairedThread(
            self.thread,
            self.findings,
            tuple([(row.ns, row.id) for row in taken.whole.checkpoints]),
            len(batch.drop_writes),
            len(batch.drop_segments),
            len(batch.drop_unreadable),
            self.heads,
        )


# -- the whole of it -------------------------------------------------------------------


def repair_threads(
    store: Runner,
    engine: Engine,
    threads: Sequence[str] | None = None,
    file: Path | None = None,
    *,
    progress: Progress | None = None,
) -> Workflow[RepairReport]:
    """Repair threads; see `Threads.repair`.

    Args:
        store: where they are.
        engine: the engine's parts.
        threads: their names; None for all, and then damage of the store itself is reported too.
        file: the quarantine file to write; None: a dry run.
        progress: see `Progress`.

    Raises:
        ThreadNotFoundError: one of them does not exist; nothing was changed.
        OpenError, DiskFullError: the file exists already, or cannot be written.
        ConflictError: others keep writing to a thread.
    """
    names, unlisted = yield from on(store, threads_to_check())
    for name in threads or ():
        if name not in names:
            raise ThreadNotFoundError(hint="Nothing was changed.", thread=name)
    quarantine = None if file is None else (yield from aside(partial(QuarantineFile, file)))
    names = names if threads is None else list(threads)
    try:
        done, left = yield from _repair_all(store, engine, names, quarantine, progress)
        if quarantine is not None:
            yield from aside(quarantine.end)
    finally:
        if quarantine is not None:
            quarantine.close()
    if threads is None:
        left += unlisted + (yield from on(store, damage()))
    path = quarantine.path if quarantine is not None and quarantine.is_used else None
    return RepairReport(len(names), tuple(done), tuple(left), path)


def _repair_all(
    store: Runner,
    engine: Engine,
    names: Sequence[str],
    quarantine: QuarantineFile | None,
    progress: Progress | None,
) -> Workflow[tuple[list[RepairedThread], list[Finding]]]:
    """Repair each thread; return the results, and the findings that are left."""
    done, left, again = list[RepairedThread](), list[Finding](), list[str]()
    for number, thread in enumerate(names, 1):
        found = yield from _repair(store, engine, thread, quarantine)
        if found is not None and found.left:
            again.append(thread)
        if found is not None and found.batch is not None:
            done.append(found.report)
        if progress is not None:
            progress("threads repaired", number, len(names))
    for thread in again:  # (what it shares with others may have been repaired since)
        found = yield from _repair(store, engine, thread, quarantine)
        left += found.left if found is not None else ()
    return done, left


def _repair(
    store: Runner, engine: Engine, thread: str, quarantine: QuarantineFile | None
) -> Workflow[Repair | None]:
    def attempt() -> Workflow[Repair | None]:
        found = yield from on(store, plan(engine, thread))
        if found is None or found.batch is None or quarantine is None:
            return found
        if found.taken is not None:
            yield from aside(partial(quarantine.add, found.taken))
        yield from on(store, carry_out(engine, found))
        return found

    return retry(thread, attempt)


def carry_out(engine: Engine, repair: Repair) -> Operation[None]:
    """Commit a repair.

    Raises:
        ConflictError, StaleThreadError: somebody has written meanwhile.
    """
    assert repair.batch is not None  # noqa: S101 - else there is nothing to do
    yield from commit(repair.batch._replace(now=engine.now()))
    engine.working_set.forget(repair.thread)


def plan(engine: Engine, thread: str) -> Operation[Repair | None]:
    """Return what would repair a thread as it is now; None where nothing is wrong with it."""
    try:
        snapshot = yield from read_snapshot(thread, skip=True)
    except UNREADABLE as exc:
        unread = (unreadable(thread, exc),)
        return Repair(thread, unread, left=unread)
    found = yield from examine(engine, snapshot)
    findings = tuple(found.findings)
    kinds = {finding.kind for finding in findings}
    if kinds <= {Kind.AWAY}:
        return None
    if Kind.UNKNOWN in kinds or (Kind.AWAY in kinds and not kinds <= NOTES):
        # A newer release, a key or a cold store may be able to read something.
        return Repair(thread, findings, left=findings)
    if kinds <= NOTES:
        return Repair(thread, findings, _registering(engine, snapshot))
    return _Surgery(engine, found, snapshot).repair()


def _registering(engine: Engine, snapshot: Snapshot) -> Batch:
    """The change that puts the entry of a sound thread right."""
    rows, entry, now = snapshot.rows, snapshot.entry, engine.now()
    touch = thread_summary.put_right(thread_summary.of_thread(rows))
    if rows.family or (entry is not None and entry.origin is not None):
        touch = touch._replace(size=0, whole=False)  # (what is shared counts for one of them)
    new = None
    if entry is None or entry.state in ("", ThreadStatus.DELETED):
        new = thread_summary.entry_of(snapshot.thread, rows.checkpoints, now)
    thread, fences = snapshot.thread, snapshot.fences
    return Batch(thread, now, rows.generation, fences=fences, entry=new, touch=touch)


# -- rows and segments -----------------------------------------------------------------


@dataclass(slots=True)
class _Surgery:
    """The parts of one thread that go, and those that stay.

    `stripped` are broken checkpoints that a sound one's DeltaChannel is rebuilt through: they
    stay, hidden, without the values that are lost.
    """

    engine: Engine
    found: Examined
    snapshot: Snapshot
    stripped: dict[CheckpointKey, CheckpointRow] = field(default_factory=dict)

    def repair(self) -> Repair:
        """Return the repair."""
        found = self.found
        sound = [search for search in found.rebuilt if search[0] not in found.broken]
        for key in found.lineage.ancestors(sound) & found.broken:
            self.stripped[key] = self._without_lost(key)
        used = self._used()
        damaged = sorted(found.damaged)
        dropped = [key for key in damaged if not touches(used, _span(key))]
        taken = self._taken(dropped)
        batch = self._batch(dropped, taken)
        left = tuple([self._still_used(key) for key in damaged if key not in dropped])
        drops = (batch.drop_checkpoints, batch.drop_writes, batch.drop_segments)
        if not any((*drops, batch.drop_unreadable, batch.checkpoints)):
            return Repair(found.thread, tuple(found.findings), left=left)
        heads = tuple(_new_heads(found.rows, self._left()))
        return Repair(found.thread, tuple(found.findings), batch, taken, heads, left)

    def _without_lost(self, key: CheckpointKey) -> CheckpointRow:
        """The checkpoint's row, hidden, and without the values that cannot be read."""
        row, lost = self.found.lineage.stored[key].row, self.found.lost.get(key, set())
        read, keyframe = self.found.lineage.manifest(key)
        entries = {
            channel: entry._replace(ref=None) if channel in lost else entry
            for channel, entry in read.entries.items()
        }
        data = manifest.encode(read._replace(entries=entries), keyframe.manifest)
        row = row._replace(flags=row.flags | HIDDEN)
        return with_manifest(row, data)

    def _left(self) -> list[StoredCheckpoint]:
        """The checkpoints that stay, as they will be."""
        left = []
        for stored in self.found.rows.checkpoints:
            key = checkpoint_key(stored)
            writes = tuple([row for row in stored.writes if not self._is_broken(row)])
            if key in self.stripped:
                left.append(stored._replace(row=self.stripped[key], writes=writes))
            elif key not in self.found.broken:
                left.append(stored._replace(writes=writes))
        return left

    def _is_broken(self, row: WriteRow) -> bool:
        return write_key(row) in self.found.broken_writes

    def _orphans(self) -> list[WriteRow]:
        return [row for row in self.found.rows.orphans if not self._is_broken(row)]

    def _gone(self) -> tuple[list[CheckpointRow], list[WriteRow]]:
        """Rows that go, those of stripped checkpoints too, with the writes on what goes."""
        broken = self.found.broken
        checkpoints, writes = [], []
        for stored in self.found.rows.checkpoints:
            key = checkpoint_key(stored)
            if key in broken:
                checkpoints.append(stored.row)
            goes = key in broken and key not in self.stripped
            writes += [row for row in stored.writes if goes or self._is_broken(row)]
        writes += [row for row in self.found.rows.orphans if self._is_broken(row)]
        return checkpoints, writes

    # -- segments ----------------------------------------------------------------------

    def _used(self) -> dict[int, list[Span]]:
        """All positions that sound rows refer to, and of other threads all rows."""
        known = self.found.lineage.stored  # with the keyframes that they were examined with
        left = [s._replace(keyframe=known[checkpoint_key(s)].keyframe) for s in self._left()]
        lineage = Lineage(left)
        spans = list(spans_of(lineage, lineage.stored, self._orphans()))
        for rows in self.snapshot.others:
            spans += _readable_spans(rows)
        return by_log(spans)

    def _still_used(self, key: SegmentKey) -> Finding:
        names = [
            name
            for name, rows in zip(self.found.rows.family, self.snapshot.others, strict=True)
            if touches(by_log(_readable_spans(rows)), _span(key))
        ]
        log, start, _ = key
        why = _SHARED.format(names[0]) if names else "sound rows refer to it"
        problem = f"segment {start} of log {log} is damaged, and stays: {why}"
        return Finding(problem, self.found.thread, kind=Kind.SEGMENT)

    def _taken(self, dropped: Sequence[SegmentKey]) -> Taken:
        checkpoints, writes = self._gone()
        needs = by_log(self._spans_of_gone(checkpoints, writes))
        found = self.found
        segments = {key: s for key, s in found.segments.items() if touches(needs, s.span)}
        segments |= {
            key: segment
            for key, segment in found.damaged.items()
            if segment is not None and (key in dropped or touches(needs, _span(key)))
        }
        whole = WholeThread(
            found.thread,
            found.rows.deleted_at,
            tuple([segments[key] for key in sorted(segments)]),
            tuple(checkpoints),
            tuple(writes),
            entry=found.entry,
        )
        return Taken(whole, tuple(found.findings), found.rows.unreadable)

    def _spans_of_gone(
        self, checkpoints: Iterable[CheckpointRow], writes: Iterable[WriteRow]
    ) -> Iterator[Span]:
        """The spans that they refer to, as far as they can be read."""
        for row in checkpoints:
            yield Span(row.key_log, row.key_pos, row.key_pos + 1)
            if (row.ns, row.id) in self.found.lineage.stored:
                yield from self.found.lineage.manifest((row.ns, row.id))[0].needs()
        for write in writes:
            yield from _readable_write(write)

    def _batch(self, dropped: Sequence[SegmentKey], taken: Taken) -> Batch:
        rows, going = self.found.rows, set(dropped)
        gone = [s for s in rows.segments if segment_key(s) in going]
        size = self.snapshot.segment_bytes(without=gone)
        checkpoints = [(row.ns, row.id) for row in taken.whole.checkpoints]
        return Batch(
            self.found.thread,
            self.engine.now(),
            rows.generation,
            fences=(self.snapshot.rows_fence,),
            checkpoints=tuple(self.stripped.values()),
            drop_checkpoints=tuple([key for key in checkpoints if key not in self.stripped]),
            drop_writes=tuple(map(write_key, taken.whole.writes)),
            drop_segments=tuple(dropped),
            drop_unreadable=rows.unreadable,
            bump=True,
            touch=thread_summary.put_right(
                thread_summary.of_rows(self._left(), self._orphans(), size)
            ),
        )


def _span(key: SegmentKey) -> Span:
    log, start, count = key
    return Span(log, start, start + count)


def _readable_spans(rows: ThreadRows) -> Iterator[Span]:
    """The spans that a thread's rows refer to, as far as they can be read."""
    lineage = Lineage(rows.checkpoints)
    for key, stored in lineage.stored.items():
        row = stored.row
        yield Span(row.key_log, row.key_pos, row.key_pos + 1)
        try:
            read = lineage.manifest(key)[0]
        except CodecError:
            read = Manifest(0)
        yield from read.needs()
        for write in stored.writes:
            yield from _readable_write(write)
    for write in rows.orphans:
        yield from _readable_write(write)


def _readable_write(row: WriteRow) -> list[Span]:
    try:
        return write_spans(row)
    except CodecError:
        return []


def _new_heads(rows: ThreadRows, left: Iterable[StoredCheckpoint]) -> Iterator[NewHead]:
    """The namespaces whose head goes."""
    after = heads(left)
    for ns, head in heads(rows.checkpoints).items():
        if after.get(ns) != head:
            yield NewHead(ns, head, after.get(ns))


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
    names, beneath = validation.thread_ids(threads), store.beneath()
    if file is None and not dry_run:
        raise InvalidArgumentError(
            "A quarantine file is needed.",
            hint='Use file="quarantine.tkq", or dry_run=True to see what would be done.',
        )
    path = None if file is None or dry_run else Path(file)
    return repair_threads(beneath, engine, names, path, progress=progress)
