"""Layered memory: conversations of any length in a model's window, without losing a message."""

from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from threadkeep._core.known_names import missing as _missing
from threadkeep.memory.changes import MessageGroups
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
from threadkeep.memory.saver import (
    IntegratedCheckpointManager,
    LayeredCheckpointSaver,
    SavedConversation,
)
from threadkeep.memory.summaries import Summarizer, Summary
from threadkeep.memory.summarizers import (
    CallableSummarizer,
    ChatModelSummarizer,
    ExtractiveSummarizer,
)
from threadkeep.memory.window import add_messages

if _CHECKING:
    from threadkeep.memory.middleware import LayeredMemoryMiddleware as LayeredMemoryMiddleware

# (LayeredMemoryMiddleware is left out: `import *` would need langchain.)
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
        raise _missing(__name__, name)
    try:
        from threadkeep.memory.middleware import LayeredMemoryMiddleware  # noqa: PLC0415 - needs langchain
    except ImportError as error:
        text = f"{name} needs langchain 1.0 or newer ({error}). Run: pip install langchain"
        raise AttributeError(text) from error
    return LayeredMemoryMiddleware


def __dir__() -> list[str]:
    return sorted({*globals(), "LayeredMemoryMiddleware"})
