"""Strict comparison: the same types and values at every level."""

import math
import re
import struct
from collections import OrderedDict, defaultdict, deque
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pydantic
import pydantic.v1


def same(a: Any, b: Any) -> bool:
    """Return True if two values are equal in type and value, at every level."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Enum):
        return a is b
    for kind, compare in _COMPARISONS:
        if isinstance(a, kind):
            return compare(a, b) and _same_attributes(a, b)
    return _same_attributes(a, b) if _attributes(a) else a == b


def _same_float(a: float, b: float) -> bool:
    return struct.pack(">d", a) == struct.pack(">d", b) or (math.isnan(a) and math.isnan(b))


def _same_dict(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    same_items = [*map(same, a.keys(), b.keys()), *map(same, a.values(), b.values())]
    factories = [getattr(x, "default_factory", None) for x in (a, b)]
    return len(a) == len(b) and all(same_items) and factories[0] is factories[1]


def _same_sequence(a: Any, b: Any) -> bool:
    bounds = [getattr(x, "maxlen", None) for x in (a, b)]
    return len(a) == len(b) and bounds[0] == bounds[1] and all(map(same, a, b))


def _same_set(a: Any, b: Any) -> bool:
    left = list(b)
    for member in a:
        found = next((x for x in left if same(member, x)), left)
        if found is left:
            return False
        left = [x for x in left if x is not found]
    return not left


def _same_time(a: Any, b: Any) -> bool:
    parts = ("fold", "tzinfo", "microsecond")
    return str(a) == str(b) and all(same(getattr(a, p, None), getattr(b, p, None)) for p in parts)


def _same_array(a: Any, b: Any) -> bool:
    whole = a.flags.c_contiguous or a.flags.f_contiguous  # a view comes back as an array
    flags = ("f_contiguous", "c_contiguous", "writeable") if whole else ("writeable",)
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.tobytes() == b.tobytes()
        and all(getattr(a.flags, flag) == getattr(b.flags, flag) for flag in flags)
    )


def _same_model(a: Any, b: Any) -> bool:
    names = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
    return same(a.__dict__, b.__dict__) and all(
        same(getattr(a, name), getattr(b, name)) for name in names
    )


def _same_model_v1(a: Any, b: Any) -> bool:
    private = a.__private_attributes__
    return (
        same(a.__dict__, b.__dict__)
        and same(a.__fields_set__, b.__fields_set__)
        and all(same(getattr(a, name), getattr(b, name)) for name in private)
    )


def _attributes(value: Any) -> dict[str, Any]:
    if type(value).__module__.partition(".")[0] not in ("codec_models", "langgraph"):
        return {}  # a library's own attributes may be caches
    if isinstance(value, (pydantic.BaseModel, pydantic.v1.BaseModel)):
        return {}
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__weakref__", "__dict__", "_attrs_cached_hash") and hasattr(
                value, name
            ):
                found[name] = getattr(value, name)
    return found


def _same_attributes(a: Any, b: Any) -> bool:
    left, right = _attributes(a), _attributes(b)
    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


_COMPARISONS: tuple[tuple[Any, Any], ...] = (
    ((pd.DataFrame, pd.Series, pd.Index), lambda a, b: a.equals(b)),
    (np.ndarray, _same_array),
    (np.generic, lambda a, b: a.dtype == b.dtype and a.tobytes() == b.tobytes()),
    (pydantic.BaseModel, _same_model),
    (pydantic.v1.BaseModel, _same_model_v1),
    ((pydantic.SecretStr, pydantic.SecretBytes), lambda a, b: a == b),
    (float, _same_float),
    (complex, lambda a, b: _same_float(a.real, b.real) and _same_float(a.imag, b.imag)),
    (Decimal, lambda a, b: str(a) == str(b)),
    ((dict, OrderedDict, defaultdict), _same_dict),
    ((list, tuple, deque), _same_sequence),
    ((set, frozenset), _same_set),
    ((datetime, date, time), _same_time),
    (re.Pattern, lambda a, b: same(a.pattern, b.pattern) and a.flags == b.flags),
    (UUID, lambda a, b: a == b and a.is_safe is b.is_safe),
    ((str, bytes, bytearray, int), lambda a, b: a == b),
)
