"""Values that a process has seen of threads last."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from threadkeep._core.lru import Lru

T = TypeVar("T")

_CACHED = 2048  # records and checkpoints of which the view is remembered


class Recent(Generic[T]):
    """LRU of values by thread and checkpoint.

    The id itself is not held: by it the saver tells that a run has ended.
    """

    def __init__(self) -> None:
        self._values: Lru[tuple[str, bytes], T] = Lru(_CACHED)
        self._lock = threading.Lock()

    def get(self, thread: str, key: str) -> T | None:
        """Return a value, which counts as a use of it."""
        with self._lock:
            return self._values.get((thread, key.encode()))

    def put(self, thread: str, key: str, value: T) -> None:
        """Remember a value."""
        with self._lock:
            self._values.put((thread, key.encode()), value)

    def pop(self, thread: str, key: str) -> None:
        """Forget a value."""
        with self._lock:
            self._values.drop((thread, key.encode()))

    def forget(self, thread: str) -> None:
        """Forget what is remembered of a thread."""
        with self._lock:
            for at in [at for at in self._values if at[0] == thread]:
                self._values.drop(at)
