"""Turning values into references: what a batch must store, and what is stored already.

A draft is made for one call. It encodes what is new into log elements and reuses what
the working set knows to be stored: the unchanged part of a value's last version, and
values that another call has just stored (a message is written by its task first, and
then met again in its channel).

Invariant: a shadow is taken before its value is encoded, so that a change made in
between is noticed when the value is met again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from threadkeep.codec import Codec
from threadkeep.engine import elements, refs
from threadkeep.engine.appender import Appender
from threadkeep.engine.model import Span
from threadkeep.engine.refs import Cell, Inline, Ref, Run
from threadkeep.engine.sequence import Piece, Seen, diff
from threadkeep.engine.shadow import Shadow, is_state
from threadkeep.engine.working_set import (
    NO_KEY,
    Held,
    HeldCell,
    HeldRun,
    Known,
    Placed,
    Raw,
    ThreadMemory,
)
from threadkeep.errors import ThreadkeepError

INLINE_MAX = 64  # bytes up to which a value is kept in the manifest itself
INLINE_USING = 512  # the same for a value that refers to elements: it is a graph's input
_SHARE_OVER = 24  # bytes from which an element is worth finding again by identity
_SHARE_MOST = 64  # elements of one value that are remembered one by one
_SPANS_FREE = 32  # spans that a value may have before a rewrite is thought of

_KINDS = {list: refs.LIST, tuple: refs.TUPLE, dict: refs.DICT}


@dataclass(slots=True)
class _Element:
    """One element on its way into a log: where it is, or the bytes to put there."""

    index: int
    item: Any
    key: Any
    span: Span | None = None
    data: bytes = b""
    shadow: Shadow | None = None


@dataclass(slots=True)
class Draft:
    """The values of one call on their way into the store."""

    memory: ThreadMemory
    codec: Codec
    appender: Appender
    encodings: int = 0  # values encoded so far: work that tests count
    _placed: list[Placed] = field(default_factory=list)
    _known: list[tuple[str, Known]] = field(default_factory=list)

    def value(self, channel: str, value: Any, old: Held | None = None) -> tuple[Ref, Held]:
        """Store a channel's value beside what was last seen of it.

        Raises:
            UnserializableError: names the channel.
        """
        known = self.memory.known(channel, value)
        if known is not None:
            for span in known.ref.needs:
                self.appender.borrow(known.home, span)
            return known.ref, known.held
        try:
            ref, held = self._encode(channel, value, old)
        except ThreadkeepError as exc:
            exc.at(channel=channel)
            raise
        self._known.append((channel, Known(value, ref, held, self.appender.home)))
        return ref, held

    def settle(self) -> None:
        """Remember where values were put. Called when the segments are packed."""
        self.memory.place(self._placed, self._known)

    def _encode(self, channel: str, value: Any, old: Held | None) -> tuple[Ref, Held]:
        kind = _KINDS.get(type(value))
        if kind is None:
            return self._single(channel, value, old if isinstance(old, HeldCell) else None)
        run = old if isinstance(old, HeldRun) and old.kind == kind else None
        small = self._small(value) if run is None else None
        # Copied at once: the caller may go on changing the container.
        return small or self._run(channel, kind, value if kind == refs.TUPLE else value.copy(), run)

    # -- lists, tuples, dicts --------------------------------------------------------

    def _small(self, value: Any) -> tuple[Ref, Held] | None:
        """The value inline, if it is small and holds nothing that is stored elsewhere."""
        if len(value) > INLINE_MAX // 2:
            return None
        if any(map(is_state, list(value.values() if type(value) is dict else value))):
            return None
        shadow = Shadow.of([value])
        data = self._bytes(value)
        if len(data) > INLINE_MAX:
            return None
        return Inline(data), HeldCell(value, shadow, data, (), None)

    def _run(
        self, channel: str, kind: int, value: Any, old: HeldRun | None, *, afresh: bool = False
    ) -> tuple[Ref, Held]:
        keys = list(value) if kind == refs.DICT else None
        items = list(value.values()) if kind == refs.DICT else list(value)
        pieces = [Piece(None, 0, len(items))] if old is None else diff(old.seen, keys, items)
        if old is not None and _only_grows(old, pieces):
            shadow = old.seen.shadow.extended(Shadow.of(items[old.seen.shadow.size :]))
        else:
            shadow = Shadow.of(items)
        fresh = [
            _Element(i, items[i], NO_KEY if keys is None else keys[i])
            for piece in pieces
            if piece.old is None
            for i in range(piece.start, piece.stop)
        ]
        raws = self._place(channel, fresh, shadow.opaque, old, afresh=afresh)
        weight = sum([len(e.data) for e in fresh]) + (old.weight if old is not None else 0)
        run = Run(kind, refs.merged(_spans(pieces, fresh, old)))
        if old is not None and _too_scattered(run.spans, weight):
            self.memory.start_log(self.appender.ns, channel)
            return self._run(channel, kind, value, None, afresh=True)
        return run, HeldRun(kind, run.spans, Seen(keys, items, shadow), weight, raws)

    def _place(
        self,
        channel: str,
        fresh: list[_Element],
        opaque: frozenset[int],
        old: HeldRun | None,
        *,
        afresh: bool = False,
    ) -> dict[int, bytes]:
        """Find or make a place for each element; the bytes of those that cannot be watched."""
        raws: dict[int, bytes] = {}
        for element in fresh:
            placed = None if afresh else self.memory.placed(element.item, element.key)
            if placed is not None:
                self.appender.borrow(placed.home, placed.raw.span)
                element.span, element.data = placed.raw.span, placed.raw.data
                continue
            if len(fresh) <= _SHARE_MOST:
                element.shadow = Shadow.of([element.item])
            keyed = element.key is not NO_KEY
            element.data = self._bytes([element.key, element.item] if keyed else element.item)
            if element.index in opaque:
                raws[element.index] = element.data
                element.span = _still_there(old, element)
        self._append(channel, [e for e in fresh if e.span is None])
        return raws

    def _append(self, channel: str, fresh: list[_Element]) -> None:
        """Append the elements to the channel's log, and remember them by identity."""
        if not fresh:
            return
        log, start = self.appender.append(channel, [e.data for e in fresh])
        for n, e in enumerate(fresh):
            raw = Raw(e.data, log, start + n)
            e.span = raw.span
            if e.shadow is not None and len(e.data) >= _SHARE_OVER:
                self._placed.append(Placed(e.item, e.key, e.shadow, raw, self.appender.home))

    def update(self, value: dict[Any, Any]) -> None:
        """Put the objects inside a graph's input where its channels will look for them.

        The input is a dict of channel updates: each human message in it will be met
        again, as a pending write and in its channel, and is to be stored once.
        """
        for channel, part in value.copy().items():
            items = list(part) if type(part) is list else [part]
            new = [x for x in items if is_state(x) and self.memory.placed(x, NO_KEY) is None]
            if isinstance(channel, str) and len(new) <= _SHARE_MOST:
                fresh = [_Element(i, x, NO_KEY) for i, x in enumerate(new)]
                self._place(channel, fresh, frozenset(), None)

    # -- single values ---------------------------------------------------------------

    def _single(self, channel: str, value: Any, old: HeldCell | None) -> tuple[Ref, Held]:
        shadow = Shadow.of([value])
        uses: list[Span] = []
        data = self._bytes(value, uses)
        needs = refs.covering(uses)
        if old is not None and old.raw is not None and data == old.data:
            return Cell(old.raw.log, old.raw.pos, old.uses), old
        if len(data) <= (INLINE_USING if needs else INLINE_MAX):
            return Inline(data, needs), HeldCell(value, shadow, data, needs, None)
        element, depth, bases, anchor = elements.against(old.raw if old else None, data)
        log, pos = self.appender.append(channel, [element])
        needs = refs.covering((*bases, *needs))
        raw = Raw(data, log, pos, depth, needs, anchor)
        return Cell(log, pos, needs), HeldCell(value, shadow, data, needs, raw)

    def _bytes(self, value: Any, uses: list[Span] | None = None) -> bytes:
        """Encode a value. With `uses`, objects stored already are referred to, and noted there."""
        self.encodings += 1
        if uses is None:
            return self.codec.encode(value)

        def intern(part: object) -> tuple[int, int] | None:
            placed = self.memory.placed(part, NO_KEY) or self._own(part)
            if placed is None:
                return None
            self.appender.borrow(placed.home, placed.raw.span)
            uses.append(placed.raw.span)
            return placed.raw.log, placed.raw.pos

        return self.codec.encode(value, intern)

    def _own(self, part: object) -> Placed | None:
        """A value that this very draft has placed."""
        return next((p for p in self._placed if p.value is part), None)


def _only_grows(old: HeldRun, pieces: list[Piece]) -> bool:
    """Whether the old elements are all there, in front of new ones."""
    if not pieces or pieces[0] != (0, 0, len(old.seen.items)):
        return not old.seen.items
    return all(piece.old is None for piece in pieces[1:]) and not old.seen.shadow.opaque


def _spans(pieces: list[Piece], fresh: list[_Element], old: HeldRun | None) -> list[Span]:
    """Where the pieces lie, in order."""
    spans: list[Span] = []
    rest = iter(fresh)
    for piece in pieces:
        count = piece.stop - piece.start
        if piece.old is not None and old is not None:
            whole = piece.old == 0 and count == len(old.seen.items)
            spans += old.spans if whole else refs.cut(old.spans, piece.old, piece.old + count)
        else:
            spans += [e.span for e in islice(rest, count) if e.span is not None]
    return spans


def _still_there(old: HeldRun | None, element: _Element) -> Span | None:
    """The place of an element that cannot be watched, if its bytes are what they were."""
    if old is None or old.raws.get(element.index) != element.data:
        return None
    return refs.cut(old.spans, element.index, element.index + 1)[0]


def _too_scattered(spans: tuple[Span, ...], weight: int) -> bool:
    """Whether writing the value afresh costs less than carrying on with its spans.

    Each span costs about 6 bytes in every manifest that follows. After n changes that
    split one more span each, n * n * 3 bytes went into spans: rewrite when that is what
    the value itself takes, which keeps both within a constant of the best.
    """
    return len(spans) > _SPANS_FREE and 3 * len(spans) ** 2 > weight
