"""Noticing that a value was changed in place since it was encoded.

A shadow remembers, for a run of elements, every mutable container reachable from them
and the identity of all that each container referred to. The check asks the interpreter
for those references again (`intact`, one call for hundreds of messages) and compares
identities: about 0.04 us a message, exact (`1`, `True` and `1.0` are different objects),
blind to nothing a data value is made of. Dict keys are compared too, as the interpreter does
not report the keys of a dict whose keys are all text.

Invariant: a shadow that holds says that encoding the elements again would give the same
bytes. What cannot be watched (arrays, foreign objects) is `opaque` and never holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import add, sub
from typing import Any, NamedTuple

from threadkeep.engine import identity
from threadkeep.engine.capture import KINDS, capture
from threadkeep.engine.identity import intact, unchanged

_CHUNK = 256  # elements of a chunk: some thousand objects, which a processor's cache holds
_REACH = 8  # a chunk is joined with one before that is up to so many times as long


class _Rows(NamedTuple):
    """What is under watch, in rows, and what it was like.

    `containers` are all that can be reached, one that is met again in an element once more;
    `refs` all that those referred to (held here, so that no identity is used again). `dicts`
    are the ones whose keys are watched too, and `keys` those. `sets` hold the names of the
    fields that models were given, and are watched by their sizes alone.
    """

    containers: tuple[Any, ...]
    refs: list[Any]
    dicts: list[Any]
    keys: list[Any]
    sets: list[Any]
    sizes: list[int]

    def intact(self) -> bool:
        """Whether everything is as it was."""
        return intact(*self)

    def joined(self, other: _Rows) -> _Rows:
        """These rows, each followed by the other's."""
        return _Rows(*map(add, self, other))

    def part(self, starts: Sequence[int], stops: Sequence[int]) -> _Rows:
        """A piece of each row."""
        rows: Any = zip(self, starts, stops, strict=True)
        return _Rows(*[row[i:j] for row, i, j in rows])


class _Chunk(NamedTuple):
    """The shadow of some elements in a row.

    `ends` tells for each element how long the rows are with it and all before it; `opaque`
    are the indexes of those that cannot be watched.
    """

    rows: _Rows
    ends: list[tuple[int, ...]]  # (the garbage collector leaves tuples of numbers alone)
    opaque: frozenset[int]

    @property
    def size(self) -> int:
        """How many elements there are."""
        return len(self.ends)

    def joined(self, other: _Chunk) -> _Chunk:
        """This chunk's elements followed by the other's."""
        ends = [tuple(map(add, self.ends[-1], end)) for end in other.ends]
        opaque = self.opaque
        if other.opaque:
            opaque |= _shift(other.opaque, self.size)
        return _Chunk(self.rows.joined(other.rows), self.ends + ends, opaque)

    def part(self, start: int, stop: int) -> _Chunk:
        """The shadow of some of the elements."""
        if (start, stop) == (0, self.size):
            return self
        before = self.ends[start - 1] if start else (0,) * len(self.rows)
        ends = [tuple(map(sub, end, before)) for end in self.ends[start:stop]]
        opaque = frozenset([i - start for i in self.opaque if start <= i < stop])
        return _Chunk(self.rows.part(before, self.ends[stop - 1]), ends, opaque)

    def changed(self) -> set[int]:
        """The indexes of the elements that changed."""
        starts = [(0,) * len(self.rows), *self.ends]
        pairs = zip(starts, self.ends, strict=False)
        return {i for i, pair in enumerate(pairs) if not self.rows.part(*pair).intact()}


class Shadow:
    """What is remembered of a sequence of elements. Immutable; growing shares the past.

    It is kept in chunks: growing makes only the last ones anew, and a check looks at all of
    a chunk several times while that is still in the processor's cache.
    """

    __slots__ = ("_chunks",)

    def __init__(self, chunks: tuple[_Chunk, ...] = ()) -> None:
        self._chunks = chunks

    @property
    def size(self) -> int:
        """How many elements there are."""
        return sum([len(chunk.ends) for chunk in self._chunks])

    @property
    def opaque(self) -> frozenset[int]:
        """The indexes of the elements that cannot be watched."""
        found = _NONE
        for start, chunk in self._placed():
            if chunk.opaque:
                found |= _shift(chunk.opaque, start)
        return found

    @classmethod
    def of(cls, elements: list[Any]) -> Shadow:
        """The shadow of the elements as they are now; nobody else changes them meanwhile."""
        parts = [elements[i : i + _CHUNK] for i in range(0, len(elements), _CHUNK)]
        return cls(tuple([_look(part, copying=False)[0] for part in parts]))

    @classmethod
    def of_unwatched(cls, size: int) -> Shadow:
        """A shadow that never holds, of so many elements."""
        rows = _Rows((), [], [], [], [], [])
        return cls((_Chunk(rows, [(0,) * len(rows)] * size, frozenset(range(size))),))

    @classmethod
    def joined(cls, parts: Sequence[Shadow]) -> Shadow:
        """The shadow of the parts' elements in a row."""
        return parts[0] if len(parts) == 1 else cls().extended(*parts)

    def extended(self, *others: Shadow) -> Shadow:
        """The shadow of this one's elements followed by those of the others."""
        chunks = list(self._chunks)
        for other in others:
            for chunk in other._chunks:  # noqa: SLF001 - our own
                while chunks and _belong_together(len(chunks[-1].ends), len(chunk.ends)):
                    chunk = chunks.pop().joined(chunk)  # noqa: PLW2901 - grows as it sinks
                chunks.append(chunk)
        return Shadow(tuple(chunks))

    def part(self, start: int, stop: int) -> Shadow:
        """The shadow of the elements `start <= i < stop`."""
        if (start, stop) == (0, self.size):
            return self
        parts = []
        for first, chunk in self._placed():
            if first < stop and start < first + chunk.size:
                parts.append(chunk.part(max(start - first, 0), min(stop - first, chunk.size)))
        return Shadow(tuple(parts))

    @property
    def is_opaque(self) -> bool:
        """Whether an element cannot be watched."""
        for chunk in self._chunks:  # noqa: SIM110 - half the time of `any`, for every save
            if chunk.opaque:
                return True
        return False

    def holds(self) -> bool:
        """Whether every element is as it was, at one instant; never true if one is opaque."""
        return not self.is_opaque and self.holds_now()

    def holds_now(self) -> bool:
        """Whether all that can be watched is as it was, at one instant."""
        return unchanged(None, None, [], 0, self._chunks)

    def holds_in(self, value: object, keys: list[Any] | None, items: list[Any], size: int) -> bool:
        """Whether a value has just these elements, and they are as they were, at one instant.

        Parts that cannot be watched are passed over.

        Args:
            value: a list, tuple or dict.
            keys: a dict's keys; None for others.
            items: the elements, or a dict's values, and perhaps more behind them.
            size: how many of them there are.
        """
        return unchanged(value, keys, items, size, self._chunks)

    def changed(self) -> set[int]:
        """The indexes of the elements that changed or cannot be watched."""
        found = set(self.opaque)
        for start, chunk in self._placed():
            if not chunk.rows.intact():
                found |= _shift(chunk.changed(), start)
        return found

    def _placed(self) -> Iterator[tuple[int, _Chunk]]:
        start = 0
        for chunk in self._chunks:
            yield start, chunk
            start += chunk.size


class Still(NamedTuple):
    """Elements as they were at one instant: copies, and the shadow of the elements themselves.

    `originals` gives the instance that a copied one, named by its `id`, was made from.
    """

    copies: list[Any]
    shadow: Shadow
    originals: dict[int, Any]


def still(elements: list[Any]) -> Still:
    """Copy the elements, and put them under watch, at one instant."""
    if len(elements) <= 1 and not any(map(KINDS.__getitem__, map(type, elements))):
        return Still(elements, ONE_LEAF if elements else _EMPTY, _NO_ORIGINALS)
    chunk, copies, originals = _look(elements, copying=True)
    if chunk.size <= _CHUNK:
        return Still(copies, Shadow((chunk,)), originals)
    starts = range(0, chunk.size, _CHUNK)
    chunks = [chunk.part(start, min(start + _CHUNK, chunk.size)) for start in starts]
    return Still(copies, Shadow(tuple(chunks)), originals)


def apart(shadows: Sequence[Shadow]) -> list[bool]:
    """Tell of each shadow whether all that it watches is met once, and in none before it."""
    return identity.apart([shadow._chunks for shadow in shadows])  # noqa: SLF001 - our own


def _look(elements: list[Any], *, copying: bool) -> tuple[_Chunk, list[Any], dict[int, Any]]:
    rows, ends, opaque, copies, originals = capture(elements, copying=copying)
    chunk = _Chunk(_Rows._make(rows), ends, frozenset(opaque) if opaque else _NONE)
    return chunk, copies, originals


def _belong_together(before: int, after: int) -> bool:
    """Whether chunks of these sizes are joined: large ones less often, so that growing is cheap."""
    return before <= _REACH * after and before + after <= _CHUNK


def _shift(indexes: Iterable[int], by: int) -> frozenset[int]:
    return frozenset([i + by for i in indexes])


_NONE: frozenset[int] = frozenset()
_EMPTY = Shadow()
_NO_ORIGINALS: dict[int, Any] = {}
ONE_LEAF = Shadow((_Chunk(_Rows((), [], [], [], [], []), [(0,) * 6], _NONE),))
"""The shadow of one element that can never change."""
