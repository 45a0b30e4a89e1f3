"""The steps of a thread: a window of its checkpoints, with their branches, and their timeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep.errors import ThreadNotFoundError
from threadkeep.threads import ThreadStatus
from threadkeep.ui import history, lanes
from threadkeep.ui.axis import Axis, AxisPart
from threadkeep.ui.history import Step, Steps
from threadkeep.ui.page import MOST, needed, page_of, render
from threadkeep.ui.pages.live import seen

_STEPS = 60  # checkpoints of a window
_BARS = 150  # checkpoints of a timeline
_AWAY = (ThreadStatus.ARCHIVED, ThreadStatus.DELETED)  # (reading steps would restore the thread)


async def window(request: Request, thread: str) -> dict[str, Any]:
    """Return the values of `steps.html`: the newest steps of a thread, or those that are asked."""
    return {"steps": await _read(request, thread, _STEPS)}


async def _read(request: Request, thread: str, most: int, *, below: str = "") -> dict[str, Any]:
    asked, saver = request.query_params, page_of(request).saver
    info = await saver.threads.aget(thread)  # (before the steps: a later change is an event)
    if info is None:
        raise ThreadNotFoundError(thread=thread)
    before, found = below or asked.get("before", ""), None
    if info.state not in _AWAY:
        found = await history.read(
            saver,
            info,
            most,
            before=before,
            waiting=_lanes(asked.get("lanes", "")),
            inner={"no": False, "yes": True}.get(asked.get("inner", "")),
        )
    return {
        "info": info,
        "found": found,
        "before": before,
        "inner": "" if found is None else "yes" if found.inner else "no",
        "lanes": json.dumps(found.waiting) if found else "",
        "seen": seen(info),
        "lasting": lasting,
    }


def _lanes(given: str) -> list[str | None]:
    """Read the parents that lanes wait for above a window."""
    try:
        found = json.loads(given or "[]")
    except (ValueError, RecursionError):
        return []
    is_right = isinstance(found, list) and len(found) <= lanes.MOST
    return found if is_right and all(one is None or type(one) is str for one in found) else []


def lasting(seconds: float) -> str:
    """Return a duration with its unit: "120 ms", "4.2 s", "3 min", "5 h", "2 d"."""
    if 0 < seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return "<1 ms"
    for most, size, unit in ((1, 0.001, "ms"), (60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < most:
            count = seconds / size
            return f"{count:.{1 if unit != 'ms' and count < 10 else 0}f} {unit}"  # noqa: PLR2004 - digits
    return f"{seconds / 86400:,.0f} d"


async def _steps(request: Request) -> Response:
    """Answer with a window of steps, to be put into a page."""
    return render(request, "steps_window.html", **await window(request, needed(request, "id")))


# -- the timeline ------------------------------------------------------------------------


class Bar(NamedTuple):
    """A step on a time axis, or one of its nodes, in percent of the axis.

    A bar with `is_next` is a point: the nodes that run, wait or failed after the checkpoint.
    """

    step: Step
    name: str
    left: float
    width: float = 0.0
    is_next: bool = False


async def _timeline(request: Request) -> Response:
    """Show steps as bars on a time axis."""
    asked, thread = request.query_params, needed(request, "id")
    start, end = _moment(asked.get("from", "")), _moment(asked.get("to", ""))
    below = "" if end is None else _id_after(end)
    if before := asked.get("before"):
        below = min(before, below) if below else before
    steps = await _read(request, thread, _BARS, below=below)
    found: Steps | None = steps["found"]
    every = found.steps if found else []
    shown = [one for one in every if _is_asked(one, asked, start, end)]
    is_end = start is not None and any((one.end or start) < start for one in every)
    return render(
        request,
        "timeline.html",
        steps=steps,
        count=len(every),
        rows=_rows(shown),
        nodes=sorted({name for one in every for name in (*one.ran, *one.next)})[:MOST],
        older="" if found is None or is_end else found.older,
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


def _rows(steps: list[Step]) -> list[Bar | AxisPart]:
    """Return bars in order of their begin, with the compressed gaps before the bars after them."""
    spans = [_span(one) for one in steps]
    axis, room = Axis(spans), MOST - len(steps)
    rows: list[tuple[tuple[float, float], Bar | AxisPart]] = []
    for one, (start, end) in zip(steps, spans, strict=True):
        names = one.ran if 1 < len(one.ran) <= room else (", ".join(one.ran),)
        room -= len(names) - 1 + bool(one.next)
        left, width = axis.at(start), axis.at(end) - axis.at(start)
        key = (start, 0 if one.is_idle else 1 / (1 + end - start))  # (a subgraph after its node)
        rows += [(key, Bar(one, name, left, width)) for name in names]
        if one.next and room >= 0:
            rows.append(((end, 2), Bar(one, ", ".join(one.next), axis.at(end), is_next=True)))
    rows += [((one.end, -1), one) for one in axis.gaps]
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _span(step: Step) -> tuple[float, float]:
    end = step.end or 0.0
    return end - (0 if step.is_idle else step.seconds or 0), end


ROUTES = [Route("/thread/steps", _steps), Route("/timeline", _timeline)]
