"""Group commit: commits concurrent changes in one transaction.

`Writer` serves blocking and awaiting callers of a blocking backend. `LoopWriter` serves the callers
of one event loop of an async backend.

Invariants:

- Each caller gets the result of its own change once that change is durable.
- A failed change does not affect the other changes of its group. (After three time limits of the
  store for one group, the rest of the group fails: see `together.py`.)
- Changes are committed in the order of their arrival.
- A queued change stays in the queue until it is finished. No change is lost if a caller or the
  committing thread is interrupted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from threadkeep._core.engine.model import Batch, Change
from threadkeep._run.driver import Wake
from threadkeep._run.together import checked, commit_together, named
from threadkeep._stores.process_forks import ResetInChild
from threadkeep._stores.records import new_tip
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import ClosedError, ThreadkeepError

if TYPE_CHECKING:
    from threadkeep._stores.base import AsyncBackend, Backend

MOST = 100
"""Changes in one transaction, at most."""

_IDLE_SECONDS = 10.0  # an idle thread ends after this time, the next change starts another
_LINGER_SECONDS = 0.004  # how long pending writes wait for the checkpoint that follows
_MAX_SKIPS = 4096  # lingers to skip after useless ones
_UNPROVEN = 2  # lingers that count as skipped at first: the next is the 4th after a useless one
_LAST_SECONDS = 5.0  # limit for committing the queue when an event loop shuts down


class _Ticket:
    """A queued change, and the result of its commit.

    Attributes:
        future: the future of an awaiting caller, or None.
        finished: set when the change is finished, or None unless a blocking caller lingers.
    """

    __slots__ = ("change", "done", "error", "finished", "future")

    def __init__(self, change: Change, future: asyncio.Future[None] | None = None) -> None:
        self.change = change
        self.future = future
        self.finished: Wake | None = None
        self.done = False
        self.error: ThreadkeepError | None = None

    def finish(self, error: ThreadkeepError | None) -> None:
        self.error = error
        self.done = True
        if self.finished is not None:
            self.finished.set()


def _expects_more(change: Change) -> bool:
    """Return True if another change of the thread is likely to follow soon.

    A graph saves the writes of its tasks and, without waiting, the checkpoint that follows. No
    checkpoint follows an interrupt or a failure, which changes the status of its thread.
    """
    if type(change) is not Batch or change.checkpoints or not change.writes:
        return False
    return change.touch is None or change.touch.event is None


def _resolve(tickets: Sequence[_Ticket]) -> None:
    """Pass results to awaiting callers. Runs in their event loop."""
    for ticket in tickets:
        future = ticket.future
        if future is None or future.done():  # its caller was cancelled
            continue
        if ticket.error is None:
            future.set_result(None)
        else:
            future.set_exception(ticket.error)


def _notify(tickets: Sequence[_Ticket]) -> None:
    """Pass results to awaiting callers, with one callback per event loop."""
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
        most: changes in one transaction, at most.
        commit_many: commits changes in the store. For a blocking store it never suspends.
        notify: passes the results of finished tickets to awaiting callers.
    """

    def __init__(
        self,
        most: int,
        commit_many: Callable[[Sequence[Change]], Awaitable[object]],
        notify: Callable[[Sequence[_Ticket]], None],
    ) -> None:
        self._most = most
        self._commit_many = commit_many
        self._notify = notify
        self.tickets: deque[_Ticket] = deque()
        self._lock = threading.Lock()  # held only briefly

    def add(self, ticket: _Ticket) -> None:
        with self._lock:
            self.tickets.append(ticket)

    def waiting(self, most: int | None = None) -> list[_Ticket]:
        """Drop finished tickets from the front, and return the first unfinished ones, or all."""
        tickets = self.tickets
        with self._lock:
            while tickets and tickets[0].done:
                tickets.popleft()
            # An interrupted caller leaves a finished ticket between unfinished ones.
            return [ticket for ticket in islice(tickets, most) if not ticket.done]

    async def commit_next(self) -> None:
        """Commit the first changes as a group. Calls must not overlap."""
        group = self.waiting(self._most)
        if not group:
            return
        changes = [ticket.change for ticket in group]
        errors: list[ThreadkeepError | None] = []
        try:
            await commit_together(changes, self._commit_many, errors)
        finally:  # after an interrupt, some changes may be committed
            self._finish(group[: len(errors)], errors)

    async def commit_all(self) -> None:
        """Commit until the queue is empty."""
        while self.waiting(1):
            await self.commit_next()

    def fail(self, error: BaseException) -> None:
        """Fail all changes."""
        group = self.waiting()
        self._finish(group, [named(error).fresh() for _ in group])

    def _finish(self, tickets: Sequence[_Ticket], errors: Sequence[ThreadkeepError | None]) -> None:
        try:
            for ticket, error in zip(tickets, errors, strict=True):
                ticket.finish(error)
        finally:
            awaited = [ticket for ticket in tickets if ticket.done and ticket.future is not None]
            if awaited:
                self._notify(awaited)


class Writer(ResetInChild):
    """Group commit of a blocking backend, for blocking and awaiting callers.

    A blocking caller commits the whole queue itself, unless another caller is doing so. For
    awaiting callers a thread commits the queue. The thread starts on demand, ends when idle, and
    resolves all futures of a transaction with one event loop callback.
    """

    def __init__(self, backend: Backend, most: int = MOST) -> None:
        self._backend = backend
        self._most = most
        super().__init__()

    def _reset(self) -> None:
        self._queue = _Queue(self._most, partial(_commit_blocking, self._backend), _notify)
        self._turn = threading.Lock()  # held while committing
        self._lingering = False  # the thread waits for another change, with a timeout
        self._skips = 0  # lingers to skip
        self._skipped = _UNPROVEN  # lingers skipped since the last useless one
        self._wakes = Wake()
        self._awake = False  # the thread is about to look at the queue
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # held while starting or ending the thread
        self._closing = False

    def commit(self, change: Change) -> None:
        """Commit the change and the rest of the queue, and return when the change is durable."""
        lingers = _expects_more(change) and self._should_linger()
        if not lingers and self._commit_alone(change):
            return
        ticket = _Ticket(change)
        ticket.finished = Wake() if lingers else None
        self._queue.add(ticket)
        try:
            if ticket.finished is not None:
                self._note_linger(in_vain=not ticket.finished.wait(_LINGER_SECONDS))
            with self._turn:
                while not ticket.done:
                    finish(self._queue.commit_next())
        finally:
            ticket.done = True  # if interrupted while waiting, the change is skipped
            if any(other.future for other in self._queue.waiting()):  # only the thread serves these
                self._wake_or_commit()
        if ticket.error is not None:
            try:
                raise ticket.error
            finally:
                del ticket  # avoids a cycle: the error's traceback holds this frame

    def _commit_alone(self, change: Change) -> bool:
        """Commit the change without the queue, if nothing waits or is being committed.

        Returns False otherwise, without effect. The most common case of a sync program.
        """
        if self._turn.locked():
            return False
        with self._turn:  # (an interrupt after `acquire` would leave it locked)
            if self._queue.tickets:
                return False
            link = getattr(change, "link", None)
            if link is not None:
                link.tie(new_tip())
            try:
                (error,) = checked(self._backend.commit_many([change]), [change])
            except Exception as exc:  # noqa: BLE001 - as `commit_together`
                error = named(exc)
            if link is not None and error is None:
                link.committed()
        if error is not None:
            try:
                raise error
            finally:
                del error  # avoids a cycle: the error's traceback holds this frame
        return True

    def submit(self, change: Change) -> asyncio.Future[None]:
        """Queue the change, and return a future that is done when the change is durable."""
        future = asyncio.get_running_loop().create_future()
        ticket = _Ticket(change, future)
        self._queue.add(ticket)  # first: the thread sets its flags, then reads the queue
        if not self._awake and not (self._lingering and _expects_more(change)):
            self._wake_or_commit()
        return future

    def close(self) -> None:
        """Commit the queue, and end the thread. Idempotent."""
        self._commit_all()
        self._closing = True
        if self._thread is not None:
            self._wakes.set()

    def _commit_all(self) -> None:
        """Commit until the queue is empty."""
        with self._turn:
            finish(self._queue.commit_all())

    # -- the thread --------------------------------------------------------------------

    def _wake_or_commit(self) -> None:
        """Let the thread commit the queue. If no thread can start, commit the queue here."""
        try:
            self._wake()
        except RuntimeError:  # the program is ending, or the system is out of threads
            self._commit_all()

    def _wake(self) -> None:
        """Wake the thread, or start it."""
        with self._starting:
            self._awake = True  # before the wake-up: the thread clears it before it reads the queue
            self._wakes.set()
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
            is_idle = not self._wakes.wait(_IDLE_SECONDS)
            self._awake = False  # before reading the queue: later changes wake the thread again
            self._linger()
            try:
                self._commit_all()
            except BaseException as error:  # noqa: BLE001 - no caller may wait forever
                with self._starting:
                    self._thread, self._awake = None, False  # the next change starts another thread
                with self._turn:
                    self._queue.fail(error)
                return
            if is_idle or self._closing:
                with self._starting:
                    if not self._wakes.is_set:
                        self._thread = None
                        return

    # -- lingering ---------------------------------------------------------------------

    def _linger(self) -> None:
        """Wait briefly if another change is likely and earlier waits were useful."""
        waiting = self._queue.waiting()
        is_likely = bool(waiting) and all(_expects_more(ticket.change) for ticket in waiting)
        if not is_likely or not self._should_linger():
            return
        self._lingering = True
        in_vain = not self._wakes.wait(_LINGER_SECONDS)
        self._lingering = self._awake = False
        self._note_linger(in_vain=in_vain)

    def _should_linger(self) -> bool:
        """Count down the lingers to skip, and return True if none is left."""
        if self._skips:
            self._skips -= 1
        return not self._skips

    def _note_linger(self, *, in_vain: bool) -> None:
        """Record the result of a linger: each useless one doubles the lingers to skip.

        Of useless ones at the same time only the first counts.
        """
        if in_vain and not self._skips:
            self._skipped = min(max(2 * self._skipped, 1), _MAX_SKIPS)
            self._skips = self._skipped
        elif not in_vain:
            self._skipped //= 2


class LoopWriter:
    """Group commit of an async backend in one event loop: a task commits the queue."""

    def __init__(self, backend: AsyncBackend, most: int = MOST) -> None:
        self._queue = _Queue(most, backend.commit_many, _resolve)
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
            await self._queue.commit_all()
        except asyncio.CancelledError:
            # The loop is shutting down, but callers may still wait. Repeating a group is harmless.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._queue.commit_all()
        finally:  # no caller may wait forever
            if self._queue.waiting(1):
                message = "Event loop closed before the commit was confirmed; it may be stored."
                self._queue.fail(ClosedError(message))
