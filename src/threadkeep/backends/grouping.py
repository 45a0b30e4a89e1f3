"""Group commit: concurrent commits share a transaction, on any store that can do that.

Only the queue in front of a store lives here. Invariants: a caller gets the result of its own
change, once that is durable; a change that fails leaves its neighbours alone; whoever has the
turn commits for all that wait, and a change stays in the queue until it is settled, so that
none is lost where a caller is interrupted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from threadkeep import process_forks
from threadkeep.backends.tickets import Line, Ticket
from threadkeep.backends.writer import GroupCommit
from threadkeep.engine.model import Change
from threadkeep.errors import (
    ClosedError,
    ThreadkeepError,
    UnreachableError,
)

Turn: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Gives a lock to be held by `async with`, the same one each time."""

_NOT_OF_ONE = (UnreachableError, ClosedError)  # failures that no single change has caused
_CommitMany = Callable[[Sequence[Change]], Awaitable[list[ThreadkeepError | None]]]


class _Queue:
    """The changes that wait in front of one store."""

    def __init__(
        self,
        how: GroupCommit,
        commit_many: _CommitMany,
        turn: Turn,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._how = how
        self._commit_many = commit_many
        self._turn = turn
        self._pause = pause
        self._waiting = Line()  # only who has the turn takes from it
        self._alone = True  # the last transaction held one change

    async def commit(self, change: Change) -> None:
        """Carry out the change, with others; return when it is durable."""
        ticket = Ticket(change)
        self._waiting.add([ticket])
        try:
            async with self._turn():
                while not ticket.done:
                    await self._gather()
                    await self._commit_waiting()
        finally:
            ticket.withdrawn = not ticket.done
        if ticket.error is not None:
            try:
                raise ticket.error
            finally:
                del ticket  # its error's traceback holds this frame: no cycle

    async def _gather(self) -> None:
        """Wait a little for others, if it looks as if there were any."""
        if self._how.max_wait and not self._alone and len(self._waiting) < self._how.max_batch:
            await self._pause(self._how.max_wait)

    async def _commit_waiting(self) -> None:
        group = self._waiting.first(self._how.max_batch)
        try:
            await self._settle(group)
        finally:
            self._alone = len(group) <= 1
            self._waiting.sweep()

    async def _settle(self, group: Sequence[Ticket]) -> None:
        """Commit all of them; each alone where the store fails them together."""
        if not group:
            return
        try:
            results = await self._commit_many([ticket.change for ticket in group])
        except ThreadkeepError as error:
            if len(group) == 1:
                group[0].settle(error)
            elif isinstance(error, _NOT_OF_ONE):
                for ticket in group:
                    ticket.settle(error.anew())
            else:
                for ticket in group:
                    await self._settle([ticket])
        else:
            for ticket, result in zip(group, results, strict=True):
                ticket.settle(result)


class Lanes:
    """A queue for each thread: for a store where commits of one thread wait for each other anyway.

    Those that wait then go together; commits of different threads never wait here.
    """

    def __init__(self, commit_many: _CommitMany, new_turn: Callable[[], Turn]) -> None:
        self._commit_many = commit_many
        self._new_turn = new_turn
        self._start()
        process_forks.watch(self)

    def _start(self) -> None:
        self._lanes: dict[Hashable, _Lane] = {}
        self._lock = threading.Lock()

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: nobody is left in the child whom one could wait for."""
        if in_child:
            self._start()

    async def commit(self, change: Change, key: Hashable) -> None:
        """Carry out the change, with others of the same key; return when it is durable."""
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None:
                queue = _Queue(_AT_ONCE, self._commit_many, self._new_turn(), _no_pause)
                lane = self._lanes[key] = _Lane(queue)
            lane.users += 1
        try:
            await lane.queue.commit(change)
        finally:
            with self._lock:
                lane.users -= 1
                if not lane.users:
                    del self._lanes[key]


@dataclass
class _Lane:
    queue: _Queue
    users: int = 0


_AT_ONCE = GroupCommit(max_wait=0)


async def _no_pause(_seconds: float) -> None:
    """Never called: nobody is waited for."""


def threads_turn() -> Turn:
    """A lock of threads, as an async one that never suspends."""
    lock = threading.Lock()

    @asynccontextmanager
    async def held() -> AsyncIterator[None]:
        # A real `with`, which an interruption at any moment cannot leave locked.
        with lock:
            yield

    return held


def tasks_turn() -> Turn:
    """A lock of tasks."""
    lock = asyncio.Lock()
    return lambda: lock
