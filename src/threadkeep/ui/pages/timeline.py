"""The steps of a thread as bars on a time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.threads.steps import Step
from threadkeep.ui.axis import Axis, Pause
from threadkeep.ui.page import MOST, render
from threadkeep.ui.pages.steps import StepRow, window

_BARS = MOST // 2  # checkpoints of a timeline: a row for each, and for what runs next


class Bar(NamedTuple):
    """A step on a time axis, in percent of the axis; with `is_next`, what follows the step."""

    row: StepRow
    left: float
    width: float = 0.0
    is_next: bool = False


async def _timeline(request: Request) -> Response:
    asked = request.query_params
    start, end = _moment(asked.get("from", "")), _moment(asked.get("to", ""))
    bounds = [asked.get("before", ""), "" if end is None else _id_after(end)]
    steps = await window(request, _BARS, min(filter(None, bounds), default=""))
    if start is not None and any((row.step.end or start) < start for row in steps.rows):
        steps = steps._replace(older="")
    bars, gaps = _bars([row for row in steps.rows if _is_asked(row.step, asked, start, end)])
    nodes = {name for row in steps.rows for name in (*row.step.ran, *row.step.next)}
    return render(
        request, "timeline.html", steps=steps, bars=bars, gaps=gaps, nodes=sorted(nodes)[:MOST]
    )


def _moment(given: str) -> float | None:
    """Return the seconds since 1970 of a moment in UTC."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(given).replace(tzinfo=UTC).timestamp()
    return None


def _id_after(moment: float) -> str:
    """Return an id that is greater than those of LangGraph until this moment (UUID version 6)."""
    ticks = max(int(moment * 10_000_000) + 0x01B21DD213814000, 0)
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0xFFF:03x}-8000-000000000000"


def _is_asked(step: Step, asked: Mapping[str, str], start: float | None, end: float | None) -> bool:
    only, node, at = asked.get("only"), asked.get("node"), step.end
    if at is None or (start is not None and at < start) or (end is not None and at > end):
        return False
    if only == "failed" and not (step.failed or step.retried):
        return False
    if only == "waits" and not (step.waiting or step.waited):
        return False
    return not node or node in step.ran or node in step.next


def _bars(rows: Sequence[StepRow]) -> tuple[list[Bar | Pause], list[Pause]]:
    """Return bars in order of their begin, with the compressed gaps before the bars after them."""
    times = [(row.step.is_idle, row.step.seconds or 0, row.step.end or 0.0) for row in rows]
    spans = [(end if is_idle else end - seconds, end) for is_idle, seconds, end in times]
    axis, bars = Axis(spans), list[tuple[tuple[float, float], Bar | Pause]]()
    for row, (start, end) in zip(rows, spans, strict=True):
        left, right = axis.at(start), axis.at(end)
        order = 0 if row.step.is_idle else 1 / (1 + right - left)  # (a subgraph after its node)
        bars.append(((left, order), Bar(row, left, right - left)))
        if row.step.next:
            bars.append(((right, 2), Bar(row, right, is_next=True)))
    bars += [((gap.right, -1), gap) for gap in axis.gaps]
    return [bar for _, bar in sorted(bars, key=lambda bar: bar[0])], axis.gaps


ROUTES = [Route("/timeline", _timeline)]
