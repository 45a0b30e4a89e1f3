"""A thread: its conversation, and its steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from anyio import to_thread
from langgraph.checkpoint.base import CheckpointTuple
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep._core.engine.model import LAYERS_NS, OWN_NS
from threadkeep._core.engine.thread_summary import own
from threadkeep._stores.message_index import ScanIndex
from threadkeep.errors import CheckpointNotFoundError, NotFoundError, ThreadNotFoundError
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.threads import ThreadStatus
from threadkeep.threads.messages import CHANNEL, are_messages, message
from threadkeep.ui import messages
from threadkeep.ui.page import MOST, needed, number, page_of, render
from threadkeep.ui.pages import steps
from threadkeep.ui.text import as_json

_WINDOW = 100  # messages
_HITS = 50  # archived messages of a search
_MANY = 10**9
_AWAY = (ThreadStatus.ARCHIVED, ThreadStatus.DELETED)  # (reading would restore the thread)
_LIKELY = re.compile(r"message|chat|history|conversation|items", re.IGNORECASE)


class Conversation(NamedTuple):
    """The messages of a checkpoint as it stores them; `layered` reads the archived ones before."""

    found: CheckpointTuple
    channel: str
    live: Sequence[Any]
    layered: LayeredCheckpointSaver | None


async def _found(request: Request) -> tuple[Any, CheckpointTuple | None]:
    """Return a thread's entry and the checkpoint that is asked for, or None if there is no head."""
    asked, saver, name = request.query_params, page_of(request).saver, needed(request, "id")
    if (info := await saver.threads.aget(name)) is None:
        raise ThreadNotFoundError(thread=name)
    if info.state in _AWAY:
        return info, None
    place = {"thread_id": name, "checkpoint_ns": asked.get("ns", "")}
    if at := asked.get("at"):
        place["checkpoint_id"] = at
    listed = saver.alist({"configurable": place}, limit=1, values="lazy")
    found: list[CheckpointTuple] = [one async for one in listed]
    if at and not found:
        raise CheckpointNotFoundError(thread=name, checkpoint=at)
    return info, found[0] if found else None


async def _conversation(request: Request, found: CheckpointTuple | None) -> Conversation | None:
    """Return the messages of a checkpoint; None if no channel of it holds any."""
    if found is None:
        return None
    values: Any = found.checkpoint["channel_values"]
    named = request.query_params.get("channel") or (CHANNEL if CHANNEL in values else "")
    names = [named] if named in values else []
    others = [one for one in own(values) if one != named]
    names += sorted(others, key=lambda one: _LIKELY.search(one) is None)
    for name in names:
        await values.aload(name)
        live = values[name]
        if are_messages(live) or (name == named and isinstance(live, list | tuple)):
            return Conversation(found, name, live, await _layered(request, name))
    return None


async def _layered(request: Request, channel: str) -> LayeredCheckpointSaver | None:
    """Return a reader of a thread's archived messages; None if there are none.

    It reads checkpoints by their ids alone, which changes nothing and needs no `close`.
    """
    page = page_of(request)
    if not page.is_own or request.query_params.get("ns"):
        return None
    place = {"thread_id": needed(request, "id"), "checkpoint_ns": LAYERS_NS}
    if await page.saver.aget_tuple({"configurable": place}, channels=[]) is None:
        return None
    return LayeredCheckpointSaver(page.saver, channel=channel, index=ScanIndex())


async def _every(said: Conversation, skip: int) -> Sequence[Any]:
    """Return messages, with the archived ones once all later ones, the newest `skip`, are drawn."""
    if said.layered is None or skip < len(said.live):
        return said.live
    return await said.layered.afull_messages(said.found.config)


# -- drawing ----------------------------------------------------------------------------


async def _window(said: Conversation, skip: int) -> dict[str, Any]:
    """Return the values of `chat.html` for 100 messages, without the newest `skip`."""
    every = await _every(said, skip)
    stop = max(len(every) - skip, 0)
    start = max(stop - _WINDOW, 0)
    is_border = said.layered is not None and every is said.live and start == 0
    drawn = await to_thread.run_sync(_drawn, said, every[start:stop], start, skip)
    return {
        **drawn,
        "part": "earlier" if skip else "all",
        "earlier": len(every) - start if start or is_border else None,
        "is_border": is_border,
        "are_archived": every is not said.live,
    }


async def _newer(said: Conversation, start: int, after: int, digest: str) -> dict[str, Any] | None:
    """Return the values of `chat.html` for the messages after these; None if others are there."""
    before = [message(one) for one in said.live[start:after]]
    is_same = len(before) == after - start and messages.digest(before) == digest
    if not is_same or len(said.live) - after > _WINDOW:
        return None
    values = await to_thread.run_sync(_drawn, said, said.live[after:], after, 0)
    seen = [*before, *(message(one) for one in said.live[after : values["after"]])]
    start = max(start, values["after"] - _WINDOW)
    digest = messages.digest(seen[-_WINDOW:])
    return {**values, "part": "newer", "start": start, "digest": digest}


def _drawn(said: Conversation, some: Sequence[Any], start: int, skip: int) -> dict[str, Any]:
    """Draw messages. A running thread may still answer the `open` ones, which are drawn again."""
    read = [message(one) for one in some]
    at = len(read) if skip else messages.settled(read)
    return {
        "shown": messages.bubbles(read[:at], skip + len(read) - at),
        "open": messages.bubbles(read[at:], skip),
        "start": start,
        "after": start + at,
        "digest": messages.digest(read[:at]),
        "channel": said.channel,
        "at": said.found.checkpoint["id"],
    }


async def _streams(request: Request, info: Any, said: Conversation | None) -> list[dict[str, Any]]:
    """Return the output of pending streams that the head lacks, oldest first."""
    page, asked = page_of(request), request.query_params
    is_head = not any(asked.get(name) for name in ("at", "ns", "skip"))
    if not page.is_own or not is_head or info.state in _AWAY:
        return []
    channel, known = "", set[str]()
    if said is not None:
        channel, known = said.channel, {message(one).id or "" for one in said.live[-_WINDOW:]}
    found = []
    for one in reversed(await page.saver.apartial(info.id)):
        if one.status == "pending":
            new = [each.message for each in one.messages if each.id not in known]
            values = {name: value for name, value in one.values.items() if name != channel}
            more: dict[str, Any] = {"events": [*one.events]} if one.events else {}
            more |= {"values": values} if values else {}
            shown = messages.bubbles([message(each) for each in new])
            found.append({"id": one.id, "saved_at": one.saved_at, "shown": shown, "more": more})
    return found


# -- answers ---------------------------------------------------------------------------


async def thread(request: Request) -> Response:
    """Show a thread."""
    info, found = await _found(request)
    said, values = None, dict[str, Any](part="later")  # (finding messages may read all channels)
    named = request.query_params.get("channel", CHANNEL)
    if found is None or named in found.checkpoint["channel_values"]:
        said = await _conversation(request, found)
        values = await _shown(request, info, found, said)
    if values["part"] == "earlier":  # (a whole page all the same)
        values["part"] = "all"
    values["streams"] = await _streams(request, info, said)
    beside = await steps.window(request, info.id)
    return render(request, "thread.html", info=info, found=found, **values, **beside)


async def _shown(
    request: Request, info: Any, found: CheckpointTuple | None, said: Conversation | None
) -> dict[str, Any]:
    """Return the values of `chat.html`: messages, or the parts of a state without any."""
    if said is not None:
        return await _window(said, number(request, "skip", 0, _MANY))
    if found is None:
        return {"part": "none", "channels": {}, "spaces": await _spaces(request, info)}
    values = found.checkpoint["channel_values"]
    channels = {name: messages.brief(values[name]) for name in own(values)[:MOST]}
    return {"part": "none", "channels": channels, "spaces": []}


async def _spaces(request: Request, info: Any) -> list[str]:
    """Return the namespaces of a thread without a graph of its own, such as a session."""
    page = page_of(request)
    if not page.is_own or info.state in _AWAY:
        return []
    with suppress(NotFoundError):
        names = await page.saver.threads.abranches_by_ns(info.id)
        return [one for one in names if one and not one.startswith(OWN_NS)][:MOST]
    return []


async def chat(request: Request) -> Response:
    """Show earlier messages (`skip`), newer ones (`after`), or the newest."""
    info, found = await _found(request)
    said = await _conversation(request, found)
    values = None
    if said is not None and "after" in request.query_params:
        start, after = number(request, "start", 0, _MANY), number(request, "after", 0, _MANY)
        values = await _newer(said, start, after, request.query_params.get("is", ""))
    is_newer = values is not None
    values = values or await _shown(request, info, found, said)
    streams = await _streams(request, info, said)
    answer = render(request, "chat.html", info=info, found=found, streams=streams, **values)
    if "after" in request.query_params and not is_newer:  # (all is drawn again)
        answer.headers["hx-retarget"], answer.headers["hx-reswap"] = "#chat", "outerHTML"
    return answer


async def _said(request: Request) -> Conversation:
    needed(request, "at")
    said = await _conversation(request, (await _found(request))[1])
    if said is None:
        raise NotFoundError("There are no messages.", thread=needed(request, "id"))
    return said


async def one_message(request: Request) -> Response:
    """Save a message as JSON."""
    said, back = await _said(request), number(request, "back", 0, _MANY)
    every = await _every(said, back - 1 if back > len(said.live) else 0)
    if not 0 < back <= len(every):
        raise NotFoundError("There is no such message.", thread=needed(request, "id"))
    text = await to_thread.run_sync(as_json, every[-back])
    headers = {"content-disposition": 'attachment; filename="message.json"'}
    data = text.encode("utf-8", "replace")
    return Response(data, media_type="application/json", headers=headers)


async def memory(request: Request) -> Response:
    """Show what a model sees of a layered conversation, or find archived messages (`q`)."""
    said, query = await _said(request), request.query_params.get("q", "")
    if said.layered is None:
        raise NotFoundError("The thread has no archived messages.", thread=needed(request, "id"))
    config = said.found.config
    if query:
        hits = await said.layered.asearch_messages(config, query=query, limit=_HITS)
        read = [message(one.message) for one in hits]
        shown = await to_thread.run_sync(messages.bubbles, read)
        return render(request, "memory.html", shown=shown, query=query, most=_HITS)
    layers, usage = await said.layered.alayers(config), await said.layered.ausage(config)
    at = said.found.checkpoint["id"]
    return render(
        request,
        "memory.html",
        layers=layers,
        usage=usage,
        at=at,
        channel=said.channel,
        query="",
    )


ROUTES = [
    Route("/thread", thread),
    Route("/thread/messages", chat),
    Route("/thread/message", one_message),
    Route("/thread/memory", memory),
]
