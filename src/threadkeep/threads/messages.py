"""Messages of a conversation, read from any form in which graphs and sessions store them.

Any value has a reading, and none is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from threadkeep.threads.diff import plain
from threadkeep.threads.media import Medium, medium

CHANNEL = "messages"
"""The channel that holds a conversation, in most graphs."""

_CALLS = ("tool_use", "tool_call", "function_call")  # blocks
_TEXTS = ("text", "thinking", "reasoning", "refusal")  # keys of a block's text
_CHUNK = "MessageChunk"
_USUAL_ENDS = {"stop", "tool_calls", "end_turn", "tool_use", "STOP"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call of a tool, `args` as JSON. `error` is set if the arguments could not be parsed."""

    name: str
    args: Any
    id: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a message: text or thoughts of a model, or another `value` without text.

    `medium` is its picture or file.
    """

    kind: str
    text: str | None = None
    value: Any = None
    medium: Medium | None = None


class Origin(NamedTuple):
    """A model, the tokens that it read and wrote, and why it ended, if that is unusual."""

    model: str
    read: int | None
    written: int | None
    end: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        role: "human", "ai", "tool" and so on, as the message names it.
        name: name of its author.
        text: text of all blocks, and in place of other blocks their kind in brackets.
        tool_calls: calls of tools.
        tool_call_id: the call that a tool's result belongs to.
        status: "success" or "error" of a tool's result.
        id: the message's id.
        blocks: its parts, without calls of tools.
        about: its other fields.
    """

    role: str
    name: str | None
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    status: str | None = None
    id: str | None = None
    blocks: tuple[Block, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> Origin:
        """The model that said it, and so on, as far as the message tells."""
        said = _mapping(self.about, "response_metadata")
        used = {**_mapping(said, "token_usage"), **_mapping(self.about, "usage_metadata")}
        read, written = (
            next((used[name] for name in names if isinstance(used.get(name), int)), None)
            for names in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
        )
        model = next(
            (said[name] for name in ("model_name", "model", "model_id") if name in said), ""
        )
        end = next((said[name] for name in ("finish_reason", "stop_reason") if said.get(name)), "")
        return Origin(str(model), read, written, "" if str(end) in _USUAL_ENDS else str(end))

    def as_json(self) -> dict[str, Any]:
        """Return the message as JSON, without `blocks` and `about`."""
        calls = [{"name": one.name, "args": one.args, "id": one.id} for one in self.tool_calls]
        names = ("role", "name", "text", "tool_call_id", "status", "id")
        return {**{name: getattr(self, name) for name in names}, "tool_calls": calls}


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def conversation(values: Mapping[str, Any], channel: str = CHANNEL) -> list[Message] | None:
    """Return the messages of a state, or None if the channel is not a list."""
    found = values.get(channel)
    return [message(one) for one in found] if isinstance(found, list | tuple) else None


def are_messages(value: Any) -> bool:
    """Return True for a list that begins with a message. Text alone is no message here."""
    if not isinstance(value, list | tuple) or not value:
        return False
    one = value[0]
    if isinstance(one, Mapping):
        names = ("content", "tool_calls", "call_id", "summary")
        return bool(_role(one)) and any(name in one for name in names)
    return isinstance(one, BaseMessage)


def message(value: Any) -> Message:
    """Read an item of a list of messages: LangChain's, a dict, a pair, or text."""
    if isinstance(value, BaseMessage):
        return _read({**value.__dict__, "role": value.type})
    if isinstance(value, Mapping):
        return _read(value)
    if isinstance(value, tuple | list) and len(value) == 2:  # noqa: PLR2004 - a role and a text
        return _made(str(value[0]), value[1])
    return _made("human" if isinstance(value, str) else type(value).__name__, value)


def _made(role: str, content: Any) -> Message:
    blocks = tuple(_blocks(content))
    return Message(role, None, _text(blocks), blocks=blocks)


def _role(fields: Mapping[str, Any]) -> str:
    role = str(fields.get("role") or fields.get("type") or "")
    # (a chunk is shown as the whole message)
    return role.removesuffix(_CHUNK).lower() if role.endswith(_CHUNK) else role


_ITEMS = {"function_call": "ai", "function_call_output": "tool", "reasoning": "ai"}
_READ = {
    *("role", "type", "name", "content", "tool_calls", "invalid_tool_calls", "tool_call_id"),
    *("status", "id", "output", "call_id", "arguments", "summary"),
}


def _read(fields: Mapping[str, Any]) -> Message:
    kind = _role(fields)
    if kind in _ITEMS and "content" not in fields:  # (an item of OpenAI's responses)
        fields = _item(fields, kind)
    role, content = _ITEMS.get(kind, kind) or "message", fields.get("content")
    more = fields.get("additional_kwargs")
    thoughts = more.get("reasoning_content") if isinstance(more, Mapping) else None
    blocks = [Block("reasoning", thoughts)] if isinstance(thoughts, str) and thoughts else []
    blocks += _blocks(content)
    calls = [*_calls(fields.get("tool_calls")), *_calls(fields.get("invalid_tool_calls"))]
    return Message(
        role,
        _optional(fields.get("name")),
        _text(blocks),
        tuple(calls or _calls(content, among=_CALLS)),
        _optional(fields.get("tool_call_id")),
        _optional(fields.get("status")) if role == "tool" else None,
        _optional(fields.get("id")),
        tuple(blocks),
        {str(key): one for key, one in fields.items() if key not in _READ and one},
    )


def _item(fields: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return an item of OpenAI's responses in the form of a message."""
    call = fields.get("call_id")
    if kind == "function_call":
        return {**fields, "name": None, "tool_calls": [{**fields, "id": call}]}
    if kind == "reasoning":
        return {**fields, "content": [{**fields}]}
    return {**fields, "content": fields.get("output"), "tool_call_id": call}


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)


def _calls(calls: Any, among: Sequence[str] = ()) -> Iterator[ToolCall]:
    """Yield calls of tools. `among` are the kinds of blocks that are calls."""
    for call in calls if isinstance(calls, list | tuple) else ():
        if isinstance(call, Mapping) and (not among or call.get("type") in among):
            # (OpenAI's own form has name and arguments one level down)
            inner = call.get("function")
            fields = inner if isinstance(inner, Mapping) else call
            args = fields.get("args", fields.get("arguments", fields.get("input")))
            error = _optional(call.get("error"))
            yield ToolCall(str(fields.get("name")), plain(args), _optional(call.get("id")), error)


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(filter(None, map(_said, blocks)))


def _said(block: Block) -> str:
    if block.text is None:
        return f"[{(block.medium and block.medium.title) or block.kind}]"
    return block.text if block.kind == "text" else f"[{block.kind}] {block.text}"


def _blocks(content: Any) -> Iterator[Block]:
    if content is None:
        return
    if isinstance(content, list | tuple):
        for one in content:
            if isinstance(one, Mapping):
                yield from _block(one)
            else:
                yield from _blocks(one)
    else:
        yield Block("text", content if isinstance(content, str) else str(plain(content)))


def _block(block: Mapping[str, Any]) -> Iterator[Block]:
    kind = str(block.get("type", "block"))
    summary = block.get("summary")
    if isinstance(summary, list | tuple):
        said = [str(one["text"]) for one in summary if isinstance(one, Mapping) and "text" in one]
        if said:
            yield Block(kind, "\n\n".join(said))
            return
    for key in _TEXTS:
        if isinstance(block.get(key), str):
            yield Block("text" if key == "text" else kind, block[key])
            return
    if kind not in _CALLS:  # (else among the message's calls)
        yield Block(kind, None, block, medium(block))
