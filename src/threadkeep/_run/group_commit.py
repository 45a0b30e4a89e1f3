"""Group commit: changes that wait at the same time are committed together.

`Writer` serves blocking and awaiting callers of a blocking backend, `LoopWriter` the callers of one
event loop of an async backend. Invariants: each caller gets the result of its own change, once that
is durable; a change that fails leaves its neighbors alone; changes are committed in the order in
which they came; a change stays in the queue until it is settled, so that none is lost where a
caller, or the thread that commits, is interrupted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from threadkeep._core.engine.model import Batch, Change
from threadkeep._core.validation import is_count, is_time
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.sync_bridge import finish, sleep
from threadkeep.errors import BackendError, ClosedError, ThreadkeepError, UnreachableError, invalid

if TYPE_CHECKING:
    from threadkeep._stores.base import AsyncBackend, Backend

_MAX_WAIT = 60
_IDLE_SECONDS = 10.0  # after which the thread ends; the next change starts another
_LINGER_SECONDS = 0.004  # that pending writes wait for the checkpoint that they lead to
_MIN_SKIPS, _MAX_SKIPS = 16, 4096  # lingers that are left out after some were in vain
_LAST_SECONDS = 5.0  # to commit the queue of an event loop that shuts down
OF_THE_STORE = (UnreachableError, ClosedError)  # failures that no single change has caused


@dataclass(frozen=True)
class GroupCommit:
    """Tuning of group commit: concurrent commits share a transaction.

    Args:
        max_batch: changes in one transaction at most.
        max_wait: seconds that a commit waits for others to join it, while there are any: after
            a transaction that held one change alone, none is waited for. Commits that wait
            during another transaction always share the next one.

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


_C = TypeVar("_C", bound=Change)


async def commit_together(
    changes: Sequence[_C],
    commit_many: Callable[[Sequence[_C]], Awaitable[object]],
    errors: list[ThreadkeepError | None] | None = None,
) -> list[ThreadkeepError | None]:
    """Commit changes together, each alone where the store fails the group; return their errors.

    These are added to `errors` as they become known, for a caller that is interrupted.
    """
    errors = [] if errors is None else errors
    try:
        results = await commit_many(changes)
        if isinstance(results, list) and len(results) == len(changes):
            errors += results
            return errors
        failure: ThreadkeepError = BackendError(
            f"commit_many() of the store returned {results!r:.100} for {len(changes)} changes.",
            hint="It returns a list: None or an error for each change.",
        )
    except Exception as error:  # noqa: BLE001 - every caller must hear of its change
        failure = _named(error)
    if len(changes) == 1:
        errors.append(failure)
    elif isinstance(failure, OF_THE_STORE):
        errors += [failure.fresh() for _ in changes]
    else:
        for change in changes:
            await commit_together([change], commit_many, errors)
    return errors


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


def _notify(tickets: Sequence[_Ticket]) -> None:
    """Give awaiting callers the results, by one call of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}
    for ticket in tickets:
        if ticket.future is not None:
            by_loop.setdefault(ticket.future.get_loop(), []).append(ticket)
    for loop, own in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: no caller waits
            loop.call_soon_threadsafe(_resolve, own)


async def _commit_blocking(backend: Backend, changes: Sequence[Change]) -> object:
    return backend.commit_many(changes)


class _Queue:
    """Queue of tickets.

    Args:
        how: `max_batch` and `max_wait`.
        commit_many: that of the store; it never suspends where that blocks.
        pause: sleeps for so many seconds, likewise.
        notify: gives awaiting callers the results of tickets that are settled.
    """

    def __init__(
        self,
        how: GroupCommit,
        commit_many: Callable[[Sequence[Change]], Awaitable[object]],
        pause: Callable[[float], Awaitable[None]],
        notify: Callable[[Sequence[_Ticket]], None],
    ) -> None:
        self._how = how
        self._commit_many = commit_many
        self._pause = pause
        self._notify = notify
        self._tickets: deque[_Ticket] = deque()
        self._lock = threading.Lock()  # held for moments only
        self._alone = True  # the last transaction held one change

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: _Ticket) -> None:
        with self._lock:
            self._tickets.append(ticket)

    def waiting(self, most: int | None = None) -> list[_Ticket]:
        """Return the first tickets, or all, that are not settled; remove those before them."""
        tickets = self._tickets
        with self._lock:
            while tickets and tickets[0].done:
                tickets.popleft()
            # (settled ones in between: a caller was interrupted)
            return [ticket for ticket in islice(tickets, most) if not ticket.done]

    async def commit_next(self) -> None:
        """Commit the first changes together. One at a time."""
        how = self._how
        if how.max_wait and not self._alone and len(self._tickets) < how.max_batch:
            await self._pause(how.max_wait)
        group = self.waiting(how.max_batch)
        if not group:
            return
        self._alone = len(group) == 1
        changes = [ticket.change for ticket in group]
        errors: list[ThreadkeepError | None] = []
        try:
            await commit_together(changes, self._commit_many, errors)
        finally:  # (where this is interrupted, some may be committed)
            self._settle(group[: len(errors)], errors)

    def fail(self, error: BaseException) -> None:
        """Fail all changes."""
        group = self.waiting()
        self._settle(group, [_named(error).fresh() for _ in group])

    def _settle(self, tickets: Sequence[_Ticket], errors: Sequence[ThreadkeepError | None]) -> None:
        try:
            for ticket, error in zip(tickets, errors, strict=True):
                ticket.settle(error)
        finally:
            awaited = [ticket for ticket in tickets if ticket.done and ticket.future is not None]
            if awaited:
                self._notify(awaited)


class Writer(ResetInChild):
    """Group commit of a blocking backend, for blocking and awaiting callers.

    A blocking caller commits the queue itself, its own change and those of others, unless
    another does so. For awaiting callers a thread does, which starts when it is needed and
    ends when it is idle; it resolves their futures by one call of the event loop a transaction.
    """

    def __init__(self, backend: Backend, how: GroupCommit = AT_ONCE) -> None:
        self._backend = backend
        self._how = how
        super().__init__()

    def _reset(self) -> None:
        self._queue = _Queue(self._how, partial(_commit_blocking, self._backend), sleep, _notify)
        self._turn = threading.Lock()  # held while committing
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
                    finish(self._queue.commit_next())
        finally:
            ticket.done = True  # (one that was interrupted while it waited is left out)
            if any(other.future for other in self._queue.waiting()):  # only the thread serves them
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

    def close(self) -> None:
        """Commit the queue, and end the thread. Idempotent."""
        self._commit_all()
        self._closing = True
        if self._thread is not None:
            self._wakes.put(None)

    def _commit_all(self) -> None:
        """Commit until the queue is empty."""
        with self._turn:
            while self._queue.waiting(1):
                finish(self._queue.commit_next())

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
                    self._thread, self._awake = None, False  # (the next one needs another)
                with self._turn:
                    self._queue.fail(error)
                return
            if (is_idle or self._closing) and self._ended():
                return

    # -- lingering ---------------------------------------------------------------------

    def _linger(self) -> None:
        """Wait a little if another change is likely to come, and that has been worth it."""
        waiting = self._queue.waiting()
        is_likely = bool(waiting) and all(ticket.expects_more for ticket in waiting)
        if not is_likely or not self._should_linger():
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
    """Group commit of an async backend in one event loop: a task commits the queue."""

    def __init__(self, backend: AsyncBackend, how: GroupCommit = AT_ONCE) -> None:
        self._queue = _Queue(how, backend.commit_many, asyncio.sleep, _resolve)
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: Change) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._queue.add(_Ticket(change, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return future

    async def close(self) -> None:
        """Wait until the queue is committed."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._commit_all()
        except asyncio.CancelledError:
            # The loop shuts down. Callers may still wait; to do a group again is harmless.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._commit_all()
        finally:  # no caller may wait for ever
            if self._queue.waiting(1):
                message = "Event loop closed before the commit was confirmed; it may be stored."
                self._queue.fail(ClosedError(message))

    async def _commit_all(self) -> None:
        while self._queue.waiting(1):
            await self._queue.commit_next()
