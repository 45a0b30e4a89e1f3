"""Shadows: copies of values at one instant, and detection of later changes in place.

Copies are encoded, as a program may keep changing a value while it is saved. A shadow remembers
every mutable container reachable from a sequence of elements, and the identity of all that each
referred to. While it holds, encoding the elements again would give the same bytes. Parts that
cannot be watched (arrays, foreign objects) are opaque, and their shadow never holds.

Compiled in `_identity.c`. The Python here gives the same answers. Only if a value changes without
pause, each container is copied at an instant of its own, and counts as opaque.
"""

from __future__ import annotations

import dataclasses
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import chain, islice
from operator import is_, itemgetter
from types import MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel

from threadkeep._core.codec.introspection import layout

FENCE = (object(),)
"""Separates watched containers, so that objects cannot move to a neighbour unnoticed."""


class Watched(NamedTuple):
    """The watched containers of an element, in rows with a fence after each."""

    containers: Sequence[Any] = ()  # all reachable ones, again at each repeated occurrence
    referents: Sequence[Any] = ()  # held, so that no identity is reused
    dicts: Sequence[Any] = ()  # dicts whose keys the interpreter may not list as referents
    keys: Sequence[Any] = ()
    is_opaque: bool = False  # a part cannot be watched


def portable_intact(elements: Sequence[Watched]) -> bool:
    """Return True if everything watched of the elements is unchanged."""
    rows = [chain.from_iterable(map(itemgetter(n), elements)) for n in range(4)]
    containers, referents, dicts, keys = rows
    try:
        return _all_same(gc.get_referents(*containers), list(referents)) and _all_same(
            list(chain.from_iterable(dicts)), list(keys)
        )
    except RuntimeError:  # a dict that is growing has changed
        return False


def _all_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def portable_consists_of(
    value: object, keys: list[Any] | None, items: list[Any], size: int
) -> bool:
    """Return True if a list, tuple or dict has exactly the first `size` items."""
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
    """Return the items of `now` after the first `size` of `old`, or None if those differ."""
    now = list(now)
    if not 0 <= size <= min(len(old), len(now)) or not all(map(is_, islice(old, size), now)):
        return None
    return now[size:]


def can_change(value: object) -> bool:
    """Return True if a container itself can change, not only the objects it refers to."""
    return not isinstance(value, tuple) and type(value) is not frozenset


LEAF, CONTAINER, STATE, SETTLED, OPAQUE, DERIVED = range(6)  # (a leaf is the only falsy one)
"""`DERIVED` classes extend dict, list or set: they are copied, but cannot be watched."""

STATES = (STATE, SETTLED)
"""The kinds of instances of data classes (messages, models, dataclasses, ...)."""

_LEAF_BASES = (type, Enum, types.FunctionType, types.BuiltinFunctionType)
_LEAF_MODULES = frozenset(
    {
        *("datetime", "decimal", "uuid", "ipaddress", "fractions", "re", "zoneinfo"),
        *("pathlib", "pathlib._local"),  # (paths of the program may have attributes)
    }
)
_COPIED = (list, dict, set, deque, OrderedDict, defaultdict, bytearray)  # by their `copy`
_TRIES = 16

SlotLayout: TypeAlias = tuple[bool, tuple[MemberDescriptorType, ...], Any]
"""Layout of an instance: has a `__dict__`, its slots, the slot of a model's fields set."""


class _Kinds(dict[type, int]):
    """The kind of each class's instances, determined when one is first met."""

    def __missing__(self, cls: type) -> int:
        kind = _classify(cls)
        # (A struct sequence, with `n_fields`, has hidden fields.)
        if kind in (STATE, SETTLED, DERIVED) or (
            issubclass(cls, tuple) and not hasattr(cls, "n_fields")
        ):
            where = layout(cls)
            slots = tuple(where.slots.values())
            LAYOUTS[cls] = (where.has_dict, slots, where.slots.get("__pydantic_fields_set__"))
        elif cls is OrderedDict:
            LAYOUTS[cls] = (True, (), None)
        self[cls] = kind
        return kind


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE, as copyreg uses it
_MOST = 4096  # classes remembered between values
_BUILT_IN: dict[type, int] = {
    **dict.fromkeys((str, bytes, int, float, bool, complex, type(None), range), LEAF),
    **dict.fromkeys((list, tuple, dict, set, frozenset, deque), CONTAINER),
    **dict.fromkeys((OrderedDict, defaultdict), CONTAINER),
}
KINDS: _Kinds = _Kinds()
LAYOUTS: dict[type, SlotLayout] = {}


def _classify(cls: type) -> int:
    if cls in _BUILT_IN:
        return _BUILT_IN[cls]
    if type(cls).__hash__ is not type.__hash__ or type(cls).__eq__ is not type.__eq__:
        return OPAQUE  # (looking up the class would run code of the program)
    if issubclass(cls, _LEAF_BASES) or cls.__module__ in _LEAF_MODULES:
        return LEAF
    if hasattr(cls, "__del__"):
        return OPAQUE  # deleting a copy would run it
    if _solid_base(cls) in (dict, list, set):
        return DERIVED
    if _solid_base(cls) is not object:
        # A subclass of a C type may keep state without references.
        return CONTAINER if issubclass(cls, tuple) else OPAQUE
    if issubclass(cls, BaseModel):
        return SETTLED if _is_settled(cls) else STATE
    if dataclasses.is_dataclass(cls):
        return STATE
    if hasattr(cls, "__attrs_attrs__") or cls.__module__.startswith("langgraph."):
        return STATE
    return OPAQUE


def _is_settled(cls: type[BaseModel]) -> bool:
    """Return True if a model keeps its dicts, and only adds to its set of fields.

    Then neither the instance nor more than the size of the set must be watched: half the work.
    """
    return not cls.__private_attributes__ and not cls.model_config.get("validate_assignment")


def _solid_base(cls: type) -> type:
    return next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)


def is_state(value: object) -> bool:
    """Return True for an instance of a data class (message, model, dataclass, ...)."""
    return KINDS[type(value)] in STATES


def is_leaf(value: object) -> bool:
    """Return True if the value can never change."""
    return KINDS[type(value)] == LEAF


class _Walk:
    """Watches elements, one after the other."""

    def __init__(self) -> None:
        self.met: dict[int, Any] = {}
        self.found: dict[int, list[Any]] = {}  # the referents of each

    def element(self, element: Any) -> Watched:
        if not KINDS[type(element)]:
            return _LEAF
        self.containers: list[Any] = []
        self.refs: list[Any] = []
        self.dicts: list[Any] = []
        self.keys: list[Any] = []
        watched = self.below(element)
        return Watched(self.containers, self.refs, self.dicts, self.keys, not watched)

    def below(self, element: Any) -> bool:
        """Watch all containers reachable from an element, or False if one cannot be watched."""
        met = {id(element)}
        own: set[int] = set()  # of instances: each one's `__dict__` and set of fields
        reached = [element]
        again: set[int] = set()  # indexes of repeated occurrences
        watched = True
        for number, value in enumerate(reached):  # (which grows meanwhile)
            if number in again:
                # A container in several places of an element, or, of an instance, its `__dict__`.
                once = value.__dict__ if LAYOUTS.get(type(value), (False,))[0] else value
                self._note(once, gc.get_referents(once))
                continue
            kind = KINDS[type(value)]
            if kind not in (CONTAINER, OPAQUE) and type(value) not in LAYOUTS:
                kind = OPAQUE  # another thread has cleared the table
            self.met[id(value)] = value
            watched = watched and kind not in (OPAQUE, DERIVED)
            if kind == OPAQUE:
                continue
            inner = None
            if type(value) in LAYOUTS:
                # Reading `__dict__` makes the interpreter keep one dict object. Its keys are the
                # class's fields, which need not be watched.
                inner = getattr(value, "__dict__", None)
                own.add(id(inner))
            if isinstance(value, dict) and value and id(value) not in own:
                # (An empty dict cannot change without a new referent.)
                self.dicts += (value, FENCE)
                self.keys += (*value, *FENCE)
            found = self.found[id(value)] = gc.get_referents(value)
            self._note(value, found)
            # (since Python 3.13, instances refer to their values without their `__dict__`)
            for below in (*found, inner):
                kind = KINDS[type(below)]
                if kind and id(below) not in met:
                    met.add(id(below))
                    reached.append(below)
                elif kind not in (LEAF, OPAQUE) and id(below) not in own and can_change(below):
                    again.add(len(reached))
                    reached.append(below)
        return watched

    def _note(self, container: Any, found: list[Any]) -> None:
        self.containers += (container, FENCE)
        self.refs += (*found, *FENCE)


_LEAF = Watched()


def capture(
    elements: list[Any], *, copying: bool
) -> tuple[list[Watched], list[Any], dict[int, Any]]:
    """Capture everything reachable from the elements, at one instant if nothing changes.

    Returns the watched containers of each element, copies of the elements, and the source of each
    copied instance by its `id`. Without `copying`, for values that nothing else holds, there are no
    copies.
    """
    if len(KINDS) > _MOST:  # some programs keep defining classes
        KINDS.clear()
        LAYOUTS.clear()
    for _ in range(_TRIES):
        try:
            walk = _Walk()
            watched = [walk.element(element) for element in elements]
            made = _copied(walk.met) if copying else {}
        except RuntimeError:  # it changed at this moment
            continue
        # (a value that changed and changed back may have been copied in between)
        if not copying or (portable_intact(watched) and _are_exact(made, walk.found)):
            break
    else:
        watched = [element._replace(is_opaque=True) for element in watched]
    for copy, original in list(made.values()):
        _rewire(copy, original, made)
    copies = [_copy_of(element, made) for element in elements] if copying else []
    originals = {id(copy): old for copy, old in made.values() if is_state(old)}
    return watched, copies, originals


_Made: TypeAlias = dict[int, tuple[Any, Any]]  # an original's `id`: its copy, and itself


def _copied(met: dict[int, Any]) -> _Made:
    made: _Made = {}
    for address, value in met.items():
        cls: type = type(value)
        if cls in _COPIED:
            made[address] = (value.copy(), value)
        elif KINDS[cls] in (STATE, SETTLED, DERIVED) and cls in LAYOUTS:
            made[address] = (_instance(cls, value), value)
        elif cls is tuple or (issubclass(cls, tuple) and cls in LAYOUTS):
            made[address] = (None, value)  # copied after its items
    return made


def _are_exact(made: _Made, found: dict[int, list[Any]]) -> bool:
    """Return True if copied containers refer to the objects found in the originals."""
    for address, (copy, original) in made.items():
        if type(original) in _COPIED and address in found:
            own = getattr(original, "__dict__", found)  # (of an OrderedDict, which is not copied)
            order = list if type(original) is list else sorted
            before = order([id(one) for one in found[address] if one is not own])
            if order(map(id, gc.get_referents(copy))) != before:
                return False
    return True


def _instance(cls: type, value: Any) -> Any:
    base = next(base for base in (dict, list, set, object) if issubclass(cls, base))
    copy: Any = base.__new__(cls)
    if base is not object:
        vars(base)["extend" if base is list else "update"](copy, value)
    for slot in LAYOUTS[cls][1]:
        try:
            slot.__set__(copy, slot.__get__(value))
        except AttributeError:
            continue
    return copy


def _copy_of(value: Any, made: _Made) -> Any:
    if id(value) not in made:
        return value
    copy, original = made[id(value)]
    if copy is None:  # a tuple
        copy = tuple.__new__(type(original), [_copy_of(item, made) for item in original])
        made[id(value)] = (copy, original)
    return copy


def _rewire(copy: Any, original: Any, made: _Made) -> None:
    """Let a copy refer to copies. Keys and members of sets stay, as they are mostly text."""
    if copy is None or isinstance(copy, tuple):
        copy = _copy_of(original, made)
    elif isinstance(copy, dict):
        put: Any = OrderedDict.__setitem__ if isinstance(copy, OrderedDict) else dict.__setitem__
        for key, value in list(dict.items(copy)):
            put(copy, key, _copy_of(value, made))
    elif isinstance(copy, (list, deque)):
        put = list.__setitem__ if isinstance(copy, list) else deque.__setitem__
        for i, value in enumerate(list(copy)):
            put(copy, i, _copy_of(value, made))
    if KINDS[type(copy)] in (STATE, SETTLED, DERIVED):
        for slot in LAYOUTS[type(copy)][1]:
            try:
                slot.__set__(copy, _copy_of(slot.__get__(copy), made))
            except AttributeError:
                continue
    if LAYOUTS.get(type(copy), (False,))[0]:
        object.__setattr__(copy, "__dict__", _copy_of(original.__dict__, made))


class PortableShadow:
    """Record of a sequence of elements that notices changes. Immutable."""

    __slots__ = ("elements",)

    def __init__(self, elements: Iterable[Watched] = ()) -> None:
        self.elements = tuple(elements)

    @classmethod
    def of(cls, elements: list[Any]) -> PortableShadow:
        """Return the shadow of elements that nothing else changes meanwhile."""
        return cls(capture(elements, copying=False)[0])

    @classmethod
    def of_unwatched(cls, size: int) -> PortableShadow:
        """Return a shadow of so many elements that never holds."""
        return cls([Watched(is_opaque=True)] * size)

    @classmethod
    def joined(cls, parts: Sequence[PortableShadow]) -> PortableShadow:
        """Return the shadow of the parts' elements in a row."""
        return cls(chain.from_iterable([part.elements for part in parts]))

    def extended(self, *others: PortableShadow) -> PortableShadow:
        """Return the shadow of these elements followed by the others'."""
        return self.joined((self, *others))

    def part(self, start: int, stop: int) -> PortableShadow:
        """Return the shadow of the elements `start <= i < stop`."""
        return PortableShadow(self.elements[start:stop])

    @property
    def size(self) -> int:
        return len(self.elements)

    @property
    def opaque(self) -> frozenset[int]:
        """The indexes of the elements that cannot be watched."""
        return frozenset([i for i, element in enumerate(self.elements) if element.is_opaque])

    @property
    def is_opaque(self) -> bool:
        """True if an element cannot be watched."""
        return any(element.is_opaque for element in self.elements)

    def holds(self) -> bool:
        """Return True if every element is unchanged at one instant, never if one is opaque."""
        return not self.is_opaque and self.holds_now()

    def holds_now(self) -> bool:
        """Return True if everything watched is unchanged at one instant."""
        return portable_intact(self.elements)

    def holds_in(self, value: object, keys: list[Any] | None, items: list[Any], size: int) -> bool:
        """Return True if a value has exactly these elements, unchanged except opaque parts."""
        return portable_consists_of(value, keys, items, size) and self.holds_now()

    def changed(self) -> frozenset[int]:
        """The indexes of the elements that changed or cannot be watched."""
        if self.holds_now():
            return self.opaque
        elements = enumerate(self.elements)
        return frozenset([i for i, e in elements if e.is_opaque or not portable_intact([e])])

    def containers(self) -> list[Any]:
        """Return all watched containers that can change by themselves."""
        return [x for e in self.elements for x in e.containers[::2] if can_change(x)]


class WatchedCopies(NamedTuple):
    """Copies of elements at one instant, and the shadow of the elements themselves."""

    copies: list[Any]  # share nothing mutable with the elements except opaque parts
    shadow: Shadow
    originals: dict[int, Any]  # the source of each copied instance, by the copy's `id`


def portable_copy_and_watch(elements: list[Any]) -> WatchedCopies:
    """Copy the elements, and watch them, at one instant."""
    watched, copies, originals = capture(elements, copying=True)
    shadow: Any = PortableShadow(watched)
    return WatchedCopies(copies, shadow, originals)


def portable_disjoint(shadows: list[PortableShadow]) -> list[bool]:
    """Return for each shadow True if its containers occur once, and in none before it."""
    met: set[int] = set()
    answers = []
    for shadow in shadows:
        names = list(map(id, shadow.containers()))
        before = len(met)
        met.update(names)
        answers.append(len(met) - before == len(names))
    return answers


try:
    from threadkeep._core.engine._identity import (
        Shadow,
        behind,
        copy_and_watch,
        disjoint,
        prepare,
        same_front,
    )
except ImportError:  # it could not be compiled
    Shadow = PortableShadow  # type: ignore[misc,assignment] # a class in place of a class
    disjoint, copy_and_watch = portable_disjoint, portable_copy_and_watch  # type: ignore[assignment] # with that class
    behind, same_front = portable_behind, portable_same_front
else:
    prepare(KINDS, LAYOUTS, WatchedCopies)

ONE_LEAF = Shadow.of([None])
"""The shadow of one element that can never change."""

__all__ = [
    "ONE_LEAF",
    "Shadow",
    "WatchedCopies",
    "behind",
    "copy_and_watch",
    "disjoint",
    "same_front",
]
