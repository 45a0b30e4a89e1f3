"""Messages in the OpenAI chat format, and the LangChain messages that a model gives for them."""

from __future__ import annotations

import json
import uuid
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, message_to_dict
from langchain_core.messages.tool import ToolCall


def from_assistant(message: dict[str, Any]) -> AIMessage:
    """Return a message as a chat model does, with an id of its run."""
    calls = [tool_call(call) for call in message.get("tool_calls") or ()]
    return AIMessage(message.get("content") or "", tool_calls=calls, id=f"lc_run--{uuid.uuid4()}")


def tool_call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = {"text": function["arguments"]}
    return ToolCall(name=function["name"], args=arguments, id=call["id"])


def from_tool(message: dict[str, Any]) -> ToolMessage:
    return ToolMessage(
        message.get("content") or "",
        tool_call_id=message["tool_call_id"],
        name=message.get("name"),
    )


def plain_json(values: dict[str, Any], *, least: bool = False) -> int:
    """The bytes of the state as plain JSON, messages in LangChain's own JSON form.

    With `least`, messages are written with nothing but the fields that are set.
    """
    return len(json.dumps(values, default=set_fields if least else message_to_dict).encode())


def set_fields(message: BaseMessage) -> dict[str, Any]:
    return {"type": message.type, **message.model_dump(exclude_defaults=True)}
