"""Answers of models: a text, or JSON in a text.

Models answer with JSON when a prompt asks for it: alone, in a code fence, or with sentences around.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

_FENCED = re.compile(
    r"```[ \t]*(?:(?:json[5cl]?|text|markdown|md)\b)?(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE
)
_OBJECT = re.compile(r"""[\[\s]*\{\s*["'][^"']*["']\s*:""")
_NAME = re.compile(r"""["'](\w+)["']\s*:""")
_CONTENTS = ("content", "summary", "text")  # names of the summary itself, first choice first
_DECODER = json.JSONDecoder(strict=False)  # (models put line breaks into texts)
_MAX_OBJECTS = 50  # places in prose where one is looked for


def parsed(text: str, lists: Iterable[str]) -> str | dict[str, Any]:
    """Return an answer without its JSON: a text, or a dict of "content" and the lists it has.

    Args:
        text: the answer.
        lists: names of lists. A JSON object within prose is the answer if it has two of the names
            that are known, or one in a code fence; otherwise the conversation may have been about
            JSON. Of several objects, the last one is the answer.

    Raises:
        ValueError: the answer is JSON that cannot be read.
    """
    fenced = _FENCED.fullmatch(text.strip())
    whole = (fenced[1] if fenced else text).strip()
    known = {*_CONTENTS[:2], *lists}
    found = _decoded(whole)
    if found is None:
        fences = (one for fence in _FENCED.finditer(text) for one in _objects(fence[1]))
        found = next(
            (one for one in reversed([*_objects(text)]) if len(known & one.keys()) > 1), None
        )
        found = found or next((one for one in fences if known & one.keys()), None)
    if found is None:
        if _OBJECT.match(whole) or len(known.intersection(_NAME.findall(text))) > 1:
            raise ValueError("The answer is broken JSON, perhaps cut at the model's token limit.")
        return whole
    fields = found if isinstance(found, Mapping) else {}
    contents = (" ".join(texts(fields.get(name))) for name in _CONTENTS)
    content = next(filter(None, contents), "") or " ".join(texts(found))
    named = {name: fields[name] for name in lists if name in fields}
    return {"content": content, **named} if named else content


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects within a text, in order, without those within others."""
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
    """Return the JSON that a text consists of; None for a text that is not, and for a number."""
    with suppress(ValueError, RecursionError):
        found = _DECODER.decode(text)
        return found if isinstance(found, Mapping | list | str) else None
    return None


def texts(value: Any) -> Iterator[str]:
    """Yield the texts and numbers within a value, in order."""
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from texts(each)
    elif value is not None and not isinstance(value, bool) and (text := str(value).strip()):
        yield text
