"""The summarizer for what a program gives as one."""

from __future__ import annotations

from typing import Any

from threadkeep.errors import invalid
from threadkeep.memory.chat_model import ChatModelSummarizer
from threadkeep.memory.summaries import (
    MAX_CHARS,
    CallableSummarizer,
    ExtractiveSummarizer,
    Summarizer,
)


def as_summarizer(given: Any, *, max_chars: int = MAX_CHARS, language: str = "en") -> Summarizer:
    """Return the summarizer for an argument: a summarizer, a chat model, a callable, or None.

    Args:
        given: None is the offline summarizer.
        max_chars: length of summaries, unless a summarizer is given.
        language: of a chat model's prompt, "en" or "zh".

    Raises:
        InvalidArgumentError: it is none of these.
    """
    if given is None:
        return ExtractiveSummarizer(max_chars)
    if isinstance(given, Summarizer) and not isinstance(given, type):
        return given
    if callable(getattr(given, "invoke", None)) and not isinstance(given, type):
        return ChatModelSummarizer(given, max_chars=max_chars, language=language)
    if callable(given) and not isinstance(given, type):
        return CallableSummarizer(given, max_chars=max_chars)
    hint = "Use a summarizer, a chat model of LangChain, a function, or None."
    raise invalid("summarizer", given, hint)
