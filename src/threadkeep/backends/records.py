"""Segments as they lie in memory: by log, in the order of their positions.

Only storing and finding them lives here. Invariant: the starts are sorted, and are exactly the
keys of the dict beside them; segments of a log never overlap. No locks.

Whether an entry is one that is looked for, where the store itself cannot tell.

Only this predicate lives here, one logic for the stores that hold entries as records.

Which checkpoint led to which, of rows that lie together.

Only this reading of a thread's rows lives here, for backends that would otherwise have to
ask once for each. Invariant: the answer is that of `StoredCheckpoint.child`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from threadkeep.engine.entries import Entry, ThreadQuery
from threadkeep.engine.lifecycle import State
from threadkeep.engine.model import CheckpointRow, Child, Segment, Span
from threadkeep.errors import SegmentTakenError


class Log:
    """The segments of one log, and their starts in order."""

    __slots__ = ("segments", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.segments: dict[int, Segment] = {}

    def put(self, segment: Segment) -> bool:
        """Add it; False where the very same one is there. Raises SegmentTakenError."""
        starts = self.starts
        at = bisect_left(starts, segment.stop)
        last = self.segments[starts[at - 1]] if at else None
        if last is not None and last.stop > segment.start:
            if last == segment:
                return False
            raise SegmentTakenError(f"Log {segment.log} holds other bytes at {segment.start}.")
        starts.insert(at, segment.start)
        self.segments[segment.start] = segment
        return True

    def drop(self, start: int, count: int) -> Segment | None:
        """Take it out and return it; None where there is no such segment."""
        segment = self.segments.get(start)
        if segment is None or segment.count != count:
            return None
        del self.segments[start], self.starts[bisect_left(self.starts, start)]
        return segment

    def between(self, start: int, stop: int) -> Iterator[Segment]:
        """The segments that overlap the positions `start <= p < stop`."""
        first = max(bisect_right(self.starts, start) - 1, 0)
        for at in self.starts[first : bisect_left(self.starts, stop)]:
            segment = self.segments[at]
            if segment.stop > start:
                yield segment

    def replace(self, segment: Segment) -> list[Segment]:
        """Add it in place of all that it overlaps, which is returned."""
        gone = list(self.between(segment.start, segment.stop))
        for other in gone:
            self.drop(other.start, other.count)
        self.put(segment)
        return gone


def add(logs: dict[int, Log], segments: Iterable[Segment]) -> None:
    """Add segments in place of what they overlap."""
    for segment in segments:
        logs.setdefault(segment.log, Log()).replace(segment)


def between(logs: dict[int, Log], spans: Iterable[Span]) -> list[Segment]:
    """The segments that overlap the spans, each once, in (log, start) order."""
    found: dict[tuple[int, int], Segment] = {}
    for number, start, stop in spans:
        if number in logs and start < stop:
            for segment in logs[number].between(start, stop):
                found[number, segment.start] = segment
    return [found[key] for key in sorted(found)]


def missing(logs: dict[int, Log], spans: Iterable[Span]) -> tuple[Span, ...]:
    """The parts of the spans that no segment holds."""
    gaps: list[Span] = []
    for number, start, stop in spans:
        at = start
        for segment in logs[number].between(start, stop) if number in logs else ():
            if segment.start > at:
                gaps.append(Span(number, at, segment.start))
            at = segment.stop
        if at < stop:
            gaps.append(Span(number, at, stop))
    return tuple(gaps)


def is_meant(entry: Entry, query: ThreadQuery) -> bool:
    """Whether the entry is as the query says."""
    return (
        (entry.state in query.states if query.states else entry.state != State.DELETED)
        and set(query.labels) <= set(entry.labels)
        and _is_between(entry.created_at, query.created)
        and _is_between(entry.updated_at, query.updated)
        and query.waits in (None, entry.waits_at is not None)
        and query.pinned in (None, entry.pinned)
        and (query.size is None or entry.size >= query.size)
        and (query.origin is None or (entry.origin or ("",))[0] == query.origin)
        and (query.rested is None or _has_rested(entry, query.rested))
    )


def _is_between(at: int, limits: tuple[int | None, int | None]) -> bool:
    first, last = limits
    return (first is None or at >= first) and (last is None or at < last)


def _has_rested(entry: Entry, now: int) -> bool:
    return entry.ttl is not None and entry.updated_at + entry.ttl < now


def first_children(rows: Iterable[CheckpointRow]) -> dict[tuple[str, str], Child]:
    """By (ns, parent): the first child of a greater id, of rows in ascending order."""
    children: dict[tuple[str, str], Child] = {}
    for row in rows:
        if row.parent is not None and row.id > row.parent:
            children.setdefault((row.ns, row.parent), Child(row.id, row.run, row.seen))
    return children
