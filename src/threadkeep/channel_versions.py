"""Channel versions of whatever kind a thread already uses: the next one, and their order.

Invariant: what `next_version` gives is greater, by `compare_versions` and
by LangGraph's own comparison, than the version that it was given.
"""

from __future__ import annotations

import math
from random import SystemRandom
from typing import Literal

from threadkeep.errors import InvalidArgumentError, invalid

# The hash tells apart what two branches made of one version, whatever seed the program sets.
_RANDOM = SystemRandom()


def next_version(current: float | str | None) -> float | str:
    """Return the version after `current`, of the same kind: int, float, digits, or "<seq>.<hash>".

    A new channel begins with 1: small numbers, as threadkeep keeps each branch's values
    apart itself. The hash of LangGraph's own savers only told branches apart, and is
    continued with a new random number. Safe from any thread.

    Raises:
        InvalidArgumentError: the version is of none of these kinds.
    """
    if current is None:
        return 1
    if isinstance(current, int | float):
        return current + 1
    sequence, dot, _ = current.partition(".") if isinstance(current, str) else ("", "", "")
    if not sequence.isdecimal():
        raise _unknown(current)
    following = str(int(sequence) + 1).zfill(len(sequence))
    return f"{following}.{_RANDOM.random():016}" if dot else following


def compare_versions(a: float | str, b: float | str) -> Literal[-1, 0, 1]:
    """Return -1 if the version `a` comes before `b`, 1 if it comes after, 0 if neither.

    Numbers (int, float) are ordered as numbers. Texts ("<seq>" or "<seq>.<hash>") are
    ordered by sequence, as a number, then by hash, as text; none comes before any. Where
    sequences are padded to one width, as LangGraph pads them, this is the order in which
    LangGraph compares them. A hash only tells branches apart: which comes first means nothing.

    Raises:
        InvalidArgumentError: a version is of no known kind, or one is a number and one a text.
    """
    if isinstance(a, str) != isinstance(b, str):
        raise InvalidArgumentError(
            f"The channel versions {a!r} and {b!r} are of two kinds, which have no order.",
            hint="Those of one channel in one thread are of one kind: compare these.",
        )
    x, y = _order(a), _order(b)
    return 0 if x == y else -1 if x < y else 1


def _order(version: float | str) -> tuple[float, str, str]:
    """Return the sort key of versions of one kind."""
    if isinstance(version, str):
        sequence, _, branch = version.partition(".")
        if sequence.isascii() and sequence.isdecimal():
            digits = sequence.lstrip("0")  # (not as an int: that refuses very long ones)
            return len(digits), digits, branch
    elif type(version) is int or (isinstance(version, float) and not math.isnan(version)):
        return version, "", ""
    raise _unknown(version)


def _unknown(version: object) -> InvalidArgumentError:
    return invalid("channel version", version, 'Use a number, digits or "<number>.<hash>".')
