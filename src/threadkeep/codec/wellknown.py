"""The classes that data names by a number instead of by module and name.

Only the tables live here. Invariant: append-only. A code is never renumbered or reused,
a field keeps its place in its list, a default is never changed: stored data means what
it meant. A class that moves gets its new home added in front of the old one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from langchain_core import messages as _messages
from langchain_core.documents import Document

HOMES: dict[int, tuple[str, ...]] = {
    1: ("langchain_core.messages.human:HumanMessage",),
    2: ("langchain_core.messages.ai:AIMessage",),
    3: ("langchain_core.messages.tool:ToolMessage",),
    4: ("langchain_core.messages.system:SystemMessage",),
    5: ("langchain_core.messages.modifier:RemoveMessage",),
    6: ("langchain_core.messages.chat:ChatMessage",),
    7: ("langchain_core.messages.function:FunctionMessage",),
    8: ("langchain_core.messages.human:HumanMessageChunk",),
    9: ("langchain_core.messages.ai:AIMessageChunk",),
    10: ("langchain_core.messages.tool:ToolMessageChunk",),
    11: ("langchain_core.messages.system:SystemMessageChunk",),
    12: ("langchain_core.messages.chat:ChatMessageChunk",),
    13: ("langchain_core.messages.function:FunctionMessageChunk",),
    14: ("langchain_core.documents.base:Document",),
    32: ("langchain_core.messages.base:TextAccessor",),
    33: ("langgraph.types:Send",),
    34: ("langgraph.types:Command",),
    35: ("langgraph.types:Interrupt",),
    36: ("langgraph.types:Overwrite",),
    37: ("langgraph.types:TimeoutPolicy",),
    38: ("langgraph.checkpoint.serde.types:_DeltaSnapshot",),
    39: ("langgraph.store.base:Item",),
    40: ("langgraph.store.base:SearchItem",),
}
"""Code -> where its class is and was found, as "module:qualified name"."""

CODES: dict[str, int] = {home: code for code, homes in HOMES.items() for home in homes}

PLAIN: dict[int, dict[str, Any]] = {33: {"timeout": None}, 39: {}, 40: {"score": None}}
"""Codes of classes that are no data classes, but are fully described by their attributes;
with what attributes are when they are missing, which older releases did not have."""


class Always:
    """Stands where a field has no default: it is always written."""


class KnownModel(NamedTuple):
    """A model written by field numbers: `fields` in bit order, `extra` as it is by default.

    A default is None, a str, or a type: a fresh empty dict or list, or `Always`.
    """

    cls: type
    fields: tuple[tuple[str, Any], ...]
    extra: dict[str, Any] | None


def _message(
    name: str,
    kind: str,
    own: tuple[tuple[str, Any], ...] = (),
    late: tuple[tuple[str, Any], ...] = (),
) -> KnownModel:
    """The fields used most come first: the lowest bits make the shortest numbers."""
    first: tuple[tuple[str, Any], ...] = (("content", Always), ("id", None))
    common = (
        ("name", None),
        ("response_metadata", dict),
        ("additional_kwargs", dict),
        ("type", kind),
    )
    return KnownModel(getattr(_messages, name), (*first, *own, *common, *late), {})


_AI = (("tool_calls", list), ("usage_metadata", None))
_AI_LATE = (("invalid_tool_calls", list),)
_AI_CHUNK_LATE = (*_AI_LATE, ("tool_call_chunks", list), ("chunk_position", None))
_TOOL = (("tool_call_id", Always),)
_TOOL_LATE = (("status", "success"), ("artifact", None))
_ROLE = (("role", Always),)

MODELS: dict[int, KnownModel] = {
    1: _message("HumanMessage", "human"),
    2: _message("AIMessage", "ai", _AI, _AI_LATE),
    3: _message("ToolMessage", "tool", _TOOL, _TOOL_LATE),
    4: _message("SystemMessage", "system"),
    5: _message("RemoveMessage", "remove"),
    6: _message("ChatMessage", "chat", _ROLE),
    7: _message("FunctionMessage", "function"),
    8: _message("HumanMessageChunk", "HumanMessageChunk"),
    9: _message("AIMessageChunk", "AIMessageChunk", _AI, _AI_CHUNK_LATE),
    10: _message("ToolMessageChunk", "ToolMessageChunk", _TOOL, _TOOL_LATE),
    11: _message("SystemMessageChunk", "SystemMessageChunk"),
    12: _message("ChatMessageChunk", "ChatMessageChunk", _ROLE),
    13: _message("FunctionMessageChunk", "FunctionMessageChunk"),
    14: KnownModel(
        Document,
        (("page_content", Always), ("metadata", dict), ("id", None), ("type", "Document")),
        None,
    ),
}
"""Code -> the fields of a model that is written by field numbers."""
