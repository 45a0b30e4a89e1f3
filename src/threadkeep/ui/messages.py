"""Messages as the page draws them: text rendered, results under their calls, pictures small.

Pictures are bitmaps by their first bytes, and stand in the page itself. Nothing else that a message
names is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from threadkeep.threads.media import Medium, encoded
from threadkeep.threads.messages import Block, Message, ToolCall, message
from threadkeep.ui.text import LONGEST, RENDERED, as_json, cut, markdown, parsed, weight
from threadkeep.ui.values import one_line

SIDES = {"user": "human", "assistant": "ai", "function": "tool", "developer": "system"}
"""Other names of roles."""

_NAME = 200  # characters of a title
_LEAST = 1000  # characters of a text, however long the answer is
_LONG = re.compile(r'"([^"\\\s]{200,})"')  # a text in JSON that may be base64
_WEB = re.compile(r"https?://([\w.-]{1,200})(:\d+)?([/?#].{0,2000})?", re.ASCII)


class Shown(NamedTuple):
    """A part of a message.

    `kind` is "html", "text", "json", "thoughts", "image", "link" or "note", `body` its HTML, text
    or address, and `title` its type and size, or a host. `is_cut` if it is not all there.
    """

    kind: str
    body: str
    title: str = ""
    is_cut: bool = False


@dataclass(slots=True)
class ShownCall:
    """A call of a tool, and its result. `brief` is the beginning of its arguments."""

    call: ToolCall
    brief: str
    args: Shown
    result: Bubble | None = None


class Bubble(NamedTuple):
    """A message. `place` is its position in the list of a checkpoint, None outside one."""

    message: Message
    side: str
    place: int | None
    parts: list[Shown]
    calls: list[ShownCall]


class Room:
    """Characters that an answer may still hold, render, and hold as pictures, and parts."""

    def __init__(self) -> None:
        self._left = {"text": 1_000_000, "html": 100_000, "image": 4_000_000, "part": 2000}

    def takes(self, kind: str, count: int) -> bool:
        """Return True if this many fit, which then are taken."""
        fits = count <= self._left[kind]
        self._left[kind] -= count * fits
        return fits

    def cut(self, kind: str, text: str, title: str = "") -> Shown:
        """Return a text, cut if it or the answer is long."""
        longest = LONGEST if self.takes("text", min(len(text), LONGEST)) else _LEAST
        return Shown(kind, cut(text, longest), cut(title, _NAME), len(text) > longest)


def bubbles(messages: Sequence[Any], first: int | None = None) -> list[Bubble]:
    """Draw messages. `first` is the position of the first of them, None outside a checkpoint."""
    room, found, callers = Room(), list[Bubble](), dict[str, ShownCall]()
    newest_first = [
        _bubble(message(messages[n]), None if first is None else first + n, room)
        for n in reversed(range(len(messages)))
    ]
    for one in reversed(newest_first):
        if caller := callers.pop(one.message.tool_call_id or "", None):
            caller.result = one
        else:
            found.append(one)
        callers |= {each.call.id: each for each in one.calls if each.call.id}
    return found


def _bubble(one: Message, place: int | None, room: Room) -> Bubble:
    side = SIDES.get(one.role, one.role)
    side = side if side in SIDES.values() else "other"
    blocks = [block for block in one.blocks if block.text != ""]
    parts = [_part(block, side, room) for block in blocks if room.takes("part", 1)]
    calls = [_call(each, room) for each in one.tool_calls if room.takes("part", 1)]
    if len(parts) + len(calls) < len(blocks) + len(one.tool_calls):
        parts.append(Shown("note", "…", is_cut=True))
    return Bubble(one, side, place, parts, calls)


def _call(call: ToolCall, room: Room) -> ShownCall:
    args = parsed(call.args) or call.args
    return ShownCall(call, one_line(args), _json(args, room))


def _part(block: Block, side: str, room: Room) -> Shown:
    if block.text is None:
        return _medium(block.medium, room) if block.medium else _json(block.value, room, block.kind)
    if block.kind not in ("text", "refusal"):
        return _text(block.text, room)._replace(kind="thoughts")
    if found := parsed(block.text):
        return _json(found, room)
    if data := encoded(block.text):
        return _medium(data, room)
    return _text(block.text, room, rendered=side != "tool")


def _text(text: str, room: Room, *, rendered: bool = True) -> Shown:
    if rendered and (count := weight(text)) <= RENDERED and room.takes("html", count):
        return Shown("html", markdown(text))
    return room.cut("text", text)


def _json(value: Any, room: Room, title: str = "") -> Shown:
    """Return a value as JSON, with the type and size in place of long base64."""

    def named(found: re.Match[str]) -> str:
        data = encoded(found[1])
        return f'"({data.title})"' if data else found[0]

    text = value if isinstance(value, str) else _LONG.sub(named, as_json(value))
    return room.cut("json", text, title)


def _medium(found: Medium, room: Room) -> Shown:
    if found.bitmap and found.is_sound and room.takes("image", len(found.base64)):
        return Shown("image", f"data:{found.bitmap};base64,{found.base64}", found.title)
    if web := _WEB.fullmatch(found.url):
        return Shown("link", found.url, web[1])
    return Shown("note", cut(found.title or found.url, _NAME))
