"""End of a background thread: its owner closes it, or is collected as garbage."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class End:
    """Wakes a waiting thread for the last time.

    `set` may be the callback of a weak reference. Python calls it in any thread, also in the middle
    of `wait`, so it must not wait for a lock: `SimpleQueue.put` is reentrant, `Event.set` is not.
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
        """Return True once it is set, or False after so many seconds."""
        if not self.is_set:
            with suppress(Empty):
                self._wakes.get(timeout=seconds)
        return self.is_set
