"""Messages of a conversation, whoever made them: LangChain's objects, dicts, pairs, plain text.

Invariant: whatever a list of messages holds, each item is one record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from threadkeep.readable.values import plain


class ToolCall(NamedTuple):
    """A tool that a model asks for; `args` as JSON knows them."""

    name: str
    args: Any
    id: str | None


class Message(NamedTuple):
    """What somebody said. `tool_call_id` and `status` are those of a tool's result."""

    role: str
    name: str | None
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    status: str | None = None
    id: str | None = None


def conversation(values: Mapping[str, Any], channel: str = "messages") -> list[Message] | None:
    """The messages of a state; None where that channel holds no list."""
    found = values.get(channel)
    return [message(one) for one in found] if isinstance(found, list | tuple) else None


def message(value: Any) -> Message:
    """One item of a list of messages."""
    if isinstance(value, BaseMessage):
        return _read({**value.__dict__, "role": value.type})
    if isinstance(value, Mapping):
        return _read(value)
    if isinstance(value, tuple | list) and len(value) == 2:  # noqa: PLR2004 - a role and a text
        return Message(str(value[0]), None, _text(value[1]))
    return Message("human" if isinstance(value, str) else type(value).__name__, None, _text(value))


def _read(fields: Mapping[str, Any]) -> Message:
    """A message by its fields, as LangChain or the providers name them."""
    role = fields.get("role") or fields.get("type") or "message"
    return Message(
        str(role),
        _optional(fields.get("name")),
        _text(fields.get("content")),
        tuple(_calls(fields.get("tool_calls"))),
        _optional(fields.get("tool_call_id")),
        _optional(fields.get("status")) if role == "tool" else None,
        _optional(fields.get("id")),
    )


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)


def _calls(calls: Any) -> Iterable[ToolCall]:
    for call in calls if isinstance(calls, list | tuple) else ():
        if isinstance(call, Mapping):
            # (OpenAI's own form has name and arguments one level down)
            inner = call.get("function")
            fields = inner if isinstance(inner, Mapping) else call
            args = fields.get("args", fields.get("arguments"))
            yield ToolCall(str(fields.get("name")), plain(args), _optional(call.get("id")))


def _text(content: Any) -> str:
    """The text of a content: as it is, or of blocks what they say or what they are."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, map(_block, content)))
    return str(plain(content))


def _block(block: Any) -> str:
    if not isinstance(block, Mapping):
        return _text(block)
    kind = str(block.get("type", "block"))
    for key in ("text", "thinking", "reasoning"):
        if isinstance(block.get(key), str):
            return str(block[key]) if key == "text" else f"[{kind}] {block[key]}"
    return "" if kind in _CALLS else f"[{kind}]"


_CALLS = ("tool_use", "tool_call", "function_call")  # these are among the message's tool calls
