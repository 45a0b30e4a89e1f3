"""How batches that waited are stored: merged, in groups, and never on what was lost.

Only what it takes to store batches that were answered lives here. Invariants:

- All that waits in a thread goes in one change, where its parts may go together.
- What others have removed meanwhile refuses no batch: it is rebased on what is there now.
- The engine never builds on what was lost or rebased: then, and whenever something was
  removed, the thread's generation gets another name, so that what is built on the one before
  is refused while its values are still at hand. So is nothing else: the logs are this
  process's own (see `engine.logs`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from threadkeep.backends import process_forks
from threadkeep.engine.committing import BatchSource
from threadkeep.engine.model import (
    Batch,
    Change,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
)
from threadkeep.engine.operation import commit_many
from threadkeep.errors import (
    ClosedError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
    UnreachableError,
)
from threadkeep.store.driver import Stack
from threadkeep.write_behind.merging import (
    joined,
    merged,
)
from threadkeep.write_behind.rebase import rebase
from threadkeep.write_behind.waiting import Outcome

_APART = 2**70  # names of one life of a thread; no generation is as large
_NO_GENERATION = -1
_LIVES = 10_000  # threads of which it is remembered that something was lost or removed
_GONE = 100_000  # checkpoints that are remembered as gone
_OVERHEAD = 500  # bytes that a save takes beside its payload, about
Key: TypeAlias = tuple[str, str, str | None]  # thread, namespace, checkpoint
_FOR_ALL = (UnreachableError, ClosedError)  # failures that no single change has caused
_OVERTAKEN = (StaleThreadError, SegmentTakenError)  # failures of what can be rebased
_REFUSALS = (StaleThreadError, ThreadDeletedError)  # to do it again can never help


class Names:
    """What the engine calls the generations of a thread; see the invariants above."""

    def __init__(self) -> None:
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()  # held for moments only, and nothing is called under it
        self._lives: dict[str, int] = {}
        self._before = 0  # of the threads that are not remembered

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: another thread may have been in the middle of a change."""
        if in_child:
            self._start()

    def begin(self, thread: str) -> None:
        """Let nothing that was built so far pass any more."""
        with self._lock:
            self._lives[thread] = self._lives.pop(thread, self._before) + 1
            while len(self._lives) > _LIVES:
                self._before = max(self._before, self._lives.pop(next(iter(self._lives)))) + 1

    def offset(self, thread: str) -> int:
        """What is added to a generation for the engine."""
        with self._lock:
            return self._lives.get(thread, self._before) * _APART

    def meant(self, thread: str, name: int) -> int | None:
        """What the store knows it by; None where that has passed."""
        generation = name - self.offset(thread)
        return generation if abs(generation) < _APART // 2 else None


class Asked(NamedTuple):
    """Reads as the store is asked, and what to add to the generations that it answers with.

    That is settled before it answers: what is removed meanwhile makes the answer an old one.
    """

    reads: list[Read]
    offsets: list[int]

    def named(self, replies: Sequence[Any]) -> list[Any]:
        """The replies, with generations as the engine is to know them."""
        return [
            reply._replace(generation=reply.generation + offset) if offset else reply
            for reply, offset in zip(replies, self.offsets, strict=True)
        ]


def _tells(read: Read) -> TypeGuard[ReadCheckpoint | ReadThread]:
    """Whether the reply tells the generation."""
    return isinstance(read, ReadCheckpoint | ReadThread)


class Batches:
    """Stores batches in a store; see `Storing`.

    Args:
        beneath: the store, and the layers in front of it that the batches pass.
        most: batches in one transaction at most.
    """

    together = True

    def __init__(self, beneath: Stack, most: int) -> None:
        self._beneath = beneath
        self._most = most
        self._names = Names()
        self._gone: dict[Key, None] = {}  # checkpoints that were lost with a deleted thread

    # -- generations -----------------------------------------------------------------

    def asked(self, reads: Sequence[Read]) -> Asked:
        """Reads that are about to be answered."""
        return Asked(
            [self._meant(read) for read in reads],
            [self._names.offset(read.thread) if _tells(read) else 0 for read in reads],
        )

    def _meant(self, read: Read) -> Read:
        if isinstance(read, ReadSegments) and read.generation is not None:
            known = self._names.meant(read.thread, read.generation)
            return read._replace(generation=_NO_GENERATION if known is None else known)
        return read

    def admitted(self, batch: Batch) -> Batch:
        """A batch as the store is to get it.

        Raises:
            StaleThreadError: it is built on what was lost or removed.
            ThreadDeletedError: it is of a run that is older than its thread's deletion. That a
                store tells by the parent's age, where that was stored: here it may not be.
        """
        above = [(batch.thread, row.ns, row.parent) for row in batch.checkpoints]
        above += [(batch.thread, row.ns, row.checkpoint_id) for row in batch.writes]
        own = [(batch.thread, row.ns, row.id) for row in batch.checkpoints]
        if any(key in self._gone for key in above):
            self._remember(own)
            raise ThreadDeletedError(thread=batch.thread)
        for key in own:
            self._gone.pop(key, None)
        if batch.generation is None:
            return batch
        return batch._replace(generation=self._known(batch.thread, batch.generation))

    def lost(self, thread: str, items: Sequence[Batch], *, deleted: bool) -> None:
        """See `Storing.lost`."""
        self._names.begin(thread)
        if deleted:
            self._remember((thread, row.ns, row.id) for one in items for row in one.checkpoints)

    def _remember(self, gone: Iterable[Key]) -> None:
        self._gone.update(dict.fromkeys(gone))
        while len(self._gone) > _GONE:
            del self._gone[next(iter(self._gone))]

    # -- storing ---------------------------------------------------------------------

    def size(self, batch: Batch) -> int:
        """See `Storing.size`."""
        size = sum([len(s.data) for s in batch.segments])
        size += sum([len(w.body) for w in batch.writes])
        size += sum([len(r.manifest) + len(r.metadata) for r in batch.checkpoints])
        size += batch.made.size if isinstance(batch.made, BatchSource) else 0
        return size + _OVERHEAD

    def store(self, waiting: Mapping[str, Sequence[Batch]]) -> Mapping[str, Outcome]:
        """See `Storing.store`."""
        todo = {thread: merged(batches) for thread, batches in waiting.items()}
        failed: dict[str, ThreadkeepError] = {}
        while todo:
            first = {thread: batches.pop(0) for thread, batches in todo.items()}
            for thread, error in self._carried_out(list(first.values())).items():
                del todo[thread]
                is_overtaken = isinstance(error, _OVERTAKEN)
                again = self._rebased(thread, waiting[thread]) if is_overtaken else error
                if again is not None:
                    failed[thread] = again
            todo = {thread: batches for thread, batches in todo.items() if batches}
        # (What is stored of a thread that failed may be stored once more.)
        return {
            thread: Outcome(0, failed[thread], lost=isinstance(failed[thread], _REFUSALS))
            if thread in failed
            else Outcome(len(batches))
            for thread, batches in waiting.items()
        }

    def _carried_out(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        """Commit a batch of each thread; the errors of those that are not stored."""
        failed: dict[str, ThreadkeepError] = {}
        for at in range(0, len(batches), self._most):
            failed |= self._group(batches[at : at + self._most])
            down = next((e for e in failed.values() if isinstance(e, _FOR_ALL)), None)
            if down is not None:  # (the others would wait as long for nothing)
                return failed | {b.thread: down for b in batches[at + self._most :]}
        return failed

    def _rebased(self, thread: str, batches: Sequence[Batch]) -> ThreadkeepError | None:
        """Store what was made under a generation that has passed; what it fails with."""
        self._names.begin(thread)
        try:
            self._beneath.run(rebase(joined(batches), batches))
        except ThreadkeepError as error:
            return error
        return None

    def _group(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        try:
            refusals = self._together(batches)
        except _FOR_ALL as error:
            return {batch.thread: error for batch in batches}
        except ThreadkeepError:
            refusals = [self._alone(batch) for batch in batches]
        refused = zip(batches, refusals, strict=True)
        return {batch.thread: error for batch, error in refused if error is not None}

    def _together(self, batches: list[Batch]) -> Sequence[ThreadkeepError | None]:
        if len(batches) == 1:
            return [self._alone(batches[0])]
        return self._beneath.run(commit_many(batches))

    def _alone(self, batch: Batch) -> ThreadkeepError | None:
        """Commit one batch; what it fails with."""
        try:
            self._beneath.commit(batch)
        except ThreadkeepError as error:
            return error
        return None

    # -- changes that do not wait ------------------------------------------------------

    def change(self, change: Change, threads: Collection[str]) -> None:
        """Carry out a change that is durable on return. Nothing of its threads may wait."""
        if isinstance(change, Batch):
            change = self.admitted(change)
        elif isinstance(change, ForkThread):
            change = change._replace(generation=self._known(change.source, change.generation))
        elif isinstance(change, DropThread) and change.generation is not None:
            change = change._replace(generation=self._known(change.thread, change.generation))
        self.directly(change, threads)

    def _known(self, thread: str, name: int) -> int:
        """What the store knows a generation by.

        Raises:
            StaleThreadError: it has passed.
        """
        known = self._names.meant(thread, name)
        if known is None:
            raise StaleThreadError(thread=thread)
        return known

    def directly(self, change: Change, threads: Collection[str]) -> None:
        """The same of a change that names the store's own generations."""
        try:
            self._beneath.commit(change)
        finally:  # (also where nobody knows whether it was done)
            for thread in threads:
                self._names.begin(thread)
