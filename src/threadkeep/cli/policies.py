"""What is kept and where, as it is configured and typed: tables of the file, options of commands.

Only reading these lives here. Invariant: a mistake is one line that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from threadkeep.cli.config import settings
from threadkeep.cold.tiering import (
    ColdTier,
    Tiering,
    WarmTier,
)
from threadkeep.errors import InvalidArgumentError
from threadkeep.retention.policy import (
    Retention,
    duration,
)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LENGTH = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhdw]?)", re.ASCII)
_TIMES = ("max_age", "ttl")


def policy(given: Mapping[str, Any]) -> Retention:
    """What is configured as `[retention]`, each key that is given in place of its own.

    Raises:
        InvalidArgumentError: a key is unknown, or has a value of no meaning.
    """
    keys = {**(settings().retention or {}), **given}
    _check_known("retention", keys, {field.name for field in fields(Retention)})
    times = {name: length(name, keys[name]) for name in _TIMES if name in keys}
    return Retention(**{**keys, **times})


def tiering(given: Mapping[str, Any]) -> Tiering:
    """What is configured as `[tiering]`, each key that is given in place of its own.

    Raises:
        InvalidArgumentError: a key is unknown, or has a value of no meaning.
    """
    keys = {**(settings().tiering or {}), **given}
    _check_known("tiering", keys, {"warm", "archive", "offload_over", "offload"})
    warm = WarmTier(max_age=length("warm", keys["warm"])) if "warm" in keys else WarmTier()
    said = {name: keys[name] for name in ("archive", "offload_over") if name in keys}
    wanted = keys.get("offload", True)
    if not isinstance(wanted, bool):
        raise InvalidArgumentError(f"offload cannot be {wanted!r}.", hint="Give true or false.")
    if not wanted and ("offload" in given or "offload_over" not in given):
        said["offload_over"] = None
    return Tiering(warm=warm, cold=ColdTier(**said))


def _check_known(table: str, keys: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(keys.keys() - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"{table}: unknown key {unknown[0]!r}.", hint=f"Known: {', '.join(sorted(known))}."
        )


def length(name: str, given: object) -> timedelta:
    """A length of time: "90s", "10m", "12h", "7d", "2w", or seconds.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(given, str):
        return duration(name, given)
    found = _LENGTH.fullmatch(given.strip())
    if found is None:
        raise InvalidArgumentError(
            f"{name} cannot be {given[:80]!r}.",
            hint='Give a number with s, m, h, d or w, such as "10m" or "7d".',
        )
    return duration(name, float(found[1]) * _UNITS[found[2] or "s"])
