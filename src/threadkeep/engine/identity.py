"""Telling at C speed whether things are the very same objects.

Equality (`==`) would not do: `1 == True == 1.0`, and a change of type must not be lost.
All are compiled (`_identity.c`) where the installation could compile them, else done in
Python, which takes up to ten times as long. Invariant: for arguments of the types given
here both ways have the same answers.
"""

from __future__ import annotations

import gc
from itertools import chain, islice
from operator import is_
from typing import Any


def portable_intact(
    containers: tuple[Any, ...],
    referents: list[Any],
    dicts: list[Any],
    keys: list[Any],
    sets: list[Any],
    sizes: list[int],
) -> bool:
    """Tell whether the containers refer to the very objects that they referred to.

    Args:
        containers: any objects; what they refer to is compared.
        referents: what `gc.get_referents(*containers)` listed before.
        dicts: dicts whose keys are compared: the interpreter lists them for some dicts only.
        keys: the keys of all of them, in order.
        sets: sets whose sizes are compared.
        sizes: the size of each.
    """
    try:
        return (
            _all_same(gc.get_referents(*containers), referents)
            and _all_same(list(chain.from_iterable(dicts)), keys)
            and list(map(len, sets)) == sizes
        )
    except RuntimeError:  # a dict that grows at this very moment has changed
        return False


def _all_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def portable_unchanged(
    value: object, keys: list[Any] | None, items: list[Any], size: int, chunks: tuple[Any, ...]
) -> bool:
    """Tell whether a value has the very elements that it had, and all rows hold.

    Args:
        value: a list, tuple or dict; None for nothing to compare.
        keys: a dict's keys; None for others.
        items: the elements, or a dict's values, expected in the value.
        size: how many of `items` count.
        chunks: tuples whose first is the six arguments of `intact`.
    """
    return (value is None or _consists_of(value, keys, items[:size])) and all(
        portable_intact(*chunk[0]) for chunk in chunks
    )


def _consists_of(value: Any, keys: list[Any] | None, items: list[Any]) -> bool:
    if isinstance(value, dict):
        pairs = list(value.items())
        return keys is not None and _all_same(
            [x for pair in pairs for x in pair],
            [x for pair in zip(keys, items, strict=True) for x in pair],
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


def portable_apart(groups: list[tuple[Any, ...]]) -> list[bool]:
    """Tell of each group of rows whether its containers are met once, and in no group before.

    Those that cannot change (tuples, frozen sets) do not count.

    Args:
        groups: tuples of tuples whose first is the six arguments of `intact`.
    """
    met: set[int] = set()
    answers = []
    for chunks in groups:
        found = chain.from_iterable([chunk[0][0] for chunk in chunks])
        names = [id(x) for x in found if can_change(x)]
        before = len(met)
        met.update(names)
        answers.append(len(met) - before == len(names))
    return answers


try:
    from threadkeep.engine._identity import apart, behind, intact, same_front, unchanged
except ImportError:  # it could not be compiled
    apart, behind = portable_apart, portable_behind
    intact, same_front = portable_intact, portable_same_front
    unchanged = portable_unchanged

__all__ = ["apart", "behind", "intact", "same_front", "unchanged"]
