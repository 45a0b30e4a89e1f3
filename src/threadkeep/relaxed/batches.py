"""How batches that waited are stored: merged, in groups, and never on what was lost.

Only what it takes to store batches that were answered lives here. Invariants:

- All that waits in a thread goes in one change, where its parts may go together.
- The engine never builds on what was lost: with each loss, and whenever something was
  removed, the thread's generation gets another name, so that what is built on the one before
  is refused while its values are still at hand. So is nothing else: the logs are this
  process's own (see `engine.open_logs`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from threadkeep import forks
from threadkeep.backends.base import Backend, GroupingBackend
from threadkeep.engine.model import (
    Batch,
    Change,
    Read,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
)
from threadkeep.errors import (
    BackendError,
    ClosedError,
    SegmentTakenError,
    StaleThreadError,
    ThreadkeepError,
    UnreachableError,
)
from threadkeep.relaxed.merging import beside, merged, spans
from threadkeep.relaxed.waiting import Outcome

_APART = 2**70  # names of one life of a thread; no generation is as large
_NO_GENERATION = -1
_LIVES = 10_000  # threads of which it is remembered that something was lost or removed
_OVERHEAD = 500  # bytes that a save takes beside its payload, about
_FOR_ALL = (UnreachableError, ClosedError)  # failures that no single change has caused


class Names:
    """What the engine calls the generations of a thread; see the invariants above."""

    def __init__(self) -> None:
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()  # held for moments only, and nothing is called under it
        self._lives: dict[str, int] = {}
        self._before = 0  # of the threads that are not remembered

    def before_fork(self) -> None:
        """See `Forks.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Forks.after_fork`: another thread may have been in the middle of a change."""
        if in_child:
            self._start()

    def begin(self, thread: str) -> None:
        """Let nothing that was built so far pass any more."""
        with self._lock:
            self._lives[thread] = self._lives.pop(thread, self._before) + 1
            while len(self._lives) > _LIVES:
                self._before = max(self._before, self._lives.pop(next(iter(self._lives)))) + 1

    def name(self, thread: str, generation: int) -> int:
        """What the engine is told."""
        with self._lock:
            return generation + self._lives.get(thread, self._before) * _APART

    def meant(self, thread: str, name: int) -> int | None:
        """What the store knows it by; None where that has passed."""
        with self._lock:
            generation = name - self._lives.get(thread, self._before) * _APART
        return generation if abs(generation) < _APART // 2 else None


class Batches:
    """Stores batches in a backend; see `Storing`.

    Args:
        backend: the store.
        most: batches in one transaction at most.
    """

    def __init__(self, backend: Backend, most: int) -> None:
        self._backend = backend
        self._most = most
        self._names = Names()

    # -- generations -----------------------------------------------------------------

    def named(self, read: Read, reply: Any) -> Any:
        """A reply, with the generation as the engine is to know it."""
        if isinstance(read, ReadCheckpoint | ReadThread):
            return replace(reply, generation=self._names.name(read.thread, reply.generation))
        return reply

    def meant(self, read: Read) -> Read:
        """A read, with the generation as the store knows it."""
        if isinstance(read, ReadSegments) and read.generation is not None:
            known = self._names.meant(read.thread, read.generation)
            return replace(read, generation=_NO_GENERATION if known is None else known)
        return read

    def admitted(self, batch: Batch) -> Batch:
        """A batch as the store is to get it.

        Raises:
            StaleThreadError: it is built on what was lost or removed.
        """
        if batch.generation is None:
            return batch
        known = self._names.meant(batch.thread, batch.generation)
        if known is None:
            raise StaleThreadError(thread=batch.thread)
        return batch._replace(generation=known)

    def lost(self, thread: str) -> None:
        """See `Storing.lost`."""
        self._names.begin(thread)

    # -- storing ---------------------------------------------------------------------

    def size(self, batch: Batch) -> int:
        """See `Storing.size`."""
        size = sum([len(s.data) for s in batch.segments])
        size += sum([len(w.body) for w in batch.writes])
        size += sum([len(r.manifest) + len(r.metadata) for r in batch.checkpoints])
        return size + _OVERHEAD

    def store(self, waiting: Mapping[str, Sequence[Batch]]) -> Mapping[str, Outcome]:
        """See `Storing.store`."""
        todo = {thread: merged(batches) for thread, batches in waiting.items()}
        failed: dict[str, ThreadkeepError] = {}
        while todo:
            first = {thread: batches.pop(0) for thread, batches in todo.items()}
            failed |= self._carried_out(list(first.values()))
            todo = {t: batches for t, batches in todo.items() if batches and t not in failed}
        # (What is stored of a thread that failed may be stored once more.)
        return {
            thread: Outcome(0, failed[thread], lost=_is_refusal(failed[thread]))
            if thread in failed
            else Outcome(len(batches))
            for thread, batches in waiting.items()
        }

    def _carried_out(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        """Commit a batch of each thread; the errors of those that are not stored."""
        failed: dict[str, ThreadkeepError] = {}
        for at in range(0, len(batches), self._most):
            failed |= self._group(batches[at : at + self._most])
        return failed

    def _group(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        if not isinstance(self._backend, GroupingBackend) or len(batches) == 1:
            found = [(batch.thread, self._alone(batch)) for batch in batches]
            return {thread: error for thread, error in found if error is not None}
        try:
            refusals = self._backend.commit_many(batches)
        except _FOR_ALL as error:
            return {batch.thread: error for batch in batches}
        except ThreadkeepError:
            refusals = [self._alone(batch) for batch in batches]
        failed: dict[str, ThreadkeepError] = {}
        for batch, refusal in zip(batches, refusals, strict=True):
            again = self._alone(batch) if isinstance(refusal, SegmentTakenError) else refusal
            if again is not None:
                failed[batch.thread] = again
        return failed

    def _alone(self, batch: Batch) -> ThreadkeepError | None:
        """Commit one batch; what it fails with."""
        try:
            try:
                self._backend.commit(batch)
            except SegmentTakenError:
                # In our own logs: what is there is the same, cut in another way.
                (stored,) = self._backend.fetch([ReadSegments(batch.thread, spans(batch))])
                self._backend.commit(beside(batch, stored))
        except ThreadkeepError as error:
            return error
        return None

    # -- changes that do not wait ------------------------------------------------------

    def change(self, change: Change, threads: Collection[str]) -> None:
        """Carry out a change that is durable on return. Nothing of its threads may wait."""
        if isinstance(change, Batch):
            change = self.admitted(change)
        try:
            self._backend.commit(change)
        finally:  # (also where nobody knows whether it was done)
            for thread in threads:
                self._names.begin(thread)


def _is_refusal(error: ThreadkeepError) -> bool:
    """Whether doing the same again can never succeed."""
    refusals = (StaleThreadError, SegmentTakenError)
    return isinstance(error, refusals) or not isinstance(error, BackendError)
