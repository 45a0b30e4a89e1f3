"""What was answered and is not stored yet: a list, with a lane for each thread of conversation.

Only the list lives here, and who stores it when; what waits, and how that is stored, is for a
`Sink` to know. Invariants:

- What a thread saves is stored in its order, and what was lost takes along all behind it.
- After `flush` everything that was added before is stored, or a failure was told.
- What waits is bounded; what the store fails to do is kept, and done again.
- A failure that nobody waited for is raised at the next call about its thread, once.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from threadkeep.backends import process_forks
from threadkeep.backends.loops import PerLoop
from threadkeep.errors import (
    BackendError,
    ClosedError,
    LostSavesError,
    ThreadDeletedError,
    ThreadkeepError,
)
from threadkeep.store import driver
from threadkeep.write_behind import WriteBehind

Item = TypeVar("Item")
T = TypeVar("T")

Threads: TypeAlias = Collection[str] | None
"""Some threads, or (None) all of them."""

_MOST_FAILURES = 10_000  # threads whose failures are kept until they are told
_MOST_NAMED = 10  # threads that an error names
_log = logging.getLogger("threadkeep")


class Outcome(NamedTuple):
    """What became of what waited in one thread.

    `done`: how many, from the first on, are stored. `error`: why no more are. `lost`: trying
    again can never help.
    """

    done: int
    error: ThreadkeepError | None = None
    lost: bool = False


class Sink(Protocol[Item]):
    """What knows the items, and how they are stored.

    `together`: to store what waits in all threads costs little more than in one.
    """

    together: bool

    def size(self, item: Item) -> int:
        """About how many bytes it takes; the same each time."""

    def admitted(self, item: Item) -> Item:
        """The item as it is to wait. Quick.

        Raises:
            ThreadkeepError: it builds on what was lost or removed.
        """

    def store(self, waiting: Mapping[str, Sequence[Item]]) -> Mapping[str, Outcome]:
        """Store what waits, by thread. Failures are outcomes."""

    def lost(self, thread: str, items: Sequence[Item], *, deleted: bool) -> None:
        """Note that what waited in a thread is lost, with the thread itself or not. Quick."""


@dataclass(slots=True)
class _Lane(Generic[Item]):
    """What one thread has saved, in order."""

    items: list[Item] = field(default_factory=list)
    size: int = 0


class CommitQueue(Generic[Item]):
    """What is to be stored, and the failures that nobody has heard of yet."""

    def __init__(self, how: WriteBehind, store: Sink[Item]) -> None:
        self._how = how
        self._to = store
        self._closed = False
        self._reset()
        process_forks.watch(self)

    def _reset(self) -> None:
        self._lanes: dict[str, _Lane[Item]] = {}
        self._size = 0
        self._untold: dict[str, ThreadkeepError] = {}
        self._held: set[str] = set()  # threads in which something is being removed
        self._lock = threading.Lock()  # of all this; held for moments only
        self._storing = threading.Lock()  # one at a time, so that the order is kept
        self._flusher: threading.Thread | None = None
        self._turns = PerLoop(asyncio.Lock)
        self._end = threading.Event()

    def before_fork(self) -> None:
        """See `Watched.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Watched.after_fork`: what waits is the parent's to store."""
        if in_child:
            self._reset()

    # -- saves -----------------------------------------------------------------------

    def add(self, thread: str, item: Item) -> None:
        """Note an item, as soon as there is room for it.

        Raises:
            ThreadkeepError: an earlier save of the thread is lost, or the store fails; this
                one was not noted.
        """
        while not self.added(thread, item):
            self._wait(thread)

    async def aadd(self, thread: str, item: Item) -> None:
        """See `add`."""
        while not self.added(thread, item):
            await self.alone(partial(self._wait, thread))

    def _wait(self, thread: str) -> None:
        """Wait for whoever stores or removes something now, and for room."""
        with self._storing:
            with self._lock:
                self._held.discard(thread)  # (left there by who was interrupted)
            if self._is_full:
                self._make_room(thread)

    def _make_room(self, thread: str) -> None:
        self._store(None)
        with self._lock:
            self._tell([thread])
            if self._is_full:  # then the store has failed, for others
                failures = [e for e in self._untold.values() if isinstance(e, BackendError)]
                raise failures[0].anew()

    def added(self, thread: str, item: Item) -> bool:
        """Note an item if nothing has to be waited for. Raises as `add`."""
        with self._lock:
            if self._closed:
                raise ClosedError(hint="Open a new saver.")
            self._tell([thread])
            if thread in self._held or self._is_full:
                return False
            item = self._to.admitted(item)
            size = self._to.size(item)
            lane = self._lanes.get(thread, _Lane())
            self._size += size
            lane.size += size
            lane.items.append(item)
            self._lanes[thread] = lane  # (last: an interrupted call leaves no empty one)
            self._start()
        return True

    @property
    def _is_full(self) -> bool:
        return self._size >= self._how.max_pending_bytes

    def _tell(self, threads: Iterable[str]) -> None:
        """Raise what became of earlier saves, once. The caller holds the lock."""
        for thread in threads:
            error = self._untold.pop(thread, None)
            if error is not None:
                raise error.anew()

    # -- storing ---------------------------------------------------------------------

    def clean(self, threads: Threads) -> bool:
        """Whether everything saved in these threads is stored, and every failure was told."""
        with self._lock:
            if threads is None:
                return not self._lanes and not self._untold
            return not any(t in self._lanes or t in self._untold for t in threads)

    def flush(self, threads: Threads = None) -> None:
        """Store everything that was saved in these threads before this was called.

        Raises:
            LostSavesError: some of it was refused.
            ThreadkeepError: the store failed; what it did not store is kept.
        """
        with self._storing:
            self._flush(threads)

    async def aflush(self, threads: Threads = None) -> None:
        """See `flush`."""
        if not self.clean(threads):
            await self.alone(partial(self.flush, threads))

    async def alone(self, call: Callable[[], T]) -> T:
        """Do something that may take long in a thread: of each event loop one at a time.

        So what waits for a store that does not answer holds up nobody else.
        """
        async with self._turns.here():
            return await driver.in_thread(call)

    def _flush(self, threads: Threads) -> None:
        # Who waited for the turn may find that others have stored it.
        if not self.clean(threads):
            self._store(None if self._to.together else threads)
        with self._lock:
            self._tell(list(self._untold) if threads is None else threads)

    def _store(self, threads: Threads) -> None:
        """Store what waits; note what fails. The caller holds `_storing`."""
        with self._lock:
            names = list(self._lanes) if threads is None else threads
            waiting = {t: list(self._lanes[t].items) for t in names if t in self._lanes}
        if not waiting:
            return
        outcomes = self._to.store(waiting)
        with self._lock:
            for thread, outcome in outcomes.items():
                self._settle(thread, outcome)
        kept = [o.error for o in outcomes.values() if o.error is not None and not o.lost]
        if kept:
            log = "What %d threads saved is not stored yet, and will be tried again: %s"
            _log.warning(log, len(kept), kept[0])

    def _settle(self, thread: str, outcome: Outcome) -> None:
        """Let go of what is stored or lost. The caller holds the lock."""
        if outcome.error is not None and outcome.lost:
            # What was saved meanwhile builds on what is lost.
            lost = self._let_go(thread, None)
            self._to.lost(thread, lost, deleted=isinstance(outcome.error, ThreadDeletedError))
            self._note(thread, _lost(f"What {len(lost)} calls saved", outcome.error, thread))
            return
        self._let_go(thread, outcome.done)
        if outcome.error is not None:
            self._note(thread, outcome.error)
        elif not isinstance(self._untold.get(thread), LostSavesError):
            self._untold.pop(thread, None)  # it is stored after all

    def _let_go(self, thread: str, count: int | None) -> Sequence[Item]:
        """Let go of the first items of a thread, or of all; which these are."""
        lane = self._lanes.get(thread)
        if lane is None:
            return ()
        gone, lane.items = lane.items[:count], lane.items[len(lane.items[:count]) :]
        size = sum(map(self._to.size, gone))
        lane.size -= size
        self._size -= size
        if not lane.items:
            del self._lanes[thread]
        if not self._lanes:
            self._size = 0  # (whatever an interrupted call has left)
        return gone

    def _note(self, thread: str, error: ThreadkeepError) -> None:
        self._untold[thread] = error
        while len(self._untold) > _MOST_FAILURES:
            del self._untold[next(iter(self._untold))]  # (it was logged)

    # -- what does not wait ------------------------------------------------------------

    @contextmanager
    def holding(self, threads: Collection[str], *, forget: Collection[str] = ()) -> Iterator[None]:
        """Nothing of these threads waits, and nothing is noted, for as long as this is held.

        Args:
            threads: which.
            forget: those of them of which what waits need not be stored, nor be told that it
                was not.

        Raises:
            ThreadkeepError: as `flush`.
        """
        with self._storing:
            try:
                with self._lock:
                    self._held |= set(threads)
                self._forget(forget)
                self._flush(threads)
                yield
            finally:
                with self._lock:
                    self._held -= set(threads)

    def forget(self, thread: str) -> None:
        """Let go of what waits in a thread that is about to be deleted."""
        with self.holding([thread], forget=[thread]):
            pass

    def _forget(self, threads: Collection[str]) -> None:
        with self._lock:
            for thread in threads:
                self._to.lost(thread, self._let_go(thread, None), deleted=True)
                self._untold.pop(thread, None)

    # -- from time to time -----------------------------------------------------------

    def _start(self) -> None:
        """Let somebody store it soon. The caller holds the lock."""
        _lists.add(self)
        if self._flusher is None:
            target = partial(_flush_now_and_then, weakref.ref(self), self._end, self._how)
            flusher = threading.Thread(target=target, name="threadkeep-flush", daemon=True)
            with suppress(RuntimeError):  # the program ends: then it is stored at the very end
                flusher.start()
                self._flusher = flusher

    def flush_quietly(self) -> None:
        """Store what waits; what fails is told at the next call."""
        try:
            with self._storing:
                self._store(None)
                with self._lock:
                    if not self._lanes:
                        _lists.discard(self)
        except Exception:  # noqa: BLE001 - nobody waits for this, and what waits is still there
            _log.exception("What was saved could not be stored, and will be tried again.")

    def close(self) -> None:
        """Store what waits and begin nothing any more. Idempotent; interrupted, do it again.

        Raises:
            LostSavesError: some of it could not be stored, and is lost.
        """
        with self._lock:
            self._closed = True
        try:
            self.flush()
        except ThreadkeepError as error:
            raise self._given_up(error) from error
        finally:
            with self._lock:
                is_done = not self._lanes
            if is_done:  # (else it was interrupted: what waits may yet be stored at the end)
                self._end.set()
                _lists.discard(self)

    def _given_up(self, error: ThreadkeepError) -> ThreadkeepError:
        """Let go of everything; what to say of it after this failure."""
        with self._lock:
            failures = [error, *self._untold.values()]
            lost = {e.thread for e in failures if isinstance(e, LostSavesError)} | {*self._lanes}
            self._untold.clear()
            for thread in list(self._lanes):
                self._let_go(thread, None)
        if not lost:
            return error.anew()
        names = ", ".join(sorted(map(repr, lost))[:_MOST_NAMED])
        return _lost(f"What {len(lost)} threads saved ({names})", error, None)


_lists: set[CommitQueue[Any]] = set()
"""Those that hold something: not lost with a saver that a program lets go of."""


def _flush_now_and_then(
    mine: weakref.ref[CommitQueue[Any]], end: threading.Event, how: WriteBehind
) -> None:
    while not end.wait(how.flush_interval):
        waiting = mine()
        if waiting is None:
            return
        waiting.flush_quietly()
        del waiting


@atexit.register
def _at_exit() -> None:
    for waiting in tuple(_lists):
        waiting.flush_quietly()


def _lost(what: str, cause: ThreadkeepError, thread: str | None) -> LostSavesError:
    error = LostSavesError(
        f"{what} was answered before it was stored, and is lost: {cause.message}",
        hint="Run the thread again: it goes on from its last stored checkpoint.",
        thread=thread,
    )
    error.__cause__ = cause
    _log.error("%s", error)
    return error
