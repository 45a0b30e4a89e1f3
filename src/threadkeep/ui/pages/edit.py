"""An editor of one value: JSON, or the content of a message, stored as a new checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from typing import Any

from anyio import to_thread
from langchain_core.messages import BaseMessage
from starlette.responses import Response

from threadkeep._core.engine.differences import same
from threadkeep._core.langgraph_internals import JOIN, is_internal
from threadkeep.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    StateError,
    ThreadkeepError,
)
from threadkeep.threads.diff import Path, path_text
from threadkeep.ui.audit import audited
from threadkeep.ui.page import Asked, PagePlace, route
from threadkeep.ui.pages.actions import run
from threadkeep.ui.pages.checkpoint import listed
from threadkeep.ui.text import read_json

_LONGEST = 250_000  # characters. Each takes 12 bytes or fewer in a form
_TYPES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}
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
        new = await to_thread.run_sync(replaced, old, at, text, "retype" in given)
        stored = await request.page.writer.threads.aedit(
            thread, {channel: new}, checkpoint_id=id, if_head="head" in given
        )
    id = stored["configurable"]["checkpoint_id"]
    if "run" in given:
        try:
            with audited(request, "replay", thread, id):
                await run(request, PagePlace(thread, "", id), "replay")
        except ThreadkeepError as error:
            text = f"The value is stored in a new checkpoint, but did not run: {error.message}"
            hint = error.hint or "Reload the page."
            raise StateError(text, hint=hint, thread=thread) from error
    return Response(headers={"hx-redirect": request.address("/thread", id=thread, at=id)})


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


def replaced(value: Any, at: int, text: str, retype: bool = False) -> Any:  # noqa: FBT001, FBT002 - as `run_sync` calls it
    """Return a value with the edited text in its place: see `editable`.

    With `retype`, types of values may change.
    """
    _, is_json = editable(value, at)
    text = text.replace("\r\n", "\n")  # (browsers may send line breaks so)
    new = read_json(text) if is_json else text
    _exact(new)  # (numbers may be too large, half a surrogate pair is no text)
    old = value if at < 0 else _message(value, at).content
    if not retype and (found := retyped(old, new)):
        raise InvalidArgumentError(
            f"{found[0]} was {found[1]} and would become {found[2]}.",
            hint='Choose "Change types" if you mean it.',
        )
    if at < 0:
        return new
    changed = _message(value, at).model_copy(update={"content": new})
    return [*value[:at], changed, *value[at + 1 :]]


def retyped(old: Any, new: Any, path: Path = ()) -> tuple[str, str, str] | None:
    """Return the first place where the JSON type changes, with both types, or None.

    A value that was null may become any other.
    """
    if old is None:
        return None
    before, after = _type(old), _type(new)
    if before != after:
        return path_text(path) or "The value", before, after
    pairs: Iterable[tuple[Any, Any, Any]] = ()
    if isinstance(old, dict):
        pairs = [(key, old[key], new[key]) for key in old if key in new]
    elif isinstance(old, list) and len(old) == len(new):
        pairs = zip(range(len(old)), old, new, strict=True)
    found = (retyped(a, b, (*path, key)) for key, a, b in pairs)
    return next(filter(None, found), None)


def _type(value: Any) -> str:
    for kind, name in _TYPES.items():
        if isinstance(value, kind):
            return name
    return "null"


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
