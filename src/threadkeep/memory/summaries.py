"""Summaries of messages, the protocol of summarizers, and their answers as summaries.

A summarizer gets the previous summary separately, never as a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

from threadkeep._core.texts import Messages, text_of
from threadkeep._core.validation import is_count
from threadkeep.errors import SummaryError, invalid
from threadkeep.memory import extract
from threadkeep.memory.policy import time_of

LISTS = ("key_topics", "decisions", "entities", "open_questions")
_ITEMS = 20  # in each list
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
        time_range: times of the first and the last message with a time, in ISO format.
    """

    content: str
    key_topics: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    message_count: int = 0
    time_range: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain JSON."""
        values = asdict(self).items()
        return {name: list(value) if type(value) is tuple else value for name, value in values}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Summary:
        """Return a summary made by `to_dict`. Unknown keys are ignored.

        Raises:
            InvalidArgumentError: `content` is missing, or is not a text.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("content"), str):
            raise invalid("summary", data, "Use a dict with a text as its 'content'.")
        lists: dict[str, Any] = {name: _short_texts(data.get(name)) for name in LISTS}
        count, times = data.get("message_count", 0), data.get("time_range")
        return cls(
            data["content"],
            **lists,
            message_count=count if is_count(count, 0) else 0,
            time_range=(str(times[0]), str(times[1])) if times else None,
        )


def _short_texts(value: object) -> tuple[str, ...]:
    """Return the distinct texts of a list, limited in number and length."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence):
        return ()
    texts = [extract.shortened(" ".join(_texts(each)), _ITEM_CHARS) for each in value]
    return tuple(dict.fromkeys(filter(None, texts)))[-_ITEMS:]


@runtime_checkable
class Summarizer(Protocol):
    """Makes summaries.

    `asummarize`, with the parameters of `summarize`, is optional. Without it, async callers run
    `summarize` in a worker thread.
    """

    @property
    def model(self) -> str:
        """Name of the model or method."""

    @property
    def prompt_version(self) -> str:
        """Version of the prompt or method."""

    def summarize(self, messages: Messages, previous: Summary | None) -> Summary:
        """Summarize the previous summary together with the messages that follow it.

        The result's `message_count` counts both. Raises `SummaryError` on failure.
        """


# -- answers of models and functions ---------------------------------------------------


def finished(answer: Any, messages: Messages, previous: Summary | None, max_chars: int) -> Summary:
    """Return an answer as a summary within its limits, with its count and times.

    Args:
        answer: a str, which may be JSON of the fields, a `Summary`, or a dict of its fields.
        messages: the messages that were summarized.
        previous: the previous summary.
        max_chars: limit of the content's length.

    Raises:
        SummaryError: the answer is empty, broken JSON, or of another type.
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
    lists: dict[str, Any] = {name: _short_texts(getattr(answer, name)) for name in LISTS}
    summary: Summary = replace(
        answer,
        content=content,
        **lists,
        message_count=len(messages) + (previous.message_count if previous else 0),
        time_range=(times[0], times[-1]) if times else None,
    )
    return summary


def digest(messages: Messages, previous: Summary | None, max_chars: int) -> extract.Digest:
    """Return a digest of messages, made without a model."""
    texts = [(message.type, text_of(message)) for message in messages]
    return extract.digest(texts, previous.content if previous else "", max_chars)


def with_lists(content: str, found: extract.Digest, previous: Summary | None) -> Summary:
    """Return a summary whose lists are the previous summary's, followed by the digest's."""
    lists: dict[str, Any] = {
        name: (*getattr(previous, name, ()), *getattr(found, name)) for name in LISTS
    }
    return Summary(content, **lists)


# -- JSON in texts ---------------------------------------------------------------------

_FENCED = re.compile(
    r"```[ \t]*(?:(?:json[5cl]?|text|markdown|md)\b)?(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE
)
_OBJECT = re.compile(r"""[\[\s]*\{\s*["'][^"']*["']\s*:""")
_NAME = re.compile(r"""["'](\w+)["']\s*:""")
_CONTENTS = ("content", "summary", "text")  # names of the summary itself, first choice first
_KNOWN = {"content", "summary", *LISTS}
_DECODER = json.JSONDecoder(strict=False)  # (models put line breaks into texts)
_MAX_OBJECTS = 50  # attempts to decode an object within prose


def _parsed(text: str) -> str | dict[str, Any]:
    """Return an answer without its JSON: a text, or a dict of "content" and the lists in it.

    A JSON object within prose is the answer if it has two known names, or one in a code fence.
    Otherwise the conversation may have been about JSON. The last of several objects is the answer.
    """
    fenced = _FENCED.fullmatch(text.strip())
    plain = (fenced[1] if fenced else text).strip()
    found = _decoded(plain)
    if found is None:
        fences = (one for fence in _FENCED.finditer(text) for one in _objects(fence[1]))
        objects = reversed([*_objects(text)])
        found = next((one for one in objects if len(_KNOWN & one.keys()) > 1), None)
        found = found or next((one for one in fences if _KNOWN & one.keys()), None)
    if found is None:
        if _OBJECT.match(plain) or len(_KNOWN.intersection(_NAME.findall(text))) > 1:
            raise SummaryError(
                "The answer is broken JSON, perhaps cut at the model's token limit.",
                hint="Raise the model's token limit, or ask for plain text.",
            )
        return plain
    fields = found if isinstance(found, Mapping) else {}
    contents = (" ".join(_texts(fields.get(name))) for name in _CONTENTS)
    content = next(filter(None, contents), "") or " ".join(_texts(found))
    lists = {name: fields[name] for name in LISTS if name in fields}
    return {"content": content, **lists} if lists else content


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the outermost JSON objects within a text, in order."""
    at = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if at < 0:
            return
        end = at + 1
        with suppress(ValueError, RecursionError):
            found, end = _DECODER.raw_decode(text, at)
            yield found
        at = text.find("{", end)


def _decoded(text: str) -> Any:
    """Decode a text that is JSON as a whole, or None for other texts and for numbers."""
    with suppress(ValueError, RecursionError):
        found = _DECODER.decode(text)
        return found if isinstance(found, Mapping | list | str) else None
    return None


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts and numbers within a value, in order."""
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)
    elif value is not None and not isinstance(value, bool) and (text := str(value).strip()):
        yield text
