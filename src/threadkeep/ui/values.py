"""Any value as a readable tree, with limits on its entries, depth and text.

A part of a value has a path: the position of each step among the parts of the value above it, or
`PARSED` for the JSON in a text. So any key may be part of a value, and no key is in an address.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from threadkeep._core.codec.codecs import CLASS, Raw
from threadkeep._core.texts import size
from threadkeep.errors import NotFoundError
from threadkeep.threads.diff import fields, items, plain, printable, shortened
from threadkeep.threads.media import encoded
from threadkeep.threads.messages import message
from threadkeep.ui.text import LONGEST, as_json, parsed

ValueParts: TypeAlias = "tuple[int, Iterator[tuple[str, Any]]]"

WINDOW = 100
"""Entries of a container that are shown at once."""

PARSED = -1
_ENTRIES = 200  # in one answer
_DEPTH = 12  # levels in one answer
_LABEL, _PEEK, _SHORT = 120, 160, 100  # characters of a key, of a summary, and of a text in a line
_BITS = 4_000  # of a number that is shown whole
_NAMES = {str: "text", bool: "truth value", type(None): "nothing", int: "number", float: "number"}
_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())


@dataclass(slots=True)
class ValuePart:
    """A part of a value as the page draws it.

    Attributes:
        key: its key, field or position, without characters that disturb a line.
        kind: its type or class.
        path: see the module.
        form: "parts" of a container, "word" for a number and the like, "text", "long" for a text of
            many lines, or "note" in place of bytes.
        text: the text, or a summary of the parts.
        length: number of parts, or of characters.
        is_cut: True if `text` is not all of it.
        is_class: True if `kind` is a class of a program.
        is_read: False if the parts are not in `entries` yet.
        entries: its parts.
        rest: position of the first part behind `entries`; None at the end.
        empty: names of fields that hold nothing.
    """

    key: str
    kind: str
    path: tuple[int, ...]
    form: str = "parts"
    text: str = ""
    length: int = 0
    is_cut: bool = False
    is_class: bool = False
    is_read: bool = True
    entries: list[ValuePart] = field(default_factory=list)
    rest: int | None = None
    empty: list[str] = field(default_factory=list)

    @property
    def at(self) -> str:
        """The path in an address."""
        return json.dumps(self.path, separators=(",", ":"))


def tree(
    value: Any,
    path: Sequence[int] = (),
    start: int = 0,
    *,
    entries: int = _ENTRIES,
    characters: int = LONGEST,
) -> ValuePart:
    """Return a value, or the part of it at a path, from its part number `start` on.

    ValueParts are read level by level up to the limits; the others are read when they are opened.

    Raises:
        NotFoundError: the value has no such part.
    """
    maker = _Maker(entries, characters)
    root = maker.entry("", _at(value, path), tuple(path))
    maker.fill(root, start)
    return root


def whole(value: Any, path: Sequence[int] = (), as_data: bool = False) -> str:  # noqa: FBT001, FBT002 - for `run_sync`
    """Return all of a value or of a part as JSON; a text as it is, unless `as_data`."""
    found = _at(value, path)
    return found if isinstance(found, str) and not as_data else as_json(found)


def file_name(*names: str) -> str:
    """Return a file's name from any texts."""
    safe = "-".join(re.sub(r"[^A-Za-z0-9_]+", "-", name[:40]).strip("-") for name in names if name)
    return f"{safe or 'value'}.json"


def one_line(value: Any) -> str:
    """Return a value in a few words: a message's role and text, or the first parts."""
    if _is_message(value):
        return _message_line(value)
    parts = parts_of(value)
    if parts is None:
        return _leaf_line(value)
    count, each = parts
    named = isinstance(value, Mapping) or fields(value) is not None
    shown = []
    for key, part in islice(each, 5):
        line = _leaf_line(part) if parts_of(part) is None else _inner_line(part)
        shown.append(f"{shortened(key, 30)}: {line}" if named else line)
    return shortened(", ".join(shown) + (", …" if count > len(shown) else ""), _PEEK)


def parts_of(value: Any) -> ValueParts | None:
    """Return the number of parts of a container, and its keys and parts; None for other values.

    Fields that hold nothing come last.
    """
    if isinstance(value, str | bytes | bytearray | memoryview):
        return None
    found = fields(value)
    if found is not None:
        found = {key: found[key] for key in found if key != CLASS or not isinstance(value, Raw)}
        empty = [key for key in found if _is_empty(found[key])]
        return len(found), (
            (str(k), found[k]) for k in [*(k for k in found if k not in empty), *empty]
        )
    if isinstance(value, Mapping):
        return len(value), ((_key(key), value[key]) for key in value)
    listed = items(value)
    if listed is None and isinstance(value, AbstractSet):
        listed = list(value)
    return (
        None if listed is None else (len(listed), ((str(n), listed[n]) for n in range(len(listed))))
    )


def kind_of(value: Any) -> str:
    """Return the name of a value's type, or of its class as it is stored."""
    if isinstance(value, Raw):
        return shortened(printable(str(value[CLASS])), _LABEL)
    return _NAMES.get(type(value)) or type(value).__name__


class _Maker:
    """Makes entries while there are entries and characters left."""

    def __init__(self, entries: int, characters: int) -> None:
        self._entries, self._characters = entries, characters
        self._values: dict[tuple[int, ...], Any] = {}

    def entry(self, key: str, value: Any, path: tuple[int, ...]) -> ValuePart:
        """Return the entry of a value, without its parts."""
        made = ValuePart(shortened(printable(key[: _LABEL * 2]), _LABEL), kind_of(value), path)
        made.is_class = isinstance(value, Raw) or fields(value) is not None
        parts = parts_of(value)
        if parts is not None:
            made.length = parts[0]
            made.text = one_line(value)
            made.is_read = not made.length
        elif isinstance(value, str):
            self._text(made, value)
        else:
            made.form = "note" if isinstance(value, bytes | bytearray | memoryview) else "word"
            made.text = _word(value)
        self._values[path] = value
        return made

    def fill(self, root: ValuePart, start: int = 0) -> None:
        """Add parts level by level."""
        waiting = deque([(root, start, 0)])
        while waiting:
            entry, first, depth = waiting.popleft()
            value = self._values.pop(entry.path)
            parts = parts_of(value)
            if parts is None:
                if entry.form != "note" and depth < _DEPTH and (found := parsed(value)):
                    made = self.entry("JSON", found, (*entry.path, PARSED))
                    entry.entries.append(made)
                    waiting.append((made, 0, depth + 1))
                continue
            count, each = parts
            shown = min(count - first, WINDOW)
            if depth and (shown > self._entries or depth >= _DEPTH):
                continue
            entry.is_read = True
            for n, (key, part) in islice(enumerate(each), first, first + shown):
                if entry.is_class and _is_empty(part):
                    entry.empty.append(shortened(printable(key), _LABEL))
                    continue
                self._entries -= 1
                made = self.entry(key, part, (*entry.path, n))
                entry.entries.append(made)
                waiting.append((made, 0, depth + 1))
            entry.rest = first + shown if first + shown < count else None

    def _text(self, made: ValuePart, value: str) -> None:
        made.length = len(value)
        if data := encoded(value):
            made.form, made.text = "note", data.title
            return
        made.form = "text" if len(value) <= _SHORT and "\n" not in value else "long"
        most = max(min(self._characters, LONGEST), _SHORT)
        made.text, made.is_cut = value[:most], len(value) > most
        self._characters -= len(made.text)


# -- parts -------------------------------------------------------------------------------


def _at(value: Any, path: Sequence[int]) -> Any:
    for step in path:
        if step == PARSED and (found := parsed(value)):
            value = found
            continue
        parts = parts_of(value)
        if parts is None or not 0 <= step < parts[0]:
            raise NotFoundError("The value has no such part.", hint="Open the checkpoint again.")
        _, value = next(islice(parts[1], step, None))
    return value


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    try:
        return json.dumps(plain(key), ensure_ascii=False)[: _LABEL * 2]
    except ValueError:
        return kind_of(key)


def _is_empty(value: Any) -> bool:
    return any(type(value) is type(one) and value == one for one in _EMPTY)


# -- text --------------------------------------------------------------------------------


def _is_message(value: Any) -> bool:
    if isinstance(value, dict):
        return "content" in value and ("role" in value or "type" in value)
    found = fields(value)
    return found is not None and "content" in found


def _message_line(value: Any) -> str:
    read = message(value)
    calls = "".join(f" → {one.name}" for one in read.tool_calls)
    text = _leaf_line(read.text) if read.text else ""
    return shortened(printable(f"{read.role}: {text}{calls}"), _PEEK)


def _inner_line(value: Any) -> str:
    if _is_message(value):
        return shortened(_message_line(value), _SHORT)
    if isinstance(value, dict):
        return "{…}" if value else "{}"
    return ("[…]" if value else "[]") if isinstance(value, list) else kind_of(value)


def _leaf_line(value: Any) -> str:
    if not isinstance(value, str):
        return shortened(printable(_word(value)), _SHORT)
    data = encoded(value)
    return data.title if data else shortened(printable(" ".join(value[: _PEEK * 2].split())), _PEEK)


def _word(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return size(len(value))
    if type(value) is int and value.bit_length() > _BITS:
        return f"{value.bit_length():,} bits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    found = plain(value)
    return found[:LONGEST] if isinstance(found, str) else as_json(found)[:LONGEST]
