"""Telling at C speed whether things are the very same objects.

Equality (`==`) would not do: `1 == True == 1.0`, and a change of type must not be lost.
What a save asks for is compiled (`_identity.c`) where the installation could compile it, else
done in Python, which takes ten to thirty times as long. Invariant: for arguments of the types
given here both ways have the same answers.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import chain, islice
from operator import is_, itemgetter
from typing import Any, NamedTuple

FENCE = (object(),)
"""Stands behind each container that is watched, so that nothing moves to its neighbour unseen."""


class Watched(NamedTuple):
    """All that is watched of an element, in rows, and what it was like.

    `containers` are all that can be reached, one that is met again once more, and `referents`
    what those referred to (held here, so that no identity is used again). `dicts` are the ones
    whose keys are watched too, as the interpreter lists those of some dicts only, and `keys`
    these. `sets` hold the names of the fields that models were given, and are watched by their
    sizes alone. Behind each container and dict there is a fence. `is_opaque` if a part cannot
    be watched.
    """

    containers: Sequence[Any] = ()
    referents: Sequence[Any] = ()
    dicts: Sequence[Any] = ()
    keys: Sequence[Any] = ()
    sets: Sequence[Any] = ()
    sizes: Sequence[int] = ()
    is_opaque: bool = False


def portable_intact(elements: Sequence[Watched]) -> bool:
    """Tell whether all that is watched of the elements is as it was."""
    rows = [chain.from_iterable(map(itemgetter(n), elements)) for n in range(6)]
    containers, referents, dicts, keys, sets, sizes = rows
    try:
        return (
            _all_same(gc.get_referents(*containers), list(referents))
            and _all_same(list(chain.from_iterable(dicts)), list(keys))
            and list(map(len, sets)) == list(sizes)
        )
    except RuntimeError:  # a dict that grows at this very moment has changed
        return False


def _all_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def portable_consists_of(
    value: object, keys: list[Any] | None, items: list[Any], size: int
) -> bool:
    """Tell whether a list, tuple or dict has the first `size` of the items, and no more.

    Args:
        value: a list, tuple or dict.
        keys: a dict's keys; None for others.
        items: the elements, or a dict's values, expected in the value.
        size: how many of `items` count.
    """
    if size > len(items):
        return False
    items = items[:size]
    if isinstance(value, dict):
        pairs = list(value.items())
        return (
            keys is not None
            and len(keys) == size
            and _all_same(
                [x for pair in pairs for x in pair],
                [x for pair in zip(keys, items, strict=True) for x in pair],
            )
        )
    return isinstance(value, (list, tuple)) and _all_same(list(value), items)


def portable_same_front(one: list[Any], other: list[Any]) -> int:
    """Count the items that both lists begin with."""
    same = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(same) if a is not b), min(len(one), len(other)))


def portable_behind(old: list[Any], size: int, now: list[Any]) -> list[Any] | None:
    """Give what follows in `now` behind the first `size` items of `old`.

    None if it does not begin with those. `now` is looked at once: it may be anybody's.
    """
    now = list(now)
    if not 0 <= size <= min(len(old), len(now)) or not all(map(is_, islice(old, size), now)):
        return None
    return now[size:]


def can_change(value: object) -> bool:
    """Whether a container can change by itself, not only by what it refers to."""
    return not isinstance(value, tuple) and type(value) is not frozenset


try:
    from threadkeep.engine._identity import behind, same_front
except ImportError:  # it could not be compiled
    behind, same_front = portable_behind, portable_same_front

__all__ = [
    "FENCE",
    "Watched",
    "behind",
    "can_change",
    "portable_consists_of",
    "portable_intact",
    "same_front",
]
