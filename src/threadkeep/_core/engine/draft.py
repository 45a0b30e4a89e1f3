"""Draft: one batch on its way into the store: its values as references, and its new elements.

Invariants:

- The stored value is the value at one instant during the call, though the program may keep changing
  it. New elements are encoded from copies. Before anything is appended, all shadows and the
  sequence itself are checked together. If the check fails, the value is tried again, and in the end
  copied as a whole.
- A batch carries each position that it was given, and the segments that it borrows from other
  batches until those are committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.codec import Codec
from threadkeep._core.codec.frame import Compression, full_size, pack, unpack
from threadkeep._core.codec.introspection import layout
from threadkeep._core.engine import elements, refs
from threadkeep._core.engine.differences import (
    Comparison,
    SeenSequence,
    compare,
    new_of,
    shadows,
    watch,
)
from threadkeep._core.engine.logs import FULL_BYTES, FULL_COUNT, OpenLog, Tail
from threadkeep._core.engine.model import Segment, Span
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.refs import Cell, Inline, Ref, Run
from threadkeep._core.engine.shadow import (
    KINDS,
    ONE_LEAF,
    STATES,
    Shadow,
    WatchedCopies,
    copy_and_watch,
    is_leaf,
    is_state,
)
from threadkeep._core.engine.snapshots import (
    NO_RAWS,
    CellValue,
    ChannelValue,
    RawElement,
    RunValue,
    StoredObject,
    StoredValue,
    cell_value,
)
from threadkeep._core.engine.thread_memory import ThreadMemory
from threadkeep._core.engine.tips import BatchSegments, Proof
from threadkeep._core.langgraph_internals import START
from threadkeep.errors import ThreadkeepError, UnserializableError

_PASSING = "passing"  # the log of values that will change before a channel holds them
INLINE_MAX = 64  # bytes of the largest value kept in the manifest itself
INLINE_USING = 512  # the same for a value that refers to elements: a graph's input
SEGMENT_BYTES = 256 * 1024  # new elements are cut into segments of about this size
_SHARE_MOST = 64  # elements of one value that are remembered one by one
_FEW = 4  # elements of a list that is not long
_LARGE = 256 * 1024  # bytes of a list that is remembered as a whole
_SPANS_FREE = 32  # spans that a value may have without being rewritten
_TRIES = 3  # attempts at a changing value before it is copied as a whole

Stored: TypeAlias = tuple[Ref, ChannelValue]
_KINDS: dict[type, int] = {list: refs.LIST, tuple: refs.TUPLE, dict: refs.DICT}
_SCALARS = frozenset({str, int, float, bool, type(None)})
_Run: TypeAlias = tuple[int, int, list[bytes], int]  # log, start, elements, bytes


_Places: TypeAlias = list[Any]
"""Of each new element a `StoredObject`, or None as long as it has no place."""


@quick
class _New(NamedTuple):
    """The new elements of a sequence, and their indexes in `now.items`."""

    channel: str
    now: Comparison
    items: list[Any]
    numbers: Sequence[int]


@quick
class _Encoded(NamedTuple):
    """New elements of a sequence, encoded from copies."""

    copies: list[Any]
    data: list[bytes]
    shadow: Shadow
    at: Sequence[int]  # their indexes in the shadow
    raws: Mapping[int, bytes]  # the bytes of opaque ones, by index in the sequence


_NOTHING = _Encoded([], [], ONE_LEAF, (), NO_RAWS)


class _MovedError(Exception):
    """A value changed while it was read."""


class Draft:
    """One batch of a thread's namespace, of pending writes if `writes`."""

    __slots__ = (
        *("memory", "codec", "ns", "compression", "writes", "home", "fresh", "stored"),
        *("borrowed", "dropped", "tails", "_size", "_publishes", "_placed", "_known"),
        *("_runs", "_borrowed", "_sealed", "_seals"),
    )

    def __init__(
        self,
        memory: ThreadMemory,
        codec: Codec,
        ns: str,
        compression: Compression,
        *,
        writes: bool = False,
    ) -> None:
        self.memory = memory
        self.codec = codec
        self.ns = ns
        self.compression = compression
        self.writes = writes
        self.home = BatchSegments()
        self.fresh = 0  # bytes that the values do not share with the previous ones
        self.stored = 0  # bytes by which the committed segments grow (or shrink)
        self._size = 0  # bytes of the elements
        self._publishes = False  # the value is a copy
        self._placed: list[StoredObject] = []
        self._known: list[tuple[str, StoredValue]] = []
        self._runs: list[_Run] = []
        self.tails: Sequence[Segment] = ()  # the batch's own segments
        self.borrowed: tuple[tuple[BatchSegments, Segment], ...] = ()  # see `Link`
        # Most batches have none of these.
        self.dropped: tuple[tuple[int, int, int], ...] = ()  # log, start, count
        self._borrowed: dict[tuple[int, int], tuple[BatchSegments, Segment]] | None = None
        self._sealed: tuple[Segment, ...] = ()
        self._seals: tuple[tuple[OpenLog, Tail, Tail], ...] = ()

    # -- values ------------------------------------------------------------------------

    def value(self, channel: str, value: Any, old: ChannelValue | None = None) -> Stored:
        """Store a channel's value, as it is at one instant, given its last seen value."""
        try:
            if type(value) in _SCALARS:
                data = self.codec.encode(value)
                size = len(data)
                if size <= INLINE_MAX:
                    self.fresh += size
                    return Inline(data), CellValue(value, ONE_LEAF, data, (), None, size)
            return self._value(channel, value, old, trust=True)
        except (ThreadkeepError, _MovedError) as exc:
            if isinstance(exc, _MovedError) or _was_changed(exc):
                return self._again(channel, value, old)
            exc.at(channel=channel)
            raise

    def _again(self, channel: str, value: Any, old: ChannelValue | None) -> Stored:
        """Store a value that changes meanwhile, in the end as a copy of the whole."""
        try:
            for _ in range(_TRIES - 1):
                try:
                    return self._value(channel, value, old, trust=False)
                except _MovedError:
                    continue
                except UnserializableError as exc:
                    if not _was_changed(exc):
                        raise
            self._publishes = True
            return self._value(channel, copy_and_watch([value]).copies[0], None, trust=False)
        except ThreadkeepError as exc:
            exc.at(channel=channel)
            raise
        finally:
            self._publishes = False

    def _value(self, channel: str, value: Any, old: ChannelValue | None, *, trust: bool) -> Stored:
        """Store a value. With `trust`, objects that were seen count as unchanged until the end."""
        known = self.memory.recent.values.get((channel, id(value)))
        if known is not None and known.holds(value):
            for span in known.ref.needs:
                self.borrow(known.home, span)
            return known.ref, known.held
        before, kind = self._size, _KINDS.get(type(value))
        if channel == START and isinstance(value, dict):
            ref, held = self._input(channel, value)
        elif kind is None or (kind == refs.DICT and not self.codec.divides(value)):
            cell = old if isinstance(old, CellValue) else None
            ref, held = self._single(channel, value, cell)
        elif type(old) is RunValue and old.kind == kind:
            if self.writes and kind == refs.LIST and _is_apart(old.seen, value):
                old = None
            return self._sequence(channel, kind, value, old, trust=trust)
        elif (small := self._small(value)) is not None:
            ref, held = small
        else:
            return self._sequence(channel, kind, value, None, trust=trust)
        # A single value is held whole, even if little of it had to be stored.
        size = held.weight if isinstance(held, CellValue) else self._size - before
        self.fresh += size
        self._known.append((channel, StoredValue(value, ref, held, self.home, size)))
        return ref, held

    def _moved(self) -> None:
        """Try again, unless the value is a copy, which shares keys and members of sets."""
        if not self._publishes:
            raise _MovedError

    def publish(self, proof: Proof) -> None:
        """Remember the places of values. Called when the segments are packed."""
        if self._placed or self._known:
            self.memory.remember(self._placed, self._known, self._size, proof)

    # -- lists, tuples and dicts -------------------------------------------------------

    def _sequence(
        self,
        channel: str,
        kind: int,
        value: Any,
        old: RunValue | None,
        *,
        trust: bool,
        afresh: bool = False,
    ) -> Stored:
        """Store the new elements of a value, or with `afresh` all elements."""
        seen = None if old is None else old.seen
        now = compare(value, seen, trust)
        numbers: Sequence[int] = range(len(now.items))
        pieces, items = now.pieces, now.items
        if pieces is not None:
            numbers = new_of(pieces)
            items = [items[i] for i in numbers]
        new = _New(channel, now, items, numbers)
        places, rest, is_known = self._find(new, trust, afresh)
        made = self._encoded(new, rest) if rest else _NOTHING
        after, others = _watched(new, seen, places, len(rest), made.shadow)
        keys, items, shadow, size = after
        if others:
            shadow = shadow.extended(*others)
        if not shadow.holds_in(value, keys, items, size):
            self._moved()
            after = SeenSequence(keys, after.items, Shadow.of_unwatched(size), size)
        before = self._size
        if rest:
            is_known = self._put(new, rest, places, made, old) and is_known
        spans, weight = _spans_of(now, places, old)
        if old is not None and len(places) < size:
            weight += old.weight * (size - len(places)) // old.seen.size
        run, held = Run(kind, spans), RunValue(kind, spans, after, weight, made.raws)
        grown = self._size - before
        self.fresh += grown
        if not is_known or grown > _LARGE:  # (too large to be remembered one by one)
            if (
                not is_known
                and rest
                and old is not None
                and len(places) <= min(size - 1, _SHARE_MOST)
            ):
                self._know_part(kind, new, rest, places)
            self._known.append((channel, StoredValue(value, run, held, self.home, grown)))
        if len(spans) > _SPANS_FREE and old is not None and 3 * len(spans) ** 2 > weight:
            # The spans take as much space as the value: each costs about 6 bytes in every following
            # manifest, so n changes that each split one more span cost n * n * 3 bytes.
            self.memory.logs.start(self.ns, channel)
            return self._sequence(channel, kind, value, None, trust=trust, afresh=True)
        return run, held

    def _find(
        self,
        new: _New,
        trust: bool,  # noqa: FBT001 - as for `_sequence`
        afresh: bool,  # noqa: FBT001 - likewise
    ) -> tuple[_Places, Sequence[int], bool]:
        """Find elements that were stored a moment ago, for example as a write.

        Returns their places, the indexes of the rest, and True if all found are objects that are
        found again by their identity.
        """
        _, now, items, _ = new
        recent, count = self.memory.recent, len(items)
        if afresh or now.keys is not None:
            places: _Places = [None] * count
        else:  # (each record keeps its object, so that no other one has the same `id`)
            places = [*map(recent.objects.get, map(id, items))]
            if not trust:
                places = [one if one and one.shadow.holds() else None for one in places]
        unknown = places.count(None)
        rest: Sequence[int] = range(count)
        if unknown < count:
            rest = [k for k in rest if places[k] is None] if unknown else ()
        if unknown and recent.parts and not afresh:
            rest = self._find_parts(new, rest, places)
        if len(rest) < count:
            for place in places:
                if place is not None and not place.home.committed:
                    self.borrow(place.home, place.span)
        return places, rest, now.pieces is None and len(rest) == unknown

    def _find_parts(self, new: _New, rest: Sequence[int], places: _Places) -> Sequence[int]:
        """Find elements of a list or dict that is stored already, and return the rest."""
        parts, at = self.memory.recent.parts, 0
        channel, _, items, _ = new
        left: list[int] = []
        while at < len(rest):
            count, found = 0, parts.get((channel, id(items[rest[at]])))
            if found is None:
                left.append(rest[at])
                at += 1
                continue
            known, offset = found
            held = known.held
            if type(held) is RunValue and held.seen.shadow.holds():
                count = _in_common(new, rest[at:], held.seen, offset)
                each = held.weight // held.seen.size
                for n, k in enumerate(rest[at : at + count], offset):
                    (span,) = refs.cut(held.spans, n, n + 1)
                    shadow = held.seen.shadow.part(n, n + 1)
                    places[k] = StoredObject(items[k], shadow, span, each, known.home)
            if not count:
                left.append(rest[at])
            at += count or 1
        return rest if len(left) == len(rest) else left

    def _encoded(self, new: _New, rest: Sequence[int]) -> _Encoded:
        """Encode elements from copies."""
        _, (keys, _, first, _, watched, start, _), items, numbers = new
        own = None if keys is None else [keys[numbers[k]] for k in rest]
        encode, at = self.codec.encode, rest
        if watched is not None:
            every, shadow, _ = watched
            at = [numbers[k] - start for k in rest]
            copies = [every[n] for n in at]
        else:
            if len(rest) < len(items):
                at, items = range(len(rest)), [items[k] for k in rest]
            copies, shadow, _ = copy_and_watch(items) if own is None else watch(own, items)
        if own is None:
            data = [*map(encode, copies)]
        else:
            data = [encode([key, copy]) for key, copy in zip(own, copies, strict=True)]
        raws: Mapping[int, bytes] = NO_RAWS
        if shadow.is_opaque:
            hidden, each = shadow.opaque, zip(rest, at, data, strict=True)
            raws = {first + numbers[k]: raw for k, n, raw in each if n in hidden}
        return _Encoded(copies, data, shadow, at, raws)

    def _put(
        self,
        new: _New,
        rest: Sequence[int],
        places: _Places,
        made: _Encoded,
        old: RunValue | None,
    ) -> bool:
        """Append elements to the channel's log, and remember objects by identity.

        Returns True if all of them are remembered.
        """
        copies, data, shadow, at, raws = made
        channel, now, items, _ = new
        home = self.home
        if self.writes and any(map(_passing, copies)):
            channel = self._aside(channel, [items[k] for k in rest])
        if raws or (self.memory.recent.reserved and not self.writes):
            spans = self._put_apart(new, rest, made, old)
        else:
            log, start = self.append(channel, data)
            spans = [Span(log, n, n + 1) for n in range(start, start + len(data))]
        if len(places) > _SHARE_MOST:
            for k, span, raw in zip(rest, spans, data, strict=True):
                places[k] = StoredObject(items[k], shadow, span, len(raw), home)
            return False
        is_known, is_list = True, now.keys is None
        for k, n, span, raw in zip(rest, at, spans, data):  # noqa: B905 - costs as much as the loop
            item, part = items[k], shadow.part(n, n + 1)
            place = places[k] = StoredObject(item, part, span, len(raw), home)
            if is_list and KINDS[type(item)] in STATES and not part.is_opaque:
                self._placed.append(place)
            else:
                is_known = False
        return is_known

    def _put_apart(
        self, new: _New, rest: Sequence[int], made: _Encoded, old: RunValue | None
    ) -> list[Span]:
        """Put elements at their reserved positions, opaque ones only if they have changed."""
        data, spans = made.data, list[Any]([None] * len(rest))
        if made.raws and old is not None:
            for n, k in enumerate(rest):
                i = new.numbers[k]
                if i in old.raws and old.raws[i] == made.raws.get(i):
                    (spans[n],) = refs.cut(old.spans, i, i + 1)
        if not self.writes:
            each = zip(spans, rest, data, strict=True)
            spans = [span or self._fill_reserved(new.items[k], raw) for span, k, raw in each]
        todo = [n for n, span in enumerate(spans) if span is None]
        if todo:
            log, start = self.append(new.channel, [data[n] for n in todo])
            for at, n in enumerate(todo, start):
                spans[n] = Span(log, at, at + 1)
        return spans

    def _know_part(self, kind: int, new: _New, rest: Sequence[int], found: _Places) -> None:
        """Remember these elements for the write that brought them, if it comes later."""
        places, all_keys = [found[k] for k in rest], new.now.keys
        spans = refs.merged([place.span for place in places])
        items = [place.value for place in places]
        keys = None if all_keys is None else [all_keys[new.numbers[k]] for k in rest]
        weight = sum([place.size for place in places])
        shadow = Shadow.joined([place.shadow for place in places])
        held = RunValue(kind, spans, SeenSequence(keys, items, shadow, len(items)), weight)
        part = StoredValue(items, Run(kind, spans), held, self.home, weight)
        self._known.append((new.channel, part))

    def _aside(self, channel: str, items: list[Any]) -> str:
        """Return the log for objects that LangGraph will still give an id.

        With an id they are other values. The channel's log reserves a position for each, to stay in
        order.
        """
        for item in items:
            self.memory.recent.reserve(self.ns, channel, item)
        return f"{channel} {_PASSING}"

    def _fill_reserved(self, item: Any, data: bytes) -> Span | None:
        place = self.memory.recent.take_reserved(item) if is_state(item) else None
        if place is None:
            return None
        log, pos = place
        self._runs.append((log, pos, [data], len(data)))
        self._size += len(data)
        return Span(log, pos, pos + 1)

    # -- single values -----------------------------------------------------------------

    def _small(self, value: Any) -> Stored | None:
        """Store a value inline, if it is small and holds nothing that is stored elsewhere."""
        if len(value) > INLINE_MAX // 2:
            return None
        (copy,), shadow, _ = copy_and_watch([value])
        if any(map(is_state, copy.values() if type(copy) is dict else copy)):
            return None
        data = self.codec.encode(copy)
        if len(data) > INLINE_MAX:
            return None
        return Inline(data), cell_value(value, shadow, data)

    def _input(self, channel: str, value: dict[Any, Any]) -> Stored:
        """Store a graph's input: a dict of channel updates.

        Each object in it will occur again, as a pending write and in its channel, and is stored
        once, where its channel will look for it.
        """
        new = [
            (name, item)
            for name, part in value.copy().items()
            for item in (part.copy() if type(part) is list else (part,))
            if isinstance(name, str) and is_state(item)
            if not _passing(item) and self._placed_at(item) is None
        ]
        del new[_SHARE_MOST:]
        copies, shadow, originals = copy_and_watch([*[item for _, item in new], value])
        for number, (name, item) in enumerate(new):
            own = shadow.part(number, number + 1)
            if not own.is_opaque:
                data = self.codec.encode(copies[number])
                span = self._fill_reserved(item, data)
                if span is None:
                    log, pos = self.append(name, [data])
                    span = Span(log, pos, pos + 1)
                self._placed.append(StoredObject(item, own, span, len(data), self.home))
        if new:
            shadow = shadow.part(len(new), len(new) + 1)
        return self._single(channel, value, None, WatchedCopies(copies[-1:], shadow, originals))

    def _single(
        self, channel: str, value: Any, old: CellValue | None, taken: WatchedCopies | None = None
    ) -> Stored:
        """Store a value as one element, or inline. `taken` are copies made of it already."""
        copies, shadow, originals = taken or copy_and_watch([value])
        uses: list[StoredObject] = []

        def intern(part: object) -> tuple[int, int] | None:
            # (a copy, whose source is in `originals`)
            placed = self._placed_at(originals.get(id(part)))
            if placed is None:
                return None
            uses.append(placed)
            return placed.span.log, placed.span.start

        data = self.codec.encode(copies[0], intern if originals else None)
        if uses and not Shadow.joined([shadow, *[use.shadow for use in uses]]).holds_now():
            self._moved()
            shadow = Shadow.of_unwatched(1)
        for use in uses:
            self.borrow(use.home, use.span)
        needs = refs.covering([use.span for use in uses])
        if old is not None and old.raw is not None and data == old.data:
            held = old._replace(value=value, shadow=shadow)
            return Cell(old.raw.log, old.raw.pos, old.uses), held
        if len(data) <= (INLINE_USING if needs else INLINE_MAX):
            return Inline(data, needs), cell_value(value, shadow, data, needs)
        element, depth, bases, anchor = elements.patch_against(old.raw if old else None, data)
        log, pos = self.append(channel, [element])
        needs = refs.covering((*bases, *needs))
        raw = RawElement(data, log, pos, depth, needs, anchor)
        return Cell(log, pos, needs), cell_value(value, shadow, data, needs, raw)

    def _placed_at(self, part: object) -> StoredObject | None:
        if part is None:
            return None
        own = (p for p in self._placed if p.value is part and p.shadow.holds())
        return self.memory.recent.place(part) or next(own, None)

    # -- segments ----------------------------------------------------------------------

    def append(self, channel: str, data: list[bytes]) -> tuple[int, int]:
        """Add elements to the channel's log, taking over the list. Return log and position."""
        log, start = self.memory.logs.reserve(self.ns, channel, len(data))
        size = sum(map(len, data))
        self._runs.append((log, start, data, size))
        self._size += size
        return log, start

    def borrow(self, home: BatchSegments, span: Span) -> None:
        """Refer to elements of another batch, carrying their segments until it is committed."""
        if home.committed or home is self.home:
            return
        if self._borrowed is None:
            self._borrowed = {}
        for segment in home.holding(span):
            self._borrowed[segment.log, segment.start] = (home, segment)

    def segments(self) -> tuple[Segment, ...]:
        """Pack all segments that the batch must add. Called once, at the end."""
        runs, borrowed = self._runs, self._borrowed
        if not runs and borrowed is None:
            return self._sealed
        if len(runs) > 1:
            runs = _joined(runs)
        own: list[Segment] = []
        for log, start, data, size in runs:
            if len(data) == 1 or size < SEGMENT_BYTES:
                own.append(self._pack(log, start, data))
            else:
                own += self._cut(log, start, data)
        self.tails = own
        if borrowed is None:
            self.home.segments = tuple(own)
        else:
            self.borrowed = tuple(borrowed.values())
            self.home.segments = (*[segment for _, segment in self.borrowed], *own)
        return (*self._sealed, *self.home.segments)

    def _cut(self, log: int, start: int, data: list[bytes]) -> list[Segment]:
        found, part, size = [], list[bytes](), 0
        for element in data:
            part.append(element)
            size += len(element)
            if size >= SEGMENT_BYTES:
                found.append(self._pack(log, start, part))
                start, part, size = start + len(part), [], 0
        if part:
            found.append(self._pack(log, start, part))
        return found

    def _pack(self, log: int, start: int, data: list[bytes]) -> Segment:
        segment = Segment(log, start, len(data), pack(data, self.compression))
        self.stored += len(segment.data)
        return segment

    def seal(self) -> None:
        """Join the small segments of ripe logs."""
        for log, tail in self.memory.logs.begin_seals():
            if self._borrowed and any((log.log, start) in self._borrowed for start in tail):
                # Stored meanwhile, perhaps by another process: the store compares the two.
                self.memory.logs.end_seal(log, {}, {})
                continue
            grows: Tail = {}
            runs: list[list[int]] = []  # starts of segments that follow one another
            stop = -1
            for start in sorted(tail):
                if start == stop:
                    runs[-1].append(start)
                else:
                    runs.append([start])
                stop = tail[start].stop
            for run in runs:
                joined = tail[run[0]] if len(run) == 1 else self._join(log.log, run, tail)
                full = joined.count >= FULL_COUNT or full_size(joined.data) >= FULL_BYTES
                grows = {} if full else {run[0]: joined}
            self._seals += ((log, tail, grows),)

    def _join(self, log: int, run: list[int], tail: Tail) -> Segment:
        parts = [tail[start] for start in run]
        elements = [element for part in parts for element in unpack(part.data, part.count)]
        segment = Segment(log, run[0], len(elements), pack(elements, self.compression))
        self._sealed += (segment,)
        self.dropped += tuple([part[:3] for part in parts])
        self.stored += len(segment.data) - sum([len(part.data) for part in parts])
        return segment

    def committed(self) -> None:
        """Mark the batch as committed."""
        self.home.mark_stored()
        for log, tail, grows in self._seals:
            self.memory.logs.end_seal(log, tail, grows)

    def failed(self) -> None:
        """Allow others to seal the logs of this batch."""
        for log, _, _ in self._seals:
            self.memory.logs.end_seal(log, {}, {})


def _watched(
    new: _New, seen: SeenSequence | None, places: _Places, unknown: int, shadow: Shadow
) -> tuple[SeenSequence, list[Shadow]]:
    """Return the record of a sequence. `shadow` covers the `unknown` elements without a place.

    Also returns the shadows of the last version's elements that were replaced by equal ones.
    """
    _, now, _, numbers = new
    keys, items, first, pieces, *_ = now
    if pieces is not None and seen is not None:
        found = {i: one.shadow for i, one in zip(numbers, places, strict=True) if one is not None}
        whole, others = shadows(now, pieces, seen, found)
        return SeenSequence(keys, items, whole, len(items)), others
    if not unknown:
        shadow = Shadow.joined([one.shadow for one in places])
    elif unknown < len(places):
        fresh = (shadow.part(n, n + 1) for n in range(unknown))
        shadow = Shadow.joined([one.shadow if one else next(fresh) for one in places])
    if first and seen is not None:
        return seen.followed(items, shadow), []
    return SeenSequence(keys, items, shadow, len(items)), []


def _spans_of(
    now: Comparison, places: _Places, old: RunValue | None
) -> tuple[tuple[Span, ...], int]:
    """Return the spans of all elements, in order, and the bytes of the new ones."""
    own, weight = [], 0
    for _, _, span, size, _ in places:
        own.append(span)
        weight += size
    if now.pieces is None or old is None:
        before = old.spans if old is not None and now.first else ()
        return (refs.joined(before, own) if before or len(own) != 1 else tuple(own)), weight
    spans: list[Span] = []
    at = 0
    for kept, start, stop in now.pieces:
        count = stop - start
        if kept is None:
            spans += own[at : at + count]
            at += count
        else:
            spans += refs.cut(old.spans, kept, kept + count)
    return refs.merged(spans), weight


def _in_common(new: _New, rest: Sequence[int], seen: SeenSequence, offset: int) -> int:
    """Count the elements that are those seen from `offset` on."""
    keys, count = new.now.keys, 0
    if (keys is None) != (seen.keys is None):
        return 0
    for k, n in zip(rest, range(offset, seen.size), strict=False):
        if new.items[k] is not seen.every[n]:
            break
        if keys is not None and seen.keys is not None:
            key, known = keys[new.numbers[k]], seen.keys[n]
            if key is not known and not (
                type(key) is type(known) and is_leaf(key) and bool(key == known)
            ):
                break
        count += 1
    return count


def _is_apart(old: SeenSequence, value: list[Any]) -> bool:
    """Return True for a few new objects of their own, not the last version in another form."""
    items = value[: _FEW + 1]
    if not 0 < len(items) <= min(_FEW, old.size - 1):  # (`compare` notices other fragments)
        return False
    if 4 * len(items) < old.size:  # as `compare`
        return items[0] is not old.every[0] and items[-1] is not old.every[old.size - 1]
    return all(map(is_state, items)) and {*map(id, items)}.isdisjoint(map(id, old.items))


def _was_changed(exc: ThreadkeepError) -> bool:
    """Return True if a value was refused because parts that are not copied changed meanwhile."""
    cause = exc.__cause__ if isinstance(exc, UnserializableError) else None
    return isinstance(cause, RuntimeError) and not isinstance(cause, RecursionError)


def _passing(value: Any) -> bool:
    """Return True for an object that LangGraph is about to give an id, as it does to messages."""
    cls: type = type(value)
    if KINDS[cls] not in STATES or not layout(cls).has_dict:
        return False
    fields = object.__getattribute__(value, "__dict__")
    return fields.get("id", value) is None


def _joined(
    runs: list[tuple[int, int, list[bytes], int]],
) -> list[tuple[int, int, list[bytes], int]]:
    joined: list[tuple[int, int, list[bytes], int]] = []
    for log, start, data, size in sorted(runs, key=lambda run: run[:2]):
        last = joined[-1] if joined else None
        if last is not None and (last[0], last[1] + len(last[2])) == (log, start):
            last[2].extend(data)
            joined[-1] = (*last[:3], last[3] + size)
        else:
            joined.append((log, start, data, size))
    return joined
