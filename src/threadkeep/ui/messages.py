"""Messages as the page draws them: text rendered, results under their calls, pictures small.

Pictures are bitmaps by their first bytes, and stand in the page itself. Nothing else that a message
names is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from threadkeep._core.texts import size
from threadkeep.threads.diff import plain
from threadkeep.threads.media import Medium
from threadkeep.threads.messages import Block, Message, Origin
from threadkeep.ui.text import LONGEST, RENDERED, cut, markdown

_SIDES = {
    **dict.fromkeys(("human", "user"), "human"),
    **dict.fromkeys(("ai", "assistant"), "ai"),
    **dict.fromkeys(("tool", "function"), "tool"),
    **dict.fromkeys(("system", "developer"), "system"),
}
_TEXT, _MARKDOWN, _PICTURES = (
    1_000_000,
    100_000,
    4_000_000,
)  # characters that one answer renders, and shows
_LEAST = 1000  # characters of a text, however long the answer is
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
    origin: Origin
    is_failed: bool = False


@dataclass(slots=True)
class _Room:
    """Characters that an answer may still hold, render and hold as pictures, newest first."""

    text: int = _TEXT
    markdown: int = _MARKDOWN
    pictures: int = _PICTURES

    def cut(self, kind: str, text: str, title: str = "") -> Shown:
        """Return a text, cut if it or the answer is long."""
        longest = min(LONGEST, max(self.text, _LEAST))
        self.text -= min(len(text), longest)
        return Shown(kind, cut(text, longest), cut(title, _NAME), len(text) > longest)


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
    if value is None or isinstance(value, str | int | float):
        return cut(str(plain(value)), _NAME)
    count = f", {len(value):,}" if isinstance(value, Mapping | Sequence | bytes) else ""
    return f"{type(value).__name__}{count}"


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
        ShownCall(cut(each.name, _NAME), _brief(args), _json(args, room), each.error)
        for each in one.tool_calls
        for args in (plain(_parsed(each.args)),)
    ]
    return Bubble(
        side,
        cut(one.role, _NAME),
        cut(one.name or "", _NAME),
        one.id or "",
        back,
        [_part(block, side, room) for block in one.blocks if block.text != ""],
        calls,
        one.origin,
        one.status == "error",
    )


# -- parts -----------------------------------------------------------------------------


def _part(block: Block, side: str, room: _Room) -> Shown:
    if block.text is None and block.medium is not None:
        return _medium(block.medium, room)
    if block.text is None:
        return _json(block.value, room, block.kind)
    if block.kind != "text":
        shown = _text(block.text, room, rendered=True)
        return Shown("thoughts", shown.body, cut(block.kind, _NAME), shown.is_cut)
    data = _parsed(block.text)
    if data is not block.text:
        return _json(data, room)
    if (whole := Medium("", block.text)).bitmap:
        return _medium(whole, room)
    return _text(block.text, room, rendered=side != "tool")


def _text(text: str, room: _Room, *, rendered: bool) -> Shown:
    if rendered and len(text) <= min(room.markdown, RENDERED):
        room.markdown -= len(text)
        return Shown("html", markdown(text))
    return room.cut("text", text)


def _parsed(text: Any) -> Any:
    """Return the list or dict of a JSON text; any other value as it is."""
    if isinstance(text, str) and len(text) <= LONGEST and text.strip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _json(value: Any, room: _Room, title: str = "") -> Shown:
    text = value
    if not isinstance(value, str):
        text = json.dumps(_without_data(plain(value)), indent=2, ensure_ascii=False)
    return room.cut("json", text, title)


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


def _medium(found: Medium, room: _Room) -> Shown:
    if found.base64:
        title = cut(found.title, _NAME)
        if found.bitmap and len(found.base64) <= room.pictures and found.is_sound:
            room.pictures -= len(found.base64)
            return Shown("image", f"data:{found.bitmap};base64,{found.base64}", title)
        return Shown("note", title)
    try:
        parts = urlsplit(found.url)
        host = parts.hostname if parts.scheme in ("http", "https") else None
    except ValueError:
        host = None
    if host and len(found.url) <= LONGEST:
        return Shown("link", found.url, host)
    return Shown("note", cut(found.url, _NAME))
