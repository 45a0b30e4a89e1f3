"""An editor of one value: JSON, or the content of a message, stored as a new checkpoint."""

from __future__ import annotations

import json
from contextlib import suppress
from math import inf
from typing import Any

from anyio import to_thread
from langchain_core.messages import BaseMessage
from starlette.responses import Response

from threadkeep._core.engine.differences import same
from threadkeep._core.langgraph_internals import JOIN, is_internal
from threadkeep.errors import CheckpointNotFoundError, InvalidArgumentError
from threadkeep.ui.audit import audited
from threadkeep.ui.page import Asked, PagePlace, route
from threadkeep.ui.pages.checkpoint import listed
from threadkeep.ui.text import read_json

_LONGEST = 250_000  # characters. Each takes 12 bytes or fewer in a form
_ENCODER = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False)


@route("/edit")
async def editor(request: Asked) -> Response:
    """Show the channels of a checkpoint, and the value to edit."""
    thread, channel = request.needed("thread"), request.query_params.get("channel", "")
    found, is_head = await _checkpoint(request, thread, channel)
    versions = found.checkpoint["channel_versions"]
    names = sorted([one for one in versions if not (is_internal(one) or one.startswith(JOIN))])
    value = found.checkpoint["channel_values"].get(channel)
    at = request.number("at", -1) if _is_messages(value) else -1
    is_shown = channel and (at >= 0 or not _is_messages(value))
    shown = await to_thread.run_sync(editable, value, at) if is_shown else None
    values = {"found": found, "is_head": is_head, "names": names, "channel": channel, "at": at}
    return request.render("edit.html", thread=thread, shown=shown, **values)


@route("/edit", "POST")
async def edit(request: Asked) -> Response:
    """Store the edited value, and open the new checkpoint."""
    thread, channel, id = [request.needed(one) for one in ("thread", "channel", "id")]
    given = await request.fields()
    with audited(request, "edit", thread, id, channel=channel):
        found, _ = await _checkpoint(request, thread, channel)
        old = found.checkpoint["channel_values"].get(channel)
        at, text = request.number("at", -1), given.get("value", "")
        new = await to_thread.run_sync(replaced, old, at, text)
        stored = await request.page.writer.threads.aedit(
            thread, {channel: new}, checkpoint_id=id, if_head="head" in given
        )
    id = stored["configurable"]["checkpoint_id"]
    return Response(headers={"hx-redirect": request.address("/checkpoint", thread=thread, id=id)})


async def _checkpoint(request: Asked, thread: str, channel: str) -> tuple[Any, bool]:
    """Load one channel of a checkpoint, with its classes. True if it is the thread's newest."""
    saver = request.page.writer
    if saver is None:
        raise InvalidArgumentError("This page is read-only.", hint="Start it with --write.")
    head = (await listed(request, PagePlace(thread))).checkpoint["id"]
    at = PagePlace(thread, "", request.query_params.get("id") or head)
    found = await saver.aget_tuple(at.config, channels=[channel] if channel else [])
    if found is None:
        raise CheckpointNotFoundError(thread=thread, checkpoint=at.id)
    return found, at.id == head


def _is_messages(value: Any) -> bool:
    return type(value) is list and any(isinstance(one, BaseMessage) for one in value)


# -- values as text, and back ------------------------------------------------------------


def editable(value: Any, at: int = -1) -> tuple[str, bool]:
    """Return a value, or the content of its message number `at`, as text. True if it is JSON."""
    if at >= 0:
        value = _message(value, at).content
    text = _exact(value, _LONGEST)
    is_json = at < 0 or type(value) is not str or "\r" in value  # (browsers change line breaks)
    if len(text) > _LONGEST:
        raise InvalidArgumentError("This value is too long to be edited here.")
    return text if is_json else value, is_json


def replaced(value: Any, at: int, text: str) -> Any:
    """Return a value with the edited text in its place: see `editable`."""
    _, is_json = editable(value, at)
    text = text.replace("\r\n", "\n")  # (browsers may send line breaks so)
    new = read_json(text) if is_json else text
    _exact(new)  # (numbers may be too large, half a surrogate pair is no text)
    if at < 0:
        return new
    changed = _message(value, at).model_copy(update={"content": new})
    return [*value[:at], changed, *value[at + 1 :]]


def _message(value: Any, at: int) -> BaseMessage:
    found = value[at] if _is_messages(value) and at < len(value) else None
    if not isinstance(found, BaseMessage):
        raise InvalidArgumentError(f"There is no message {at}.")
    return found


def _exact(value: Any, most: float = inf) -> str:
    """Return a value as JSON that keeps it exactly, or more than `most` characters of it."""
    text = ""
    with suppress(TypeError, ValueError, RecursionError):
        for part in _ENCODER.iterencode(value):
            text += part
            if len(text) > most:
                return text
        if same(json.loads(text.encode()), value):
            return text
    hint = "Set it with graph.update_state."
    raise InvalidArgumentError("JSON cannot keep this value exactly.", hint=hint)
