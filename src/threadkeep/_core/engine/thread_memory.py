"""The values of one thread that this process saw last. An optimization only.

Invariant: values remembered as stored are stored, as long as the thread's row proves it (see
`tips`). No lock is held while an operation waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

from threadkeep._core.engine.logs import Lock, OpenLogs
from threadkeep._core.engine.model import (
    LAYERS_NS,
    NESTED,
    Batch,
    HeadFence,
    Segment,
    ThreadState,
)
from threadkeep._core.engine.snapshots import (
    CheckpointSnapshot,
    LoadEntry,
    StoredObject,
    StoredValue,
)
from threadkeep._core.engine.thread_summary import NOTHING_REPORTED, Reported
from threadkeep._core.engine.tips import Proof

_STATES = 6  # checkpoints remembered per thread: the last of a run and of a fork
_STATE_BYTES = 4 * 1024 * 1024  # limit of what each holds beyond the one before
_STATES_LEAST = 2
_FORKED = 64  # forking runs remembered per thread
_BASE_WEIGHT = 4096  # bytes of a thread without its values
_STATE_WEIGHT = 2500  # bytes of a remembered checkpoint, without its values
_ENTRY_WEIGHT = 600  # the same of an object remembered by identity
_FRESH_FACTOR = 2  # memory of a replaced value, per encoded byte


class ThreadMemory:
    """The working set of one thread."""

    def __init__(self, locks: Callable[[], Lock], token: Callable[[int], int]) -> None:
        self._lock = locks()
        # Held while a call's values are encoded, so that two simultaneous calls store the same
        # message once.
        self.encoding = locks()
        self.proof: Proof | None = None  # None: the store has not been asked yet
        self.logs = OpenLogs(self._lock, token)
        self.recent = RecentValues(self._lock, self.logs)
        self.states: OrderedDict[tuple[str, str], CheckpointSnapshot] = OrderedDict()
        self._states_bytes = 0  # of what each holds beyond the one before
        # The last checkpoint read outside of runs: its reader may change it and put it. Not lent.
        self._shown: CheckpointSnapshot | None = None
        self.record: str | None = None  # of layered memory: the last one that was seen stored
        self.newest_bytes = 0  # the values of the one that was remembered last
        self._head: str | None = None  # the greatest checkpoint id that a `HeadFence` counts
        # The last checkpoints of forking runs, oldest first. They outlive the states and the
        # generation, as each run is reported once.
        self._forked: dict[str, None] = {}
        self.reported = NOTHING_REPORTED
        self.weighed = _BASE_WEIGHT  # as the working set last weighed it
        self.added = 0  # bytes added since then, estimated
        self.used = 0  # the number of uses of all threads at its last one

    def reconcile(
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

        Returns the proof from now on, or None, without effect, if the reply is older than a commit
        of this process: read again.
        """
        with self._lock:
            now, named = self.proof, state.tips
            if now is not None:
                tips = now.tips
                old = tuple(tips)  # (commits may add others meanwhile)
                if now.holds(state.generation, named):
                    if named and named[0] not in tips:  # (others have committed)
                        self.logs.follow(state.logs)
                        self.recent.forget_reserved()
                        tips.add(named[0])
                        tips.difference_update(old)
                    return now
                if now is not proof or tips != before:
                    return None
            self.logs.clear()
            self.recent.clear()
            self.states.clear()
            self._states_bytes = self.newest_bytes = 0
            self._head = self.record = self._shown = None
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
        size: int,
        proof: Proof,
    ) -> None:
        """Remember the places of so many bytes of values, if `proof` is still the memory's."""
        with self._lock:
            if proof is self.proof:
                self.added += size + (len(placed) + len(known)) * _ENTRY_WEIGHT
                self.recent.remember(placed, known)

    def note_record(self, record: str, proof: Proof) -> None:
        """Note that the store has a record of layered memory, as `proof` proves."""
        with self._lock:
            if proof is self.proof:
                self.record = record

    def show(self, state: CheckpointSnapshot, proof: Proof) -> None:
        """Remember a checkpoint as a caller outside of runs got it, in place of the last one."""
        with self._lock:
            if proof is self.proof:
                self._shown = state
                self.added += _STATE_WEIGHT + _FRESH_FACTOR * state.fresh

    def parent(self, ns: str, own_id: str, read: LoadEntry | None) -> CheckpointSnapshot | None:
        """Return a known checkpoint. `read` is the load by which a caller got it."""
        with self._lock:
            shown = self._shown
            if shown is not None and read is not None and shown.owner is read and shown.ns == ns:
                return shown  # (no other reader's: a run may be lent values that its reader put)
            return self.states.get((ns, own_id))

    def take(self, state: CheckpointSnapshot) -> bool:
        """Return True if the values of a remembered checkpoint may be lent: to one run only.

        Not if a run that is under way was lent values of the namespace, as they may be the same.
        """
        with self._lock:
            states, key = self.states, (state.ns, state.id)
            owners = [held.owner for held in states.values() if held.ns == state.ns]
            if not all(owner is None or owner.ended for owner in owners):
                return False
            if state.owner is None or states.get(key) is not state:
                return False
            states[key] = state._replace(owner=None)
            return True

    def newest(self, ns: str) -> CheckpointSnapshot | None:
        """Return the snapshot that was remembered last in the namespace."""
        with self._lock:
            for state in reversed(self.states.values()):
                if state.ns == ns:
                    return state
            return None

    def publish(
        self,
        proof: Proof | None,
        tails: Collection[Segment],
        state: CheckpointSnapshot | None = None,
        fence: HeadFence | None = None,
        reported: Reported | None = None,
        *,
        begins: bool = False,
    ) -> str | None:
        """Remember a checkpoint and segments that were committed (or read) under `proof`.

        After a removal other elements may have the positions of the segments.

        Returns the head that the run forked from, or None if there is none or it was returned
        before.
        """
        with self._lock:
            if proof is not self.proof:
                return None
            if tails:
                self.logs.note_tails(tails)
            if state is None:
                return None
            if reported is not None:
                self.reported = reported
            own_id, left = state.id, None
            if state.ns == LAYERS_NS:
                self.record = own_id
            if fence is not None:
                left = self._left(state, fence, begins=begins)
            if not state.ns and not state.flags & NESTED and (self._head or "") < own_id:
                self._head = own_id
            states, key = self.states, (state.ns, own_id)
            before = states.pop(key, None)
            states[key] = state
            fresh = state.fresh - (before.fresh if before is not None else 0)
            self._states_bytes += fresh
            self.added += _STATE_WEIGHT + _FRESH_FACTOR * fresh
            self.newest_bytes = sum([held.weight for held in state.values.values()])
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
        recent, states = self.recent, self.states
        records = len(states) * _STATE_WEIGHT + len(recent) * _ENTRY_WEIGHT
        with self._lock:
            newest = next(reversed(states.values())).size if states else 0
            shown = self._shown.size if self._shown is not None else 0
        others = max(0, recent.weight - self._states_bytes)  # most are in the states too
        replaced = self._states_bytes * _FRESH_FACTOR
        return _BASE_WEIGHT + records + newest + shown + replaced + others + self.logs.weight


_PLACED = 512  # objects remembered by identity
_KNOWN = 64  # whole values remembered by identity
_BYTES = 1024 * 1024  # limit of either, except the newest two
_LEAST = 2
_RESERVED = 64  # positions reserved for objects that are not final yet


class RecentValues:
    """The latest stored values of one thread, found again by identity.

    Objects may have changed since: check their shadows.
    """

    def __init__(self, lock: Lock, logs: OpenLogs) -> None:
        self._lock = lock
        self._logs = logs
        self.objects: OrderedDict[int, StoredObject] = OrderedDict()  # by `id`
        # By channel and `id`: whole values, and their elements with the index in the value.
        self.values: OrderedDict[tuple[str, int], StoredValue] = OrderedDict()
        self.parts: OrderedDict[tuple[str, int], tuple[StoredValue, int]] = OrderedDict()
        # Of a long list or dict, only the last version is known: each takes as much memory.
        self._long: dict[str, StoredValue] = {}
        self.reserved: OrderedDict[int, tuple[Any, int, int]] = OrderedDict()
        self._object_bytes = self._value_bytes = 0

    @property
    def weight(self) -> int:
        """Estimated bytes of the values: most known ones consist of placed ones."""
        return max(self._object_bytes, self._value_bytes)

    def __len__(self) -> int:
        return len(self.objects) + len(self.values) + len(self.parts)

    def clear(self) -> None:
        """Forget all of them. The caller holds the lock."""
        for values in (self.objects, self.values, self.parts, self.reserved, self._long):
            values.clear()
        self._object_bytes = self._value_bytes = 0

    def place(self, value: Any) -> StoredObject | None:
        """Return the place of this very object, if it has not changed since."""
        found = self.objects.get(id(value))
        return found if found and found.value is value and found.shadow.holds() else None

    def forget_reserved(self) -> None:
        """Forget reserved positions: others may have taken them. The caller holds the lock."""
        self.reserved.clear()

    def remember(self, placed: list[StoredObject], known: list[tuple[str, StoredValue]]) -> None:
        """Remember the last few values. The caller holds the lock."""
        for item in placed:
            name = id(item.value)
            before = self.objects.pop(name, None)
            self.objects[name] = item
            self._object_bytes += item.size - (before.size if before is not None else 0)
        for channel, value in known:
            self._forget_known(channel, value.value)
            if value.is_long:
                if channel in self._long:
                    self._forget_known(channel, self._long[channel].value)
                self._long[channel] = value
            self.values[channel, id(value.value)] = value
            self._value_bytes += value.size
            for offset, part in value.parts():
                self.parts[channel, id(part)] = (value, offset)
        while len(self.objects) > _PLACED or (
            self._object_bytes > _BYTES and len(self.objects) > _LEAST
        ):
            self._object_bytes -= self.objects.popitem(last=False)[1].size
        while len(self.values) > _KNOWN or (
            self._value_bytes > _BYTES and len(self.values) > _LEAST
        ):
            (channel, _), oldest = next(iter(self.values.items()))
            self._forget_known(channel, oldest.value)

    def _forget_known(self, channel: str, value: Any) -> None:
        found = self.values.pop((channel, id(value)), None)
        if found is None:
            return
        self._value_bytes -= found.size
        if self._long.get(channel) is found:
            del self._long[channel]
        for _, item in found.parts():
            if self.parts.get((channel, id(item)), (None,))[0] is found:
                del self.parts[channel, id(item)]

    def reserve(self, ns: str, channel: str, value: Any) -> None:
        """Reserve the next position of the channel's log for an object that is not final."""
        place = self._logs.reserve(ns, channel, 1)
        with self._lock:
            self.reserved[id(value)] = (value, *place)
            while len(self.reserved) > _RESERVED:
                self.reserved.popitem(last=False)

    def take_reserved(self, value: Any) -> tuple[int, int] | None:
        """Release the log and position reserved for the object, if any."""
        with self._lock:
            reserved = self.reserved.pop(id(value), None)
        return reserved[1:] if reserved is not None and reserved[0] is value else None
