"""How batches that waited are stored: merged, in groups, and never on what was lost.

Only what it takes to store batches that were answered lives here. Invariants:

- All that waits in a thread goes in one change, where its parts may go together.
- What others have removed meanwhile refuses no batch: it is rebased on what is there now.
- The engine never builds on what was lost or rebased: then, and whenever something was
  removed, the thread's generation gets another name, so that what is built on the one before
  is refused while its values are still at hand. So is nothing else: the logs are this
  process's own (see `engine.open_logs`).

Layers in front of a store whose saves return before they are durable.

Only what the layers do with a request lives here. Invariant: a read of a thread sees everything
that was saved in it before, and a change that removes anything comes behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from threadkeep.backends import process_forks
from threadkeep.backends.group_commit import AT_ONCE, GroupCommit
from threadkeep.engine.calls import (
    Aside,
    Commit,
    CommitMany,
    Fetch,
    Operation,
    Requests,
    commit_many,
    fetch,
)
from threadkeep.engine.committing import Made
from threadkeep.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
    ThreadRows,
)
from threadkeep.errors import (
    ClosedError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
    UnreachableError,
)
from threadkeep.store.driver import Stack
from threadkeep.store.layer import CHANGES
from threadkeep.write_behind import WriteBehind
from threadkeep.write_behind.commit_queue import (
    CommitQueue,
    Outcome,
    Threads,
)
from threadkeep.write_behind.rebase import (
    joined,
    merged,
    only_adds,
    rebase,
)

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
        size += batch.made.size if isinstance(batch.made, Made) else 0
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


class WriteThroughLayer:
    """The layer for what must be durable on return, with the store's own generations.

    Several changes in a row may expect one generation here: above `WriteBehindLayer`, each change
    that does not wait gives the generation another name.

    Args:
        beneath: the store, and the layers beneath: what waits is stored there, by a thread of
            its own, which blocks.
        unstored: what waits.
        batches: how it is stored.
    """

    handles = CHANGES | {Fetch}

    def __init__(self, beneath: Stack, unstored: CommitQueue[Batch], batches: Batches) -> None:
        self._beneath = beneath
        self.unstored = unstored
        self.batches = batches

    def answer(self, request: Fetch | Commit) -> Requests[Any]:
        """Answer reads, and carry out changes, behind everything that waits in their threads."""
        if isinstance(request, Fetch):
            yield from self._flushed(request.reads)
            return (yield request)
        yield from self._alone(self._carry_out, request.change, self.batches.directly)
        return None

    def _flushed(self, reads: Sequence[Read]) -> Requests[None]:
        threads = _threads_read(reads)
        if not self.unstored.clean(threads):
            yield from self._alone(self.unstored.flush, threads)

    def _alone(self, function: Callable[..., object], *args: Any) -> Requests[None]:
        call = partial(function, *args)
        yield Aside(call, partial(self.unstored.alone, call))

    def _carry_out(self, change: Change, do: Callable[[Change, Collection[str]], None]) -> None:
        threads = self._beneath.run(_concerned(change))
        with self.unstored.holding(threads, forget=_dropped(change)):
            do(change, threads)


class WriteBehindLayer(WriteThroughLayer):
    """The layer that notes saves, to be stored soon, and returns.

    Args:
        beneath: see `WriteThroughLayer`.
        how: when what waits is stored, and how much may wait.
        group: how much of it shares a transaction.
    """

    handles = CHANGES | {Fetch, CommitMany}

    def __init__(self, beneath: Stack, how: WriteBehind, group: GroupCommit = AT_ONCE) -> None:
        batches = Batches(beneath, group.max_batch)
        super().__init__(beneath, CommitQueue(how, batches), batches)
        self._is_reached = not beneath.has_awaited

    def durable(self) -> WriteThroughLayer:
        """See `WriteThroughLayer`."""
        return WriteThroughLayer(self._beneath, self.unstored, self.batches)

    def answer(self, request: Fetch | Commit | CommitMany) -> Requests[Any]:
        """Note batches that only add; anything else comes behind what waits in its threads."""
        if not self._is_reached:
            yield from self._alone(self._reach)
        if isinstance(request, Fetch):
            yield from self._flushed(request.reads)
            asked = self.batches.asked(request.reads)
            return asked.named((yield request._replace(reads=asked.reads)))
        if isinstance(request, Commit):
            yield from self._commit(request.change)
            return None
        for change in request.changes:  # (they go together when they are stored)
            yield from self._commit(change)
        return [None] * len(request.changes)

    def _commit(self, change: Change) -> Requests[None]:
        if not (isinstance(change, Batch) and only_adds(change)):
            yield from self._alone(self._carry_out, change, self.batches.change)
        elif not self.unstored.added(change.thread, change):
            yield from self._alone(self.unstored.add, change.thread, change)

    def _reach(self) -> None:
        """Reach the store once as the thread will that stores what waits.

        At the program's end it may be too late: threads, which a pool of connections has,
        cannot be started any more from Python 3.12 on.
        """
        self._beneath.run(fetch(ReadCheckpoint("", "")))
        self._is_reached = True


def _dropped(change: Change) -> list[str]:
    # (one that expects something expects what waits, too)
    is_free = isinstance(change, DropThread) and change.generation is None and not change.fences
    return [change.thread] if is_free else []


def _concerned(change: Change) -> Operation[set[str]]:
    """The threads of a change, and those that share segments with them."""
    own = _threads_of(change)
    found: list[ThreadRows] = yield Fetch([ReadThread(name, stub=True) for name in sorted(own)])
    return own.union(*[rows.family for rows in found])


def _threads_of(change: Change) -> set[str]:
    if isinstance(change, CopyThread | ForkThread):
        return {change.source, change.target}
    return {change.thread}


def _threads_read(reads: Sequence[Read]) -> Threads:
    threads = {getattr(read, "thread", None) for read in reads}
    return None if None in threads else {str(thread) for thread in threads}
