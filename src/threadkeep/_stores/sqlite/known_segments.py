"""Segments as the writing connection remembers them: the gaps of logs, and the last ones stored."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

from threadkeep._core.engine.model import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_LOGS = 64  # of a heap
_MOST_GAPS = 4  # of a log, the last ones
_NO_END = 2**63
_LARGEST = 16 * 1024  # bytes of a recent segment
_MOST_RECENT = 1024 * 1024  # bytes of all recent segments
_ROW_BYTES = 400  # of a recent segment, without its data

Gaps: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of positions of a log without a segment: start and stop. The last one has no end."""

NO_SEGMENTS: Gaps = ((0, _NO_END),)


def after(end: int) -> Gaps:
    """Return the gaps of a log if only its end is known."""
    return ((end, _NO_END),)


def emptied(gaps: Gaps, start: int, stop: int) -> Gaps:
    """Return the gaps with one more, of positions that no gap has."""
    return tuple(sorted((*gaps, (start, stop)))[-_MOST_GAPS:])


def filled(gaps: Gaps, start: int, stop: int) -> tuple[Gaps, bool]:
    """Return the gaps without the positions `start <= p < stop`, and whether all were in one."""
    left: list[tuple[int, int]] = []
    fits = False
    for first, last in gaps:
        fits = fits or (first <= start and stop <= last)
        left += [(a, b) for a, b in ((first, min(start, last)), (max(stop, first), last)) if a < b]
    return tuple(left[-_MOST_GAPS:]), fits


class KnownHeap:
    """The gaps in the logs of a thread's heap, which several threads may share.

    If `is_whole` is set, a log without an entry is empty.
    """

    __slots__ = ("_layout", "_layouts", "gaps", "is_whole")

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.gaps: dict[int, Gaps] = {}
        self._layout = object()
        self._layouts: dict[int, object] = {}

    @property
    def is_large(self) -> bool:
        """True if it has too many logs to remember."""
        return max(len(self.gaps), len(self._layouts)) > _MOST_LOGS

    def layout_of(self, log: int) -> object:
        """Return an object that is replaced by another when segments of the log are dropped."""
        return self._layouts.get(log, self._layout)

    def dropped(self, log: int) -> None:
        """Record that segments of a log are dropped."""
        self._layouts[log] = object()

    def gaps_of(self, log: int) -> Gaps | None:
        """Return the gaps of a log, or None if its end is unknown."""
        return self.gaps.get(log, NO_SEGMENTS if self.is_whole else None)


class RecentSegments(OrderedDict[tuple[int, int, int], Segment]):
    """The segments that were stored last, by heap, log and start.

    A `put` carries the segments of its writes if it was built before their commit.
    """

    _bytes = 0

    def clear(self) -> None:
        """Forget all segments."""
        super().clear()
        self._bytes = 0

    def drop(self, heap: int, places: Iterable[tuple[int, int, int]]) -> bool:
        """Forget dropped segments (log, start, count); return True if all were known."""
        are_known = True
        for log, start, count in places:
            dropped = self.pop((heap, log, start), None)
            self._bytes -= 0 if dropped is None else _bytes_of(dropped)
            are_known = are_known and dropped is not None and dropped.count == count
        return are_known

    def without(self, heap: int, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments that are not known to be stored."""
        found = self.get
        return [one for one in segments if found((heap, one.log, one.start)) != one]

    def add(self, heap: int, segments: Iterable[Segment]) -> None:
        """Remember segments that were stored just now."""
        for one in segments:
            place = (heap, one.log, one.start)
            if len(one.data) <= _LARGEST and place not in self:
                self[place] = one
                self._bytes += _bytes_of(one)
        while self._bytes > _MOST_RECENT:
            self._bytes -= _bytes_of(self.popitem(last=False)[1])


def _bytes_of(segment: Segment) -> int:
    return len(segment.data) + _ROW_BYTES
