"""Logs of a thread that this process appends to, and the segments of one batch.

Invariant: within this process, a position is handed out once; positions taken by another process
are noticed at the commit. A batch carries each position that it was given, and the segments that it
borrows from other batches until those are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from threadkeep._core.codec.frame import Compression, pack
from threadkeep._core.codec.introspection import layout
from threadkeep._core.engine import refs
from threadkeep._core.engine.differences import Comparison, Piece, SeenSequence
from threadkeep._core.engine.model import Segment, Span
from threadkeep._core.engine.records import quick
from threadkeep._core.engine.shadow import Shadow, is_leaf, is_state
from threadkeep._core.engine.snapshots import BatchSegments, RunValue
from threadkeep.errors import UnserializableError

Lock: TypeAlias = AbstractContextManager[Any]
NEW_LOG_BITS = 31
KEYFRAMES = ""  # the channel whose log holds the keyframes
EXCLUSIVE = 2**47  # added to a random number of as many bits, which never repeats

NESTED = 64  # namespaces of subgraphs whose logs stay open

SEGMENT_BYTES = 256 * 1024  # new elements are cut into segments of about this size
SEAL_COUNT = 32  # so many new elements, or so many new bytes, are sealed
SEAL_BYTES = 32 * 1024
SEAL_KEYFRAMES = 16  # keyframes are similar, so a few of them compress well
SEAL_EARLY = 16  # new elements sealed while the last segment is small, so that loads read few rows
EARLY_BELOW = 64  # elements of that segment
FULL_COUNT = 256  # a sealed segment grows up to so many elements or bytes
FULL_BYTES = 64 * 1024


@quick
class TailSegment(NamedTuple):
    """The elements of a stored segment, their bytes, and the bytes of the segment."""

    elements: list[bytes]
    size: int
    stored: int


Tail: TypeAlias = dict[int, TailSegment]  # by start


@dataclass(slots=True)
class OpenLog:
    """An open log, ripe for sealing at `least` new elements, or many new bytes.

    The old segment is the first one of the tail, if it looks sealed: it has several elements, or
    many bytes. It grows when the log is sealed again.
    """

    log: int
    next: int = 0
    least: int = SEAL_COUNT
    tail: Tail = field(default_factory=dict)
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

    def __init__(self, lock: Lock, token: Callable[[int], int], *, exclusive: bool = False) -> None:
        self._lock = lock
        self._token = token
        self._exclusive = exclusive
        self._logs: dict[tuple[str, str], OpenLog] = {}
        self._by_number: dict[int, OpenLog] = {}
        self._nested: dict[str, list[str]] = {}  # channels with logs, by namespace
        self._ripe: dict[int, OpenLog] = {}
        self.tails = 0  # bytes of all tails
        self._next_log = 1
        self._counts = False
        self._ends: Mapping[int, int] = {}  # of logs, as the store knows them

    def clear(self) -> None:
        """Forget all logs. The caller holds the lock."""
        self._logs.clear()
        self._by_number.clear()
        self._nested.clear()
        self._ripe.clear()
        self.tails = 0

    def count_up(self) -> None:
        """Number the logs of the root namespace in sequence from now on: it has no others."""
        self._counts = True

    def abandon(self) -> None:
        """Continue in logs with other numbers, as these were taken. The caller holds the lock."""
        self.clear()
        self._next_log = self._token(NEW_LOG_BITS)

    def follow(self, ends: Mapping[int, int]) -> None:
        """Continue open logs where others have ended them. The caller holds the lock."""
        self._ends = ends
        for number, log in self._by_number.items():
            log.next = max(log.next, ends.get(number, 0))

    def end_of(self, log: int) -> int:
        """Return the end of a log as the store knows it, or 0."""
        return self._ends.get(log, 0)

    def reserve(self, ns: str, channel: str, count: int) -> tuple[int, int]:
        """Reserve positions of the channel's log; return its number and the first position."""
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
        if self._exclusive:
            return EXCLUSIVE + self._token(EXCLUSIVE.bit_length() - 1)
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
            self.tails -= log.new_bytes + log.old_bytes

    def resume(self, ns: str, channel: str, log: int, stop: int) -> None:
        """Continue a log that another process may have written, if none is open."""
        if self._exclusive or log >= EXCLUSIVE:
            return
        with self._lock:
            self._next_log = max(self._next_log, log + 1) if not ns else self._next_log
            if (ns, channel) not in self._logs:
                self._open(ns, channel, log, stop)

    def note_tails(self, tails: Iterable[tuple[int, int, TailSegment]]) -> None:
        """Remember committed small segments (log, start, segment), to be sealed later.

        The caller holds the lock.
        """
        for number, start, part in tails:
            log = self._by_number.get(number)
            count = len(part.elements)
            if log is None:
                continue
            if log.tail and _overlaps(log.tail, start, start + count):
                if not _covers(log.tail, start, start + count):
                    continue
                self._forget_tail(log)  # (another process has joined segments of it)
            is_old = not log.tail and (count >= SEAL_EARLY // 4 or part.size >= SEAL_BYTES)
            log.tail[start] = part
            if is_old:
                log.old_count += count
                log.old_bytes += part.size
            else:
                log.new_count += count
                log.new_bytes += part.size
            self.tails += part.size
            if log.is_ripe:
                self._ripe[number] = log

    def forget_tails(self) -> None:
        """Forget all small segments. The caller holds the lock."""
        for log in self._by_number.values():
            self._forget_tail(log)
        self._ripe.clear()

    def _forget_tail(self, log: OpenLog) -> None:
        self.tails -= log.new_bytes + log.old_bytes
        log.tail.clear()
        log.new_count = log.new_bytes = log.old_count = log.old_bytes = 0

    def begin_seals(self) -> list[tuple[OpenLog, Tail]]:
        """Return the ripe logs, each with a copy of its tail; `end_seal` must follow."""
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
                before = log.new_bytes + log.old_bytes
                log.new_count = sum([len(part.elements) for part in log.tail.values()])
                log.new_bytes = sum([part.size for part in log.tail.values()])
                log.tail |= grows
                log.old_count = sum([len(part.elements) for part in grows.values()])
                log.old_bytes = sum([part.size for part in grows.values()])
                if self._by_number.get(log.log) is log:
                    self.tails += log.new_bytes + log.old_bytes - before
                    if not log.is_ripe:
                        self._ripe.pop(log.log, None)


def _overlaps(tail: Tail, start: int, stop: int) -> bool:
    last = max(tail, default=-1)
    if start > last:  # most arrive in order, and existing ones do not overlap
        return last >= 0 and start < last + len(tail[last].elements)
    return start in tail or any(
        at < stop and start < at + len(part.elements) for at, part in tail.items()
    )


def _covers(tail: Tail, start: int, stop: int) -> bool:
    """Return True if a segment is longer than each part of a tail that it overlaps, and has it."""
    parts = [(at, at + len(part.elements)) for at, part in tail.items()]
    return all(
        start <= at and end <= stop and (at, end) != (start, stop)
        for at, end in parts
        if at < stop and start < end
    )


class Appender:
    """Collects the new elements of one batch for the logs of one namespace."""

    __slots__ = (
        *("logs", "ns", "compression", "home", "size", "stored", "dropped", "tails"),
        *("_borrowed", "_runs", "_sealed", "_seals"),
    )

    def __init__(self, logs: OpenLogs, ns: str, compression: Compression) -> None:
        self.logs = logs
        self.ns = ns
        self.compression = compression
        self.home = BatchSegments()
        self.size = 0  # bytes of the elements
        self.stored = 0  # bytes by which the committed segments grow (or shrink)
        self._runs: list[tuple[int, int, list[bytes], int]] = []  # log, start, elements, bytes
        # Most batches have none of these.
        self.dropped: tuple[tuple[int, int, int], ...] = ()  # log, start, count
        self._borrowed: dict[tuple[int, int], Segment] | None = None
        self._sealed: tuple[Segment, ...] = ()
        self._seals: tuple[tuple[OpenLog, Tail, Tail], ...] = ()
        self.tails: list[tuple[int, int, TailSegment]] = []  # (log, start, segment)

    def append(self, channel: str, data: list[bytes]) -> tuple[int, int]:
        """Add elements to the channel's log; return log and first position. Takes the list over."""
        log, start = self.logs.reserve(self.ns, channel, len(data))
        size = sum(map(len, data))
        self._runs.append((log, start, data, size))
        self.size += size
        return log, start

    def fill(self, log: int, pos: int, data: bytes) -> None:
        """Put an element at the position that was reserved for it."""
        self._runs.append((log, pos, [data], len(data)))
        self.size += len(data)

    def borrow(self, home: BatchSegments, span: Span) -> None:
        """Refer to elements of another batch, carrying their segments until it is committed."""
        if home.committed or home is self.home:
            return
        if self._borrowed is None:
            self._borrowed = {}
        for segment in home.holding(span):
            self._borrowed[segment.log, segment.start] = segment

    def segments(self) -> tuple[Segment, ...]:
        """Pack all segments that the batch must add. Called once, at the end."""
        runs = self._runs
        if not runs and self._borrowed is None:
            return self._sealed
        if len(runs) > 1:
            runs = _joined(runs)
        own: list[Segment] = []
        for log, start, data, size in runs:
            if len(data) == 1 or size < SEGMENT_BYTES:
                own.append(self._pack(log, start, data, size))
            else:
                own += self._cut(log, start, data)
        self.home.segments = (*(self._borrowed or {}).values(), *own)
        return (*self._sealed, *self.home.segments)

    def _cut(self, log: int, start: int, data: list[bytes]) -> list[Segment]:
        found, part, size = [], list[bytes](), 0
        for element in data:
            part.append(element)
            size += len(element)
            if size >= SEGMENT_BYTES:
                found.append(self._pack(log, start, part, size))
                start, part, size = start + len(part), [], 0
        if part:
            found.append(self._pack(log, start, part, size))
        return found

    def _pack(self, log: int, start: int, data: list[bytes], size: int) -> Segment:
        segment = Segment(log, start, len(data), pack(data, self.compression))
        stored = len(segment.data)
        self.stored += stored
        if size < FULL_BYTES:
            self.tails.append((log, start, TailSegment(data, size, stored)))
        return segment

    def seal(self) -> None:
        """Join the small segments of ripe logs."""
        for log, tail in self.logs.begin_seals():
            if self._borrowed and any((log.log, start) in self._borrowed for start in tail):
                # Stored meanwhile, perhaps by another process: the store compares the two.
                self.logs.end_seal(log, {}, {})
                continue
            grows: Tail = {}
            runs: list[list[int]] = []  # starts of segments that follow one another
            stop = -1
            for start in sorted(tail):
                if start == stop:
                    runs[-1].append(start)
                else:
                    runs.append([start])
                stop = start + len(tail[start].elements)
            for run in runs:
                joined = tail[run[0]] if len(run) == 1 else self._join(log.log, run, tail)
                full = len(joined.elements) >= FULL_COUNT or joined.size >= FULL_BYTES
                grows = {} if full else {run[0]: joined}
            self._seals += ((log, tail, grows),)

    def _join(self, log: int, run: list[int], tail: Tail) -> TailSegment:
        elements = [e for start in run for e in tail[start].elements]
        segment = Segment(log, run[0], len(elements), pack(elements, self.compression))
        self._sealed += (segment,)
        self.dropped += tuple([(log, start, len(tail[start].elements)) for start in run])
        self.stored += len(segment.data) - sum([tail[start].stored for start in run])
        return TailSegment(elements, sum([tail[start].size for start in run]), len(segment.data))

    def committed(self) -> None:
        """Mark the batch as committed."""
        self.home.committed = True
        self.home.segments = ()  # no other batch has to carry them now
        for log, tail, grows in self._seals:
            self.logs.end_seal(log, tail, grows)

    def failed(self) -> None:
        """Allow others to seal the logs of this batch."""
        for log, _, _ in self._seals:
            self.logs.end_seal(log, {}, {})


def _joined(
    runs: list[tuple[int, int, list[bytes], int]],
) -> list[tuple[int, int, list[bytes], int]]:
    joined: list[tuple[int, int, list[bytes], int]] = []
    for log, start, data, size in sorted(runs, key=lambda run: run[:2]):
        last = joined[-1] if joined else None
        if last is not None and (last[0], last[1] + len(last[2])) == (log, start):
            last[2].extend(data)
            joined[-1] = (*last[:3], last[3] + size)
        else:
            joined.append((log, start, data, size))
    return joined


NO_KEY: Any = object()
SPANS_FREE = 32  # spans that a value may have without being rewritten


@dataclass(slots=True)
class Element:
    """One element on its way into a log: its position, or the bytes to put there."""

    index: int
    item: Any
    copy: Any
    key: Any
    span: Span | None = None
    data: bytes = b""
    size: int = 0
    shadow: Shadow | None = None


def new_elements(now: Comparison) -> list[Element]:
    return [
        Element(
            i,
            now.items[i - now.first],
            now.watched.copies[i - now.start],
            NO_KEY if now.keys is None else now.keys[i],
        )
        for piece in now.pieces
        if piece.old is None
        for i in range(piece.start, piece.stop)
    ]


def in_common(seen: SeenSequence, offset: int, fresh: list[Element], at: int) -> int:
    """Count the fresh elements from `at` on that are those seen from `offset` on."""
    keys = [NO_KEY] * seen.size if seen.keys is None else seen.keys
    count = 0
    for element, item, key in zip(fresh[at:], seen.items[offset:], keys[offset:], strict=False):
        same_key = element.key is key or (
            type(element.key) is type(key) and is_leaf(key) and bool(element.key == key)
        )
        if element.item is not item or not same_key:
            break
        count += 1
    return count


def spans_of(pieces: list[Piece], fresh: list[Element], old: RunValue | None) -> list[Span]:
    """Return the spans of the pieces, in order."""
    spans: list[Span] = []
    rest = iter(fresh)
    for piece in pieces:
        count = piece.stop - piece.start
        if piece.old is not None and old is not None:
            every = piece.old == 0 and count == old.seen.size
            spans += old.spans if every else refs.cut(old.spans, piece.old, piece.old + count)
        else:
            spans += [e.span for e in islice(rest, count) if e.span is not None]
    return spans


def too_scattered(spans: tuple[Span, ...], weight: int) -> bool:
    """Return True if the spans take as much space as the value.

    Each costs about 6 bytes in every following manifest. After n changes that each split one more
    span, n * n * 3 bytes were spent on spans.
    """
    return len(spans) > SPANS_FREE and 3 * len(spans) ** 2 > weight


def was_changed(exc: UnserializableError) -> bool:
    """Return True if a value was refused because parts that are not copied changed meanwhile."""
    cause = exc.__cause__
    return isinstance(cause, RuntimeError) and not isinstance(cause, RecursionError)


def passing(value: Any) -> bool:
    """Return True for an object that LangGraph is about to give an id, as it does to messages."""
    cls: type = type(value)
    if not is_state(value) or not layout(cls).has_dict:
        return False
    fields = object.__getattribute__(value, "__dict__")
    return fields.get("id", value) is None
