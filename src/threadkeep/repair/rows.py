"""Taking what is broken out of a thread, so that the rest of it loads.

Only the planning and doing of that lives here; what is broken `checking` says, and where it goes
is the caller's. Invariants: what is sound stays as it is; what goes was handed out before, with
its bytes as they were; a thread in which nothing is wrong is not written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from threadkeep.engine import (
    manifest,
    thread_summary,
)
from threadkeep.engine.context import Engine
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
)
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import (
    HIDDEN,
    Batch,
    CheckpointRow,
    ReadThread,
    Span,
    StoredCheckpoint,
    ThreadRows,
    UnreadableRow,
    WriteRow,
)
from threadkeep.engine.operation import (
    Fetch,
    Operation,
    commit,
)
from threadkeep.engine.rows import heads, unpack_writes, with_manifest
from threadkeep.engine.thread_entry import (
    EntryFence,
    ReadEntry,
    ThreadEntry,
    ThreadStatus,
)
from threadkeep.errors import CodecError, ConflictError, InvalidArgumentError, StaleThreadError
from threadkeep.repair.check import examine
from threadkeep.repair.findings import (
    NOTES,
    Examined,
    Finding,
    Kind,
    SegmentKey,
)
from threadkeep.retention.prune import (
    by_log,
    nothing_new,
    own_bytes,
    spans_of,
    touches,
)
from threadkeep.transfer.bundling import WholeThread

NEWER = "Read it with the release, or the key, that it was written with: it is left as it is."
_SHARED = "thread {0!r} needs it too: repair that one, then this one again"


@dataclass(frozen=True, slots=True)
class NewHead:
    """A namespace whose newest checkpoint was broken: its id, and the one that is newest now."""

    namespace: str
    before: str
    after: str | None


@dataclass(frozen=True, slots=True)
class Taken:
    """What goes out of a thread, with its bytes as they are.

    `whole` holds the checkpoints and writes that go, the damaged segments, and a copy of the
    sound ones that they refer to. `unreadable` are rows that the store cannot make sense of.
    """

    whole: WholeThread
    findings: tuple[Finding, ...]
    unreadable: tuple[UnreadableRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Repair:
    """What is wrong with a thread, and what repairs it.

    `taken` is None where nothing goes: then only the registry's entry is put right, or nothing
    can be done (`batch` is None). `left` are findings that stay, each with what to do.
    """

    thread: str
    findings: tuple[Finding, ...]
    batch: Batch | None = None
    taken: Taken | None = None
    heads: tuple[NewHead, ...] = ()
    left: tuple[Finding, ...] = ()


def plan(engine: Engine, thread: str) -> Operation[Repair | None]:
    """What would repair a thread; None where nothing is wrong with it.

    What is planned may be carried out only as long as nobody has written to the thread.
    """
    try:
        rows, entry, others = yield from _read_family(thread)
    except (CodecError, InvalidArgumentError) as exc:
        problem = f"its rows cannot be read: {exc.message}"
        unread = (Finding(problem, thread, kind=Kind.UNREADABLE),)
        return Repair(thread, unread, left=unread)
    examined = yield from examine(engine, thread, rows, entry)
    if all(finding.kind is Kind.AWAY for finding in examined.findings):
        return None
    if examined.is_unknown:
        found = tuple(examined.findings)
        return Repair(thread, found, left=found)
    if all(finding.kind in NOTES for finding in examined.findings):
        return Repair(thread, tuple(examined.findings), _registered(engine, examined, others))
    return _Surgery(engine, examined, others).repair()


def carry_out(engine: Engine, repair: Repair) -> Operation[bool]:
    """Do it; False where somebody wrote meanwhile, so that it has to be planned anew."""
    if repair.batch is None:
        return True
    try:
        yield from commit(repair.batch._replace(now=engine.now()))
    except (StaleThreadError, ConflictError):
        return False
    engine.working_set.forget(repair.thread)
    return True


def _read_family(thread: str) -> Operation[tuple[ThreadRows, ThreadEntry | None, list[ThreadRows]]]:
    """A thread's rows and entry, and the rows of those that share its segments, of one state."""
    family: tuple[str, ...] = ()
    while True:
        names = (thread, *family)
        replies = yield Fetch([ReadEntry(thread), *[ReadThread(name, skip=True) for name in names]])
        entry, rows, *others = replies
        rows = cast("ThreadRows", rows)
        if rows.family == family:
            return rows, cast("ThreadEntry | None", entry), cast("list[ThreadRows]", others)
        family = rows.family


# -- the registry ----------------------------------------------------------------------


def _registered(engine: Engine, found: Examined, others: Sequence[ThreadRows]) -> Batch:
    """What puts the entry of a sound thread right."""
    rows, now = found.rows, engine.now()
    touch = thread_summary.put_right(thread_summary.of_thread(rows))
    if rows.family or (found.entry is not None and found.entry.origin is not None):
        # (what is shared counts for one of them)
        touch = touch._replace(size=0, whole=False)
    entry, revision = None, found.entry.revision if found.entry is not None else 0
    if found.entry is None or found.entry.state in ("", ThreadStatus.DELETED):
        entry = thread_summary.entry_of(found.thread, rows.checkpoints, now)
    fences = (nothing_new((rows, *others)), EntryFence(revision))
    return Batch(found.thread, now, rows.generation, fences=fences, entry=entry, touch=touch)


# -- rows and segments -----------------------------------------------------------------


@dataclass(slots=True)
class _Surgery:
    """What of one thread goes, and what stays.

    `stripped` are broken checkpoints that a sound one's DeltaChannel is rebuilt through: they
    stay, hidden, without the values that are lost.
    """

    engine: Engine
    found: Examined
    others: Sequence[ThreadRows]
    stripped: dict[CheckpointKey, CheckpointRow] = field(default_factory=dict)

    def repair(self) -> Repair:
        """The whole of it."""
        self._strip()
        used = self._used()
        damaged = sorted(self.found.damaged)
        dropped = [key for key in damaged if not touches(used, _span(key))]
        taken = self._taken(dropped)
        batch = self._batch(dropped, taken)
        left = tuple([self._still_used(key) for key in damaged if key not in dropped])
        if not (batch.drop_checkpoints or batch.drop_writes or batch.drop_segments) and not (
            batch.checkpoints or batch.drop_unreadable
        ):
            return Repair(self.found.thread, tuple(self.found.findings), left=left)
        heads = tuple(_new_heads(self.found.rows, self._left()))
        return Repair(self.found.thread, tuple(self.found.findings), batch, taken, heads, left)

    def _strip(self) -> None:
        found = self.found
        sound = [search for search in found.rebuilt if search[0] not in found.broken]
        for key in found.lineage.ancestors(sound) & found.broken:
            self.stripped[key] = self._without_lost(key)

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
            key = stored.row.ns, stored.row.id
            writes = tuple([row for row in stored.writes if not self._is_broken(row)])
            if key in self.stripped:
                left.append(stored._replace(row=self.stripped[key], writes=writes))
            elif key not in self.found.broken:
                left.append(stored._replace(writes=writes))
        return left

    def _is_broken(self, row: WriteRow) -> bool:
        return (row.ns, row.checkpoint_id, row.seq) in self.found.broken_writes

    def _orphans(self) -> list[WriteRow]:
        return [row for row in self.found.rows.orphans if not self._is_broken(row)]

    def _gone(self) -> tuple[list[CheckpointRow], list[WriteRow]]:
        """Rows that go, those of stripped checkpoints too, with the writes on what goes."""
        checkpoints, writes = [], []
        for stored in self.found.rows.checkpoints:
            key = stored.row.ns, stored.row.id
            if key in self.found.broken:
                checkpoints.append(stored.row)
            goes = key in self.found.broken and key not in self.stripped
            writes += [row for row in stored.writes if goes or self._is_broken(row)]
        return checkpoints, writes + [
            row for row in self.found.rows.orphans if self._is_broken(row)
        ]

    # -- segments ----------------------------------------------------------------------

    def _used(self) -> dict[int, list[Span]]:
        """All positions that sound rows refer to, and of other threads all rows."""
        kept = Lineage(_with_their_keyframes(self._left(), self.found))
        spans = list(spans_of(kept, kept.stored, self._orphans()))
        for rows in self.others:
            spans += _readable_spans(rows)
        return by_log(spans)

    def _still_used(self, key: SegmentKey) -> Finding:
        names = [
            name
            for name, rows in zip(self.found.rows.family, self.others, strict=True)
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
        for key in (*dropped, *[k for k in found.damaged if touches(needs, _span(k))]):
            segment = found.damaged[key]
            if segment is not None:
                segments[key] = segment
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
        """What they refer to, as far as they can be read."""
        for row in checkpoints:
            yield Span(row.key_log, row.key_pos, row.key_pos + 1)
            if (row.ns, row.id) in self.found.lineage.stored:
                read, _ = self.found.lineage.manifest((row.ns, row.id))
                yield from read.needs()
        for write in writes:
            yield from _write_spans(write)

    def _batch(self, dropped: Sequence[SegmentKey], taken: Taken) -> Batch:
        engine, rows, left = self.engine, self.found.rows, self._left()
        going = set(dropped)
        gone = [s for s in rows.segments if (s.log, s.start, s.count) in going]
        size = own_bytes(self.found.thread, rows, without=gone)
        wanted = thread_summary.of_rows(left, self._orphans(), size)
        return Batch(
            self.found.thread,
            engine.now(),
            rows.generation,
            fences=(nothing_new((rows, *self.others)),),
            checkpoints=tuple(self.stripped.values()),
            drop_checkpoints=tuple(
                [(r.ns, r.id) for r in taken.whole.checkpoints if (r.ns, r.id) not in self.stripped]
            ),
            drop_writes=tuple([(r.ns, r.checkpoint_id, r.seq) for r in taken.whole.writes]),
            drop_segments=tuple(dropped),
            drop_unreadable=rows.unreadable,
            bump=True,
            touch=thread_summary.put_right(wanted),
        )


def _with_their_keyframes(
    left: Iterable[StoredCheckpoint], found: Examined
) -> list[StoredCheckpoint]:
    """The rows with the keyframes that they were examined with."""
    known = found.lineage.stored
    return [s._replace(keyframe=known[s.row.ns, s.row.id].keyframe) for s in left]


def _span(key: SegmentKey) -> Span:
    log, start, count = key
    return Span(log, start, start + count)


def _readable_spans(rows: ThreadRows) -> Iterator[Span]:
    """What a thread's rows refer to, as far as they can be read."""
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
            yield from _write_spans(write)
    for write in rows.orphans:
        yield from _write_spans(write)


def _write_spans(row: WriteRow) -> list[Span]:
    try:
        return [span for write in unpack_writes(row) for span in write.ref.needs]
    except CodecError:
        return []


def _new_heads(rows: ThreadRows, left: Iterable[StoredCheckpoint]) -> Iterator[NewHead]:
    """The namespaces whose head goes."""
    after = heads(left)
    for ns, head in heads(rows.checkpoints).items():
        if after.get(ns) != head:
            yield NewHead(ns, head, after.get(ns))
