"""Noticing that a value was changed in place since it was encoded.

A shadow remembers, for a run of elements, every mutable container reachable from them
and the identity of all that each container referred to. The check asks the interpreter
for those references again (`gc.get_referents`, one C call for all of them) and compares
identities: 0.1 us a message, exact (`1`, `True` and `1.0` are different objects), blind
to nothing a data value is made of. Dict keys are compared too, as the interpreter does
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
from itertools import chain
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from threadkeep.engine.identity import pointers

_LEAF, _CONTAINER, _STATE, _SETTLED, _OPAQUE = range(5)

_kinds: dict[type, int] = {
    **dict.fromkeys((str, bytes, int, float, bool, complex, type(None), range), _LEAF),
    **dict.fromkeys((list, tuple, dict, set, frozenset, deque), _CONTAINER),
}
_LEAF_BASES = (type, Enum, PurePath, types.FunctionType, types.BuiltinFunctionType)
_LEAF_MODULES = ("datetime", "decimal", "uuid", "ipaddress", "fractions", "re", "zoneinfo")


def _kind(cls: type) -> int:
    """What an instance of `cls` is to a shadow; remembered per class."""
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _classify(cls)
    return kind


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
    """Whether a model keeps the very dicts and sets it was made with, and only fills them.

    Then the instance itself need not be watched beside them: a third less to look at.
    Assignment with validation makes a new `__dict__`, the first private value a new dict.
    """
    return not cls.__private_attributes__ and not cls.model_config.get("validate_assignment")


def _solid_base(cls: type) -> type:
    """The nearest base class that is not written in Python."""
    heap_type = 1 << 9  # Py_TPFLAGS_HEAPTYPE, as copyreg uses it
    return next(base for base in cls.__mro__ if not base.__flags__ & heap_type)


def is_state(value: object) -> bool:
    """Whether the value is an instance of a data class (message, model, dataclass, ...)."""
    return _kind(type(value)) in (_STATE, _SETTLED)


def is_leaf(value: object) -> bool:
    """Whether the value can never change."""
    return _kind(type(value)) == _LEAF


@dataclasses.dataclass(slots=True)
class _Watch:
    """Containers under watch, one after another, and what each referred to.

    `owners[i]` is the index of the element that container `i` was found under and
    `widths[i]` the number of its references; `refs` holds all references in a row,
    which also keeps them alive, so that no identity is used again.
    """

    containers: list[Any] = dataclasses.field(default_factory=list)
    owners: list[int] = dataclasses.field(default_factory=list)
    widths: list[int] = dataclasses.field(default_factory=list)
    refs: list[Any] = dataclasses.field(default_factory=list)
    marks: bytes = b""

    def add(self, owner: int, container: Any, refs: list[Any]) -> None:
        self.containers.append(container)
        self.owners.append(owner)
        self.widths.append(len(refs))
        self.refs += refs

    def joined(self, other: _Watch, offset: int) -> _Watch:
        return _Watch(
            self.containers + other.containers,
            self.owners + [owner + offset for owner in other.owners],
            self.widths + other.widths,
            self.refs + other.refs,
            self.marks + other.marks,
        )

    def slices(self) -> Iterator[tuple[int, Any, bytes]]:
        """Owner, container and marks of each container in turn."""
        at, word = 0, len(self.marks) // max(1, len(self.refs))
        for owner, container, width in zip(self.owners, self.containers, self.widths, strict=True):
            yield owner, container, self.marks[at * word : (at + width) * word]
            at += width


class _Chunk:
    """The shadow of some elements in a row. Immutable once made."""

    __slots__ = ("keys", "opaque", "refs", "size")

    def __init__(self, size: int, refs: _Watch, keys: _Watch, opaque: frozenset[int]) -> None:
        self.size = size
        self.refs = refs
        self.keys = keys
        self.opaque = opaque

    @classmethod
    def of(cls, elements: Sequence[Any]) -> _Chunk:
        refs, keys, opaque = _Watch(), _Watch(), set[int]()
        for i, element in enumerate(elements):
            if _kind(type(element)) != _LEAF and not _walk(i, element, refs, keys):
                opaque.add(i)
        refs.marks, keys.marks = pointers(refs.refs), pointers(keys.refs)
        return cls(len(elements), refs, keys, frozenset(opaque))

    def joined(self, other: _Chunk) -> _Chunk:
        return _Chunk(
            self.size + other.size,
            self.refs.joined(other.refs, self.size),
            self.keys.joined(other.keys, self.size),
            self.opaque | {i + self.size for i in other.opaque},
        )

    def holds(self) -> bool:
        """Whether nothing below the elements changed; opaque ones are not looked at."""
        if not self.refs.containers:
            return True
        try:
            keys = list(chain.from_iterable(self.keys.containers))
        except RuntimeError:  # a dict that grows at this very moment has changed
            return False
        refs = gc.get_referents(*self.refs.containers)
        return pointers(refs) == self.refs.marks and pointers(keys) == self.keys.marks

    def changed(self) -> set[int]:
        """The indexes of the elements that changed."""
        found = {o for o, c, m in self.refs.slices() if pointers(gc.get_referents(c)) != m}
        return found | {o for o, c, m in self.keys.slices() if pointers(list(c)) != m}


def _walk(owner: int, element: Any, refs: _Watch, keys: _Watch) -> bool:
    """Put all containers below an element under watch; False if one cannot be."""
    met: set[int] = set()
    attributes: set[int] = set()
    todo = [element]
    while todo:
        value = todo.pop()
        kind = _kind(type(value))
        if kind == _LEAF or id(value) in met:
            continue
        if kind == _OPAQUE:
            return False
        met.add(id(value))
        if kind in (_STATE, _SETTLED):
            # Asking for `__dict__` makes the interpreter settle on one dict object. Its
            # keys are the class's fields: no need to watch those.
            attributes.add(id(getattr(value, "__dict__", None)))
        elif type(value) is dict and value and id(value) not in attributes:
            # (An empty dict cannot change without referring to something.)
            keys.add(owner, value, list(value))
        below = gc.get_referents(value)
        if kind != _SETTLED:
            refs.add(owner, value, below)
        todo += below
    return True


class Shadow:
    """What is remembered of a sequence of elements. Immutable; growing shares the past.

    Chunks are joined when a later one is as long as the one before, so that a check
    takes a handful of calls and growing one by one costs little.
    """

    __slots__ = ("_chunks", "opaque", "size")

    def __init__(self, chunks: tuple[_Chunk, ...] = ()) -> None:
        self._chunks = chunks
        self.size = sum(chunk.size for chunk in chunks)
        self.opaque = frozenset(
            i + start for start, chunk in self._placed() if chunk.opaque for i in chunk.opaque
        )

    @classmethod
    def of(cls, elements: Sequence[Any]) -> Shadow:
        """The shadow of the elements as they are now."""
        if len(elements) == 1 and _kind(type(elements[0])) == _LEAF:
            return _ONE_LEAF
        return cls((_Chunk.of(elements),)) if elements else cls()

    @classmethod
    def joined(cls, parts: Iterable[Shadow]) -> Shadow:
        """The shadow of the parts' elements in a row."""
        return cls().extended(*parts)

    def extended(self, *others: Shadow) -> Shadow:
        """The shadow of this one's elements followed by those of the others."""
        chunks = list(self._chunks)
        for chunk in chain.from_iterable(other._chunks for other in others):  # noqa: SLF001 - our own
            while chunks and chunks[-1].size <= chunk.size:
                chunk = chunks.pop().joined(chunk)  # noqa: PLW2901 - grows as it sinks
            chunks.append(chunk)
        return Shadow(tuple(chunks))

    def holds(self) -> bool:
        """Whether every element is as it was; never true if one is opaque."""
        return not self.opaque and all(chunk.holds() for chunk in self._chunks)

    def changed(self) -> set[int]:
        """The indexes of the elements that changed or cannot be watched."""
        found = set(self.opaque)
        for start, chunk in self._placed():
            if not chunk.holds():
                found |= _shift(chunk.changed(), start)
        return found

    def _placed(self) -> Iterator[tuple[int, _Chunk]]:
        start = 0
        for chunk in self._chunks:
            yield start, chunk
            start += chunk.size


def _shift(indexes: Iterable[int], by: int) -> set[int]:
    return {i + by for i in indexes}


_ONE_LEAF = Shadow((_Chunk.of([None]),))
