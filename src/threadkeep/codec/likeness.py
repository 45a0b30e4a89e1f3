"""Stand-ins for values without an exact form, as LangGraph's serializer makes them.

Only values that `JsonPlusSerializer` takes are here: a graph that runs on LangGraph's savers
must run on ours. Invariant: what is not listed has no stand-in. One that is a container is
made only of a value that is refused for itself, never for what is in it, so that no content
is encoded twice.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from typing import Any

from threadkeep.codec.kinds import kind_of
from threadkeep.codec.subclasses import plain_value
from threadkeep.codec.values import has_known_factory

_SIMPLE = (str, int)
_NOT_TAKEN = (float, tuple, bytes, bytearray, complex)  # subclasses of them, by LangGraph


def likeness(value: Any) -> Any:
    """Return what LangGraph's savers give for a value that was refused; None if there is nothing.

    - an exception: its `repr`
    - a time in a zone of another library: with the offset that it has
    - a defaultdict with a function: a plain dict
    - a subclass of a built-in type that is written in C, or of str or int with attributes
      that cannot be stored: the plain value
    - a subclass of a NumPy array: a plain array
    """
    try:
        return _likeness(value)
    except Exception:  # noqa: BLE001 - a `repr` of the program, a zone of another library
        return None


def _likeness(value: Any) -> Any:
    cls: Any = type(value)
    if isinstance(value, BaseException):
        return repr(value)
    if isinstance(value, defaultdict):
        return None if has_known_factory(value) else dict(dict.items(value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return _with_offset(value)
    if isinstance(value, _SIMPLE) or kind_of(cls) is None:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return None if cls is numpy.ndarray else value.view(numpy.ndarray)
        return None if isinstance(value, _NOT_TAKEN) else plain_value(value)
    return None


def _with_offset(value: Any) -> datetime | None:
    """A datetime, or a `Timestamp` of pandas."""
    offset: timedelta | None = value.utcoffset()
    zone = None if offset is None else timezone(offset)
    if type(value) is datetime:
        return value.replace(tzinfo=zone)
    return value.tz_convert(zone) if hasattr(value, "tz_convert") else None
