"""A step: the checkpoint after it, with its values, its pending writes, and its changes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from anyio import to_thread
from langgraph.checkpoint.base import CheckpointTuple
from starlette.responses import Response

from threadkeep._core.langgraph_internals import JOIN, is_internal
from threadkeep.errors import CheckpointNotFoundError, NotFoundError, ThreadkeepError
from threadkeep.threads import Mark
from threadkeep.threads.steps import Step, read_steps, spot_of, step_of
from threadkeep.ui.page import MOST, Asked, PagePlace, route
from threadkeep.ui.text import as_json
from threadkeep.ui.values import ValuePart, part_at, tree


async def listed(request: Asked, at: PagePlace) -> CheckpointTuple:
    """Return a checkpoint without its values, or raise `CheckpointNotFoundError`."""
    await request.check_is_here(at.thread)
    async for one in request.page.saver.alist(at.config, limit=1, values="lazy"):
        found: CheckpointTuple = one
        return found
    raise CheckpointNotFoundError(thread=at.thread, checkpoint=at.id or None)


class Point(NamedTuple):
    """The checkpoint that a page shows, and the step that led to it.

    Values, pending writes and changes load after it, or when opened.
    """

    place: PagePlace
    found: CheckpointTuple
    step: Step
    is_head: bool
    mark: Mark
    channels: Sequence[tuple[str, Any]]
    internal: Sequence[tuple[str, Any]]
    written: Sequence[tuple[str, str]]
    marks: str

    @property
    def can_replay(self) -> bool:
        """Return True if nodes may run next, in the graph itself."""
        joins = any(name.startswith(JOIN) for name, _ in self.internal)
        return not self.place.ns and bool(self.step.next or joins)


async def point_of(request: Asked, found: CheckpointTuple) -> Point:
    """Return a checkpoint of a listing, as a page shows it."""
    name, (ns, id) = request.needed("id"), spot_of(found.config)
    is_head = not request.query_params.get("at")
    if not is_head:
        is_head = (await listed(request, PagePlace(name, ns))).checkpoint["id"] == id
    try:
        (step,) = await read_steps(request.page.saver, [found], 1)
    except ThreadkeepError:  # (of sent tasks or errors, which cannot be read)
        step = step_of(found, is_tip=False)
    info, graph = await request.entry(name), request.page.graph
    failed = info.failed_node if info and is_head else None
    marks = getattr(info, "marks", ())
    channels = await _channels(found)
    return Point(
        PagePlace(name, ns, id),
        found,
        step,
        is_head,
        next((one for one in marks if one[:2] == (ns, id)), Mark(ns, id)),
        [one for one in channels.items() if not is_internal(one[0])],
        [one for one in channels.items() if is_internal(one[0])],
        getattr(found.pending_writes, "names", ())[:MOST],
        "" if graph is None else graph.marks(step, failed),
    )


@route("/thread/step")
async def point(request: Asked) -> Response:
    """Show a step, to be put into a page."""
    found = await listed(request, request.place("id", "ns", "at"))
    return request.render("point.html", point=await point_of(request, found))


def unread(found: CheckpointTuple) -> dict[str, int | None]:
    """Return the channels that must be read, all, if a store of LangGraph's does not tell which."""
    values: Any = found.checkpoint["channel_values"]
    is_unknown = getattr(values, "is_unknown", False)
    return dict.fromkeys(found.checkpoint["channel_versions"]) if is_unknown else values.unread


async def _channels(found: CheckpointTuple) -> dict[str, ValuePart | int | None]:
    """Return each channel's value if it came with the row, else its length, if that is known."""
    values: Any = found.checkpoint["channel_values"]
    shown: dict[str, ValuePart | int | None] = {**unread(found)}
    for name in [one for one in values if one not in shown]:
        shown[name] = None
        with suppress(ThreadkeepError):  # (it is shown when the channel is opened)
            await values.aload(name)
            shown[name] = ValuePart("", values[name])
    return dict(sorted(shown.items()))


# -- values ------------------------------------------------------------------------------


@route("/value")
async def value(request: Asked) -> Response:
    """Show a value, a part of one, or all of it as text or as a file."""
    asked, start = request.query_params, request.number("start")
    path, form = asked.get("at", ""), asked.get("as")
    names = "thread", "ns", "id", "channel", "task", "n"
    place = {name: asked[name] for name in names if name in asked}

    def made() -> Response:
        if not form:
            root = tree(found, path, start)
            return request.render("value.html", root=root, place=place, start=start, error=None)
        part, saved = part_at(found, path), form == "save"
        text = part if isinstance(part, str) and not saved else as_json(part)
        # (half a surrogate pair becomes its escape in JSON)
        return Response(
            text.encode("utf-8", "backslashreplace"),
            headers={"content-disposition": "attachment"} if saved else {},
            media_type="application/json" if saved else "text/plain",
        )

    try:
        found = await _read(request)
        return await to_thread.run_sync(made)
    except ThreadkeepError as error:  # (htmx shows only answers that are no errors)
        if form:
            raise
        return request.render("value.html", error=error)


async def _read(request: Asked) -> Any:
    asked, at = request.query_params, request.place()
    channel: Any = asked.get("channel")
    if channel is None:
        return (await listed(request, at)).metadata
    await request.check_is_here(at.thread)
    found = await request.page.saver.aget_tuple(at.config, channels=[channel])
    if found is None:
        raise CheckpointNotFoundError(thread=at.thread, checkpoint=at.id)
    values = found.checkpoint["channel_values"]
    if "task" in asked:
        of = asked["task"], channel
        written = [value for task, name, value in found.pending_writes if (task, name) == of]
        values = dict(enumerate(written))
        channel = request.number("n")
    if channel not in values:
        raise NotFoundError("There is no value here any more.", hint="Reload the page.")
    return values[channel]
