"""Positions of segments in logs: where a batch may add and drop them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from threadkeep._core.engine import model
from threadkeep._core.engine.heads import (
    MOST_GAPS,
    MOST_LOGS,
    NO_GAPS,
    NO_LOGS,
    Gaps,
    Head,
    LogEnds,
)
from threadkeep._core.engine.rule_reads import Planning, ReadEnds, ask, family_of
from threadkeep._core.engine.tips import SegmentPlace
from threadkeep.errors import SegmentTakenError


class Placed(NamedTuple):
    """The segments that a batch adds and drops, and the logs of its thread afterwards."""

    segments: tuple[model.Segment, ...]
    drops: tuple[SegmentPlace, ...]
    logs: LogEnds
    gaps: Gaps
    lists_all: bool


def placed_in(head: Head, batch: model.Batch) -> Placed | None:
    """Place the segments of a batch where none are, or None if the store must be read first."""
    segments, drops = batch.segments, batch.drop_segments
    logs, gaps = head.logs, head.gaps
    if not segments:
        return Placed((), drops, logs, gaps, head.lists_all)
    ends, free = dict(logs), gaps
    for log, start, stop in _ranges(drops) if drops else ():
        if log not in logs:
            return None
        free = _with_gap(free, log, start, stop)
    for log, start, count, _ in segments:
        end = ends.get(log)
        if end is None:
            if not head.lists_all:
                return None
            end = 0
        stop = start + count
        if start >= end:
            if start > end:
                free = _with_gap(free, log, end, start)
            ends.pop(log, None)  # (to the end: the first ones are left out)
            ends[log] = stop
            continue
        left = _filled(free.get(log, ()), start, stop)
        if left is None:
            return None
        free = {**free, log: left}
    return _listed(head, segments, drops, ends, free)


def _listed(
    head: Head,
    segments: Iterable[model.Segment],
    drops: tuple[SegmentPlace, ...],
    ends: Any,
    free: Gaps,
) -> Placed:
    lists_all = head.lists_all
    while len(ends) > MOST_LOGS:
        oldest = next(iter(ends))
        del ends[oldest]
        free = {log: some for log, some in free.items() if log != oldest}
        lists_all = False
    return Placed(tuple(segments), drops, ends, free, lists_all)


def placed_carefully(head: Head, batch: model.Batch) -> Planning[Placed]:
    """Place the segments of a batch after a look at those that are stored.

    Stored ones with the same bytes are left out. Raises SegmentTakenError for any other overlap.
    """
    spans = [model.Span(log, start, start + count) for log, start, count in batch.drop_segments]
    spans += [one.span for one in batch.segments]
    found = yield from ask(model.ReadSegments(batch.thread, tuple(spans)))
    stored: dict[SegmentPlace, model.Segment] = {one[:3]: one for one in found}
    drops = tuple([place for place in batch.drop_segments if place in stored])
    kept = [one for place, one in stored.items() if place not in drops]
    segments = [one for one in dict.fromkeys(batch.segments) if one not in kept]
    for one in segments:
        others = (*kept, *[other for other in segments if other is not one])
        if any(o.log == one.log and o.start < one.stop and one.start < o.stop for o in others):
            raise SegmentTakenError(thread=batch.thread)
    unlisted = tuple({one.log for one in segments if one.log not in head.logs})
    known: LogEnds = (yield from ask(ReadEnds(head, unlisted))) if unlisted else NO_LOGS
    foreign = (yield from _foreign(head, known)) if unlisted and head.heap else ()
    ends = dict(head.logs)
    replaced = [model.Span(*places) for places in _ranges(drops)]
    for one in segments:
        if one.log not in foreign:
            ends[one.log] = max(ends.pop(one.log, known.get(one.log, 0)), one.stop)
        elif not batch.bump_generation and not any(_covers(span, one) for span in replaced):
            # (another thread of the heap appends to this log)
            raise SegmentTakenError(thread=batch.thread)
    return _listed(head, segments, drops, ends, NO_GAPS)


def _foreign(head: Head, known: LogEnds) -> Planning[Collection[int]]:
    """Return the logs of a heap that are not the thread's own, among those that are in use."""
    family = yield from family_of(head)
    others = {log for one in family if one.thread != head.thread for log in one.logs}
    return others.union(known).difference(head.logs)


def _covers(span: model.Span, one: model.Segment) -> bool:
    return span.log == one.log and span.start <= one.start and one.stop <= span.stop


def _ranges(places: Sequence[SegmentPlace]) -> list[tuple[int, int, int]]:
    """Join places that follow one another, and return log, start and stop of each range."""
    found: list[tuple[int, int, int]] = []
    for log, start, count in sorted(places):
        first = found.pop()[1] if found and found[-1][::2] == (log, start) else start
        found.append((log, first, start + count))
    return found


def _with_gap(gaps: Gaps, log: int, start: int, stop: int) -> Gaps:
    return {**gaps, log: tuple(sorted((*gaps.get(log, ()), (start, stop)))[-MOST_GAPS:])}


def _filled(
    gaps: tuple[tuple[int, int], ...], start: int, stop: int
) -> tuple[tuple[int, int], ...] | None:
    """Return the gaps without the positions `start <= p < stop`, or None if no gap has them all."""
    for first, last in gaps:
        if first <= start and stop <= last:
            rest = [gap for gap in gaps if gap != (first, last)]
            rest += [(a, b) for a, b in ((first, start), (stop, last)) if a < b]
            return tuple(sorted(rest)[-MOST_GAPS:])
    return None
