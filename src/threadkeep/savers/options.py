"""Options of a saver: their names, and the validation of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from threadkeep._core.codec import SerdeCodec
from threadkeep._core.validation import duration, is_count
from threadkeep.errors import InvalidArgumentError, invalid


def _is_text(value: object) -> bool:
    return isinstance(value, str | None)


def _is_time(value: object) -> bool:
    return value is None or bool(duration("gc_every", value))


def _is_serde(value: Any) -> bool:
    return value is None or bool(SerdeCodec(value))


_CLASSES = {  # (imported where a value is given)
    "compression": ("_core.codec", "Compression(level=3)"),
    "group_commit": ("_run.group_commit", "GroupCommit()"),
    "write_behind": ("_run.write_behind", "WriteBehind()"),
    "cache": ("_core.policies", "ReadCache(threads=1000)"),
    "tiering": ("_core.policies", "Tiering()"),
    "retention": ("_core.policies", "Retention(keep_last=10)"),
}
_OTHERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "conflicts": (lambda value: value in ("fork", "raise"), 'Use "fork" or "raise".'),
    "serde": (_is_serde, ""),
    "pickle_fallback": (lambda value: type(value) is bool, "Use True or False."),
    "working_set_bytes": (lambda value: is_count(value, 0), "Use a number of bytes, 0 or more."),
    "hot": (_is_text, "Use the URL of a Redis server."),
    "cold": (_is_text, "Use the URL of a cold store, such as file:///folder or s3://bucket/path."),
    "gc_every": (_is_time, ""),
    "gc_on_put": (
        lambda value: value is None or is_count(value, 1),
        "Use a number of checkpoints, 1 or more.",
    ),
}
NAMES = (*_OTHERS, *_CLASSES)


def pop_named(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove options of these names from those given, and return them."""
    return {name: given.pop(name) for name in names if name in given}


def pop_options(given: dict[str, Any]) -> dict[str, Any]:
    """Remove a saver's options from those given, and return them; the backend's are left."""
    own = pop_named(given, NAMES)
    check_options(own)
    return own


def check_options(given: Mapping[str, Any]) -> None:
    """Validate the options that are given."""
    for name, value in given.items():
        if name in _CLASSES:
            _check_class(name, value)
        elif name not in _OTHERS:
            raise InvalidArgumentError(
                f"Unknown option: {name!r}.", hint=f"Options of a saver: {', '.join(NAMES)}."
            )
        elif not _OTHERS[name][0](value):
            raise invalid(name, value, _OTHERS[name][1])
    if given.get("write_behind") is not None and given.get("conflicts") == "raise":
        raise InvalidArgumentError(
            'write_behind= and conflicts="raise" exclude each other: a save that has returned'
            " cannot raise a conflict.",
            hint="Leave one of them out.",
        )


def _check_class(name: str, value: object) -> None:
    module, example = _CLASSES[name]
    kind = example.partition("(")[0]
    if value is not None and not isinstance(
        value, getattr(import_module(f"threadkeep.{module}"), kind)
    ):
        raise invalid(name, value, f"Use a threadkeep.{kind}, such as {example}.")
