"""Compare values and checkpoints.

A comparison changes nothing, runs no code of the compared values (`__eq__`, properties), and has a
limit on its steps.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

from pydantic_core import to_json

from threadkeep._core.codec import introspection
from threadkeep._core.codec.codecs import CLASS, Raw
from threadkeep._core.engine.shadow import is_state

Path: TypeAlias = tuple[Any, ...]
"""Path to a part of a value: list positions, dict keys, field names."""

_CONTAINERS = (Mapping, Sequence, AbstractSet)
_TEXTS = (str, bytes, bytearray, memoryview)  # sequences that count as one value
_MAX_DEPTH = 200
_MAX_BITS = 14_000  # of an int that Python writes in decimal
_SIGNS = {"added": "+", "removed": "-", "changed": "~", "reordered": "~"}
_EDITS_SHOWN = 4
_PYDANTIC_EXTRA = "__pydantic_extra__"
_PYDANTIC_HIDDEN = ("__pydantic_fields_set__", "__pydantic_private__")


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Edit of a text: `before` at `before_at` became `after` at `after_at` (characters from 0)."""

    before_at: int
    after_at: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two values.

    Attributes:
        kind: "added", "removed", "changed", or "reordered" (the keys of a dict, which `before`
            and `after` list).
        before_at: path in the old value, or for an addition the path it would have had.
        after_at: path in the new value, or for a removal the path it would have.
        before: the old part, or None for an addition.
        after: the new part, or None for a removal.
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
    """A compared checkpoint, with `step` and `source` of its metadata."""

    thread: str
    checkpoint_ns: str
    checkpoint: str
    time: str
    step: int | None
    source: str | None


@dataclass(frozen=True, slots=True)
class ChannelDiff:
    """Difference of a channel.

    Attributes:
        channel: the channel's name.
        kind: "added" and "removed" refer to its value. "version" is the same value with another
            version.
        before_version, after_version: None if the checkpoint lacks the channel.
        changes: differences of the values.
        is_delta: True for a DeltaChannel without a value in one checkpoint, which only
            its graph can rebuild. `changes` then compare dicts of the last whole value
            (`"snapshot"`, if any) and the list of `"writes"` since.
        is_internal: True for a channel of LangGraph that is not part of the graph's state.
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
        """True if the values are the same, with any version."""
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
        """Convert the difference to JSON data. Values that JSON lacks become text."""
        return {
            "before": _side_data(self.before),
            "after": _side_data(self.after),
            "channels": {name: _channel_data(channel) for name, channel in self.channels.items()},
        }

    def as_text(self, *, internal: bool = False, changes: int = 20, width: int = 100) -> str:
        """Format the difference for a terminal, with unprintable characters escaped.

        Args:
            internal: True to include LangGraph's own channels.
            changes: largest number of changes to show for a channel.
            width: approximate length of a line in characters.
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
    """Read the fields of a message, model, dataclass or named tuple, or None for other values."""
    names = getattr(type(value), "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple):
        return dict(zip(names, value, strict=False))
    if isinstance(value, Raw):
        return {**value}
    if not is_state(value):
        return None
    found = introspection.read_attributes(value)
    extra = found.pop(_PYDANTIC_EXTRA, None)
    for name in _PYDANTIC_HIDDEN:
        found.pop(name, None)
    return {**found, **extra} if type(extra) is dict else found


def items(value: object) -> Sequence[Any] | None:
    """Read the elements of a list, tuple or deque, or None for other values."""
    return list(value) if isinstance(value, list | tuple | deque) else None


# -- data ------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Convert a value to JSON data. A value that JSON lacks becomes text, or its `repr`.

    Bytes become base64, infinities and NaN their names, ints of over 4,200 digits hexadecimal text.
    Types are lost.
    """
    try:
        data = to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=_other)
        return json.loads(data)
    except (ValueError, RecursionError):  # not Unicode, cyclic, or too deep
        return _plain(value, _MAX_DEPTH)


def _other(value: Any) -> Any:
    return value.data if isinstance(value, Raw) else repr(value)


def _plain(value: Any, depth: int) -> Any:
    """Convert a value that pydantic refuses: containers item by item, others by their `repr`."""
    if isinstance(value, str):
        return str(value)  # (json.dumps escapes a lone surrogate)
    if depth and isinstance(value, Mapping):
        return {str(k): _plain(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, _CONTAINERS) and not isinstance(value, _TEXTS):
        return [_plain(item, depth - 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):  # (Python refuses to write longer ones in decimal)
        return value if value.bit_length() < _MAX_BITS else hex(value)
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - `repr` is code of the user
        return f"<{type(value).__name__}: {type(error).__name__} in its repr>"


def _value_data(value: Any) -> Any:
    """Convert a value to JSON data with the name of its class, and sets sorted."""
    data = plain(value)
    if type(data) is dict and fields(value) is not None:
        return {CLASS: type(value).__name__, **data}
    return sorted(data, key=repr) if isinstance(value, set | frozenset) else data


def _side_data(side: DiffSide) -> Any:
    data = {one.name: getattr(side, one.name) for one in dataclasses.fields(side)}
    return plain({("ns" if name == "checkpoint_ns" else name): data[name] for name in data})


def _change_data(change: Change) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": change.kind,
        "before_at": plain(change.before_at),
        "after_at": plain(change.after_at),
    }
    if change.kind != "added":
        data["before"] = _value_data(change.before)
    if change.kind != "removed":
        data["after"] = _value_data(change.after)
    if change.text:
        data["text"] = plain(change.text)
    return data


def _channel_data(channel: ChannelDiff) -> dict[str, Any]:
    data = plain(dataclasses.replace(channel, changes=()))
    del data["channel"]  # it is the key
    return {**data, "changes": list(map(_change_data, channel.changes))}


# -- text: one line of printable characters per entry, whatever a thread stores --------


def _side_text(side: DiffSide) -> str:
    place = f"{side.thread} {side.checkpoint_ns}".rstrip()
    return printable(f"{place} {side.checkpoint} step {side.step} {side.source} {side.time}")


def _channel_text(channel: ChannelDiff, changes: int, width: int) -> Iterator[str]:
    versions = f"{channel.before_version} -> {channel.after_version}"
    what = "same value, new version" if channel.kind == "version" else str(channel.kind)
    if channel.is_delta:
        what += ", a delta channel: its writes"
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
    before, after = path_text(change.before_at), path_text(change.after_at)
    if change.kind == "added":
        place = after
    elif change.kind == "removed" or change.before_at == change.after_at:
        place = before
    else:
        place = f"{before} -> {after}"
    return f"{place} " if place else ""


def path_text(path: Iterable[Any]) -> str:
    """Format a path: `messages[3].content`."""
    text = ""
    for step in path:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{brief(step, 40)}]"
    return text


def brief(value: Any, width: int) -> str:
    """Format a value on one line, for a message its class, content and tool calls."""
    found, name, calls = fields(value), "", ""
    if found is not None and "content" in found:
        name = f"{found.get(CLASS, type(value).__name__)} "
        value, calls = found["content"], _calls_text(found)
    content = json.dumps(_value_data(value), ensure_ascii=False)
    if calls and not value:
        content, calls = "", calls.lstrip()
    return shortened(printable(name + content + calls), width)


def _calls_text(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    return "".join(
        f" calls {one.get('name')} {json.dumps(plain(one.get('args')), ensure_ascii=False)}"
        for one in (calls if isinstance(calls, list | tuple) else ())
        if isinstance(one, Mapping)
    )


def printable(text: str) -> str:
    """Escape characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, width: int) -> str:
    """Cut a text to a width."""
    return text if len(text) <= width else f"{text[: max(width - 1, 1)]}…"
