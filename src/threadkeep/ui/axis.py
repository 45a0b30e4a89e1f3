"""A time axis on which long gaps are short."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

_LONG = 0.1  # a gap is compressed if it is longer than this part of the time in which steps ran
_SHORT = 3.0  # percent of the axis that a compressed gap takes
_GAPS = 40.0  # percent that all of them may take


class AxisPart(NamedTuple):
    """A part of the axis: seconds since 1970, and percent of its width."""

    start: float
    end: float
    left: float
    right: float
    is_gap: bool


class Axis:
    """Places moments between 0 and 100 percent.

    Args:
        spans: start and end of each step.
    """

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        merged: list[list[float]] = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        least = _LONG * sum(end - start for start, end in merged)
        cuts = [
            (before[1], after[0])
            for before, after in pairwise(merged)
            if after[0] - before[1] > least
        ]
        self.pieces = _pieces(merged, cuts) if merged else []

    @property
    def gaps(self) -> list[AxisPart]:
        """The compressed gaps."""
        return [one for one in self.pieces if one.is_gap]

    def at(self, moment: float) -> float:
        """Return the percent of a moment."""
        found = bisect_right(self.pieces, moment, key=lambda one: one.start) - 1
        if found < 0:
            return 0.0
        start, end, left, right, _ = self.pieces[found]
        part = (moment - start) / (end - start) if end > start else 0.0
        return left + min(part, 1.0) * (right - left)


def _pieces(merged: list[list[float]], cuts: list[tuple[float, float]]) -> list[AxisPart]:
    width = min(_SHORT, _GAPS / len(cuts)) if cuts else 0.0
    edges = [merged[0][0], *[edge for cut in cuts for edge in cut], merged[-1][1]]
    spans = list(zip(edges[::2], edges[1::2], strict=True))
    long = sum(end - start for start, end in spans)
    rest, left, pieces = 100.0 - width * len(cuts), 0.0, []
    for n, (start, end) in enumerate(spans):
        share = (end - start) / long if long else 1 / len(spans)
        right = left + rest * share
        pieces.append(AxisPart(start, end, left, right, is_gap=False))
        if n < len(cuts):
            pieces.append(AxisPart(*cuts[n], right, right + width, is_gap=True))
        left = right + width
    return pieces
