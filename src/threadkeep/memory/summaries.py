"""Summaries of messages, and summarizers: the protocol, an offline one, and any callable.

The previous summary goes to a summarizer as such, never as one of the messages.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Protocol, runtime_checkable

from threadkeep._core.texts import Messages, text_of
from threadkeep._core.validation import is_count
from threadkeep.errors import SummaryError, invalid
from threadkeep.memory import answers, extract
from threadkeep.memory.times import time_of

MAX_CHARS = 200
LISTS = ("key_topics", "decisions", "entities", "open_questions")
_ITEMS = 20  # of each list
_ITEM_CHARS = 160


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of the first messages of a conversation.

    Args:
        content: the summary itself.
        key_topics: subjects of the conversation.
        decisions: decisions that were made.
        entities: names, identifiers and numbers.
        open_questions: questions without an answer.
        message_count: number of messages that it covers.
        time_range: times of the first and the last message, where messages have times.
    """

    content: str
    key_topics: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    message_count: int = 0
    time_range: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        values = asdict(self).items()
        return {name: list(value) if type(value) is tuple else value for name, value in values}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Summary:
        """Return the summary of which `to_dict` made this; unknown keys are left out.

        Raises:
            InvalidArgumentError: it has no text as its content.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("content"), str):
            raise invalid("summary", data, "Use a dict with a text as its 'content'.")
        lists: dict[str, Any] = {name: _texts(data.get(name)) for name in LISTS}
        count, times = data.get("message_count", 0), data.get("time_range")
        return cls(
            data["content"],
            **lists,
            message_count=count if is_count(count, 0) else 0,
            time_range=(str(times[0]), str(times[1])) if times else None,
        )


def _texts(value: object) -> tuple[str, ...]:
    """Return a list that a model may have made: texts, each once, bounded."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence):
        return ()
    texts = [extract.shortened(" ".join(answers.texts(each)), _ITEM_CHARS) for each in value]
    return tuple(dict.fromkeys(filter(None, texts)))[-_ITEMS:]


@runtime_checkable
class Summarizer(Protocol):
    """Makes summaries.

    `asummarize`, with the parameters of `summarize`, is optional: without it, async callers run
    `summarize` in a worker thread.
    """

    @property
    def model(self) -> str:
        """Name of the model or method."""

    @property
    def prompt_version(self) -> str:
        """Version of the prompt or method: after a change, messages are summarized anew."""

    def summarize(self, messages: Messages, previous: Summary | None) -> Summary:
        """Summarize the previous summary and the messages that follow those it covers.

        `message_count` of the result counts both. Raises `SummaryError` where it fails.
        """


# -- answers of models and functions ---------------------------------------------------


def finished(answer: Any, messages: Messages, previous: Summary | None, max_chars: int) -> Summary:
    """Return an answer as a summary within its limits, with its count and times.

    Args:
        answer: a str, which may be JSON of the fields, a `Summary`, or a dict of its fields.
        messages: the messages that were summarized.
        previous: the previous summary.
        max_chars: length of the content, at most.

    Raises:
        SummaryError: the answer is empty, broken JSON, or of another kind.
    """
    if isinstance(answer, str):
        answer = _parsed(answer)
    if isinstance(answer, str):
        answer = with_lists(answer, digest(messages, None, 0), previous)
    elif isinstance(answer, Mapping):
        answer = Summary.from_dict(answer)
    elif not isinstance(answer, Summary):
        raise SummaryError(f"The summarizer returned a value of type {type(answer).__name__}.")
    content = extract.shortened(answer.content, max_chars)
    if not content:
        raise SummaryError("The summarizer returned an empty summary.")
    times = list(previous.time_range) if previous and previous.time_range else []
    times += [time.isoformat() for message in messages if (time := time_of(message))]
    summary: Summary = replace(
        answer,
        content=content,
        key_topics=_texts(answer.key_topics),
        decisions=_texts(answer.decisions),
        entities=_texts(answer.entities),
        open_questions=_texts(answer.open_questions),
        message_count=len(messages) + (previous.message_count if previous else 0),
        time_range=(times[0], times[-1]) if times else None,
    )
    return summary


def _parsed(answer: str) -> str | dict[str, Any]:
    try:
        return answers.parsed(answer, LISTS)
    except ValueError as error:
        hint = "Raise the model's limit of tokens, or ask for plain text."
        raise SummaryError(str(error), hint=hint) from error


def digest(messages: Messages, previous: Summary | None, max_chars: int) -> extract.Digest:
    """Return a digest of messages, made without a model."""
    texts = [(message.type, text_of(message)) for message in messages]
    return extract.digest(texts, previous.content if previous else "", max_chars)


def with_lists(content: str, found: extract.Digest, previous: Summary | None) -> Summary:
    """Return a summary with the lists of a digest after those of the previous summary."""
    lists: dict[str, Any] = {
        name: (*getattr(previous, name, ()), *getattr(found, name)) for name in LISTS
    }
    return Summary(content, **lists)


@contextmanager
def failures(timeout: float | None = None) -> Iterator[None]:
    """Raise what fails within the block as `SummaryError`."""
    try:
        yield
    except SummaryError:
        raise
    except Exception as error:
        text = f"The summarizer failed: {type(error).__name__}: {error}"
        if isinstance(error, TimeoutError) and timeout is not None:
            text = f"The summary was not ready within {timeout} seconds."
        raise SummaryError(text) from error


def in_thread(call: Callable[[], Any], timeout: float | None = None) -> Any:
    """Return what a call returns in a thread of its own, or raise `TimeoutError`.

    The thread is a daemon: a model that hangs does not keep the program from ending.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
            future.set_exception(error)

    target = partial(copy_context().run, run)
    threading.Thread(target=target, name="threadkeep-summary", daemon=True).start()
    return future.result(timeout)


def valid_max_chars(value: int) -> int:
    """Return a valid length of summaries."""
    if not is_count(value, extract.MIN_CHARS):
        raise invalid("max_chars", value, f"Use {extract.MIN_CHARS} or more.")
    return value


def version(prompt: str | Callable[..., Any]) -> str:
    """Return the hash of a prompt's text, or of a function's name."""
    text = prompt if isinstance(prompt, str) else _name_of(prompt)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def _name_of(function: Callable[..., Any]) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


# -- summarizers -----------------------------------------------------------------------


class ExtractiveSummarizer:
    """Summaries of the most informative sentences: offline, deterministic, English and Chinese.

    Args:
        max_chars: length of the summary, at most. Up to half of it is of the previous summary.
    """

    model = "extractive"
    prompt_version = "1"

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = valid_max_chars(max_chars)

    def summarize(self, messages: Messages, previous: Summary | None) -> Summary:
        """Summarize. See `Summarizer.summarize`."""
        found = digest(messages, previous, self._max_chars)
        content = found.content or "(no text)"
        return finished(with_lists(content, found, previous), messages, previous, self._max_chars)


class CallableSummarizer:
    """Summaries by a function of the messages and the previous summary.

    Args:
        function: returns a str, a `Summary` or a dict of its fields; sync or async.
        max_chars: length of the summary, at most.
    """

    def __init__(
        self, function: Callable[[Messages, Summary | None], Any], *, max_chars: int = MAX_CHARS
    ) -> None:
        if not callable(function):
            raise invalid("summarizer", function, "Use a function of messages and a summary.")
        self._function = function
        self._max_chars = valid_max_chars(max_chars)
        self.model = _name_of(function)
        self.prompt_version = version(function)

    def summarize(self, messages: Messages, previous: Summary | None) -> Summary:
        """Summarize. See `Summarizer.summarize`."""
        with failures():
            answer = self._function(messages, previous)
            if isinstance(answer, Awaitable):  # (a thread, as an event loop may run in this one)
                answer = in_thread(partial(asyncio.run, _awaited(answer)))
            return finished(answer, messages, previous, self._max_chars)

    async def asummarize(self, messages: Messages, previous: Summary | None) -> Summary:
        """Async variant of `summarize`; a sync function runs in a worker thread."""
        with failures():
            if iscoroutinefunction(self._function):
                answer = self._function(messages, previous)
            else:
                answer = await asyncio.to_thread(self._function, messages, previous)
            if isinstance(answer, Awaitable):
                answer = await answer
            return finished(answer, messages, previous, self._max_chars)


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer
