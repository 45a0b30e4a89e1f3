"""Channel versions: the next one, whatever kind a thread already uses."""

from __future__ import annotations

from random import SystemRandom

from threadkeep.errors import InvalidArgumentError

# The hash tells apart what two branches made of one version, whatever seed the program sets.
_RANDOM = SystemRandom()


def next_version(current: float | str | None) -> float | str:
    """The version after `current`, of the same kind: int, float, digits, or "<seq>.<hash>".

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
        raise InvalidArgumentError(
            f"The channel version {current!r} is of no known kind.",
            hint='Versions are numbers, digits or "<number>.<hash>".',
        )
    following = str(int(sequence) + 1).zfill(len(sequence))
    return f"{following}.{_RANDOM.random():016}" if dot else following
