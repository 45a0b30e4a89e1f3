"""What of a list, tuple or dict is still stored: the difference to its last version.

Pure functions over what was last seen of the value (`Seen`). The result is a list of
pieces in the new value's order: ranges kept from the old one and ranges that are new.
Invariant: a range is kept only if each of its elements is the same value as before, by
identity and an unchanged shadow, or by exact comparison of a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from threadkeep.engine import identity
from threadkeep.engine.exact import same
from threadkeep.engine.shadow import Shadow, Still, still


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

    def is_now(self, value: list[Any] | tuple[Any, ...] | dict[Any, Any], *others: Shadow) -> bool:
        """Whether this is what the value is, and `others` hold, at this instant.

        Parts that cannot be watched are passed over.
        """
        shadow = self.shadow.extended(*others) if others else self.shadow
        return shadow.holds_in(value, self.keys, self._items, self.size)

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
    version's. `still` are copies of those from number `start` on that are not known to be the
    last version's own objects, unchanged; what is before and behind them is.
    """

    keys: list[Any] | None
    items: list[Any]
    pieces: list[Piece]
    still: Still
    start: int = 0
    first: int = 0

    @property
    def size(self) -> int:
        """How many elements there are."""
        return self.first + len(self.items)


_CONSTANT = {str, int, bool, float, bytes, type(None)}


def watched(keys: list[Any] | None, items: list[Any]) -> list[Any]:
    """What a sequence's shadow is to be taken of: a dict's keys too, where one may change."""
    if keys is None or set(map(type, keys)) <= _CONSTANT:
        return items
    return list(zip(keys, items, strict=True))


def compare(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any], old: Seen | None, *, trust: bool = False
) -> Now:
    """Look at a value, at once as it may go on changing, beside its last version.

    With `trust`, the last version's elements are taken to be unchanged: the caller asks their
    shadow afterwards.
    """
    if old is not None and old.keys is None and type(value) is list:
        new = old.behind(value)
        if new is not None and (old.shadow.holds() if not trust else not old.shadow.is_opaque):
            kept = [Piece(0, 0, old.size)] if old.size else []
            added = [Piece(None, old.size, old.size + len(new))] if new else []
            return Now(None, new, kept + added, still(new), old.size, old.size)
    keys, items = _copied(value)
    if old is None or (old.keys is None) != (keys is None) or is_fragment(old, items):
        return whole(keys, items)
    changed = old.shadow.opaque if trust else old.shadow.changed()
    return _Beside(old, keys, items, changed).cut()


def whole(keys: list[Any] | None, items: list[Any]) -> Now:
    """A sequence of which nothing is stored."""
    return Now(keys, items, [Piece(None, 0, len(items))], _still(keys, items))


def _still(keys: list[Any] | None, items: list[Any]) -> Still:
    elements = watched(keys, items)
    found = still(elements)
    return found if elements is items else found._replace(copies=[v for _, v in found.copies])


def _copied(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any],
) -> tuple[list[Any] | None, list[Any]]:
    if type(value) is dict:
        value = value.copy()
        return list(value), list(value.values())
    return None, list(value)


def is_fragment(old: Seen, items: list[Any]) -> bool:
    """Return True if these are a few elements of their own beside a long list, as a write is."""
    if not items or 4 * len(items) >= old.size:
        return False
    return items[0] is not old.item(0) and items[-1] is not old.item(old.size - 1)


def shadows(now: Now, old: Seen | None, found: Mapping[int, Shadow]) -> tuple[Shadow, list[Shadow]]:
    """The shadow of a sequence, each element's as it is stored.

    And those of the last version's elements that others, equal to them, have replaced: what
    is stored is right as long as these hold too.

    Args:
        now: the sequence beside its last version.
        old: that one.
        found: shadows of elements, by number, that are stored elsewhere already.
    """
    stop = now.start + len(now.still.copies)
    if old is None or now.first:
        middle = _joined(now, found, stop)
        return (old.shadow.extended(middle) if old else middle), []
    parts, others = dict(found), []
    for piece in now.pieces:
        start, end = max(piece.start, now.start), min(piece.stop, stop)
        if piece.old is None or start >= end:
            continue
        shift = piece.old - piece.start
        same = [i for i in range(start, end) if old.item(i + shift) is now.items[i]]
        parts |= {i: old.shadow.part(i + shift, i + shift + 1) for i in same}
        if len(same) < end - start:
            others.append(old.shadow.part(start + shift, end + shift))
    before = old.shadow.part(0, now.start)
    behind = old.shadow.part(old.size - (now.size - stop), old.size)
    return before.extended(_joined(now, parts, stop), behind), others


def _joined(now: Now, parts: Mapping[int, Shadow], stop: int) -> Shadow:
    """The shadow of the elements that were copied, some of which are stored with another one."""
    taken = now.still.shadow
    if not parts:
        return taken
    numbers = [(i, i - now.start) for i in range(now.start, stop)]
    return Shadow.joined([parts.get(i) or taken.part(n, n + 1) for i, n in numbers])


class _Beside:
    """A sequence beside its last version, of which the elements `changed` have changed."""

    def __init__(
        self, old: Seen, keys: list[Any] | None, items: list[Any], changed: AbstractSet[int]
    ) -> None:
        self.old, self.keys, self.items, self.changed = old, keys, items, changed
        self.start = self._same_front()
        self.behind = self._same_back()
        stop = len(items) - self.behind
        middle = None if keys is None else keys[self.start : stop]
        self.still = _still(middle, items[self.start : stop])

    def cut(self) -> Now:
        """Cut the sequence into pieces that are kept and pieces that are new."""
        back, size = len(self.items) - self.behind, len(self.items)
        pieces = [Piece(0, 0, self.start)] if self.start else []
        pieces += _pieces(self._found(), self.start)
        if self.behind:
            pieces.append(Piece(self.old.size - self.behind, back, size))
        return Now(self.keys, self.items, pieces, self.still, self.start)

    def _same_front(self) -> int:
        """How many elements both start with, by identity."""
        at = self.old.same_front(self.items)
        if self.keys is not None and self.old.keys is not None:
            at = min(at, identity.same_front(self.old.keys, self.keys))
        return min(at, min(self.changed, default=at))

    def _same_back(self) -> int:
        """How many elements both end with, by identity."""
        most = min(self.old.size, len(self.items)) - self.start
        most = min(most, self.old.size - 1 - max(self.changed, default=-1))
        if most <= 0:
            return 0
        at = identity.same_front(self.old.items[: -most - 1 : -1], self.items[: -most - 1 : -1])
        if self.keys is not None and self.old.keys is not None:
            keys = self.old.keys[: -most - 1 : -1], self.keys[: -most - 1 : -1]
            at = min(at, identity.same_front(*keys))
        return at

    def _found(self) -> list[int | None]:
        """Of each element in the middle, its number in the last version, if it is there."""
        stop, old_stop = len(self.items) - self.behind, self.old.size - self.behind
        front = 0
        while self.start + front < min(stop, old_stop) and self._is(
            self.start + front, self.start + front
        ):
            front += 1
        back = 0
        most = min(stop, old_stop) - self.start - front
        while back < most and self._is(old_stop - 1 - back, stop - 1 - back):
            back += 1
        found: list[int | None] = [*range(self.start, self.start + front)]
        found += self._anywhere(self.start + front, old_stop - back, stop - back)
        return [*found, *range(old_stop - back, old_stop)]

    def _anywhere(self, start: int, old_stop: int, stop: int) -> list[int | None]:
        """The same of elements that may have moved."""
        if start == old_stop:  # nothing left to find
            return [None] * (stop - start)
        names: Sequence[Any] = self.old.items if self.old.keys is None else self.old.keys
        where = {_name(names[i], self.old): i for i in range(start, old_stop)}
        found: list[int | None] = []
        for j in range(start, stop):
            name = _name(self.items[j] if self.keys is None else self.keys[j], self.old)
            i = where.pop(name, None)
            if i is None and self.keys is None and j < old_stop:
                i = j  # other objects, as after an edit of a list that is built anew each time
            found.append(i if i is not None and self._is(i, j) else None)
        return found

    def _is(self, i: int, j: int) -> bool:
        """Whether element `j` is what element `i` of the last version was."""
        if i in self.changed:
            return False
        if self.keys is not None and self.old.keys is not None:
            a, b = self.old.keys[i], self.keys[j]
            if a is not b and not same(a, b):
                return False
        kept = self.old.item(i)
        return kept is self.items[j] or same(kept, self.still.copies[j - self.start])


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
