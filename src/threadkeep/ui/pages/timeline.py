"""The steps of a thread as bars on a time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.threads.steps import Step, moment_of
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
    start, end = (moment_of(f"{asked.get(name)}+00:00") for name in ("from", "to"))
    bounds = [asked.get("before", ""), "" if end is None else _id_after(end)]
    steps = await window(request, _BARS, min(filter(None, bounds), default=""))
    if start is not None and any((row.step.end or start) < start for row in steps.rows):
        steps = steps._replace(older="")
    only = asked.get("only", "")
    bars = _bars([row for row in steps.rows if _is_asked(row.step, only, start, end)])
    return render(request, "timeline.html", steps=steps, bars=bars)


def _id_after(moment: float) -> str:
    """Return an id that is greater than those of LangGraph until this moment (UUID version 6)."""
    ticks = max(int(moment * 10_000_000) + 0x01B21DD213814000, 0)
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0xFFF:03x}-8000-000000000000"


def _is_asked(step: Step, only: str, start: float | None, end: float | None) -> bool:
    at = step.end
    if at is None or (start is not None and at < start) or (end is not None and at > end):
        return False
    is_failed, waits = bool(step.failed or step.retried), bool(step.waiting or step.waited)
    return {"failed": is_failed, "waits": waits}.get(only, True)


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


ROUTES = [Route("/timeline", _timeline)]
