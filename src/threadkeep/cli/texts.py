"""Texts and messages as the commands draw them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding

from threadkeep.cli.readable import Message
from threadkeep.cli.terminal import compact, line, plural, text

_LINES, _CHARACTERS = 20, 2_000  # shown of one text, unless --full
_ROLES = {"human": "bold green", "user": "bold green", "ai": "bold cyan", "tool": "bold magenta"}


def cut(value: str, *, full: bool) -> Padding:
    """Indent a text. A long one is shortened, and says by how much."""
    shown = "\n".join(value[:_CHARACTERS].split("\n")[:_LINES])
    if not full and shown != value:
        value = f"{shown}\n... {plural(len(value) - len(shown), 'more character')} (--full)"
    return indented(value)


def indented(value: str) -> Padding:
    """Indent a text."""
    return Padding(text(value), (0, 0, 0, 2))


def message_lines(
    messages: Iterable[Message], *, full: bool, note: str = ""
) -> Iterator[RenderableType]:
    """Yield the lines of messages, each after an empty line; `note` is beside the role."""
    for message in messages:
        yield ""
        yield line(
            (message.role, _ROLES.get(message.role, "bold")),
            message.name or "",
            (f"[{message.tool_call_id}]" if message.tool_call_id else "", "dim"),
            (message.status if message.status not in (None, "success") else "", "red"),
            (note, "dim"),
        )
        if message.text:
            yield cut(message.text, full=full)
        for call in message.tool_calls:
            id = f" [{call.id}]" if call.id else ""
            yield cut(f"calls {call.name} {compact(call.args)}{id}", full=full)
