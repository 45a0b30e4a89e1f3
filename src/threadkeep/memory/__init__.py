"""Layered memory: conversations of any length in the window of a model, and nothing lost."""

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
