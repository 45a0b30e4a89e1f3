"""Signal that ends a background thread when its owner is closed or garbage-collected."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class End:
    """Wakes a waiting thread for the last time.

    `set` may be the callback of a weak reference. Python can call it in any thread, even during
    `wait`, so `set` must not take a lock: `SimpleQueue.put` is reentrant, `Event.set` is not.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def set(self, reference: object = None) -> None:
        """End the thread. `reference` is ignored."""
        del reference
        self.is_set = True
        self._wakes.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for `set`; return True if it was called, or False after `seconds`."""
        if not self.is_set:
            with suppress(Empty):
                self._wakes.get(timeout=seconds)
        return self.is_set
