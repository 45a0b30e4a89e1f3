"""Differences between two versions of a list, tuple or dict: ranges that are kept or new.

A range is kept only if each of its elements has the same value as before: by identity and an
unchanged shadow, or by exact comparison of a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, NamedTuple

from threadkeep._core.codec import Codec, NativeCodec
from threadkeep._core.codec.introspection import layout
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.shadow import (
    Shadow,
    WatchedCopies,
    behind,
    copy_and_watch,
    is_state,
    same_front,
)
from threadkeep.errors import UnserializableError


@quick
class Piece(NamedTuple):
    """The new elements `start <= i < stop`. Kept ones begin at `old` in the old version."""

    old: int | None
    start: int
    stop: int


@quick
class SeenSequence(NamedTuple):
    """A sequence as last seen: `keys` of a dict, its elements or values, and their shadow.

    A version that only appends shares the list of the previous version, which is then longer than
    that version: copying would touch every element.
    """

    keys: list[Any] | None
    every: list[Any]  # the first `size` belong to it
    shadow: Shadow
    size: int

    @property
    def items(self) -> list[Any]:
        """The elements, or a dict's values, in a fresh list."""
        return self.every[: self.size]

    def is_now(self, value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> bool:
        """Return True if the value is exactly this at this instant."""
        return self.shadow.holds_in(value, self.keys, self.every, self.size)

    def followed(self, new: list[Any], shadow: Shadow) -> SeenSequence:
        """Return this list with new elements appended. Called by one thread at a time."""
        keys, items, before, size = self
        if len(items) != size:  # another version has extended the list already
            items = items[:size]
        items += new
        return SeenSequence(keys, items, before.extended(shadow), size + len(new))


@quick
class Comparison(NamedTuple):
    """A sequence as it is now, compared with its last version."""

    keys: list[Any] | None
    items: list[Any]  # from number `first` on
    first: int = 0
    pieces: list[Piece] | None = None  # None: all `items` are new
    watched: WatchedCopies | None = None  # of those from number `start` on that may have changed
    start: int = 0
    lost: int = 0  # elements that the last version had before the first `start` ones


_CONSTANT = {str, int, bool, float, bytes, type(None)}


def to_watch(keys: list[Any] | None, items: list[Any]) -> list[Any]:
    """Return the elements to watch, with a dict's keys if a key may change."""
    if keys is None or set(map(type, keys)) <= _CONSTANT:
        return items
    return list(zip(keys, items, strict=True))


def compare(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any],
    old: SeenSequence | None,
    trust: bool = False,  # noqa: FBT001, FBT002 - called for every value
) -> Comparison:
    """Compare a value, which may keep changing, with its last version.

    With `trust`, the elements of the last version count as unchanged: the caller checks their
    shadow.
    """
    if old is not None and old.keys is None and type(value) is list:
        new = behind(old.every, old.size, value)
        if new is not None and (old.shadow.holds() if not trust else not old.shadow.is_opaque):
            return Comparison(None, new, old.size)
        now = _without_front(value, old, trust)
        if now is not None:
            return now
    keys, items = _copied(value)
    if old is None or (old.keys is None) != (keys is None) or _is_fragment(old, items):
        return Comparison(keys, items)
    changed = old.shadow.opaque if trust else old.shadow.changed()
    return _Comparer(old, keys, items, changed).cut()


def _without_front(
    value: list[Any],
    old: SeenSequence,
    trust: bool,  # noqa: FBT001 - as for `compare`
) -> Comparison | None:
    """Compare a list that lost its first elements and may have grown, as in a trimmed history.

    None for any other list.
    """
    every, size = old.every, old.size
    first = next(iter(value), None)
    lost = next((n for n in range(size) if every[n] is first), 0)
    kept = size - lost
    new = behind(every[lost:size], kept, value) if lost else None
    if new is None or not {*map(id, new)}.isdisjoint(map(id, every[:lost])):  # (it was reordered)
        return None
    shadow = old.shadow.part(lost, size)
    if shadow.is_opaque if trust else not shadow.holds():
        return None
    pieces = [Piece(lost, 0, kept)]
    if new:
        pieces.append(Piece(None, kept, kept + len(new)))
    return Comparison(None, [*every[lost:size], *new], 0, pieces, watch(None, new), kept, lost)


def new_of(pieces: Iterable[Piece]) -> list[int]:
    """Return the indexes of the new elements."""
    return [i for piece in pieces if piece.old is None for i in range(piece.start, piece.stop)]


def watch(keys: list[Any] | None, items: list[Any]) -> WatchedCopies:
    """Copy and watch elements, or a dict's items."""
    elements = to_watch(keys, items)
    found = copy_and_watch(elements)
    return found if elements is items else found._replace(copies=[v for _, v in found.copies])


def _copied(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any],
) -> tuple[list[Any] | None, list[Any]]:
    if type(value) is dict:
        value = value.copy()
        return list(value), list(value.values())
    return None, list(value)


def _is_fragment(old: SeenSequence, items: list[Any]) -> bool:
    """Return True for a few elements of their own next to a long list, as in a write."""
    if not items or 4 * len(items) >= old.size:
        return False
    return items[0] is not old.every[0] and items[-1] is not old.every[old.size - 1]


def shadows(
    now: Comparison, pieces: list[Piece], old: SeenSequence, found: Mapping[int, Shadow]
) -> tuple[Shadow, list[Shadow]]:
    """Return the shadow of a sequence as it is stored. `found` are known shadows of elements.

    Also returns the shadows of the last version's elements that were replaced by equal ones: the
    stored bytes are right only as long as these hold too.
    """
    items, start, taken = now.items, now.start, now.watched or watch(None, [])
    stop = start + len(taken.copies)
    parts, others = dict(found), []
    for piece in pieces:
        first, end = max(piece.start, start), min(piece.stop, stop)
        if piece.old is None or first >= end:
            continue
        shift = piece.old - piece.start
        same = [i for i in range(first, end) if old.every[i + shift] is items[i]]
        parts |= {i: old.shadow.part(i + shift, i + shift + 1) for i in same}
        if len(same) < end - first:
            others.append(old.shadow.part(first + shift, end + shift))
    middle = taken.shadow
    if parts:
        numbers = [(i, i - start) for i in range(start, stop)]
        middle = Shadow.joined([parts.get(i) or middle.part(n, n + 1) for i, n in numbers])
    after = old.shadow.part(old.size - (len(items) - stop), old.size)
    return old.shadow.part(now.lost, now.lost + start).extended(middle, after), others


class _Comparer:
    """Compares a sequence with its last version, whose elements `changed` have changed."""

    def __init__(
        self, old: SeenSequence, keys: list[Any] | None, items: list[Any], changed: AbstractSet[int]
    ) -> None:
        self.old, self.keys, self.items, self.changed = old, keys, items, changed
        self.rows = [(old.items, items)]  # and the keys of dicts: in the last version, and now
        if keys is not None and old.keys is not None:
            self.rows.append((old.keys, keys))
        self.start = self._same_front()
        self.behind = self._same_back()
        stop = len(items) - self.behind
        middle = None if keys is None else keys[self.start : stop]
        self.watched = watch(middle, items[self.start : stop])

    def cut(self) -> Comparison:
        back, size = len(self.items) - self.behind, len(self.items)
        pieces = [Piece(0, 0, self.start)] if self.start else []
        kept = len(pieces)
        for j, source in enumerate(self._found(), self.start):
            last = pieces[-1] if len(pieces) > kept else None
            follows = None if last is None or last.old is None else last.old + j - last.start
            if last is not None and source == follows:
                pieces[-1] = last._replace(stop=j + 1)
            else:
                pieces.append(Piece(source, j, j + 1))
        if self.behind:
            pieces.append(Piece(self.old.size - self.behind, back, size))
        return Comparison(self.keys, self.items, 0, pieces, self.watched, self.start)

    def _same_front(self) -> int:
        at = min([same_front(old, new) for old, new in self.rows])
        return min(at, min(self.changed, default=at))

    def _same_back(self) -> int:
        most = min(self.old.size, len(self.items)) - self.start
        most = min(most, self.old.size - 1 - max(self.changed, default=-1))
        if most <= 0:
            return 0
        back = slice(None, -most - 1, -1)
        return min([same_front(old[back], new[back]) for old, new in self.rows])

    def _found(self) -> list[int | None]:
        """Return the indexes of the middle elements in the last version, or None."""
        stop, old_stop = len(self.items) - self.behind, self.old.size - self.behind
        start, last = self.start, min(stop, old_stop)
        while start < last and self._is(start, start):
            start += 1
        back, most = 0, last - start
        while back < most and self._is(old_stop - 1 - back, stop - 1 - back):
            back += 1
        found = self._anywhere(start, old_stop - back, stop - back)
        return [*range(self.start, start), *found, *range(old_stop - back, old_stop)]

    def _anywhere(self, start: int, old_stop: int, stop: int) -> list[int | None]:
        if start == old_stop:  # nothing left to find
            return [None] * (stop - start)
        old_names, names = self.rows[-1]
        where = {_name(old_names[i], self.old): i for i in range(start, old_stop)}
        found: list[int | None] = []
        for j in range(start, stop):
            i = where.pop(_name(names[j], self.old), None)
            if i is None and self.keys is None and j < old_stop:
                i = j  # other objects, as in an edited list that is rebuilt each time
            found.append(i if i is not None and self._is(i, j) else None)
        return found

    def _is(self, i: int, j: int) -> bool:
        """Return True if element `j` has the value of element `i` of the last version."""
        if i in self.changed:
            return False
        for old, new in self.rows[1:]:
            if old[i] is not new[j] and not same(old[i], new[j]):
                return False
        kept = self.old.every[i]
        return kept is self.items[j] or same(kept, self.watched.copies[j - self.start])


def _name(value: Any, old: SeenSequence) -> Any:
    return id(value) if old.keys is None else (type(value), value)


_PLAIN = (str, bytes, int, bool, type(None))
_STATE_PARTS = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
_PYDANTIC_SLOTS = {*_STATE_PARTS, "__pydantic_fields_set__"}


def same(a: Any, b: Any) -> bool:
    """Return True if both are the same value, including types and order, and so encode alike.

    For values that are rebuilt at every step. Cyclic values and unknown kinds are never the same,
    which costs an encoding but is correct.
    """
    try:
        return _same(a, b)
    except RecursionError:
        return False


def _same(a: Any, b: Any) -> bool:
    cls = type(a)
    if cls is not type(b):
        return False
    if cls in _PLAIN:
        return bool(a == b)
    if a is b:
        return True
    compare = _BY_TYPE.get(cls)
    if compare is not None:
        return compare(a, b)
    return is_state(a) and _same_state(a, b)


def _same_items(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(_same, list(a), list(b)))


@lru_cache(maxsize=1024)
def _has_slots(cls: type) -> bool:
    """Return True if instances have attributes that `_same_state` does not compare."""
    where = layout(cls)
    return not where.has_dict or not where.slots.keys() <= _PYDANTIC_SLOTS


def _same_state(a: object, b: object) -> bool:
    cls: type = type(a)
    if _has_slots(cls):
        return False
    if getattr(a, "__pydantic_fields_set__", None) != getattr(b, "__pydantic_fields_set__", None):
        return False
    return all(_same(getattr(a, p, None), getattr(b, p, None)) for p in _STATE_PARTS)


_BY_TYPE: dict[type, Callable[[Any, Any], bool]] = {
    float: lambda a, b: a == b and math.copysign(1, a) == math.copysign(1, b),
    list: _same_items,
    tuple: _same_items,
    dict: lambda a, b: _same_items(a, b) and _same_items(a.values(), b.values()),
    # Equal sets may differ in order, and so in their bytes.
    set: _same_items,
    frozenset: _same_items,
}


def alike(codec: Codec, a: Any, b: Any) -> bool:
    """Return True if both have the same bytes in our own codec.

    The bytes of a serializer may differ each time.
    """
    native = codec if isinstance(codec, NativeCodec) else NativeCodec()
    try:
        return native.encode(a) == native.encode(b)
    except UnserializableError:  # a serializer of the program stores it
        return type(a) is type(b) and bool(a == b)
