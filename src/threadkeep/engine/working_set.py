"""What this process last saw of its threads: bounded, and never needed for correctness.

Per thread: the states of its last checkpoints (manifest and values with their shadows),
the logs it appends to, and where values were put that a later checkpoint may hold too.
Everything is dropped when the thread's generation changes (segments were removed) or
when room is needed. States are immutable and published only after their commit.

Invariant: what is remembered as stored is stored, under the generation remembered.
The locks made by `locks` guard moments; none is held while an operation waits.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from threadkeep.codec import Codec
from threadkeep.engine.identity import pointers
from threadkeep.engine.manifest import Manifest
from threadkeep.engine.model import Segment, Span
from threadkeep.engine.refs import Ref
from threadkeep.engine.sequence import Seen
from threadkeep.engine.shadow import Shadow

Lock: TypeAlias = AbstractContextManager[Any]
NEW_LOG_BITS = 31

_STATES = 6  # checkpoints remembered per thread: a run's last ones and a fork's
_PLACED = 512  # objects remembered per thread by identity
_KEPT = 64  # positions kept for objects that are not final yet
_PART_MOST = 64  # elements of one value by which it is found again
_PART_OVER = 16  # bytes that such elements take at least, on average
_KNOWN = 64  # whole values remembered per thread by identity
_BASE_WEIGHT = 4096  # bytes that a thread takes before its values
_OBJECT_FACTOR = 6  # a decoded value with its shadow takes about this many times its bytes


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A list, tuple or dict as last seen, and the spans it is stored in."""

    kind: int
    spans: tuple[Span, ...]
    seen: Seen
    weight: int
    raws: Mapping[int, bytes] = field(default_factory=dict)  # opaque elements' bytes, by index


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes stored as an element: in full `depth` patches behind the last whole one.

    `uses` are the positions that reading it needs beside its own; `anchor` is an earlier
    version that the next patch may go back to when the chain has grown long.
    """

    data: bytes
    log: int
    pos: int
    depth: int = 0
    uses: tuple[Span, ...] = ()
    anchor: Raw | None = None

    @property
    def span(self) -> Span:
        """The element's own position."""
        return Span(self.log, self.pos, self.pos + 1)


@dataclass(frozen=True, slots=True)
class HeldCell:
    """A single value as last seen. `raw` is None for a value stored inline."""

    value: Any
    shadow: Shadow
    data: bytes
    uses: tuple[Span, ...]
    raw: Raw | None

    @property
    def weight(self) -> int:
        """About how many bytes this stands for."""
        return len(self.data)


Held: TypeAlias = HeldRun | HeldCell


@dataclass(frozen=True, slots=True)
class Keyframe:
    """A whole manifest and where it is stored; `used` counts the checkpoints against it."""

    manifest: Manifest
    log: int
    pos: int
    used: int


@dataclass(frozen=True, slots=True)
class State:
    """A stored checkpoint with the values that this process knows of.

    `data` is the manifest as stored, which tells a row that was replaced since. `codec`
    is the one that the values were decoded with: who may load other types gets others.
    `owner` tells whether the run that these very objects were lent to is still alive;
    None where that is not known, and then they are not lent again.
    """

    ns: str
    id: str
    flags: int
    manifest: Manifest
    keyframe: Keyframe
    held: Mapping[str, Held]
    data: bytes
    codec: Codec
    owner: Callable[[], object | None] | None = None

    @property
    def weight(self) -> int:
        """About how many bytes this stands for."""
        return sum([held.weight for held in self.held.values()])


class Home:
    """The segments that one batch carries, and whether it was committed."""

    __slots__ = ("committed", "segments")

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()
        self.committed = False

    def holding(self, span: Span) -> list[Segment]:
        """The segments that some of the span lies in."""
        log, start, stop = span
        return [s for s in self.segments if s.log == log and s.start < stop and start < s.stop]


@dataclass(frozen=True, slots=True)
class Placed:
    """An object (a message, say) that was put into a log, found again by its identity."""

    value: Any
    shadow: Shadow
    raw: Raw
    home: Home


@dataclass(frozen=True, slots=True)
class Known:
    """A whole value of a channel that was stored a moment ago, as a pending write say."""

    value: Any
    ref: Ref
    held: Held
    home: Home

    def parts(self) -> Iterable[tuple[int, Any]]:
        """The elements that the value is found again by, each with its number."""
        if not isinstance(self.held, HeldRun):
            return ()
        items = self.held.seen.items
        if len(items) > _PART_MOST or self.held.weight < _PART_OVER * len(items):
            return ()
        return enumerate(items)

    def holds(self, value: Any) -> bool:
        """Whether what was stored is this: the value itself, or a copy of it."""
        if isinstance(self.held, HeldCell):
            return self.held.shadow.holds()
        seen = self.held.seen
        items = list(value.values()) if seen.keys is not None else list(value)
        if pointers(items) != pointers(seen.items) or not seen.shadow.holds():
            return False
        return seen.keys is None or pointers(list(value)) == pointers(seen.keys)


@dataclass(slots=True)
class OpenLog:
    """A log this process appends to: its number, the next free position, and its tail.

    The tail holds the elements of small segments by their start, the last sealed one
    included as long as that may still grow (`old_bytes`); `new_count` and `new_bytes` tell
    how much of it came since.
    """

    log: int
    next: int = 0
    tail: dict[int, list[bytes]] = field(default_factory=dict)
    new_count: int = 0
    new_bytes: int = 0
    old_bytes: int = 0
    sealing: bool = False


class ThreadMemory:
    """What is remembered of one thread."""

    def __init__(self, locks: Callable[[], Lock], token: Callable[[int], int]) -> None:
        self._lock = locks()
        # Held while a call's values are encoded, so that two calls that store the same
        # message at the same time store it once.
        self.encoding = locks()
        self._token = token
        self.generation: int | None = None
        self._logs: dict[tuple[str, str], OpenLog] = {}
        self._next_log = 1
        self._placed: OrderedDict[int, Placed] = OrderedDict()
        self._known: OrderedDict[tuple[str, int], Known] = OrderedDict()
        self._parts: OrderedDict[tuple[str, int], tuple[Known, int]] = OrderedDict()
        self._kept: OrderedDict[int, tuple[Any, int, int]] = OrderedDict()
        self._states: OrderedDict[tuple[str, str], State] = OrderedDict()

    def meet(self, generation: int) -> None:
        """Forget everything if segments were removed since."""
        with self._lock:
            if generation != self.generation:
                self._forget()
                self.generation = generation

    def abandon(self) -> None:
        """Forget what was not known to be committed: other bytes took its place."""
        with self._lock:
            self._logs.clear()
            self._placed.clear()
            self._known.clear()
            self._parts.clear()
            self._kept.clear()
            self._next_log = self._token(NEW_LOG_BITS)

    def _forget(self) -> None:
        self._logs.clear()
        self._placed.clear()
        self._known.clear()
        self._parts.clear()
        self._kept.clear()
        self._states.clear()

    # -- logs ------------------------------------------------------------------------

    def reserve(self, ns: str, channel: str, count: int) -> tuple[int, int]:
        """Take `count` positions of the channel's log: its number and the first of them.

        Concurrent tasks share the log; positions that are never written stay holes.
        """
        with self._lock:
            log = self._logs.get((ns, channel)) or self._open(ns, channel)
            start = log.next
            log.next += count
            return log.log, start

    def _open(self, ns: str, channel: str) -> OpenLog:
        # Only the root namespace of a thread that was read counts up: the other logs are
        # not seen together.
        counts = not ns and self.generation is not None
        number = self._next_log if counts else self._token(NEW_LOG_BITS)
        if not ns:
            self._next_log += 1
        log = self._logs[ns, channel] = OpenLog(number)
        return log

    def start_log(self, ns: str, channel: str) -> None:
        """Let the channel go on in a fresh log."""
        with self._lock:
            self._logs.pop((ns, channel), None)

    def resume_log(self, ns: str, channel: str, log: int, stop: int) -> None:
        """Go on with a log that another process may have written, if none is open."""
        with self._lock:
            self._next_log = max(self._next_log, log + 1) if not ns else self._next_log
            if (ns, channel) not in self._logs:
                self._logs[ns, channel] = OpenLog(log, stop)

    def note_tail(self, log: int, start: int, elements: list[bytes]) -> None:
        """Remember a committed small segment, to be sealed with its neighbours."""
        with self._lock:
            for open_log in self._logs.values():
                if open_log.log == log and start not in open_log.tail:
                    open_log.tail[start] = elements
                    open_log.new_count += len(elements)
                    open_log.new_bytes += sum(map(len, elements))

    def begin_seals(
        self, enough: Callable[[str, OpenLog], bool]
    ) -> list[tuple[OpenLog, dict[int, list[bytes]]]]:
        """Logs with enough of a tail, each with a copy of it.

        Each is given to one batch at a time, which must call `end_seal`.
        """
        with self._lock:
            found = [
                log
                for (_, channel), log in self._logs.items()
                if not log.sealing and enough(channel, log)
            ]
            for log in found:
                log.sealing = True
            return [(log, dict(log.tail)) for log in found]

    def end_seal(
        self, log: OpenLog, sealed: dict[int, list[bytes]], grows: dict[int, list[bytes]]
    ) -> None:
        """Let the log be sealed again.

        `sealed` left the tail (nothing did, after a failure); `grows` is a segment made of
        it that may still take more.
        """
        with self._lock:
            log.sealing = False
            for start in sealed:
                log.tail.pop(start, None)
            if sealed:
                log.new_count = sum(map(len, log.tail.values()))
                log.new_bytes = sum([len(e) for part in log.tail.values() for e in part])
                log.tail |= grows
                log.old_bytes = sum([len(e) for part in grows.values() for e in part])

    # -- values on the way -----------------------------------------------------------

    def placed(self, value: Any) -> Placed | None:
        """Where this very object is stored, if it was and has not changed since."""
        found = self._placed.get(id(value))
        return found if found and found.value is value and found.shadow.holds() else None

    def known(self, channel: str, given: Any, value: Any) -> Known | None:
        """How the given value of the channel was stored, if `value`, a copy, is still that."""
        found = self._known.get((channel, id(given)))
        return found if found and found.value is given and found.holds(value) else None

    def known_part(self, channel: str, item: Any) -> tuple[Known, int] | None:
        """A list, tuple or dict that was stored for the channel, and where `item` is in it."""
        return self._parts.get((channel, id(item)))

    def reserve_for(self, ns: str, channel: str, value: Any) -> None:
        """Keep the next position of the channel's log for an object that is not final yet."""
        place = self.reserve(ns, channel, 1)
        with self._lock:
            self._kept[id(value)] = (value, *place)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def kept_for(self, value: Any) -> tuple[int, int] | None:
        """Give up the log and position that were kept for the object, if any were."""
        with self._lock:
            kept = self._kept.pop(id(value), None)
        return kept[1:] if kept is not None and kept[0] is value else None

    def place(
        self, placed: list[Placed], known: list[tuple[str, Known]], generation: int | None
    ) -> None:
        """Remember where values were put under `generation`, the last few of them.

        Under an unknown one nothing is: nobody would notice that it has passed.
        """
        with self._lock:
            if generation is None or generation != self.generation:
                return
            for item in placed:
                self._placed[id(item.value)] = item
            while len(self._placed) > _PLACED:
                self._placed.popitem(last=False)
            for channel, value in known:
                self._known[channel, id(value.value)] = value
                for offset, item in value.parts():
                    self._parts[channel, id(item)] = (value, offset)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            while len(self._parts) > _PLACED:
                self._parts.popitem(last=False)

    # -- states ----------------------------------------------------------------------

    def state(self, ns: str, checkpoint_id: str) -> State | None:
        """The checkpoint's state, if it is remembered."""
        return self._states.get((ns, str(checkpoint_id)))

    def publish(self, state: State, generation: int | None) -> None:
        """Remember a state whose commit has succeeded (or that was read) under `generation`."""
        with self._lock:
            if generation != self.generation:
                return
            self._states[state.ns, str(state.id)] = state
            self._states.move_to_end((state.ns, str(state.id)))
            while len(self._states) > _STATES:
                self._states.popitem(last=False)

    @property
    def weight(self) -> int:
        """About how many bytes this takes. States share most of their values."""
        states = list(self._states.values())
        heaviest = max([state.weight for state in states], default=0)
        with self._lock:
            tails = sum([log.new_bytes + log.old_bytes for log in self._logs.values()])
        return _BASE_WEIGHT + heaviest * _OBJECT_FACTOR + tails


class WorkingSet:
    """The threads last used, at most about `limit` bytes of them."""

    def __init__(self, limit: int, locks: Callable[[], Lock], token: Callable[[int], int]) -> None:
        self._limit = limit
        self._locks = locks
        self._token = token
        self._start()

    def _start(self) -> None:
        self._lock = self._locks()
        self._threads: OrderedDict[str, ThreadMemory] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._total = 0

    def before_fork(self) -> None:
        """Do nothing: what another thread has locked, the child lets go of."""

    def after_fork(self, *, in_child: bool) -> None:
        """Remember nothing in the child: the parent's next log positions are not its own."""
        if in_child:
            self._start()

    def thread(self, thread: str) -> ThreadMemory:
        """What is remembered of the thread; a fresh memory if nothing is."""
        with self._lock:
            memory = self._threads.get(thread)
            if memory is None:
                memory = self._threads[thread] = ThreadMemory(self._locks, self._token)
                self._weigh(thread, _BASE_WEIGHT)
                self._make_room()
            self._threads.move_to_end(thread)
            return memory

    def forget(self, thread: str) -> None:
        """Remember nothing of the thread."""
        with self._lock:
            self._drop(thread)

    def settle(self, thread: str) -> None:
        """Weigh the thread again and make room for it."""
        with self._lock:
            memory = self._threads.get(thread)
            if memory is not None:
                self._weigh(thread, memory.weight)
            self._make_room()

    def _make_room(self) -> None:
        """Forget the threads that were not used for longest; the newest stays."""
        while self._total > self._limit and len(self._threads) > 1:
            self._drop(next(iter(self._threads)))

    def _weigh(self, thread: str, weight: int) -> None:
        self._total += weight - self._weights.get(thread, 0)
        self._weights[thread] = weight

    def _drop(self, thread: str) -> None:
        self._threads.pop(thread, None)
        self._total -= self._weights.pop(thread, 0)

    def __len__(self) -> int:
        return len(self._threads)


def watch(value: object) -> Callable[[], object | None]:
    """Tells later whether `value` still lives, without keeping it alive."""
    return weakref.ref(value)
