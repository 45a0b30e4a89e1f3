"""Records in memory: segments of logs, entries by query, checkpoints put together from rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeGuard

from threadkeep._core.engine.model import (
    Batch,
    Change,
    CheckpointRow,
    Child,
    Segment,
    Span,
    StoredCheckpoint,
    WriteRow,
)
from threadkeep._core.engine.thread_entry import ThreadEntry, ThreadQuery, ThreadStatus
from threadkeep.errors import SegmentTakenError


class Log:
    """Segments of one log, which never overlap. `starts` are their sorted starts. No locks."""

    __slots__ = ("segments", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.segments: dict[int, Segment] = {}

    def put(self, segment: Segment) -> bool:
        """Add a segment; return False if the very same one is there. Raises SegmentTakenError."""
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
        """Remove and return a segment; None if there is no such one."""
        segment = self.segments.get(start)
        if segment is None or segment.count != count:
            return None
        del self.segments[start], self.starts[bisect_left(self.starts, start)]
        return segment

    def between(self, start: int, stop: int) -> Iterator[Segment]:
        """Yield the segments that overlap the positions `start <= p < stop`."""
        first = max(bisect_right(self.starts, start) - 1, 0)
        for at in self.starts[first : bisect_left(self.starts, stop)]:
            segment = self.segments[at]
            if segment.stop > start:
                yield segment

    def replace(self, segment: Segment) -> list[Segment]:
        """Add a segment in place of all that it overlaps, and return those."""
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
    """Return the segments that overlap the spans, each once, in (log, start) order."""
    found: dict[tuple[int, int], Segment] = {}
    for number, start, stop in spans:
        if number in logs and start < stop:
            for segment in logs[number].between(start, stop):
                found[number, segment.start] = segment
    return [found[key] for key in sorted(found)]


def missing(logs: dict[int, Log], spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the parts of the spans that no segment holds."""
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


def matches(entry: ThreadEntry, query: ThreadQuery) -> bool:
    """Return True if the entry matches the query."""
    return (
        (entry.state in query.states if query.states else entry.state != ThreadStatus.DELETED)
        and set(query.labels) <= set(entry.labels)
        and _is_in_range(entry.created_at, query.created)
        and _is_in_range(entry.updated_at, query.updated)
        and query.waits in (None, entry.waits_at is not None)
        and query.pinned in (None, entry.pinned)
        and (query.size is None or entry.size >= query.size)
        and (query.origin is None or (entry.origin or ("",))[0] == query.origin)
        and (query.rested is None or _has_rested(entry, query.rested))
    )


def _is_in_range(at: int, limits: tuple[int | None, int | None]) -> bool:
    first, last = limits
    return (first is None or at >= first) and (last is None or at < last)


def _has_rested(entry: ThreadEntry, now: int) -> bool:
    return entry.ttl is not None and entry.updated_at + entry.ttl < now


def only_adds(change: Change) -> TypeGuard[Batch]:
    """Return True for a batch that adds rows and replaces segments, and does no more."""
    return type(change) is Batch and not (
        change.fences
        or change.drop_checkpoints
        or change.drop_writes
        or change.hide_checkpoints
        or change.drop_unreadable
        or change.entry
        or change.bump_generation
    )


def first_children(rows: Iterable[CheckpointRow]) -> dict[tuple[str, str], Child]:
    """Return, by (ns, parent), the first child of a greater id, of rows in ascending order."""
    children: dict[tuple[str, str], Child] = {}
    for row in rows:
        if row.parent is not None and row.id > row.parent:
            children.setdefault((row.ns, row.parent), Child(row.id, row.run, row.seen))
    return children


def with_writes(
    thread: str,
    rows: Sequence[CheckpointRow],
    keyframes: Iterable[Segment | None],
    writes: Iterable[WriteRow],
) -> tuple[tuple[StoredCheckpoint, ...], tuple[WriteRow, ...]]:
    """Return a thread's checkpoints, and the writes on none of them; all in ascending order."""
    key = attrgetter("ns", "checkpoint_id")
    by_place = {at: tuple(group) for at, group in groupby(writes, key)}
    children = first_children(rows)
    checkpoints = [
        StoredCheckpoint(
            thread,
            row,
            keyframe,
            by_place.pop((row.ns, row.id), ()),
            children.get((row.ns, row.id)),
        )
        for row, keyframe in zip(rows, keyframes, strict=True)
    ]
    return tuple(checkpoints), tuple([row for group in by_place.values() for row in group])
