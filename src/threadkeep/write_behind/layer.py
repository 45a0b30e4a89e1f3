"""Layers in front of a store whose saves return before they are durable.

Only what the layers do with a request lives here. Invariant: a read of a thread sees everything
that was saved in it before, and a change that removes anything comes behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from threadkeep.backends.group_commit import GroupCommit
from threadkeep.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadThread,
    ThreadRows,
)
from threadkeep.engine.operation import (
    Commit,
    CommitMany,
    Fetch,
    Operation,
    Requests,
    aside,
    fetch,
)
from threadkeep.store.driver import Stack
from threadkeep.store.layer import CHANGES
from threadkeep.write_behind.batches import Batches
from threadkeep.write_behind.merging import only_adds
from threadkeep.write_behind.waiting import (
    Threads,
    Waiting,
)


class DurableLayer:
    """The layer for what must be durable on return, with the store's own generations.

    Several changes in a row may expect one generation here: above `RelaxedLayer`, each change
    that does not wait gives the generation another name.

    Args:
        beneath: the store, and the layers beneath: what waits is stored there, by a thread of
            its own, which blocks.
        unstored: what waits.
        batches: how it is stored.
    """

    handles = CHANGES | {Fetch}

    def __init__(self, beneath: Stack, unstored: Waiting[Batch], batches: Batches) -> None:
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

    def _alone(self, *call: Any) -> Requests[None]:
        yield from aside(*call, by=self.unstored.alone)

    def _carry_out(self, change: Change, do: Callable[[Change, Collection[str]], None]) -> None:
        threads = self._beneath.run(_concerned(change))
        with self.unstored.holding(threads, forget=_dropped(change)):
            do(change, threads)


class RelaxedLayer(DurableLayer):
    """The layer that notes saves, to be stored soon, and returns.

    Args:
        beneath: see `DurableLayer`.
        how: when what waits is stored, and how much may wait.
    """

    handles = CHANGES | {Fetch, CommitMany}

    def __init__(self, beneath: Stack, how: GroupCommit) -> None:
        batches = Batches(beneath, how.max_batch)
        super().__init__(beneath, Waiting(how, batches), batches)
        self._is_reached = not beneath.has_awaited

    def durable(self) -> DurableLayer:
        """See `DurableLayer`."""
        return DurableLayer(self._beneath, self.unstored, self.batches)

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
