"""Queue of saves that were acknowledged but not stored yet, with a lane for each thread.

Invariants:

- Saves of a thread are stored in order. If one is lost, all later ones of the thread are lost too.
- After `flush`, all earlier saves are stored, or a failure was raised.
- The queue is bounded. Saves that the store fails to commit stay queued and are retried.
- A failure in the background is raised once, by the next call for its thread.
- The engine never builds on lost or rebased saves. After a loss, a rebase or a removal, the
  thread's generation gets another name. Batches built under the old name are refused while their
  values are still in memory. Nothing else is refused: the logs belong to this process (see
  `_core.engine.logs`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeAlias, TypeVar

from threadkeep._core.engine.context import BatchSource
from threadkeep._core.engine.model import (
    Batch,
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Read,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
    ThreadRows,
)
from threadkeep._core.engine.operation import Fetch, Operation, commit_many
from threadkeep._core.engine.thread_summary import row_size
from threadkeep._core.policies import WriteBehind
from threadkeep._core.texts import plural
from threadkeep._run import driver
from threadkeep._run.driver import End, Runner
from threadkeep._run.together import OF_THE_STORE, commit_together
from threadkeep._run.write_behind.rebase import joined, rebase
from threadkeep._stores.process_forks import PerLoop, ResetInChild
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import (
    ClosedError,
    DestroyedKeyError,
    LostSavesError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadkeepError,
)

T = TypeVar("T")

ThreadIds: TypeAlias = Collection[str] | None
"""Ids of threads; None means all threads."""

Key: TypeAlias = tuple[str, str, str | None]  # thread, namespace, checkpoint

_MAX_FAILURES = 10_000  # threads with failures to raise
_MAX_NAMES = 10  # threads listed in an error
_MAX_GONE = 100_000  # limit of remembered lost checkpoints
_OVERHEAD = 500  # approximate bytes per save in addition to its payload
_RENAMED = 2**70  # step between the names of a generation; larger than any generation
_RENAMED_COUNT = 4096
_NO_GENERATION = -1
_OVERTAKEN = (StaleThreadError, SegmentTakenError)  # failures of a batch that can be rebased
_REFUSALS = (StaleThreadError, ThreadDeletedError, DestroyedKeyError)  # a retry cannot fix them
_log = logging.getLogger("threadkeep")


class BatchQueue(ResetInChild):
    """Batches to store and failures to raise. Empty in the child of a process fork."""

    def __init__(self, how: WriteBehind, beneath: Runner, max_batch: int) -> None:
        self._how = how
        self._beneath = beneath
        self._max_batch = max_batch
        self._closed = False
        self._gone: dict[Key, None] = {}  # checkpoints lost with a deleted thread
        self._numbers = count(1)
        # Parts of generation names. Threads of one hash share a part.
        self._renamed = [0] * _RENAMED_COUNT
        super().__init__()

    def _reset(self) -> None:
        self._lanes: dict[str, list[Batch]] = {}
        self._size = 0
        self._failures: dict[str, ThreadkeepError] = {}
        self._paused: set[str] = set()  # threads with a running removal
        self._lock = threading.Lock()  # protects all state; held only briefly
        self._storing = threading.RLock()  # one thread at a time, to keep the order
        self._flusher: threading.Thread | None = None
        self._turns = PerLoop(asyncio.Lock)
        self._end = End()

    # -- generations -----------------------------------------------------------------

    def _rename(self, thread: str) -> None:
        """Rename the thread's generation, which makes all batches built so far stale."""
        self._renamed[hash(thread) % _RENAMED_COUNT] = next(self._numbers)

    def _offset(self, thread: str) -> int:
        """Return the difference between the name of a generation and the generation."""
        return self._renamed[hash(thread) % _RENAMED_COUNT] * _RENAMED

    def _generation(self, thread: str, name: int) -> int:
        """Return the generation of a name, or `_NO_GENERATION` if the name is stale."""
        generation = name - self._offset(thread)
        return generation if abs(generation) < _RENAMED // 2 else _NO_GENERATION

    def fetch(self, request: Fetch) -> Operation[list[Any]]:
        """Fetch, and replace generations by their names for the engine.

        The names are chosen before the store answers, so a concurrent removal makes the reply
        stale.
        """
        offsets = [
            self._offset(read.thread) if isinstance(read, ReadCheckpoint | ReadThread) else 0
            for read in request.reads
        ]
        replies = yield request._replace(reads=[self._translated(read) for read in request.reads])
        return [
            reply._replace(generation=reply.generation + offset) if offset else reply
            for reply, offset in zip(replies, offsets, strict=True)
        ]

    def _translated(self, read: Read) -> Read:
        if isinstance(read, ReadSegments) and read.generation is not None:
            return read._replace(generation=self._generation(read.thread, read.generation))
        return read

    def _admit(self, batch: Batch) -> Batch:
        """Return a batch with the store's generation.

        Raises:
            StaleThreadError: the batch is built on lost or removed data.
            ThreadDeletedError: the batch belongs to a run that began before its thread was
                deleted. The store cannot detect this if the parent was never stored.
        """
        above = [(batch.thread, row.ns, row.parent) for row in batch.checkpoints]
        above += [(batch.thread, row.ns, row.checkpoint_id) for row in batch.writes]
        own = [(batch.thread, row.ns, row.id) for row in batch.checkpoints]
        if any(key in self._gone for key in above):
            self._remember_gone(own)
            raise ThreadDeletedError(thread=batch.thread)
        for key in own:
            self._gone.pop(key, None)
        if batch.generation is None:
            return batch
        generation = self._generation(batch.thread, batch.generation)
        if generation == _NO_GENERATION:
            raise StaleThreadError(thread=batch.thread)
        return batch._replace(generation=generation)

    def _remember_gone(self, keys: Iterable[Key]) -> None:
        self._gone.update(dict.fromkeys(keys))
        while len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]

    # -- saves -----------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        """Queue a batch as soon as the queue has room.

        Raises:
            ThreadkeepError: an earlier save of the thread was lost, or the store fails; the
                batch was not queued.
        """
        while not self.try_add(batch):
            self._wait(batch.thread)

    def try_add(self, batch: Batch) -> bool:
        """Queue a batch if that needs no waiting; return True if queued. Raises as `add`."""
        thread = batch.thread
        with self._lock:
            if self._closed:
                raise ClosedError(hint="Open a new one.")
            self._raise_failures([thread])
            if thread in self._paused or self._is_full:
                return False
            batch = self._admit(batch)
            self._size += _size(batch)
            if thread in self._lanes:
                self._lanes[thread].append(batch)
            else:  # (an interrupt never leaves an empty lane)
                self._lanes[thread] = [batch]
            self._start()
        return True

    def _wait(self, thread: str) -> None:
        """Wait for running stores and removals, and for room in the queue."""
        with self._storing:
            self._paused.discard(thread)  # may be left by an interrupted removal
            if not self._is_full:
                return
            self._store()
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

    def is_settled(self, threads: ThreadIds) -> bool:
        """Return True if all saves of the threads are stored and every failure was raised."""
        with self._lock:
            if threads is None:
                return not self._lanes and not self._failures
            return not any(t in self._lanes or t in self._failures for t in threads)

    def flush(self, threads: ThreadIds = None) -> None:
        """Store every save of the threads that was made before this call.

        Raises:
            LostSavesError: the store refused some of the saves.
            ThreadkeepError: the store failed; saves that were not stored stay queued.
        """
        with self._storing:
            # While this caller waited for the lock, another may have stored everything.
            if not self.is_settled(threads):
                self._store()
            with self._lock:
                self._raise_failures(list(self._failures) if threads is None else threads)

    def under(self, prefix: str) -> list[str]:
        """Return the threads that begin with `prefix` and have queued saves or failures."""
        with self._lock:
            return [one for one in {*self._lanes, *self._failures} if one.startswith(prefix)]

    async def in_turn(self, call: Callable[[], T]) -> T:
        """Run a slow call in a worker thread, one at a time for each event loop.

        If a store does not answer, its waiting callers take only one worker thread per event loop.
        """
        async with self._turns.here():
            return await driver.in_thread(call)

    def _store(self) -> None:
        """Store the queued batches and record failures. The caller holds `_storing`."""
        with self._lock:
            lanes = {thread: list(batches) for thread, batches in self._lanes.items()}
        if not lanes:
            return
        waiting: list[ThreadkeepError] = []
        errors = self._commit_each([joined(batches) for batches in lanes.values()])
        for (thread, batches), error in zip(lanes.items(), errors, strict=True):
            failure = self._rebase(thread, batches) if isinstance(error, _OVERTAKEN) else error
            with self._lock:
                self._settle(thread, len(batches), failure)
            if failure is not None and not isinstance(failure, _REFUSALS):
                waiting.append(failure)
        if waiting:
            log = "Saves of %s could not be stored and will be retried: %s"
            _log.warning(log, plural(len(waiting), "thread"), waiting[0])

    def _commit_each(self, batches: list[Batch]) -> list[ThreadkeepError | None]:
        """Commit a batch of each thread, a group at a time; return their errors."""
        errors: list[ThreadkeepError | None] = []
        while len(errors) < len(batches):
            if errors and isinstance(errors[-1], OF_THE_STORE):
                errors.append(errors[-1])  # the store is down: do not wait for each batch
            else:
                group = batches[len(errors) : len(errors) + self._max_batch]
                errors += finish(commit_together(group, self._commit_many))
        return errors

    async def _commit_many(self, changes: Sequence[Batch]) -> object:
        return self._beneath.run(commit_many(changes))

    def _rebase(self, thread: str, batches: Sequence[Batch]) -> ThreadkeepError | None:
        """Store batches that were built under an earlier generation."""
        self._rename(thread)
        try:
            self._beneath.run(rebase(joined(batches), batches))
        except ThreadkeepError as error:
            return error
        return None

    def _settle(self, thread: str, count: int, error: ThreadkeepError | None) -> None:
        """Remove batches that are stored or lost. The caller holds the lock."""
        if isinstance(error, _REFUSALS):
            # Later saves of the thread build on the lost ones.
            lost = self._lose(thread, deleted=isinstance(error, ThreadDeletedError))
            self._fail(thread, _lost(plural(len(lost), "save"), error, thread))
        elif error is not None:
            self._fail(thread, error)
        else:
            self._remove(thread, count)
            if not isinstance(self._failures.get(thread), LostSavesError):
                self._failures.pop(thread, None)  # a retry has stored the save

    def _lose(self, thread: str, *, deleted: bool) -> list[Batch]:
        """Remove and return all batches of a thread, which will not be stored."""
        lost = self._remove(thread)
        self._rename(thread)
        if deleted:
            self._remember_gone((thread, row.ns, row.id) for one in lost for row in one.checkpoints)
        return lost

    def _remove(self, thread: str, count: int | None = None) -> list[Batch]:
        """Remove and return the first batches of a thread, or all batches (None)."""
        lane = self._lanes.pop(thread, [])
        removed = lane[:count]
        if len(removed) < len(lane):
            self._lanes[thread] = lane[len(removed) :]
        self._size -= sum(map(_size, removed))
        if not self._lanes:
            self._size = 0  # corrects errors left by an interrupted call
            _nonempty.discard(self)
        return removed

    def _fail(self, thread: str, error: ThreadkeepError) -> None:
        self._failures[thread] = error
        while len(self._failures) > _MAX_FAILURES:
            del self._failures[next(iter(self._failures))]  # already logged

    # -- changes that are not queued ---------------------------------------------------

    def carry_out(self, change: Change, *, named: bool) -> None:
        """Commit a change after all queued saves of its threads; durable on return.

        Meanwhile no saves of these threads are queued.

        Args:
            change: the change.
            named: it has the engine's name of the generation, not the store's generation.
        """
        threads = self._beneath.run(_concerned(change))
        with self._storing:
            try:
                with self._lock:
                    self._paused |= threads
                    if isinstance(change, DropThread) and not _is_conditional(change):
                        self._lose(change.thread, deleted=True)
                        self._failures.pop(change.thread, None)
                self.flush(threads)
                if named:
                    change = self._unnamed(change)
                try:
                    self._beneath.commit(change)
                finally:  # also if the result of the commit is unknown
                    for thread in threads:
                        self._rename(thread)
            finally:
                with self._lock:
                    self._paused -= threads

    def _unnamed(self, change: Change) -> Change:
        """Return the change with the store's generation. Raises like `_admit`."""
        if isinstance(change, Batch):
            return self._admit(change)
        if isinstance(change, ForkThread):
            return change._replace(generation=self._generation(change.source, change.generation))
        if isinstance(change, DropThread) and change.generation is not None:
            return change._replace(generation=self._generation(change.thread, change.generation))
        return change

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

    def flush_quietly(self) -> None:
        """Store the queue. Failures are logged, and raised by the next call."""
        try:
            with self._storing:
                self._store()
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

    def _give_up(self, error: ThreadkeepError) -> ThreadkeepError:
        """Empty the queue; return the error to raise for this failure."""
        with self._lock:
            failures = [error, *self._failures.values()]
            lost = {e.thread for e in failures if isinstance(e, LostSavesError)} | {*self._lanes}
            self._failures.clear()
            for thread in list(self._lanes):
                self._remove(thread)
        if not lost:
            return error.fresh()
        names = ", ".join(sorted(map(repr, lost))[:_MAX_NAMES])
        return _lost(f"saves of {plural(len(lost), 'thread')} ({names})", error, None)


_nonempty: set[BatchQueue] = set()
"""Nonempty queues, kept alive so that a discarded saver loses no saves."""


def _flush_regularly(ref: weakref.ref[BatchQueue], end: End, how: WriteBehind) -> None:
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


def _lost(what: str, cause: ThreadkeepError, thread: str | None) -> LostSavesError:
    error = LostSavesError(
        f"Lost {what} that had been acknowledged: {cause.message}",
        hint="Run the thread again: it continues from its last stored checkpoint.",
        thread=thread,
    )
    error.__cause__ = cause
    _log.error("%s", error)
    return error


def _is_conditional(change: DropThread) -> bool:
    """Return True if a deletion may expect queued saves, so that they must be stored first."""
    return change.generation is not None or bool(change.fences)


def _concerned(change: Change) -> Operation[set[str]]:
    """Return the threads of a change and all threads that share segments with them."""
    own = {change.thread}
    if isinstance(change, CopyThread | ForkThread):
        own.add(change.source)
    found: list[ThreadRows] = yield Fetch([ReadThread(name, stub=True) for name in sorted(own)])
    return own.union(*[rows.family for rows in found])


def _size(batch: Batch) -> int:
    """Return the approximate bytes of a queued batch; the same for each call."""
    size = sum([len(segment.data) for segment in batch.segments])
    size += sum(map(row_size, batch.checkpoints)) + sum(map(row_size, batch.writes))
    size += batch.made.size if isinstance(batch.made, BatchSource) else 0
    return size + _OVERHEAD
