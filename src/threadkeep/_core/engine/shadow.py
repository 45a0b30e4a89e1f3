"""Shadows: noticing that a value was changed in place since it was encoded.

A shadow remembers every mutable container reachable from a run of elements, and the identity of all
that each referred to. One that holds says that encoding the elements again would give the same
bytes; what cannot be watched (arrays, foreign objects) is opaque and never holds. Compiled in
`_identity.c`; the Python here has the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from threadkeep._core.engine.capture import (
    KINDS,
    LAYOUTS,
    Watched,
    can_change,
    capture,
    portable_consists_of,
    portable_intact,
)


class PortableShadow:
    """Record of a sequence of elements, which tells if one has changed. Immutable."""

    __slots__ = ("_elements",)

    def __init__(self) -> None:
        self._elements: tuple[Watched, ...] = ()

    @classmethod
    def _of(cls, elements: Sequence[Watched]) -> PortableShadow:
        shadow = cls()
        shadow._elements = tuple(elements)
        return shadow

    @classmethod
    def of(cls, elements: list[Any]) -> PortableShadow:
        """Return the shadow of elements that nobody else changes meanwhile."""
        return cls._of(capture(elements, copying=False)[0])

    @classmethod
    def of_unwatched(cls, size: int) -> PortableShadow:
        """Return a shadow of so many elements that never holds."""
        return cls._of([Watched(is_opaque=True)] * size)

    @classmethod
    def joined(cls, parts: Sequence[PortableShadow]) -> PortableShadow:
        """Return the shadow of the parts' elements in a row."""
        return parts[0] if len(parts) == 1 else cls().extended(*parts)

    def extended(self, *others: PortableShadow) -> PortableShadow:
        """Return the shadow of these elements followed by those of the others."""
        rows = [shadow._elements for shadow in (self, *others)]  # noqa: SLF001 - our own
        return self._of(list(chain.from_iterable(rows)))

    def part(self, start: int, stop: int) -> PortableShadow:
        """Return the shadow of the elements `start <= i < stop`."""
        return self._of(self._elements[start:stop])

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self._elements)

    @property
    def opaque(self) -> frozenset[int]:
        """The indexes of the elements that cannot be watched."""
        return frozenset([i for i, element in enumerate(self._elements) if element.is_opaque])

    @property
    def is_opaque(self) -> bool:
        """True if an element cannot be watched."""
        return any(element.is_opaque for element in self._elements)

    def holds(self) -> bool:
        """Return True if every element is as it was, at one instant; never if one is opaque."""
        return not self.is_opaque and self.holds_now()

    def holds_now(self) -> bool:
        """Return True if all that can be watched is as it was, at one instant."""
        return portable_intact(self._elements)

    def holds_in(self, value: object, keys: list[Any] | None, items: list[Any], size: int) -> bool:
        """Return True if a value has just these elements, as they were, but for opaque parts."""
        return portable_consists_of(value, keys, items, size) and self.holds_now()

    def changed(self) -> frozenset[int]:
        """The indexes of the elements that changed or cannot be watched."""
        if self.holds_now():
            return self.opaque
        elements = enumerate(self._elements)
        return frozenset([i for i, e in elements if e.is_opaque or not portable_intact([e])])

    def containers(self) -> list[Any]:
        """Return all containers that are watched and can change by themselves."""
        return [x for e in self._elements for x in e.containers[::2] if can_change(x)]


class WatchedCopies(NamedTuple):
    """Elements at one instant: copies of them, and the shadow of the elements themselves."""

    copies: list[Any]  # they share nothing mutable with the elements but opaque parts
    shadow: Shadow
    originals: dict[int, Any]  # by the `id` of a copied instance: what it was made from


def portable_copy_and_watch(elements: list[Any]) -> WatchedCopies:
    """Copy the elements, and watch them, at one instant."""
    watched, copies, originals = capture(elements, copying=True)
    shadow: Any = PortableShadow._of(watched)  # noqa: SLF001 - our own
    return WatchedCopies(copies, shadow, originals)


def portable_disjoint(shadows: list[PortableShadow]) -> list[bool]:
    """Return of each shadow True if all that it watches is met once, and in none before it."""
    met: set[int] = set()
    answers = []
    for shadow in shadows:
        names = list(map(id, shadow.containers()))
        before = len(met)
        met.update(names)
        answers.append(len(met) - before == len(names))
    return answers


try:
    from threadkeep._core.engine._identity import Shadow, copy_and_watch, disjoint, prepare
except ImportError:  # it could not be compiled
    Shadow = PortableShadow  # type: ignore[misc,assignment] # a class in place of a class
    disjoint, copy_and_watch = portable_disjoint, portable_copy_and_watch  # type: ignore[assignment] # with that class
else:
    prepare(KINDS, LAYOUTS, WatchedCopies)

ONE_LEAF = Shadow.of([None])
"""The shadow of one element that can never change."""

__all__ = ["ONE_LEAF", "Shadow", "WatchedCopies", "copy_and_watch", "disjoint"]
