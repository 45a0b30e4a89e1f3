"""The elements that one batch adds to logs, and the segments they travel in.

Invariant: every position handed out is in `segments()` once they are packed, and a
borrowed position's segment too, as long as its own batch is not known to be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from threadkeep.codec.frame import Compression, pack
from threadkeep.engine.held import Home
from threadkeep.engine.model import Segment, Span
from threadkeep.engine.open_logs import OpenLog, Stored, Tail
from threadkeep.engine.working_set import ThreadMemory

SEGMENT_BYTES = 256 * 1024  # a run of new elements is cut into segments of about this size
SEAL_COUNT = 32  # so many new elements, or so many new bytes, are sealed
SEAL_BYTES = 32 * 1024
SEAL_KEYFRAMES = 16  # keyframes are much alike: a few of them compress well
FULL_COUNT = 256  # a sealed segment takes more until it holds so many elements or bytes
FULL_BYTES = 64 * 1024
KEYFRAMES = ""  # the channel whose log holds the keyframes


@dataclass(slots=True)
class Appender:
    """Collects new elements for `memory`'s logs of one namespace."""

    memory: ThreadMemory
    ns: str
    compression: Compression
    home: Home = field(default_factory=Home)
    size: int = 0  # bytes of the elements added so far
    stored: int = 0  # bytes that segments take more, once the batch is there, or less
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    _runs: list[tuple[int, int, list[bytes]]] = field(default_factory=list)
    _borrowed: dict[tuple[int, int], Segment] = field(default_factory=dict)
    _sealed: list[Segment] = field(default_factory=list)
    _own: dict[tuple[int, int], int] = field(default_factory=dict)  # bytes of each new segment
    _seals: list[tuple[OpenLog, Tail, Tail]] = field(default_factory=list)

    def append(self, channel: str, data: Sequence[bytes]) -> tuple[int, int]:
        """Add elements to the channel's log: the log and the first position."""
        log, start = self.memory.logs.reserve(self.ns, channel, len(data))
        self._runs.append((log, start, list(data)))
        self.size += sum(map(len, data))
        return log, start

    def fill(self, log: int, pos: int, data: bytes) -> None:
        """Put an element at a position that was kept for it."""
        self._runs.append((log, pos, [data]))
        self.size += len(data)

    def borrow(self, home: Home, span: Span) -> None:
        """Refer to elements of another batch; carry their segments if those may not be there."""
        if home is not self.home and not home.committed:
            for segment in home.holding(span):
                self._borrowed[segment.log, segment.start] = segment

    def segments(self) -> tuple[Segment, ...]:
        """All segments that the batch must add. Called once, when all is appended."""
        if len(self._runs) > 1:
            self._runs = _joined(self._runs)
        own = [s for run in self._runs for s in self._cut(*run)]
        self.home.segments = (*self._borrowed.values(), *own)
        self._own = {(s.log, s.start): len(s.data) for s in own}
        self.stored += sum(self._own.values())
        return (*self._sealed, *self.home.segments)

    def _cut(self, log: int, start: int, data: list[bytes]) -> list[Segment]:
        found, part, size = [], list[bytes](), 0
        for element in data:
            part.append(element)
            size += len(element)
            if size >= SEGMENT_BYTES:
                found.append(self._segment(log, start, part))
                start, part, size = start + len(part), [], 0
        if part:
            found.append(self._segment(log, start, part))
        return found

    def _segment(self, log: int, start: int, data: list[bytes]) -> Segment:
        return Segment(log, start, len(data), pack(data, self.compression))

    # -- sealing ---------------------------------------------------------------------

    def seal(self) -> None:
        """Join the small segments of logs that have gathered enough of them.

        The joined segment takes the next ones in too, until it is full: a few rewrites
        of some kilobytes for a history that compresses well.
        """
        for log, tail in self.memory.logs.begin_seals(_has_enough):
            grows: Tail = {}
            for run in _contiguous(tail):
                joined = tail[run[0]] if len(run) == 1 else self._join(log.log, run, tail)
                elements = joined.elements
                full = len(elements) >= FULL_COUNT or sum(map(len, elements)) >= FULL_BYTES
                grows = {} if full else {run[0]: joined}
            self._seals.append((log, tail, grows))

    def _join(self, log: int, run: list[int], tail: Tail) -> Stored:
        elements = [e for start in run for e in tail[start].elements]
        segment = self._segment(log, run[0], elements)
        self._sealed.append(segment)
        self.dropped += [(log, start, len(tail[start].elements)) for start in run]
        self.stored += len(segment.data) - sum([tail[start].size for start in run])
        return Stored(elements, len(segment.data))

    # -- afterwards ------------------------------------------------------------------

    def committed(self) -> None:
        """Tell the working set what is stored now."""
        self.home.committed = True
        self.home.segments = ()  # nobody will have to carry them
        for log, tail, grows in self._seals:
            self.memory.logs.end_seal(log, tail, grows)
        for log_number, start, data in self._runs:
            if sum(map(len, data)) < FULL_BYTES:
                stored = Stored(data, self._own[log_number, start])
                self.memory.logs.note_tail(log_number, start, stored)

    def failed(self) -> None:
        """Let others seal what this batch could not."""
        for log, _, _ in self._seals:
            self.memory.logs.end_seal(log, {}, {})


def _has_enough(channel: str, log: OpenLog) -> bool:
    """Whether the log's tail is worth sealing."""
    count = SEAL_KEYFRAMES if channel == KEYFRAMES else SEAL_COUNT
    return log.new_count >= count or (log.new_bytes >= SEAL_BYTES and len(log.tail) > 1)


def _joined(runs: list[tuple[int, int, list[bytes]]]) -> list[tuple[int, int, list[bytes]]]:
    """The same elements in as few runs as can be."""
    joined: list[tuple[int, int, list[bytes]]] = []
    for log, start, data in sorted(runs, key=lambda run: run[:2]):
        last = joined[-1] if joined else None
        if last is not None and (last[0], last[1] + len(last[2])) == (log, start):
            last[2].extend(data)
        else:
            joined.append((log, start, data))
    return joined


def _contiguous(tail: Tail) -> list[list[int]]:
    """Group the starts of segments that lie one behind the other."""
    runs: list[list[int]] = []
    stop = -1
    for start in sorted(tail):
        if start == stop:
            runs[-1].append(start)
        else:
            runs.append([start])
        stop = start + len(tail[start].elements)
    return runs
