"""Something for each event loop.

Only that lives here. Invariant: what belongs to a loop that has ended is let go of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One of a kind for each event loop, made when the loop first needs it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """The one of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            for ended in [known for known in tuple(self._made) if known.is_closed()]:
                self._made.pop(ended, None)
            found = self._made[loop] = self._make()
        return found
