"""A time axis on which long gaps are short."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

_LONG = 0.1  # a gap is compressed if it is longer than this part of the time in which steps ran
_SHORT = 3.0  # percent of the axis that a compressed gap takes
_GAPS = 40.0  # percent that all of them may take


class Pause(NamedTuple):
    """A compressed gap: its seconds, and where it is, in percent."""

    seconds: float
    left: float
    right: float


class Axis:
    """Places moments, in seconds, between 0 and 100 percent, by the start and end of each step."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        edges: list[float] = []  # starts and ends in turn
        for start, end in sorted(spans):
            if edges and start <= edges[-1]:
                edges[-1] = max(edges[-1], end)
            else:
                edges += [start, end]
        sizes = [end - start for start, end in pairwise(edges)]
        widths, least = [*sizes], _LONG * sum(sizes[::2])
        long = [n for n in range(1, len(sizes), 2) if sizes[n] > least]
        part = min(_SHORT, _GAPS / max(len(long), 1))
        short = part * (sum(sizes) - sum(sizes[n] for n in long)) / (100 - part * len(long))
        for n in long:
            widths[n] = short or 1.0
        total = sum(widths) or 1.0
        self._edges = edges
        self._places = [100 * width / total for width in accumulate(widths, initial=0.0)]
        self.gaps = [Pause(sizes[n], *self._places[n : n + 2]) for n in long]

    def at(self, moment: float) -> float:
        """Return the percent of a moment."""
        n = bisect_right(self._edges, moment)
        if not 0 < n < len(self._edges):
            return self._places[-1] if n else 0.0
        (start, end), (left, right) = self._edges[n - 1 : n + 1], self._places[n - 1 : n + 1]
        return left + (moment - start) / (end - start) * (right - left)
