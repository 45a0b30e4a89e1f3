"""Merges batches of one thread, and rebases them after the thread has changed in the store.

Other processes may prune, archive or erase between the building of a batch and its commit. A
rebased batch has the same checkpoints and writes under the thread's current generation.

Invariants:

- All data that the batch refers to is in the batch or in the store.
- Bytes that still exist are never encoded again, because their value may have changed in place.
- The logs of the batches belong to this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threadkeep._core.codec.frame import unpack
from threadkeep._core.engine import refs, thread_summary
from threadkeep._core.engine.context import BatchSource, to_store
from threadkeep._core.engine.lineage import (
    CheckpointKey,
    Lineage,
    Positions,
    by_log,
    overlap,
    spans_of,
    touches,
)
from threadkeep._core.engine.logs import EXCLUSIVE, KEYFRAMES, Appender
from threadkeep._core.engine.model import (
    Batch,
    CheckpointRow,
    ReadThread,
    Segment,
    Span,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Operation, commit, fetch
from threadkeep._core.engine.refs import Cell, Inline, Ref, Run, span_of
from threadkeep._core.engine.registration import retry
from threadkeep._core.engine.rows import pack_writes, with_body, with_manifest
from threadkeep._core.engine.shadow import Shadow, copy_and_watch
from threadkeep._core.engine.snapshots import CellValue, ChannelValue, RunValue
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.langgraph_internals import DELTA_COUNTERS
from threadkeep.errors import (
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
)

_Place = tuple[int, int, int]  # log, start, count


def joined(batches: Sequence[Batch]) -> Batch:
    """Merge batches of a thread into one, under the first generation that they name.

    If they name several generations, the store refuses the merged batch, and it is rebased.
    """
    if len(batches) == 1:
        return batches[0]
    lives = [batch.life for batch in batches if batch.life is not None]
    links = [batch.link for batch in batches if batch.link is not None]
    named = [batch.generation for batch in batches if batch.generation is not None]
    checkpoints: dict[tuple[str, str], CheckpointRow] = {}
    segments: dict[_Place, Segment] = {}
    drops: dict[_Place, None] = {}
    for batch in batches:
        for place in batch.drop_segments:
            segments.pop(place, None)
            # Also if a batch here adds the segment: an unconfirmed commit may have stored it.
            drops[place] = None
        added = {(s.log, s.start, s.count): s for s in batch.segments}
        # Skip segments that were already merged into larger ones.
        segments |= {place: s for place, s in added.items() if place not in drops}
        checkpoints |= {(row.ns, row.id): row for row in batch.checkpoints}
    return batches[-1]._replace(
        generation=named[0] if named else None,
        life=lives[0] if lives else None,
        segments=tuple(segments.values()),
        checkpoints=tuple(checkpoints.values()),
        writes=tuple(row for batch in batches for row in batch.writes),
        drop_segments=tuple(drops),
        touch=thread_summary.merged(tuple([b.touch for b in batches if b.touch is not None])),
        made=None,
        link=_link(links),
    )


def _link(links: Sequence[Link]) -> Link | None:
    """Return a link that expects what all of the links expect."""
    if not links or all(link.proof is links[-1].proof for link in links):
        return links[-1] if links else None
    tips = set[int]().union(*[link.proof.tips for link in links])
    return Link(Proof(links[0].proof.generation, links[0].proof.life, tips))


def rebase(plain: Batch, parts: Sequence[Batch]) -> Operation[None]:
    """Commit batches of a thread that were built under any generation.

    Raises:
        ThreadDeletedError: the thread was deleted after the batches were built.
        StaleThreadError: a value was removed from the store, and has since changed in place.
        ConflictError: segments were removed during every attempt.
    """

    def attempt() -> Operation[None]:
        rows = yield from fetch(ReadThread(plain.thread))
        batch = _Rebase(rows, parts).batch(plain)
        try:
            yield from commit(batch)
        except StaleThreadError as error:  # retry; errors of `batch` above are permanent
            raise SegmentTakenError(thread=plain.thread) from error

    return retry(plain.thread, attempt, SegmentTakenError)


def _made(batch: Batch) -> BatchSource:
    if not isinstance(batch.made, BatchSource):
        raise _gone(batch.thread)
    return batch.made


def _gone(thread: str) -> StaleThreadError:
    return StaleThreadError(
        "The save refers to values that another process has removed. They cannot be stored again:"
        " they have since changed in place, or their changes cannot be detected.",
        thread=thread,
    )


class _Rebase:
    """Batches to rebase, and the current rows of their thread."""

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
        self._brought = {(row.ns, row.id) for part in parts for row in part.checkpoints}
        self._beside = {(made.ns, made.beside) for made in map(_made, parts) if made.beside}
        kept = [key for key in self._beside if key in self._lineage.stored]
        # A position of an exclusive log is never reused. A position of another log may be reused,
        # unless a checkpoint that existed before still refers to it.
        there = [span_of(s) for s in rows.segments if s.log >= EXCLUSIVE]
        there += spans_of(self._lineage, kept, ())
        self._there: Positions = by_log([*there, *[segment.span for segment in segments]])
        self._needed: list[Span] = []
        self._engine = _made(parts[0]).engine
        memory = self._engine.working_set.apart().thread(parts[0].thread)
        self._appender = Appender(memory.logs, "", self._engine.compression)
        self._moved: dict[tuple[int, int], Span] = {}  # re-encoded elements, by old position

    def batch(self, plain: Batch) -> Batch:
        """Return one batch with the rows of all parts. Raises like `rebase`."""
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
            link=Link(Proof.of(self._rows)),
        )

    def _refuse_deleted(self, plain: Batch) -> None:
        """Refuse batches of a life that has ended: of their run, or when they were built."""
        life = plain.life
        if life is None and plain.link is not None:
            life = plain.link.proof.life
        if life not in (None, self._rows.life):
            raise ThreadDeletedError(thread=plain.thread)

    def _segments(self) -> tuple[Segment, ...]:
        """Return the segments that the rows need and the store does not have."""
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
            channel: entry._replace(
                ref=entry.ref and self._ref(entry.ref, state.values.get(channel))
            )
            for channel, entry in state.manifest.entries.items()
        }
        written = state.manifest._replace(entries=entries)
        written = to_store(self._engine, row.ns, written)
        log, pos = self._appender.append(KEYFRAMES, [refs.encode_manifest(written)])
        row = row._replace(key_log=log, key_pos=pos)
        return with_manifest(row, refs.encode_manifest(written, written))

    def _refuse_cut_off(self, row: CheckpointRow) -> None:
        """Refuse a checkpoint whose DeltaChannels are rebuilt from a removed checkpoint."""
        above = (row.ns, row.parent)
        is_there = row.parent is None or above in self._brought or above in self._lineage.stored
        if not is_there and thread_summary.shown(row).get(DELTA_COUNTERS):
            raise _gone(self._parts[0].thread)

    def _write(self, row: WriteRow, made: BatchSource) -> WriteRow:
        packed = [(idx, channel, self._ref(ref, held)) for idx, channel, ref, held in made.writes]
        shapes = self._engine.shapes_in(row.ns)
        return with_body(row, pack_writes(packed, 1 if shapes is None else shapes.shape))

    # -- values ----------------------------------------------------------------------

    def _has(self, spans: Iterable[Span]) -> bool:
        """Return True if the batches or the store have all spans; if so, mark them as needed."""
        spans = list(spans)
        if any(refs.length(overlap(self._there, span)) < refs.length([span]) for span in spans):
            return False
        self._needed += spans
        return True

    def _ref(self, ref: Ref, held: ChannelValue | None) -> Ref:
        """Return the reference, with removed elements encoded again."""
        if self._has(ref.needs):
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
            log, pos = self._appender.append("", [data])
            self._moved[old[:2]] = Span(log, pos, pos + 1)
        return self._moved[old[:2]]

    def _single(self, ref: Ref, held: CellValue) -> Inline | Cell:
        data = held.data
        if held.uses:  # refers to elements of other values or earlier versions
            data = self._encoded(held.value, held.shadow)
        if isinstance(ref, Inline):
            return Inline(data)
        return Cell(*self._appender.append("", [data]))

    def _encoded(self, value: object, shadow: Shadow) -> bytes:
        """Encode a value if it has not changed since its shadow was taken."""
        copies, now, _ = copy_and_watch([value])
        try:
            data = self._engine.codec.encode(copies[0])
        except ThreadkeepError as error:  # uncopied parts are changing concurrently
            raise _gone(self._parts[0].thread) from error
        if not now.extended(shadow).holds():
            raise _gone(self._parts[0].thread)
        return data
