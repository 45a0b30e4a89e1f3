"""The memory backend itself: one lock around the rows.

Only the protocols' methods live here. Invariant: every read and every change
happens under the lock, as a whole.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

from threadkeep.backends import process_forks
from threadkeep.backends.memory.changes import carry_out
from threadkeep.backends.memory.reads import reply
from threadkeep.backends.scrubbed import Scrubbed
from threadkeep.errors import ClosedError, ThreadkeepError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadkeep.backends.memory.rows import Threads
    from threadkeep.engine.model import Change, Read


class MemoryBackend:
    """Rows in this process's memory, gone when it ends.

    A commit takes a few microseconds. Metadata filters of scans are left to the
    engine, as the contract allows.
    """

    instant = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Threads = {}
        self._closed = False
        self._identity = secrets.token_hex(16)
        process_forks.watch(self)

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """Answer each read, in order. See `Backend.fetch`."""
        with self._lock:
            self._check_open()
            return [reply(self._threads, read) for read in reads]

    def commit(self, change: Change) -> None:
        """Carry out the change, all or nothing. See `Backend.commit`."""
        with self._lock:
            self._check_open()
            carry_out(self._threads, change)

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """Carry out several changes at once. See `GroupingBackend.commit_many`."""
        with self._lock:
            self._check_open()
            return [self._attempt(change) for change in changes]

    def _attempt(self, change: Change) -> ThreadkeepError | None:
        try:
            carry_out(self._threads, change)
        except ThreadkeepError as error:
            return error
        return None

    def identity(self) -> str:
        """Another one in each process. See `IdentifiedBackend.identity`."""
        return self._identity

    def scrub(self, *, rewrite: bool) -> Scrubbed:
        """There are no files. See `ScrubbingBackend.scrub`."""
        del rewrite
        return Scrubbed()

    def close(self) -> None:
        """Let go of every row. Idempotent."""
        with self._lock:
            self._closed = True
            self._threads.clear()

    def before_fork(self) -> None:
        """See `Watched.before_fork`: no other thread is in the middle of a change then."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: the rows are whole in both, and the child's are a copy."""
        if in_child:
            self._identity = secrets.token_hex(16)
        self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(hint="Open a new saver: what this one held in memory is gone.")
