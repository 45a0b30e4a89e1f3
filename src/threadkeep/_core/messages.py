"""Texts of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

Messages: TypeAlias = "Sequence[BaseMessage]"


def text_of(message: BaseMessage) -> str:
    """Return the text of a message's content, be that a str or a list of blocks."""
    content: Any = message.content
    if isinstance(content, str):
        return content
    texts = [block.get("text") if isinstance(block, Mapping) else block for block in content]
    return "\n".join(text for text in texts if isinstance(text, str) and text)
