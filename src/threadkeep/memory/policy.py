"""Limits of layered memory, and the reports that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately

from threadkeep._core.engine.thread_entry import ARCHIVE_SUGGESTED, SPLIT_SUGGESTED
from threadkeep._core.validation import is_count
from threadkeep.errors import invalid

Counter: TypeAlias = Callable[[Sequence[BaseMessage]], int]
LayerName: TypeAlias = Literal["full", "summary", "archive"]
_MILLISECONDS = 1e11  # Unix times from here on (the year 5138) are in milliseconds


def is_pinned(message: BaseMessage) -> bool:
    """Return True for a message with `additional_kwargs={"pinned": True}`."""
    return bool(message.additional_kwargs.get("pinned"))


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Limits of the layers of a conversation.

    Args:
        full_window: number of the newest messages that the graph sees in full. A tool call is
            never separated from its results, so there may be a few more.
        summary_window: number of messages, including those in full, after which older messages
            form groups in the archive, and an `ArchiveSuggestion` is made.
        archive_threshold: number of messages after which a `SplitSuggestion` is made.
        batch: number of messages that leave the window together, with one call of the summarizer.
            The window first grows by up to `batch - 1` messages. In between, the beginning of the
            prompt stays the same, so providers can cache it. With 1, the window has exactly its
            size.
        max_tokens: limit of the tokens in full, instead of `full_window`. A batch leaves as soon
            as the limit is exceeded.
        counter: function that counts the tokens of messages.
        pinned: function that returns True for a message that always stays in view.

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
            hint = "Use a number of messages greater than full_window."
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
        """Number of messages in a group of the archive."""
        return self.summary_window - self.full_window

    def layer(self, count: int) -> LayerName:
        """Return the deepest layer of a conversation of `count` messages."""
        if count < self.full_window + self.batch:
            return "full"
        return "summary" if count <= self.summary_window else "archive"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggestion for a long thread. A collapsed group counts as one message."""

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

    Attributes:
        layer: its name.
        messages: number of its messages.
        key: for `search_messages(key=)`, or None for the messages in full.
        archived_at: time at which its messages left the window.
        summary: text that replaces the messages in the view, or describes an archived group.
    """

    layer: LayerName
    messages: int
    key: str | None = None
    archived_at: datetime | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message that has left the window, with its position in the whole conversation."""

    message: BaseMessage
    position: int
    key: str
    archived_at: datetime

    @property
    def time(self) -> datetime:
        """Time that the message states, or `archived_at` if it states none."""
        return time_of(self.message) or self.archived_at


@dataclass(frozen=True, slots=True)
class Usage:
    """Messages and tokens of the whole conversation, and of the graph's view of it."""

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


# -- times of messages -----------------------------------------------------------------


def time_of(message: BaseMessage) -> datetime | None:
    """Return the time that a message states, or None.

    It is the first valid `timestamp` or `created_at` among the message's fields, its
    `additional_kwargs` and its `response_metadata`: a datetime, a text in ISO format, or Unix time
    in seconds or milliseconds.
    """
    for data in (message.model_extra or {}, message.additional_kwargs, message.response_metadata):
        for name in ("timestamp", "created_at"):
            if (time := _parsed(data.get(name))) is not None:
                return time
    return None


def with_zone(time: datetime) -> datetime:
    """Return a time with a zone. A time without one is local."""
    return time if time.tzinfo is not None else time.astimezone()


def _parsed(value: object) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):
        if isinstance(value, datetime):
            return with_zone(value)
        if isinstance(value, str):
            return with_zone(datetime.fromisoformat(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value >= _MILLISECONDS else value, UTC)
    return None
