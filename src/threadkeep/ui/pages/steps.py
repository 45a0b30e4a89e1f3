"""The steps of a thread: a window of its checkpoints, with the lanes of their branches.

Stores list checkpoints from a place on, newest first. So a window around a checkpoint begins a few
step numbers above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from starlette.responses import Response

from threadkeep.threads import Mark, ThreadInfo
from threadkeep.threads.steps import Step, read_steps, spot_of, step_of
from threadkeep.ui.page import AWAY, Asked, PagePlace, route
from threadkeep.ui.pages.live import seen

LANES = 64  # branches that are drawn at once. Further ones end where they begin
_STEPS = 60  # checkpoints of a window
_ABOVE = 15  # step numbers between the begin of a window and its checkpoint
_LONG = 10_000  # steps from which subgraphs are listed on demand: a store may read the whole thread


class Lanes(NamedTuple):
    """The lane of a checkpoint, -1 in a subgraph, its children's, which end here, and others'."""

    lane: int
    joins: tuple[int, ...]
    passing: tuple[int, ...]


class StepRow(NamedTuple):
    """A step as it is drawn, with the tags and the pin of its checkpoint."""

    step: Step
    lanes: Lanes
    mark: Mark


class Steps(NamedTuple):
    """A window of a thread's steps, newest first, below the checkpoint `before`.

    With `inner`, it lists subgraphs. The next window is below `older`. `waiting` are the parents
    that lanes wait for there.
    """

    info: ThreadInfo
    before: str = ""
    inner: bool = True
    rows: Sequence[StepRow] = ()
    older: str = ""
    waiting: Sequence[str] = ()

    @property
    def seen(self) -> str:
        """Return the state of the thread as the page has seen it, for `live`."""
        return seen(self.info)

    @property
    def next(self) -> Mapping[str, str]:
        """The query of the next window."""
        inner, waiting = "yes" if self.inner else "no", ",".join(self.waiting)
        return {"id": self.info.id, "before": self.older, "lanes": waiting, "inner": inner}

    @property
    def newer(self) -> int | None:
        """The step number at which the window above this one begins, or None for the newest."""
        numbers = [row.step.number for row in self.rows if not row.step.ns]
        return numbers[0] + _STEPS if self.before and numbers and numbers[0] is not None else None

    @property
    def groups(self) -> list[list[StepRow]]:
        """Rows of the graph itself, and of subgraphs between them."""
        return [[*some] for _, some in groupby(self.rows, lambda row: not row.step.ns)]

    @property
    def width(self) -> int:
        """The number of lanes."""
        return 1 + max(max(row.lanes.lane, *row.lanes.passing, 0) for row in self.rows)


async def around(request: Asked, found: CheckpointTuple | None) -> Steps:
    """Return a window of steps that has a checkpoint, or the newest one."""
    steps = await window(request)
    if found is None or steps.info.state in AWAY:
        return steps
    id, number = found.checkpoint["id"], step_of(found, is_tip=False).number
    if not any(row.step.id == id for row in steps.rows):
        if number is not None:
            steps = await window(request, before=await _from(request, number + _ABOVE))
        if not any(row.step.id == id for row in steps.rows):
            steps = await window(request, before=f"{id}~")
    return steps


async def find(request: Asked, number: int) -> tuple[str, str] | None:
    """Return the newest checkpoint with a step number, and `before` of a window that has it.

    (To find a number, a store may read all newer checkpoints. So that is done once, if possible.)
    """
    before = await _from(request, number + _ABOVE)
    shown = (await window(request, before=before)).rows if before else ()
    found = [one.step.id for one in shown if one.step.number == number and not one.step.ns]
    if not found and (there := await _numbered(request, number)):
        return there.checkpoint["id"], ""
    return (found[0], before) if found else None


async def _numbered(request: Asked, number: int) -> CheckpointTuple | None:
    """Return the newest checkpoint of the graph itself with a step number, or None."""
    info = await request.thread(request.needed("id"))
    # (LangGraph's stores are not searched by metadata, and reading an archive restores it)
    if not request.page.is_own or info.state in AWAY:
        return None
    at = PagePlace(info.id).config
    async for one in request.page.saver.alist(at, filter={"step": number}, limit=1, values="lazy"):
        found: CheckpointTuple = one
        return found
    return None


async def _from(request: Asked, number: int) -> str:
    """Return `before` of a window that begins with a step number, or "" for the newest."""
    found = await _numbered(request, number)
    return f"{found.checkpoint['id']}~" if found else ""  # (no id is between the two)


async def window(request: Asked, most: int = _STEPS, before: str | None = None) -> Steps:
    """Return the newest steps of a thread, or those below `before`, which the query may name."""
    asked, saver, thread = request.query_params, request.page.saver, request.needed("id")
    info = await request.thread(thread)  # (before the steps: a later change is an event)
    if info.state in AWAY:
        return Steps(info)
    before = asked.get("before", "") if before is None else before
    waiting = asked.get("lanes", "").split(",")[:LANES]
    inner = {"no": False, "yes": True}.get(asked.get("inner", ""))
    if inner is None:
        head = await _listed(saver, thread, 1, before, inner=False)
        inner = not head or (step_of(head[0], is_tip=False).number or 0) < _LONG
    found = await _listed(saver, thread, most + 1, before, inner=inner)
    continued = {("", wanted) for wanted in waiting}
    if before:  # (a newer checkpoint probably continues from the newest of these)
        continued |= dict([spot_of(one.config) for one in reversed(found)]).items()
    steps = await read_steps(saver, found, most, continued)
    rows = [("" if one.ns else one.id, one.parent) for one in steps]
    drawn, below = draw(rows, waiting)
    marks = {(mark.checkpoint_ns, mark.checkpoint): mark for mark in info.marks}
    marked = [marks.get((one.ns, one.id), Mark(one.ns, one.id)) for one in steps]
    shown = [StepRow(*row) for row in zip(steps, drawn, marked, strict=True)]
    return Steps(info, before, inner, shown, steps[-1].id if found[most:] else "", below)


async def _listed(saver: Any, thread: str, most: int, before: str, *, inner: bool) -> list[Any]:
    place = {"thread_id": thread} if inner else {"thread_id": thread, "checkpoint_ns": ""}
    start = {"configurable": {**place, "checkpoint_id": before}} if before else None
    found = saver.alist({"configurable": place}, before=start, limit=most, values="lazy")
    return [one async for one in found]


@route("/thread/steps")
async def _steps(request: Asked) -> Response:
    """Answer with a window of steps, to be put into a page: with `top`, from this number on."""
    top = request.number("top")
    before = await _from(request, top) if top else None
    return request.render("steps_window.html", steps=await window(request, before=before))


def draw(
    rows: Iterable[tuple[str, str]], waiting: Sequence[str] = ()
) -> tuple[list[Lanes], list[str]]:
    """Return the lanes of checkpoints, and the parents that lanes wait for below the last one.

    Rows are ids and parents, by falling id. The id of a subgraph's checkpoint is empty. Of
    `waiting`, the parents that lanes wait for above the first row, a free lane is empty.
    """
    lanes, drawn = list(waiting), []
    for id, parent in rows:
        joins = [n for n, wanted in enumerate(lanes) if wanted == id != ""]
        if id:  # (a lane ends if its parent was removed)
            lanes = [wanted if wanted < id else "" for wanted in lanes]
        passing, lane = tuple(n for n, wanted in enumerate(lanes) if wanted), -1
        if id:
            lanes += [""] * (len(lanes) < LANES)
            lane = joins[0] if joins else lanes.index("") if "" in lanes else LANES - 1
            lanes[lane] = parent
        drawn.append(Lanes(lane, tuple(joins), passing))
    return drawn, lanes
