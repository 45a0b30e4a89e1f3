"""A checkpoint: its values, its pending writes, and the changes of its step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from anyio import to_thread
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from threadkeep._core.engine.thread_summary import following
from threadkeep._core.langgraph_internals import TASKS, is_internal
from threadkeep.errors import CheckpointNotFoundError, NotFoundError, ThreadkeepError
from threadkeep.ui.page import MOST, needed, number, page_of, render
from threadkeep.ui.values import ValuePart, file_name, tree, whole

_CHUNK = 200_000  # characters sent at once
_CHILDREN = 20  # next steps that are shown
_FARTHEST = 10**9


class ShownChannel(NamedTuple):
    """A channel of a checkpoint: `value` if it came with the row, or the error that it raised.

    `length` is the number of its elements, if that is known.
    """

    name: str
    version: Any
    length: int | None = None
    value: ValuePart | None = None
    error: ThreadkeepError | None = None


async def listed(request: Request, thread: str, ns: str, id: str | None) -> CheckpointTuple:
    """Return a checkpoint without its values, or (None) the head.

    Raises:
        CheckpointNotFoundError: it does not exist.
    """
    place = {"thread_id": thread, "checkpoint_ns": ns}
    config = {"configurable": {**place, "checkpoint_id": id} if id else place}
    async for one in page_of(request).saver.alist(config, limit=1, values="lazy"):
        found: CheckpointTuple = one
        return found
    raise CheckpointNotFoundError(thread=thread, checkpoint=id)


async def checkpoint(request: Request) -> Response:
    """Show a checkpoint. Values, pending writes and changes load after it, or when opened."""
    name, id = needed(request, "thread"), needed(request, "id")
    ns = request.query_params.get("ns", "")
    found = await listed(request, name, ns, id)
    info = await page_of(request).saver.threads.aget(name)
    channels = await _channels(found)
    shown = {one.name for one in channels}
    marks = getattr(info, "marks", ())
    return render(
        request,
        "checkpoint.html",
        name=name,
        ns=ns,
        id=id,
        found=found,
        mark=next((one for one in marks if (one.checkpoint_ns, one.checkpoint) == (ns, id)), None),
        parent=found.parent_config and found.parent_config["configurable"]["checkpoint_id"],
        channels=[one for one in channels if not is_internal(one.name)],
        internal=[one for one in channels if is_internal(one.name)],
        empty=[one for one in found.checkpoint["channel_versions"] if one not in shown],
        writes=_writes(found),
        next=await _next(found),
        step=step if type(step := found.metadata.get("step")) is int else None,
        most=MOST,
    )


def unread(found: CheckpointTuple) -> dict[str, int | None]:
    """Return the channels that must be read; all, if a store of LangGraph's does not tell which."""
    values: Any = found.checkpoint["channel_values"]
    is_unknown = getattr(values, "is_unknown", False)
    return dict.fromkeys(found.checkpoint["channel_versions"]) if is_unknown else values.unread


async def _channels(found: CheckpointTuple) -> list[ShownChannel]:
    values: Any = found.checkpoint["channel_values"]
    versions, waiting = found.checkpoint["channel_versions"], unread(found)
    channels = []
    for name in {**dict.fromkeys(values), **waiting}:
        one = ShownChannel(name, versions.get(name), waiting.get(name))
        if name not in waiting:
            try:
                await values.aload(name)
                one = one._replace(value=tree(values[name], entries=0))
            except ThreadkeepError as error:
                one = one._replace(error=error)
        channels.append(one)
    return channels


def _writes(found: CheckpointTuple) -> list[tuple[str, list[tuple[str, int, str]]]]:
    """Return the pending writes by task: channel, number among its equals, and the kind."""
    names: Any = getattr(found.pending_writes, "names", ())
    tasks: dict[str, list[tuple[str, int, str]]] = {}
    for task, channel in names:
        mine = tasks.setdefault(task, [])
        kind = {INTERRUPT: "warn", ERROR: "bad"}.get(channel, "")
        mine.append((channel, sum(one[0] == channel for one in mine), kind))
    return [*tasks.items()]


async def _next(found: CheckpointTuple) -> list[str]:
    """Return the nodes that run next, also those that tasks are sent to."""
    values: Any = found.checkpoint["channel_values"]
    sent: list[str] = []
    if TASKS in values:
        try:
            await values.aload(TASKS)
            sent = [str(getattr(one, "node", one)) for one in values[TASKS][:MOST]]
        except ThreadkeepError:
            sent = [TASKS]
    return list(dict.fromkeys([*following(values), *sent]))


async def children(request: Request) -> Response:
    """Show the checkpoints that follow one."""
    name, ns, id = (
        needed(request, "thread"),
        request.query_params.get("ns", ""),
        needed(request, "id"),
    )
    step = number(request, "step", 0, _FARTHEST)
    config = {"configurable": {"thread_id": name, "checkpoint_ns": ns}}
    found = []
    page = page_of(request)
    only: Any = {"filter": {"step": step}} if page.is_own else {"limit": MOST}
    async for one in page.saver.alist(config, values="lazy", **only):
        parent = one.parent_config
        if parent and parent["configurable"]["checkpoint_id"] == id:
            found.append(one)
        if len(found) >= _CHILDREN or one.checkpoint["id"] < id:
            break
    return render(request, "children.html", name=name, ns=ns, found=found)


# -- values ------------------------------------------------------------------------------


async def value(request: Request) -> Response:
    """Show a value, a part of one, or all of it as text or as a file."""
    asked = request.query_params
    place = {
        key: asked[key]
        for key in ("thread", "ns", "id", "channel", "task", "n", "part")
        if key in asked
    }
    try:
        path = _path(asked.get("at", "[]"))
        found = await _read(request)
        if asked.get("as") in ("text", "save"):
            return await _all(found, path, saved=asked["as"] == "save", place=place)
        start = number(request, "start", 0, _FARTHEST)
        made = await to_thread.run_sync(partial(tree, found, path, start))
    except ThreadkeepError as error:  # (htmx shows only answers that are no errors)
        if "as" in asked:
            raise
        return render(request, "value.html", error=error, root=None, place=place, start=0)
    return render(request, "value.html", error=None, root=made, place=place, start=start)


def _path(text: str) -> list[int]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(type(one) is int for one in found):
        raise NotFoundError("The address names no part of a value.")
    return found


async def _read(request: Request) -> Any:
    asked = request.query_params
    thread, ns, id = needed(request, "thread"), asked.get("ns", ""), needed(request, "id")
    if "part" in asked:
        row = await listed(request, thread, ns, id)
        return row.metadata if asked["part"] == "metadata" else row.checkpoint["versions_seen"]
    channel = needed(request, "channel")
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}
    found = await page_of(request).saver.aget_tuple(config, channels=[channel])
    if found is None:
        raise CheckpointNotFoundError(thread=thread, checkpoint=id)
    if "task" in asked:
        written = [
            v for task, name, v in found.pending_writes if (task, name) == (asked["task"], channel)
        ]
        values = dict(enumerate(written))
        key: Any = number(request, "n", 0, _FARTHEST)
    else:
        values, key = found.checkpoint["channel_values"], channel
    if key not in values:
        raise NotFoundError("There is no value here any more.", hint="Reload the page.")
    return values[key]


async def _all(found: Any, path: list[int], *, saved: bool, place: dict[str, str]) -> Response:
    text = await to_thread.run_sync(whole, found, path, saved)
    kind, headers = "text/plain", {}
    if saved:
        name = file_name(place["thread"], place.get("channel") or place["part"])
        kind, headers = (
            "application/json",
            {"content-disposition": f'attachment; filename="{name}"'},
        )
    return StreamingResponse(_chunks(text), media_type=kind, headers=headers)


def _chunks(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), _CHUNK):
        # (half a surrogate pair becomes its escape in JSON)
        yield text[start : start + _CHUNK].encode("utf-8", "backslashreplace")


ROUTES = [
    Route("/checkpoint", checkpoint),
    Route("/checkpoint/next", children),
    Route("/value", value),
]
