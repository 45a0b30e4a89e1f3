"""Fields of dicts, as filters name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_path(name: object) -> bool:
    """Return True for a name that may be a path, such as "user.name"."""
    return isinstance(name, str) and "." in name


def field(value: Mapping[str, Any], name: str) -> Any:
    """Return a field of a dict, or along its path in nested dicts; None if it is missing.

    A field of exactly this name comes before the path.
    """
    if name in value or not is_path(name):
        return value.get(name)
    found: Any = value
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found
