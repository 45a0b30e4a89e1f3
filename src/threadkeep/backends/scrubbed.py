"""What a store says of the bytes that removed rows have left in its files.

Only this record lives here. Invariant: whatever is not promised is said.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """Where nothing is left of what was removed, and where something may be.

    Args:
        cleared: places that hold nothing of it any more.
        remains: places that may, over which the store has no power, each with what to do.
    """

    cleared: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()

    def __add__(self, other: Scrubbed) -> Scrubbed:
        return Scrubbed(self.cleared + other.cleared, self.remains + other.remains)
