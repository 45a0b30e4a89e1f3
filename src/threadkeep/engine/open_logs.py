"""The logs of a thread that this process appends to, and their tails that wait for sealing.

Invariant: a position is handed out once, as far as this process knows; another process
that took it is noticed when the batch is committed. Exclusive logs are those of one process
alone: no other goes on with them, so that nobody can take a position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Lock: TypeAlias = AbstractContextManager[Any]
NEW_LOG_BITS = 31
KEYFRAMES = ""  # the channel whose log holds the keyframes
SEAL_COUNT = 32  # so many new elements, or so many new bytes, are sealed
SEAL_BYTES = 32 * 1024
SEAL_KEYFRAMES = 16  # keyframes are much alike: a few of them compress well
EXCLUSIVE = 2**47  # added to a random number of as many bits: no two are ever the same


class Stored(NamedTuple):
    """The elements of a stored segment, and the bytes that it takes."""

    elements: list[bytes]
    size: int


Tail: TypeAlias = dict[int, Stored]  # small segments of a log, by their start


@dataclass(slots=True)
class OpenLog:
    """A log this process appends to: its number, the next free position, and its tail.

    It is sealed when it has `least` new elements, or many new bytes.

    The tail holds small segments by their start, the last sealed one included as long as that
    may still grow (`old_bytes`); `new_count` and `new_bytes` tell how much of it came since.
    """

    log: int
    next: int = 0
    least: int = SEAL_COUNT
    tail: Tail = field(default_factory=dict)
    new_count: int = 0
    new_bytes: int = 0
    old_bytes: int = 0
    sealing: bool = False

    @property
    def is_ripe(self) -> bool:
        """True if the tail is worth sealing."""
        return self.new_count >= self.least or (self.new_bytes >= SEAL_BYTES and len(self.tail) > 1)


class OpenLogs:
    """The open logs of one thread, by namespace and channel."""

    def __init__(self, lock: Lock, token: Callable[[int], int], *, exclusive: bool = False) -> None:
        self._lock = lock
        self._token = token
        self._exclusive = exclusive
        self._logs: dict[tuple[str, str], OpenLog] = {}
        self._by_number: dict[int, OpenLog] = {}
        self._ripe: dict[int, OpenLog] = {}
        self.tails = 0  # bytes of all tails
        self._next_log = 1
        self._counts = False

    def clear(self) -> None:
        """Forget all of them. The caller holds the lock."""
        self._logs.clear()
        self._by_number.clear()
        self._ripe.clear()
        self.tails = 0

    def met(self) -> None:
        """The thread was read: logs of its root namespace may be counted up from now on."""
        self._counts = True

    def abandon(self) -> None:
        """Go on in logs of other numbers: others took these. The caller holds the lock."""
        self.clear()
        self._next_log = self._token(NEW_LOG_BITS)

    def reserve(self, ns: str, channel: str, count: int) -> tuple[int, int]:
        """Take `count` positions of the channel's log: its number and the first of them.

        Concurrent tasks share the log; positions that are never written stay holes.
        """
        with self._lock:
            log = self._logs.get((ns, channel)) or self._open(ns, channel, self._new_number(ns))
            start = log.next
            log.next += count
            return log.log, start

    def _open(self, ns: str, channel: str, number: int, stop: int = 0) -> OpenLog:
        log = self._by_number.get(number)  # (a value may lie in the log of another channel)
        if log is None:
            least = SEAL_KEYFRAMES if channel == KEYFRAMES else SEAL_COUNT
            log = self._by_number[number] = OpenLog(number, stop, least)
        self._logs[ns, channel] = log
        return log

    def _new_number(self, ns: str) -> int:
        if self._exclusive:
            return EXCLUSIVE + self._token(EXCLUSIVE.bit_length() - 1)
        # Only the root namespace of a thread that was read counts up: the other logs are
        # not seen together.
        counts = not ns and self._counts
        number = self._next_log if counts else self._token(NEW_LOG_BITS)
        if not ns:
            self._next_log += 1
        return number

    def start(self, ns: str, channel: str) -> None:
        """Let the channel go on in a fresh log."""
        with self._lock:
            log = self._logs.pop((ns, channel), None)
            if log is not None and all(log is not other for other in self._logs.values()):
                self._by_number.pop(log.log, None)
                self._ripe.pop(log.log, None)
                self.tails -= log.new_bytes + log.old_bytes

    def resume(self, ns: str, channel: str, log: int, stop: int) -> None:
        """Go on with a log that another process may have written, if none is open."""
        if self._exclusive or log >= EXCLUSIVE:
            return
        with self._lock:
            self._next_log = max(self._next_log, log + 1) if not ns else self._next_log
            if (ns, channel) not in self._logs:
                self._open(ns, channel, log, stop)

    def note_tails(self, tails: Iterable[tuple[int, int, Stored]]) -> None:
        """Remember committed small segments, to be sealed with their neighbours.

        One that was read may be a part of a segment that is remembered: somebody has cut it since.

        Args:
            tails: the log, the start and the elements of each.
        """
        with self._lock:
            for number, start, stored in tails:
                log = self._by_number.get(number)
                count = len(stored.elements)
                if log is None or _overlaps(log.tail, start, start + count):
                    continue
                size = sum(map(len, stored.elements))
                log.tail[start] = stored
                log.new_count += count
                log.new_bytes += size
                self.tails += size
                if log.is_ripe:
                    self._ripe[number] = log

    def begin_seals(self) -> list[tuple[OpenLog, Tail]]:
        """Logs with enough of a tail, each with a copy of it.

        Each is given to one batch at a time, which must call `end_seal`.
        """
        if not self._ripe:
            return []
        with self._lock:
            found = [log for log in self._ripe.values() if not log.sealing]
            for log in found:
                log.sealing = True
            return [(log, dict(log.tail)) for log in found]

    def end_seal(self, log: OpenLog, sealed: Tail, grows: Tail) -> None:
        """Let the log be sealed again.

        `sealed` left the tail (nothing did, after a failure); `grows` is a segment made of
        it that may still take more.
        """
        with self._lock:
            log.sealing = False
            for start in sealed:
                log.tail.pop(start, None)
            if sealed:
                before = log.new_bytes + log.old_bytes
                log.new_count = sum([len(part.elements) for part in log.tail.values()])
                log.new_bytes = _bytes(log.tail)
                log.tail |= grows
                log.old_bytes = _bytes(grows)
                if self._by_number.get(log.log) is log:
                    self.tails += log.new_bytes + log.old_bytes - before
                    if not log.is_ripe:
                        self._ripe.pop(log.log, None)


def _overlaps(tail: Tail, start: int, stop: int) -> bool:
    last = max(tail, default=-1)
    if start > last:  # most come in their order, and those that are there do not overlap
        return last >= 0 and start < last + len(tail[last].elements)
    return start in tail or any(
        at < stop and start < at + len(part.elements) for at, part in tail.items()
    )


def _bytes(tail: Tail) -> int:
    return sum([len(element) for part in tail.values() for element in part.elements])
