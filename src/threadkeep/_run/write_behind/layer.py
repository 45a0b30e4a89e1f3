"""Layers of write-behind: saves are queued, and reads and other changes come behind them.

Invariants:

- A read of a thread sees every save made before; a change that removes anything comes behind them.
- Queued batches of a thread are stored in one change, where they may go together.
- What others have removed meanwhile refuses no batch: it is rebased on what is there now.
- The engine never builds on what was lost or rebased. Then, and at each removal, the thread's
  generation gets another name, so that what is built on the one before is refused while its
  values are still in memory. Nothing else is: the logs are this process's own (see
  `_core.engine.logs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from threadkeep._core.engine.context import BatchSource
from threadkeep._core.engine.model import (
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
from threadkeep._core.engine.operation import (
    Commit,
    CommitMany,
    External,
    Fetch,
    Operation,
    Requests,
    commit_many,
    fetch,
)
from threadkeep._core.engine.thread_summary import row_size
from threadkeep._run.driver import CHANGES, Runner
from threadkeep._run.group_commit import AT_ONCE, OF_THE_STORE, GroupCommit, commit_together
from threadkeep._run.write_behind import WriteBehind
from threadkeep._run.write_behind.commit_queue import CommitQueue, Outcome, Threads
from threadkeep._run.write_behind.rebase import joined, only_adds, rebase
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import (
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
)

if TYPE_CHECKING:
    pass

_RENAMED = 2**70  # between the names of a generation; no generation is as large
_RENAMED_COUNT = 4096
_NO_GENERATION = -1
_MAX_GONE = 100_000  # checkpoints that are remembered as lost
_OVERHEAD = 500  # bytes that a save takes beside its payload, about
Key: TypeAlias = tuple[str, str, str | None]  # thread, namespace, checkpoint
_OVERTAKEN = (StaleThreadError, SegmentTakenError)  # failures of a batch that can be rebased
_REFUSALS = (StaleThreadError, ThreadDeletedError)  # a retry can never help


class BatchQueue(CommitQueue[Batch]):
    """Batches to be stored."""

    together = True

    def __init__(self, how: WriteBehind, beneath: Runner, max_batch: int) -> None:
        super().__init__(how)
        self._beneath = beneath
        self._max_batch = max_batch
        self._gone: dict[Key, None] = {}  # checkpoints that were lost with a deleted thread
        self._numbers = count(1)
        self._renamed = [0] * _RENAMED_COUNT  # part of the names of generations; threads share them

    # -- generations -----------------------------------------------------------------

    def _rename(self, thread: str) -> None:
        """Give the thread's generation another name: what was built so far is stale."""
        self._renamed[hash(thread) % _RENAMED_COUNT] = next(self._numbers)

    def _offset(self, thread: str) -> int:
        """Return the difference between a generation and its name."""
        return self._renamed[hash(thread) % _RENAMED_COUNT] * _RENAMED

    def _generation(self, thread: str, name: int) -> int:
        """Return the generation of a name; one that no thread has if the name is stale."""
        generation = name - self._offset(thread)
        return generation if abs(generation) < _RENAMED // 2 else _NO_GENERATION

    def fetch(self, request: Fetch) -> Requests[list[Any]]:
        """Fetch, and reply with generations as the engine knows them.

        Their names are settled before the store answers: a removal meanwhile makes the reply
        stale.
        """
        offsets = [
            self._offset(read.thread) if isinstance(read, ReadCheckpoint | ReadThread) else 0
            for read in request.reads
        ]
        replies = yield request._replace(reads=[self._translated(read) for read in request.reads])
        return [
            reply._replace(generation=reply.generation + offset) if offset else reply
            for reply, offset in zip(replies, offsets, strict=True)
        ]

    def _translated(self, read: Read) -> Read:
        if isinstance(read, ReadSegments) and read.generation is not None:
            return read._replace(generation=self._generation(read.thread, read.generation))
        return read

    def admit(self, item: Batch) -> Batch:
        """Return a batch with the store's generation.

        Raises:
            StaleThreadError: it is built on what was lost or removed.
            ThreadDeletedError: it is of a run that is older than its thread's deletion. A store
                sees that by the age of the parent, which may not have been stored.
        """
        above = [(item.thread, row.ns, row.parent) for row in item.checkpoints]
        above += [(item.thread, row.ns, row.checkpoint_id) for row in item.writes]
        own = [(item.thread, row.ns, row.id) for row in item.checkpoints]
        if any(key in self._gone for key in above):
            self._remember_gone(own)
            raise ThreadDeletedError(thread=item.thread)
        for key in own:
            self._gone.pop(key, None)
        if item.generation is None:
            return item
        generation = self._generation(item.thread, item.generation)
        if generation == _NO_GENERATION:
            raise StaleThreadError(thread=item.thread)
        return item._replace(generation=generation)

    def lost(self, thread: str, items: Sequence[Batch], *, deleted: bool) -> None:
        self._rename(thread)
        if deleted:
            keys = ((thread, row.ns, row.id) for one in items for row in one.checkpoints)
            self._remember_gone(keys)

    def _remember_gone(self, keys: Iterable[Key]) -> None:
        self._gone.update(dict.fromkeys(keys))
        while len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]

    # -- storing ---------------------------------------------------------------------

    def size(self, item: Batch) -> int:
        size = sum([len(segment.data) for segment in item.segments])
        size += sum(map(row_size, item.checkpoints)) + sum(map(row_size, item.writes))
        size += item.made.size if isinstance(item.made, BatchSource) else 0
        return size + _OVERHEAD

    def store(self, items: Mapping[str, Sequence[Batch]]) -> Mapping[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        errors = self._commit_each([joined(batches) for batches in items.values()])
        for (thread, batches), error in zip(items.items(), errors, strict=True):
            failure = error
            if isinstance(error, _OVERTAKEN):
                failure = self._rebase(thread, batches)
            if failure is None:
                outcomes[thread] = Outcome(len(batches))
            else:
                outcomes[thread] = Outcome(0, failure, lost=isinstance(failure, _REFUSALS))
        return outcomes

    def _commit_each(self, batches: list[Batch]) -> list[ThreadkeepError | None]:
        """Commit a batch of each thread, a group at a time; return their errors."""
        errors: list[ThreadkeepError | None] = []
        while len(errors) < len(batches):
            if errors and isinstance(errors[-1], OF_THE_STORE):
                errors.append(errors[-1])  # (the others would wait as long for nothing)
            else:
                group = batches[len(errors) : len(errors) + self._max_batch]
                errors += finish(commit_together(group, self._commit_many))
        return errors

    async def _commit_many(self, changes: Sequence[Batch]) -> object:
        return self._beneath.run(commit_many(changes))

    def _rebase(self, thread: str, batches: Sequence[Batch]) -> ThreadkeepError | None:
        """Store batches that were made under an earlier generation."""
        self._rename(thread)
        try:
            self._beneath.run(rebase(joined(batches), batches))
        except ThreadkeepError as error:
            return error
        return None

    # -- changes that are not queued ---------------------------------------------------

    def carry_out(self, change: Change, *, named: bool) -> None:
        """Carry out a change behind all queued saves of its threads; durable on return.

        `named`: its generation is that of the engine, else the store's own.
        """
        threads = self._beneath.run(_concerned(change))
        with self.paused(threads, forget=_dropped(change)):
            if named:
                change = self._unnamed(change)
            try:
                self._beneath.commit(change)
            finally:  # (also if it is unknown whether it was done)
                for thread in threads:
                    self._rename(thread)

    def _unnamed(self, change: Change) -> Change:
        """Return the change with the store's generation. Raises as `admit`."""
        if isinstance(change, Batch):
            return self.admit(change)
        if isinstance(change, ForkThread):
            return change._replace(generation=self._generation(change.source, change.generation))
        if isinstance(change, DropThread) and change.generation is not None:
            return change._replace(generation=self._generation(change.thread, change.generation))
        return change


class WriteThroughLayer:
    """Layer for operations that must be durable on return, by the store's own generations.

    Several changes in a row may expect one generation here: above `WriteBehindLayer`, each change
    that is not queued renames it.
    """

    handles = CHANGES | {Fetch}

    def __init__(self, queue: BatchQueue) -> None:
        self.queue = queue

    def answer(self, request: Fetch | Commit) -> Requests[Any]:
        """Answer reads, and carry out changes, behind all queued saves of their threads."""
        if isinstance(request, Fetch):
            yield from self._flush(request.reads)
            return (yield request)
        yield self._in_turn(partial(self.queue.carry_out, request.change, named=False))
        return None

    def _flush(self, reads: Sequence[Read]) -> Requests[None]:
        threads = _threads_read(reads)
        if not self.queue.is_settled(threads):
            yield self._in_turn(partial(self.queue.flush, threads))

    def _in_turn(self, call: Callable[[], object]) -> External:
        return External(call, partial(self.queue.in_turn, call))


class WriteBehindLayer(WriteThroughLayer):
    """Layer that queues saves and acknowledges them at once."""

    handles = CHANGES | {Fetch, CommitMany}

    def __init__(self, beneath: Runner, how: WriteBehind, group: GroupCommit = AT_ONCE) -> None:
        super().__init__(BatchQueue(how, beneath, group.max_batch))
        self._beneath = beneath
        self._is_reached = not beneath.has_awaited

    def durable(self) -> WriteThroughLayer:
        """Return the layer for operations that must be durable on return."""
        return WriteThroughLayer(self.queue)

    def answer(self, request: Fetch | Commit | CommitMany) -> Requests[Any]:
        """Queue batches that only add; put all else behind the queued saves of its threads."""
        if not self._is_reached:
            yield self._in_turn(self._reach)
        if isinstance(request, Fetch):
            yield from self._flush(request.reads)
            return (yield from self.queue.fetch(request))
        if isinstance(request, Commit):
            yield from self._commit(request.change)
            return None
        for change in request.changes:  # (they go together when they are stored)
            yield from self._commit(change)
        return [None] * len(request.changes)

    def _commit(self, change: Change) -> Requests[None]:
        if not (isinstance(change, Batch) and only_adds(change)):
            yield self._in_turn(partial(self.queue.carry_out, change, named=True))
        elif not self.queue.try_add(change.thread, change):
            yield self._in_turn(partial(self.queue.add, change.thread, change))

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
