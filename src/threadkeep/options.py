"""Options of a saver: their names, and the validation of their values."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from threadkeep.codec import SerdeCodec
from threadkeep.errors import InvalidArgumentError, invalid

NAMES = (
    "conflicts",
    "serde",
    "compression",
    "pickle_fallback",
    "working_set_bytes",
    "group_commit",
    "write_behind",
    "cache",
    "hot",
    "cold",
    "tiering",
    "retention",
    "gc_every",
    "gc_on_put",
)

_TEXTS = {
    "hot": "Use the URL of a Redis server.",
    "cold": "Use the URL of a cold store, such as file:///folder or s3://bucket/path.",
}
_CLASSES = {  # (imported where a value is given)
    "compression": ("codec", "Compression(level=3)"),
    "group_commit": ("backends.group_commit", "GroupCommit()"),
    "write_behind": ("write_behind", "WriteBehind()"),
    "cache": ("cache", "Cache(threads=1000)"),
    "tiering": ("cold.policy", "Tiering()"),
    "retention": ("retention.policy", "Retention(keep_last=10)"),
}


def pop_options(given: dict[str, Any]) -> dict[str, Any]:
    """Remove these options from those given, and return them; the backend's are left.

    Raises:
        InvalidArgumentError: see `check_options`.
    """
    own = {name: given.pop(name) for name in NAMES if name in given}
    check_options(own)
    return own


def check_options(given: Mapping[str, Any]) -> None:
    """Validate the options that are given.

    Raises:
        InvalidArgumentError: one is unknown, or its value is invalid.
    """
    unknown = sorted(given.keys() - set(NAMES))
    if unknown:
        raise InvalidArgumentError(
            f"Unknown option: {unknown[0]!r}.", hint=f"Options of a saver: {', '.join(NAMES)}."
        )
    if given.get("conflicts", "fork") not in ("fork", "raise"):
        raise invalid("conflicts", given["conflicts"], 'Use "fork" or "raise".')
    if given.get("serde") is not None:
        SerdeCodec(given["serde"])
    _check_kinds(given)
    if not isinstance(given.get("pickle_fallback", False), bool):
        raise invalid("pickle_fallback", given["pickle_fallback"], "Use True or False.")
    if given.get("write_behind") is not None and given.get("conflicts") == "raise":
        raise InvalidArgumentError(
            'write_behind= and conflicts="raise" exclude each other: a save that has returned'
            " cannot raise a conflict.",
            hint="Leave one of them out.",
        )
    _check_gc(given)
    most = given.get("working_set_bytes", 0)
    if not isinstance(most, int) or most < 0:
        raise invalid("working_set_bytes", most, "Use a number of bytes, 0 or more.")


def _check_kinds(given: Mapping[str, Any]) -> None:
    for name, hint in _TEXTS.items():
        if not isinstance(given.get(name), str | None):
            raise invalid(name, given[name], hint)
    for name, (module, example) in _CLASSES.items():
        if (value := given.get(name)) is None:
            continue
        kind = example.partition("(")[0]
        if not isinstance(value, getattr(import_module(f"threadkeep.{module}"), kind)):
            raise invalid(name, value, f"Use a threadkeep.{kind}, such as {example}.")


def _check_gc(given: Mapping[str, Any]) -> None:
    if given.get("gc_every") is not None:
        from threadkeep.validation import duration  # noqa: PLC0415 - seldom needed

        duration("gc_every", given["gc_every"])
    enough = given.get("gc_on_put")
    if enough is not None and (type(enough) is not int or enough < 1):
        raise invalid("gc_on_put", given["gc_on_put"], "Use a number of checkpoints, 1 or more.")
