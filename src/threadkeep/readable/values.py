"""Values of channels: their kind in a few words, and their content as JSON knows it.

Not for loading again: types are lost, and keys that are no text become text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from pydantic_core import to_json

_SIZED = (Mapping, Sequence, AbstractSet)
_WHOLE = (str, bytes, bytearray, memoryview)  # not to be taken apart
_DEEPEST = 200  # no value that people made is deeper


class Summary(NamedTuple):
    """A channel's value in short: what it is, and its bytes as UTF-8 JSON."""

    kind: str
    bytes: int


def plain(value: Any) -> Any:
    """The value as JSON knows it; what JSON does not know is its text, or its `repr`.

    Bytes are base64, infinite numbers and NaN are their names.
    """
    try:
        data = to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=repr)
        return json.loads(data)
    except (ValueError, RecursionError):  # no Unicode, cyclic, or too deep
        return _by_hand(value, _DEEPEST)


def _by_hand(value: Any, depth: int) -> Any:
    """The same for what pydantic refuses: containers item by item, all else as it can be said."""
    if isinstance(value, str):
        return str(value)  # (json.dumps writes half a surrogate as an escape)
    if depth and isinstance(value, Mapping):
        return {str(k): _by_hand(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, _SIZED) and not isinstance(value, _WHOLE):
        return [_by_hand(item, depth - 1) for item in value]
    if value is None or isinstance(value, bool | int):
        return value
    return _repr(value)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - it is the value's own code that fails
        return f"<{type(value).__name__}: {type(error).__name__} in its repr>"


def kind(value: Any) -> str:
    """What a value is, in a few words: `list of 3`, `str`, `AIMessage`."""
    name = type(value).__name__
    if isinstance(value, _SIZED) and not isinstance(value, _WHOLE):
        return f"{name} of {len(value)}"
    return name


def summary(value: Any) -> Summary:
    """What a value is, and how large."""
    return Summary(kind(value), len(json.dumps(plain(value), ensure_ascii=False).encode(*_AS_TEXT)))


_AS_TEXT = ("utf-8", "surrogatepass")
