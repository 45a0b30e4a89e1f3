"""Queue of saves that were acknowledged but not stored yet, with a lane for each thread.

Invariants:

- Saves of a thread are stored in order. If one is lost, all later ones of the thread are lost too.
- After `flush`, all earlier saves are stored, or a failure was raised.
- The queue is bounded. Saves that the store fails to commit stay queued and are retried.
- A failure in the background is raised once, by the next call for its thread.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from threadkeep._run import driver
from threadkeep._run.ending import End
from threadkeep._run.write_behind import WriteBehind
from threadkeep._stores.process_forks import PerLoop, ResetInChild
from threadkeep.errors import (
    ClosedError,
    LostSavesError,
    ThreadDeletedError,
    ThreadkeepError,
)

Item = TypeVar("Item")
T = TypeVar("T")

Threads: TypeAlias = Collection[str] | None
"""Ids of threads; None means all threads."""

_MAX_FAILURES = 10_000  # threads with failures to raise
_MAX_NAMES = 10  # threads listed in an error
_log = logging.getLogger("threadkeep")


class Outcome(NamedTuple):
    """Result of storing the items of one thread.

    Args:
        done: number of items stored, counted from the first.
        error: the reason that the other items are not stored.
        lost: True if a retry cannot succeed.
    """

    done: int
    error: ThreadkeepError | None = None
    lost: bool = False


class CommitQueue(ResetInChild, Generic[Item]):
    """Saves to store and failures to raise. In the child of a process fork, the queue is empty.

    A subclass defines the items and how to store them.
    """

    together = False
    """True if storing the items of all threads costs little more than the items of one."""

    def __init__(self, how: WriteBehind) -> None:
        self._how = how
        self._closed = False
        super().__init__()

    def size(self, item: Item) -> int:
        """Return the approximate bytes of an item; the same for each call."""
        raise NotImplementedError

    def admit(self, item: Item) -> Item:
        """Return the item to queue. Must not block.

        Raises:
            ThreadkeepError: the item builds on lost or removed data.
        """
        return item

    def store(self, items: Mapping[str, Sequence[Item]]) -> Mapping[str, Outcome]:
        """Store items by thread. Return failures as outcomes."""
        raise NotImplementedError

    def lost(self, thread: str, items: Sequence[Item], *, deleted: bool) -> None:
        """Handle the loss of items. `deleted`: the thread was deleted. Must not block."""

    def _reset(self) -> None:
        self._lanes: dict[str, list[Item]] = {}
        self._size = 0
        self._failures: dict[str, ThreadkeepError] = {}
        self._paused: set[str] = set()  # threads with a running removal
        self._lock = threading.Lock()  # protects all state; held only briefly
        self._storing = threading.RLock()  # one thread at a time, to keep the order
        self._flusher: threading.Thread | None = None
        self._turns = PerLoop(asyncio.Lock)
        self._end = End()

    # -- saves -----------------------------------------------------------------------

    def add(self, thread: str, item: Item) -> None:
        """Queue an item as soon as the queue has room.

        Raises:
            ThreadkeepError: an earlier save of the thread was lost, or the store fails; the
                item was not queued.
        """
        while not self.try_add(thread, item):
            self._wait(thread)

    async def aadd(self, thread: str, item: Item) -> None:
        """Async variant of `add`."""
        while not self.try_add(thread, item):
            await self.in_turn(partial(self._wait, thread))

    def try_add(self, thread: str, item: Item) -> bool:
        """Queue an item if that needs no waiting; return True if queued. Raises as `add`."""
        with self._lock:
            if self._closed:
                raise ClosedError(hint="Open a new one.")
            self._raise_failures([thread])
            if thread in self._paused or self._is_full:
                return False
            item = self.admit(item)
            self._size += self.size(item)
            self._lanes.setdefault(thread, []).append(item)
            self._start()
        return True

    def _wait(self, thread: str) -> None:
        """Wait for running stores and removals, and for room in the queue."""
        with self._storing:
            self._paused.discard(thread)  # may be left by an interrupted removal
            if not self._is_full:
                return
            self._store(None)
            with self._lock:
                self._raise_failures([thread])
                known = self._failures.values()
                errors = [error for error in known if not isinstance(error, LostSavesError)]
                if self._is_full and errors:  # the store failed for other threads
                    raise errors[0].fresh()

    @property
    def queued(self) -> tuple[int, int, float]:
        """Number of queued saves, their bytes, and the used fraction of the limit."""
        with self._lock:
            part = self._size / self._how.max_pending_bytes
            return sum(map(len, self._lanes.values())), self._size, part

    @property
    def _is_full(self) -> bool:
        return self._size >= self._how.max_pending_bytes

    def _raise_failures(self, threads: Iterable[str]) -> None:
        """Raise the failure of an earlier save, once. The caller holds the lock."""
        for thread in threads:
            error = self._failures.pop(thread, None)
            if error is not None:
                raise error.fresh()

    # -- storing ---------------------------------------------------------------------

    def is_settled(self, threads: Threads) -> bool:
        """Return True if all saves of the threads are stored and every failure was raised."""
        with self._lock:
            if threads is None:
                return not self._lanes and not self._failures
            return not any(t in self._lanes or t in self._failures for t in threads)

    def flush(self, threads: Threads = None) -> None:
        """Store every save of the threads that was made before this call.

        Raises:
            LostSavesError: the store refused some of the saves.
            ThreadkeepError: the store failed; saves that were not stored stay queued.
        """
        with self._storing:
            # While this caller waited for the lock, another may have stored everything.
            if not self.is_settled(threads):
                self._store(None if self.together else threads)
            with self._lock:
                self._let_go()
                self._raise_failures(list(self._failures) if threads is None else threads)

    async def aflush(self, threads: Threads = None) -> None:
        """Async variant of `flush`."""
        if not self.is_settled(threads):
            await self.in_turn(partial(self.flush, threads))

    async def in_turn(self, call: Callable[[], T]) -> T:
        """Run a slow call in a worker thread, one at a time for each event loop.

        If a store does not answer, its waiting callers take only one worker thread per event loop.
        """
        async with self._turns.here():
            return await driver.in_thread(call)

    def _store(self, threads: Threads) -> None:
        """Store queued items and record failures. The caller holds `_storing`."""
        with self._lock:
            names = list(self._lanes) if threads is None else threads
            items = {t: list(self._lanes[t]) for t in names if t in self._lanes}
        if not items:
            return
        outcomes = self.store(items)
        with self._lock:
            for thread, outcome in outcomes.items():
                self._settle(thread, outcome)
        pending = [o.error for o in outcomes.values() if o.error is not None and not o.lost]
        if pending:
            log = "Saves of %s could not be stored and will be retried: %s"
            _log.warning(log, _count(len(pending), "thread"), pending[0])

    def _settle(self, thread: str, outcome: Outcome) -> None:
        """Remove stored or lost items. The caller holds the lock."""
        if outcome.error is not None and outcome.lost:
            # Later saves of the thread build on the lost ones.
            lost = self._remove(thread, None)
            self.lost(thread, lost, deleted=isinstance(outcome.error, ThreadDeletedError))
            self._fail(thread, _lost(_count(len(lost), "save"), outcome.error, thread))
            return
        self._remove(thread, outcome.done)
        if outcome.error is not None:
            self._fail(thread, outcome.error)
        elif not isinstance(self._failures.get(thread), LostSavesError):
            self._failures.pop(thread, None)  # a retry has stored the save

    def _remove(self, thread: str, count: int | None) -> Sequence[Item]:
        """Remove and return the first items of a thread, or all items (None)."""
        lane = self._lanes.pop(thread, [])
        removed = lane[:count]
        if len(removed) < len(lane):
            self._lanes[thread] = lane[len(removed) :]
        self._size -= sum(map(self.size, removed))
        if not self._lanes:
            self._size = 0  # corrects errors left by an interrupted call
        return removed

    def _fail(self, thread: str, error: ThreadkeepError) -> None:
        self._failures[thread] = error
        while len(self._failures) > _MAX_FAILURES:
            del self._failures[next(iter(self._failures))]  # already logged

    # -- changes that are not queued ---------------------------------------------------

    @contextmanager
    def paused(self, threads: Collection[str], *, forget: Collection[str] = ()) -> Iterator[None]:
        """Flush these threads and queue no saves for them inside the context."""
        with self._storing:
            try:
                with self._lock:
                    self._paused |= set(threads)
                    for thread in forget:
                        self.lost(thread, self._remove(thread, None), deleted=True)
                        self._failures.pop(thread, None)
                self.flush(threads)
                yield
            finally:
                with self._lock:
                    self._paused -= set(threads)

    def forget(self, thread: str) -> None:
        """Discard the queued saves of a thread before its deletion."""
        with self.paused([thread], forget=[thread]):
            pass

    # -- in the background -------------------------------------------------------------

    def _start(self) -> None:
        """Schedule a flush of the queue. The caller holds the lock."""
        _nonempty.add(self)
        if self._flusher is None:
            target = partial(
                _flush_regularly, weakref.ref(self, self._end.set), self._end, self._how
            )
            flusher = threading.Thread(target=target, name="threadkeep-flush", daemon=True)
            with suppress(RuntimeError):  # the program is ending: `_at_exit` stores the queue
                flusher.start()
                self._flusher = flusher

    def _let_go(self) -> None:
        """Allow an empty queue to be garbage-collected. The caller holds the lock."""
        if not self._lanes:
            _nonempty.discard(self)

    def flush_quietly(self) -> None:
        """Store the queue. Failures are logged, and raised by the next call."""
        try:
            with self._storing:
                self._store(None)
                with self._lock:
                    self._let_go()
        except Exception:  # noqa: BLE001 - no caller waits; the queue is unchanged
            _log.exception("Saves could not be stored and will be retried.")

    def close(self) -> None:
        """Store the queue and refuse further saves. Idempotent; if interrupted, call it again.

        Raises:
            LostSavesError: some saves could not be stored and are lost.
        """
        with self._lock:
            self._closed = True
        try:
            self.flush()
        except ThreadkeepError as error:
            raise self._give_up(error) from error
        finally:
            with self._lock:
                is_done = not self._lanes
            if is_done:  # if interrupted, the queue can still be stored at exit
                self._end.set()
                _nonempty.discard(self)

    def _give_up(self, error: ThreadkeepError) -> ThreadkeepError:
        """Empty the queue; return the error to raise for this failure."""
        with self._lock:
            failures = [error, *self._failures.values()]
            lost = {e.thread for e in failures if isinstance(e, LostSavesError)} | {*self._lanes}
            self._failures.clear()
            for thread in list(self._lanes):
                self._remove(thread, None)
        if not lost:
            return error.fresh()
        names = ", ".join(sorted(map(repr, lost))[:_MAX_NAMES])
        return _lost(f"saves of {_count(len(lost), 'thread')} ({names})", error, None)


_nonempty: set[CommitQueue[Any]] = set()
"""Nonempty queues, kept alive so that a discarded saver loses no saves."""


def _flush_regularly(ref: weakref.ref[CommitQueue[Any]], end: End, how: WriteBehind) -> None:
    while not end.wait(how.flush_interval):
        queue = ref()
        if queue is None:
            return
        queue.flush_quietly()
        del queue


@atexit.register
def _at_exit() -> None:
    for queue in tuple(_nonempty):
        queue.flush_quietly()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _lost(what: str, cause: ThreadkeepError, thread: str | None) -> LostSavesError:
    error = LostSavesError(
        f"Lost {what} that had been acknowledged: {cause.message}",
        hint="Run the thread again: it continues from its last stored checkpoint.",
        thread=thread,
    )
    error.__cause__ = cause
    _log.error("%s", error)
    return error
