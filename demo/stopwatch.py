"""Wall time spent in the model and the tools, so that it can be told from the saver's."""

from __future__ import annotations

from threading import Lock
from time import perf_counter
from typing import Self


class Stopwatch:
    """Runs while at least one thread is inside its `with` block."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._since = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        with self._lock:
            if self._inside == 0:
                self._since = perf_counter()
            self._inside += 1
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self.seconds += perf_counter() - self._since
