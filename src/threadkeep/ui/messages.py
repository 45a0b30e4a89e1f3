"""Messages as the page draws them: text rendered, results under their calls, pictures small.

Pictures are bitmaps by their first bytes, and stand in the page itself. Nothing else that a message
names is loaded.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from threadkeep._core.texts import size
from threadkeep.threads.diff import plain
from threadkeep.threads.messages import Block, Message
from threadkeep.ui.text import LONGEST, RENDERED, as_json, cut, markdown

_SIDES = {
    **dict.fromkeys(("human", "user"), "human"),
    **dict.fromkeys(("ai", "assistant"), "ai"),
    **dict.fromkeys(("tool", "function"), "tool"),
    **dict.fromkeys(("system", "developer"), "system"),
}
_USUAL_ENDS = {"stop", "tool_calls", "end_turn", "tool_use", "STOP"}
_MARKDOWN, _PICTURES = 100_000, 4_000_000  # characters that one answer renders, and shows
_BRIEF = 4  # arguments in a call's summary
_NAME = 200  # characters of a name or id


@dataclass(slots=True)
class Shown:
    """A part of a message.

    `kind` is "html", "text", "json", "thoughts", "image", "link" or "note"; `body` its HTML, text
    or address; `title` its type and size, or a host. `is_cut` if it is not all there.
    """

    kind: str
    body: str
    title: str = ""
    is_cut: bool = False


@dataclass(slots=True)
class ShownCall:
    """A call of a tool, and its result. `brief` is the beginning of its arguments."""

    name: str
    brief: str
    args: Shown
    error: str | None = None
    result: Bubble | None = None


@dataclass(slots=True)
class Bubble:
    """A message. `back` is its place from the end of the conversation: 1 is the newest, 0 none."""

    side: str
    role: str
    name: str
    id: str
    back: int
    parts: list[Shown]
    calls: list[ShownCall]
    facts: Mapping[str, Any]
    is_failed: bool = False


@dataclass(slots=True)
class _Room:
    """Characters that an answer may still render as Markdown or hold as pictures, newest first."""

    markdown: int = _MARKDOWN
    pictures: int = _PICTURES


def bubbles(messages: Sequence[Message], after: int | None = None) -> list[Bubble]:
    """Draw messages; `after` messages come after them in the conversation, None outside one."""
    room, found = _Room(), list[Bubble]()
    drawn = [
        _bubble(one, 0 if after is None else after + number, room)
        for number, one in enumerate(reversed(messages), 1)
    ]
    callers: dict[str, ShownCall] = {}
    for one, bubble in zip(messages, reversed(drawn), strict=True):
        caller = callers.pop(one.tool_call_id, None) if one.tool_call_id else None
        if caller is None:
            found.append(bubble)
        else:
            caller.result = bubble
        named = zip(one.tool_calls, bubble.calls, strict=True)
        callers |= {call.id: shown for call, shown in named if call.id}
    return found


def brief(value: Any) -> str:
    """Return a short text about a value, without reading all of it."""
    if isinstance(value, str):
        return cut(value, _NAME)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, bytes | bytearray):
        return f"{type(value).__name__}, {len(value):,}"
    return (
        cut(json.dumps(value), _NAME)
        if value is None or isinstance(value, int | float)
        else type(value).__name__
    )


def settled(messages: Sequence[Message]) -> int:
    """Return the number of messages that no later message may change."""
    waiting = dict[str, int]()
    for number, one in enumerate(messages):
        if _SIDES.get(one.role) == "human":
            waiting.clear()
        waiting.pop(one.tool_call_id or "", None)
        waiting |= {call.id: number for call in one.tool_calls if call.id}
    return min(waiting.values(), default=len(messages))


def digest(messages: Iterable[Message]) -> str:
    """Return a short text that is the same for the same messages."""
    said = repr([(one.as_json(), one.blocks) for one in messages])
    return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


def _bubble(one: Message, back: int, room: _Room) -> Bubble:
    side = _SIDES.get(one.role, "other")
    calls = [
        ShownCall(cut(each.name, _NAME), _brief(args), _json(args), each.error)
        for each in one.tool_calls
        for args in (_parsed(each.args),)
    ]
    return Bubble(
        side,
        cut(one.role, _NAME),
        cut(one.name or "", _NAME),
        one.id or "",
        back,
        [_part(block, side, room) for block in one.blocks if block.text != ""],
        calls,
        _facts(one.about),
        one.status == "error",
    )


def _facts(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model, the tokens it read and wrote, and an unusual end."""
    said = {**_mapping(about, "response_metadata")}
    used = {**_mapping(said, "token_usage"), **_mapping(about, "usage_metadata")}
    counts = [
        next((used[name] for name in names if isinstance(used.get(name), int)), None)
        for names in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
    ]
    model = next((said[n] for n in ("model_name", "model", "model_id") if said.get(n)), "")
    end = next((said[n] for n in ("finish_reason", "stop_reason") if said.get(n)), "")
    return {
        "model": cut(str(model), _NAME),
        "read": counts[0],
        "written": counts[1],
        "end": "" if str(end) in _USUAL_ENDS else cut(str(end), _NAME),
    }


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


# -- parts -----------------------------------------------------------------------------


def _part(block: Block, side: str, room: _Room) -> Shown:
    if block.text is None:
        found = _media(block.value)
        return _json(plain(block.value), block.kind) if found is None else _medium(found, room)
    if block.kind != "text":
        shown = _text(block.text, room, rendered=True)
        return Shown("thoughts", shown.body, cut(block.kind, _NAME), shown.is_cut)
    data = _parsed(block.text)
    if data is not block.text:
        return _json(data)
    if _bitmap(block.text[:64]):
        return _medium(_Medium("", block.text, is_base64=True), room)
    return _text(block.text, room, rendered=side != "tool")


def _text(text: str, room: _Room, *, rendered: bool) -> Shown:
    if rendered and len(text) <= min(room.markdown, RENDERED):
        room.markdown -= len(text)
        return Shown("html", markdown(text))
    return Shown("text", cut(text), is_cut=len(text) > LONGEST)


def _parsed(text: Any) -> Any:
    """Return the list or dict of a JSON text; any other value as it is."""
    if isinstance(text, str) and len(text) <= LONGEST and text.strip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _json(value: Any, title: str = "") -> Shown:
    text = value if isinstance(value, str) else as_json(_without_data(value))
    return Shown("json", cut(text), cut(title, _NAME), len(text) > LONGEST)


def _brief(args: Any) -> str:
    """Return arguments in one line: values alone, as their names are mostly plain."""
    said = [*args.values()][:_BRIEF] if isinstance(args, Mapping) else [args]
    shown = [one if isinstance(one, str) else json.dumps(one)[:_NAME] for one in said]
    return cut(" ".join(", ".join(one[:_NAME] for one in shown).split()), _NAME // 2)


_BASE64 = re.compile(r"(?=.{0,999}[a-z])(?=.{0,999}[A-Z])(?=.{0,999}\d)[A-Za-z0-9+/_-]+={0,2}")
_LONG = 400  # characters of base64 that are read as data


def _without_data(value: Any) -> Any:
    """Return JSON data with the size in place of long base64."""
    if isinstance(value, Mapping):
        return {key: _without_data(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_data(one) for one in value]
    if isinstance(value, str) and len(value) > _LONG:
        head, _, data = value.rpartition(";base64,")
        if _BASE64.fullmatch(data):
            return f"({head.removeprefix('data:') or 'base64'}, {size(len(data) * 3 // 4)})"
    return value


# -- pictures and files ----------------------------------------------------------------

_INNER = ("image_url", "image", "source", "input_audio", "audio", "file", "document", "video")
_TYPES = ("mime_type", "media_type", "format")
_DATA = ("base64", "data", "file_data", "bytes")
_URLS = ("url", "image_url", "file_url", "uri", "image")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


class _Medium(NamedTuple):
    """The data of a block, or its URL."""

    kind: str
    data: str
    is_base64: bool


def _media(block: Mapping[str, Any]) -> _Medium | None:
    levels = [block]
    while (below := _below(levels[-1])) is not None and len(levels) < 4:  # noqa: PLR2004 - deep enough
        levels.append(below)
    found: dict[str, Any] = {}
    for level in levels:
        found |= level
    kind = next((found[name] for name in _TYPES if isinstance(found.get(name), str)), "")
    for name in (*_DATA, *_URLS):
        value = found.get(name)
        if isinstance(value, bytes):
            return _Medium(kind, base64.b64encode(value).decode(), is_base64=True)
        if isinstance(value, str) and value:
            if value[:5].lower() != "data:":
                return _Medium(kind, value, name in _DATA)
            head, _, data = value[5:].partition(",")
            return _Medium(head.partition(";")[0], data, head.lower().endswith(";base64"))
    return None


def _below(block: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((block[name] for name in _INNER if isinstance(block.get(name), Mapping)), None)


def _medium(found: _Medium, room: _Room) -> Shown:
    kind, data = cut(found.kind, _NAME), found.data
    if not found.is_base64:
        try:
            parts = urlsplit(data)
            host = parts.hostname or ""
        except ValueError:
            return Shown("note", cut(data, _NAME))
        if parts.scheme in ("http", "https") and host and len(data) <= LONGEST:
            return Shown("link", data, host)
        return Shown("note", f"{kind}, {size(len(data))}" if kind else cut(data, _NAME))
    bitmap = _bitmap(data[:64])
    if bitmap and len(data) <= room.pictures and _is_base64(data):
        room.pictures -= len(data)
        return Shown("image", f"data:{bitmap};base64,{data}", f"{bitmap}, {_bytes(data)}")
    return Shown("note", f"{bitmap or kind or 'base64'}, {_bytes(data)}")


def _bytes(data: str) -> str:
    return size(len(data.rstrip("=")) * 3 // 4)


def _is_base64(data: str) -> bool:
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return False
    return True


def _bitmap(beginning: str) -> str:
    """Return the type of a picture by the first characters of its base64; "" for other data."""
    try:
        head = binascii.a2b_base64(beginning[: len(beginning) // 4 * 4])
    except ValueError:
        return ""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
