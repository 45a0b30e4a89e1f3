"""Turning values into references: what a batch must store, and what is stored already.

A draft is made for one call. It encodes what is new into log elements and reuses what
the working set knows to be stored. Each value is looked for in this order:

1. the very value, as another call has just stored it (`Recent.known`);
2. the ranges of its last version that are unchanged (`sequence.compare`); and then each
   element that is new beside that:
3. the very object, stored on its own a moment ago (`Recent.placed`): a message is written
   by its task first, and then met again in its channel;
4. the same element of a list or dict that was stored a moment ago (`Recent.known_part`);
5. what is left is encoded, and put where a position was kept for it (`Recent.kept_for`),
   or behind the last element of the channel's log.

Step 1 is `value`, 2 to 5 are `_run` (a single value knows only 1, and patches); what they
find is verified by its shadow, and carried along where its own batch may not be there.

The program may go on changing a value meanwhile. Invariant: what is stored of it is the
value at one instant during the call. New elements are encoded from copies, made at the
instant of their shadows; before anything is appended, all shadows and the sequence itself
are checked together, at one instant again. Where that fails the value is looked at anew,
and at last is copied as a whole.
"""

from __future__ import annotations

from typing import Any

from threadkeep.codec import Codec
from threadkeep.codec.introspection import layout
from threadkeep.engine import elements, refs
from threadkeep.engine.appender import Appender
from threadkeep.engine.capture import is_state
from threadkeep.engine.model import Span
from threadkeep.engine.pieces import (
    NO_KEY,
    SPANS_FREE,
    Element,
    in_common,
    new_elements,
    seen_of,
    spans_of,
    still_there,
    too_scattered,
)
from threadkeep.engine.refs import Cell, Inline, Ref, Run
from threadkeep.engine.sequence import Now, Seen, compare, is_fragment, shadows, whole
from threadkeep.engine.shadow import ONE_LEAF, Shadow, Still, still
from threadkeep.engine.snapshots import (
    Held,
    HeldCell,
    HeldRun,
    Known,
    Placed,
    Raw,
    cell,
)
from threadkeep.engine.working_set import ThreadMemory
from threadkeep.errors import ThreadkeepError, UnserializableError
from threadkeep.langgraph_internals import START

_PASSING = "passing"  # the log of values that no channel will hold as they are
INLINE_MAX = 64  # bytes up to which a value is kept in the manifest itself
INLINE_USING = 512  # the same for a value that refers to elements: it is a graph's input
_SHARE_MOST = 64  # elements of one value that are remembered one by one
_FEW = 4  # elements of a list that is not long
_LARGE = 256 * 1024  # bytes from which a list is remembered as such
_TRIES = 3  # times a value that changes is looked at before it is copied as a whole

_KINDS: dict[type, int] = {list: refs.LIST, tuple: refs.TUPLE, dict: refs.DICT}
_SCALARS = frozenset({str, int, float, bool, type(None)})


class _MovedError(Exception):
    """A value was changed while it was looked at."""


class Draft:
    """The values of one call on their way into the store.

    Args:
        memory: what is remembered of the thread.
        codec: encodes values.
        appender: collects elements.
        writes: the values are pending writes.
    """

    __slots__ = ("_known", "_placed", "_settles", "appender", "codec", "fresh", "memory", "writes")

    def __init__(
        self, memory: ThreadMemory, codec: Codec, appender: Appender, *, writes: bool = False
    ) -> None:
        self.memory = memory
        self.codec = codec
        self.appender = appender
        self.writes = writes
        self.fresh = 0  # bytes of what the values do not share with those before them
        self._settles = False  # the value is a copy, and stored as it is
        self._placed: list[Placed] = []
        self._known: list[tuple[str, Known]] = []

    def value(self, channel: str, value: Any, old: Held | None = None) -> tuple[Ref, Held]:
        """Store a channel's value, as it is at one instant, beside what was last seen of it.

        Raises:
            UnserializableError: names the channel.
        """
        try:
            # The values that most calls bring, looked at in one go.
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

    # -- the usual cases ---------------------------------------------------------------

    def _scalar(self, value: Any) -> tuple[Ref, Held] | None:
        """A scalar that is small enough to be stored inline."""
        data = self.codec.encode(value)
        if len(data) > INLINE_MAX:
            return None
        self.fresh += len(data)
        return Inline(data), HeldCell(value, ONE_LEAF, data, (), None, len(data))

    def _grown(self, channel: str, value: list[Any], old: Held | None) -> tuple[Ref, Held] | None:
        """A list whose new elements, behind its last version's, were stored a moment ago."""
        recent = self.memory.recent
        if type(old) is not HeldRun or old.kind != refs.LIST or not self.codec.divides(value):
            return None
        before = old.seen
        new = before.behind(value)
        if not new or recent.is_known(channel, value):
            return None
        placed = recent.all_placed(new)
        if placed is None:
            return None
        seen = before.followed(new, before.shadow.extended(*[found.shadow for found in placed]))
        return self._behind(value, seen, old.spans, placed, old.weight)

    def _behind(
        self,
        value: list[Any],
        seen: Seen,
        before: tuple[Span, ...],
        placed: list[Placed],
        weight: int,
    ) -> tuple[Ref, Held] | None:
        """A list of what is stored in spans, and of objects behind that; None if it has changed."""
        spans = refs.merged((*before, *[found.span for found in placed]))
        if seen.shadow.is_opaque or len(spans) > SPANS_FREE or not seen.is_now(value):
            return None
        for found in placed:
            self.appender.borrow(found.home, found.span)
            weight += found.size
        return Run(refs.LIST, spans), HeldRun(refs.LIST, spans, seen, weight)

    def _written(self, channel: str, value: list[Any], old: Held | None) -> tuple[Ref, Held] | None:
        """A short list of objects, as a task writes it for a channel that collects them."""
        recent, items = self.memory.recent, value.copy()
        if not 0 < len(items) <= _SHARE_MOST or not all(map(is_state, items)):
            return None
        if type(old) is HeldRun and not _is_apart(old.seen, items):
            return None
        if recent.is_known(channel, value) or not self.codec.divides(value):
            return None
        placed = recent.all_placed(items)
        if placed is not None:
            shadow = Shadow.joined([found.shadow for found in placed])
            return self._behind(value, Seen(None, items, shadow), (), placed, 0)
        return None if recent.has_any(items) else self._new(channel, value, items)

    def _new(self, channel: str, value: list[Any], items: list[Any]) -> tuple[Ref, Held] | None:
        """A list of objects none of which is stored; None if it changes meanwhile."""
        copies, shadow, _ = still(items)
        try:
            elements = [self.codec.encode(copy) for copy in copies]
        except UnserializableError as exc:
            if not _was_changed(exc):
                raise
            return None
        seen = Seen(None, items, shadow)
        if shadow.is_opaque or not seen.is_now(value):
            return None
        own_log = self._aside(channel, items) if any(map(_passing, copies)) else channel
        log, start = self.appender.append(own_log, elements)
        home, weight = self.appender.home, 0
        for number, item in enumerate(items):
            size, at = len(elements[number]), start + number
            own = shadow if len(items) == 1 else shadow.part(number, number + 1)
            self._placed.append(Placed(item, own, Span(log, at, at + 1), size, home))
            weight += size
        self.fresh += weight
        spans = (Span(log, start, start + len(items)),)
        run, held = Run(refs.LIST, spans), HeldRun(refs.LIST, spans, seen, weight)
        if weight > _LARGE:  # (more than is remembered one by one)
            self._known.append((channel, Known(value, run, held, home, weight)))
        return run, held

    # -- all cases ---------------------------------------------------------------------

    def _any(self, channel: str, value: Any, old: Held | None) -> tuple[Ref, Held]:
        """Store a value of any kind."""
        try:
            for attempt in range(_TRIES):
                try:
                    return self._value(channel, value, old, trust=attempt == 0)
                except _MovedError:
                    continue
                except UnserializableError as exc:
                    if not _was_changed(exc):
                        raise
            self._settles = True
            return self._value(channel, still([value]).copies[0], None)
        finally:
            self._settles = False

    def _value(
        self, channel: str, value: Any, old: Held | None, *, trust: bool = False
    ) -> tuple[Ref, Held]:
        known = self.memory.recent.known(channel, value)
        if known is not None:
            for span in known.ref.needs:
                self.appender.borrow(known.home, span)
            return known.ref, known.held
        before = self.appender.size
        ref, held = self._encode(channel, value, old, trust=trust)
        # A single value is held whole, however little of it had to be stored.
        size = held.weight if isinstance(held, HeldCell) else self.appender.size - before
        self.fresh += size
        self._known.append((channel, Known(value, ref, held, self.appender.home, size)))
        return ref, held

    def _moved(self) -> None:
        """Look at the value again, unless this is a copy: keys and members of sets are shared."""
        if not self._settles:
            raise _MovedError

    def settle(self, generation: int | None) -> None:
        """Remember where values were put. Called when the segments are packed."""
        self.memory.remember(self._placed, self._known, generation)

    def _encode(
        self, channel: str, value: Any, old: Held | None, *, trust: bool
    ) -> tuple[Ref, Held]:
        if channel == START and isinstance(value, dict):
            return self._input(channel, value)
        kind = _KINDS.get(type(value))
        if kind is None or not self.codec.divides(value):
            return self._single(channel, value, old if isinstance(old, HeldCell) else None)
        run = old if isinstance(old, HeldRun) and old.kind == kind else None
        small = self._small(value) if run is None else None
        if small is not None:
            return small
        now = compare(value, run.seen if run else None, trust=trust)
        return self._run(channel, kind, value, now, run)

    # -- lists, tuples, dicts --------------------------------------------------------

    def _small(self, value: Any) -> tuple[Ref, Held] | None:
        """The value inline, if it is small and holds nothing that is stored elsewhere."""
        if len(value) > INLINE_MAX // 2:
            return None
        (copy,), shadow, _ = still([value])
        if any(map(is_state, copy.values() if type(copy) is dict else copy)):
            return None
        data = self._bytes(copy)
        if len(data) > INLINE_MAX:
            return None
        return Inline(data), cell(value, shadow, data)

    def _run(
        self,
        channel: str,
        kind: int,
        value: Any,
        now: Now,
        old: HeldRun | None,
        *,
        afresh: bool = False,
    ) -> tuple[Ref, Held]:
        fresh = new_elements(now)
        if not afresh:
            self._find_placed(fresh)
        raws = self._find_or_encode(channel, fresh, now, old, afresh=afresh)
        found = {e.index: e.shadow for e in fresh if e.shadow is not None and not e.data}
        shadow, others = shadows(now, old.seen if old else None, found)
        seen = seen_of(now, old, shadow)
        if not seen.is_now(value, *others):
            self._moved()
            seen = Seen(seen.keys, seen.items, Shadow.of_unwatched(seen.size))
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
        return run, HeldRun(kind, run.spans, seen, weight, raws)

    def _know_part(self, channel: str, kind: int, fresh: list[Element]) -> None:
        """Let the write that brought these elements find them, if it comes later."""
        new = [e for e in fresh if e.data and e.shadow is not None]
        if not new:
            return
        if kind != refs.DICT and len(new) == 1 and is_state(new[0].item):
            return  # a single object is found by itself
        spans = refs.merged([e.span for e in new if e.span is not None])
        items = [e.item for e in new]
        keys = [e.key for e in new] if kind == refs.DICT else None
        weight = sum([e.size for e in new])
        shadow = Shadow.joined([e.shadow for e in new if e.shadow is not None])
        held = HeldRun(kind, spans, Seen(keys, items, shadow), weight)
        part = Known(items, Run(kind, spans), held, self.appender.home, weight)
        self._known.append((channel, part))

    def _find_or_encode(
        self,
        channel: str,
        fresh: list[Element],
        now: Now,
        old: HeldRun | None,
        *,
        afresh: bool = False,
    ) -> dict[int, bytes]:
        """Find each element, or encode it; the bytes of those that cannot be watched."""
        opaque = now.still.shadow.opaque
        raws: dict[int, bytes] = {}
        at = 0
        while at < len(fresh):
            e = fresh[at]
            found = 1 if e.span else 0
            if not found and not afresh:
                found = self._found_known(channel, fresh, at)
            if not found:
                self._encode_element(e)
                if e.index - now.start in opaque:
                    raws[e.index] = e.data
                    e.span = still_there(old, e)
            at += found or 1
        if len(fresh) <= _SHARE_MOST:
            for e in fresh:
                if e.data and e.shadow is None:
                    number = e.index - now.start
                    e.shadow = now.still.shadow.part(number, number + 1)
        return raws

    def _find_placed(self, fresh: list[Element]) -> None:
        """Note the places of objects that were stored a moment ago, as a write say."""
        for e in fresh:
            if e.key is NO_KEY and is_state(e.item):
                placed = self.memory.recent.placed(e.item)
                if placed is not None:
                    self.appender.borrow(placed.home, placed.span)
                    e.span, e.size, e.shadow = placed.span, placed.size, placed.shadow

    def _found_known(self, channel: str, fresh: list[Element], at: int) -> int:
        """How many elements from `at` on came with a list or dict that was stored already."""
        known, offset = self.memory.recent.known_part(channel, fresh[at].item) or (None, 0)
        held = known.held if known is not None else None
        if known is None or not isinstance(held, HeldRun) or not held.seen.shadow.holds():
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

    def _encode_element(self, element: Element) -> None:
        keyed = element.key is not NO_KEY
        element.data = self._bytes([element.key, element.still] if keyed else element.still)
        element.size = len(element.data)

    def _append(self, channel: str, fresh: list[Element]) -> None:
        """Append the elements to the channel's log, and remember objects by identity."""
        fresh = [e for e in fresh if e.span is None]
        if not fresh:
            return
        if self.writes and any(_passing(e.still) for e in fresh):
            channel = self._aside(channel, [e.item for e in fresh])
        if not self.writes:
            for e in fresh:
                e.span = self._fill_kept(e.item, e.data)
        rest = [e for e in fresh if e.span is None]
        if rest:
            log, start = self.appender.append(channel, [e.data for e in rest])
            for n, e in enumerate(rest):
                e.span = Span(log, start + n, start + n + 1)
        for e in fresh:
            if e.shadow and e.key is NO_KEY and e.span is not None and is_state(e.item):
                placed = Placed(e.item, e.shadow, e.span, len(e.data), self.appender.home)
                self._placed.append(placed)

    def _aside(self, channel: str, items: list[Any]) -> str:
        """The log for objects that LangGraph will give an id before their channel holds them.

        As pending writes they are other values then: the channel's log keeps a position
        for each, so that its elements stay in order.
        """
        for item in items:
            self.memory.recent.reserve_for(self.appender.ns, channel, item)
        return f"{channel} {_PASSING}"

    def _fill_kept(self, item: Any, data: bytes) -> Span | None:
        """Put an element where a position was kept for it; None if none was."""
        place = self.memory.recent.kept_for(item) if is_state(item) else None
        if place is None:
            return None
        log, pos = place
        self.appender.fill(log, pos, data)
        return Span(log, pos, pos + 1)

    def _input(self, channel: str, value: dict[Any, Any]) -> tuple[Ref, Held]:
        """A graph's input: a dict of channel updates.

        Each object in it will be met again, as a pending write and in its channel, and is to be
        stored once, where its channel will look for it. (A message without an id is given one in
        between: it is another value then.)
        """
        new = [
            (name, item)
            for name, part in value.copy().items()
            for item in (part.copy() if type(part) is list else (part,))
            if isinstance(name, str) and is_state(item)
            if not _passing(item) and self._placed_at(item) is None
        ]
        del new[_SHARE_MOST:]
        copies, shadow, originals = still([*[item for _, item in new], value])
        for number, (name, item) in enumerate(new):
            own = shadow.part(number, number + 1)
            if not own.is_opaque:
                self._share(name, item, copies[number], own)
        if new:
            shadow = shadow.part(len(new), len(new) + 1)
        return self._single(channel, value, None, Still(copies[-1:], shadow, originals))

    def _share(self, channel: str, item: Any, copy: Any, shadow: Shadow) -> None:
        """Store an object where its channel will look for it."""
        data = self.codec.encode(copy)
        span = self._fill_kept(item, data)
        if span is None:
            log, pos = self.appender.append(channel, [data])
            span = Span(log, pos, pos + 1)
        self._placed.append(Placed(item, shadow, span, len(data), self.appender.home))

    # -- single values ---------------------------------------------------------------

    def _single(
        self, channel: str, value: Any, old: HeldCell | None, taken: Still | None = None
    ) -> tuple[Ref, Held]:
        """Store a value as one element, or inline; `taken` is what was copied of it already."""
        copies, shadow, originals = taken or still([value])
        uses: list[Placed] = []
        data = self._bytes(copies[0], originals, uses)
        if uses and not Shadow.joined([shadow, *[use.shadow for use in uses]]).holds_now():
            self._moved()
            shadow = Shadow.of_unwatched(1)
        for use in uses:
            self.appender.borrow(use.home, use.span)
        needs = refs.covering([use.span for use in uses])
        if old is not None and old.raw is not None and data == old.data:
            return Cell(old.raw.log, old.raw.pos, old.uses), old._replace(
                value=value, shadow=shadow
            )
        if len(data) <= (INLINE_USING if needs else INLINE_MAX):
            return Inline(data, needs), cell(value, shadow, data, needs)
        element, depth, bases, anchor = elements.against(old.raw if old else None, data)
        log, pos = self.appender.append(channel, [element])
        needs = refs.covering((*bases, *needs))
        raw = Raw(data, log, pos, depth, needs, anchor)
        return Cell(log, pos, needs), cell(value, shadow, data, needs, raw)

    def _bytes(
        self,
        value: Any,
        originals: dict[int, Any] | None = None,
        uses: list[Placed] | None = None,
    ) -> bytes:
        """Encode a value. With `uses`, objects stored already are referred to, and noted there.

        `originals` tells of the value's instances, which are copies, where they come from.
        """
        if not originals or uses is None:
            return self.codec.encode(value)

        def intern(part: object) -> tuple[int, int] | None:
            placed = self._placed_at(originals.get(id(part)))
            if placed is None:
                return None
            uses.append(placed)
            return placed.span.log, placed.span.start

        return self.codec.encode(value, intern)

    def _placed_at(self, part: object) -> Placed | None:
        """The place of an object that is stored, or that this very draft has placed."""
        if part is None:
            return None
        own = (p for p in self._placed if p.value is part and p.shadow.holds())
        return self.memory.recent.placed(part) or next(own, None)


def _is_apart(old: Seen, items: list[Any]) -> bool:
    """Return True if these are objects of their own, not the last version in another form."""
    if len(items) == 1 < old.size <= _FEW:  # (too few for `is_fragment`)
        return id(items[0]) not in map(id, old.items)
    return is_fragment(old, items)


def _was_changed(exc: UnserializableError) -> bool:
    """Whether a value was refused because parts that are not copied changed meanwhile."""
    cause = exc.__cause__
    return isinstance(cause, RuntimeError) and not isinstance(cause, RecursionError)


def _passing(value: Any) -> bool:
    """Whether this is an object that LangGraph is about to give an id: a message has a field.

    (Not `getattr`: an `id` may be a property, and then it is the program's code.)
    """
    cls: type = type(value)
    if not is_state(value) or not layout(cls).has_dict:
        return False
    fields = object.__getattribute__(value, "__dict__")
    return fields.get("id", value) is None
