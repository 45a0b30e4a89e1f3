"""The attributes of an instance, read and set without running any of its code.

Only the walk over `__dict__` and `__slots__` lives here. Invariant: no property,
`__getattr__`, `__setattr__` or `__init__` of the class is called, so that neither
storing nor loading can run what a class defines, or what data names.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from types import MemberDescriptorType
from typing import Any, NamedTuple

from threadkeep.codec.kinds import MAX_CLASSES

_new = object.__new__
_NOT_STATE = frozenset({"__orig_class__", "_attrs_cached_hash"})
"""Typing's note of a type argument, and a hash that another process would not share."""


class Layout(NamedTuple):
    """Where the instances of a class keep their attributes."""

    slots: dict[str, MemberDescriptorType]
    has_dict: bool
    skipped: frozenset[str]


@lru_cache(maxsize=MAX_CLASSES)
def layout(cls: type) -> Layout:
    """Work out a class's layout from its bases."""
    slots: dict[str, MemberDescriptorType] = {}
    cached = set()
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if type(member) is MemberDescriptorType and "__slots__" in vars(base):
                slots[name] = member
            elif isinstance(member, cached_property):
                cached.add(name)
    return Layout(slots, cls.__dictoffset__ != 0, _NOT_STATE | cached)


def read(instance: Any) -> dict[str, Any]:
    """Return the attributes that are set, without what can be computed again."""
    cls: type = type(instance)
    where = layout(cls)
    state = {}
    for name, slot in where.slots.items():
        try:
            state[name] = slot.__get__(instance)
        except AttributeError:
            continue
    if where.has_dict:
        state.update(object.__getattribute__(instance, "__dict__"))
    if not where.skipped.isdisjoint(state):
        for name in where.skipped & state.keys():
            del state[name]
    return state


def fill(instance: Any, state: dict[str, Any]) -> None:
    """Set the attributes; a name for which the class has no place any more is dropped."""
    cls: type = type(instance)
    where = layout(cls)
    own = object.__getattribute__(instance, "__dict__") if where.has_dict else {}
    if not where.slots:
        own.update(state)
        return
    for name, value in state.items():
        slot = where.slots.get(name)
        if slot is None:
            own[name] = value
        else:
            slot.__set__(instance, value)
    # attrs reads this slot before it computes the hash: it must not be unset.
    if (cached_hash := where.slots.get("_attrs_cached_hash")) is not None:
        cached_hash.__set__(instance, None)


def rebuild(cls: type, state: dict[str, Any]) -> Any:
    """Return a new instance with these attributes."""
    instance: Any = _new(cls)
    fill(instance, state)
    return instance
