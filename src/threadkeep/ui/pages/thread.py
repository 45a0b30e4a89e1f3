"""A thread: its conversation, its steps, and one of them beside the conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from heapq import nsmallest
from typing import Any, NamedTuple

from anyio import to_thread
from langgraph.checkpoint.base import CheckpointTuple
from starlette.responses import RedirectResponse, Response

from threadkeep._core.engine.model import LAYERS_NS
from threadkeep._core.engine.thread_summary import state_channels
from threadkeep._stores.message_index import ScanIndex
from threadkeep.errors import CheckpointNotFoundError, ThreadkeepError
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.threads import ThreadStatus
from threadkeep.threads.messages import CHANNEL, are_messages, message
from threadkeep.threads.steps import errors_of
from threadkeep.ui.messages import Bubble, Room, bubbles
from threadkeep.ui.page import AWAY, MOST, Asked, PagePlace, route
from threadkeep.ui.pages import steps
from threadkeep.ui.pages.checkpoint import listed, point_of
from threadkeep.ui.pages.inbox import card_of
from threadkeep.ui.values import one_line

_WINDOW = 100  # messages
_SEARCHED = 1000  # channels that may hold messages
_MANY = 10**9
_ERRORS = 5  # of tasks that failed at once
_WITH_ERRORS = (ThreadStatus.FAILED, ThreadStatus.HELD)
_LIKELY = re.compile(r"message|chat|history|conversation|items", re.IGNORECASE)


class Conversation(NamedTuple):
    """The messages of a checkpoint as it stores them. `layered` reads the archived ones before."""

    found: CheckpointTuple
    channel: str
    live: Sequence[Any]
    layered: LayeredCheckpointSaver | None


@route("/thread")
async def thread(request: Asked) -> Response:
    """Show a thread as of its newest checkpoint, or of another (`at`, or `step` by its number)."""
    number = request.query_params.get("step", "").replace(",", "").strip()
    if number.isdecimal() and (there := await steps.find(request, int(number[:18]))):
        id, (at, before) = request.needed("id"), there
        return RedirectResponse(request.address("/thread", id=id, at=at, before=before), 303)
    try:
        info, found = await _found(request)
    except CheckpointNotFoundError:  # (retention may remove what a link or a fork names)
        id, missing = request.needed("id"), request.query_params["at"]
        return RedirectResponse(request.address("/thread", id=id, step=missing), 303)
    beside = await steps.around(request, found if "at" in request.query_params else None)
    errors = await _errors(request, info, found)
    values = await _at(request, info, found)
    return request.render("thread.html", steps=beside, errors=errors, missing=number, **values)


@route("/thread/at")
async def at(request: Asked) -> Response:
    """Show the conversation and the step of a checkpoint, to be put into a page."""
    values = await _at(request, *await _found(request))
    return request.render("thread_at.html", errors=(), **values)


async def _at(request: Asked, info: Any, found: CheckpointTuple | None) -> dict[str, Any]:
    """Return the values of `thread_at.html`."""
    values: dict[str, Any] = {"part": "later"}  # (finding messages may read all channels)
    if found is None or CHANNEL in found.checkpoint["channel_values"]:
        values = await _chat(request, info, found)
    point = None if found is None else await point_of(request, found)
    return {"info": info, "found": found, "point": point, **values}


@route("/thread/messages")
async def chat(request: Asked) -> Response:
    """Show the newest messages, those from number `start` on, or earlier ones (`skip`)."""
    info, found = await _found(request)
    values = await _chat(request, info, found, is_part=True)
    is_all = "start" in request.query_params and values["part"] != "newest"
    more = {"hx-retarget": "#chat", "hx-reswap": "outerHTML"} if is_all else None
    errors = await _errors(request, info, found)
    shown: dict[str, Any] = {"info": info, "found": found, "errors": errors}
    return request.render("chat.html", headers=more, **shown, **values)


async def _found(request: Asked) -> tuple[Any, CheckpointTuple | None]:
    """Return a thread's entry and the requested checkpoint, or None if there is no head."""
    info, at = await request.thread(request.needed("id")), request.place("id", "ns", "at")
    if info.state in AWAY:
        return info, None
    try:
        return info, await listed(request, at)
    except CheckpointNotFoundError:
        if at.id:
            raise
        return info, None


async def _chat(
    request: Asked, info: Any, found: CheckpointTuple | None, *, is_part: bool = False
) -> dict[str, Any]:
    """Return the values of `chat.html`: messages, or the channels of a state without any.

    As a part of it, the messages that the query names.
    """
    said, error = await _conversation(request, found)
    now = {
        "streams": await _streams(request, info, said),
        "card": await _card(request, info),
        "room": Room(),
    }
    if said is not None:
        skip = request.number("skip") if is_part else _newer(request, len(said.live))
        start = request.number("start", _MANY) if is_part else _MANY
        return {**await _window(request, said, skip, start, is_part=is_part), **now}
    state = {} if found is None else found.checkpoint["channel_values"]
    names = [name for name in state_channels(state) if name not in getattr(state, "unread", ())]
    channels = {name: one_line(state[name]) for name in names[:MOST]}
    return {"part": "none", "channels": channels, "error": error, **now}


async def _conversation(
    request: Asked, found: CheckpointTuple | None
) -> tuple[Conversation | None, ThreadkeepError | None]:
    """Return the messages of a checkpoint, or None if none of its likeliest channels holds any.

    Returns also the error of a channel that may hold them, and cannot be read.
    """
    if found is None:
        return None, None
    values: Any = found.checkpoint["channel_values"]
    named = request.query_params.get("channel", CHANNEL)
    likely = {one: (one != named, not _LIKELY.search(one)) for one in state_channels(values)}
    error: ThreadkeepError | None = None
    names = nsmallest(_SEARCHED, likely, key=likely.__getitem__)
    for at, name in enumerate(names):
        # (three times as many as before: each read takes all names of the checkpoint)
        if at.bit_count() == 1 and at.bit_length() % 2:
            with suppress(ThreadkeepError):
                await values.aload(*names[at : at * 4])
        try:
            await values.aload(name)
        except ThreadkeepError as unread:
            error = error or unread
            continue
        live = values[name]
        if are_messages(live) or (name == named and isinstance(live, list | tuple)):
            return Conversation(found, name, live, await _layered(request, name)), None
    return None, error


async def _layered(request: Asked, channel: str) -> LayeredCheckpointSaver | None:
    """Return a reader of a thread's archived messages, which needs no `close`, or None."""
    page = request.page
    if not page.is_own or request.query_params.get("ns"):
        return None
    layers = PagePlace(request.needed("id"), LAYERS_NS)
    if await page.saver.aget_tuple(layers.config, channels=[]) is None:
        return None
    return LayeredCheckpointSaver(page.saver, channel=channel, index=ScanIndex())


def _newer(request: Asked, count: int) -> int:
    """Return the number of messages below a window around the one that the query names."""
    at = request.number("message", _MANY)
    return max(count - at - _WINDOW // 2, 0) if at < count else 0


async def _window(
    request: Asked, said: Conversation, skip: int, start: int, *, is_part: bool
) -> dict[str, Any]:
    """Return the values of `chat.html` for a window of messages, `skip` newer ones below it."""
    layered, config, every = said.layered, said.found.config, said.live
    if layered is not None and skip >= len(every):
        every = await layered.afull_messages(config)
    stop = max(len(every) - skip, 0)
    first, part = max(stop - _WINDOW, 0), "earlier" if skip and is_part else "all"
    begin = request.query_params.get("first", "")  # (none before it was removed since)
    if start < stop <= start + MOST and (message(every[start]).id or "").startswith(begin):
        first, part = start, "newest"
    is_live, memory = every is said.live, None
    if layered is not None and is_live and not first:
        layers = (await layered.alayers(config))[-MOST:]
        memory = {"layers": layers, "usage": await layered.ausage(config)}
    return {
        "part": part,
        "shown": await to_thread.run_sync(bubbles, every[first:stop], first if is_live else None),
        "start": first,
        "earlier": len(every) - first if first or memory else None,
        "memory": memory,
        "channel": said.channel,
        "newer": 0 if is_part else skip,
        "at": said.found.checkpoint["id"],
    }


def _is_head(request: Asked, info: Any) -> bool:
    """Return True for the newest messages of a thread of ours."""
    return request.page.is_own and _is_newest(request) and info.state not in AWAY


def _is_newest(request: Asked) -> bool:
    return not any(request.query_params.get(name) for name in ("at", "ns", "skip"))


async def _errors(request: Asked, info: Any, found: CheckpointTuple | None) -> tuple[str, ...]:
    """Return the errors of a failed or held thread, at its newest checkpoint."""
    if found is None or info.status not in _WITH_ERRORS or not _is_newest(request):
        return ()
    writes: Any = found.pending_writes
    await writes.aload()
    return errors_of(writes)[:_ERRORS]


async def _card(request: Asked, info: Any) -> dict[str, Any] | None:
    """Return the questions at which a thread waits, as in the inbox."""
    if info.status == ThreadStatus.WAITING and _is_newest(request) and info.state not in AWAY:
        return await card_of(request.page, info)
    return None


async def _streams(
    request: Asked, info: Any, said: Conversation | None
) -> list[tuple[Any, list[Bubble]]]:
    """Return pending streams, oldest first, with the messages that the head lacks."""
    if not _is_head(request, info):
        return []
    known = {message(one).id for one in said.live[-_WINDOW:]} if said else set()
    pending = [one for one in await request.page.saver.apartial(info.id) if one.status == "pending"]
    return [
        (one, bubbles([each.message for each in one.messages if each.id not in known]))
        for one in reversed(pending)
    ]
