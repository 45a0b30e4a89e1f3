"""The elements that one batch adds to logs, and the segments they travel in.

Invariant: every position handed out is in `segments()` once they are packed, and a
borrowed position's segment too, as long as its own batch is not known to be committed.
"""

from __future__ import annotations

from threadkeep.codec.frame import Compression, pack
from threadkeep.engine.model import Segment, Span
from threadkeep.engine.open_logs import OpenLog, Stored, Tail
from threadkeep.engine.snapshots import Home
from threadkeep.engine.working_set import ThreadMemory

SEGMENT_BYTES = 256 * 1024  # a run of new elements is cut into segments of about this size
FULL_COUNT = 256  # a sealed segment takes more until it holds so many elements or bytes
FULL_BYTES = 64 * 1024


class Appender:
    """Collects new elements for `memory`'s logs of one namespace.

    `size` are the bytes of the elements added so far, `stored` those that segments take more once
    the batch is there, or less; `dropped` are the segments that a seal replaces, as log, start
    and count.
    """

    __slots__ = (
        *("memory", "ns", "compression", "home", "size", "stored", "dropped"),
        *("_borrowed", "_runs", "_sealed", "_seals", "_tails"),
    )

    def __init__(self, memory: ThreadMemory, ns: str, compression: Compression) -> None:
        self.memory = memory
        self.ns = ns
        self.compression = compression
        self.home = Home()
        self.size = self.stored = 0
        self._runs: list[tuple[int, int, list[bytes]]] = []
        # Most batches have none of these.
        self.dropped: tuple[tuple[int, int, int], ...] = ()
        self._borrowed: dict[tuple[int, int], Segment] | None = None
        self._sealed: tuple[Segment, ...] = ()
        self._seals: tuple[tuple[OpenLog, Tail, Tail], ...] = ()
        self._tails: list[tuple[int, int, Stored]] = []

    def append(self, channel: str, data: list[bytes]) -> tuple[int, int]:
        """Add elements to the channel's log, in a list that is given up; the log and the first."""
        log, start = self.memory.logs.reserve(self.ns, channel, len(data))
        self._runs.append((log, start, data))
        self.size += sum(map(len, data))
        return log, start

    def fill(self, log: int, pos: int, data: bytes) -> None:
        """Put an element at a position that was kept for it."""
        self._runs.append((log, pos, [data]))
        self.size += len(data)

    def borrow(self, home: Home, span: Span) -> None:
        """Refer to elements of another batch; carry their segments if those may not be there."""
        if home.committed or home is self.home:
            return
        if self._borrowed is None:
            self._borrowed = {}
        for segment in home.holding(span):
            self._borrowed[segment.log, segment.start] = segment

    def segments(self) -> tuple[Segment, ...]:
        """All segments that the batch must add. Called once, when all is appended."""
        runs = self._runs
        if not runs and self._borrowed is None:
            return self._sealed
        if len(runs) > 1:
            runs = _joined(runs)
        own = [segment for run in runs for segment in self._cut(*run)]
        borrowed = () if self._borrowed is None else self._borrowed.values()
        self.home.segments = (*borrowed, *own)
        return (*self._sealed, *self.home.segments)

    def _cut(self, log: int, start: int, data: list[bytes]) -> list[Segment]:
        """The elements in segments, which will be tails of their log if they are small."""
        if len(data) == 1:
            return [self._own(log, start, data)]
        found, part, size = [], list[bytes](), 0
        for element in data:
            part.append(element)
            size += len(element)
            if size >= SEGMENT_BYTES:
                found.append(self._own(log, start, part))
                start, part, size = start + len(part), [], 0
        if part:
            found.append(self._own(log, start, part))
        return found

    def _own(self, log: int, start: int, data: list[bytes]) -> Segment:
        segment = self._segment(log, start, data)
        size = len(segment.data)
        self.stored += size
        if sum(map(len, data)) < FULL_BYTES:
            self._tails.append((log, start, Stored(data, size)))
        return segment

    def _segment(self, log: int, start: int, data: list[bytes]) -> Segment:
        return Segment(log, start, len(data), pack(data, self.compression))

    # -- sealing ---------------------------------------------------------------------

    def seal(self) -> None:
        """Join the small segments of logs that have gathered enough of them.

        The joined segment takes the next ones in too, until it is full: a few rewrites
        of some kilobytes for a history that compresses well.
        """
        for log, tail in self.memory.logs.begin_seals():
            grows: Tail = {}
            for run in _contiguous(tail):
                joined = tail[run[0]] if len(run) == 1 else self._join(log.log, run, tail)
                elements = joined.elements
                full = len(elements) >= FULL_COUNT or sum(map(len, elements)) >= FULL_BYTES
                grows = {} if full else {run[0]: joined}
            self._seals += ((log, tail, grows),)

    def _join(self, log: int, run: list[int], tail: Tail) -> Stored:
        elements = [e for start in run for e in tail[start].elements]
        segment = self._segment(log, run[0], elements)
        self._sealed += (segment,)
        self.dropped += tuple([(log, start, len(tail[start].elements)) for start in run])
        self.stored += len(segment.data) - sum([tail[start].size for start in run])
        return Stored(elements, len(segment.data))

    # -- afterwards ------------------------------------------------------------------

    def committed(self) -> None:
        """Tell the working set what is stored now."""
        self.home.committed = True
        self.home.segments = ()  # nobody will have to carry them
        for log, tail, grows in self._seals:
            self.memory.logs.end_seal(log, tail, grows)
        if self._tails:
            self.memory.logs.note_tails(self._tails)

    def failed(self) -> None:
        """Let others seal what this batch could not."""
        for log, _, _ in self._seals:
            self.memory.logs.end_seal(log, {}, {})


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
