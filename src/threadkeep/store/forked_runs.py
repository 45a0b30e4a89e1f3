"""Runs that left the head of another one behind: logged and counted.

Only that lives here. Which runs these are is for the engine to say.
"""

from __future__ import annotations

import logging
import threading

from threadkeep.backends import process_forks

_log = logging.getLogger("threadkeep")


class ForkedRuns:
    """How many there were, of the savers that share this."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        process_forks.watch(self)

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: the child counts its own."""
        if in_child:
            self.count, self._lock = 0, threading.Lock()

    def note(self, thread: str, head: str, checkpoint: str) -> None:
        """Count and log a run whose checkpoint does not go on from this head."""
        with self._lock:
            self.count += 1
        _log.warning(
            "A run has left a head of thread %r behind: its checkpoint %s does not go on from"
            " %s, which another run stored. Both are kept, as branches."
            ' With conflicts="raise" such a run is refused.',
            thread,
            checkpoint,
            head,
        )
