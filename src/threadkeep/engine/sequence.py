"""What of a list, tuple or dict is still stored: the difference to its last version.

Pure functions over what was last seen of the value (`Seen`). The result is a list of
pieces in the new value's order: ranges kept from the old one and ranges that are new.
Invariant: a range is kept only if each of its elements is the same value as before, by
identity and an unchanged shadow, or by exact comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from threadkeep.engine import identity
from threadkeep.engine.exact import same
from threadkeep.engine.shadow import Shadow


class Piece(NamedTuple):
    """The new elements `start <= i < stop`; kept ones begin at `old` of the old version."""

    old: int | None
    start: int
    stop: int


class Seen:
    """A sequence as last seen: `keys` for a dict, `items` (values), and their shadow.

    What it shows never changes. A version that only adds to the one before shares its list,
    which is then longer than the older version is: copying would touch every element.
    """

    __slots__ = ("_items", "keys", "shadow", "size")

    def __init__(self, keys: list[Any] | None, items: list[Any], shadow: Shadow) -> None:
        """Take the lists over: nobody else may change them."""
        self.keys = keys
        self.shadow = shadow
        self.size = len(items)
        self._items = items

    @property
    def items(self) -> list[Any]:
        """The elements, or a dict's values, in a fresh list."""
        return self._items[: self.size]

    def item(self, number: int) -> Any:
        """The element, or a dict's value, of this number, 0 to `size - 1`."""
        return self._items[number]

    def is_all_of(self, items: list[Any]) -> bool:
        """Whether the items are the very elements seen here, and no more."""
        return len(items) == self.size == self.same_front(items)

    def same_front(self, items: list[Any]) -> int:
        """How many of the very elements seen here the items begin with."""
        return min(identity.same_front(self._items, items), self.size)

    def behind(self, value: list[Any]) -> list[Any] | None:
        """What a list has behind the very elements seen here; None if those are not its first."""
        return identity.behind(self._items, self.size, value)

    def followed(self, new: list[Any], shadow: Shadow) -> Seen:
        """This list with new elements behind it. Called by one thread at a time."""
        # Where another version has gone on already, this one is copied.
        items = self._items if len(self._items) == self.size else self.items
        items += new
        return Seen(None, items, shadow)


class Now(NamedTuple):
    """A sequence as it is now, beside its last version.

    `items` are its elements from number `first` on: all, or only what came behind the last
    version's. `grows` tells whether the very objects of that are all there, unchanged, in
    front of new ones.
    """

    keys: list[Any] | None
    items: list[Any]
    pieces: list[Piece]
    first: int = 0
    grows: bool = False


_CONSTANT = {str, int, bool, float, bytes, type(None)}


def watched(keys: list[Any] | None, items: list[Any]) -> list[Any]:
    """What a sequence's shadow is to be taken of: a dict's keys too, where one may change."""
    if keys is None or set(map(type, keys)) <= _CONSTANT:
        return items
    return list(zip(keys, items, strict=True))


def compare(value: list[Any] | tuple[Any, ...] | dict[Any, Any], old: Seen | None) -> Now:
    """Look at a value, at once as it may go on changing, beside its last version."""
    if old is not None and old.keys is None and type(value) is list:
        new = old.behind(value)
        if new is not None and old.shadow.holds():
            kept = [Piece(0, 0, old.size)] if old.size else []
            added = [Piece(None, old.size, old.size + len(new))] if new else []
            return Now(None, new, kept + added, old.size, grows=True)
    keys, items = _copied(value)
    if old is None:
        return whole(keys, items)
    return _beside(old, keys, items)


def whole(keys: list[Any] | None, items: list[Any]) -> Now:
    """A sequence of which nothing is stored."""
    return Now(keys, items, [Piece(None, 0, len(items))])


def _copied(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any],
) -> tuple[list[Any] | None, list[Any]]:
    if type(value) is dict:
        value = value.copy()
        return list(value), list(value.values())
    return None, list(value)


def _beside(old: Seen, keys: list[Any] | None, items: list[Any]) -> Now:
    """Cut the new sequence into pieces that are kept from `old` and pieces that are new."""
    if (old.keys is None) != (keys is None):
        return whole(keys, items)
    if _is_fragment(old, items):
        return whole(keys, items)
    least = min(old.size, len(items))
    front = same = _same_front(old, keys, items)
    while front < least and _same_at(old, front, keys, items, front):
        front += 1
    back = _back(old, keys, items, least - front)
    pieces = [Piece(0, 0, front)] if front else []
    pieces += _middle(old, keys, items, front, back)
    if back:
        pieces.append(Piece(old.size - back, len(items) - back, len(items)))
    if all(piece.old is None for piece in pieces):
        return Now(keys, items, pieces)
    if not old.shadow.holds():
        return Now(keys, items, _without_changed(pieces, old.shadow.changed()))
    # (Equal objects in their place are not under the old shadow's watch.)
    return Now(keys, items, pieces, grows=same == old.size)


def _is_fragment(old: Seen, items: list[Any]) -> bool:
    """Whether these are a few elements of their own beside a long list, as a write is."""
    if not items or 4 * len(items) >= old.size:
        return False
    return items[0] is not old.item(0) and items[-1] is not old.item(old.size - 1)


def _without_changed(pieces: list[Piece], changed: set[int]) -> list[Piece]:
    """Cut what changed in place out of the kept ranges."""
    out: list[Piece] = []
    for piece in pieces:
        if piece.old is None or not changed:
            out.append(piece)
            continue
        places = range(piece.old, piece.old + piece.stop - piece.start)
        out += _pieces([None if i in changed else i for i in places], piece.start)
    return out


def _same_front(old: Seen, keys: list[Any] | None, items: list[Any]) -> int:
    """How many elements both start with, by identity."""
    at = old.same_front(items)
    if keys is not None and old.keys is not None:
        at = min(at, identity.same_front(old.keys, keys))
    return at


def _back(old: Seen, keys: list[Any] | None, items: list[Any], most: int) -> int:
    """How many elements both end with, at most `most`."""
    count = 0
    while count < most and _same_at(old, old.size - 1 - count, keys, items, len(items) - 1 - count):
        count += 1
    return count


def _same_at(old: Seen, i: int, keys: list[Any] | None, items: list[Any], j: int) -> bool:
    if keys is not None and old.keys is not None and not _same_value(old.keys[i], keys[j]):
        return False
    return _same_value(old.item(i), items[j])


def _same_value(a: Any, b: Any) -> bool:
    return a is b or same(a, b)


def _middle(
    old: Seen, keys: list[Any] | None, items: list[Any], front: int, back: int
) -> list[Piece]:
    """The elements in between: those still there in the old middle, and new ones."""
    start, stop = front, len(items) - back
    old_stop = old.size - back
    if front == old_stop:  # nothing left to find
        return [Piece(None, start, stop)] if start < stop else []
    names: Sequence[Any] = old.items if old.keys is None else old.keys
    where = {_name(names[i], old): i for i in range(front, old_stop)}
    found: list[int | None] = []
    for j in range(start, stop):
        i = where.pop(_name(items[j] if keys is None else keys[j], old), None)
        found.append(i if i is not None and _same_at(old, i, keys, items, j) else None)
    return _pieces(found, start)


def _name(value: Any, old: Seen) -> Any:
    """What finds an element again: a dict's key (with its type), a list element's identity."""
    return id(value) if old.keys is None else (type(value), value)


def _pieces(sources: Sequence[int | None], start: int) -> list[Piece]:
    """Pieces of the elements from `start` on, neighbours that go on from each other joined."""
    pieces: list[Piece] = []
    for j, source in enumerate(sources, start):
        last = pieces[-1] if pieces else None
        if last is not None and _goes_on(last, source, j):
            pieces[-1] = last._replace(stop=j + 1)
        else:
            pieces.append(Piece(source, j, j + 1))
    return pieces


def _goes_on(last: Piece, source: int | None, j: int) -> bool:
    if last.old is None or source is None:
        return last.old is source is None
    return last.old + (j - last.start) == source
