"""Channel versions, of any kind that a thread already uses: their order, and the next one.

`next_version` returns a version that is greater than its argument by `compare_versions` and by
LangGraph's own comparison. The kinds are numbers (int, float), texts ("<seq>" or "<seq>.<hash>"),
and texts of UUIDs that sort by time (versions 6 and 7).
"""

from __future__ import annotations

import math
import re
from random import SystemRandom
from typing import Literal
from uuid import UUID

from threadkeep.errors import InvalidArgumentError, invalid

# The hash distinguishes the next versions of two branches, even if the program sets a seed.
_RANDOM = SystemRandom()

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_KINDS = 'Use a number, digits, "<number>.<hash>", or the text of a UUID of version 6 or 7.'
_UNORDERED = "UUIDs of version 6 and 7 sort by time as text. Others have no order."
_LAST = "There is no greater one of its kind."


def next_version(current: float | str | None) -> float | str:
    """Return the version after `current`, of the same kind.

    A new channel begins with 1: a small number, as threadkeep itself keeps the values of branches
    apart. The hash of LangGraph's own savers only distinguishes branches. A new random one follows
    it. A UUID is followed by a UUID of its version: its time is one tick later, the rest random.
    Safe from any thread.

    Raises:
        InvalidArgumentError: the version is of another kind, or has no successor.
    """
    if current is None:
        return 1
    if isinstance(current, int):
        return current + 1
    if isinstance(current, float):
        if not math.isfinite(current):
            raise invalid("channel version", current, _LAST)
        return max(current + 1, math.nextafter(current, math.inf))  # (1 may be less than its ulp)
    sequence, dot, _ = current.partition(".") if isinstance(current, str) else ("", "", "")
    if not (sequence.isascii() and sequence.isdecimal()):
        return _next_uuid(current)
    following = str(int(sequence) + 1).zfill(len(sequence))
    return f"{following}.{_RANDOM.random():016}" if dot else following


def _next_uuid(current: object) -> str:
    _order(current)  # (raises for anything but a UUID that sorts)
    top = UUID(str(current)).int >> 64  # 48 bits of its time, 4 of the version, 12 of the time
    time = (top >> 16 << 12 | top & 0xFFF) + 1
    if time >> 60:
        raise invalid("channel version", current, _LAST)
    top = time >> 12 << 16 | top & 0xF000 | time & 0xFFF
    return str(UUID(int=top << 64 | 0b10 << 62 | _RANDOM.getrandbits(62)))


def compare_versions(a: float | str, b: float | str) -> Literal[-1, 0, 1]:
    """Return -1 if the version `a` comes before `b`, 1 if it comes after, else 0.

    Numbers (int, float) are ordered as numbers. Texts ("<seq>" or "<seq>.<hash>") are ordered by
    sequence, as a number, then by hash, as text. No hash comes first. If sequences are padded to
    one width, as by LangGraph, LangGraph compares them in the same order. A hash only distinguishes
    branches: its order means nothing. UUIDs of versions 6 and 7 are ordered as text.

    Raises:
        InvalidArgumentError: a version is of an unknown kind, or they are of two kinds.
    """
    x, y = _order(a), _order(b)
    if x[0] != y[0]:
        raise InvalidArgumentError(
            f"The channel versions {a!r} and {b!r} are of two kinds, which have no order.",
            hint="Compare versions of one channel in one thread: they are of one kind.",
        )
    return 0 if x == y else -1 if x < y else 1


def _order(version: object) -> tuple[str, float, str, str]:
    """Return the sort key of a version. It begins with the version's kind."""
    if isinstance(version, str):
        sequence, _, branch = version.partition(".")
        if sequence.isascii() and sequence.isdecimal():
            digits = sequence.lstrip("0")  # (not as an int: that refuses very long ones)
            return "text", len(digits), digits, branch
        if found := _UUID.fullmatch(version):
            if found[1] not in "67":
                raise invalid("channel version", version, _UNORDERED)
            return f"UUID {found[1]}", 0, version, ""
    elif isinstance(version, int | float) and type(version) is not bool and version == version:  # noqa: PLR0124 - NaN
        return "number", version, "", ""
    raise invalid("channel version", version, _KINDS)
