"""What of a list, tuple or dict is still stored: the difference to its last version.

Pure functions over what was last seen of the value (`Seen`). The result is a list of
pieces in the new value's order: ranges kept from the old one and ranges that are new.
Invariant: a range is kept only if each of its elements is the same value as before, by
identity and an unchanged shadow, or by exact comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from threadkeep.engine.exact import same
from threadkeep.engine.identity import pointers
from threadkeep.engine.shadow import Shadow


class Piece(NamedTuple):
    """The new elements `start <= i < stop`; kept ones begin at `old` of the old version."""

    old: int | None
    start: int
    stop: int


class Difference(NamedTuple):
    """The pieces, and how many elements at the front are the very objects of the old version."""

    pieces: list[Piece]
    same: int


class Seen(NamedTuple):
    """A sequence as last seen: `keys` for a dict, `items` (values), and their shadow."""

    keys: list[Any] | None
    items: list[Any]
    shadow: Shadow


_CONSTANT = {str, int, bool, float, bytes, type(None)}


def watched(keys: list[Any] | None, items: list[Any]) -> list[Any]:
    """What a sequence's shadow is to be taken of: a dict's keys too, where one may change."""
    if keys is None or set(map(type, keys)) <= _CONSTANT:
        return items
    return list(zip(keys, items, strict=True))


def diff(old: Seen, keys: list[Any] | None, items: list[Any]) -> Difference:
    """Cut the new sequence into pieces that are kept from `old` and pieces that are new."""
    if (old.keys is None) != (keys is None):
        return Difference([Piece(None, 0, len(items))], 0)
    least = min(len(old.items), len(items))
    front = same = _same_front(old, keys, items, least)
    while front < least and _same_at(old, front, keys, items, front):
        front += 1
    back = _back(old, keys, items, least - front)
    pieces = [Piece(0, 0, front)] if front else []
    pieces += _middle(old, keys, items, front, back)
    if back:
        pieces.append(Piece(len(old.items) - back, len(items) - back, len(items)))
    if any(piece.old is not None for piece in pieces) and not old.shadow.holds():
        pieces = _without_changed(pieces, old.shadow.changed())
    return Difference(pieces, same)


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


def _same_front(old: Seen, keys: list[Any] | None, items: list[Any], most: int) -> int:
    """How many elements both start with, by identity."""
    at = _same_objects(old.items, items, most)
    if keys is not None and old.keys is not None:
        at = min(at, _same_objects(old.keys, keys, most))
    return at


def _same_objects(a: list[Any], b: list[Any], most: int) -> int:
    """How many of the first `most` items are the very same objects."""
    if most and a[0] is not b[0]:
        return 0
    marks_a, marks_b = pointers(a), pointers(b)
    word = len(marks_a) // len(a) if a else 0
    if marks_a[: most * word] == marks_b[: most * word]:
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if marks_a[low * word : middle * word] == marks_b[low * word : middle * word]:
            low = middle
        else:
            high = middle - 1
    return low


def _back(old: Seen, keys: list[Any] | None, items: list[Any], most: int) -> int:
    """How many elements both end with, at most `most`."""
    count = 0
    while count < most and _same_at(
        old, len(old.items) - 1 - count, keys, items, len(items) - 1 - count
    ):
        count += 1
    return count


def _same_at(old: Seen, i: int, keys: list[Any] | None, items: list[Any], j: int) -> bool:
    if keys is not None and old.keys is not None and not _same_value(old.keys[i], keys[j]):
        return False
    return _same_value(old.items[i], items[j])


def _same_value(a: Any, b: Any) -> bool:
    return a is b or same(a, b)


def _middle(
    old: Seen, keys: list[Any] | None, items: list[Any], front: int, back: int
) -> list[Piece]:
    """The elements in between: those still there in the old middle, and new ones."""
    start, stop = front, len(items) - back
    old_stop = len(old.items) - back
    if front == old_stop or (not front and not back and 4 * stop < old_stop):
        # Nothing left to find; or a few elements beside a long list, as a write is.
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
