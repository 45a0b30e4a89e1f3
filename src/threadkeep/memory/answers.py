"""Answers of models: a text, or JSON in a text.

Models answer with JSON when a prompt asks for it: alone, in a code fence or after a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

_FENCED = re.compile(
    r"```[ \t]*(?:(?:json5?|text|markdown|md)\b)?(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE
)
_OBJECT = re.compile(r"""[\[\s]*\{\s*["'][^"']*["']\s*:""")
_NAME = re.compile(r"""["'](\w+)["']\s*:""")
_CONTENTS = ("content", "summary", "text")  # names of the summary itself, first choice first
_DECODER = json.JSONDecoder(strict=False)  # (models put line breaks into texts)


def parsed(text: str, lists: Iterable[str]) -> str | dict[str, Any]:
    """Return an answer without its JSON: a text, or a dict of "content" and the lists it has.

    Args:
        text: the answer.
        lists: names of lists. JSON within prose is the answer if it has two of the names that are
            known; otherwise the conversation may have been about JSON.

    Raises:
        ValueError: the answer is JSON that cannot be read.
    """
    fenced = _FENCED.fullmatch(text.strip())
    whole = (fenced[1] if fenced else text).strip()
    known = {"content", *lists}
    found = _decoded(whole)
    if found is None:
        embedded = (one for one in map(_decoded, _parts(text)) if isinstance(one, Mapping))
        found = next((one for one in embedded if len(known & one.keys()) > 1), None)
    if found is None:
        if _OBJECT.match(whole) or len(known.intersection(_NAME.findall(text))) > 1:
            raise ValueError("The answer is broken JSON, perhaps cut at the model's token limit.")
        return whole
    fields = found if isinstance(found, Mapping) else {}
    contents = (" ".join(texts(fields.get(name))) for name in _CONTENTS)
    content = next(filter(None, contents), "") or " ".join(texts(found))
    named = {name: fields[name] for name in lists if name in fields}
    return {"content": content, **named} if named else content


def _parts(text: str) -> Iterator[str]:
    """Yield the parts of a text that may be JSON: what is in fences, and the end of the text."""
    yield from (found[1].strip() for found in _FENCED.finditer(text))
    yield text[text.find("{") :].strip()


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
