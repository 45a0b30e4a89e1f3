"""Readable forms of values, messages and checkpoints.

Invariant: a value of any type has a readable form, and none is changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from rich.console import RenderableType
from rich.padding import Padding

from threadkeep._core.codec.codecs import CLASS, Raw
from threadkeep._core.engine.thread_summary import following, tasks
from threadkeep._core.langgraph_internals import TASKS
from threadkeep.cli.terminal import compact, line, plural, text
from threadkeep.threads.diff import plain

# -- values ------------------------------------------------------------------------------

_CONTAINERS = (Mapping, Sequence, AbstractSet)
_TEXTS = (str, bytes, bytearray, memoryview)  # sequences that are single values


def kind(value: Any) -> str:
    """Return the type of a value in a few words: `list of 3`, `str`, `AIMessage`."""
    if isinstance(value, Raw):
        return f"{value[CLASS]} (raw)"
    name = type(value).__name__
    if isinstance(value, _CONTAINERS) and not isinstance(value, _TEXTS):
        return f"{name} of {len(value)}"
    return name


def size_as_json(value: Any) -> int:
    """Return the number of bytes of a value as UTF-8 JSON."""
    return len(json.dumps(plain(value), ensure_ascii=False).encode("utf-8", "surrogatepass"))


# -- messages ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call of a tool; `args` as JSON."""

    name: str
    args: Any
    id: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `tool_call_id` and `status` are those of a tool's result."""

    role: str
    name: str | None
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    status: str | None = None
    id: str | None = None


def conversation(values: Mapping[str, Any], channel: str = "messages") -> list[Message] | None:
    """Return the messages of a state; None if the channel is not a list."""
    found = values.get(channel)
    return [message(one) for one in found] if isinstance(found, list | tuple) else None


def message(value: Any) -> Message:
    """Read an item of a list of messages: LangChain's, a dict, a pair, or text."""
    if isinstance(value, BaseMessage):
        role = value.type.removesuffix("MessageChunk").lower()  # (as of the whole message)
        return _read({**value.__dict__, "role": role})
    if isinstance(value, Mapping):
        return _read(value)
    if isinstance(value, tuple | list) and len(value) == 2:  # noqa: PLR2004 - a role and a text
        return Message(str(value[0]), None, _text(value[1]))
    return Message("human" if isinstance(value, str) else type(value).__name__, None, _text(value))


def _read(fields: Mapping[str, Any]) -> Message:
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


_CALLS = ("tool_use", "tool_call", "function_call")  # (shown as the message's tool calls)

# -- checkpoints -------------------------------------------------------------------------


def summarize(found: CheckpointTuple) -> dict[str, Any]:
    """Return a summary of a checkpoint as JSON, made without its graph.

    `time` is ISO 8601, `next` the nodes to run, `waiting` the interrupts without an answer,
    `failed` the errors of tasks.
    """
    place, checkpoint = found.config["configurable"], found.checkpoint
    metadata, writes = found.metadata or {}, found.pending_writes or []
    values = checkpoint["channel_values"]
    sent = [str(getattr(task, "node", task)) for task in values.get(TASKS) or ()]
    return {
        "thread": str(place["thread_id"]),
        "namespace": str(place.get("checkpoint_ns") or ""),
        "checkpoint": str(checkpoint["id"]),
        "time": str(checkpoint["ts"]),
        "source": str(metadata.get("source", "")),
        "step": metadata.get("step"),
        "next": list(dict.fromkeys([*following(values), *sent])),
        "waiting": list(_waiting(writes)),
        "failed": [str(value) for _, channel, value in writes if channel == ERROR],
    }


def _waiting(writes: list[Any]) -> Iterator[dict[str, Any]]:
    waiting = tasks([(task, channel) for task, channel, _ in writes]).waiting
    for task, channel, value in writes:
        if channel == INTERRUPT and task in waiting:
            for one in value if isinstance(value, list | tuple) else (value,):
                question = plain(getattr(one, "value", one))
                yield {"task": str(task), "id": getattr(one, "id", None), "value": question}


# -- drawing -----------------------------------------------------------------------------

_LINES, _CHARACTERS = 20, 2_000  # shown of one text, unless --full
_ROLES = {"human": "bold green", "user": "bold green", "ai": "bold cyan", "tool": "bold magenta"}


def cut(value: str, *, full: bool) -> Padding:
    """Indent a text, shortened with a note if it is long."""
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
