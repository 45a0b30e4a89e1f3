"""A lease in the store: of all workers, one at a time does a job that recurs.

It is the lease of a hidden thread (`model.LeaseThread`), by the store's clock. It saves work, and
is no lock: jobs are safe if two workers do them at once.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from datetime import timedelta

from threadkeep._core.engine.model import LeaseThread
from threadkeep._core.engine.operation import commit
from threadkeep._core.validation import LONGEST, MICROSECOND
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import LeaseLostError, ReadOnlyError, ThreadLockedError
from threadkeep.threads import documents

LIFETIME = 60.0
"""Seconds after which the lease of a killed worker ends. A worker renews it until then."""

RETRY = LIFETIME / 3
"""Seconds between renewals, and between two looks at another worker's lease."""

_MOST = 2**31  # deaths of workers: no number of them holds a job


class JobLease:
    """One worker's part in a job that recurs. Its methods block.

    Args:
        store: the store of threads that holds the lease.
        name: the job's name, the same in all workers.
        every: seconds from the start of a run to the start of the next, by any worker.
    """

    def __init__(self, store: LayeredBackend, name: str, every: float) -> None:
        self._store, self._every = store, min(every, LONGEST / 1e6)
        self._lease = LeaseThread(documents.thread_of(f"lease {name}"), "take", most=_MOST)
        self._began = self._renewed = 0.0  # by the monotonic clock
        self._is_held = False

    def begin(self) -> bool:
        """Take the lease, or return False if another worker has it, or the job is not due."""
        self._began = self._renewed = time.monotonic()
        self._lease = self._lease._replace(holder=f"job {secrets.token_hex(8)}")
        try:
            self._change("take", LIFETIME)
            self._is_held = True
        except ThreadLockedError:
            return False
        except ReadOnlyError:  # (a tenant's role of PostgreSQL: no other worker has its rows)
            pass
        return True

    def renew(self) -> None:
        """Prolong the lease, if that is due.

        Raises:
            LeaseLostError: another worker has it.
        """
        now = time.monotonic()
        if self._is_held and now - self._renewed >= RETRY:
            try:  # (also if it has ended: a job may be slow)
                self._change("take", LIFETIME)
            except ThreadLockedError as error:
                raise LeaseLostError("Another worker does this job.") from error
            self._renewed = now

    def end(self, *, is_done: bool) -> None:
        """Keep the lease until the job is due again. If it is not done, give the lease back."""
        if not self._is_held:
            return
        self._is_held = False
        left = self._began + self._every - time.monotonic()
        with suppress(ThreadLockedError, LeaseLostError):  # (another worker has it by now)
            self._change("take" if is_done else "end", max(left, 0.0))

    def _change(self, does: str, seconds: float) -> None:
        length = timedelta(seconds=seconds) // MICROSECOND
        self._store.run(commit(self._lease._replace(does=does, length=length)))
