"""Segments of which little is needed any more, written anew as that little.

Only that lives here. Invariant: addresses stay as they are: what is alive lies at the positions
where it lay, in shorter segments, and between them are holes that nothing refers to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from threadkeep.codec.frame import Compression, pack, unpack
from threadkeep.engine.context import Engine
from threadkeep.engine.model import Batch, Segment, SegmentInfo, Span, ThreadRows
from threadkeep.engine.operation import (
    Operation,
    fetch_segments,
)
from threadkeep.engine.refs import covering, length, span_of
from threadkeep.engine.thread_entry import Touch
from threadkeep.errors import StaleThreadError
from threadkeep.retention.prune import counts_segments

Used: TypeAlias = Mapping[int, Sequence[Span]]  # by log, in order and apart

ROW = 64  # bytes that a segment takes beside its data, about


def shortened(
    engine: Engine, rows: ThreadRows, batch: Batch, used: Used, *, wholly: bool = False
) -> Operation[Batch]:
    """The batch, which also writes anew each segment of which less than half is used.

    Args:
        engine: the engine's parts.
        rows: the thread as it was read.
        batch: what removes the segments that are not used at all.
        used: the positions that are referred to once the batch is committed.
        wholly: not to save space, but so that nothing stays that is not used.

    Raises:
        StaleThreadError: segments were removed since the rows were read.
    """
    gone = set(batch.drop_segments)
    stay = [s for s in rows.segments if (s.log, s.start, s.count) not in gone]
    dead = [s for s in stay if _dies(s, used, wholly=wholly)]
    spans = covering([span_of(place) for place in dead])
    # (past all caches: they may have the same positions in other pieces; the commit expects the
    # generation)
    found = yield from fetch_segments(batch.thread, spans)
    by_place = {(s.log, s.start, s.count): s for s in found}
    old, new, less = [], list[Segment](), 0
    for place in dead:
        segment = by_place.get((place.log, place.start, place.count))
        if segment is None:
            raise StaleThreadError(thread=batch.thread)
        shorter = parts(segment, alive(span_of(place), used), engine.compression)
        gained = place.size - sum([len(part.data) for part in shorter])
        if wholly or gained > ROW * (len(shorter) - 1):
            old.append((place.log, place.start, place.count))
            new += shorter
            less += gained
    touch = cast("Touch", batch.touch)
    if counts_segments(batch.thread, rows):
        touch = touch._replace(size=touch.size - less)
    return batch._replace(
        drop_segments=(*batch.drop_segments, *old),
        segments=(*batch.segments, *new),
        touch=touch,
    )


def _dies(place: SegmentInfo, used: Used, *, wholly: bool = False) -> bool:
    return (1 if wholly else 2) * length(alive(span_of(place), used)) < place.count


def alive(span: Span, used: Used) -> list[Span]:
    """What is used of the span, in order."""
    spans = used.get(span.log, ())
    first = max(bisect_right(spans, span.start, key=lambda s: s.start) - 1, 0)
    found = []
    for one in spans[first:]:
        if one.start >= span.stop:
            break
        start, stop = max(one.start, span.start), min(one.stop, span.stop)
        if start < stop:
            found.append(Span(span.log, start, stop))
    return found


def parts(segment: Segment, spans: Iterable[Span], compression: Compression) -> list[Segment]:
    """The segments that hold just these positions of a segment, one for each span."""
    elements = unpack(segment.data)
    return [
        Segment(log, start, stop - start, pack(data, compression))
        for log, start, stop in spans
        for data in (elements[start - segment.start : stop - segment.start],)
    ]
