"""Draft: turning the values of a call into references, storing only new elements.

Invariant: the stored value is the value at one instant during the call, though the program may keep
changing it. New elements are encoded from copies. Before anything is appended, all shadows and the
sequence itself are checked together. If the check fails, the value is tried again, and in the end
copied as a whole.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from threadkeep._core.codec import Codec
from threadkeep._core.engine import elements, refs
from threadkeep._core.engine.differences import (
    Comparison,
    SeenSequence,
    compare,
    is_fragment,
    shadows,
    whole,
)
from threadkeep._core.engine.logs import (
    NO_KEY,
    SPANS_FREE,
    Appender,
    Element,
    in_common,
    new_elements,
    passing,
    spans_of,
    too_scattered,
    was_changed,
)
from threadkeep._core.engine.model import Span
from threadkeep._core.engine.refs import Cell, Inline, Ref, Run
from threadkeep._core.engine.shadow import ONE_LEAF, Shadow, WatchedCopies, copy_and_watch, is_state
from threadkeep._core.engine.snapshots import (
    CellValue,
    ChannelValue,
    RawElement,
    RunValue,
    StoredObject,
    StoredValue,
    cell_value,
)
from threadkeep._core.engine.tips import Proof
from threadkeep._core.engine.working_set import ThreadMemory
from threadkeep._core.langgraph_internals import START
from threadkeep.errors import ThreadkeepError, UnserializableError

_PASSING = "passing"  # the log of values that will change before a channel holds them
INLINE_MAX = 64  # bytes of the largest value kept in the manifest itself
INLINE_USING = 512  # the same for a value that refers to elements: a graph's input
_SHARE_MOST = 64  # elements of one value that are remembered one by one
_FEW = 4  # elements of a list that is not long
_LARGE = 256 * 1024  # bytes of a list that is remembered as a whole
_TRIES = 3  # attempts at a changing value before it is copied as a whole

Stored: TypeAlias = tuple[Ref, ChannelValue]
_KINDS: dict[type, int] = {list: refs.LIST, tuple: refs.TUPLE, dict: refs.DICT}
_SCALARS = frozenset({str, int, float, bool, type(None)})


class _MovedError(Exception):
    """A value changed while it was read."""


class Draft:
    """The values of one call on their way into the store; `writes`: they are pending writes."""

    __slots__ = ("_known", "_placed", "_settles", "appender", "codec", "fresh", "memory", "writes")

    def __init__(
        self, memory: ThreadMemory, codec: Codec, appender: Appender, *, writes: bool = False
    ) -> None:
        self.memory = memory
        self.codec = codec
        self.appender = appender
        self.writes = writes
        self.fresh = 0  # bytes that the values do not share with the previous ones
        self._settles = False  # the value is a copy
        self._placed: list[StoredObject] = []
        self._known: list[tuple[str, StoredValue]] = []

    def value(self, channel: str, value: Any, old: ChannelValue | None = None) -> Stored:
        """Store a channel's value, as it is at one instant, given its last seen value."""
        try:
            # Shortcuts for the most common values.
            kind = type(value)
            if kind in _SCALARS:
                done = self._scalar(value)
            elif kind is not list:
                done = None
            elif self.writes:
                done = self._written(channel, value, old)
            else:
                done = self._grown(channel, value, old)
            return done or self._any(channel, value, old)
        except ThreadkeepError as exc:
            exc.at(channel=channel)
            raise

    def _scalar(self, value: Any) -> Stored | None:
        data = self.codec.encode(value)
        if len(data) > INLINE_MAX:
            return None
        self.fresh += len(data)
        return Inline(data), CellValue(value, ONE_LEAF, data, (), None, len(data))

    def _grown(self, channel: str, value: list[Any], old: ChannelValue | None) -> Stored | None:
        """Store a list whose elements after the last version's were stored a moment ago."""
        recent = self.memory.recent
        if type(old) is not RunValue or old.kind != refs.LIST or not self.codec.divides(value):
            return None
        before = old.seen
        new = before.behind(value)
        if not new or recent.is_known(channel, value):
            return None
        placed = recent.all_placed(new)
        if placed is None:
            return None
        seen = before.followed(new, before.shadow.extended(*[found.shadow for found in placed]))
        return self._extended(value, seen, old.spans, placed, old.weight)

    def _extended(
        self,
        value: list[Any],
        seen: SeenSequence,
        before: tuple[Span, ...],
        placed: list[StoredObject],
        weight: int,
    ) -> Stored | None:
        """Refer to stored spans and the objects after them; None if the list has changed."""
        spans = refs.merged((*before, *[found.span for found in placed]))
        if seen.shadow.is_opaque or len(spans) > SPANS_FREE or not seen.is_now(value):
            return None
        for found in placed:
            self.appender.borrow(found.home, found.span)
            weight += found.size
        return Run(refs.LIST, spans), RunValue(refs.LIST, spans, seen, weight)

    def _written(self, channel: str, value: list[Any], old: ChannelValue | None) -> Stored | None:
        """Store a short list of objects, as a task writes it for a collecting channel."""
        recent, items = self.memory.recent, value.copy()
        if not 0 < len(items) <= _SHARE_MOST or not all(map(is_state, items)):
            return None
        if type(old) is RunValue and not _is_apart(old.seen, items):
            return None
        if recent.is_known(channel, value) or not self.codec.divides(value):
            return None
        placed = recent.all_placed(items)
        if placed is not None:
            shadow = Shadow.joined([found.shadow for found in placed])
            return self._extended(value, SeenSequence(None, items, shadow), (), placed, 0)
        return None if recent.has_any(items) else self._new(channel, value, items)

    def _new(self, channel: str, value: list[Any], items: list[Any]) -> Stored | None:
        """Store a list of objects that are all new; None if it changes meanwhile."""
        copies, shadow, _ = copy_and_watch(items)
        try:
            elements = [self.codec.encode(copy) for copy in copies]
        except UnserializableError as exc:
            if not was_changed(exc):
                raise
            return None
        seen = SeenSequence(None, items, shadow)
        if shadow.is_opaque or not seen.is_now(value):
            return None
        own_log = self._aside(channel, items) if any(map(passing, copies)) else channel
        log, start = self.appender.append(own_log, elements)
        home, weight = self.appender.home, 0
        for number, item in enumerate(items):
            size, at = len(elements[number]), start + number
            own = shadow if len(items) == 1 else shadow.part(number, number + 1)
            self._placed.append(StoredObject(item, own, Span(log, at, at + 1), size, home))
            weight += size
        self.fresh += weight
        spans = (Span(log, start, start + len(items)),)
        run, held = Run(refs.LIST, spans), RunValue(refs.LIST, spans, seen, weight)
        if weight > _LARGE:  # (too large to be remembered one by one)
            self._known.append((channel, StoredValue(value, run, held, home, weight)))
        return run, held

    def _any(self, channel: str, value: Any, old: ChannelValue | None) -> Stored:
        try:
            for attempt in range(_TRIES):
                try:
                    return self._value(channel, value, old, trust=attempt == 0)
                except _MovedError:
                    continue
                except UnserializableError as exc:
                    if not was_changed(exc):
                        raise
            self._settles = True
            return self._value(channel, copy_and_watch([value]).copies[0], None)
        finally:
            self._settles = False

    def _value(
        self, channel: str, value: Any, old: ChannelValue | None, *, trust: bool = False
    ) -> Stored:
        known = self.memory.recent.known(channel, value)
        if known is not None:
            for span in known.ref.needs:
                self.appender.borrow(known.home, span)
            return known.ref, known.held
        before, kind = self.appender.size, _KINDS.get(type(value))
        if channel == START and isinstance(value, dict):
            ref, held = self._input(channel, value)
        elif kind is None or not self.codec.divides(value):
            cell = old if isinstance(old, CellValue) else None
            ref, held = self._single(channel, value, cell)
        elif isinstance(old, RunValue) and old.kind == kind:
            now = compare(value, old.seen, trust=trust)
            ref, held = self._run(channel, kind, value, now, old)
        else:
            small = self._small(value)
            ref, held = small or self._run(channel, kind, value, compare(value, None), None)
        # A single value is held whole, even if little of it had to be stored.
        size = held.weight if isinstance(held, CellValue) else self.appender.size - before
        self.fresh += size
        self._known.append((channel, StoredValue(value, ref, held, self.appender.home, size)))
        return ref, held

    def _moved(self) -> None:
        """Try again, unless the value is a copy, which shares keys and members of sets."""
        if not self._settles:
            raise _MovedError

    def settle(self, proof: Proof) -> None:
        """Remember where values were put. Called when the segments are packed."""
        self.memory.remember(self._placed, self._known, proof)

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

    def _run(
        self,
        channel: str,
        kind: int,
        value: Any,
        now: Comparison,
        old: RunValue | None,
        *,
        afresh: bool = False,
    ) -> Stored:
        fresh = new_elements(now)
        for e in [] if afresh else fresh:  # objects just stored, for example as a write
            placed = self.memory.recent.placed(e.item) if e.key is NO_KEY else None
            if placed is not None and is_state(e.item):
                self.appender.borrow(placed.home, placed.span)
                e.span, e.size, e.shadow = placed.span, placed.size, placed.shadow
        raws = self._find_or_encode(channel, fresh, now, old, afresh=afresh)
        found = {e.index: e.shadow for e in fresh if e.shadow is not None and not e.data}
        shadow, others = shadows(now, old.seen if old else None, found)
        if old is not None and now.first:
            seen = old.seen.followed(now.items, shadow)
        else:
            seen = SeenSequence(now.keys, now.items, shadow)
        if not seen.is_now(value, *others):
            self._moved()
            seen = SeenSequence(seen.keys, seen.items, Shadow.of_unwatched(seen.size))
        self._append(channel, fresh)
        weight = sum([e.size for e in fresh])
        if old is not None and old.seen.size:
            weight += old.weight * (now.size - len(fresh)) // old.seen.size
        run = Run(kind, refs.merged(spans_of(now.pieces, fresh, old)))
        if old is not None and len(fresh) < now.size:
            self._know_part(channel, kind, fresh)
        if old is not None and too_scattered(run.spans, weight):
            self.memory.logs.start(self.appender.ns, channel)
            again = whole(seen.keys, seen.items)
            return self._run(channel, kind, value, again, None, afresh=True)
        return run, RunValue(kind, run.spans, seen, weight, raws)

    def _know_part(self, channel: str, kind: int, fresh: list[Element]) -> None:
        """Remember these elements for the write that brought them, if it comes later."""
        new = [e for e in fresh if e.data and e.shadow is not None]
        if not new:
            return
        if kind != refs.DICT and len(new) == 1 and is_state(new[0].item):
            return  # a single object is found by its identity
        spans = refs.merged([e.span for e in new if e.span is not None])
        items = [e.item for e in new]
        keys = [e.key for e in new] if kind == refs.DICT else None
        weight = sum([e.size for e in new])
        shadow = Shadow.joined([e.shadow for e in new if e.shadow is not None])
        held = RunValue(kind, spans, SeenSequence(keys, items, shadow), weight)
        part = StoredValue(items, Run(kind, spans), held, self.appender.home, weight)
        self._known.append((channel, part))

    def _find_or_encode(
        self,
        channel: str,
        fresh: list[Element],
        now: Comparison,
        old: RunValue | None,
        *,
        afresh: bool = False,
    ) -> dict[int, bytes]:
        """Find or encode each element; return the bytes of those that cannot be watched."""
        opaque = now.watched.shadow.opaque
        raws: dict[int, bytes] = {}
        at = 0
        while at < len(fresh):
            e = fresh[at]
            found = 1 if e.span else 0
            if not found and not afresh:
                found = self._found_known(channel, fresh, at)
            if not found:
                e.data = self.codec.encode(e.copy if e.key is NO_KEY else [e.key, e.copy])
                e.size = len(e.data)
                if e.index - now.start in opaque:
                    raws[e.index] = e.data
                    if old is not None and old.raws.get(e.index) == e.data:
                        e.span = refs.cut(old.spans, e.index, e.index + 1)[0]
            at += found or 1
        if len(fresh) <= _SHARE_MOST:
            for e in fresh:
                if e.data and e.shadow is None:
                    number = e.index - now.start
                    e.shadow = now.watched.shadow.part(number, number + 1)
        return raws

    def _found_known(self, channel: str, fresh: list[Element], at: int) -> int:
        """Count the elements from `at` on that came with a list or dict already stored."""
        known, offset = self.memory.recent.known_part(channel, fresh[at].item) or (None, 0)
        held = known.held if known is not None else None
        if known is None or not isinstance(held, RunValue) or not held.seen.shadow.holds():
            return 0
        count = in_common(held.seen, offset, fresh, at)
        if not count:
            return 0
        for span in refs.cut(held.spans, offset, offset + count):
            self.appender.borrow(known.home, span)
            for pos in range(span.start, span.stop):
                fresh[at].span = Span(span.log, pos, pos + 1)
                fresh[at].size = held.weight // held.seen.size
                fresh[at].shadow = held.seen.shadow.part(offset, offset + 1)
                at, offset = at + 1, offset + 1
        return count

    def _append(self, channel: str, fresh: list[Element]) -> None:
        """Append the elements to the channel's log, and remember objects by identity."""
        fresh = [e for e in fresh if e.span is None]
        if not fresh:
            return
        if self.writes and any(passing(e.copy) for e in fresh):
            channel = self._aside(channel, [e.item for e in fresh])
        if not self.writes:
            for e in fresh:
                e.span = self._fill_reserved(e.item, e.data)
        rest = [e for e in fresh if e.span is None]
        if rest:
            log, start = self.appender.append(channel, [e.data for e in rest])
            for n, e in enumerate(rest):
                e.span = Span(log, start + n, start + n + 1)
        for e in fresh:
            if e.shadow and e.key is NO_KEY and e.span is not None and is_state(e.item):
                placed = StoredObject(e.item, e.shadow, e.span, len(e.data), self.appender.home)
                self._placed.append(placed)

    def _aside(self, channel: str, items: list[Any]) -> str:
        """Return the log for objects that LangGraph will still give an id.

        With an id they are other values. The channel's log reserves a position for each, to stay in
        order.
        """
        for item in items:
            self.memory.recent.reserve(self.appender.ns, channel, item)
        return f"{channel} {_PASSING}"

    def _fill_reserved(self, item: Any, data: bytes) -> Span | None:
        place = self.memory.recent.take_reserved(item) if is_state(item) else None
        if place is None:
            return None
        log, pos = place
        self.appender.fill(log, pos, data)
        return Span(log, pos, pos + 1)

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
            if not passing(item) and self._placed_at(item) is None
        ]
        del new[_SHARE_MOST:]
        copies, shadow, originals = copy_and_watch([*[item for _, item in new], value])
        for number, (name, item) in enumerate(new):
            own = shadow.part(number, number + 1)
            if not own.is_opaque:
                data = self.codec.encode(copies[number])
                span = self._fill_reserved(item, data)
                if span is None:
                    log, pos = self.appender.append(name, [data])
                    span = Span(log, pos, pos + 1)
                self._placed.append(StoredObject(item, own, span, len(data), self.appender.home))
        if new:
            shadow = shadow.part(len(new), len(new) + 1)
        return self._single(channel, value, None, WatchedCopies(copies[-1:], shadow, originals))

    def _single(
        self, channel: str, value: Any, old: CellValue | None, taken: WatchedCopies | None = None
    ) -> Stored:
        """Store a value as one element, or inline; `taken` are copies made of it already."""
        copies, shadow, originals = taken or copy_and_watch([value])
        uses: list[StoredObject] = []

        def intern(part: object) -> tuple[int, int] | None:
            # (the instance is a copy; `originals` has its source)
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
            self.appender.borrow(use.home, use.span)
        needs = refs.covering([use.span for use in uses])
        if old is not None and old.raw is not None and data == old.data:
            held = old._replace(value=value, shadow=shadow)
            return Cell(old.raw.log, old.raw.pos, old.uses), held
        if len(data) <= (INLINE_USING if needs else INLINE_MAX):
            return Inline(data, needs), cell_value(value, shadow, data, needs)
        element, depth, bases, anchor = elements.patch_against(old.raw if old else None, data)
        log, pos = self.appender.append(channel, [element])
        needs = refs.covering((*bases, *needs))
        raw = RawElement(data, log, pos, depth, needs, anchor)
        return Cell(log, pos, needs), cell_value(value, shadow, data, needs, raw)

    def _placed_at(self, part: object) -> StoredObject | None:
        if part is None:
            return None
        own = (p for p in self._placed if p.value is part and p.shadow.holds())
        return self.memory.recent.placed(part) or next(own, None)


def _is_apart(old: SeenSequence, items: list[Any]) -> bool:
    """Return True for new objects of their own, not the last version in another form."""
    if len(items) == 1 < old.size <= _FEW:  # (too few for `is_fragment`)
        return id(items[0]) not in map(id, old.items)
    return is_fragment(old, items)
