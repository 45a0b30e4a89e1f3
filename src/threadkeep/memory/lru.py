"""LRU of what a process has seen of threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

_CACHED = 2048  # records and checkpoints of which the view is remembered


class Recent(Generic[T]):
    """LRU of values by thread and checkpoint."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, bytes], T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, thread: str, key: str) -> T | None:
        """Return a value, which counts as a use of it."""
        at = (thread, key.encode())
        with self._lock:
            if at in self._values:
                self._values.move_to_end(at)
            return self._values.get(at)

    def put(self, thread: str, key: str, value: T) -> None:
        """Remember a value."""
        with self._lock:  # (the id itself is not held: by it the saver tells that a run has ended)
            self._values[thread, key.encode()] = value
            self._values.move_to_end((thread, key.encode()))
            if len(self._values) > _CACHED:
                self._values.popitem(last=False)

    def pop(self, thread: str, key: str) -> None:
        """Forget a value."""
        with self._lock:
            self._values.pop((thread, key.encode()), None)

    def forget(self, thread: str) -> None:
        """Forget what is remembered of a thread."""
        with self._lock:
            for at in [at for at in self._values if at[0] == thread]:
                del self._values[at]
