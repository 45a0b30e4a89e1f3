"""Elements of a list, tuple or dict on their way into a log, and the spans of its pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from threadkeep.codec.introspection import layout
from threadkeep.engine import refs
from threadkeep.engine.capture import is_leaf, is_state
from threadkeep.engine.differences import Comparison, Piece, Seen
from threadkeep.engine.model import Span
from threadkeep.engine.shadow import Shadow
from threadkeep.engine.snapshots import RunValue
from threadkeep.errors import UnserializableError

NO_KEY: Any = object()
SPANS_FREE = 32  # spans that a value may have before a rewrite is thought of


@dataclass(slots=True)
class Element:
    """One element on its way into a log: its position, or the bytes to put there.

    `copy` is a copy of the item; `shadow` that of the item as it is stored.
    """

    index: int
    item: Any
    copy: Any
    key: Any
    span: Span | None = None
    data: bytes = b""
    size: int = 0
    shadow: Shadow | None = None


def new_elements(now: Comparison) -> list[Element]:
    """Return the elements that are new."""
    return [
        Element(
            i,
            now.items[i - now.first],
            now.watched.copies[i - now.start],
            NO_KEY if now.keys is None else now.keys[i],
        )
        for piece in now.pieces
        if piece.old is None
        for i in range(piece.start, piece.stop)
    ]


def in_common(seen: Seen, offset: int, fresh: list[Element], at: int) -> int:
    """Count the fresh elements from `at` on that are those seen from `offset` on."""
    keys = [NO_KEY] * seen.size if seen.keys is None else seen.keys
    count = 0
    for element, item, key in zip(fresh[at:], seen.items[offset:], keys[offset:], strict=False):
        if element.item is not item or not _same_key(element.key, key):
            break
        count += 1
    return count


def _same_key(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and is_leaf(a) and bool(a == b))


def spans_of(pieces: list[Piece], fresh: list[Element], old: RunValue | None) -> list[Span]:
    """Return the spans of the pieces, in order."""
    spans: list[Span] = []
    rest = iter(fresh)
    for piece in pieces:
        count = piece.stop - piece.start
        if piece.old is not None and old is not None:
            every = piece.old == 0 and count == old.seen.size
            spans += old.spans if every else refs.cut(old.spans, piece.old, piece.old + count)
        else:
            spans += [e.span for e in islice(rest, count) if e.span is not None]
    return spans


def too_scattered(spans: tuple[Span, ...], weight: int) -> bool:
    """Return True if writing the value afresh costs less than carrying on with its spans.

    Each span costs about 6 bytes in every manifest that follows. After n changes that split one
    more span each, n * n * 3 bytes went into spans: rewrite when that is what the value itself
    takes.
    """
    return len(spans) > SPANS_FREE and 3 * len(spans) ** 2 > weight


def was_changed(exc: UnserializableError) -> bool:
    """Return True if a value was refused because parts that are not copied changed meanwhile."""
    cause = exc.__cause__
    return isinstance(cause, RuntimeError) and not isinstance(cause, RecursionError)


def passing(value: Any) -> bool:
    """Return True for an object that LangGraph is about to give an id: a message has a field.

    (Not `getattr`: an `id` may be a property, and then it is the program's code.)
    """
    cls: type = type(value)
    if not is_state(value) or not layout(cls).has_dict:
        return False
    fields = object.__getattribute__(value, "__dict__")
    return fields.get("id", value) is None
