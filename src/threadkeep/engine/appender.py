"""The elements that one batch adds to logs, and the segments they travel in.

Invariant: every position handed out is in `segments()` once they are packed, and a
borrowed position's segment too, as long as its own batch is not known to be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from threadkeep.codec.frame import Compression, pack
from threadkeep.engine.model import Segment, Span
from threadkeep.engine.working_set import Home, OpenLog, ThreadMemory

SEGMENT_BYTES = 256 * 1024  # a run of new elements is cut into segments of about this size
SEAL_COUNT = 64  # a tail of this many elements, or of this many bytes, is sealed
SEAL_BYTES = 48 * 1024


@dataclass(slots=True)
class _Seal:
    """Small neighbouring segments of a log that become one if the batch succeeds."""

    log: OpenLog
    starts: list[int]


@dataclass(slots=True)
class Appender:
    """Collects new elements for `memory`'s logs of one namespace."""

    memory: ThreadMemory
    ns: str
    compression: Compression
    home: Home = field(default_factory=Home)
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    _runs: list[tuple[int, int, list[bytes]]] = field(default_factory=list)
    _borrowed: dict[tuple[int, int], Segment] = field(default_factory=dict)
    _sealed: list[Segment] = field(default_factory=list)
    _seals: list[_Seal] = field(default_factory=list)

    def append(self, channel: str, data: Sequence[bytes]) -> tuple[int, int]:
        """Add elements to the channel's log: the log and the first position."""
        log, start = self.memory.reserve(self.ns, channel, len(data))
        self._runs.append((log, start, list(data)))
        return log, start

    def borrow(self, home: Home, span: Span) -> None:
        """Refer to elements of another batch; carry their segments if those may not be there."""
        if home is not self.home and not home.committed:
            for segment in home.holding(span):
                self._borrowed[segment.log, segment.start] = segment

    def segments(self) -> tuple[Segment, ...]:
        """All segments that the batch must add. Called once, when all is appended."""
        own = [s for run in self._runs for s in self._cut(*run)]
        self.home.segments = (*self._borrowed.values(), *own)
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
        """Join the small segments of logs that have gathered enough of them."""
        for log in self.memory.open_logs():
            size = sum([len(e) for part in log.tail.values() for e in part])
            count = sum(map(len, log.tail.values()))
            if not log.sealing and (count >= SEAL_COUNT or (size >= SEAL_BYTES and count > 1)):
                self._seal(log)

    def _seal(self, log: OpenLog) -> None:
        log.sealing = True
        starts = sorted(log.tail)
        self._seals.append(_Seal(log, starts))
        for run in _contiguous(log.tail, starts):
            if len(run) > 1:
                elements = [e for start in run for e in log.tail[start]]
                self._sealed.append(self._segment(log.log, run[0], elements))
                self.dropped += [(log.log, start, len(log.tail[start])) for start in run]

    # -- afterwards ------------------------------------------------------------------

    def committed(self) -> None:
        """Tell the working set what is stored now."""
        self.home.committed = True
        for seal in self._seals:
            seal.log.sealing = False
            for start in seal.starts:
                seal.log.tail.pop(start, None)
        for log, start, data in self._runs:
            if sum(map(len, data)) < SEAL_BYTES:
                self.memory.note_tail(log, start, data)

    def failed(self) -> None:
        """Let others seal what this batch could not."""
        for seal in self._seals:
            seal.log.sealing = False


def _contiguous(tail: dict[int, list[bytes]], starts: list[int]) -> list[list[int]]:
    """Group the starts of segments that lie one behind the other."""
    runs: list[list[int]] = []
    stop = -1
    for start in starts:
        if start == stop:
            runs[-1].append(start)
        else:
            runs.append([start])
        stop = start + len(tail[start])
    return runs
