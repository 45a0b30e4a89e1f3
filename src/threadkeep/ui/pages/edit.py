"""An editor of one value: JSON, or the content of a message, stored as a new checkpoint."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple
from urllib.parse import urlencode

from langchain_core.messages import BaseMessage
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from threadkeep._core.langgraph_internals import JOIN, is_internal
from threadkeep._core.texts import is_unicode
from threadkeep.errors import CheckpointNotFoundError, InvalidArgumentError
from threadkeep.ui.audit import audited
from threadkeep.ui.page import MOST, check_is_here, form, needed, number, page_of, render
from threadkeep.ui.text import read_json

_LONGEST = 250_000  # characters; each takes 12 bytes or fewer in a form


async def editor(request: Request) -> Response:
    """Show the channels of a checkpoint, and the value to edit."""
    thread, channel, at = (
        needed(request, "thread"),
        request.query_params.get("channel"),
        _at(request),
    )
    found, is_head = await _checkpoint(request, thread, channel)
    names = found.checkpoint["channel_versions"]
    value = found.checkpoint["channel_values"].get(channel)
    messages: list[Any] = value if _is_messages(value) else []
    first = number(request, "first", max(len(messages) - MOST, 0), len(messages))
    return render(
        *(request, "edit.html"),
        thread=thread,
        found=found,
        is_head=is_head,
        names=sorted([one for one in names if not is_internal(one) and not one.startswith(JOIN)]),
        channel=channel,
        at=at,
        messages=list(enumerate(messages))[first : first + MOST],
        first=first,
        shown=None if channel is None or (messages and at is None) else editable(value, at),
    )


async def edit(request: Request) -> Response:
    """Store the edited value, and open the new checkpoint."""
    thread, channel, id = [needed(request, one) for one in ("thread", "channel", "id")]
    given = await form(request)
    with audited(request, "edit", thread, id, channel=channel):
        found, _ = await _checkpoint(request, thread, channel)
        old = found.checkpoint["channel_values"].get(channel)
        new = replaced(old, _at(request), given.get("value", ""))
        stored = await page_of(request).writer.threads.aedit(
            thread, {channel: new}, checkpoint_id=id, if_head="head" in given
        )
    place = {"thread": thread, "id": stored["configurable"]["checkpoint_id"]}
    to = f"{request.scope.get('root_path', '')}/checkpoint?{urlencode(place)}"
    return Response(headers={"hx-redirect": to})


async def _checkpoint(request: Request, thread: str, channel: str | None) -> tuple[Any, bool]:
    """Load one channel of a checkpoint, with its classes; True if it is the thread's newest."""
    saver, id = page_of(request).writer, request.query_params.get("id")
    if saver is None:
        raise InvalidArgumentError("This page is read-only.", hint="Start it with --write.")
    await check_is_here(request, thread)
    place = {"thread_id": thread, "checkpoint_ns": ""}
    head = await saver.aget_tuple({"configurable": place}, channels=[])
    config = {"configurable": {**place, "checkpoint_id": id} if id else place}
    found = await saver.aget_tuple(config, channels=[] if channel is None else [channel])
    if found is None or head is None:
        raise CheckpointNotFoundError(thread=thread, checkpoint=id)
    return found, found.checkpoint["id"] == head.checkpoint["id"]


def _at(request: Request) -> int | None:
    at = number(request, "at", -1, 10**9)
    return at if at >= 0 else None


def _is_messages(value: Any) -> bool:
    return type(value) is list and any(isinstance(one, BaseMessage) for one in value)


# -- values as text, and back ------------------------------------------------------------


class Editable(NamedTuple):
    """A value, or the content of one of its messages, as text."""

    text: str
    is_json: bool


def editable(value: Any, at: int | None = None) -> Editable:
    """Return a value, or the content of the message at a position of it, as text to edit."""
    if at is not None:
        value = _message(value, at).content
    if not _is_json(value):
        hint = "Its types would be lost in JSON: change it with graph.update_state."
        raise InvalidArgumentError("This value cannot be edited here.", hint=hint)
    is_plain = at is not None and type(value) is str and "\r" not in value
    text = value if is_plain else json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > _LONGEST:
        raise InvalidArgumentError("This value is too long to be edited here.")
    return Editable(text, not is_plain)


def replaced(value: Any, at: int | None, text: str) -> Any:
    """Return a value with the edited text in its place: see `editable`."""
    is_json = editable(value, at).is_json
    text = text.replace("\r\n", "\n")  # (browsers may send line breaks so)
    new = read_json(text) if is_json else text
    if not _is_json(new):  # (numbers that are too large, half a surrogate pair)
        raise InvalidArgumentError("This is not JSON that can be stored.")
    if at is None:
        return new
    changed = _message(value, at).model_copy(update={"content": new})
    return [*value[:at], changed, *value[at + 1 :]]


def _message(value: Any, at: int) -> BaseMessage:
    found = value[at] if _is_messages(value) and at < len(value) else None
    if not isinstance(found, BaseMessage):
        raise InvalidArgumentError(f"There is no message {at}.")
    return found


def _is_json(value: Any) -> bool:
    """Return True if JSON returns exactly this value."""
    try:
        return _is_exact(value)
    except RecursionError:
        return False


def _is_exact(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str for key in value) and _is_exact([*value, *value.values()])
    if type(value) is list:
        return all(map(_is_exact, value))
    if type(value) is str:
        return is_unicode(value)
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int)


ROUTES = [Route("/edit", editor), Route("/edit", edit, methods=["POST"])]
