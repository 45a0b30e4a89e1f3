"""Layers of write-behind: saves are queued, and reads and other changes come behind them.

Invariants:

- A read of a thread sees every save made before; a change that removes anything comes behind them.
- Queued batches of a thread are stored in one change, where they may go together.
- What others have removed meanwhile refuses no batch: it is rebased on what is there now.
- The engine never builds on what was lost or rebased. Then, and at each removal, the thread's
  generation gets another name, so that what is built on the one before is refused while its
  values are still in memory. Nothing else is: the logs are this process's own (see
  `engine.logs`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from threadkeep.backends.group_commit import AT_ONCE, GroupCommit
from threadkeep.backends.process_forks import ResetInChild
from threadkeep.engine.context import BatchSource
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
from threadkeep.engine.operation import (
    Aside,
    Commit,
    CommitMany,
    Fetch,
    Operation,
    Requests,
    commit_many,
    fetch,
)
from threadkeep.errors import (
    ClosedError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
    UnreachableError,
)
from threadkeep.layers.driver import Stack
from threadkeep.layers.layer import CHANGES
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

_RENAMED = 2**70  # between the names of a generation; no generation is as large
_NO_GENERATION = -1
_MAX_THREADS = 10_000  # of which it is remembered that generations were renamed
_MAX_GONE = 100_000  # checkpoints that are remembered as lost
_OVERHEAD = 500  # bytes that a save takes beside its payload, about
Key: TypeAlias = tuple[str, str, str | None]  # thread, namespace, checkpoint
_OF_THE_STORE = (UnreachableError, ClosedError)  # failures that no single change has caused
_OVERTAKEN = (StaleThreadError, SegmentTakenError)  # failures of a batch that can be rebased
_REFUSALS = (StaleThreadError, ThreadDeletedError)  # a retry can never help


class Generations(ResetInChild):
    """Names under which the engine knows the generations of threads."""

    def _reset(self) -> None:
        self._lock = threading.Lock()  # held for moments only, and nothing is called under it
        self._renamed: dict[str, int] = {}  # how often
        self._default = 0  # of the threads that are not remembered

    def rename(self, thread: str) -> None:
        """Give the thread's generation another name: what was built so far is stale."""
        with self._lock:
            self._renamed[thread] = self._renamed.pop(thread, self._default) + 1
            while len(self._renamed) > _MAX_THREADS:
                oldest = self._renamed.pop(next(iter(self._renamed)))
                self._default = max(self._default, oldest) + 1

    def offset(self, thread: str) -> int:
        """Return what to add to a generation to get its name."""
        with self._lock:
            return self._renamed.get(thread, self._default) * _RENAMED

    def find(self, thread: str, name: int) -> int | None:
        """Return the generation of this name; None if the name is stale."""
        generation = name - self.offset(thread)
        return generation if abs(generation) < _RENAMED // 2 else None


class BatchSink:
    """Stores batches in a store. See `Sink`.

    Args:
        beneath: the store, and the layers in front of it that the batches pass.
        max_batch: batches in one transaction at most.
    """

    together = True

    def __init__(self, beneath: Stack, max_batch: int) -> None:
        self._beneath = beneath
        self._max_batch = max_batch
        self._generations = Generations()
        self._gone: dict[Key, None] = {}  # checkpoints that were lost with a deleted thread

    # -- generations -----------------------------------------------------------------

    def fetch(self, request: Fetch) -> Requests[list[Any]]:
        """Fetch, and reply with generations as the engine knows them.

        Their names are settled before the store answers: a removal meanwhile makes the reply
        stale.
        """
        offsets = [
            self._generations.offset(read.thread)
            if isinstance(read, ReadCheckpoint | ReadThread)
            else 0
            for read in request.reads
        ]
        replies = yield request._replace(reads=[self._translated(read) for read in request.reads])
        return [
            reply._replace(generation=reply.generation + offset) if offset else reply
            for reply, offset in zip(replies, offsets, strict=True)
        ]

    def _translated(self, read: Read) -> Read:
        if isinstance(read, ReadSegments) and read.generation is not None:
            found = self._generations.find(read.thread, read.generation)
            return read._replace(generation=_NO_GENERATION if found is None else found)
        return read

    def _generation(self, thread: str, name: int) -> int:
        """Return the store's generation of a name.

        Raises:
            StaleThreadError: the name is stale.
        """
        found = self._generations.find(thread, name)
        if found is None:
            raise StaleThreadError(thread=thread)
        return found

    def admit(self, batch: Batch) -> Batch:
        """Return a batch with the store's generation.

        Raises:
            StaleThreadError: it is built on what was lost or removed.
            ThreadDeletedError: it is of a run that is older than its thread's deletion. A store
                sees that by the age of the parent, which may not have been stored.
        """
        above = [(batch.thread, row.ns, row.parent) for row in batch.checkpoints]
        above += [(batch.thread, row.ns, row.checkpoint_id) for row in batch.writes]
        own = [(batch.thread, row.ns, row.id) for row in batch.checkpoints]
        if any(key in self._gone for key in above):
            self._remember_gone(own)
            raise ThreadDeletedError(thread=batch.thread)
        for key in own:
            self._gone.pop(key, None)
        if batch.generation is None:
            return batch
        return batch._replace(generation=self._generation(batch.thread, batch.generation))

    def lost(self, thread: str, items: Sequence[Batch], *, deleted: bool) -> None:
        """See `Sink.lost`."""
        self._generations.rename(thread)
        if deleted:
            keys = ((thread, row.ns, row.id) for one in items for row in one.checkpoints)
            self._remember_gone(keys)

    def _remember_gone(self, keys: Iterable[Key]) -> None:
        self._gone.update(dict.fromkeys(keys))
        while len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]

    # -- storing ---------------------------------------------------------------------

    def size(self, batch: Batch) -> int:
        """See `Sink.size`."""
        size = sum([len(s.data) for s in batch.segments])
        size += sum([len(w.body) for w in batch.writes])
        size += sum([len(r.manifest) + len(r.metadata) for r in batch.checkpoints])
        size += batch.made.size if isinstance(batch.made, BatchSource) else 0
        return size + _OVERHEAD

    def store(self, items: Mapping[str, Sequence[Batch]]) -> Mapping[str, Outcome]:
        """See `Sink.store`."""
        todo = {thread: merged(batches) for thread, batches in items.items()}
        failed: dict[str, ThreadkeepError] = {}
        while todo:
            first = {thread: batches.pop(0) for thread, batches in todo.items()}
            for thread, error in self._commit_each(list(first.values())).items():
                del todo[thread]
                is_overtaken = isinstance(error, _OVERTAKEN)
                failure = self._rebase(thread, items[thread]) if is_overtaken else error
                if failure is not None:
                    failed[thread] = failure
            todo = {thread: batches for thread, batches in todo.items() if batches}
        # (What is stored of a thread that failed may be stored once more.)
        return {
            thread: Outcome(0, failed[thread], lost=isinstance(failed[thread], _REFUSALS))
            if thread in failed
            else Outcome(len(batches))
            for thread, batches in items.items()
        }

    def _commit_each(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        """Commit a batch of each thread; return the errors of those that are not stored."""
        failed: dict[str, ThreadkeepError] = {}
        for at in range(0, len(batches), self._max_batch):
            failed |= self._commit_group(batches[at : at + self._max_batch])
            down = next((e for e in failed.values() if isinstance(e, _OF_THE_STORE)), None)
            if down is not None:  # (the others would wait as long for nothing)
                return failed | {b.thread: down for b in batches[at + self._max_batch :]}
        return failed

    def _commit_group(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        try:
            if len(batches) == 1:
                refusals: Sequence[ThreadkeepError | None] = [self._commit(batches[0])]
            else:
                refusals = self._beneath.run(commit_many(batches))
        except _OF_THE_STORE as error:
            return {batch.thread: error for batch in batches}
        except ThreadkeepError:
            refusals = [self._commit(batch) for batch in batches]
        refused = zip(batches, refusals, strict=True)
        return {batch.thread: error for batch, error in refused if error is not None}

    def _commit(self, batch: Batch) -> ThreadkeepError | None:
        try:
            self._beneath.commit(batch)
        except ThreadkeepError as error:
            return error
        return None

    def _rebase(self, thread: str, batches: Sequence[Batch]) -> ThreadkeepError | None:
        """Store batches that were made under an earlier generation."""
        self._generations.rename(thread)
        try:
            self._beneath.run(rebase(joined(batches), batches))
        except ThreadkeepError as error:
            return error
        return None

    # -- changes that are not queued ---------------------------------------------------

    def change(self, change: Change, threads: Collection[str]) -> None:
        """Carry out a change by the engine's generations, durable on return.

        Nothing of its threads may be queued.
        """
        if isinstance(change, Batch):
            change = self.admit(change)
        elif isinstance(change, ForkThread):
            change = change._replace(generation=self._generation(change.source, change.generation))
        elif isinstance(change, DropThread) and change.generation is not None:
            change = change._replace(generation=self._generation(change.thread, change.generation))
        self.change_directly(change, threads)

    def change_directly(self, change: Change, threads: Collection[str]) -> None:
        """Carry out a change by the store's own generations. See `change`."""
        try:
            self._beneath.commit(change)
        finally:  # (also where nobody knows whether it was done)
            for thread in threads:
                self._generations.rename(thread)


class WriteThroughLayer:
    """Layer for operations that must be durable on return, by the store's own generations.

    Several changes in a row may expect one generation here: above `WriteBehindLayer`, each change
    that is not queued renames it.

    Args:
        beneath: the store, and the layers beneath: queued saves are stored there, by blocking
            calls.
        queue: saves that are not stored yet.
        sink: stores them.
    """

    handles = CHANGES | {Fetch}

    def __init__(self, beneath: Stack, queue: CommitQueue[Batch], sink: BatchSink) -> None:
        self._beneath = beneath
        self.queue = queue
        self.sink = sink

    def answer(self, request: Fetch | Commit) -> Requests[Any]:
        """Answer reads, and carry out changes, behind all queued saves of their threads."""
        if isinstance(request, Fetch):
            yield from self._flush(request.reads)
            return (yield request)
        yield self._in_turn(self._carry_out, request.change, self.sink.change_directly)
        return None

    def _flush(self, reads: Sequence[Read]) -> Requests[None]:
        threads = _threads_read(reads)
        if not self.queue.is_settled(threads):
            yield self._in_turn(self.queue.flush, threads)

    def _in_turn(self, function: Callable[..., object], *args: Any) -> Aside:
        call = partial(function, *args)
        return Aside(call, partial(self.queue.in_turn, call))

    def _carry_out(self, change: Change, do: Callable[[Change, Collection[str]], None]) -> None:
        threads = self._beneath.run(_concerned(change))
        with self.queue.paused(threads, forget=_dropped(change)):
            do(change, threads)


class WriteBehindLayer(WriteThroughLayer):
    """Layer that queues saves and acknowledges them at once.

    Args:
        beneath: see `WriteThroughLayer`.
        how: when queued saves are stored, and how many bytes may be queued.
        group: how many of them share a transaction.
    """

    handles = CHANGES | {Fetch, CommitMany}

    def __init__(self, beneath: Stack, how: WriteBehind, group: GroupCommit = AT_ONCE) -> None:
        sink = BatchSink(beneath, group.max_batch)
        super().__init__(beneath, CommitQueue(how, sink), sink)
        self._is_reached = not beneath.has_awaited

    def durable(self) -> WriteThroughLayer:
        """Return the layer for operations that must be durable on return."""
        return WriteThroughLayer(self._beneath, self.queue, self.sink)

    def answer(self, request: Fetch | Commit | CommitMany) -> Requests[Any]:
        """Queue batches that only add; put all else behind the queued saves of its threads."""
        if not self._is_reached:
            yield self._in_turn(self._reach)
        if isinstance(request, Fetch):
            yield from self._flush(request.reads)
            return (yield from self.sink.fetch(request))
        if isinstance(request, Commit):
            yield from self._commit(request.change)
            return None
        for change in request.changes:  # (they go together when they are stored)
            yield from self._commit(change)
        return [None] * len(request.changes)

    def _commit(self, change: Change) -> Requests[None]:
        if not (isinstance(change, Batch) and only_adds(change)):
            yield self._in_turn(self._carry_out, change, self.sink.change)
        elif not self.queue.try_add(change.thread, change):
            yield self._in_turn(self.queue.add, change.thread, change)

    def _reach(self) -> None:
        """Reach the store once by a blocking call, as the background thread will.

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
    """Return the threads of a change, and those that share segments with them."""
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
