"""Whether two values are the same, types and order included.

For values rebuilt at every step (a pydantic state validates its lists anew), where
identity says nothing. Invariant: True only if both encode to the same bytes; a kind of
value not known here is never the same (which costs an encoding, not correctness).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from threadkeep.codec.introspection import layout
from threadkeep.engine.capture import is_state

_PLAIN = (str, bytes, int, bool, type(None))
_STATE_PARTS = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
_PYDANTIC_SLOTS = {*_STATE_PARTS, "__pydantic_fields_set__"}


def same(a: Any, b: Any) -> bool:
    """Whether `a` and `b` are the same value. Cyclic values are not compared: False."""
    try:
        return _same(a, b)
    except RecursionError:
        return False


def _same(a: Any, b: Any) -> bool:
    cls = type(a)
    if cls is not type(b):
        return False
    if cls in _PLAIN:
        return bool(a == b)
    if a is b:
        return True
    compare = _BY_TYPE.get(cls)
    if compare is not None:
        return compare(a, b)
    return is_state(a) and _same_state(a, b)


def _same_float(a: float, b: float) -> bool:
    return a == b and math.copysign(1, a) == math.copysign(1, b)


def _same_items(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(_same, list(a), list(b)))


def _same_dict(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    return (
        len(a) == len(b)
        and _same_items(list(a), list(b))
        and _same_items(list(a.values()), list(b.values()))
    )


def _same_set(a: Any, b: Any) -> bool:
    # The order of equal sets may differ, and with it their bytes: order counts.
    return _same_items(a, b)


@lru_cache(maxsize=1024)
def _has_slots(cls: type) -> bool:
    """Whether instances keep attributes elsewhere than where `_same_state` looks."""
    where = layout(cls)
    return not where.has_dict or not where.slots.keys() <= _PYDANTIC_SLOTS


def _same_state(a: object, b: object) -> bool:
    cls: type = type(a)
    if _has_slots(cls):
        return False
    if getattr(a, "__pydantic_fields_set__", None) != getattr(b, "__pydantic_fields_set__", None):
        return False
    return all(_same(getattr(a, p, None), getattr(b, p, None)) for p in _STATE_PARTS)


_BY_TYPE: dict[type, Callable[[Any, Any], bool]] = {
    float: _same_float,
    list: _same_items,
    tuple: _same_items,
    dict: _same_dict,
    set: _same_set,
    frozenset: _same_set,
}
