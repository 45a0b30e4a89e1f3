"""Committing batches that were answered already, after their thread has changed underneath.

Other processes prune, archive and erase between the making of a batch and its commit. A rebased
batch brings the same checkpoints and writes under the thread's generation now. Invariants: what
it refers to is in it or in the store; bytes that are still to be had are never encoded again,
as their value may have changed in place since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threadkeep.codec.frame import unpack
from threadkeep.engine import manifest as manifests
from threadkeep.engine import (
    refs,
    thread_summary,
)
from threadkeep.engine.committing import BatchSource
from threadkeep.engine.context import ATTEMPTS
from threadkeep.engine.lineage import (
    CheckpointKey,
    Lineage,
)
from threadkeep.engine.logs import (
    EXCLUSIVE,
    KEYFRAMES,
    Appender,
)
from threadkeep.engine.model import (
    Batch,
    CheckpointRow,
    ReadThread,
    Segment,
    Span,
    ThreadRows,
    WriteRow,
)
from threadkeep.engine.operation import (
    Operation,
    commit,
    fetch,
)
from threadkeep.engine.refs import Cell, Inline, Ref, Run, span_of
from threadkeep.engine.registration import busy
from threadkeep.engine.rows import pack_writes, with_body, with_manifest
from threadkeep.engine.shadow import Shadow, copy_and_watch
from threadkeep.engine.snapshots import (
    CellValue,
    ChannelValue,
    RunValue,
)
from threadkeep.errors import (
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
)
from threadkeep.langgraph_internals import DELTA_COUNTERS
from threadkeep.retention.prune import (
    by_log,
    spans_of,
    touches,
)
from threadkeep.retention.shortening import (
    Used,
    alive,
)


def rebase(plain: Batch, parts: Sequence[Batch]) -> Operation[None]:
    """Commit what some batches of a thread bring, whatever generation they were made under.

    Args:
        plain: the batches as one; its rows and segments do not matter.
        parts: the batches, in order, made by one process in exclusive logs.

    Raises:
        ThreadDeletedError: the thread was deleted since.
        StaleThreadError: a value was removed from the store, and has changed in place since.
        ConflictError: segments were removed at every try.
    """
    for _ in range(ATTEMPTS):
        rows = yield from fetch(ReadThread(plain.thread))
        batch = _Rebase(rows, parts).batch(plain)
        try:
            yield from commit(batch)
        except (StaleThreadError, SegmentTakenError):
            continue
        return
    raise busy(plain.thread)


def _made(batch: Batch) -> BatchSource:
    if not isinstance(batch.made, BatchSource):
        raise _gone(batch.thread)
    return batch.made


def _gone(thread: str) -> StaleThreadError:
    return StaleThreadError(
        "What was saved builds on values that another process has removed and that have "
        "changed in place since, or cannot be watched.",
        thread=thread,
    )


class _Rebase:
    """The batches beside the thread as it is now."""

    def __init__(self, rows: ThreadRows, parts: Sequence[Batch]) -> None:
        self._rows = rows
        self._parts = parts
        self._lineage = Lineage(rows.checkpoints)
        segments = [segment for part in parts for segment in part.segments]
        self._own = {
            (segment.log, segment.start + number): data
            for segment in segments
            for number, data in enumerate(unpack(segment.data))
        }
        self._beside = {(made.ns, made.beside) for made in map(_made, parts) if made.beside}
        kept = [key for key in self._beside if key in self._lineage.stored]
        # A position of an exclusive log never holds anything else. One of another log may have
        # been given again, unless a checkpoint that was there refers to it still.
        there = [span_of(s) for s in rows.segments if s.log >= EXCLUSIVE]
        there += spans_of(self._lineage, kept, ())
        self._there: Used = by_log([*there, *[segment.span for segment in segments]])
        self._needed: list[Span] = []
        self._engine = _made(parts[0]).engine
        memory = self._engine.working_set.apart().thread(parts[0].thread)
        self._appender = Appender(memory.logs, "", self._engine.compression)
        self._moved: dict[tuple[int, int], Span] = {}  # elements encoded anew, by where they were

    def batch(self, plain: Batch) -> Batch:
        """All that the batches bring, in one. Raises as `rebase`."""
        self._refuse_deleted(plain)
        checkpoints: dict[CheckpointKey, CheckpointRow] = {}
        writes: list[WriteRow] = []
        for part in self._parts:
            made = _made(part)
            self._appender.ns = made.ns
            for row in part.checkpoints:
                checkpoints[row.ns, row.id] = self._checkpoint(row, made)
            writes += [self._write(row, made) for row in part.writes]
        segments = self._segments()
        rows: list[CheckpointRow | WriteRow] = [*checkpoints.values(), *writes]
        size = sum(map(thread_summary.row_size, rows)) + sum([len(s.data) for s in segments])
        return plain._replace(
            generation=self._rows.generation,
            checkpoints=tuple(checkpoints.values()),
            writes=tuple(writes),
            segments=segments,
            drop_segments=(),
            touch=None if plain.touch is None else plain.touch._replace(size=size),
            made=None,
        )

    def _refuse_deleted(self, plain: Batch) -> None:
        """Refuse what is older than a deletion, where no id tells its age: the store cannot."""
        own = {(row.ns, row.id) for part in self._parts for row in part.checkpoints}
        before = self._beside - own
        is_there = any(key in self._lineage.stored for key in before)
        if self._rows.deleted_at and plain.born is None and before and not is_there:
            raise ThreadDeletedError(thread=plain.thread)

    def _segments(self) -> tuple[Segment, ...]:
        """What rows need of the batches' own elements and the store has not, and what is new."""
        needed, stored = by_log(self._needed), by_log(map(span_of, self._rows.segments))
        for (log, pos), data in self._own.items():
            place = Span(log, pos, pos + 1)
            if touches(needed, place) and not touches(stored, place):
                self._appender.fill(log, pos, data)
        return self._appender.segments()

    # -- rows ------------------------------------------------------------------------

    def _checkpoint(self, row: CheckpointRow, made: BatchSource) -> CheckpointRow:
        state = made.state
        if state is None:
            raise _gone(self._parts[0].thread)
        self._refuse_cut_off(row)
        entries = {
            channel: entry._replace(ref=self._ref(entry.ref, state.values.get(channel)))
            for channel, entry in state.manifest.entries.items()
        }
        key = Span(row.key_log, row.key_pos, row.key_pos + 1)
        if entries == state.manifest.entries and self._has([key]):
            return row
        written = state.manifest._replace(entries=entries)
        log, pos = self._appender.append(KEYFRAMES, [manifests.encode(written)])
        row = row._replace(key_log=log, key_pos=pos)
        data = manifests.encode(written, written)
        return with_manifest(row, data)

    def _refuse_cut_off(self, row: CheckpointRow) -> None:
        """Refuse a checkpoint whose DeltaChannels are rebuilt through one that has gone."""
        above = (row.ns, row.parent)
        own = {(one.ns, one.id) for part in self._parts for one in part.checkpoints}
        is_there = row.parent is None or above in own or above in self._lineage.stored
        if not is_there and thread_summary.shown(row).get(DELTA_COUNTERS):
            raise _gone(self._parts[0].thread)

    def _write(self, row: WriteRow, made: BatchSource) -> WriteRow:
        packed = [(idx, channel, self._ref(ref, held)) for idx, channel, ref, held in made.writes]
        if all(new is old[2] for (_, _, new), old in zip(packed, made.writes, strict=True)):
            return row
        body = pack_writes([(idx, channel, ref) for idx, channel, ref in packed if ref is not None])
        return with_body(row, body)

    # -- values ----------------------------------------------------------------------

    def _has(self, spans: Iterable[Span]) -> bool:
        """Whether all of these are in the batches or in the store; then they are needed."""
        spans = list(spans)
        if any(refs.length(alive(span, self._there)) < refs.length([span]) for span in spans):
            return False
        self._needed += spans
        return True

    def _ref(self, ref: Ref | None, held: ChannelValue | None) -> Ref | None:
        """The reference, to the value's elements encoded anew where they have gone."""
        if ref is None or self._has(ref.needs):
            return ref
        if isinstance(held, RunValue):
            return self._run(held)
        if held is None:
            raise _gone(self._parts[0].thread)
        return self._single(ref, held)

    def _run(self, held: RunValue) -> Run:
        spans: list[Span] = []
        for span in held.spans:
            for pos in range(span.start, span.stop):
                one = Span(span.log, pos, pos + 1)
                spans.append(one if self._has([one]) else self._element(held, len(spans), one))
        return Run(held.kind, refs.merged(spans))

    def _element(self, held: RunValue, number: int, old: Span) -> Span:
        if old[:2] not in self._moved:
            data = held.raws.get(number)
            if data is None:
                item, keys = held.seen.item(number), held.seen.keys
                element = item if keys is None else [keys[number], item]
                data = self._encoded(element, held.seen.shadow.part(number, number + 1))
            self._moved[old[:2]] = self._append(data)
        return self._moved[old[:2]]

    def _single(self, ref: Ref, held: CellValue) -> Inline | Cell:
        data = held.data
        if held.uses:  # (elements of others, or versions before)
            data = self._encoded(held.value, held.shadow)
        if isinstance(ref, Inline):
            return Inline(data)
        log, pos, _ = self._append(data)
        return Cell(log, pos)

    def _encoded(self, value: object, shadow: Shadow) -> bytes:
        """The bytes of a value, which is now what it was when its shadow was taken."""
        copies, now, _ = copy_and_watch([value])
        try:
            data = self._engine.codec.encode(copies[0])
        except ThreadkeepError as error:  # parts that are not copied change at this moment
            raise _gone(self._parts[0].thread) from error
        if not now.extended(shadow).holds():
            raise _gone(self._parts[0].thread)
        return data

    def _append(self, data: bytes) -> Span:
        log, pos = self._appender.append("", [data])
        return Span(log, pos, pos + 1)
