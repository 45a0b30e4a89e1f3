"""Any value as a readable tree, with limits on its entries, depth and text.

A part of a value has a path: its position among the parts above it, after theirs, each with a point
after it. So any key may be part of a value, and no key is in an address.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any

from threadkeep._core.codec.codecs import CLASS, Raw
from threadkeep._core.texts import size
from threadkeep.errors import NotFoundError
from threadkeep.threads.diff import fields, plain, printable, shortened
from threadkeep.threads.media import encoded
from threadkeep.threads.messages import are_messages, message
from threadkeep.ui.text import LONGEST, parsed

WINDOW = 100
"""Entries of a container that are shown at once."""

_ENTRIES = 200  # in one answer
_DEPTH = 12  # levels in one answer
_LABEL, _PEEK, _SHORT = 120, 160, 100  # characters of a key, of a summary, and of a text in a line
_NAMES = {str: "text", bool: "truth value", type(None): "nothing", int: "number", float: "number"}
_CONTAINERS = (Mapping, list, tuple, deque, AbstractSet)


class ValuePart:
    """A part of a value as the page draws it.

    `form` is "parts" of a container, whose `text` is a summary, "word" for a number and the like,
    "text", "long" for a text of many lines, or "note" in place of bytes. `length` counts parts or
    characters. Fields that hold nothing are not parts, but names in `empty`. `entries` are the
    parts that are read, and `rest` is the position of the next one, or None.
    """

    def __init__(self, key: Any, value: Any, path: str = "", most: int = LONGEST) -> None:
        named = fields(value)
        self.key, self.kind, self.path = _label(key), _kind(value), path
        self.is_class = named is not None
        self.empty = [_label(name) for name, one in (named or {}).items() if _is_empty(one)]
        self.held = _parts(value)
        self.entries: list[ValuePart] = []
        self.rest = 0 if self.held else None
        if self.held is not None:
            self.form, text, self.length = "parts", one_line(value), len(self.held)
            self.kind = "JSON" if isinstance(value, str) else self.kind
        else:
            self.form, text = _leaf(value)
            self.length = len(text)
            if self.form != "note" and (len(text) > _SHORT or "\n" in text):
                self.form = "long"
        self.text, self.is_cut = text[:most], len(text) > most


def tree(
    value: Any, path: str = "", start: int = 0, entries: int = _ENTRIES, characters: int = LONGEST
) -> ValuePart:
    """Return a value, or the part of it at a path, from its part number `start` on.

    Parts are read level by level up to the limits. The others are read when they are opened.
    Raises `NotFoundError` if the value has no such part.
    """
    root = ValuePart("", part_at(value, path), path, characters)
    waiting = deque([root])
    while waiting:
        one = waiting.popleft()
        first, held = start if one is root else 0, one.held or ()
        is_deep = one.path.count(".") >= path.count(".") + _DEPTH
        if one is not root and (is_deep or min(len(held), WINDOW) > entries):
            continue
        pairs = held.items() if isinstance(held, Mapping) else enumerate(held)
        for n, (key, inner) in islice(enumerate(pairs), first, first + WINDOW):
            part = ValuePart(key, inner, f"{one.path}{n}.", max(characters, _SHORT))
            characters -= len(part.text)
            one.entries.append(part)
        waiting.extend(one.entries)
        entries -= len(one.entries)
        one.rest = first + WINDOW if first + WINDOW < len(held) else None
    return root


def part_at(value: Any, path: str) -> Any:
    """Return the part of a value at a path. Raises `NotFoundError`."""
    for step in path.split(".")[:-1]:
        held = _parts(value) or ()
        if not (step.isdecimal() and len(step) < _LABEL and int(step) < len(held)):
            raise NotFoundError("The value has no such part.", hint="Open the checkpoint again.")
        parts = held.values() if isinstance(held, Mapping) else held
        value = next(islice(parts, int(step), None))
    return value


def one_line(value: Any) -> str:
    """Return a value in a few words: a message's role and text, or the first parts."""
    if are_messages([value]):
        read = message(value)
        calls = "".join(f" → {one.name}" for one in read.tool_calls)
        return shortened(printable(f"{read.role}: {_brief(read.text)}{calls}"), _PEEK)
    held = _parts(value)
    if isinstance(held, Mapping):
        first = [f"{shortened(_label(k), 30)}: {_brief(v)}" for k, v in islice(held.items(), 5)]
    else:
        first = [_brief(one) for one in islice([value] if held is None else held, 5)]
    more = [] if held is None or len(held) <= len(first) else ["…"]
    return shortened(", ".join([*first, *more]), _PEEK)


def _parts(value: Any) -> Any:
    """Return a mapping or sequence of the parts of a container or of JSON in a text, else None."""
    if (found := fields(value)) is not None:
        return {name: one for name, one in found.items() if name != CLASS and not _is_empty(one)}
    if isinstance(value, AbstractSet):
        return list(value)
    return value if isinstance(value, _CONTAINERS) else parsed(value) or None


def _is_empty(value: Any) -> bool:
    return value is None or (type(value) in (str, list, dict, tuple) and not value)


def _kind(value: Any) -> str:
    name = _NAMES.get(type(value)) or type(value).__name__
    return _label(value[CLASS]) if isinstance(value, Raw) else name


def _label(key: Any) -> str:
    text = key if isinstance(key, str) else json.dumps(plain(key), ensure_ascii=False)
    return shortened(printable(text[: _LABEL * 2]), _LABEL)


def _leaf(value: Any) -> tuple[str, str]:
    """Return the form and the text of a value without parts."""
    if isinstance(value, bytes | bytearray | memoryview):
        return "note", size(len(value))
    if isinstance(value, str):
        data = encoded(value)
        return ("note", data.title) if data else ("text", value)
    found = plain(value)
    return "word", found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _brief(value: Any) -> str:
    if are_messages([value]):
        return shortened(one_line(value), _SHORT)
    if isinstance(value, _CONTAINERS) or fields(value) is not None:
        return "{…}" if type(value) is dict else "[…]" if type(value) is list else _kind(value)
    return shortened(printable(" ".join(_leaf(value)[1][: _PEEK * 2].split())), _PEEK)
