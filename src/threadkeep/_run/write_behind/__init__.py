"""Write-behind: saves return before they are durable; a background thread stores them.

Invariants:

- A read of a thread sees every earlier save. A removal runs after all earlier saves of its thread.
- Queued batches of a thread are merged and stored in one change.
- If another process removed data meanwhile, the batch is rebased on the thread's current state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from threadkeep._core.engine.model import Change, Read, ReadCheckpoint
from threadkeep._core.engine.operation import Commit, CommitMany, External, Fetch, Operation, fetch
from threadkeep._core.policies import WriteBehind
from threadkeep._run.driver import CHANGES, Runner
from threadkeep._run.group_commit import AT_ONCE, GroupCommit
from threadkeep._run.write_behind.queue import BatchQueue, ThreadIds
from threadkeep._stores.records import only_adds


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
        threads = self._threads_read(reads)
        if not self.queue.is_settled(threads):
            yield self._in_turn(partial(self.queue.flush, threads))

    def _threads_read(self, reads: Sequence[Read]) -> ThreadIds:
        threads: set[str] = set()
        for read in reads:
            thread: str | None = getattr(read, "thread", None)
            prefix: str = getattr(getattr(read, "query", read), "prefix", "")
            if thread is None and not prefix:
                return None
            threads.update([thread] if thread is not None else self.queue.under(prefix))
        return threads

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
        if not only_adds(change):
            yield self._in_turn(partial(self.queue.carry_out, change, named=True))
        elif not self.queue.try_add(change):
            yield self._in_turn(partial(self.queue.add, change))

    def _reach(self) -> None:
        """Open the store's blocking connection, which the background thread uses later.

        At exit of the program it may be too late: from Python 3.12 on, a connection pool cannot
        start its threads then.
        """
        self._beneath.run(fetch(ReadCheckpoint("", "")))
        self._is_reached = True
