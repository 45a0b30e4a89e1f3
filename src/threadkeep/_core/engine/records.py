"""A compiled constructor for records (NamedTuples) that every save or load makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

construct: Callable[..., None] | None
try:
    from threadkeep._core.engine._records import construct
except ImportError:  # it could not be compiled
    construct = None


def quick(cls: T) -> T:
    """Let a NamedTuple be made by the compiled constructor, if there is one.

    Results and errors are the class's own. Its subclasses keep NamedTuple's own constructor.
    """
    if construct is not None:
        record: Any = cls
        fields, defaults = record._fields, record._field_defaults
        construct(record, fields, tuple([defaults.get(name, ...) for name in fields]))
    return cls
