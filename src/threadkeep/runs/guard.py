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
from weakref import WeakKeyDictionary, WeakSet

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp, GraphRecursionError

from threadkeep._core import validation
from threadkeep._core.arguments import GUARD
from threadkeep._core.engine import registration
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import LeaseThread
from threadkeep._core.engine.operation import External, Operation, commit, commit_many
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.validation import MICROSECOND, duration
from threadkeep._run.delegate import Delegate
from threadkeep._run.driver import Wake, Workers, arun, on, run, sync_or_async
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
from threadkeep.threads import answering

_log = logging.getLogger("threadkeep")
_SHORTEST = timedelta(seconds=1)
_MARGIN = 0.1  # part of a lease that the holder leaves unused: clocks do not run equally fast
_PARTS = 3  # renewals of one lease
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks at a thread that another holds
_LONGEST_NAME = 255
_IDLE = 5.0  # seconds after which a thread without leases to renew ends
_AGAIN = 0.2  # seconds after which a failed renewal is tried again


def plain(saver: Any) -> Any:
    """Return the saver in which another one, such as one with layers, stores threads."""
    while isinstance(saver, Delegate):
        saver = saver._inner  # noqa: SLF001 - a saver of ours
    return saver


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
        own = plain(saver)
        self._store = store_of(own)
        self._engine: Engine = own._engine  # noqa: SLF001 - a saver of ours
        self.thread_id = validation.thread_id(thread_id)
        """The thread's id."""
        given: Mapping[str, Any] = thread_id if validation.is_mapping(thread_id) else {}
        configurable = given.get("configurable", {})
        length = duration("lease", lease)
        if length < _SHORTEST:
            raise invalid("lease", lease, "Use at least one second.")
        if type(max_attempts) is not int or max_attempts < 1:
            raise invalid("max_attempts", max_attempts, "Use a number from 1.")
        name = f"{socket.gethostname()}-{getpid()}" if worker is None else worker
        if len(validation.text("worker", name).encode()) > _LONGEST_NAME:
            raise invalid("worker", name, f"Use at most {_LONGEST_NAME} bytes.")
        self._worker = name
        self._lease = length.total_seconds()
        self._wait = duration("wait", wait).total_seconds() if wait else 0.0
        self._change = LeaseThread(
            self.thread_id, "take", length=length // MICROSECOND, most=max_attempts
        )
        self._last = 0  # tip of the last renewal
        self._until = 0.0  # by the monotonic clock
        self._lost = False
        self._was_due = self._has_saved = False
        self.is_settled = False  # (of `resume`: there is no more to run)
        self._process = 0  # that holds the thread: a fork's child has another guard, or none
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0  # requests to cancel the task before those of the guard
        self._is_cancelled = False  # by the guard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.config: RunnableConfig = {
            **given,  # type: ignore[typeddict-item] # a config
            "configurable": {**configurable, "thread_id": self.thread_id, GUARD: self},
        }
        """The config for the run: `graph.ainvoke(input, guard.config)`."""

    def holder_of(self, thread: str) -> str | None:
        """Return the holder that a save of a thread needs, or None for another thread.

        Raises:
            LeaseLostError: the guard does not hold the thread, or does not know it.
        """
        if thread != self.thread_id:  # (of a graph that a node calls)
            return None
        if self.lost:
            raise LeaseLostError(thread=thread)
        self._has_saved = True
        return self._change.holder

    @property
    def lost(self) -> bool:
        """True if the guard does not hold the thread, or cannot know it in time."""
        return self._lost or time.monotonic() >= self._until or self._process != getpid()

    # -- entry and exit ------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._begin()
        try:
            run(self._enter())
        except BaseException as error:
            run(self._not_entered(error))
            raise
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process != getpid():
            return
        if not self._leave():
            run(self._give_back(self._end_of(error)))
        elif isinstance(error, Exception) and not isinstance(error, LeaseLostError):
            raise LeaseLostError(thread=self.thread_id) from error

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            await arun(self._enter())
        except BaseException as error:
            await arun(self._not_entered(error))
            raise
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._cancels = 0 if self._task is None else self._task.cancelling()
        self._watch()
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process != getpid():
            return
        self._task = None
        if not self._leave():
            await arun(self._give_back(self._end_of(error)))
            return
        if self._is_cancelled:
            if not isinstance(error, asyncio.CancelledError):  # (it may arrive only now)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            task = asyncio.current_task()
            if task is not None and task.uncancel() > self._cancels:
                return  # (others have cancelled it, too)
        is_ours = self._is_cancelled and isinstance(error, asyncio.CancelledError | None)
        if is_ours or (isinstance(error, Exception) and not isinstance(error, LeaseLostError)):
            raise LeaseLostError(thread=self.thread_id) from error

    def _end_of(self, error: BaseException | None) -> str:
        """Return the change of the lease at the end of a run."""
        if isinstance(error, GraphRecursionError):  # (an endless graph would run for ever)
            return "end"
        if error is None:
            is_unused = self._was_due and not (self._has_saved or self.is_settled)
            return "yield" if is_unused else "end"
        is_failure = isinstance(error, Exception) and not isinstance(error, GraphBubbleUp)
        return "fail" if is_failure else "yield"

    def _begin(self) -> None:
        if self._process == getpid():
            raise StateError(
                "This guard holds the thread already.",
                hint="Make a guard for each run: threadkeep.guard(saver, thread_id).",
                thread=self.thread_id,
            )
        self._process, self._is_cancelled, self._last = getpid(), False, 0
        self._has_saved = self.is_settled = False
        self._change = self._change._replace(holder=f"{self._worker} {secrets.token_hex(8)}")

    def _leave(self) -> bool:
        _KEEPERS.of(self._store).remove(self)
        lost, self._lost, self._process = self.lost, True, 0
        if self._timer is not None:
            self._timer.cancel()
        return lost

    def _not_entered(self, error: BaseException) -> Operation[None]:
        """Give back a lease that may have been taken before an interrupt."""
        _KEEPERS.of(self._store).remove(self)
        self._lost, self._process = True, 0
        if not isinstance(error, ThreadLockedError | HeldError):
            yield from self._give_back("yield")

    def _enter(self) -> Operation[None]:
        end, pause = time.monotonic() + self._wait, _FIRST_PAUSE
        entry = yield from on(self._store, registration.read(self.thread_id))
        self._was_due = entry is not None and entry.lease_until is not None
        while True:
            before = time.monotonic()
            try:
                yield from self._commit(self._change)
                self._lost = False
                self._until, self._due = self._ends(before)
                if not self.lost:
                    break  # (else the event loop was blocked for longer than the lease)
                continue
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
        _KEEPERS.of(self._store).add(self)

    def _give_back(self, does: str) -> Operation[None]:
        try:
            yield from self._commit(self._change._replace(does=does))
            if does == "end":
                yield from self._ask_again()
        except LeaseLostError:
            pass  # (another worker has seen the end of the lease; all saves were stored before)
        except ThreadkeepError as failure:  # (then the lease ends by itself)
            _log.warning("The guard of thread %r was not given back: %s", self.thread_id, failure)

    def _ask_again(self) -> Operation[None]:
        """Let a thread be due whose question was answered before the end of the run that asked."""
        entry = yield from on(self._store, registration.read(self.thread_id))
        if entry is not None and entry.status == "waiting":
            asked = yield from on(self._store, answering.interrupts(self._engine, self.thread_id))
            if any(one.answered for one in asked):
                yield from self._commit(self._change._replace(does="ask"))

    def _commit(self, change: LeaseThread) -> Operation[None]:
        is_end = change.does == "end" and self._has_saved
        proof = self._engine.memory(self.thread_id).proof if is_end else None
        link = Link(Proof(0) if proof is None else Proof(0, 0, {*proof.tips}))
        change = change._replace(last=self._last, link=link)
        own = _apart(change) if change.does == "renew" else commit(change)
        # (to its end: a caller that is cancelled then knows if the lease was taken)
        yield from sync_or_async(partial(self._store.run, own), partial(self._store.arun, own))
        self._last = link.tip

    # -- renewal, in another thread --------------------------------------------------------

    @property
    def due(self) -> float:
        """Time of the next renewal, by the monotonic clock."""
        return self._due

    def renew(self) -> None:
        """Renew the lease, or note that it is lost. Blocks."""
        before = time.monotonic()
        is_over = self._loop is not None and self._loop.is_closed()
        if before >= self._until or is_over:
            self._lose()
            return
        try:
            run(self._commit(self._change._replace(does="renew")))
        except LeaseLostError:
            self._lose()
        except Exception as error:  # noqa: BLE001 - the thread renews the leases of others, too
            _log.warning("The lease of thread %r was not renewed: %s", self.thread_id, error)
            self._due = time.monotonic() + _AGAIN
        else:
            self._until, self._due = self._ends(before)

    def _ends(self, asked: float) -> tuple[float, float]:
        """Return when a lease that begins after this moment ends here, and when to renew it."""
        return asked + self._lease * (1 - _MARGIN), asked + self._lease / _PARTS

    def begin_renewal(self) -> bool:
        """Return True, once, if the lease is to be renewed now."""
        is_due = self._due <= time.monotonic()
        if is_due:
            self._due = float("inf")
        return is_due

    def _lose(self) -> None:
        self._lost = True
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
        self._lost = True
        if task is not None:
            self._is_cancelled = True
            task.cancel("The lease of the thread was lost.")


def _apart(change: LeaseThread) -> Operation[None]:
    """Commit a change in a transaction of its own, as a group may wait for a locked thread."""
    (refusal,) = yield from commit_many([change])
    if refusal is not None:
        raise refusal


guard = Guard


_RENEWING = Workers(4, "threadkeep-lease")


class _Keeper(ResetInChild):
    """A thread that renews the leases of the guards of one store, while there are any."""

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = Wake()
        self._guards: WeakSet[Guard] = WeakSet()  # (one may be left without its exit)
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

    def _renew(self, one: Guard) -> None:
        one.renew()
        self._wake.set()

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
                if one.begin_renewal():  # (a locked thread must not delay the others)
                    _RENEWING.pool.submit(self._renew, one)
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
