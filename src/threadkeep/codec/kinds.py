"""Which kind of data class a class is, decided by looking, never by calling it.

Only the classification lives here. Invariant: what is no data class has no kind, so no
data can make it come to life: not a function, not `subprocess.Popen`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinFunctionType, FunctionType
from typing import Any, Generic, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from threadkeep.codec.format import Tag
from threadkeep.codec.wellknown import CODES, PLAIN

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made while the program ran
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: but by C code, such as deque's since 3.12

BASES: tuple[type, ...] = (
    str,
    int,
    float,
    complex,
    bytes,
    bytearray,
    tuple,
    list,
    dict,
    set,
    frozenset,
    OrderedDict,
    datetime,
    date,
    time,
    timedelta,
    Decimal,
    deque,
    defaultdict,
    ZoneInfo,
    UUID,
    IPv4Address,
    IPv6Address,
    IPv4Interface,
    IPv6Interface,
    IPv4Network,
    IPv6Network,
    PosixPath,
    WindowsPath,
    PurePosixPath,
    PureWindowsPath,
    Path,
    PurePath,
)
"""What a subclass may be built on; positions are part of the format."""

PYTHON_BASES = frozenset(BASES[BASES.index(UUID) :])
"""Those that are written in Python: their own state is attributes, too."""

_DUMPS = ("model_dump", "dict", "_asdict", "get_secret_value")
"""Methods by which LangGraph knows that a class, whatever it is built on, is one of data."""

MAX_CLASSES = 1024
"""Classes that a cache remembers: some programs make classes as they go."""


@lru_cache(maxsize=MAX_CLASSES)
def kind_of(cls: type) -> Tag | None:
    """Return the tag that the instances of a data class are written with, else None."""
    if issubclass(cls, BaseException):
        return Tag.EXCEPTION if solid_base(cls).__module__ == "builtins" else None
    if issubclass(cls, Enum):
        return Tag.FLAG if issubclass(cls, Flag) else Tag.ENUM
    if issubclass(cls, BaseModel):
        return Tag.PYDANTIC
    if _is_pydantic_v1(cls):
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
    """Whether attributes are all there is to an instance, as the class itself lets know."""
    return any(
        CODES.get(f"{base.__module__}:{base.__qualname__}") in PLAIN
        or any(isinstance(vars(base).get(name), FunctionType) for name in _DUMPS)
        for base in cls.__mro__
    )


_TRANSPARENT: tuple[Any, ...] = (Generic, Protocol)  # in C or not, they add nothing


def _is_python(cls: type) -> bool:
    """Whether a class statement made the class: then its attributes are all there is to it."""
    made_here = cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE
    makes_itself = isinstance(vars(cls).get("__new__"), BuiltinFunctionType)
    return cls in _TRANSPARENT or (made_here and not makes_itself)


def _inherits(cls: type, name: str) -> bool:
    return any(name in vars(base) for base in cls.__mro__)


def _is_pydantic_v1(cls: type) -> bool:
    module = sys.modules.get("pydantic.v1.main")
    return module is not None and issubclass(cls, vars(module)["BaseModel"])
