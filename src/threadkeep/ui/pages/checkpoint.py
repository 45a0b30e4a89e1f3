"""A checkpoint: its values, its pending writes, and the changes of its step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from anyio import to_thread
from langgraph.checkpoint.base import CheckpointTuple
from starlette.responses import Response

from threadkeep._core.langgraph_internals import TASKS, is_internal
from threadkeep.errors import CheckpointNotFoundError, NotFoundError, ThreadkeepError
from threadkeep.threads.steps import step_of
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


@route("/checkpoint")
async def checkpoint(request: Asked) -> Response:
    """Show a checkpoint. Values, pending writes and changes load after it, or when opened."""
    name, ns, _ = at = request.place()
    found = await listed(request, at)
    id, marks = found.checkpoint["id"], getattr(await request.entry(name), "marks", ())
    channels = await _channels(found)
    values: dict[str, Any] = {"name": name, "ns": ns, "id": id, "found": found}
    return request.render(
        "checkpoint.html",
        **values,
        mark=next((one for one in marks if one[:2] == (ns, id)), None),
        parent=found.parent_config and found.parent_config["configurable"]["checkpoint_id"],
        channels=[one for one in channels.items() if not is_internal(one[0])],
        internal=[one for one in channels.items() if is_internal(one[0])],
        written=getattr(found.pending_writes, "names", ())[:MOST],
        next=await _next(found),
    )


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


async def _next(found: CheckpointTuple) -> Sequence[str]:
    values: Any = found.checkpoint["channel_values"]
    try:
        await values.aload(TASKS)
        return step_of(found._replace(pending_writes=[])).next
    except ThreadkeepError:
        return [TASKS]


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
