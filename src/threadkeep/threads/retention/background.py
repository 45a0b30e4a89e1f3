"""Background collection: at intervals, and after a number of checkpoints.

With a lease, of the collectors of all workers one runs in each interval. A collector doesn't keep
its owner alive. Failures are logged, and a save never fails by them. After a process fork only the
parent collects.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from copy import copy

from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._core.lru import Lru
from threadkeep._run.driver import End
from threadkeep._stores import process_forks
from threadkeep.errors import LeaseLostError, ThreadkeepError
from threadkeep.threads.retention.lease import RETRY, JobLease

_MOST_COUNTED = 10_000  # threads with a counter, and more of them evict counters
_log = logging.getLogger("threadkeep")


class Collector:
    """Calls `collect` every few seconds, in a daemon thread, until its owner is collected.

    Args:
        collect: a method of the owner. It calls its argument often, which may raise to stop it.
        every: seconds.
        lease: the lease that lets one worker at a time collect.
    """

    def __init__(
        self, collect: Callable[[Progress], object], every: float, lease: JobLease | None = None
    ) -> None:
        self._end = End()
        pause = min(every, threading.TIMEOUT_MAX)
        method = weakref.WeakMethod(collect, self._end.set)
        self._thread: threading.Thread | None = threading.Thread(
            target=_collect_until,
            args=(method, self._end, pause, lease),
            name="threadkeep-gc",
            daemon=True,
        )
        process_forks.watch(self)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop, without waiting."""
        self._end.set()

    def close(self, timeout: float | None = None) -> bool:
        """Stop after the current thread's collection. Idempotent.

        `timeout` is in seconds. Returns False if the collector has not stopped by then.
        """
        self._end.set()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def before_fork(self) -> None:
        """See `WatchedMethods.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """The parent collects."""
        if in_child:
            self._thread = None


class _StoppedError(Exception):
    """Ends a collection because the owner is being closed."""


def _collect_until(
    method: weakref.WeakMethod[Callable[[Progress], object]],
    end: End,
    pause: float,
    lease: JobLease | None,
) -> None:
    wait = pause
    while not end.wait(wait):
        collect = method()
        if collect is None:
            return
        wait = pause
        try:
            if not _collect_once(collect, end, lease):
                wait = min(pause, RETRY)
        except Exception:  # noqa: BLE001 - no caller handles it, and the next round tries again
            _log.warning("Background collection failed.", exc_info=True)
        del collect


def _collect_once(collect: Callable[[Progress], object], end: End, lease: JobLease | None) -> bool:
    """Collect, or return False if it is not this worker's turn."""

    def progress(stage: str, done: int, total: int) -> None:
        del stage, done, total
        if end.is_set:
            raise _StoppedError
        if lease is not None:
            lease.renew()

    if lease is not None and not lease.begin():
        return False
    is_done = True  # (also if it fails: it would fail again at once)
    try:
        collect(progress)
    except _StoppedError:
        is_done = False
    except LeaseLostError:
        _log.info("Another worker continues the background collection.")
    finally:
        if lease is not None:
            lease.end(is_done=is_done)
    return True


class Gained:
    """Counts new checkpoints of threads since the last collection."""

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._prefix = ""
        self._lock = threading.Lock()
        self._counts: Lru[str, int] = Lru(_MOST_COUNTED)

    def under(self, prefix: str) -> Gained:
        """Return the same counter for threads that are stored under names with a prefix."""
        one = copy(self)
        one._prefix = prefix  # noqa: SLF001 - a copy
        return one

    def is_enough(self, thread: str) -> bool:
        """Count one more checkpoint. If there are enough, return True and start again from 0."""
        name = self._prefix + thread
        with self._lock:
            count = (self._counts.get(name) or 0) + 1
            self._counts.put(name, count % self._enough)
            return count >= self._enough


def quietly(thread: str, operation: Callable[[], Operation[object]]) -> Operation[None]:
    """Run an operation after a save, and log errors, as the save has succeeded."""
    try:
        yield from operation()
    except ThreadkeepError as error:
        _log.warning("Thread %r could not be collected: %s", thread, error)
