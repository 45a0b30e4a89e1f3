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

import dataclasses
import gc
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from operator import add
from pathlib import PurePath
from typing import Any, NamedTuple

from pydantic import BaseModel

from threadkeep.engine.identity import intact

_LEAF, _CONTAINER, _STATE, _SETTLED, _OPAQUE = range(5)  # (a leaf is the only falsy one)


class _Kinds(dict[type, int]):
    """What an instance of each class is to a shadow; found out when it is first met."""

    def __missing__(self, cls: type) -> int:
        kind = self[cls] = _classify(cls)
        return kind


_kinds = _Kinds()
_kinds |= dict.fromkeys((str, bytes, int, float, bool, complex, type(None), range), _LEAF)
_kinds |= dict.fromkeys((list, tuple, dict, set, frozenset, deque), _CONTAINER)
_CHUNK = 256  # elements of a chunk: some thousand objects, which a processor's cache holds
_REACH = 8  # a chunk is joined with one before that is up to so many times as long
_LEAF_BASES = (type, Enum, PurePath, types.FunctionType, types.BuiltinFunctionType)
_LEAF_MODULES = ("datetime", "decimal", "uuid", "ipaddress", "fractions", "re", "zoneinfo")


def _classify(cls: type) -> int:
    if issubclass(cls, _LEAF_BASES) or cls.__module__ in _LEAF_MODULES:
        return _LEAF
    if _solid_base(cls) is not object:
        # A subclass of a C type may keep state that no reference shows.
        return _CONTAINER if issubclass(cls, tuple) else _OPAQUE
    if issubclass(cls, BaseModel):
        return _SETTLED if _is_settled(cls) else _STATE
    if dataclasses.is_dataclass(cls):
        return _STATE
    if hasattr(cls, "__attrs_attrs__") or cls.__module__.startswith("langgraph."):
        return _STATE
    return _OPAQUE


def _is_settled(cls: type[BaseModel]) -> bool:
    """Whether a model keeps the very dicts it was made with, and only adds to its fields set.

    Then neither the instance need be watched beside them, nor more of the set than its size:
    half as much to look at. Assignment with validation makes a new `__dict__`, the first
    private value a new dict.
    """
    return not cls.__private_attributes__ and not cls.model_config.get("validate_assignment")


def _solid_base(cls: type) -> type:
    """The nearest base class that is not written in Python."""
    heap_type = 1 << 9  # Py_TPFLAGS_HEAPTYPE, as copyreg uses it
    return next(base for base in cls.__mro__ if not base.__flags__ & heap_type)


def is_state(value: object) -> bool:
    """Whether the value is an instance of a data class (message, model, dataclass, ...)."""
    return _kinds[type(value)] in (_STATE, _SETTLED)


def is_leaf(value: object) -> bool:
    """Whether the value can never change."""
    return _kinds[type(value)] == _LEAF


class _Rows(NamedTuple):
    """What is under watch, in rows, and what it was like.

    `containers` are all that can be reached, `refs` all that those referred to (held here,
    so that no identity is used again). `dicts` are the ones whose keys are watched too, and
    `keys` those. `sets` hold the names of the fields that models were given, and are
    watched by their sizes alone.
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

    @classmethod
    def of(cls, elements: Sequence[Any]) -> _Chunk:
        walk, ends, opaque = _Walk(), [], []
        for i, element in enumerate(elements):
            if _kinds[type(element)] and not walk.below(element):
                opaque.append(i)
            ends.append(walk.lengths())
        return cls(walk.rows(), ends, frozenset(opaque) if opaque else _NONE)

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

    def changed(self) -> set[int]:
        """The indexes of the elements that changed."""
        starts = [(0,) * len(self.rows), *self.ends]
        pairs = zip(starts, self.ends, strict=False)
        return {i for i, pair in enumerate(pairs) if not self.rows.part(*pair).intact()}


class _Walk:
    """Puts elements under watch, one after the other."""

    __slots__ = ("containers", "dicts", "keys", "refs", "sets")

    def __init__(self) -> None:
        self.containers: list[Any] = []
        self.refs: list[Any] = []
        self.dicts: list[Any] = []
        self.keys: list[Any] = []
        self.sets: list[Any] = []

    def lengths(self) -> tuple[int, ...]:
        """How long the rows are by now."""
        sets = len(self.sets)
        return (
            len(self.containers),
            len(self.refs),
            len(self.dicts),
            len(self.keys),
            sets,
            sets,
        )

    def rows(self) -> _Rows:
        """What was met so far."""
        sizes = list(map(len, self.sets))
        return _Rows(tuple(self.containers), self.refs, self.dicts, self.keys, self.sets, sizes)

    def below(self, element: Any) -> bool:
        """Put all containers below an element under watch; False if one cannot be."""
        met = {id(element)}
        attributes: set[int] = set()
        reached = [element]
        for value in reached:  # (it grows as we go)
            kind = _kinds[type(value)]
            if kind == _OPAQUE:
                return False
            if kind != _CONTAINER:
                # Asking for `__dict__` makes the interpreter settle on one dict object.
                # Its keys are the class's fields: no need to watch those.
                attributes.add(id(getattr(value, "__dict__", None)))
            elif type(value) is dict and value and id(value) not in attributes:
                # (An empty dict cannot change without referring to something.)
                self.dicts.append(value)
                self.keys += value
            found = gc.get_referents(value)
            if kind == _SETTLED:
                self.sets.append(value.__pydantic_fields_set__)
                met.add(id(value.__pydantic_fields_set__))
            else:
                self.containers.append(value)
                self.refs += found
            for below in found:
                if _kinds[type(below)] and id(below) not in met:
                    met.add(id(below))
                    reached.append(below)
        return True


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
    def of(cls, elements: Sequence[Any]) -> Shadow:
        """The shadow of the elements as they are now."""
        if len(elements) == 1:
            return cls((_Chunk.of(elements),)) if _kinds[type(elements[0])] else _ONE_LEAF
        parts = [elements[i : i + _CHUNK] for i in range(0, len(elements), _CHUNK)]
        return cls(tuple([_Chunk.of(part) for part in parts]))

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

    def holds(self) -> bool:
        """Whether every element is as it was; never true if one is opaque."""
        for chunk in self._chunks:  # noqa: SIM110 - half the time of `all`, for every save
            if chunk.opaque or not intact(*chunk.rows):
                return False
        return True

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


def _belong_together(before: int, after: int) -> bool:
    """Whether chunks of these sizes are joined: large ones less often, so that growing is cheap."""
    return before <= _REACH * after and before + after <= _CHUNK


def _shift(indexes: Iterable[int], by: int) -> frozenset[int]:
    return frozenset([i + by for i in indexes])


_NONE: frozenset[int] = frozenset()
_ONE_LEAF = Shadow((_Chunk.of([None]),))
