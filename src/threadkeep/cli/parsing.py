"""Times, ages, sizes, metadata, and policies, as typed or configured.

Invalid values raise `InvalidArgumentError`, which names the option or key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from pydantic import ByteSize, TypeAdapter, ValidationError

from threadkeep.cli.stores import settings
from threadkeep.cold.tiering import (
    ColdTier,
    Tiering,
    WarmTier,
)
from threadkeep.errors import InvalidArgumentError, invalid
from threadkeep.retention.policy import (
    Retention,
    duration,
)

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+", re.ASCII)
_PART = re.compile(r"([\d.]+)([smhdw])")
_SIZE: TypeAdapter[int] = TypeAdapter(ByteSize)


def age(option: str, given: str) -> timedelta:
    """A length of time such as `7d`, `12h`, `30m`, `1d12h`."""
    if not _AGE.fullmatch(given):
        _refuse(option, given, "Use a length of time such as 30d, 12h or 30m.")
    try:
        parts = [timedelta(**{_UNITS[unit]: float(n)}) for n, unit in _PART.findall(given)]
        return sum(parts, timedelta())
    except OverflowError:
        _refuse(option, given, "Use a shorter time.")


def when(option: str, given: str | None) -> datetime | timedelta | None:
    """An ISO time (in UTC, where it names no time zone), or how long ago."""
    if given is None:
        return None
    if _AGE.fullmatch(given):
        return age(option, given)
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        hint = "Use a time such as 2026-05-01T12:00, or how long ago: 7d, 12h, 30m."
        _refuse(option, given, hint)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def ttl(given: str | None) -> timedelta | int | None:
    """How long a thread may rest: a length of time; 0 for `never`, as the saver has it."""
    if given is None:
        return None
    if given == "never":
        return 0
    return age("--ttl", given) or _refuse("--ttl", given, "Use a time above 0, or never.")


def size(option: str, given: str | None) -> int | None:
    """Bytes: a number, also with a unit, such as `10MB` (of a million) or `1MiB`."""
    if given is None:
        return None
    try:
        return int(_SIZE.validate_python(given))
    except (ValidationError, OverflowError):
        _refuse(option, given, "Use a number of bytes, such as 1000 or 10MB.")


def metadata(option: str, given: Iterable[str] | None) -> dict[str, Any]:
    """Metadata of `KEY=VALUE`s; a value is JSON where it can be read as JSON, else text."""
    found = {}
    for pair in given or ():
        key, equals, value = pair.partition("=")
        if not (key and equals):
            _refuse(option, pair, "Use KEY=VALUE.")
        found[key] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _refuse(option: str, given: str, hint: str) -> NoReturn:
    raise invalid(option, given, hint)


_UNITS_POLICIES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LENGTH = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhdw]?)", re.ASCII)
_TIMES = ("max_age", "ttl")


def policy(given: Mapping[str, Any]) -> Retention:
    """What is configured as `[retention]`, each key that is given in place of its own.

    Raises:
        InvalidArgumentError: a key is unknown, or its value is invalid.
    """
    keys = {**(settings().retention or {}), **given}
    _check_known("retention", keys, {field.name for field in fields(Retention)})
    times = {name: length(name, keys[name]) for name in _TIMES if name in keys}
    return Retention(**{**keys, **times})


def tiering(given: Mapping[str, Any]) -> Tiering:
    """What is configured as `[tiering]`, each key that is given in place of its own.

    Raises:
        InvalidArgumentError: a key is unknown, or its value is invalid.
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
    return duration(name, float(found[1]) * _UNITS_POLICIES[found[2] or "s"])
