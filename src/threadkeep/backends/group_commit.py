"""Group commit: changes that wait at the same time are committed together.

`Writer` serves blocking and awaiting callers of a blocking backend, `LoopWriter` those of an async
one. Invariants: each caller gets the result of its own change, once that is durable; a change that
fails leaves its neighbors alone; changes are committed in the order in which they came; a change
stays in the queue until it is settled, so that none is lost where a caller, or the thread that
commits, is interrupted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from threadkeep.backends.process_forks import PerLoop, ResetInChild
from threadkeep.backends.sync_bridge import finish
from threadkeep.engine.model import Batch, Change
from threadkeep.errors import BackendError, ClosedError, ThreadkeepError, UnreachableError, invalid
from threadkeep.validation import is_count, is_time

if TYPE_CHECKING:
    from threadkeep.backends.base import AsyncBackend, Backend

_MAX_WAIT = 60
_IDLE_SECONDS = 10.0  # after which the thread ends; the next change starts another
_LINGER_SECONDS = 0.004  # that pending writes wait for the checkpoint that they lead to
_MIN_SKIPS, _MAX_SKIPS = 16, 4096  # lingers that are left out after some were in vain
_LAST_SECONDS = 5.0  # to commit the queue of an event loop that shuts down
_OF_THE_STORE = (UnreachableError, ClosedError)  # failures that no single change has caused


@dataclass(frozen=True)
class GroupCommit:
    """Tuning of group commit: concurrent commits share a transaction.

    Args:
        max_batch: changes in one transaction at most.
        max_wait: seconds that a commit waits for others to join it, while there are any: after
            a transaction that held one change alone, none is waited for. What waits while
            another transaction is under way goes together in any case.

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    max_batch: int = 100
    max_wait: float = 0.005

    def __post_init__(self) -> None:
        if not is_count(self.max_batch, 1):
            raise invalid("max_batch", self.max_batch, "Use 1 or more.")
        waits = self.max_wait == 0 or is_time(self.max_wait)
        if type(self.max_wait) is bool or not waits or self.max_wait > _MAX_WAIT:
            raise invalid("max_wait", self.max_wait, f"Use seconds, from 0 to {_MAX_WAIT}.")


AT_ONCE = GroupCommit(max_wait=0)
"""The default: nothing is waited for."""


class _Ticket:
    """A queued change, and the result of its commit.

    `future` is that of an awaiting caller; `settled` is set at the end, for a blocking caller that
    lingers.
    """

    __slots__ = ("change", "done", "error", "future", "settled")

    def __init__(self, change: Change, future: asyncio.Future[None] | None = None) -> None:
        self.change = change
        self.future = future
        self.settled: threading.Event | None = None
        self.done = False
        self.error: ThreadkeepError | None = None

    @property
    def expects_more(self) -> bool:
        """True if another change of the thread is likely to follow soon.

        A graph saves what its tasks write, and then the checkpoint that this leads to, and does
        not wait for the one before the other. An interrupt, which moves its thread to another
        state, leads to none.
        """
        change = self.change
        if type(change) is not Batch or change.checkpoints or not change.writes:
            return False
        return change.touch is None or not change.touch.moves

    def settle(self, error: ThreadkeepError | None) -> None:
        self.error = error
        self.done = True
        if self.settled is not None:
            self.settled.set()


_CommitMany: TypeAlias = Callable[[Sequence[Change]], Awaitable[object]]


async def _settle(tickets: Sequence[_Ticket], commit_many: _CommitMany) -> None:
    """Commit the changes together and settle their tickets.

    Where the store fails a group, each change is committed alone.
    """
    try:
        found = await commit_many([ticket.change for ticket in tickets])
        results = _checked(found, len(tickets))
    except Exception as error:  # noqa: BLE001 - every caller must hear of its change
        failure = _named(error)
    else:
        for ticket, result in zip(tickets, results, strict=True):
            ticket.settle(result)
        return
    if len(tickets) == 1:
        tickets[0].settle(failure)
    elif isinstance(failure, _OF_THE_STORE):
        for ticket in tickets:
            ticket.settle(failure.anew())
    else:
        for ticket in tickets:
            await _settle([ticket], commit_many)


def _checked(results: object, count: int) -> list[ThreadkeepError | None]:
    """Return the results of `commit_many`, if they are valid."""
    if not isinstance(results, list) or len(results) != count:
        raise BackendError(
            f"commit_many() of the store returned {results!r:.100} for {count} changes.",
            hint="It returns a list: None or an error for each change.",
        )
    return results


def _named(error: BaseException) -> ThreadkeepError:
    """Return the error as a `ThreadkeepError`."""
    if isinstance(error, ThreadkeepError):
        return error
    failure = BackendError(f"The store failed in a way that it does not know: {error!r}")
    failure.__cause__ = error
    return failure


def _resolve(tickets: Sequence[_Ticket]) -> None:
    """Give awaiting callers the results. Runs in their event loop."""
    for ticket in tickets:
        future = ticket.future
        if future is None or future.done():  # its caller was cancelled
            continue
        if ticket.error is None:
            future.set_result(None)
        else:
            future.set_exception(ticket.error)


class _Queue:
    """Queue of tickets."""

    def __init__(self) -> None:
        self._tickets: deque[_Ticket] = deque()
        self._lock = threading.Lock()  # held for moments only

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: _Ticket) -> None:
        with self._lock:
            self._tickets.append(ticket)

    def first(self, most: int) -> list[_Ticket]:
        """Return the first tickets that are not settled; remove those before them."""
        with self._lock:
            tickets = self._swept()
            # (settled ones in between: a group was interrupted)
            return [ticket for ticket in islice(tickets, most) if not ticket.done]

    @property
    def is_awaited(self) -> bool:
        """True if an awaiting caller waits: only the thread commits for it."""
        with self._lock:
            return any(not ticket.done and ticket.future for ticket in self._swept())

    @property
    def expects_more(self) -> bool:
        """True if the queue is not empty, and another change is likely to follow each in it."""
        with self._lock:
            waiting = [ticket for ticket in self._swept() if not ticket.done]
            return bool(waiting) and all(ticket.expects_more for ticket in waiting)

    def _swept(self) -> deque[_Ticket]:
        """Remove settled tickets in front; return the rest. The caller holds the lock."""
        tickets = self._tickets
        while tickets and tickets[0].done:
            tickets.popleft()
        return tickets


class Writer(ResetInChild):
    """Group commit of a blocking backend, for blocking and awaiting callers.

    A blocking caller commits the queue itself, its own change and those of others, unless
    somebody else is at it. For awaiting callers a thread does, which starts when it is needed and
    ends when it is idle; it resolves their futures by one call of the event loop a transaction.

    Args:
        backend: the store.
        how: `max_batch` and `max_wait`.
    """

    def __init__(self, backend: Backend, how: GroupCommit = AT_ONCE) -> None:
        self._backend = backend
        self._how = how
        super().__init__()

    def _reset(self) -> None:
        self._queue = _Queue()
        self._turn = threading.Lock()  # held by whoever commits
        self._alone = True  # the last transaction held one change
        self._lingering = False  # the thread waits for another change, and wakes by itself
        self._skips = 0  # lingers to leave out
        self._skipped = 0  # lingers that were left out after the last one in vain
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._awake = False  # the thread is about to look at the queue
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # of starting and ending it
        self._closing = False

    def commit(self, change: Change) -> None:
        """Commit the change, with others in the queue; return when it is durable."""
        ticket = _Ticket(change)
        if ticket.expects_more and self._should_linger():
            ticket.settled = threading.Event()
        self._queue.add(ticket)
        try:
            if ticket.settled is not None:
                self._note_linger(in_vain=not ticket.settled.wait(_LINGER_SECONDS))
            with self._turn:
                while not ticket.done:
                    self._commit_waiting()
        finally:
            ticket.done = True  # (one that was interrupted while it waited is left out)
            if self._queue.is_awaited:
                self._wake_or_commit()
        if ticket.error is not None:
            try:
                raise ticket.error
            finally:
                del ticket  # its error's traceback holds this frame: no cycle

    def submit(self, change: Change) -> asyncio.Future[None]:
        """Queue the change; the future of the running event loop is done when it is durable."""
        future = asyncio.get_running_loop().create_future()
        ticket = _Ticket(change, future)
        self._queue.add(ticket)  # (first: the thread looks after it has changed either flag)
        if not self._awake and not (self._lingering and ticket.expects_more):
            self._wake_or_commit()
        return future

    async def acommit(self, change: Change) -> None:
        """See `commit`. A caller that is cancelled does not wait, but the change is committed."""
        await self.submit(change)

    def close(self) -> None:
        """Commit the queue, and end the thread. Idempotent."""
        self._commit_all()
        self._closing = True
        if self._thread is not None:
            self._wakes.put(None)

    # -- committing --------------------------------------------------------------------

    def _commit_all(self) -> None:
        """Commit until the queue is empty."""
        with self._turn:
            while self._queue.first(1):
                self._commit_waiting()

    def _fail(self, error: BaseException) -> None:
        """Fail all changes in the queue."""
        with self._turn:
            group = self._queue.first(len(self._queue))
            for ticket in group:
                ticket.settle(_named(error).anew())
            self._notify(group)

    def _commit_waiting(self) -> None:
        """Commit the first changes of the queue. The caller holds the turn."""
        how = self._how
        if how.max_wait and not self._alone and len(self._queue) < how.max_batch:
            time.sleep(how.max_wait)
        group = self._queue.first(how.max_batch)
        if not group:
            return
        self._alone = len(group) == 1
        try:
            finish(_settle(group, self._commit_many))
        finally:
            self._notify([ticket for ticket in group if ticket.done and ticket.future is not None])

    async def _commit_many(self, changes: Sequence[Change]) -> object:
        return self._backend.commit_many(changes)

    @staticmethod
    def _notify(tickets: Sequence[_Ticket]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}
        for ticket in tickets:
            if ticket.future is not None:
                by_loop.setdefault(ticket.future.get_loop(), []).append(ticket)
        for loop, own in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, own)

    # -- the thread --------------------------------------------------------------------

    def _wake_or_commit(self) -> None:
        """Have the thread commit the queue; if none can be started, commit it here."""
        try:
            self._wake()
        except RuntimeError:  # the program ends, or the system has no more threads
            self._commit_all()

    def _wake(self) -> None:
        """Wake the thread, or start it."""
        with self._starting:
            self._awake = True  # (before it is woken: it says when it looks)
            self._wakes.put(None)
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(target=self._run, name="threadkeep-writer", daemon=True)
            try:
                thread.start()
            except BaseException:
                self._awake = False
                raise
            self._thread = thread

    def _run(self) -> None:
        while True:
            is_idle = False
            try:
                self._wakes.get(timeout=_IDLE_SECONDS)
            except Empty:
                is_idle = True
            self._awake = False  # (before it looks: what comes from now on wakes it again)
            self._linger()
            try:
                self._commit_all()
            except BaseException as error:  # noqa: BLE001 - no caller may wait for ever
                with self._starting:
                    self._thread, self._awake = None, False  # (whoever comes now needs another)
                self._fail(error)
                return
            if (is_idle or self._closing) and self._ended():
                return

    # -- lingering ---------------------------------------------------------------------

    def _linger(self) -> None:
        """Wait a little if another change is likely to come, and that has been worth it."""
        if not self._queue.expects_more or not self._should_linger():
            return
        self._lingering = True
        try:
            self._wakes.get(timeout=_LINGER_SECONDS)
            in_vain = False
        except Empty:
            in_vain = True
        self._lingering = self._awake = False
        self._note_linger(in_vain=in_vain)

    def _should_linger(self) -> bool:
        """Return True if lingering has been worth it."""
        if self._skips:
            self._skips -= 1
        return not self._skips

    def _note_linger(self, *, in_vain: bool) -> None:
        """Note the result of a linger: after each in vain, more are left out."""
        if in_vain:
            self._skipped = min(max(2 * self._skipped, _MIN_SKIPS), _MAX_SKIPS)
            self._skips = self._skipped
        else:
            self._skipped //= 2

    def _ended(self) -> bool:
        """Return True if the thread may end, as nothing woke it."""
        with self._starting:
            if self._wakes.empty():
                self._thread = None
            return self._thread is None


class LoopWriter:
    """Group commit of an async backend: in each event loop a task commits the queue.

    Args:
        backend: the store.
        how: `max_batch` and `max_wait`.
    """

    def __init__(self, backend: AsyncBackend, how: GroupCommit = AT_ONCE) -> None:
        self._queues = PerLoop(partial(_LoopQueue, backend, how))

    def submit(self, change: Change) -> asyncio.Future[None]:
        """See `Writer.submit`."""
        return self._queues.here().submit(change)

    async def commit(self, change: Change) -> None:
        """Commit the change, with others in the queue; return when it is durable."""
        await self.submit(change)

    async def close(self) -> None:
        """Wait until the queue of this event loop is committed."""
        await self._queues.here().drain()


class _LoopQueue:
    """Queue of one event loop."""

    def __init__(self, backend: AsyncBackend, how: GroupCommit) -> None:
        self._backend = backend
        self._how = how
        self._queue = _Queue()
        self._alone = True
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: Change) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._queue.add(_Ticket(change, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return future

    async def drain(self) -> None:
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._queue.first(1):
                await self._commit_waiting()
        except asyncio.CancelledError:
            # The loop shuts down. Callers may still wait; to do a group again is harmless.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    while self._queue.first(1):
                        await self._commit_waiting()
        finally:  # no caller may wait for ever
            failure = ClosedError("The event loop was shut down: nobody knows if this is stored.")
            for ticket in self._queue.first(len(self._queue)):
                ticket.settle(failure.anew())
                _resolve([ticket])

    async def _commit_waiting(self) -> None:
        """Commit the first changes of the queue."""
        how = self._how
        if how.max_wait and not self._alone and len(self._queue) < how.max_batch:
            await asyncio.sleep(how.max_wait)
        group = self._queue.first(how.max_batch)
        self._alone = len(group) == 1
        try:
            await _settle(group, self._backend.commit_many)
        finally:
            _resolve([ticket for ticket in group if ticket.done])
