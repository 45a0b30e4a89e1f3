"""Queue of saves that were acknowledged and are not stored yet, with a lane for each thread.

Invariants:

- Saves of a thread are stored in order; one that is lost takes all behind it along.
- After `flush` everything added before is stored, or a failure was raised.
- The queue is bounded. What the store fails to do stays, and is retried.
- A failure that no caller waited for is raised once, at the next call about its thread.
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
"""Some threads, or (None) all of them."""

_MAX_FAILURES = 10_000  # threads whose failures are remembered until they are raised
_MAX_NAMES = 10  # threads that an error names
_log = logging.getLogger("threadkeep")


class Outcome(NamedTuple):
    """Result of storing the items of one thread.

    Args:
        done: how many of the first items are stored.
        error: why no more are.
        lost: a retry can never help.
    """

    done: int
    error: ThreadkeepError | None = None
    lost: bool = False


class CommitQueue(ResetInChild, Generic[Item]):
    """Saves to be stored, and failures to be raised. The child of a fork begins with none.

    A subclass knows what the items are and how to store them.
    """

    together = False
    """True if storing the items of all threads costs little more than those of one."""

    def __init__(self, how: WriteBehind) -> None:
        self._how = how
        self._closed = False
        super().__init__()

    def size(self, item: Item) -> int:
        """Return about how many bytes an item takes; the same each time."""
        raise NotImplementedError

    def admit(self, item: Item) -> Item:
        """Return the item to queue. Quick.

        Raises:
            ThreadkeepError: it builds on what was lost or removed.
        """
        return item

    def store(self, items: Mapping[str, Sequence[Item]]) -> Mapping[str, Outcome]:
        """Store items by thread. Failures are outcomes."""
        raise NotImplementedError

    def lost(self, thread: str, items: Sequence[Item], *, deleted: bool) -> None:
        """Note that items of a thread are lost, perhaps with the thread itself. Quick."""

    def _reset(self) -> None:
        self._lanes: dict[str, list[Item]] = {}
        self._size = 0
        self._failures: dict[str, ThreadkeepError] = {}
        self._paused: set[str] = set()  # threads in which something is being removed
        self._lock = threading.Lock()  # of all this; held for moments only
        self._storing = threading.RLock()  # one thread at a time, so that the order is kept
        self._flusher: threading.Thread | None = None
        self._turns = PerLoop(asyncio.Lock)
        self._end = End()

    # -- saves -----------------------------------------------------------------------

    def add(self, thread: str, item: Item) -> None:
        """Queue an item, as soon as there is room.

        Raises:
            ThreadkeepError: an earlier save of the thread is lost, or the store fails; the
                item was not queued.
        """
        while not self.try_add(thread, item):
            self._wait(thread)

    async def aadd(self, thread: str, item: Item) -> None:
        """Async variant of `add`."""
        while not self.try_add(thread, item):
            await self.in_turn(partial(self._wait, thread))

    def try_add(self, thread: str, item: Item) -> bool:
        """Queue an item if that needs no wait; return True if so. Raises as `add`."""
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
        """Wait for what is stored or removed now, and for room."""
        with self._storing:
            self._paused.discard(thread)  # (left there by who was interrupted)
            if not self._is_full:
                return
            self._store(None)
            with self._lock:
                self._raise_failures([thread])
                known = self._failures.values()
                errors = [error for error in known if not isinstance(error, LostSavesError)]
                if self._is_full and errors:  # then the store has failed, for others
                    raise errors[0].fresh()

    @property
    def queued(self) -> tuple[int, int, float]:
        """The number of saves that are queued, their bytes, and the part of the limit."""
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
            LostSavesError: some of them were refused.
            ThreadkeepError: the store failed; what it did not store is kept.
        """
        with self._storing:
            # Who waited for the turn may find that others have stored it.
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

        Callers that wait for a store that does not answer therefore block no other caller.
        """
        async with self._turns.here():
            return await driver.in_thread(call)

    def _store(self, threads: Threads) -> None:
        """Store what is queued; note failures. The caller holds `_storing`."""
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
            log = "Saves of %s are not stored yet, and will be retried: %s"
            _log.warning(log, _count(len(pending), "thread"), pending[0])

    def _settle(self, thread: str, outcome: Outcome) -> None:
        """Remove what is stored or lost. The caller holds the lock."""
        if outcome.error is not None and outcome.lost:
            # What was saved meanwhile builds on what is lost.
            lost = self._remove(thread, None)
            self.lost(thread, lost, deleted=isinstance(outcome.error, ThreadDeletedError))
            self._fail(thread, _lost(_count(len(lost), "save"), outcome.error, thread))
            return
        self._remove(thread, outcome.done)
        if outcome.error is not None:
            self._fail(thread, outcome.error)
        elif not isinstance(self._failures.get(thread), LostSavesError):
            self._failures.pop(thread, None)  # it is stored after all

    def _remove(self, thread: str, count: int | None) -> Sequence[Item]:
        """Remove and return the first items of a thread, or all."""
        lane = self._lanes.pop(thread, [])
        removed = lane[:count]
        if len(removed) < len(lane):
            self._lanes[thread] = lane[len(removed) :]
        self._size -= sum(map(self.size, removed))
        if not self._lanes:
            self._size = 0  # (whatever an interrupted call has left)
        return removed

    def _fail(self, thread: str, error: ThreadkeepError) -> None:
        self._failures[thread] = error
        while len(self._failures) > _MAX_FAILURES:
            del self._failures[next(iter(self._failures))]  # (it was logged)

    # -- changes that are not queued ---------------------------------------------------

    @contextmanager
    def paused(self, threads: Collection[str], *, forget: Collection[str] = ()) -> Iterator[None]:
        """Keep the lanes of these threads empty: flush them first, and queue nothing meanwhile."""
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
        """Drop the saves of a thread that is about to be deleted."""
        with self.paused([thread], forget=[thread]):
            pass

    # -- in the background -------------------------------------------------------------

    def _start(self) -> None:
        """Have the queue flushed soon. The caller holds the lock."""
        _nonempty.add(self)
        if self._flusher is None:
            target = partial(
                _flush_regularly, weakref.ref(self, self._end.set), self._end, self._how
            )
            flusher = threading.Thread(target=target, name="threadkeep-flush", daemon=True)
            with suppress(RuntimeError):  # the program ends: then it is stored at the very end
                flusher.start()
                self._flusher = flusher

    def _let_go(self) -> None:
        """Let an empty queue end with its saver. The caller holds the lock."""
        if not self._lanes:
            _nonempty.discard(self)

    def flush_quietly(self) -> None:
        """Store what is queued; failures are raised at the next call."""
        try:
            with self._storing:
                self._store(None)
                with self._lock:
                    self._let_go()
        except Exception:  # noqa: BLE001 - no caller waits for this, and the queue is unchanged
            _log.exception("Saves could not be stored, and will be retried.")

    def close(self) -> None:
        """Store what is queued and refuse more. Idempotent; if interrupted, call it again.

        Raises:
            LostSavesError: some of it could not be stored, and is lost.
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
            if is_done:  # (else it was interrupted: the queue may yet be stored at the end)
                self._end.set()
                _nonempty.discard(self)

    def _give_up(self, error: ThreadkeepError) -> ThreadkeepError:
        """Empty the queue; return what to raise after this failure."""
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
"""Queues that hold something: a saver that a program lets go of loses no saves."""


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
