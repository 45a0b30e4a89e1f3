"""Whole threads, put into a store: no row refers to anything that is not there yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from threadkeep._core.codec.frame import unpack
from threadkeep._core.engine import thread_summary
from threadkeep._core.engine.cold_references import STUB
from threadkeep._core.engine.lineage import by_log, touches
from threadkeep._core.engine.model import (
    Batch,
    CheckpointRow,
    DropThread,
    RowsFence,
    Segment,
    SegmentInfo,
    Span,
    ThreadRows,
    WriteRow,
)
from threadkeep._core.engine.operation import Operation, commit
from threadkeep._core.engine.refs import span_of
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot, retry
from threadkeep._core.engine.thread_entry import is_archived, is_there
from threadkeep.errors import CodecError, ThreadExistsError
from threadkeep.threads.transfer.whole_thread import (
    Row,
    WholeThread,
    holds,
    marks_of,
    parts_of,
    rows_of,
    segments_of,
    stored_of,
    uncovered,
    whole_of,
)

Outcome: TypeAlias = Literal["unchanged", "added", "extended", "replaced"]


def put_thread(
    whole: WholeThread,
    now: int,
    *,
    replace: bool = False,
    marks: bool = False,
    dry_run: bool = False,
) -> Operation[Outcome]:
    """Put a thread, or what the one of its id lacks; repeat it after it was cut off.

    `now` are microseconds since 1970. With `replace` it takes the place of one with other rows,
    with `marks` one with the same rows gets its labels, pin and time to live.

    Raises:
        ThreadExistsError: rows in the store would be lost.
        ConflictError: others keep changing this thread.
    """

    def attempt() -> Operation[Outcome]:
        there = yield from read_snapshot(whole.thread)
        numbered = whole_of(whole.thread, there.rows)
        is_lost = is_archived(there.entry) or not rows_of(numbered) <= rows_of(whole)
        if numbered.checkpoints and not (is_lost or marks):  # (a mirror looks at rows alone)
            is_lost = not (yield from _is_sound(whole, there.rows))
        if is_lost and not replace:
            raise ThreadExistsError(
                "The store holds this thread already, in another state.",
                hint="It is left as it is. To replace it: replace=True, or --replace.",
                thread=whole.thread,
            )
        outcome: Outcome = (
            "replaced" if is_lost else "extended" if numbered.checkpoints else "added"
        )
        has_marks = not marks or marks_of(whole.entry) <= marks_of(there.entry)
        if not is_lost and has_marks and _is_complete(whole, numbered, there):
            outcome = "unchanged"
        if not (dry_run or outcome == "unchanged"):
            yield from _put(whole, numbered, there, outcome, now)
        return outcome

    return retry(whole.thread, attempt)


def _is_sound(whole: WholeThread, rows: ThreadRows) -> Operation[bool]:
    """Return True if what is stored at a thread's positions holds the same elements."""
    wanted = by_log([segment.span for segment in whole.segments])
    infos = [one for one in rows.segments if touches(wanted, span_of(one))]
    try:
        stored = yield from segments_of(whole.thread, infos, stubs=True)
        other = set(stored).difference(whole.segments)
        own = dict(_elements(whole.segments)) if other else {}
        return all(own.get(place, data) == data for place, data in _elements(other))
    except CodecError:
        return False


def _elements(segments: Iterable[Segment]) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Iterate over the elements of segments, each with log and position; stubs have none here."""
    for segment in segments:
        if not segment.data.startswith(STUB):
            for n, data in enumerate(unpack(segment.data, segment.count)):
                yield (segment.log, segment.start + n), data


def _is_complete(whole: WholeThread, numbered: WholeThread, there: ThreadSnapshot) -> bool:
    """Return True if a thread has all rows and positions of another, an entry and its tombstone."""
    # (the tombstone does not matter if the thread has been used since)
    same_tombstone = bool(whole.checkpoints) or there.rows.deleted_at == whole.deleted_at
    return (
        same_tombstone
        and is_there(there.entry) >= is_there(whole.entry)
        and rows_of(numbered) == rows_of(whole)
        and not uncovered(whole.segments, there.rows.segments)
    )


def _put(
    whole: WholeThread, numbered: WholeThread, there: ThreadSnapshot, outcome: Outcome, now: int
) -> Operation[None]:
    """Put a thread part by part, or by one change where rows or segments have to give way."""
    if outcome != "replaced" and _fits(whole, numbered, there.rows):
        last = Batch(whole.thread, now)
        for batch in _batches(whole, rows_of(numbered), there, now):
            ready = batch
            if batch.checkpoints or batch.writes:
                ready, last = last, batch
            if ready.segments or ready.checkpoints or ready.writes:
                yield from commit(ready)
        yield from _merge_entry(whole, now, last)
    else:
        rows = _registered(whole, now)
        yield from commit(
            DropThread(
                whole.thread, whole.deleted_at, there.rows.generation, there.fences, rows=rows
            )
        )


def _fits(whole: WholeThread, numbered: WholeThread, rows: ThreadRows) -> bool:
    """Return True if a thread can be extended: what is there keeps its numbers and positions."""
    if not rows_of(numbered):
        return not rows.segments and rows.deleted_at == whole.deleted_at
    stored = [row for one in rows.checkpoints for row in one.writes]
    return {*stored, *rows.orphans} == set(numbered.writes) and all(
        holds(segment.span, one)
        for segment in uncovered(whole.segments, rows.segments)
        for one in _overlapping(segment, rows.segments)
    )


def _overlapping(segment: Segment, stored: Iterable[SegmentInfo]) -> list[Span]:
    spans = [span_of(one) for one in stored if one.log == segment.log]
    return [span for span in spans if span.start < segment.stop and segment.start < span.stop]


def _batches(
    whole: WholeThread, stored: set[Row], there: ThreadSnapshot, now: int
) -> Iterator[Batch]:
    """Yield what is missing: segments before rows, older checkpoints before younger ones.

    Small segments give way to a larger one, as in sealing. The last batch of a new thread raises
    the generation: a process may remember another thread of this id, say one that has expired.
    """
    plain = Batch(whole.thread, now, there.rows.generation, fences=(there.rows_fence,))
    for part in parts_of(uncovered(whole.segments, there.rows.segments), lambda s: len(s.data)):
        drops = [span for one in part for span in _overlapping(one, there.rows.segments)]
        keys = tuple([(span.log, span.start, span.stop - span.start) for span in drops])
        yield plain._replace(segments=tuple(part), drop_segments=keys)
    batches = list(_row_batches(plain, there.rows_fence, rows_of(whole) - stored))
    yield from batches[:-1]
    for last in batches[-1:]:
        yield last._replace(bump_generation=not stored)


def _registered(whole: WholeThread, now: int) -> Batch:
    """Return a batch of all of a thread, with its entry, or else one made of its rows."""
    entry = whole.entry if is_there(whole.entry) else None
    checkpoints, orphans = stored_of(whole)
    if entry is None and whole.checkpoints:
        entry = thread_summary.entry_of(whole.thread, checkpoints, orphans, now)
    touch = thread_summary.of_rows(checkpoints, orphans, sum([len(s.data) for s in whole.segments]))
    return Batch(
        whole.thread,
        now,
        segments=whole.segments,
        checkpoints=whole.checkpoints,
        writes=whole.writes,
        bump_generation=True,
        entry=entry,
        touch=touch,
    )


def _merge_entry(whole: WholeThread, now: int, last: Batch) -> Operation[None]:
    """Commit the last rows, with the labels, pin and time to live of both entries."""
    there = yield from read_snapshot(whole.thread, alone=True)
    own = whole.entry if is_there(whole.entry) else None
    if own is None and there.entry is None and whole.checkpoints:
        own = thread_summary.entry_of(whole.thread, *stored_of(whole), now)
    size, entry = thread_summary.bytes_of(there.rows.segments), there.entry
    touch = thread_summary.of_rows(*stored_of(whole), size)
    if own is not None:
        touch = touch._replace(at=own.updated_at, labels=own.labels)
        if not is_there(entry):
            entry = own
        entry = entry._replace(pinned=own.pinned or entry.pinned, ttl=own.ttl or entry.ttl)
    # (a thread of generation 0 counts as never archived)
    bump_generation, fences = (
        last.bump_generation or is_archived(own),
        (*last.fences, there.entry_fence),
    )
    yield from commit(
        last._replace(fences=fences, bump_generation=bump_generation, entry=entry, touch=touch)
    )


def _row_batches(plain: Batch, done: RowsFence, rows: Iterable[Row]) -> Iterator[Batch]:
    """Yield rows in batches like `plain`, older checkpoints first, each with its writes.

    `done` is the number of rows before the first one.
    """
    for part in parts_of(sorted(rows, key=_age), thread_summary.row_size):
        checkpoints = tuple([row for row in part if isinstance(row, CheckpointRow)])
        writes = tuple([row for row in part if isinstance(row, WriteRow)])
        yield plain._replace(fences=(done,), checkpoints=checkpoints, writes=writes)
        done = RowsFence(done.checkpoints + len(checkpoints), done.writes + len(writes))


def _age(row: Row) -> tuple[str, str, int]:
    if isinstance(row, CheckpointRow):
        return (row.id, row.ns, 0)
    return (row.checkpoint_id, row.ns, row.seq)
