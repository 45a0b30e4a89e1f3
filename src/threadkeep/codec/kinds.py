"""Which kind of data class a class is, decided by looking, never by calling it.

Only the classification lives here. Invariant: what is no data class has no kind, so no
data can make it come to life: not a function, not an exception, not `subprocess.Popen`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from enum import Enum, Flag
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any, Generic, Protocol

from pydantic import BaseModel

from threadkeep.codec.format import Tag

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
)
"""What a subclass may be built on; positions are part of the format."""


@lru_cache(maxsize=2048)
def kind_of(cls: type) -> Tag | None:
    """Return the tag that the instances of a data class are written with, else None."""
    if issubclass(cls, BaseException):
        return None
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
    return Tag.ATTRS if _inherits(cls, "__attrs_attrs__") else None


def solid_base(cls: type) -> type:
    """Return the nearest base that is not written in Python: it decides what an instance is."""
    return next(base for base in cls.__mro__ if not _is_python(base))


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
