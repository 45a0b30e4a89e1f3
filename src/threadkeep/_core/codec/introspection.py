"""Inspection of classes, instances and encoded bytes without running any of their code.

Only data classes have a kind, so stored data cannot create instances of other classes. No property,
`__getattr__`, `__setattr__` or `__init__` is called. ormsgpack limits its recursion in C only
within one call, and objects within objects are nested calls: hence the depth measures here.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property, lru_cache
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType
from typing import Any, Generic, NamedTuple, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
from pydantic import BaseModel

from threadkeep._core.codec.format import CODES, PLAIN, Tag

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: created at run time
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: created by C code, as deque since 3.12

ADDRESSES: tuple[Any, ...] = (
    *(ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Interface),
    *(ipaddress.IPv6Interface, ipaddress.IPv4Network, ipaddress.IPv6Network),
)
PATHS: tuple[Any, ...] = (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)

BASES: tuple[type, ...] = (
    *(str, int, float, complex, bytes, bytearray, tuple, list, dict, set, frozenset, OrderedDict),
    *(datetime, date, time, timedelta, Decimal, deque, defaultdict, ZoneInfo, UUID),
    *(*ADDRESSES, *PATHS, Path, PurePath),
)
"""Built-in types that a subclass may have as its base. The order is part of the format."""

PYTHON_BASES = frozenset(BASES[BASES.index(UUID) :])
"""Bases written in Python, whose own state is attributes too."""

_DUMPS = ("model_dump", "dict", "_asdict", "get_secret_value")
"""Methods by which LangGraph recognizes a data class."""

MAX_CLASSES = 1024
"""Limit of the caches of classes: some programs keep creating classes."""


@lru_cache(maxsize=MAX_CLASSES)
def kind_of(cls: type) -> Tag | None:
    """Return the tag that instances of a data class are written with, or None."""
    if issubclass(cls, BaseException):
        return Tag.EXCEPTION if solid_base(cls).__module__ == "builtins" else None
    if issubclass(cls, Enum):
        return Tag.FLAG if issubclass(cls, Flag) else Tag.ENUM
    if issubclass(cls, BaseModel):
        return Tag.PYDANTIC
    v1 = sys.modules.get("pydantic.v1.main")
    if v1 is not None and issubclass(cls, vars(v1)["BaseModel"]):
        return Tag.PYDANTIC_V1
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
    """Return the nearest base that decides the memory layout: built-in, or written in C."""
    return next(base for base in cls.__mro__ if base in PYTHON_BASES or not _is_python(base))


def _is_plain(cls: type) -> bool:
    """Return True if a class declares that its attributes are all of its state."""
    return any(
        CODES.get(f"{base.__module__}:{base.__qualname__}") in PLAIN
        or any(isinstance(vars(base).get(name), FunctionType) for name in _DUMPS)
        for base in cls.__mro__
    )


_TRANSPARENT: tuple[Any, ...] = (Generic, Protocol)  # they add no state, even if written in C


def _is_python(cls: type) -> bool:
    """Return True if a class statement made the class, so that it only adds attributes."""
    made_here = cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE
    makes_itself = isinstance(vars(cls).get("__new__"), BuiltinFunctionType)
    return cls in _TRANSPARENT or (made_here and not makes_itself)


def _inherits(cls: type, name: str) -> bool:
    return any(name in vars(base) for base in cls.__mro__)


_new = object.__new__
_NOT_STATE = frozenset({"__orig_class__", "_attrs_cached_hash"})
"""A type argument noted by typing, and a hash that is valid in one process only."""


class Layout(NamedTuple):
    """Places of the attributes in the instances of a class."""

    slots: dict[str, MemberDescriptorType]
    has_dict: bool
    skipped: frozenset[str]


@lru_cache(maxsize=MAX_CLASSES)
def layout(cls: type) -> Layout:
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
    """Set the attributes, except those that the class no longer has."""
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
    # attrs reads this slot before it computes the hash, so it must be set.
    if (cached_hash := where.slots.get("_attrs_cached_hash")) is not None:
        cached_hash.__set__(instance, None)


def rebuild(cls: type, state: dict[str, Any]) -> Any:
    instance: Any = _new(cls)
    set_attributes(instance, state)
    return instance


LIMIT = 254
"""Levels of lists and dicts that ormsgpack packs in one call."""

SHALLOW = 4
"""Objects within objects are not measured up to this depth: the stack holds four calls."""

_CONTAINERS = bytes((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
_OTHERS = bytes(set(range(256)) - set(_CONTAINERS))


def depth_of_value(value: Any, level: int = 0) -> int:
    """Count the levels of lists and dicts in a value, up to `LIMIT` + 1."""
    kind = type(value)
    if level > LIMIT or (kind is not list and kind is not dict):
        return level
    inside = value if kind is list else value.values()
    return max((depth_of_value(item, level + 1) for item in inside), default=level + 1)


def depth_of_bytes(data: bytes) -> int:
    """Count the levels of arrays and maps in msgpack, or up to `SHALLOW` an upper bound."""
    bound = len(data.translate(None, _OTHERS))
    return bound if bound <= SHALLOW else _exact(data)


def _exact(data: bytes) -> int:
    open_counts: list[int] = []
    at = deepest = 0
    while at < len(data):
        at, children = _step(data, at)
        if open_counts:
            open_counts[-1] -= 1
        if children:
            open_counts.append(children)
            deepest = max(deepest, len(open_counts))
        while open_counts and not open_counts[-1]:
            open_counts.pop()
    return deepest


# Marker -> (bytes of the length that follows, further bytes that it does not count)
_SIZED = {
    **{0xC4 + i: (1 << i, 0) for i in range(3)},  # bytes
    **{0xC7 + i: (1 << i, 1) for i in range(3)},  # extensions: a tag before the payload
    **{0xD9 + i: (1 << i, 0) for i in range(3)},  # text
}
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # children per count
_FIXED = {
    **dict(zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True)),  # numbers
    **{0xD4 + i: 1 + (1 << i) for i in range(5)},  # extensions of a fixed size
}


def _step(data: bytes, at: int) -> tuple[int, int]:
    mark = data[at]
    at += 1
    if 0x80 <= mark < 0xA0:  # noqa: PLR2004 - a small map or array
        return at, (mark & 15) * (2 if mark < 0x90 else 1)  # noqa: PLR2004
    if 0xA0 <= mark < 0xC0:  # noqa: PLR2004 - short text
        return at + (mark & 31), 0
    if mark in _COUNTED:
        width, per = _COUNTED[mark]
        return at + width, int.from_bytes(data[at : at + width], "big") * per
    if mark in _SIZED:
        width, beside = _SIZED[mark]
        return at + width + beside + int.from_bytes(data[at : at + width], "big"), 0
    return at + _FIXED.get(mark, 0), 0


_TYPE = bytes((Tag.REFERENCE,))
# The extension's header and the pair inside: a list of two numbers of up to 9 bytes each.
_HEADER = re.compile(b"(?:[\xd4-\xd8]|\xc7([\x03-\x13]))" + re.escape(_TYPE) + b"(?=\x92)")
_PAYLOADS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class Reference(NamedTuple):
    """Address of an element: `size` bytes of a value, from `at` on."""

    log: int
    pos: int
    size: int
    at: int


def references(data: bytes) -> Iterator[Reference]:
    """Yield all references in the bytes of a value, at any depth, and text that looks like one."""
    for header in _HEADER.finditer(data):
        first = data[header.start()]
        length = _PAYLOADS[first] if header[1] is None else header[1][0]
        try:
            pair = ormsgpack.unpackb(data[header.end() : header.end() + length])
        except ValueError:
            continue
        if len(pair) == 2 and all(type(number) is int for number in pair):  # noqa: PLR2004 - a pair
            yield Reference(pair[0], pair[1], len(header[0]) + length, header.start())
