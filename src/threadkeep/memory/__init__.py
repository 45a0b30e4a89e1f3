"""Layered memory: conversations of any length in the window of a model, and nothing lost."""

from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep.memory.chat_model import ChatModelSummarizer
from threadkeep.memory.groups import (
    IntegratedCheckpointManager,
    MessageGroups,
    SavedConversation,
)
from threadkeep.memory.policy import (
    ArchivedMessage,
    ArchiveSuggestion,
    Layer,
    Layers,
    SplitSuggestion,
    Suggestion,
    Usage,
)
from threadkeep.memory.records import Group
from threadkeep.memory.saver import LayeredCheckpointSaver
from threadkeep.memory.summaries import (
    CallableSummarizer,
    ExtractiveSummarizer,
    Summarizer,
    Summary,
)
from threadkeep.memory.window import add_messages

if _CHECKING:
    from threadkeep.memory.middleware import LayeredMemoryMiddleware

__all__ = [
    "ArchiveSuggestion",
    "ArchivedMessage",
    "CallableSummarizer",
    "ChatModelSummarizer",
    "ExtractiveSummarizer",
    "Group",
    "IntegratedCheckpointManager",
    "Layer",
    "LayeredCheckpointSaver",
    "LayeredMemoryMiddleware",
    "Layers",
    "MessageGroups",
    "SavedConversation",
    "SplitSuggestion",
    "Suggestion",
    "Summarizer",
    "Summary",
    "Usage",
    "add_messages",
]


def __getattr__(name: str) -> _Any:
    if name != "LayeredMemoryMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from threadkeep.memory.middleware import LayeredMemoryMiddleware  # noqa: PLC0415 - needs langchain

    return LayeredMemoryMiddleware
