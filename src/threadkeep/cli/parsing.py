"""What people write for a time, an age, a size or metadata, as the saver takes it.

Pure functions. Invariant: what has no meaning is an `InvalidArgumentError` that names the option
and says what to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from pydantic import ByteSize, TypeAdapter, ValidationError

from threadkeep.errors import InvalidArgumentError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+", re.ASCII)
_PART = re.compile(r"([\d.]+)([smhdw])")
_SIZE: TypeAdapter[int] = TypeAdapter(ByteSize)


def age(option: str, given: str) -> timedelta:
    """A length of time such as `7d`, `12h`, `30m`, `1d12h`."""
    if not _AGE.fullmatch(given):
        _refuse(option, given, "Write a length of time such as 30d, 12h or 30m.")
    try:
        parts = [timedelta(**{_UNITS[unit]: float(n)}) for n, unit in _PART.findall(given)]
        return sum(parts, timedelta())
    except OverflowError:
        _refuse(option, given, "Write a shorter time.")


def when(option: str, given: str | None) -> datetime | timedelta | None:
    """An ISO time (in UTC, where it names no time zone), or how long ago."""
    if given is None:
        return None
    if _AGE.fullmatch(given):
        return age(option, given)
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        hint = "Write a time such as 2026-05-01T12:00, or how long ago: 7d, 12h, 30m."
        _refuse(option, given, hint)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def ttl(given: str | None) -> timedelta | int | None:
    """How long a thread may rest: a length of time; 0 for `never`, as the saver has it."""
    if given is None:
        return None
    if given == "never":
        return 0
    return age("--ttl", given) or _refuse("--ttl", given, "Write a time above 0, or never.")


def size(option: str, given: str | None) -> int | None:
    """Bytes: a number, also with a unit, such as `10MB` (of a million) or `1MiB`."""
    if given is None:
        return None
    try:
        return int(_SIZE.validate_python(given))
    except (ValidationError, OverflowError):
        _refuse(option, given, "Write a number of bytes, such as 1000 or 10MB.")


def metadata(option: str, given: Iterable[str] | None) -> dict[str, Any]:
    """Metadata of `KEY=VALUE`s; a value is JSON where it can be read as JSON, else text."""
    found = {}
    for pair in given or ():
        key, equals, value = pair.partition("=")
        if not (key and equals):
            _refuse(option, pair, "Write KEY=VALUE.")
        found[key] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _refuse(option: str, given: str, hint: str) -> NoReturn:
    raise InvalidArgumentError(f"{option}: {given!r} has no meaning here.", hint=hint)
