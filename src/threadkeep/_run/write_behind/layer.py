"""Layers of write-behind: queue saves, and order reads and other changes after them.

Invariants:

- A read of a thread sees every earlier save. A removal runs after all earlier saves of its thread.
- Queued batches of a thread are merged and stored in one change.
- If another process removed data meanwhile, the batch is rebased on the thread's current state.
- The engine never builds on lost or rebased saves. After a loss, a rebase or a removal, the
  thread's generation gets another name. Batches built under the old name are refused while their
  values are still in memory. Nothing else is refused: the logs belong to this process (see
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

_RENAMED = 2**70  # step between the names of a generation; larger than any generation
_RENAMED_COUNT = 4096
_NO_GENERATION = -1
_MAX_GONE = 100_000  # limit of remembered lost checkpoints
_OVERHEAD = 500  # approximate bytes per save in addition to its payload
Key: TypeAlias = tuple[str, str, str | None]  # thread, namespace, checkpoint
_OVERTAKEN = (StaleThreadError, SegmentTakenError)  # failures of a batch that can be rebased
_REFUSALS = (StaleThreadError, ThreadDeletedError)  # errors that a retry cannot fix


class BatchQueue(CommitQueue[Batch]):
    """Queue of batches to store."""

    together = True

    def __init__(self, how: WriteBehind, beneath: Runner, max_batch: int) -> None:
        super().__init__(how)
        self._beneath = beneath
        self._max_batch = max_batch
        self._gone: dict[Key, None] = {}  # checkpoints lost with a deleted thread
        self._numbers = count(1)
        self._renamed = [
            0
        ] * _RENAMED_COUNT  # part of generation names; shared by threads of one hash

    # -- generations -----------------------------------------------------------------

    def _rename(self, thread: str) -> None:
        """Rename the thread's generation, which makes all batches built so far stale."""
        self._renamed[hash(thread) % _RENAMED_COUNT] = next(self._numbers)

    def _offset(self, thread: str) -> int:
        """Return the difference between the name of a generation and the generation."""
        return self._renamed[hash(thread) % _RENAMED_COUNT] * _RENAMED

    def _generation(self, thread: str, name: int) -> int:
        """Return the generation of a name, or `_NO_GENERATION` if the name is stale."""
        generation = name - self._offset(thread)
        return generation if abs(generation) < _RENAMED // 2 else _NO_GENERATION

    def fetch(self, request: Fetch) -> Operation[list[Any]]:
        """Fetch, and replace generations by their names for the engine.

        The names are chosen before the store answers, so a concurrent removal makes the reply
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
            StaleThreadError: the batch is built on lost or removed data.
            ThreadDeletedError: the batch belongs to a run that began before its thread was
                deleted. The store cannot detect this if the parent was never stored.
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
                errors.append(errors[-1])  # the store is down: do not wait for each batch
            else:
                group = batches[len(errors) : len(errors) + self._max_batch]
                errors += finish(commit_together(group, self._commit_many))
        return errors

    async def _commit_many(self, changes: Sequence[Batch]) -> object:
        return self._beneath.run(commit_many(changes))

    def _rebase(self, thread: str, batches: Sequence[Batch]) -> ThreadkeepError | None:
        """Store batches that were built under an earlier generation."""
        self._rename(thread)
        try:
            self._beneath.run(rebase(joined(batches), batches))
        except ThreadkeepError as error:
            return error
        return None

    # -- changes that are not queued ---------------------------------------------------

    def carry_out(self, change: Change, *, named: bool) -> None:
        """Commit a change after all queued saves of its threads; durable on return.

        `named`: the change has the engine's name of the generation, not the store's generation.
        """
        threads = self._beneath.run(_concerned(change))
        with self.paused(threads, forget=_dropped(change)):
            if named:
                change = self._unnamed(change)
            try:
                self._beneath.commit(change)
            finally:  # also if the result of the commit is unknown
                for thread in threads:
                    self._rename(thread)

    def _unnamed(self, change: Change) -> Change:
        """Return the change with the store's generation. Raises like `admit`."""
        if isinstance(change, Batch):
            return self.admit(change)
        if isinstance(change, ForkThread):
            return change._replace(generation=self._generation(change.source, change.generation))
        if isinstance(change, DropThread) and change.generation is not None:
            return change._replace(generation=self._generation(change.thread, change.generation))
        return change


class WriteThroughLayer:
    """Layer for operations that must be durable on return, with the store's own generations.

    Here, several consecutive changes may expect the same generation. In `WriteBehindLayer`, each
    change that is not queued renames the generation.
    """

    handles = CHANGES | {Fetch}

    def __init__(self, queue: BatchQueue) -> None:
        self.queue = queue

    def answer(self, request: Fetch | Commit) -> Operation[Any]:
        """Answer a read or commit a change after all queued saves of its threads."""
        if isinstance(request, Fetch):
            yield from self._flush(request.reads)
            return (yield request)
        yield self._in_turn(partial(self.queue.carry_out, request.change, named=False))
        return None

    def _flush(self, reads: Sequence[Read]) -> Operation[None]:
        threads = _threads_read(reads)
        if not self.queue.is_settled(threads):
            yield self._in_turn(partial(self.queue.flush, threads))

    def _in_turn(self, call: Callable[[], object]) -> External:
        return External(call, partial(self.queue.in_turn, call))


class WriteBehindLayer(WriteThroughLayer):
    """Layer that queues saves and acknowledges them immediately."""

    handles = CHANGES | {Fetch, CommitMany}

    def __init__(self, beneath: Runner, how: WriteBehind, group: GroupCommit = AT_ONCE) -> None:
        super().__init__(BatchQueue(how, beneath, group.max_batch))
        self._beneath = beneath
        self._is_reached = not beneath.has_awaited

    def durable(self) -> WriteThroughLayer:
        """Return the layer for operations that must be durable on return."""
        return WriteThroughLayer(self.queue)

    def answer(self, request: Fetch | Commit | CommitMany) -> Operation[Any]:
        """Queue batches that only add; run other requests after the queued saves."""
        if not self._is_reached:
            yield self._in_turn(self._reach)
        if isinstance(request, Fetch):
            yield from self._flush(request.reads)
            return (yield from self.queue.fetch(request))
        if isinstance(request, Commit):
            yield from self._commit(request.change)
            return None
        for change in request.changes:  # the queue stores them as a group
            yield from self._commit(change)
        return [None] * len(request.changes)

    def _commit(self, change: Change) -> Operation[None]:
        if not (isinstance(change, Batch) and only_adds(change)):
            yield self._in_turn(partial(self.queue.carry_out, change, named=True))
        elif not self.queue.try_add(change.thread, change):
            yield self._in_turn(partial(self.queue.add, change.thread, change))

    def _reach(self) -> None:
        """Open the store's blocking connection, which the background thread uses later.

        At exit of the program it may be too late: from Python 3.12 on, a connection pool cannot
        start its threads then.
        """
        self._beneath.run(fetch(ReadCheckpoint("", "")))
        self._is_reached = True


def _dropped(change: Change) -> list[str]:
    # A conditional deletion may expect queued saves, so they must be stored first.
    is_free = isinstance(change, DropThread) and change.generation is None and not change.fences
    return [change.thread] if is_free else []


def _concerned(change: Change) -> Operation[set[str]]:
    """Return the threads of a change and all threads that share segments with them."""
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
