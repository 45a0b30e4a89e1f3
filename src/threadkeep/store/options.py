"""What a saver can be told on any backend, checked before anything is opened.

Only the checks live here, and what picks these options out of all that are given; what an
option means is said by `Saver`. Invariant: options
that pass are never what keeps a saver from being made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import threadkeep
from threadkeep.backends.given import refuse
from threadkeep.codec import SerdeCodec
from threadkeep.errors import InvalidArgumentError

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
    "hot": "Give the URL of a Redis server.",
    "cold": "Give the URL of a cold store, such as file:///folder or s3://bucket/path.",
}
_CLASSES = {  # by their public names: most are imported by the program that gives one
    "compression": ("Compression", "Compression(level=3)"),
    "group_commit": ("GroupCommit", "GroupCommit()"),
    "write_behind": ("WriteBehind", "WriteBehind()"),
    "cache": ("Cache", "Cache(threads=1000)"),
    "tiering": ("Tiering", "Tiering()"),
    "retention": ("Retention", "Retention(keep_last=10)"),
}


def taken(given: dict[str, Any]) -> dict[str, Any]:
    """Take these options, checked, out of those given; what is left is the backend's.

    Raises:
        InvalidArgumentError: see `check`.
    """
    own = {name: given.pop(name) for name in NAMES if name in given}
    check(own)
    return own


def check(given: Mapping[str, Any]) -> None:
    """Check the options that are given; those that are not have their defaults.

    Raises:
        InvalidArgumentError: one is unknown, or has a value of no meaning.
    """
    unknown = sorted(given.keys() - set(NAMES))
    if unknown:
        raise InvalidArgumentError(
            f"There is no option {unknown[0]!r}.", hint=f"Options of a saver: {', '.join(NAMES)}."
        )
    if given.get("conflicts", "fork") not in ("fork", "raise"):
        _refuse("conflicts", given, 'Use "fork" or "raise".')
    if given.get("serde") is not None:
        SerdeCodec(given["serde"])
    _check_kinds(given)
    if not isinstance(given.get("pickle_fallback", False), bool):
        _refuse("pickle_fallback", given, "Give True or False.")
    if given.get("write_behind") is not None and given.get("conflicts") == "raise":
        raise InvalidArgumentError(
            'write_behind= and conflicts="raise" exclude each other: a save that has returned'
            " cannot raise a conflict.",
            hint="Leave one of them out.",
        )
    _check_gc(given)
    most = given.get("working_set_bytes", 0)
    if not isinstance(most, int) or most < 0:
        _refuse("working_set_bytes", given, "Give a whole number of bytes, 0 or more.")


def _check_kinds(given: Mapping[str, Any]) -> None:
    for name, hint in _TEXTS.items():
        if not isinstance(given.get(name), str | None):
            _refuse(name, given, hint)
    for name, (kind, example) in _CLASSES.items():
        value = given.get(name)
        if value is not None and not isinstance(value, getattr(threadkeep, kind)):
            _refuse(name, given, f"Give a threadkeep.{kind}, such as {example}.")


def _check_gc(given: Mapping[str, Any]) -> None:
    if given.get("gc_every") is not None:
        from threadkeep.retention.policy import duration  # noqa: PLC0415 - seldom needed

        duration("gc_every", given["gc_every"])
    enough = given.get("gc_on_put")
    if enough is not None and (type(enough) is not int or enough < 1):
        _refuse("gc_on_put", given, "Give a number of checkpoints, 1 or more.")


def _refuse(name: str, given: Mapping[str, Any], hint: str) -> None:
    refuse(name, given[name], hint)
