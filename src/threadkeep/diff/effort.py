"""How much may still be done for one difference.

Invariant: once it is spent, everything is told in a coarser way, in linear time.
"""

from __future__ import annotations

STEPS = 2_000_000  # comparisons of two elements


class Effort:
    """A number of steps that a difference may take."""

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> bool:
        """Whether so many steps may be taken; then they are."""
        if steps > self.left:
            return False
        self.left -= steps
        return True
