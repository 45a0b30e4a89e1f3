"""What other people's code raises while values are encoded and decoded, as typed errors.

A registered `encode=`, a serializer, `__reduce__`, a default factory: any of them may
raise anything. Only the turning of that into our errors lives here, and the error that
no pickle gets around. Invariant: what was raised has its message in our error's.
"""

from __future__ import annotations

from threadkeep.errors import CorruptionError, ThreadkeepError, UnserializableError

OWN = (ThreadkeepError, MemoryError, RecursionError)
"""What is passed on while decoding: it says what it is, or says nothing about the data."""


class FinalError(UnserializableError):
    """This value cannot be stored so that it comes back exactly, and pickled neither."""


def told(error: BaseException) -> str:
    """An error on one line, whatever its own `__str__` does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it is not our code
        return type(error).__name__


def malformed(error: Exception) -> CorruptionError:
    """What reading a payload of the wrong form ends in."""
    return CorruptionError(
        f"The stored value is not of a form that threadkeep writes: {told(error)}."
    )
