"""Saves that return before they are durable: `GroupCommit(ack="relaxed")`.

Only what is not stored yet lives here, and who stores it when. Invariants:

- What a thread of conversation saves is stored in its order, all that waits in one change;
  what was refused takes along what builds on it.
- A read of a thread sees everything that was saved in it before.
- The engine never builds on what was lost: with each loss, and whenever something was
  removed, the thread's generation gets another name, so that what is built on the one before
  is refused while its values are still at hand. So is nothing else: the logs are this
  process's own (see `engine.open_logs`).
- What waits is bounded; what the store fails to do is kept, and done again.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from threadkeep import drive, forks
from threadkeep.backends.base import (
    AsyncBackend,
    Backend,
    DualBackend,
    GroupingBackend,
    MigratingAsyncBackend,
    MigratingBackend,
)
from threadkeep.backends.grouping import GroupCommit
from threadkeep.backends.merging import beside, merged, only_adds, spans
from threadkeep.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    Read,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
)
from threadkeep.errors import (
    BackendError,
    ClosedError,
    InvalidArgumentError,
    LostSavesError,
    SegmentTakenError,
    StaleThreadError,
    ThreadkeepError,
    UnreachableError,
)

_APART = 2**70  # names of one life of a thread; no generation is as large
_NO_GENERATION = -1
_LIVES = 10_000  # threads of which it is remembered that something was lost or removed
_OVERHEAD = 500  # bytes that a save takes beside its payload, about
_FOR_ALL = (UnreachableError, ClosedError)  # failures that no single change has caused
_log = logging.getLogger("threadkeep")

Threads: TypeAlias = Collection[str] | None
"""Some threads, or (None) all of them."""


@dataclass(slots=True)
class _Lane:
    """What one thread has saved, in order."""

    batches: list[Batch] = field(default_factory=list)
    size: int = 0


class _Names:
    """What the engine calls the generations of a thread; see the invariants above."""

    def __init__(self) -> None:
        self._lives: dict[str, int] = {}
        self._before = 0  # of the threads that are not remembered

    def begin(self, thread: str) -> None:
        """Let nothing that was built so far pass any more."""
        self._lives[thread] = self._lives.pop(thread, self._before) + 1
        while len(self._lives) > _LIVES:
            self._before = max(self._before, self._lives.pop(next(iter(self._lives)))) + 1

    def name(self, thread: str, generation: int) -> int:
        """What the engine is told."""
        return generation + self._lives.get(thread, self._before) * _APART

    def meant(self, thread: str, name: int) -> int | None:
        """What the store knows it by; None where that has passed."""
        generation = name - self._lives.get(thread, self._before) * _APART
        return generation if abs(generation) < _APART // 2 else None


class Unstored:
    """What is to be stored, and the failures that nobody has heard of yet."""

    def __init__(self, backend: Backend, how: GroupCommit) -> None:
        self._backend = backend
        self._how = how
        self._closed = False
        self._reset()
        forks.watch(self)

    def _reset(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._size = 0
        self._untold: dict[str, ThreadkeepError] = {}
        self._held: set[str] = set()  # threads in which something is being removed
        self._names = _Names()
        self._lock = threading.Lock()  # of all this; held for moments only
        self._storing = threading.Lock()  # one at a time, so that the order is kept
        self._flusher: threading.Thread | None = None
        self._end = threading.Event()

    def before_fork(self) -> None:
        """See `Forks.before_fork`."""

    def after_fork(self, *, in_child: bool) -> None:
        """See `Forks.after_fork`: what waits is the parent's to store."""
        if in_child:
            self._reset()

    # -- generations -----------------------------------------------------------------

    def named(self, read: Read, reply: Any) -> Any:
        """A reply, with the generation as the engine is to know it."""
        if isinstance(read, ReadCheckpoint | ReadThread):
            with self._lock:
                name = self._names.name(read.thread, reply.generation)
            return replace(reply, generation=name)
        return reply

    def meant(self, read: Read) -> Read:
        """A read, with the generation as the store knows it."""
        if isinstance(read, ReadSegments) and read.generation is not None:
            with self._lock:
                known = self._names.meant(read.thread, read.generation)
            return replace(read, generation=_NO_GENERATION if known is None else known)
        return read

    def _batch_meant(self, batch: Batch) -> Batch:
        """A batch as the store is to get it. The caller holds the lock.

        Raises:
            StaleThreadError: it is built on what was lost or removed.
        """
        if batch.generation is None:
            return batch
        known = self._names.meant(batch.thread, batch.generation)
        if known is None:
            raise StaleThreadError(thread=batch.thread)
        return batch._replace(generation=known)

    # -- saves -----------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        """Note a batch, as soon as there is room for it.

        Raises:
            ThreadkeepError: an earlier save of the thread is lost, or the store fails; this
                one was not noted.
        """
        while not self.added(batch):
            with self._storing:  # waits for whoever stores or removes something now
                if self._is_full:
                    self._make_room(batch.thread)

    def _make_room(self, thread: str) -> None:
        self._store(None)
        with self._lock:
            self._tell([thread])
            if self._is_full:  # then the store has failed, for others
                failures = [e for e in self._untold.values() if isinstance(e, BackendError)]
                raise _anew(failures[0])

    def added(self, batch: Batch) -> bool:
        """Note a batch if nothing has to be waited for. Raises as `add`."""
        with self._lock:
            if self._closed:
                raise ClosedError(hint="Open a new saver.")
            self._tell([batch.thread])
            if batch.thread in self._held or self._is_full:
                return False
            known, size = self._batch_meant(batch), _size(batch)
            lane = self._lanes.setdefault(batch.thread, _Lane())
            lane.batches.append(known)
            lane.size += size
            self._size += size
            self._start()
        return True

    @property
    def _is_full(self) -> bool:
        return self._size >= self._how.max_pending

    def _tell(self, threads: Iterable[str]) -> None:
        """Raise what became of earlier saves, once. The caller holds the lock."""
        for thread in threads:
            error = self._untold.pop(thread, None)
            if error is not None:
                raise _anew(error)

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

    def _flush(self, threads: Threads) -> None:
        self._store(threads)
        with self._lock:
            self._tell(list(self._untold) if threads is None else threads)

    def _store(self, threads: Threads) -> None:
        """Store what waits; note what fails. The caller holds `_storing`."""
        with self._lock:
            names = list(self._lanes) if threads is None else threads
            waiting = {t: list(self._lanes[t].batches) for t in names if t in self._lanes}
        todo = {thread: merged(batches) for thread, batches in waiting.items()}
        failed: dict[str, ThreadkeepError] = {}
        while todo:
            first = {thread: batches.pop(0) for thread, batches in todo.items()}
            failed |= self._carried_out(list(first.values()))
            todo = {t: batches for t, batches in todo.items() if batches and t not in failed}
        with self._lock:
            for thread, batches in waiting.items():
                self._settle(thread, batches, failed.get(thread))

    def _settle(self, thread: str, batches: Sequence[Batch], error: ThreadkeepError | None) -> None:
        """Let go of what is stored or lost. The caller holds the lock."""
        if error is None:
            self._let_go(thread, len(batches))
        elif _is_refusal(error):
            # What was saved meanwhile builds on what is lost.
            lost = self._let_go(thread, None)
            self._names.begin(thread)
            self._note(thread, _lost(thread, lost, error))
        else:
            _log.warning("Thread %r is not stored yet, and will be tried again: %s", thread, error)
            self._note(thread, error)

    def _let_go(self, thread: str, count: int | None) -> int:
        """Let go of the first batches of a thread, or of all; how many these are."""
        lane = self._lanes.get(thread)
        if lane is None:
            return 0
        gone, lane.batches = lane.batches[:count], lane.batches[len(lane.batches[:count]) :]
        size = sum(map(_size, gone))
        lane.size -= size
        self._size -= size
        if not lane.batches:
            del self._lanes[thread]
        return len(gone)

    def _note(self, thread: str, error: ThreadkeepError) -> None:
        self._untold[thread] = error
        while len(self._untold) > _LIVES:
            del self._untold[next(iter(self._untold))]  # (it was logged)

    def _carried_out(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        """Commit a batch of each thread; the errors of those that are not stored."""
        failed: dict[str, ThreadkeepError] = {}
        for at in range(0, len(batches), self._how.max_batch):
            failed |= self._group(batches[at : at + self._how.max_batch])
        return failed

    def _group(self, batches: list[Batch]) -> dict[str, ThreadkeepError]:
        if not isinstance(self._backend, GroupingBackend) or len(batches) == 1:
            found = [(batch.thread, self._alone(batch)) for batch in batches]
            return {thread: error for thread, error in found if error is not None}
        try:
            refusals = self._backend.commit_many(batches)
        except _FOR_ALL as error:
            return {batch.thread: error for batch in batches}
        except ThreadkeepError:
            refusals = [self._alone(batch) for batch in batches]
        failed: dict[str, ThreadkeepError] = {}
        for batch, refusal in zip(batches, refusals, strict=True):
            again = self._alone(batch) if isinstance(refusal, SegmentTakenError) else refusal
            if again is not None:
                failed[batch.thread] = again
        return failed

    def _alone(self, batch: Batch) -> ThreadkeepError | None:
        """Commit one batch; what it fails with."""
        try:
            try:
                self._backend.commit(batch)
            except SegmentTakenError:
                # In our own logs: what is there is the same, cut in another way.
                (stored,) = self._backend.fetch([ReadSegments(batch.thread, spans(batch))])
                self._backend.commit(beside(batch, stored))
        except ThreadkeepError as error:
            return error
        return None

    # -- changes that do not wait ------------------------------------------------------

    def carry_out(self, change: Change) -> None:
        """Carry out a change that is durable on return, behind what was saved before it."""
        threads = _threads_of(change)
        with self._storing:
            with self._lock:
                self._held |= threads
            try:
                if isinstance(change, DropThread):
                    self._forget(change.thread)
                self._flush(threads)
                self._change(change)
            finally:
                with self._lock:
                    self._held -= threads

    def _forget(self, thread: str) -> None:
        """What waits in a thread that is about to be deleted need not be stored."""
        with self._lock:
            self._let_go(thread, None)
            self._untold.pop(thread, None)

    def _change(self, change: Change) -> None:
        if isinstance(change, Batch):
            with self._lock:
                change = self._batch_meant(change)
        try:
            self._backend.commit(change)
        finally:  # (also where nobody knows whether it was done)
            with self._lock:
                for thread in _threads_of(change):
                    self._names.begin(thread)

    # -- from time to time -----------------------------------------------------------

    def _start(self) -> None:
        """Let somebody store it soon. The caller holds the lock."""
        _waiting.add(self)
        if self._flusher is None:
            target = partial(_flush_now_and_then, weakref.ref(self), self._end, self._how)
            self._flusher = threading.Thread(target=target, name="threadkeep-flush", daemon=True)
            self._flusher.start()

    def flush_quietly(self) -> None:
        """Store what waits; what fails is told at the next call."""
        try:
            with self._storing:
                self._store(None)
                with self._lock:
                    if not self._lanes:
                        _waiting.discard(self)
        except Exception:  # noqa: BLE001 - nobody waits for this, and what waits is still there
            _log.exception("What was saved could not be stored, and will be tried again.")

    def close(self) -> None:
        """Store what waits and begin nothing any more. Idempotent. Raises as `flush`."""
        self._closed = True
        self._end.set()
        try:
            self.flush()
        finally:
            _waiting.discard(self)


_waiting: set[Unstored] = set()
"""Those that hold something: not lost with a saver that a program lets go of."""


def _flush_now_and_then(
    mine: weakref.ref[Unstored], end: threading.Event, how: GroupCommit
) -> None:
    while not end.wait(how.flush_every):
        unstored = mine()
        if unstored is None:
            return
        unstored.flush_quietly()
        del unstored


@atexit.register
def _at_exit() -> None:
    for unstored in tuple(_waiting):
        unstored.flush_quietly()


def _is_refusal(error: ThreadkeepError) -> bool:
    """Whether doing the same again can never succeed."""
    refusals = (StaleThreadError, SegmentTakenError)
    return isinstance(error, refusals) or not isinstance(error, BackendError)


def _anew(error: ThreadkeepError) -> ThreadkeepError:
    """The same error, to be raised here: each collects a traceback of its own."""
    own = type(error)(error.message, hint=error.hint, thread=error.thread)
    own.__cause__ = error.__cause__
    return own


def _lost(thread: str, saves: int, cause: ThreadkeepError) -> LostSavesError:
    error = LostSavesError(
        f"{saves} saves that were answered before they were stored are lost: {cause.message}",
        hint="Run the thread again: it goes on from its last stored checkpoint.",
        thread=thread,
    )
    error.__cause__ = cause
    _log.error("%s", error)
    return error


def _size(batch: Batch) -> int:
    """About how many bytes the batch takes."""
    size = sum([len(s.data) for s in batch.segments]) + sum([len(w.body) for w in batch.writes])
    return size + sum([len(r.manifest) + len(r.metadata) for r in batch.checkpoints]) + _OVERHEAD


def _threads_of(change: Change) -> set[str]:
    if isinstance(change, CopyThread):
        return {change.source, change.target}
    return {change.thread}


def _threads_read(reads: Sequence[Read]) -> Threads:
    threads = {getattr(read, "thread", None) for read in reads}
    return None if None in threads else {str(thread) for thread in threads}


# -- in front of a store ---------------------------------------------------------------


class Relaxed:
    """A blocking backend whose saves return before they are durable."""

    def __init__(self, backend: Backend, how: GroupCommit) -> None:
        self._backend = backend
        self.unstored = Unstored(backend, how)
        native = backend.asynchronous if isinstance(backend, DualBackend) else None
        self.asynchronous = None if native is None else AsyncRelaxed(native, self)

    def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `Backend.fetch`."""
        unstored, threads = self.unstored, _threads_read(reads)
        if not unstored.clean(threads):
            unstored.flush(threads)
        replies = self._backend.fetch([unstored.meant(read) for read in reads])
        return [unstored.named(*each) for each in zip(reads, replies, strict=True)]

    def commit(self, change: Change) -> None:
        """Note the change to be stored soon; one that removes anything is carried out."""
        if isinstance(change, Batch) and only_adds(change):
            self.unstored.add(change)
        else:
            self.unstored.carry_out(change)

    def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `GroupingBackend.commit_many`: they go together when they are stored."""
        for change in changes:
            self.commit(change)
        return [None] * len(changes)

    def close(self) -> None:
        """See `Backend.close`: what waits is stored first."""
        try:
            self.unstored.close()
        finally:
            self._backend.close()

    def migrate(self) -> None:
        """See `MigratingBackend.migrate`."""
        if isinstance(self._backend, MigratingBackend):
            self._backend.migrate()


class AsyncRelaxed:
    """The same for awaiting calls: where something has to be stored, a thread waits for it."""

    def __init__(self, backend: AsyncBackend, blocking: Relaxed) -> None:
        self._backend = backend
        self._blocking = blocking
        self._unstored = blocking.unstored

    async def fetch(self, reads: Sequence[Read]) -> list[Any]:
        """See `AsyncBackend.fetch`."""
        unstored, threads = self._unstored, _threads_read(reads)
        if not unstored.clean(threads):
            await drive.in_thread(partial(unstored.flush, threads))
        replies = await self._backend.fetch([unstored.meant(read) for read in reads])
        return [unstored.named(*each) for each in zip(reads, replies, strict=True)]

    async def commit(self, change: Change) -> None:
        """See `Relaxed.commit`."""
        adds = isinstance(change, Batch) and only_adds(change)
        if not (adds and self._unstored.added(change)):  # type: ignore[arg-type] # as `adds` says
            await drive.in_thread(partial(self._blocking.commit, change))

    async def commit_many(self, changes: Sequence[Change]) -> list[ThreadkeepError | None]:
        """See `Relaxed.commit_many`."""
        for change in changes:
            await self.commit(change)
        return [None] * len(changes)

    async def close(self) -> None:
        """See `Relaxed.close`."""
        try:
            await drive.in_thread(self._unstored.close)
        finally:
            await self._backend.close()

    async def migrate(self) -> None:
        """See `MigratingAsyncBackend.migrate`."""
        if isinstance(self._backend, MigratingAsyncBackend):
            await self._backend.migrate()


def relaxed(backend: Backend | AsyncBackend, how: GroupCommit) -> Relaxed:
    """The backend with saves that return before they are durable.

    Raises:
        InvalidArgumentError: it can only be awaited.
    """
    if drive.is_async(backend):
        raise InvalidArgumentError(
            'ack="relaxed" needs connections of its own, to store what waits at any time.',
            hint="Give a URL instead of an async pool, connection or client.",
        )
    return Relaxed(backend, how)
