"""Working set: the values of its threads that this process saw last. An optimization only.

Invariant: values remembered as stored are stored, as long as the thread's row proves it (see
`tips`). No lock is held while an operation waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from threadkeep._core.engine.logs import Lock, OpenLogs, TailSegment
from threadkeep._core.engine.model import NESTED, Batch, HeadFence, ThreadState
from threadkeep._core.engine.snapshots import (
    CheckpointSnapshot,
    StoredObject,
    StoredValue,
)
from threadkeep._core.engine.thread_summary import NOTHING_REPORTED, Reported
from threadkeep._core.engine.tips import Proof


@dataclass(slots=True)
class Counts:
    """Counters of an engine. Approximate, as several threads may count at the same time."""

    written: int = 0  # bytes stored by saves
    saved: int = 0  # estimated bytes saved compared with storing each full state
    loads: int = 0  # of runs
    hits: int = 0  # loads that were lent values of the working set
    conflicts: int = 0  # saves refused because another run was faster
    retries: int = 0  # saves built again because other writers were faster


_STATES = 6  # checkpoints remembered per thread: the last ones of a run and of a fork
_STATE_BYTES = 4 * 1024 * 1024  # limit of what each holds beyond the one before
_STATES_LEAST = 2
_FORKED = 64  # forking runs remembered per thread
_BASE_WEIGHT = 4096  # bytes of a thread without its values
_STATE_WEIGHT = 2500  # bytes of a remembered checkpoint, without its values
_ENTRY_WEIGHT = 600  # the same of an object remembered by identity
_SIZE_AGAIN = 8  # the values are estimated again after a change by one part in so many
_FRESH_FACTOR = 2  # memory of a replaced value, per encoded byte


class ThreadMemory:
    """The working set of one thread."""

    def __init__(
        self, locks: Callable[[], Lock], token: Callable[[int], int], *, exclusive: bool = False
    ) -> None:
        self._lock = locks()
        # Held while a call's values are encoded, so that two simultaneous calls store the same
        # message once.
        self.encoding = locks()
        self.proof: Proof | None = None  # None: the store has not been asked yet
        self.logs = OpenLogs(self._lock, token, exclusive=exclusive)
        self.recent = RecentValues(self._lock, self.logs)
        self._states: OrderedDict[tuple[str, str], CheckpointSnapshot] = OrderedDict()
        self._states_bytes = 0  # of what each holds beyond the one before
        self.newest_bytes = 0  # the values of the one that was remembered last
        self._newest_size = 0  # the same in memory, estimated
        self._sized_at = 0  # the value of `newest_bytes` at that time
        self._head: str | None = None  # the greatest checkpoint id that a `HeadFence` counts
        # The last checkpoints of forking runs, oldest first. They outlive the states and the
        # generation, as each run is reported once.
        self._forked: dict[str, None] = {}
        self.reported = NOTHING_REPORTED
        self.weighed = _BASE_WEIGHT  # as the working set last weighed it
        self.used = 0  # the number of uses of all threads at its last one

    def meet(
        self,
        state: ThreadState,
        proof: Proof | None,
        before: Collection[int] = (),
        *,
        is_new: bool = False,
    ) -> Proof | None:
        """Forget everything if the thread's row no longer proves it.

        Segments were removed, the store has lost its last commits, or others have committed often.
        `proof` and its tips `before` are those from before the read, `is_new`: nothing is stored
        yet.

        Returns the proof from now on; None, without effect, if the reply is older than a commit of
        this process: read again.
        """
        with self._lock:
            now, named = self.proof, state.tips
            if now is not None:
                tips = now.tips
                if now.holds(state.generation, named):
                    if named and named[0] not in tips:  # (others have committed)
                        self.logs.follow(state.logs)
                        self.recent.forget_reserved()
                        old = tuple(tips)
                        tips.add(named[0])
                        tips.difference_update(old)
                    return now
                if now is not proof or tips != before:
                    return None
            self.logs.clear()
            self.recent.clear()
            self._states.clear()
            self._states_bytes = self.newest_bytes = self._newest_size = self._sized_at = 0
            self._head = None
            self.reported = NOTHING_REPORTED
            self.proof = Proof.of(state)
            self.logs.follow(state.logs)
            if is_new:
                self.logs.count_up()
            return self.proof

    def taken(self, batch: Batch) -> None:
        """Note that others took the positions of a batch's segments, or joined those that it drops.

        The next attempt joins none. Values that were not committed are forgotten.
        """
        with self._lock:
            if batch.drop_segments:
                self.logs.forget_tails()
            else:
                self.logs.abandon()
                self.recent.clear()

    def remember(
        self,
        placed: list[StoredObject],
        known: list[tuple[str, StoredValue]],
        proof: Proof,
    ) -> None:
        """Remember where values were put, if `proof` is still the memory's."""
        if not (placed or known):
            return
        with self._lock:
            if proof is self.proof:
                self.recent.remember(placed, known)

    def note_tails(
        self, tails: Sequence[tuple[int, int, TailSegment]], proof: Proof | None
    ) -> None:
        """Remember small segments that were stored under `proof`, to be sealed later.

        After a removal other elements may have their positions.
        """
        if tails:
            with self._lock:
                if proof is self.proof:
                    self.logs.note_tails(tails)

    def state(self, ns: str, checkpoint_id: str) -> CheckpointSnapshot | None:
        """Return the snapshot of a checkpoint, if it is remembered."""
        return self._states.get((ns, checkpoint_id))

    def newest(self, ns: str) -> CheckpointSnapshot | None:
        """Return the snapshot that was remembered last in the namespace."""
        with self._lock:
            for state in reversed(self._states.values()):
                if state.ns == ns:
                    return state
            return None

    def publish(
        self,
        state: CheckpointSnapshot,
        proof: Proof | None,
        fence: HeadFence | None = None,
        reported: Reported | None = None,
        *,
        begins: bool = False,
    ) -> str | None:
        """Remember a checkpoint that was committed (or read) under `proof`.

        Returns the head that the run forked from, or None if there is none or it was returned
        before.
        """
        with self._lock:
            if proof is not self.proof:
                return None
            if reported is not None:
                self.reported = reported
            left = None if fence is None else self._left(state, fence, begins=begins)
            is_counted = not state.ns and not state.flags & NESTED
            if is_counted and (self._head is None or self._head < state.id):
                self._head = state.id
            key = (state.ns, state.id)
            before = self._states.pop(key, None)
            self._states[key] = state
            self._states_bytes += state.fresh - (before.fresh if before is not None else 0)
            self.newest_bytes = weight = state.weight
            if _SIZE_AGAIN * abs(weight - self._sized_at) > self._sized_at:
                self._newest_size, self._sized_at = state.size, weight
            states = self._states
            while len(states) > _STATES or (
                self._states_bytes > _STATE_BYTES and len(states) > _STATES_LEAST
            ):
                _, evicted = states.popitem(last=False)
                self._states_bytes -= evicted.fresh
            return left

    def _left(self, state: CheckpointSnapshot, fence: HeadFence, *, begins: bool) -> str | None:
        head, expected = self._head, fence.expected
        is_known = state.id in self._forked or (not begins and expected in self._forked)
        is_newer = head is not None and (expected is None or head > expected)
        if not is_known and (not is_newer or head == state.id):
            return None
        if expected is not None and not begins:
            self._forked.pop(expected, None)
        self._forked[state.id] = None
        if len(self._forked) > _FORKED:
            del self._forked[next(iter(self._forked))]
        return None if is_known else head

    @property
    def weight(self) -> int:
        """Estimated bytes in memory."""
        records = len(self._states) * _STATE_WEIGHT + len(self.recent) * _ENTRY_WEIGHT
        replaced = self._states_bytes * _FRESH_FACTOR
        others = max(0, self.recent.weight - self._states_bytes)  # most are in the states too
        return _BASE_WEIGHT + records + self._newest_size + replaced + others + self.logs.tails


_IDLE_PART = 8  # idle threads take at most this part of the limit
_IDLE = 4  # a thread is idle if it was not used while all were used so often, on average
_FEW = 32  # threads; fewer count as so many, as their turns may alternate


class WorkingSet:
    """LRU cache of threads of about `limit` bytes, an eighth of it for idle ones.

    `exclusive`: with logs of its own.
    """

    def __init__(
        self,
        limit: int,
        locks: Callable[[], Lock],
        token: Callable[[int], int],
        *,
        exclusive: bool = False,
    ) -> None:
        self._limit = limit
        self._exclusive = exclusive
        self._locks = locks
        self._token = token
        self.key = object()  # names the working set without keeping it
        self._start()

    def _start(self) -> None:
        self._lock = self._locks()
        self._threads: OrderedDict[str, ThreadMemory] = OrderedDict()
        self._total = self._uses = 0
        self.counts = Counts()

    def apart(self) -> WorkingSet:
        """Return an empty one of the same size, which appends to exclusive logs."""
        other = WorkingSet(self._limit, self._locks, self._token, exclusive=True)
        other.counts = self.counts
        return other

    def before_fork(self) -> None:
        """No-op: locks held by other threads are replaced in the child."""

    def after_fork(self, *, in_child: bool) -> None:
        """Forget everything in the child, as the parent's next log positions are not its own."""
        if in_child:
            self._start()

    def thread(self, thread: str) -> ThreadMemory:
        with self._lock:
            memory = self._threads.get(thread)
            if memory is None:
                memory = ThreadMemory(self._locks, self._token, exclusive=self._exclusive)
                self._threads[thread] = memory
                self._total += memory.weighed
                self._make_room()
            memory.used = self._uses
            self._threads.move_to_end(thread)
            return memory

    def forget(self, thread: str | None, prefix: str = "") -> None:
        """Forget the thread, or (None) all threads that begin with `prefix`."""
        with self._lock:
            if thread is not None:
                self._drop(thread)
                return
            for name in [one for one in self._threads if one.startswith(prefix)]:
                self._drop(name)

    def settle(self, thread: str, memory: ThreadMemory) -> None:
        """Weigh the thread again and make room for it."""
        weight = memory.weight
        with self._lock:
            self._uses += 1
            if self._threads.get(thread) is memory:
                self._total += weight - memory.weighed
                memory.weighed = weight
            self._make_room()

    def _make_room(self) -> None:
        while self._total * _IDLE_PART > self._limit and len(self._threads) > 1:
            name, oldest = next(iter(self._threads.items()))
            unused = self._uses - oldest.used
            if self._total <= self._limit and unused < _IDLE * max(len(self._threads), _FEW):
                return
            self._drop(name)

    def _drop(self, thread: str) -> None:
        memory = self._threads.pop(thread, None)
        if memory is not None:
            self._total -= memory.weighed

    def __len__(self) -> int:
        return len(self._threads)


class PrefixedSet(WorkingSet):
    """The part of a working set whose threads begin with a prefix, by their names without it.

    Its counts are also part of the whole's.
    """

    def __init__(self, whole: WorkingSet, prefix: str) -> None:
        self._whole = whole
        self._prefix = prefix
        self.key = object()
        self.counts = _PartCounts(whole)

    def apart(self) -> WorkingSet:
        other = self._whole.apart()
        other.counts = self.counts
        return other

    def thread(self, thread: str) -> ThreadMemory:
        return self._whole.thread(self._prefix + thread)

    def forget(self, thread: str | None, prefix: str = "") -> None:
        self._whole.forget(thread and self._prefix + thread, self._prefix + prefix)

    def settle(self, thread: str, memory: ThreadMemory) -> None:
        self._whole.settle(self._prefix + thread, memory)

    def __len__(self) -> int:
        raise NotImplementedError


class _PartCounts(Counts):
    """Counts that are added to those of a whole working set too."""

    __slots__ = ("_whole",)
    _whole: WorkingSet

    def __init__(self, whole: WorkingSet) -> None:
        object.__setattr__(self, "_whole", whole)
        for name in Counts.__slots__:
            object.__setattr__(self, name, 0)

    def __setattr__(self, name: str, value: int) -> None:
        counts = self._whole.counts
        setattr(counts, name, getattr(counts, name) + value - getattr(self, name))
        object.__setattr__(self, name, value)


_PLACED = 512  # objects remembered by identity
_KNOWN = 64  # whole values remembered by identity
_BYTES = 1024 * 1024  # limit of either, except the newest two
_LEAST = 2
_RESERVED = 64  # positions reserved for objects that are not final yet


class RecentValues:
    """The latest stored values of one thread, found again by identity."""

    def __init__(self, lock: Lock, logs: OpenLogs) -> None:
        self._lock = lock
        self._logs = logs
        self._placed: OrderedDict[int, StoredObject] = OrderedDict()
        self._known: OrderedDict[tuple[str, int], StoredValue] = OrderedDict()
        self._parts: OrderedDict[tuple[str, int], tuple[StoredValue, int]] = OrderedDict()
        # Of a long list or dict, only the last version is known: each takes as much memory.
        self._long: dict[str, StoredValue] = {}
        self._reserved: OrderedDict[int, tuple[Any, int, int]] = OrderedDict()
        self._placed_bytes = self._known_bytes = 0

    @property
    def weight(self) -> int:
        """Estimated bytes of the values: most known ones consist of placed ones."""
        return max(self._placed_bytes, self._known_bytes)

    def __len__(self) -> int:
        return len(self._placed) + len(self._known) + len(self._parts)

    def clear(self) -> None:
        """Forget all of them. The caller holds the lock."""
        for values in (self._placed, self._known, self._parts, self._reserved, self._long):
            values.clear()
        self._placed_bytes = self._known_bytes = 0

    def placed(self, value: Any) -> StoredObject | None:
        """Return the place of this very object, if it has not changed since."""
        found = self._placed.get(id(value))
        return found if found and found.value is value and found.shadow.holds() else None

    def all_placed(self, values: list[Any]) -> list[StoredObject] | None:
        """Return the places of these very objects, changed or not; None if one is unknown."""
        found = []
        for value in values:
            one = self._placed.get(id(value))
            if one is None or one.value is not value:
                return None
            found.append(one)
        return found

    def has_any(self, values: list[Any]) -> bool:
        """Return True if one of these objects was stored, or has a position reserved."""
        placed, reserved = self._placed, self._reserved
        for value in values:
            name = id(value)
            if name in placed or name in reserved:
                return True
        return False

    def is_known(self, channel: str, value: Any) -> bool:
        """Return True if this very value of the channel was stored, changed or not."""
        found = self._known.get((channel, id(value)))
        return found is not None and found.value is value

    def known(self, channel: str, value: Any) -> StoredValue | None:
        """Return the record of this very value of the channel, if it has not changed since."""
        found = self._known.get((channel, id(value)))
        return found if found and found.value is value and found.holds(value) else None

    def known_part(self, channel: str, item: Any) -> tuple[StoredValue, int] | None:
        """Return a stored value of the channel that holds `item`, and its index in it."""
        return self._parts.get((channel, id(item)))

    def forget_reserved(self) -> None:
        """Forget reserved positions: others may have taken them. The caller holds the lock."""
        self._reserved.clear()

    def remember(self, placed: list[StoredObject], known: list[tuple[str, StoredValue]]) -> None:
        """Remember the last few values. The caller holds the lock."""
        for item in placed:
            name = id(item.value)
            before = self._placed.pop(name, None)
            self._placed[name] = item
            self._placed_bytes += item.size - (before.size if before is not None else 0)
        for channel, value in known:
            self._forget_known(channel, value.value)
            if value.is_long:
                if channel in self._long:
                    self._forget_known(channel, self._long[channel].value)
                self._long[channel] = value
            self._known[channel, id(value.value)] = value
            self._known_bytes += value.size
            for offset, item in value.parts():
                self._parts[channel, id(item)] = (value, offset)
        while len(self._placed) > _PLACED or (
            self._placed_bytes > _BYTES and len(self._placed) > _LEAST
        ):
            self._placed_bytes -= self._placed.popitem(last=False)[1].size
        while len(self._known) > _KNOWN or (
            self._known_bytes > _BYTES and len(self._known) > _LEAST
        ):
            (channel, _), oldest = next(iter(self._known.items()))
            self._forget_known(channel, oldest.value)

    def _forget_known(self, channel: str, value: Any) -> None:
        found = self._known.pop((channel, id(value)), None)
        if found is None:
            return
        self._known_bytes -= found.size
        if self._long.get(channel) is found:
            del self._long[channel]
        for _, item in found.parts():
            if self._parts.get((channel, id(item)), (None,))[0] is found:
                del self._parts[channel, id(item)]

    def reserve(self, ns: str, channel: str, value: Any) -> None:
        """Reserve the next position of the channel's log for an object that is not final."""
        place = self._logs.reserve(ns, channel, 1)
        with self._lock:
            self._reserved[id(value)] = (value, *place)
            while len(self._reserved) > _RESERVED:
                self._reserved.popitem(last=False)

    def take_reserved(self, value: Any) -> tuple[int, int] | None:
        """Release the log and position reserved for the object, if any."""
        with self._lock:
            reserved = self._reserved.pop(id(value), None)
        return reserved[1:] if reserved is not None and reserved[0] is value else None
