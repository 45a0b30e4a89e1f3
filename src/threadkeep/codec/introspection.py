"""Inspection of classes and instances without running any of their code.

Only data classes have a kind, so no data can bring anything else to life: no function, no
`subprocess.Popen`. No property, `__getattr__`, `__setattr__` or `__init__` is called.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property, lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType
from typing import Any, Generic, NamedTuple, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from threadkeep.codec.format import CODES, PLAIN, Tag

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made while the program ran
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: but by C code, such as deque's since 3.12

ADDRESSES: tuple[Any, ...] = (
    *(IPv4Address, IPv6Address, IPv4Interface, IPv6Interface, IPv4Network, IPv6Network),
)
PATHS: tuple[Any, ...] = (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)

BASES: tuple[type, ...] = (
    *(str, int, float, complex, bytes, bytearray, tuple, list, dict, set, frozenset, OrderedDict),
    *(datetime, date, time, timedelta, Decimal, deque, defaultdict, ZoneInfo, UUID),
    *(*ADDRESSES, *PATHS, Path, PurePath),
)
"""Built-in types that a subclass may have as its base; positions are part of the format."""

PYTHON_BASES = frozenset(BASES[BASES.index(UUID) :])
"""Bases that are written in Python: their own state is attributes, too."""

_DUMPS = ("model_dump", "dict", "_asdict", "get_secret_value")
"""Methods by which LangGraph recognizes any class as one of data."""

MAX_CLASSES = 1024
"""Classes that a cache remembers: some programs make classes as they go."""


# -- classes ---------------------------------------------------------------------------


@lru_cache(maxsize=MAX_CLASSES)
def kind_of(cls: type) -> Tag | None:
    """Return the tag that the instances of a data class are written with, else None."""
    if issubclass(cls, BaseException):
        return Tag.EXCEPTION if solid_base(cls).__module__ == "builtins" else None
    if issubclass(cls, Enum):
        return Tag.FLAG if issubclass(cls, Flag) else Tag.ENUM
    if issubclass(cls, BaseModel):
        return Tag.PYDANTIC
    v1 = sys.modules.get("pydantic.v1.main")
    if v1 is not None and issubclass(cls, vars(v1)["BaseModel"]):
        return Tag.PYDANTIC_V1
    return _kind_by_base(cls)


def _kind_by_base(cls: type) -> Tag | None:
    base = solid_base(cls)
    if base is tuple and _inherits(cls, "_fields") and _inherits(cls, "_field_defaults"):
        return Tag.NAMEDTUPLE
    if base in BASES and cls not in BASES:
        return Tag.SUBCLASS
    if base is not object:
        return None
    if _inherits(cls, "__dataclass_fields__"):
        return Tag.DATACLASS
    if _inherits(cls, "__attrs_attrs__"):
        return Tag.ATTRS
    return Tag.PLAIN if _is_plain(cls) else None


def solid_base(cls: type) -> type:
    """Return the nearest base that decides what an instance is: a built-in, or one in C."""
    return next(base for base in cls.__mro__ if base in PYTHON_BASES or not _is_python(base))


def _is_plain(cls: type) -> bool:
    """Tell whether the class declares that attributes are all there is to an instance."""
    return any(
        CODES.get(f"{base.__module__}:{base.__qualname__}") in PLAIN
        or any(isinstance(vars(base).get(name), FunctionType) for name in _DUMPS)
        for base in cls.__mro__
    )


_TRANSPARENT: tuple[Any, ...] = (Generic, Protocol)  # in C or not, they add nothing


def _is_python(cls: type) -> bool:
    """Tell whether a class statement made the class: then it adds attributes only."""
    made_here = cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE
    makes_itself = isinstance(vars(cls).get("__new__"), BuiltinFunctionType)
    return cls in _TRANSPARENT or (made_here and not makes_itself)


def _inherits(cls: type, name: str) -> bool:
    return any(name in vars(base) for base in cls.__mro__)


# -- attributes of instances -----------------------------------------------------------

_new = object.__new__
_NOT_STATE = frozenset({"__orig_class__", "_attrs_cached_hash"})
"""Typing's note of a type argument, and a hash that another process would not share."""


class Layout(NamedTuple):
    """Places of the attributes in the instances of a class."""

    slots: dict[str, MemberDescriptorType]
    has_dict: bool
    skipped: frozenset[str]


@lru_cache(maxsize=MAX_CLASSES)
def layout(cls: type) -> Layout:
    """Return a class's layout."""
    slots: dict[str, MemberDescriptorType] = {}
    cached = set()
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if type(member) is MemberDescriptorType and "__slots__" in vars(base):
                slots[name] = member
            elif isinstance(member, cached_property):
                cached.add(name)
    return Layout(slots, cls.__dictoffset__ != 0, _NOT_STATE | cached)


def read_attributes(instance: Any) -> dict[str, Any]:
    """Return the attributes that are set, without those that can be computed again."""
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


def set_attributes(instance: Any, state: dict[str, Any]) -> None:
    """Set the attributes, without those that the class has no place for any more."""
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
    set_attributes(instance, state)
    return instance
