"""What values are made of, as far as a difference looks into them.

Invariant: reading a part runs no code of the value's class, and no part is changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from threadkeep.codec import introspection
from threadkeep.engine.capture import is_state

_EXTRA = "__pydantic_extra__"
_UNTOLD = ("__pydantic_fields_set__", "__pydantic_private__")


def fields(value: object) -> dict[str, Any] | None:
    """The fields of a message, model, dataclass or named tuple; None of anything else."""
    names = getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple):
        return dict(zip(names, value, strict=False))
    if not is_state(value):
        return None
    found = introspection.read_attributes(value)
    extra = found.pop(_EXTRA, None)
    for name in _UNTOLD:
        found.pop(name, None)
    return {**found, **extra} if type(extra) is dict else found


def items(value: object) -> Sequence[Any] | None:
    """The elements of a list, tuple or deque."""
    return list(value) if isinstance(value, list | tuple | deque) else None


def mapping(value: object) -> Mapping[Any, Any] | None:
    """A dict, of whatever class."""
    return value if isinstance(value, dict) else None


def id_of(value: object) -> str | int | None:
    """What names the value among others, in its field or key `id`; None if nothing does."""
    named = mapping(value)
    if named is None:
        named = fields(value) or {}
    found = named.get("id")
    return found if type(found) in (str, int) else None
