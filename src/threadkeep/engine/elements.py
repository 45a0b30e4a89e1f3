"""Reading log elements: from segments to values.

An element is the codec's bytes, or a patch against another element: two bytes that no
codec begins with, the base's log and position, the patch.

Invariant: a value is a fresh one each time, but the elements of lists, tuples and dicts are
decoded once for each reader and shared by all that it reads; but no value holds the same
element twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from threadkeep.codec import (
    Codec,
    frame,
)
from threadkeep.codec.format import OBJECT, Tag
from threadkeep.codec.frame import unpack
from threadkeep.engine import patch, refs
from threadkeep.engine.model import Segment, Span
from threadkeep.engine.refs import Cell, Inline, Ref, Run
from threadkeep.engine.snapshots import Raw
from threadkeep.errors import CorruptionError

_PATCH = bytes((OBJECT, Tag.PATCH))
_PATCH_OVER = 1024  # bytes from which a value is worth a patch
_LONGEST = 16  # patches on patches, before going back to the anchor
_OLDEST = 15  # anchors on anchors, before the value is stored whole again
_KEPT = 32 << 20  # bytes of values put together from patches that one reading keeps

_Place = tuple[int, int]  # a log and a position


def against(base: Raw | None, data: bytes) -> tuple[bytes, int, tuple[Span, ...], Raw | None]:
    """The element for a value's bytes beside its last version's.

    Gives the element, how many patches deep it lies, the positions that reading it needs,
    and the anchor: every 16th version is a patch against the anchor before it instead of
    its neighbour, and every 240th is whole, so that reading never applies more than 46
    (a value that another process wrote may begin up to 15 patches deep).
    """
    if base is None or len(data) < _PATCH_OVER:
        return data, 0, (), None
    anchor = base.anchor or base
    steps, anchors = base.depth % _LONGEST, base.depth // _LONGEST
    to = base if steps < _LONGEST - 1 else anchor
    if to is anchor and anchors >= _OLDEST:
        return data, 0, (), None
    delta = patch.diff(to.data, data)
    if len(delta) > len(data) // 2:
        return data, 0, (), None
    element = _PATCH + frame.pack_varint(to.log) + frame.pack_varint(to.pos) + delta
    uses = refs.covering((*to.uses, to.span))
    if to is base:
        return element, base.depth + 1, uses, anchor
    return element, (anchors + 1) * _LONGEST, uses, None


class _Whole:
    """Values put together from patches: of a listing's versions each is the next one's base.

    Invariant: holds at most `_KEPT` bytes, the latest ones.
    """

    def __init__(self) -> None:
        self.values: dict[_Place, bytes] = {}
        self._bytes = 0

    def put(self, place: _Place, data: bytes) -> None:
        """Keep a value, and as many of those before it as there is room for."""
        self.values[place] = data
        self._bytes += len(data)
        while self._bytes > _KEPT:
            self._bytes -= len(self.values.pop(next(iter(self.values))))


class Elements:
    """The elements of some segments of one thread, decoded once for each reader.

    `reader` names for whom values are decoded from now on: two channels that hold the same
    element get a value each.
    """

    def __init__(self, codec: Codec, segments: Iterable[Segment] = ()) -> None:
        self.reader: Hashable = None
        self._codec = codec
        # Of each log where its segments start, in order, and their elements' bytes.
        self._starts: dict[int, list[int]] = {}
        self._parts: dict[int, list[list[bytes]]] = {}
        self._read: dict[Hashable, dict[int, dict[int, Any]]] = {}  # by reader, log and position
        self._whole = _Whole()
        self._last: dict[Hashable, tuple[tuple[Span, ...], list[Any]]] = {}  # the run read last
        self.add(segments)

    def add(self, segments: Iterable[Segment]) -> None:
        """Make more segments readable; one that is there already is skipped."""
        for log, start, count, data in segments:
            starts = self._starts.setdefault(log, [])
            at = bisect_right(starts, start)
            if at and starts[at - 1] == start:
                continue
            raws = unpack(data)
            if len(raws) != count:
                raise CorruptionError(
                    "A stored segment holds another number of elements than told."
                )
            starts.insert(at, start)
            self._parts.setdefault(log, []).insert(at, raws)

    def missing(self, spans: Iterable[Span]) -> tuple[Span, ...]:
        """Which of the spans lie in segments that are not here yet."""
        return refs.covering([span for span in spans if not self._covers(span)])

    def _covers(self, span: Span) -> bool:
        at = span.start
        while at < span.stop:
            part = self._find(span.log, at)
            if part is None:
                return False
            at = part[0] + len(part[1])
        return True

    def _find(self, log: int, pos: int) -> tuple[int, list[bytes]] | None:
        """Start of the segment that holds the position, and its elements."""
        starts = self._starts.get(log)
        at = bisect_right(starts, pos) - 1 if starts else -1
        if at < 0 or starts is None:
            return None
        start, raws = starts[at], self._parts[log][at]
        return (start, raws) if pos < start + len(raws) else None

    def _at(self, log: int, pos: int) -> tuple[int, list[bytes]]:
        part = self._find(log, pos)
        if part is None:
            raise CorruptionError(f"Element {pos} of log {log} is missing.")
        return part

    def _raws(self, span: Span) -> list[bytes]:
        """The span's elements, as they are stored."""
        log, at, stop = span
        found: list[bytes] = []
        while at < stop:
            start, raws = self._at(log, at)
            found += raws[at - start : stop - start]
            at = start + len(raws)
        return found

    # -- values ----------------------------------------------------------------------

    def value(self, ref: Ref) -> Any:
        """The value that a reference stands for.

        Raises:
            CorruptionError: bytes are damaged or missing.
            UnknownTypeError: the value has a type that is not allowed here.
        """
        if isinstance(ref, Inline):
            return self._codec.decode(ref.data, self._each_once())
        if isinstance(ref, Cell):
            return self._codec.decode(self.raw(ref.log, ref.pos), self._each_once())
        return self.container(ref, self.items(ref))

    @staticmethod
    def container(run: Run, items: list[Any]) -> Any:
        """A fresh list, tuple or dict of a run's elements."""
        if run.kind == refs.DICT:
            return {key: value for key, value in items}  # noqa: C416 - dict() takes pairs of any kind
        return tuple(items) if run.kind == refs.TUPLE else items

    def items(self, run: Run) -> list[Any]:
        """A run's elements, as a fresh list."""
        last = self._last.get(self.reader)
        if last is not None and last[0] == run.spans:  # often so of neighbouring checkpoints
            return last[1].copy()
        items = self._decoded(run.spans)
        if refs.length(refs.covering(run.spans)) < len(items):
            element = self._each_once()
            places = ((log, pos) for log, start, stop in run.spans for pos in range(start, stop))
            items = [element(*place) for place in places]
        self._last[self.reader] = run.spans, items.copy()
        return items

    def _each_once(self) -> Callable[[int, int], Any]:
        """Reads the elements of one value: one that it holds in two places is decoded for each."""
        met: set[_Place] = set()

        def element(log: int, pos: int) -> Any:
            if (log, pos) in met:
                return self._codec.decode(self.raw(log, pos), self.element)
            met.add((log, pos))
            return self.element(log, pos)

        return element

    def _decoded(self, spans: Sequence[Span]) -> list[Any]:
        """The values of the spans, those that are not read yet decoded in one go."""
        read = self._read.setdefault(self.reader, {})
        wanted: list[tuple[int, Sequence[int]]] = []
        raws: list[bytes] = []
        for span in spans:
            log, start, stop = span
            known = read.setdefault(log, {})
            positions: Sequence[int] = range(start, stop)
            stored = self._raws(span)
            if known:
                positions = [pos for pos in positions if pos not in known]
                stored = [stored[pos - start] for pos in positions]
            if _PATCH in [raw[:2] for raw in stored]:
                stored = [self.raw(log, pos) for pos in positions]
            wanted.append((log, positions))
            raws += stored
        values = self._codec.decode_many(raws, self.element) if raws else []
        new = iter(values)
        for log, positions in wanted:
            read[log].update(zip(positions, new))  # noqa: B905 - the values are of all spans
        if len(spans) == 1 and len(values) == spans[0].stop - spans[0].start:
            return values
        return [value for log, *ends in spans for value in map(read[log].get, range(*ends))]

    def element(self, log: int, pos: int) -> Any:
        """The value of one element."""
        known = self._read.setdefault(self.reader, {}).setdefault(log, {})
        if pos not in known:
            known[pos] = self._codec.decode(self.raw(log, pos), self.element)
        return known[pos]

    def opened(self, segment: Segment) -> list[bytes]:
        """One of the segments' elements as stored."""
        return self._at(segment.log, segment.start)[1]

    def size(self, span: Span) -> int:
        """About how many bytes the span's elements take."""
        _, raws = self._at(span.log, span.start)
        return sum(map(len, raws)) * (span.stop - span.start) // len(raws)

    def depth(self, log: int, pos: int) -> int:
        """How deep the element lies in patches, as `against` counts."""
        steps = len(self._patches((log, pos), {})[1])
        return steps if steps < _LONGEST else _LONGEST * (_OLDEST + 1) - 1

    def raw(self, log: int, pos: int) -> bytes:
        """The codec's bytes of one element, patches applied."""
        data, patches = self._patches((log, pos), self._whole.values)
        for place, delta in reversed(patches):
            data = patch.apply(data, delta)
            self._whole.put(place, data)
        return data

    def _patches(
        self, place: _Place, known: Mapping[_Place, bytes]
    ) -> tuple[bytes, list[tuple[_Place, bytes]]]:
        """The nearest whole version that this element goes back to, and the patches after it.

        The last patch comes first, each with the place that it stands at. A version in
        `known` counts as whole.
        """
        patches: list[tuple[_Place, bytes]] = []
        while True:
            start, raws = self._at(*place)
            data = known.get(place) or raws[place[1] - start]
            if data[:2] != _PATCH:
                return data, patches
            if len(patches) > _LONGEST * 4:
                raise CorruptionError("A stored value's patches go round in a circle.")
            log, at = frame.read_varint(data, 2)
            pos, at = frame.read_varint(data, at)
            patches.append((place, data[at:]))
            place = log, pos


def full_size(element: bytes) -> int:
    """How many bytes the element's value takes when it is whole."""
    if element[:2] != _PATCH:
        return len(element)
    _, at = frame.read_varint(element, 2)
    _, at = frame.read_varint(element, at)
    return patch.full_size(element[at:])


def opened(segment: Segment) -> list[bytes]:
    """A segment's elements as stored."""
    return unpack(segment.data)


def stops(segments: Sequence[Segment]) -> dict[int, int]:
    """The end of each log as far as these segments show it."""
    ends: dict[int, int] = {}
    for segment in segments:
        ends[segment.log] = max(ends.get(segment.log, 0), segment.stop)
    return ends
