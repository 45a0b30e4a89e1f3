"""Logs of a thread that this process appends to.

Invariant: a working set hands out a position once. Positions that others have taken are noticed at
the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from threadkeep._core.codec.frame import full_size
from threadkeep._core.engine.model import Segment

Lock: TypeAlias = AbstractContextManager[Any]
NEW_LOG_BITS = 31
KEYFRAMES = ""  # the channel whose log holds the keyframes
NESTED = 64  # namespaces of subgraphs whose logs stay open

SEAL_COUNT = 32  # so many new elements, or so many new bytes, are sealed
SEAL_BYTES = 32 * 1024
SEAL_KEYFRAMES = 16  # keyframes are similar, so a few of them compress well
SEAL_EARLY = 16  # new elements sealed while the last segment is small, so that loads read few rows
EARLY_BELOW = 64  # elements of that segment
FULL_COUNT = 256  # a sealed segment grows up to so many elements or bytes
FULL_BYTES = 64 * 1024


Tail: TypeAlias = dict[int, Segment]  # by start: the small segments at the end of a log


@dataclass(slots=True)
class OpenLog:
    """An open log, ripe for sealing at `least` new elements, or many new bytes.

    The old segment is the first of the tail, if it looks sealed: it has several elements, or
    many bytes. It grows when the log is sealed again.
    """

    log: int
    next: int = 0
    least: int = SEAL_COUNT
    tail: Tail = field(default_factory=dict)
    tail_stop: int = 0  # its end
    new_count: int = 0
    new_bytes: int = 0
    old_count: int = 0  # of the old segment
    old_bytes: int = 0
    sealing: bool = False

    @property
    def is_ripe(self) -> bool:
        """True if the tail is worth sealing."""
        least = min(self.least, SEAL_EARLY) if self.old_count < EARLY_BELOW else self.least
        return self.new_count >= least or (self.new_bytes >= SEAL_BYTES and len(self.tail) > 1)


class OpenLogs:
    """The open logs of one thread, by namespace and channel."""

    def __init__(self, lock: Lock, token: Callable[[int], int]) -> None:
        self._lock = lock
        self._token = token
        self._logs: dict[tuple[str, str], OpenLog] = {}
        self._by_number: dict[int, OpenLog] = {}
        self._nested: dict[str, list[str]] = {}  # channels with logs, by namespace
        self._ripe: dict[int, OpenLog] = {}
        self._next_log = 1
        self._counts = False
        self._ends: Mapping[int, int] = {}  # of logs, as the store knows them

    def clear(self) -> None:
        """Forget all logs. The caller holds the lock."""
        self._logs.clear()
        self._by_number.clear()
        self._nested.clear()
        self._ripe.clear()

    @property
    def weight(self) -> int:
        """Bytes of the small segments that are remembered."""
        with self._lock:
            tails = [log.tail for log in self._by_number.values()]
            return sum([len(part.data) for tail in tails for part in tail.values()])

    def count_up(self) -> None:
        """Number the logs of the root namespace in sequence from now on: it has no others."""
        self._counts = True

    def abandon(self) -> None:
        """Continue in logs with other numbers, as these were taken. The caller holds the lock."""
        self.clear()
        self._next_log = self._token(NEW_LOG_BITS)

    def follow(self, ends: Mapping[int, int]) -> None:
        """Continue open logs from the ends that others have set. The caller holds the lock."""
        self._ends = ends
        for number, log in self._by_number.items():
            log.next = max(log.next, ends.get(number, 0))

    def end_of(self, log: int) -> int:
        """Return the end of a log as the store knows it, or 0."""
        return self._ends.get(log, 0)

    def reserve(self, ns: str, channel: str, count: int) -> tuple[int, int]:
        """Reserve positions of the channel's log, and return its number and the first position."""
        with self._lock:
            log = self._logs.get((ns, channel)) or self._open(ns, channel, self._new_number(ns))
            start = log.next
            log.next += count
            return log.log, start

    def _open(self, ns: str, channel: str, number: int, stop: int = 0) -> OpenLog:
        log = self._by_number.get(number)  # (a value may be in the log of another channel)
        if log is None:
            least = SEAL_KEYFRAMES if channel == KEYFRAMES else SEAL_COUNT
            log = self._by_number[number] = OpenLog(number, stop, least)
        self._logs[ns, channel] = log
        if ns:
            self._nested.setdefault(ns, []).append(channel)
            if len(self._nested) > NESTED:
                oldest = next(iter(self._nested))
                for name in self._nested.pop(oldest):
                    self._close(oldest, name)
        return log

    def _new_number(self, ns: str) -> int:
        # Only the root namespace of a thread that was seen empty is numbered in sequence: the
        # logs of others are unknown.
        counts = not ns and self._counts
        number = self._next_log if counts else self._token(NEW_LOG_BITS)
        if not ns:
            self._next_log += 1
        return number

    def start(self, ns: str, channel: str) -> None:
        """Continue the channel in a fresh log."""
        with self._lock:
            self._close(ns, channel)

    def _close(self, ns: str, channel: str) -> None:
        log = self._logs.pop((ns, channel), None)
        if log is not None and all(log is not other for other in self._logs.values()):
            self._by_number.pop(log.log, None)
            self._ripe.pop(log.log, None)

    def resume(self, ns: str, channel: str, log: int, stop: int) -> None:
        """Continue a log that another process may have written, if none is open."""
        with self._lock:
            self._next_log = max(self._next_log, log + 1) if not ns else self._next_log
            if (ns, channel) not in self._logs:
                self._open(ns, channel, log, stop)

    def note_tails(self, segments: Iterable[Segment]) -> None:
        """Remember stored segments. Small ones are sealed later. The caller holds the lock."""
        noted: dict[int, OpenLog] = {}
        for part in segments:
            number, start, count, data = part
            log = self._by_number.get(number)
            if log is None or count >= FULL_COUNT:
                continue
            size = full_size(data)
            if size >= FULL_BYTES:
                continue
            tail, stop = log.tail, start + count
            # (most arrive in order, and stored segments do not overlap)
            if start < log.tail_stop and _overlaps(tail, start, stop):
                if not _covers(tail, start, stop):
                    continue
                self._forget_tail(log)  # (another process has joined segments of it)
            if not tail and (count >= SEAL_EARLY // 4 or size >= SEAL_BYTES):
                log.old_count += count
                log.old_bytes += size
            else:
                log.new_count += count
                log.new_bytes += size
            tail[start] = part
            log.tail_stop = max(log.tail_stop, stop)
            noted[number] = log
        for number, log in noted.items():
            if log.is_ripe:
                self._ripe[number] = log

    def forget_tails(self) -> None:
        """Forget all small segments. The caller holds the lock."""
        for log in self._by_number.values():
            self._forget_tail(log)
        self._ripe.clear()

    def _forget_tail(self, log: OpenLog) -> None:
        log.tail.clear()
        log.tail_stop = 0
        log.new_count = log.new_bytes = log.old_count = log.old_bytes = 0

    def begin_seals(self) -> list[tuple[OpenLog, Tail]]:
        """Return the ripe logs, each with a copy of its tail. `end_seal` must follow."""
        if not self._ripe:
            return []
        with self._lock:
            found = [log for log in self._ripe.values() if not log.sealing]
            for log in found:
                log.sealing = True
            return [(log, dict(log.tail)) for log in found]

    def end_seal(self, log: OpenLog, sealed: Tail, grows: Tail) -> None:
        """Allow sealing again: `sealed` left the tail, and became `grows`."""
        with self._lock:
            log.sealing = False
            for start in sealed:
                log.tail.pop(start, None)
            if sealed:
                log.new_count, log.new_bytes = _sizes(log.tail)
                log.tail |= grows
                log.old_count, log.old_bytes = _sizes(grows)
                if self._by_number.get(log.log) is log and not log.is_ripe:
                    self._ripe.pop(log.log, None)


def _sizes(tail: Tail) -> tuple[int, int]:
    """Return the number of elements, and their bytes."""
    parts = tail.values()
    return sum([part.count for part in parts]), sum([full_size(part.data) for part in parts])


def _overlaps(tail: Tail, start: int, stop: int) -> bool:
    return any(at < stop and start < part.stop for at, part in tail.items())


def _covers(tail: Tail, start: int, stop: int) -> bool:
    """Return True if a segment is longer than each part of a tail that it overlaps, and has it."""
    parts = [(at, part.stop) for at, part in tail.items()]
    return all(
        start <= at and end <= stop and (at, end) != (start, stop)
        for at, end in parts
        if at < stop and start < end
    )
