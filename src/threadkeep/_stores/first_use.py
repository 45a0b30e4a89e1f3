"""Opening at first use what a program constructs in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from threadkeep._stores.process_forks import ResetInChild


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if one does: what blocks holds it up."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


class FirstUse(ResetInChild):
    """Opens something once: when it is constructed, or in an event loop at its first use.

    Call it before each use, in a thread that may block. If opening fails, each call tries again.

    Args:
        do: opens it; it may block.

    Raises:
        Exception: what `do` raises, unless an event loop runs.
    """

    def __init__(self, do: Callable[[], None]) -> None:
        self._do: Callable[[], None] | None = do
        super().__init__()
        if running_loop() is None:
            self()

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Open it if it is not open."""
        if self._do is not None:
            with self._lock:
                if self._do is not None:
                    self._do()
                    self._do = None
