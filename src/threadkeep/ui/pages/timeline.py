"""The steps of a thread as bars on a time axis."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Any, NamedTuple

from starlette.responses import Response

from threadkeep._core.engine.rows import id_after
from threadkeep.threads.steps import moment_of
from threadkeep.ui.page import MOST, Asked, route
from threadkeep.ui.pages.growth import growth_of
from threadkeep.ui.pages.steps import StepRow, window

_BARS = MOST // 2  # checkpoints of a timeline: a row for each, and for the next nodes
_PAUSE = 0.1  # a gap is compressed if it is longer than this part of the time in which steps ran
_PART = 3.0  # percent of the axis that a compressed gap takes
_PARTS = 40.0  # percent that all of them may take
_SMALL = 2_000_000  # bytes of a thread whose steps are measured


class Pause(NamedTuple):
    """A compressed gap: its seconds, and its place, in percent."""

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
        widths, least = [*sizes], _PAUSE * sum(sizes[::2])
        long = [n for n in range(1, len(sizes), 2) if sizes[n] > least]
        part = min(_PART, _PARTS / max(len(long), 1))
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


class Bar(NamedTuple):
    """A step on a time axis, in percent of the axis. With `is_next`, the nodes after the step."""

    row: StepRow
    left: float
    width: float = 0.0
    is_next: bool = False


@route("/timeline")
async def _timeline(request: Asked) -> Response:
    asked = request.query_params
    start, end = (moment_of(f"{asked.get(name)}+00:00") for name in ("from", "to"))
    bounds = [asked.get("before", ""), "" if end is None else id_after(int(end * 1_000_000))]
    steps = await window(request, _BARS, min(filter(None, bounds), default=""))
    if start is not None and any((row.step.end or start) < start for row in steps.rows):
        steps = steps._replace(older="")
    timed = [(row, row.step.end) for row in steps.rows if row.step.end is not None]
    rows = [row for row, at in timed if (start or 0) <= at <= (inf if end is None else end)]
    if (only := asked.get("only")) == "failed":
        rows = [row for row in rows if row.step.failed or row.step.retried]
    elif only == "waiting":
        rows = [row for row in rows if row.step.waiting or row.step.waited]
    is_small = request.page.is_own and 0 < steps.info.bytes < _SMALL
    growth = await growth_of(request, steps.info.id) if is_small and rows else None
    measures = is_small and rows and not (growth and growth.task.done())
    shown: Any = {"bars": _bars(rows), "growth": growth, "measures": measures}
    return request.render("timeline.html", steps=steps, **shown)


def _bars(rows: Sequence[StepRow]) -> list[Bar | Pause]:
    """Return bars in order of their begin, with the pauses between them."""
    times = [(row.step.is_idle, row.step.seconds or 0, row.step.end or 0.0) for row in rows]
    spans = [(end if is_idle else end - seconds, end) for is_idle, seconds, end in times]
    axis, bars = Axis(spans), list[tuple[float, float, Bar | Pause]]()
    for row, (start, end) in zip(rows, spans, strict=True):
        left, right = axis.at(start), axis.at(end)
        order = 0 if row.step.is_idle else 1 / (1 + right - left)  # (a subgraph after its node)
        bars.append((left, order, Bar(row, left, right - left)))
        if row.step.next:
            bars.append((right, 2, Bar(row, right, is_next=True)))
    bars += [(gap.right, -1, gap) for gap in axis.gaps]
    return [bar for *_, bar in sorted(bars, key=lambda bar: bar[:2])]
