"""Background collection: from time to time, and after so many checkpoints.

It never keeps its owner alive, never refuses or fails a save, and logs what fails. The child of a
process fork does not collect.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._core.lru import Lru
from threadkeep._run.ending import End
from threadkeep._stores import process_forks
from threadkeep.errors import ThreadkeepError

_MOST_COUNTED = 10_000  # threads whose checkpoints are counted; of others the count begins again
_log = logging.getLogger("threadkeep")


class Collector:
    """Collects every so many seconds, in a thread of its own, for as long as its owner lives."""

    def __init__(self, collect: Callable[[Progress], object], every: float) -> None:
        self._end = End()
        pause = min(every, threading.TIMEOUT_MAX)
        method = weakref.WeakMethod(collect, self._end.set)
        self._thread: threading.Thread | None = threading.Thread(
            target=_collect_until,
            args=(method, self._end, pause),
            name="threadkeep-gc",
            daemon=True,
        )
        process_forks.watch(self)
        self._thread.start()

    def stop(self) -> None:
        """Begin to stop."""
        self._end.set()

    def close(self, timeout: float | None = None) -> bool:
        """Stop after the thread that is being collected. Idempotent.

        `timeout` is in seconds; returns False if it has not stopped by then.
        """
        self._end.set()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def before_fork(self) -> None:
        """See `WatchedMethods.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `WatchedMethods.after_fork`: the parent collects."""
        if in_child:
            self._thread = None


class _StoppedError(Exception):
    """The owner is being closed."""


def _collect_until(
    method: weakref.WeakMethod[Callable[[Progress], object]], end: End, pause: float
) -> None:
    def progress(stage: str, done: int, total: int) -> None:
        del stage, done, total
        if end.is_set:
            raise _StoppedError

    while not end.wait(pause):
        collect = method()
        if collect is None:
            return
        try:
            with suppress(_StoppedError):
                collect(progress)
        except Exception:  # noqa: BLE001 - no caller waits for this, and it is done again
            _log.warning("Background collection failed.", exc_info=True)
        del collect


class Gained:
    """Counts the checkpoints that threads have gained since they were collected."""

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._lock = threading.Lock()
        self._counts: Lru[str, int] = Lru(_MOST_COUNTED)

    def is_enough(self, thread: str) -> bool:
        """Count one more; return whether there are enough, and count from 0 then."""
        with self._lock:
            count = (self._counts.get(thread) or 0) + 1
            self._counts.put(thread, count % self._enough)
            return count >= self._enough


def quietly(thread: str, operation: Callable[[], Operation[object]]) -> Operation[None]:
    """Run an operation after a save, which must not fail by it."""
    try:
        yield from operation()
    except ThreadkeepError as error:
        _log.warning("Thread %r could not be collected: %s", thread, error)
