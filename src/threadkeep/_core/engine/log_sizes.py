"""Sizes of the elements of a thread's logs: stored bytes, and bytes of whole values.

Segments are read some megabytes at a time. Two numbers stay in memory for each element.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from threadkeep._core.codec.frame import MAX_BODY, unpack
from threadkeep._core.codec.introspection import references
from threadkeep._core.engine import elements
from threadkeep._core.engine.cold_references import STUB, location_of
from threadkeep._core.engine.context import NO_CODEC
from threadkeep._core.engine.elements import Elements
from threadkeep._core.engine.lineage import by_log, touches
from threadkeep._core.engine.model import ReadSegments, Segment, SegmentInfo, Span
from threadkeep._core.engine.operation import Operation, fetch
from threadkeep._core.engine.refs import Cell, Inline, Ref, Run, covering, span_of
from threadkeep.errors import CorruptionError

_TOGETHER = 16 << 20  # bytes of segments in one read
_Part: TypeAlias = Inline | Cell


def read_logs(thread: str, places: Sequence[SegmentInfo]) -> Operation[LogSizes]:
    """Read the sizes of all elements of a thread."""
    # (offloaded bytes are counted by their stubs, without fetching them from the cold store)
    logs = LogSizes(thread)
    groups = list(_groups([(place.size, span_of(place)) for place in sorted(places)]))
    for group in groups:
        segments = yield from fetch(ReadSegments(thread, covering(group), stub=True))
        logs.add(segments)
        if len(groups) == 1:
            logs.elements = _elements(segments)
    return logs


def read_parts(thread: str, refs: Iterable[Ref]) -> Operation[tuple[LogSizes, int]]:
    """Read the sizes of the elements that values need, and return them and the bytes read."""
    logs = LogSizes(thread)
    spans = covering([span for ref in refs for span in ref.needs])
    segments = yield from fetch(ReadSegments(thread, spans, stub=True))
    logs.add(segments)
    logs.elements = _elements(segments)
    return logs, sum([len(one.data) for one in segments])


def _groups(sizes: Iterable[tuple[int, Span]]) -> Iterator[list[Span]]:
    """Divide spans into groups of some bytes each."""
    group: list[Span] = []
    total = 0
    for size, span in sizes:
        if group and total + size > _TOGETHER:
            yield group
            group, total = [], 0
        group.append(span)
        total += size
    if group:
        yield group


def _elements(segments: Iterable[Segment]) -> Elements:
    return Elements(NO_CODEC, [one for one in segments if not one.data.startswith(STUB)])


class LogSizes:
    """The sizes of all elements of a thread, summed up along each log, 0 for missing ones.

    Attributes:
        elements: all elements, if they are few, else None.
        compressed: bytes that compression saves.
    """

    def __init__(self, thread: str) -> None:
        self.elements: Elements | None = None
        self.compressed = 0
        self._thread = thread
        self._full = Sums()
        self._shares = Sums()
        self._known: dict[_Part, int] = {}
        self._counted: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._bytes = 0  # of these

    def add(self, segments: Iterable[Segment]) -> None:
        """Add segments, in (log, start) order."""
        for segment in segments:
            own, uncompressed = _full_sizes(segment)
            self.compressed += uncompressed - len(segment.data)
            # (the stored bytes, divided equally among its positions)
            size, count = len(segment.data), segment.count
            equal = [size * (at + 1) // count - size * at // count for at in range(count)]
            self._full.add(segment.log, segment.start, own)
            self._shares.add(segment.log, segment.start, equal)

    # -- whole values ------------------------------------------------------------------

    def resolve(self, refs: Iterable[Ref]) -> Operation[None]:
        """Find the sizes of values that use other elements, and read the missing ones.

        Sizes of earlier calls are forgotten.
        """
        wanted = {ref for ref in refs if not isinstance(ref, Run) and ref.uses}
        self._known = {}
        if self.elements is not None:
            self._known = {ref: self._single_size(ref, self.elements) for ref in wanted}
            return
        group: list[_Part] = []
        total = 0
        for ref in (*sorted(wanted, key=lambda one: one.needs), None):
            size = 0 if ref is None else self._shares.over(ref.needs)
            if group and (ref is None or total + size > _TOGETHER):
                spans = covering([span for one in group for span in one.needs])
                found = _elements((yield from fetch(ReadSegments(self._thread, spans, stub=True))))
                self._known |= {one: self._single_size(one, found) for one in group}
                group, total = [], 0
            if ref is not None:
                group.append(ref)
                total += size

    def full_size(self, ref: Ref) -> int:
        """Return the bytes of a whole copy of the value, with the elements it refers to.

        A value that uses other elements was given to `resolve` before.
        """
        if isinstance(ref, Run):
            return self._full.over(ref.spans)
        if ref.uses:
            return self._known[ref]
        return len(ref.data) if isinstance(ref, Inline) else self._full.over(ref.needs)

    def _single_size(self, ref: _Part, found: Elements) -> int:
        if isinstance(ref, Cell):
            if found.missing(ref.needs):
                return self._full.over((Span(ref.log, ref.pos, ref.pos + 1),))
            data = found.raw(ref.log, ref.pos)
        else:
            data = ref.data
        # (Not just `uses`: patches need elements that are not part of the value.)
        size, used = len(data), by_log(ref.uses)
        for log, pos, marker, _ in references(data) if used else ():
            part = Span(log, pos, pos + 1)
            if touches(used, part):
                size += self._full.over((part,)) - marker
        return size

    # -- stored bytes ------------------------------------------------------------------

    def count(self, spans: Iterable[Span]) -> int:
        """Estimate the stored bytes of these positions, without those counted before."""
        before = self._bytes
        for log, start, stop in spans:
            starts, stops = self._counted[log]
            first, last = bisect_left(stops, start), bisect_right(starts, stop)  # that it touches
            if last == first + 1 and starts[first] <= start and stop <= stops[first]:
                continue
            if first < last:
                old = zip(starts[first:last], stops[first:last], strict=True)
                self._bytes -= self._shares.over([Span(log, *ends) for ends in old])
                start, stop = min(start, starts[first]), max(stop, stops[last - 1])  # noqa: PLW2901
            starts[first:last], stops[first:last] = [start], [stop]
            self._bytes += self._shares.over((Span(log, start, stop),))
        return self._bytes - before

    @property
    def counted(self) -> tuple[Span, ...]:
        """The positions that were counted."""
        ends = ((log, *pair) for log, both in self._counted.items() for pair in zip(*both))  # noqa: B905
        return covering([Span(*one) for one in ends])

    def rest(self) -> int:
        """Return the stored bytes that were not counted."""
        return self._shares.total - self._bytes


def _full_sizes(segment: Segment) -> tuple[list[int], int]:
    """Return the uncompressed bytes of each element, and of all of them as stored.

    For a stub, the bytes of its segment in the cold store.
    """
    place = location_of(segment)
    if place is not None:
        if not 0 < segment.count <= MAX_BODY:  # (an element has a byte or more)
            raise CorruptionError("A stored segment holds a wrong number of elements.")
        return [place.size // segment.count] * segment.count, len(segment.data)
    parts = unpack(segment.data, segment.count)
    return [elements.full_size(part) for part in parts], sum(map(len, parts))


class Sums:
    """Sums over ranges of positions, by log."""

    def __init__(self) -> None:
        self.total = 0
        self._places: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self._sums: defaultdict[int, array[int]] = defaultdict(lambda: array("q", [0]))

    def add(self, log: int, start: int, sizes: Sequence[int]) -> None:
        """Add the sizes of positions from `start` on, which follow those added before."""
        places, sums = self._places[log], self._sums[log]
        known = 0 if not places else max(places[-1] + 1 - start, 0)  # (damage: segments overlap)
        new = sizes[known:]
        places.extend(range(start + known, start + len(sizes)))
        sums.extend([*accumulate(new, initial=sums[-1])][1:])
        self.total += sum(new)

    def over(self, spans: Iterable[Span]) -> int:
        """Return the sum of the positions in the spans."""
        total = 0
        for log, start, stop in spans:
            if (places := self._places.get(log)) is not None:
                sums = self._sums[log]
                total += sums[bisect_left(places, stop)] - sums[bisect_left(places, start)]
        return total
