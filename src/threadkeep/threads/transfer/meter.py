"""Progress of moves of threads: by threads, checkpoints and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from threadkeep._core.engine.operation import Operation, Progress
from threadkeep._stores.process_forks import running_loop

_UNITS = ("threads", "checkpoints", "bytes")
_UNKNOWN: Mapping[str, int] = {}


class Meter:
    """Counts the threads, checkpoints and bytes of one stage of a move, and tells the caller.

    Worker threads may use it: an awaiting caller's function is called in the event loop.

    Args:
        progress: the caller's function.
        verb: ends the names of the stages, such as "read" for "checkpoints read".
        threads: their number, if it is known.
        counts: of their checkpoints, if they are known, else the total is known with the last.
    """

    def __init__(
        self,
        progress: Progress | None,
        verb: str,
        threads: int = 0,
        counts: Mapping[str, int] = _UNKNOWN,
    ) -> None:
        self._progress, self._verb, self._loop = progress, verb, running_loop()
        self._counts, self._known = counts, (threads, sum(counts.values()), 0)
        self._thread: str | None = None
        self._before = self._now = self._all = (0, 0, 0)  # in units, with this thread's

    def begin(self, thread: str, checkpoints: int = 0, size: int = 0) -> None:
        """Begin a thread with so many checkpoints and bytes, or begin it again."""
        if thread != self._thread:
            self._thread, self._before = thread, self._now
        threads, before, bytes_before = self._now = self._before
        checkpoints = checkpoints or self._counts.get(thread, 0)
        self._all = (threads + 1, before + checkpoints, bytes_before + size)

    def each(
        self, threads: Iterable[str], visit: Callable[[str], Operation[None]]
    ) -> Operation[None]:
        """Visit each thread."""
        for thread in threads:
            self.begin(thread)
            yield from visit(thread)
            self.end()

    def add(self, checkpoints: int = 0, size: int = 0) -> None:
        """Count checkpoints and bytes of the thread."""
        threads, now, bytes_now = self._now
        self._tell((threads, now + checkpoints, bytes_now + size))

    def end(self) -> None:
        """Count the thread, and all of it."""
        threads, *most = map(max, self._now, self._all)
        self._tell((threads, most[0], most[1]))

    def _tell(self, now: tuple[int, int, int]) -> None:
        before, self._now = self._now, now
        is_last = self._all[0] >= self._known[0]
        for n in (2, 1, 0):
            if self._progress is not None and now[n] > before[n]:
                total = self._known[n] or (self._all[n] if is_last and n else 0)
                given = f"{_UNITS[n]} {self._verb}", now[n], total
                if self._loop is None or self._loop is running_loop():
                    self._progress(*given)
                else:
                    self._loop.call_soon_threadsafe(self._progress, *given)


QUIET = Meter(None, "")
"""Shows nothing."""
