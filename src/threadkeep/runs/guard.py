"""A guard: of all workers, one at a time runs a thread.

The holder's name and a random token stand in the thread's own row (`_core.engine.leases`), and each
save of the run is committed only while they do. So a worker that was stopped and continues later
stores nothing. The lease ends by the store's clock. The holder renews it from a thread of its own,
and ends its own run before that, by its monotonic clock, if no renewal was confirmed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from os import getpid
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from threadkeep._core import validation
from threadkeep._core.arguments import GUARD
from threadkeep._core.engine.model import LeaseThread
from threadkeep._core.engine.operation import External, Operation, commit
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.validation import MICROSECOND, duration
from threadkeep._run.driver import Wake, arun, on, run
from threadkeep._run.layered_backend import LayeredBackend, store_of
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import (
    HeldError,
    LeaseLostError,
    StateError,
    ThreadkeepError,
    ThreadLockedError,
    invalid,
)

_log = logging.getLogger("threadkeep")
_SHORTEST = timedelta(seconds=1)
_MARGIN = 0.1  # part of a lease that the holder leaves unused: clocks do not run equally fast
_PARTS = 3  # renewals of one lease
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks at a thread that another holds
_IDLE = 5.0  # seconds after which a thread without leases to renew ends
_AGAIN = 0.2  # seconds after which a failed renewal is tried again


class Guard:
    """Holds a thread for one run, by `async with` or `with`. Its other name is `guard`.

    Args:
        saver: the saver of the graph.
        thread_id: the thread, or a config that names it and is to be part of `config`.
        lease: how long the thread stays locked if this worker dies, at least a second. The guard
            renews it.
        worker: name of this worker, by default host and process id.
        wait: how long to wait for another worker's run.
        max_attempts: number of deaths and failures after which the thread is held.

    Entry raises:
        ThreadLockedError: another worker holds the thread, also after `wait`.
        HeldError: the thread is held after too many attempts.

    Exit raises:
        LeaseLostError: the lease was lost during the run, so its tasks were cancelled.

    An error of the run counts as an attempt, and the thread is due again after the length of a
    lease, later after more attempts. A cancelled or drained run is no attempt, and due at once.

    Raises:
        InvalidArgumentError: an argument is invalid, or the saver is not threadkeep's.
    """

    def __init__(
        self,
        saver: Any,
        thread_id: str | RunnableConfig,
        *,
        lease: timedelta | float = 30,
        worker: str | None = None,
        wait: timedelta | float = 0,
        max_attempts: int = 3,
    ) -> None:
        self._store = store_of(saver)
        given: Mapping[str, Any] = (
            {"configurable": {"thread_id": thread_id}} if isinstance(thread_id, str) else thread_id
        )
        configurable = given.get("configurable") if validation.is_mapping(given) else None
        if not validation.is_mapping(configurable):
            raise invalid("thread_id", thread_id, "Use the thread's id, or a config that names it.")
        self._thread = validation.thread_id(configurable.get("thread_id"))
        length = duration("lease", lease)
        if length < _SHORTEST:
            raise invalid("lease", lease, "Use at least one second.")
        if type(max_attempts) is not int or max_attempts < 1:
            raise invalid("max_attempts", max_attempts, "Use a number from 1.")
        name = f"{socket.gethostname()}-{getpid()}" if worker is None else worker
        self._worker = validation.text("worker", name)
        self._lease = length.total_seconds()
        self._wait = duration("wait", wait).total_seconds() if wait else 0.0
        self._change = LeaseThread(
            self._thread, "take", length=length // MICROSECOND, most=max_attempts
        )
        self._last = 0  # tip of the last renewal
        self._until = 0.0  # by the monotonic clock
        self._lost = self._is_cancelled = False
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.config: RunnableConfig = {
            **given,  # type: ignore[typeddict-item] # a config
            "configurable": {**configurable, "thread_id": self._thread, GUARD: self},
        }
        """The config for the run: `graph.ainvoke(input, guard.config)`."""

    def holder_of(self, thread: str) -> str | None:
        """Return the holder that a save of a thread needs, or None for another thread.

        Raises:
            LeaseLostError: the guard does not hold the thread, or does not know it.
        """
        if thread != self._thread:  # (of a graph that a node calls)
            return None
        if self.lost:
            raise LeaseLostError(thread=thread)
        return self._change.holder

    @property
    def lost(self) -> bool:
        """True if the guard does not hold the thread, or cannot know it in time."""
        return self._lost or time.monotonic() >= self._until

    # -- entry and exit ------------------------------------------------------------------

    def __enter__(self) -> Self:
        run(self._enter())
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lost = self._leave()
        if lost and error is not None and not isinstance(error, LeaseLostError):
            raise LeaseLostError(thread=self._thread) from error
        if not lost:
            run(self._give_back(error))

    async def __aenter__(self) -> Self:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await arun(self._enter())
        except asyncio.CancelledError as error:  # (the lease may be taken)
            await asyncio.shield(arun(self._give_back(error)))
            raise
        self._watch()
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, is_ours = asyncio.current_task(), self._is_cancelled
        self._task = None
        if not self._leave():
            await asyncio.shield(arun(self._give_back(error)))
            return
        is_cancelled = isinstance(error, asyncio.CancelledError)
        if is_ours and task is not None:
            if not is_cancelled:  # (the run ended before the cancellation arrived)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            is_cancelled = task.uncancel() > 0  # (by others, too)
        if error is not None and not (is_cancelled or isinstance(error, LeaseLostError)):
            raise LeaseLostError(thread=self._thread) from error

    def _leave(self) -> bool:
        _KEEPERS.of(self._store).remove(self)
        lost, self._lost = self.lost, True
        if self._timer is not None:
            self._timer.cancel()
        return lost

    def _enter(self) -> Operation[None]:
        if not self.lost:
            raise StateError("This guard holds its thread already.", thread=self._thread)
        self._change = self._change._replace(holder=f"{self._worker} {secrets.token_hex(8)}")
        self._last = 0
        end, pause = time.monotonic() + self._wait, _FIRST_PAUSE
        while True:
            before = time.monotonic()
            try:
                yield from self._commit(self._change)
                break
            except HeldError:
                yield from self._commit(self._change._replace(does="hold"))
                raise
            except ThreadLockedError:
                left = end - time.monotonic()
                if left <= 0:
                    raise
            seconds = min(pause, left)
            yield External(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._lost = self._is_cancelled = False
        self._confirmed(before)
        _KEEPERS.of(self._store).add(self)

    def _give_back(self, error: BaseException | None) -> Operation[None]:
        does = "end"
        if isinstance(error, Exception) and not isinstance(error, GraphBubbleUp):
            does = "fail"
        elif error is not None:
            does = "yield"
        try:
            yield from self._commit(self._change._replace(does=does))
        except LeaseLostError:
            pass  # (another worker has seen the end of the lease; all saves were stored before)
        except ThreadkeepError as failure:  # (then the lease ends by itself)
            _log.warning("The guard of thread %r was not given back: %s", self._thread, failure)

    def _commit(self, change: LeaseThread) -> Operation[None]:
        link = Link(Proof(0))
        yield from on(self._store, commit(change._replace(last=self._last, link=link)))
        self._last = link.tip

    # -- renewal, in another thread --------------------------------------------------------

    @property
    def due(self) -> float:
        """Time of the next renewal, by the monotonic clock."""
        return self._due

    def renew(self) -> None:
        """Renew the lease, or note that it is lost. Blocks."""
        before = time.monotonic()
        if before >= self._until:
            self._lose()
            return
        try:
            run(self._commit(self._change._replace(does="renew")))
        except LeaseLostError:
            self._lose()
        except ThreadkeepError as error:
            _log.warning("The lease of thread %r was not renewed: %s", self._thread, error)
            self._due = time.monotonic() + _AGAIN
        else:
            self._confirmed(before)

    def _confirmed(self, asked: float) -> None:
        """Note a lease that begins after this moment."""
        self._until = asked + self._lease * (1 - _MARGIN)
        self._due = asked + self._lease / _PARTS

    def _lose(self) -> None:
        self._lost = True
        self._due = float("inf")
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel)

    def _watch(self) -> None:
        """Cancel the run at the end of its lease, also while a renewal is under way."""
        if self._task is None or self._loop is None:
            return
        if self.lost:
            self._cancel()
        else:
            seconds = max(self._until - time.monotonic(), 0.01)
            self._timer = self._loop.call_later(seconds, self._watch)

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._is_cancelled = True
            task.cancel("The lease of the thread was lost.")


guard = Guard


class _Keeper(ResetInChild):
    """A thread that renews the leases of the guards of one store, while there are any."""

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = Wake()
        self._guards: set[Guard] = set()
        self._thread: threading.Thread | None = None

    def add(self, one: Guard) -> None:
        with self._lock:
            self._guards.add(one)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="threadkeep-leases", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def remove(self, one: Guard) -> None:
        with self._lock:
            self._guards.discard(one)

    def _run(self) -> None:
        is_idle = False
        while True:
            with self._lock:
                guards = [*self._guards]
                if is_idle and not guards:
                    self._thread = None
                    return
            is_idle = not guards
            for one in guards:
                if one.due <= time.monotonic() and one in self._guards:
                    one.renew()
            due = min([one.due for one in guards], default=0.0)
            seconds = _IDLE if is_idle else min(max(due - time.monotonic(), 0.01), 1.0)
            self._wake.wait(seconds)


class _Keepers(ResetInChild):
    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._keepers: WeakKeyDictionary[LayeredBackend, _Keeper] = WeakKeyDictionary()

    def of(self, store: LayeredBackend) -> _Keeper:
        with self._lock:
            return self._keepers.setdefault(store, _Keeper())


_KEEPERS = _Keepers()
