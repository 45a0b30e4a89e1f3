"""A lease in the store: of all workers, one at a time does a job that recurs.

The lease is a hidden document (`threads.documents`), which every store replaces under a fence: of
two workers that read the same, one wins. It is a hint that saves work, not a lock: jobs are safe
if two workers do them at once. So times come from the workers' clocks, which every store has.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any

from threadkeep._core.engine.operation import Operation, commit
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import LeaseLostError, ReadOnlyError, StaleThreadError
from threadkeep.threads import documents

LIFETIME = 60_000_000
"""Microseconds after which the lease of a killed worker ends. A worker renews it until then."""

_RENEWED = LIFETIME // 3


class JobLease:
    """One worker's part in a job that recurs every `every` microseconds. Its methods block.

    Args:
        store: the store of threads that holds the lease.
        author: encodes the document, and tells the time.
        name: the job's name, the same in all workers.
        every: microseconds from the start of a run to the start of the next, by any worker.
    """

    def __init__(
        self, store: LayeredBackend, author: documents.Author, name: str, every: int
    ) -> None:
        self._store = store
        self._author = author
        self._thread = documents.thread_of(f"lease {name}")
        self._every = every
        self._owner = secrets.token_hex(8)
        self._began = 0
        self._renewed_at = 0
        self._is_held = False

    def begin(self) -> float:
        """Take the lease. Return 0, or the seconds until the job is due or the lease may end."""
        return self._store.run(self._begin())

    def renew(self) -> None:
        """Prolong the lease, if that is due.

        Raises:
            LeaseLostError: another worker has it.
        """
        if self._is_held and self._author.now() - self._renewed_at >= _RENEWED:
            self._store.run(self._renew())

    def end(self, *, is_done: bool) -> None:
        """Give the lease up. If the job is not done, any worker may begin it again at once."""
        if self._is_held:
            self._is_held = False
            self._store.run(self._end(is_done=is_done))

    def _begin(self) -> Operation[float]:
        while True:
            document, generation = yield from documents.read(self._author, self._thread)
            now = self._author.now()
            due = now if self._is_own(document) else due_at(document, now, self._every)
            if due > now:
                return (due - now) / 1e6
            self._began = now
            try:
                yield from self._hold(generation)
            except StaleThreadError:  # (another worker was faster)
                continue
            except ReadOnlyError:  # (a tenant's role of PostgreSQL: no other worker has its rows)
                self._is_held = False
            return 0.0

    def _renew(self) -> Operation[None]:
        document, generation = yield from documents.read(self._author, self._thread)
        self._is_held = False
        if self._is_own(document):
            with suppress(StaleThreadError):
                yield from self._hold(generation)
        if not self._is_held:
            raise LeaseLostError("Another worker does this job.")

    def _hold(self, generation: int | None) -> Operation[None]:
        now = self._author.now()
        document = {"owner": self._owner, "began": self._began, "until": now + LIFETIME}
        yield from commit(documents.replaced(self._author, self._thread, document, generation))
        self._is_held, self._renewed_at = True, now

    def _end(self, *, is_done: bool) -> Operation[None]:
        document, generation = yield from documents.read(self._author, self._thread)
        if self._is_own(document):
            ended = {"began": self._began if is_done else 0}
            change = documents.replaced(self._author, self._thread, ended, generation)
            with suppress(StaleThreadError):  # (another worker has it by now)
                yield from commit(change)

    def _is_own(self, document: Any) -> bool:
        return isinstance(document, dict) and document.get("owner") == self._owner


def due_at(document: Any, now: int, every: int) -> int:
    """Return the time at which a worker may begin a job with this lease. `now` or earlier: at once.

    The times of a worker whose clock is far ahead count for nothing.
    """
    try:
        if "until" in document:
            until = int(document["until"])
            return until if until <= now + 2 * LIFETIME else now
        began = int(document["began"])
        return began + every if began <= now + every else now
    except (TypeError, ValueError, LookupError):  # (there is none, or of another release)
        return now
