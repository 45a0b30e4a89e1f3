"""How a thread stands in two stores, and completing it in the one that is behind.

Only that lives here. Rows are compared as they are stored: a copy has the same ones. Invariants:
what is added refers to nothing that is not there yet; nothing that is there is changed, but
for small segments that a larger one takes the place of, as sealing does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from threadkeep.engine import thread_summary
from threadkeep.engine.model import (
    Batch,
    RowsFence,
    Segment,
    SegmentInfo,
    ThreadRows,
)
from threadkeep.engine.operation import (
    Operation,
    commit,
)
from threadkeep.engine.optimistic import read_snapshot, retry, rows_fence
from threadkeep.engine.refs import covering, span_of
from threadkeep.engine.thread_entry import EntryFence, is_there
from threadkeep.errors import ConflictError
from threadkeep.transfer.bundling import (
    Row,
    WholeThread,
    parts_of,
    read_rows,
    row_batches,
    whole_of,
)


class Standing(Enum):
    """How a thread stands in another store, beside the one that it comes from."""

    SAME = "is the same"
    ABSENT = "is not there"
    BEHIND = "lacks what came since"
    AHEAD = "has more, and nothing less"
    APART = "has other checkpoints or pending writes"
    DELETED = "was deleted there"
    GONE = "was deleted here"


def rows_of(thread: str, *, stub: bool = False) -> Operation[WholeThread]:
    """A thread without its segments; with `stub` one that is archived stays so."""
    rows, entry = yield from read_rows(thread, stub=stub)
    return whole_of(thread, rows, (), entry)


def standing(here: WholeThread, there: WholeThread) -> Standing:
    """How a thread stands there; both without segments."""
    own, other = _rows(here), _rows(there)
    only_created = not own and is_there(here.entry) and not is_there(there.entry)
    if own == other and not only_created:
        return Standing.SAME if _known(here) <= _known(there) else Standing.BEHIND
    if not own and other:
        return Standing.GONE if here.deleted_at else Standing.AHEAD
    if not other:
        return Standing.DELETED if there.deleted_at > here.deleted_at else Standing.ABSENT
    if other < own:
        return Standing.BEHIND
    return Standing.AHEAD if own < other else Standing.APART


def _known(whole: WholeThread) -> set[Any]:
    """What people and runs have said of a thread, but for what it has forgotten since."""
    entry = whole.entry
    if not is_there(entry):
        return set()
    return {*entry.labels, ("pinned", entry.pinned), ("ttl", entry.ttl)} - {
        ("pinned", False),
        ("ttl", None),
    }


def _rows(whole: WholeThread) -> set[Row]:
    return {*whole.checkpoints, *whole.writes}


def complete(whole: WholeThread, now: int) -> Operation[None]:
    """Add what a thread lacks.

    Args:
        whole: the thread as it is where it comes from.
        now: microseconds since 1970.

    Raises:
        ConflictError: what is there is no earlier state of it, or is written all the time.
    """

    def attempt() -> Operation[None]:
        snapshot = yield from read_snapshot(whole.thread, stub=False)
        others = rows_fence(snapshot.others)
        for batch in list(_batches(whole, snapshot.rows, others, now)):
            yield from commit(batch)
        yield from _told(whole, now)

    try:
        yield from retry(whole.thread, attempt)
    except ConflictError:
        raise _no_earlier_state(whole) from None


def _no_earlier_state(whole: WholeThread) -> ConflictError:
    return ConflictError(
        "The thread over there is no earlier state of this one, or is being written.",
        hint="Do it again; if it stays so, sync(..., replace=True) puts this one in its place.",
        thread=whole.thread,
    )


def _batches(whole: WholeThread, rows: ThreadRows, others: RowsFence, now: int) -> Iterator[Batch]:
    there = whole_of(whole.thread, rows)
    if not _rows(there) <= _rows(whole) or not _counts_alike(rows, there):
        raise _no_earlier_state(whole)
    done = RowsFence(others.checkpoints + len(there.checkpoints), others.writes + len(there.writes))
    plain = Batch(whole.thread, now, rows.generation, fences=(done,))
    lacking = [segment for segment in whole.segments if not _is_there(segment, rows.segments)]
    for part in parts_of(lacking, lambda segment: len(segment.data)):
        drops = [place for segment in part for place in _replaced(whole, segment, rows.segments)]
        yield plain._replace(segments=tuple(part), drop_segments=tuple(drops))
    yield from row_batches(plain, done, _rows(whole) - _rows(there))


def _told(whole: WholeThread, now: int) -> Operation[None]:
    """Let the registry say of the thread what it says where it comes from, and no less."""
    rows, entry = yield from read_rows(whole.thread)
    touch = thread_summary.of_thread(rows)
    known = whole.entry
    batch = Batch(whole.thread, now, fences=(EntryFence(entry.revision if entry else 0),))
    if not is_there(known):
        yield from commit(batch._replace(touch=touch))
        return
    touch = touch._replace(at=known.updated_at, labels=known.labels)
    if not is_there(entry):
        entry = known
    entry = entry._replace(pinned=known.pinned or entry.pinned, ttl=known.ttl or entry.ttl)
    yield from commit(batch._replace(entry=entry, touch=touch))


def _counts_alike(rows: ThreadRows, numbered: WholeThread) -> bool:
    """Whether the store's own numbers of writes have no gaps: then the next ones fit."""
    stored = [row for one in rows.checkpoints for row in one.writes]
    return {*stored, *rows.orphans} == set(numbered.writes)


def _is_there(segment: Segment, places: Sequence[SegmentInfo]) -> bool:
    """Whether its positions are all taken (by the same elements, as the rows are the same)."""
    spans = covering([span_of(place) for place in places if place.log == segment.log])
    return any(s.start <= segment.start and segment.stop <= s.stop for s in spans)


def _replaced(
    whole: WholeThread, segment: Segment, places: Sequence[SegmentInfo]
) -> Iterator[tuple[int, int, int]]:
    """The smaller segments that lie where this one is to be.

    Raises:
        ConflictError: one of them is only partly in its way.
    """
    for place in places:
        span = span_of(place)
        if span.log == segment.log and span.start < segment.stop and segment.start < span.stop:
            if span.start < segment.start or segment.stop < span.stop:
                raise _no_earlier_state(whole)
            yield place.log, place.start, place.count
