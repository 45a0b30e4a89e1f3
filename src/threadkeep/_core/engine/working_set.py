"""Working set: the memory of the threads that this process used last, within a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

from threadkeep._core.engine.logs import Lock
from threadkeep._core.engine.thread_memory import ThreadMemory


@dataclass(slots=True)
class Counts:
    """Counters of an engine. Approximate, as several threads may count at the same time."""

    written: int = 0  # bytes stored by saves
    saved: int = 0  # estimated bytes saved compared with storing each full state
    loads: int = 0  # of runs
    hits: int = 0  # loads that were lent values of the working set
    conflicts: int = 0  # saves refused because another run was faster
    retries: int = 0  # saves built again because other writers were faster


_GROWN_PART = 8  # a thread is weighed again when it has grown by one part in so many
_IDLE_PART = 8  # idle threads take at most this part of the limit
_IDLE = 4  # a thread is idle if it was not used while all were used so often, on average
_FEW = 32  # threads (fewer count as so many, as their turns may alternate)


class WorkingSet:
    """LRU cache of threads of about `limit` bytes, an eighth of it for idle ones."""

    def __init__(self, limit: int, locks: Callable[[], Lock], token: Callable[[int], int]) -> None:
        self._limit = limit
        self._locks = locks
        self._token = token
        self._prefix = ""
        self.key = object()  # names the working set without keeping it
        self.counts = Counts()
        self._room = _Room(locks())

    def apart(self) -> WorkingSet:
        """Return an empty set of the same size."""
        other = copy(self)
        other.key = object()
        other._room = _Room(self._locks())  # noqa: SLF001 - a copy
        return other

    def part(self, prefix: str) -> WorkingSet:
        """Return the part whose threads begin with a prefix, by their names without it.

        Its counts are also part of the whole's.
        """
        part = copy(self)
        part._prefix = self._prefix + prefix  # noqa: SLF001 - a copy
        part.key = object()
        part.counts = _PartCounts(self)
        return part

    def before_fork(self) -> None:
        """No-op: locks held by other threads are replaced in the child."""

    def after_fork(self, *, in_child: bool) -> None:
        """Forget everything in the child, as the parent's next log positions are not its own."""
        if in_child:
            self._room.empty(self._locks())
            self.counts = Counts()

    def thread(self, thread: str) -> ThreadMemory:
        room, name = self._room, self._prefix + thread
        with room.lock:
            memory = room.threads.get(name)
            if memory is None:
                memory = ThreadMemory(self._locks, self._token)
                room.threads[name] = memory
                room.total += memory.weighed
                self._make_room()
            memory.used = room.uses
            room.threads.move_to_end(name)
            return memory

    def forget(self, thread: str | None, prefix: str = "") -> None:
        """Forget the thread, or (None) all threads that begin with `prefix`."""
        room = self._room
        with room.lock:
            if thread is not None:
                room.drop(self._prefix + thread)
                return
            begins = self._prefix + prefix
            for name in [one for one in room.threads if one.startswith(begins)]:
                room.drop(name)

    def note_use(self, thread: str, memory: ThreadMemory) -> None:
        """Note a use of the thread, weigh it again if it has grown by an eighth, and make room."""
        room = self._room
        weight = memory.weighed
        if memory.added * _GROWN_PART > weight:
            weight, memory.added = memory.weight, 0
        with room.lock:
            room.uses += 1
            if weight != memory.weighed and room.threads.get(self._prefix + thread) is memory:
                room.total += weight - memory.weighed
                memory.weighed = weight
            if room.total * _IDLE_PART > self._limit:
                self._make_room()

    def _make_room(self) -> None:
        room = self._room
        threads = room.threads
        while room.total * _IDLE_PART > self._limit and len(threads) > 1:
            name, oldest = next(iter(threads.items()))
            unused = room.uses - oldest.used
            if room.total <= self._limit and unused < _IDLE * max(len(threads), _FEW):
                return
            room.drop(name)

    def __len__(self) -> int:
        prefix = self._prefix
        return sum([name.startswith(prefix) for name in self._room.threads])


class _Room:
    """The threads of a working set, from the one used first to the one used last."""

    def __init__(self, lock: Lock) -> None:
        self.empty(lock)

    def empty(self, lock: Lock) -> None:
        self.lock = lock
        self.threads: OrderedDict[str, ThreadMemory] = OrderedDict()
        self.total = self.uses = 0

    def drop(self, name: str) -> None:
        memory = self.threads.pop(name, None)
        if memory is not None:
            self.total -= memory.weighed


class _PartCounts(Counts):
    """Counts that are also added to the whole working set's."""

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
