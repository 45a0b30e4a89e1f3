"""A difference as data that JSON can hold.

Pure functions. Invariant: the result is made of dicts with text keys, lists, text, finite
numbers, booleans and None alone, whatever the values are.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from threadkeep.diff import parts
from threadkeep.diff.records import (
    Change,
    ChannelDiff,
    DiffSide,
    Path,
    TextEdit,
)

CLASS = "__class__"  # the key that names the class of what has fields
_DEEPEST = 32


def value(given: Any, depth: int = _DEEPEST) -> Any:
    """A value; what has fields as a dict of them, bytes in base64, all else as text."""
    if given is None or type(given) in (bool, int, str):
        return given
    if type(given) is float:
        return given if math.isfinite(given) else repr(given)
    if type(given) is bytes:
        return base64.b64encode(given).decode()
    if not depth:
        return _text(given)
    fields = parts.fields(given)
    if fields is not None:
        return {CLASS: type(given).__name__, **_dict(fields, depth)}
    if isinstance(given, dict):
        return _dict(given, depth)
    if isinstance(given, set | frozenset):
        return sorted([value(item, depth - 1) for item in given], key=repr)
    items = parts.items(given)
    return _text(given) if items is None else [value(item, depth - 1) for item in items]


def _dict(given: dict[Any, Any], depth: int) -> dict[str, Any]:
    return {_key(key): value(part, depth - 1) for key, part in given.items()}


def _key(key: Any) -> str:
    return key if type(key) is str else _text(key)


def _text(given: Any) -> str:
    """What the value calls itself, whatever its `__str__` does."""
    try:
        return str.__str__(str(given))
    except Exception:  # noqa: BLE001 - it is the program's own code
        return f"<{type(given).__qualname__}>"


def path(given: Path) -> list[Any]:
    """Where in a value."""
    return [step if type(step) in (int, str) else _text(step) for step in given]


def change(given: Change) -> dict[str, Any]:
    """One change; without `before` where it was added, without `after` where removed."""
    told: dict[str, Any] = {
        "kind": given.kind,
        "before_at": path(given.before_at),
        "after_at": path(given.after_at),
    }
    if given.kind != "added":
        told["before"] = value(given.before)
    if given.kind != "removed":
        told["after"] = value(given.after)
    if given.text:
        told["text"] = [_edit(edit) for edit in given.text]
    return told


def _edit(given: TextEdit) -> dict[str, Any]:
    return {
        "before_at": given.before_at,
        "after_at": given.after_at,
        "before": given.before,
        "after": given.after,
    }


def channel(given: ChannelDiff) -> dict[str, Any]:
    """One channel."""
    return {
        "kind": given.kind,
        "before_version": value(given.before_version),
        "after_version": value(given.after_version),
        "is_delta": given.is_delta,
        "is_internal": given.is_internal,
        "changes": [change(one) for one in given.changes],
    }


def state(before: DiffSide, after: DiffSide, channels: Mapping[str, ChannelDiff]) -> dict[str, Any]:
    """A whole difference."""
    return {
        "before": _side(before),
        "after": _side(after),
        "channels": {name: channel(one) for name, one in channels.items()},
    }


def _side(given: DiffSide) -> dict[str, Any]:
    return {
        "thread": given.thread,
        "ns": given.ns,
        "checkpoint": given.checkpoint,
        "time": given.time,
        "step": value(given.step),
        "source": value(given.source),
    }
