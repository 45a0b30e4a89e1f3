"""The policy of layered memory, and what is reported of a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately

from threadkeep._core.engine.thread_entry import ARCHIVE_SUGGESTED, SPLIT_SUGGESTED
from threadkeep._core.validation import is_count
from threadkeep.errors import invalid
from threadkeep.memory.times import time_of

Counter: TypeAlias = Callable[[Sequence[BaseMessage]], int]
LayerName: TypeAlias = Literal["full", "summary", "archive"]


def is_pinned(message: BaseMessage) -> bool:
    """Return True for a message with `additional_kwargs={"pinned": True}`."""
    return bool(message.additional_kwargs.get("pinned"))


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Limits of the layers of a conversation.

    Args:
        full_window: number of the newest messages that the graph sees in full. A tool call is
            never separated from its results, so that there may be a few more.
        summary_window: number of messages, with those in full, after which older ones form groups
            in the archive, and an `ArchiveSuggestion` is made.
        archive_threshold: number of messages after which a `SplitSuggestion` is made.
        batch: number of messages that leave the window together, with one call of the summarizer.
            The window grows by up to `batch - 1` messages first; in between the beginning of the
            prompt stays the same, which providers cache. 1: the window has exactly its size.
        max_tokens: most tokens of the messages in full, instead of `full_window`. A batch leaves
            once there are more.
        counter: function that counts the tokens of messages.
        pinned: function that tells whether a message stays in view for good.

    Raises:
        InvalidArgumentError: a limit is invalid.
    """

    full_window: int = 20
    summary_window: int = 50
    archive_threshold: int = 100
    batch: int = 10
    max_tokens: int | None = None
    counter: Counter = field(default_factory=lambda: count_tokens_approximately, repr=False)
    pinned: Callable[[BaseMessage], bool] = field(default_factory=lambda: is_pinned, repr=False)

    def __post_init__(self) -> None:
        if not is_count(self.full_window, 1):
            raise invalid("full_window", self.full_window, "Use a number of messages, 1 or more.")
        if not is_count(self.summary_window, self.full_window + 1):
            hint = "Use a number of messages, more than full_window."
            raise invalid("summary_window", self.summary_window, hint)
        if not is_count(self.archive_threshold, self.summary_window):
            hint = "Use a number of messages, summary_window or more."
            raise invalid("archive_threshold", self.archive_threshold, hint)
        if not is_count(self.batch, 1):
            raise invalid("batch", self.batch, "Use a number of messages, 1 or more.")
        if self.max_tokens is not None and not is_count(self.max_tokens, 1):
            raise invalid("max_tokens", self.max_tokens, "Use a number of tokens, 1 or more.")
        for name in ("counter", "pinned"):
            if not callable(getattr(self, name)):
                raise invalid(name, getattr(self, name), "Use a function of messages.")

    @property
    def group_size(self) -> int:
        """Number of messages of a group in the archive."""
        return self.summary_window - self.full_window

    def layer(self, count: int) -> LayerName:
        """Return the deepest layer that a conversation of so many messages has."""
        if count < self.full_window + self.batch:
            return "full"
        return "summary" if count <= self.summary_window else "archive"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggestion for a thread that has become long; `messages` is its effective count."""

    thread: str
    messages: int


class ArchiveSuggestion(Suggestion):
    """The thread has more messages than `summary_window`: consider archiving it."""

    tag = ARCHIVE_SUGGESTED


class SplitSuggestion(Suggestion):
    """The thread has more messages than `archive_threshold`: consider `split`."""

    tag = SPLIT_SUGGESTED


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a thread.

    `key` is what `search_messages(key=)` takes; None for the messages in full. `summary` stands
    for the messages in the graph's view or, of an archived group, beside it.
    """

    layer: LayerName
    messages: int
    key: str | None = None
    archived_at: datetime | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message that has left the window, at its position in the whole conversation."""

    message: BaseMessage
    position: int
    key: str
    archived_at: datetime

    @property
    def time(self) -> datetime:
        """Time that the message states, or else the time at which it was archived."""
        return time_of(self.message) or self.archived_at


@dataclass(frozen=True, slots=True)
class Usage:
    """Messages and tokens of the whole conversation, and of what the graph sees of it."""

    messages: int
    tokens: int
    view_messages: int
    view_tokens: int

    @property
    def saved_tokens(self) -> int:
        """Tokens of the conversation that the graph does not see."""
        return self.tokens - self.view_tokens

    @property
    def saved(self) -> float:
        """Share of the conversation's tokens that the graph does not see, 0 to 1."""
        return max(0.0, self.saved_tokens / self.tokens) if self.tokens else 0.0
