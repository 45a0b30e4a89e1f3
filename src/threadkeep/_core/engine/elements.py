"""Elements of logs: reading values from segments, and patches.

An element is the codec's bytes, or a patch against another element: two bytes that no codec begins
with, the log and position of the base, and the patch. Values are fresh each time, and none holds
the same element twice.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, cast

import zstandard

from threadkeep._core.codec import Codec
from threadkeep._core.codec.format import OBJECT, Tag
from threadkeep._core.codec.frame import may_hold, pack_varint, read_varint, unpack
from threadkeep._core.engine import refs
from threadkeep._core.engine.model import Segment, Span
from threadkeep._core.engine.refs import Cell, Changed, Inline, Ref, Run
from threadkeep._core.engine.snapshots import RawElement
from threadkeep.errors import CorruptionError

_PATCH = bytes((OBJECT, Tag.PATCH))
_PATCH_OVER = 1024  # smallest value worth a patch, in bytes
_LONGEST = 16  # patches on patches before one against the anchor
_OLDEST = 15  # anchors on anchors, before the value is stored whole again
_CACHE_BYTES = 32 << 20  # of values built from patches, for one reading

_PLAIN, _ZSTD = 0, 1
_SHORTEST_DICTIONARY = 8  # bytes, the least that zstd takes
_HEAD = 64  # most bytes at the front that are repeated
_LARGE_BASE = 1 << 19
_COMPRESS_OVER = 64  # smaller middles do not gain from a zstd frame of a dozen bytes

_Position = tuple[int, int]  # a log and a position


def patch_against(
    base: RawElement | None, data: bytes
) -> tuple[bytes, int, tuple[Span, ...], RawElement | None]:
    """Encode a value's bytes as an element, given the last version.

    Returns the element, its depth in patches, the positions that reading it needs, and the anchor.
    Every 16th version is a patch against the previous anchor instead of its neighbour, and every
    240th is whole, so that reading applies at most 46 patches.
    """
    if base is None or len(data) < _PATCH_OVER:
        return data, 0, (), None
    anchor = base.anchor or base
    steps, anchors = base.depth % _LONGEST, base.depth // _LONGEST
    to = base if steps < _LONGEST - 1 else anchor
    if to is anchor and anchors >= _OLDEST:
        return data, 0, (), None
    delta = make_patch(to.data, data)
    if len(delta) > len(data) // 2:
        return data, 0, (), None
    element = _PATCH + pack_varint(to.log) + pack_varint(to.pos) + delta
    uses = refs.covering((*to.uses, to.span))
    if to is base:
        return element, base.depth + 1, uses, anchor
    return element, (anchors + 1) * _LONGEST, uses, None


def base_of(element: bytes) -> _Position | None:
    """Return the position of the element that a stored element is a patch of, or None."""
    if not element.startswith(_PATCH):
        return None
    log, at = read_varint(element, len(_PATCH))
    return log, read_varint(element, at)[0]


def patched(base: _Position, old: bytes, new: bytes) -> bytes:
    """Encode bytes as an element, given its base's bytes: a patch, unless that is too long."""
    delta = make_patch(old, new)
    if len(delta) > len(new) // 2:
        return new
    return _PATCH + pack_varint(base[0]) + pack_varint(base[1]) + delta


class Elements:
    """The elements of some segments of one thread, decoded once per `reader` (a channel)."""

    def __init__(
        self, codec: Codec, segments: Iterable[Segment] = (), most: int | None = None
    ) -> None:
        self.reader: Hashable = None
        self._codec = codec
        self._most = most  # bytes of one element built from patches
        # By log: the starts of its segments in order, and their elements' bytes.
        self._starts: dict[int, list[int]] = {}
        self._parts: dict[int, list[list[bytes]]] = {}
        self._at: dict[_Position, list[bytes]] = {}  # elements of a segment, by its start
        self._read: dict[Hashable, dict[int, dict[int, Any]]] = {}  # by reader, log and position
        # The latest values built from patches: in a listing each is the base of the next.
        self._patched: dict[_Position, bytes] = {}
        self._patched_bytes = 0
        self._last: dict[Hashable, tuple[tuple[Span, ...], list[Any]]] = {}  # the run read last
        self.add(segments)

    def add(self, segments: Iterable[Segment]) -> None:
        """Add segments, skipping existing ones."""
        for log, start, count, data in segments:
            starts = self._starts.setdefault(log, [])
            at = bisect_right(starts, start)
            if at and starts[at - 1] == start:
                continue
            raws = self._at[log, start] = unpack(data, count)
            starts.insert(at, start)
            self._parts.setdefault(log, []).insert(at, raws)

    def missing(self, spans: Iterable[Span]) -> tuple[Span, ...]:
        """Return the spans in segments that were not added yet."""
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
        starts = self._starts.get(log)
        at = bisect_right(starts, pos) - 1 if starts else -1
        if at < 0 or starts is None:
            return None
        start, raws = starts[at], self._parts[log][at]
        return (start, raws) if pos < start + len(raws) else None

    def part(self, log: int, pos: int) -> tuple[int, list[bytes]]:
        """Return the start of the segment that holds a position, and its elements as stored."""
        raws = self._at.get((log, pos))
        if raws:  # (a quick answer to most questions)
            return pos, raws
        part = self._find(log, pos)
        if part is None:
            raise CorruptionError(f"Element {pos} of log {log} is missing.")
        return part

    def _raws(self, span: Span) -> list[bytes]:
        log, at, stop = span
        found: list[bytes] = []
        while at < stop:
            start, raws = self.part(log, at)
            found += raws[at - start : stop - start]
            at = start + len(raws)
        return found

    def value(self, ref: Ref) -> Any:
        if isinstance(ref, Inline):
            return self._codec.decode(ref.data, self._each_once())
        if isinstance(ref, Cell):
            return self._codec.decode(self.raw(ref.log, ref.pos), self._each_once())
        kind: Any = ref.__class__
        if kind is Changed:
            ref, functions = cast("Changed", ref)
            return reduce(lambda value, change: change(value), functions, self.value(ref))
        items = self._items(ref)
        if ref.kind == refs.DICT:
            return {key: value for key, value in items}  # noqa: C416 - dict() takes pairs of any kind
        return tuple(items) if ref.kind == refs.TUPLE else items

    def _items(self, run: Run) -> list[Any]:
        last = self._last.get(self.reader)
        if last is not None and last[0] == run.spans:  # common in neighbouring checkpoints
            return last[1].copy()
        items = self._decoded(run.spans)
        if refs.length(refs.covering(run.spans)) < len(items):
            element = self._each_once()
            places = ((log, pos) for log, start, stop in run.spans for pos in range(start, stop))
            items = [element(*place) for place in places]
        self._last[self.reader] = run.spans, items.copy()
        return items

    def _each_once(self) -> Callable[[int, int], Any]:
        """Return a reader of one value's elements, which decodes repeated ones again."""
        met: set[_Position] = set()

        def element(log: int, pos: int) -> Any:
            if (log, pos) in met:
                return self._codec.decode(self.raw(log, pos), self.element)
            met.add((log, pos))
            return self.element(log, pos)

        return element

    def _decoded(self, spans: Sequence[Span]) -> list[Any]:
        """Return the values of spans, decoding the new ones together."""
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
        known = self._read.setdefault(self.reader, {}).setdefault(log, {})
        if pos not in known:
            known[pos] = self._codec.decode(self.raw(log, pos), self.element)
        return known[pos]

    def base(self, log: int, pos: int) -> _Position | None:
        """Return the position of the element that this one is a patch of, or None."""
        start, raws = self.part(log, pos)
        return base_of(raws[pos - start])

    def size(self, span: Span) -> int:
        """Estimate the bytes of the elements of a span."""
        _, raws = self.part(span.log, span.start)
        return sum(map(len, raws)) * (span.stop - span.start) // len(raws)

    def depth(self, log: int, pos: int) -> int:
        """Return the depth of an element in patches, as `patch_against` counts it."""
        steps = len(self._patches((log, pos), {})[1])
        return steps if steps < _LONGEST else _LONGEST * (_OLDEST + 1) - 1

    def raw(self, log: int, pos: int) -> bytes:
        """Return the codec's bytes of one element, with patches applied."""
        data, patches = self._patches((log, pos), self._patched)
        for place, delta in reversed(patches):
            data = self._patched[place] = apply_patch(data, delta, self._most)
            self._patched_bytes += len(data)
            while self._patched_bytes > _CACHE_BYTES:
                self._patched_bytes -= len(self._patched.pop(next(iter(self._patched))))
        return data

    def _patches(
        self, place: _Position, known: Mapping[_Position, bytes]
    ) -> tuple[bytes, list[tuple[_Position, bytes]]]:
        """Return the nearest whole version, and the patches on it with places, last first."""
        patches: list[tuple[_Position, bytes]] = []
        while True:
            start, raws = self.part(*place)
            data = known.get(place) or raws[place[1] - start]
            if data[:2] != _PATCH:
                return data, patches
            if len(patches) > _LONGEST * 4:
                raise CorruptionError("The patches of a stored value form a cycle.")
            log, at = read_varint(data, 2)
            pos, at = read_varint(data, at)
            patches.append((place, data[at:]))
            place = log, pos


def full_size(element: bytes) -> int:
    """Return the size of the element's whole value in bytes."""
    if element[:2] != _PATCH:
        return len(element)
    _, at = read_varint(element, 2)
    _, at = read_varint(element, at)
    first, at = read_varint(element, at)
    return sum(_bounds(element, at + first)[:3])


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would take longer than the decoding."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def make_patch(old: bytes, new: bytes) -> bytes:
    """Return the patch that turns `old` into `new`, which keeps their common front and back.

    Layout: the head's length and the head (the first bytes, which often differ, as encodings store
    their length there), three LEB128 numbers (start of the middle, bytes kept at the back, length
    of the new middle), one byte (0: the middle follows, 1: a zstd frame with the old middle as
    dictionary), the middle.
    """
    first = _head(old, new)
    most = min(len(old), len(new))
    front = _shared(first, most, lambda a, b: old[a:b] == new[a:b])
    back = _shared(0, most - front, lambda a, b: _tail(old, a, b) == _tail(new, a, b))
    middle = new[front : len(new) - back]
    numbers = [pack_varint(number) for number in (front, back, len(middle))]
    head = b"".join((pack_varint(first), new[:first], *numbers))
    if len(middle) > _COMPRESS_OVER:
        packed = _compress(middle, old[front : len(old) - back])
        if len(packed) < len(middle):
            return head + bytes((_ZSTD,)) + packed
    return head + bytes((_PLAIN,)) + middle


def apply_patch(old: bytes, patch: bytes, most: int | None = None) -> bytes:
    """Return the version that `patch` makes of `old`, of at most `most` bytes."""
    try:
        first, at = read_varint(patch, 0)
        head, at = patch[at : at + first], at + first
        front, back, size, at = _bounds(patch, at)
        if not may_hold(patch, size) or (
            most is not None and front + size + back > most
        ):  # checked before allocating memory
            raise CorruptionError(f"A stored patch declares {size} bytes, which is too many.")
        how, middle = patch[at], patch[at + 1 :]
        if how == _ZSTD:
            middle = _decompress(middle, old[front : len(old) - back], size)
    except (IndexError, zstandard.ZstdError) as exc:
        raise CorruptionError("A stored patch is damaged.") from exc
    if len(middle) != size or len(head) != first or first > front or front + back > len(old):
        raise CorruptionError("A stored patch does not fit its base.")
    return b"".join((head, old[first:front], middle, old[len(old) - back :]))


def _bounds(patch: bytes, at: int) -> tuple[int, int, int, int]:
    front, at = read_varint(patch, at)
    back, at = read_varint(patch, at)
    size, at = read_varint(patch, at)
    return front, back, size, at


def _head(old: bytes, new: bytes) -> int:
    most = min(_HEAD, len(old), len(new))
    if old[:most] == new[:most]:
        return 0
    return 1 + max(i for i in range(most) if old[i] != new[i])


def _shared(low: int, high: int, is_same: Callable[[int, int], bool]) -> int:
    """Find the length of the common part by bisection."""
    while low < high:
        middle = (low + high + 1) // 2
        if is_same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _tail(data: bytes, start: int, stop: int) -> bytes:
    return data[len(data) - stop : len(data) - start]


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict | None:
    if len(base) < _SHORTEST_DICTIONARY:
        return None
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _compress(data: bytes, base: bytes) -> bytes:
    window = max(10, min(27, (len(data) + len(base)).bit_length() + 1))
    # The level's own table is too small for a large base.
    table = {"hash_log": min(24, len(base).bit_length() - 2)} if len(base) > _LARGE_BASE else {}
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, window_log=window, write_content_size=False, write_checksum=False, **table
    )
    dictionary = _dictionary(base)
    return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(
        data
    )


def _decompress(data: bytes, base: bytes, size: int) -> bytes:
    if zstandard.frame_content_size(data) not in (-1, size):  # (it would override `size`)
        raise zstandard.ZstdError("it declares another size")
    context = zstandard.ZstdDecompressor(dict_data=_dictionary(base), max_window_size=1 << 28)
    return context.decompress(data, max_output_size=size)
