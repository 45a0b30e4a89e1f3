"""Records of a difference, and its two forms: data for JSON, and text for a terminal."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

from threadkeep.codec import introspection
from threadkeep.engine.capture import is_state

Path: TypeAlias = tuple[Any, ...]
"""Place in a value: positions of lists, keys of dicts, names of fields."""

CLASS = "__class__"  # key of the class name, in the data of a value with fields
_MAX_DEPTH = 32
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "reordered": "~"}
_EDITS_SHOWN = 4
_PYDANTIC_EXTRA = "__pydantic_extra__"
_PYDANTIC_HIDDEN = ("__pydantic_fields_set__", "__pydantic_private__")


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Edit of a text: `before` at position `before_at` became `after` at position `after_at`.

    Positions count characters from 0.
    """

    before_at: int
    after_at: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two values.

    Attributes:
        kind: "added", "removed", "changed", or "reordered" (a dict's keys, which `before` and
            `after` list).
        before_at: path in the value before; of an addition the place it would have there.
        after_at: path in the value after; of a removal the place it would have there.
        before: the part before; None for an addition.
        after: the part after; None for a removal.
        text: edits of a long text.
    """

    kind: Literal["added", "removed", "changed", "reordered"]
    before_at: Path
    after_at: Path
    before: Any = None
    after: Any = None
    text: tuple[TextEdit, ...] = ()


@dataclass(frozen=True, slots=True)
class DiffSide:
    """A checkpoint that was compared; `step` and `source` are from its metadata."""

    thread: str
    ns: str
    checkpoint: str
    time: str
    step: int | None
    source: str | None


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """Difference of a channel.

    Attributes:
        channel: its name.
        kind: "added" and "removed" are about its value; "version" is the same value under
            another version.
        before_version: None where the checkpoint does not know the channel.
        after_version: likewise.
        changes: differences of the value.
        is_delta: a DeltaChannel without a value in one of the checkpoints, which only its
            graph can rebuild. Then `changes` are those of a dict of the last whole value
            (`"snapshot"`, if there is one) and the list of `"writes"` since.
        is_internal: LangGraph made the channel, not the graph's state.
    """

    channel: str
    kind: Literal["added", "removed", "changed", "version", "unchanged"]
    before_version: float | str | None
    after_version: float | str | None
    changes: tuple[Change, ...] = ()
    is_delta: bool = False
    is_internal: bool = False

    @property
    def is_same(self) -> bool:
        """True if the value is the same, under any version."""
        return self.kind in ("version", "unchanged")


@dataclass(frozen=True, slots=True)
class StateDiff:
    """Difference of two checkpoints, channel by channel, sorted by name."""

    before: DiffSide
    after: DiffSide
    channels: Mapping[str, ChannelDiff]

    @property
    def is_same(self) -> bool:
        """True if all channels have the same values."""
        return all(channel.is_same for channel in self.channels.values())

    def as_data(self) -> dict[str, Any]:
        """Return the difference as JSON data; values that JSON lacks become text."""
        return {
            "before": _side_data(self.before),
            "after": _side_data(self.after),
            "channels": {name: _channel_data(channel) for name, channel in self.channels.items()},
        }

    def as_text(self, *, internal: bool = False, changes: int = 20, width: int = 100) -> str:
        """Return the difference as text for a terminal; unprintable characters are escaped.

        Args:
            internal: include channels that LangGraph made.
            changes: the most changes of a channel to show.
            width: characters a line, about.
        """
        lines = [f"- {_side_text(self.before)}", f"+ {_side_text(self.after)}"]
        unchanged = []
        for channel in self.channels.values():
            if channel.is_internal and not internal:
                continue
            if channel.kind == "unchanged":
                unchanged.append(printable(channel.channel))
            else:
                lines += _channel_text(channel, changes, width)
        if unchanged:
            lines.append(shortened(f"unchanged: {', '.join(unchanged)}", width))
        return "\n".join(lines)


# -- parts of values -------------------------------------------------------------------


def fields(value: object) -> dict[str, Any] | None:
    """Return the fields of a message, model, dataclass or named tuple; None for other values."""
    names = getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple):
        return dict(zip(names, value, strict=False))
    if not is_state(value):
        return None
    found = introspection.read_attributes(value)
    extra = found.pop(_PYDANTIC_EXTRA, None)
    for name in _PYDANTIC_HIDDEN:
        found.pop(name, None)
    return {**found, **extra} if type(extra) is dict else found


def items(value: object) -> Sequence[Any] | None:
    """Return the elements of a list, tuple or deque; None for other values."""
    return list(value) if isinstance(value, list | tuple | deque) else None


# -- data ------------------------------------------------------------------------------


def value_data(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a value as JSON data: fields as a dict, bytes in base64, other types as text."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else repr(value)
    if type(value) is bytes:
        return base64.b64encode(value).decode()
    if not depth:
        return _text(value)
    found = fields(value)
    if found is not None:
        return {CLASS: type(value).__name__, **_dict_data(found, depth)}
    if isinstance(value, dict):
        return _dict_data(value, depth)
    if isinstance(value, set | frozenset):
        return sorted([value_data(item, depth - 1) for item in value], key=repr)
    elements = items(value)
    return _text(value) if elements is None else [value_data(x, depth - 1) for x in elements]


def _dict_data(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    return {
        key if type(key) is str else _text(key): value_data(part, depth - 1)
        for key, part in value.items()
    }


def _text(value: Any) -> str:
    try:
        return str.__str__(str(value))
    except Exception:  # noqa: BLE001 - it is the program's own code
        return f"<{type(value).__qualname__}>"


def _path_data(path: Path) -> list[Any]:
    return [step if type(step) in (int, str) else _text(step) for step in path]


def _change_data(change: Change) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": change.kind,
        "before_at": _path_data(change.before_at),
        "after_at": _path_data(change.after_at),
    }
    if change.kind != "added":
        data["before"] = value_data(change.before)
    if change.kind != "removed":
        data["after"] = value_data(change.after)
    if change.text:
        data["text"] = [_plain_fields(edit) for edit in change.text]
    return data


def _channel_data(channel: ChannelDiff) -> dict[str, Any]:
    data = _plain_fields(channel)
    del data["channel"]  # it is the key
    return data | {
        "before_version": value_data(channel.before_version),
        "after_version": value_data(channel.after_version),
        "changes": [_change_data(change) for change in channel.changes],
    }


def _side_data(side: DiffSide) -> dict[str, Any]:
    step, source = value_data(side.step), value_data(side.source)
    return _plain_fields(side) | {"step": step, "source": source}


def _plain_fields(record: TextEdit | ChannelDiff | DiffSide) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


# -- text: every line is one line of printable characters, whatever a thread stores ----


def _side_text(side: DiffSide) -> str:
    place = f"{side.thread} {side.ns}".rstrip()
    step, source = value_data(side.step), value_data(side.source)
    return printable(f"{place} {side.checkpoint} step {step} {source} {side.time}")


def _channel_text(channel: ChannelDiff, changes: int, width: int) -> Iterator[str]:
    versions = f"{channel.before_version} -> {channel.after_version}"
    what = "the same, under another version" if channel.kind == "version" else str(channel.kind)
    if channel.is_delta:
        what += ", kept as a delta: its writes"
    yield shortened(f"{printable(channel.channel)}: {what} ({printable(versions)})", width)
    for change in islice(channel.changes, changes):
        yield from _change_text(change, width)
    rest = len(channel.changes) - changes
    if rest > 0:
        yield f"  ... and {rest} more"


def _change_text(change: Change, width: int) -> Iterator[str]:
    start = f"  {_SIGNS[change.kind]} {_place_text(change)}"
    if change.kind in ("added", "removed"):
        value = change.after if change.kind == "added" else change.before
        yield shortened(f"{start}{brief(value, width)}", width)
    elif change.text:
        yield start.rstrip()
        yield from _edits_text(change.text, width)
    else:
        half = max((width - len(start)) // 2 - 2, 8)
        before, after = brief(change.before, half), brief(change.after, half)
        order = "order " if change.kind == "reordered" else ""
        yield f"{start}{order}{before} -> {after}"


def _edits_text(edits: Sequence[TextEdit], width: int) -> Iterator[str]:
    half = max(width // 2 - 12, 8)
    for edit in edits[:_EDITS_SHOWN]:
        before = f"-{brief(edit.before, half)} " if edit.before else ""
        after = f"+{brief(edit.after, half)}" if edit.after else ""
        yield f"      at {edit.before_at}: {before}{after}".rstrip()
    if len(edits) > _EDITS_SHOWN:
        yield f"      ... and {len(edits) - _EDITS_SHOWN} more"


def _place_text(change: Change) -> str:
    before, after = _path_text(change.before_at), _path_text(change.after_at)
    if change.kind == "added":
        place = after
    elif change.kind == "removed" or change.before_at == change.after_at:
        place = before
    else:
        place = f"{before} -> {after}"
    return f"{place} " if place else ""


def _path_text(path: Iterable[Any]) -> str:
    text = ""
    for step in path:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{brief(step, 40)}]"
    return text


def brief(value: Any, width: int) -> str:
    """Return a value on one line; of a message its class and content."""
    found = fields(value)
    if found is not None and "content" in found:
        content = json.dumps(value_data(found["content"]), ensure_ascii=False)
        text = f"{type(value).__name__} {content}"
    else:
        text = json.dumps(value_data(value), ensure_ascii=False)
    return shortened(printable(text), width)


def printable(text: str) -> str:
    """Escape characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, width: int) -> str:
    """Cut a text to a width."""
    return text if len(text) <= width else f"{text[: max(width - 1, 1)]}…"
