"""Records of a difference, and its two forms: data for JSON, and text for a terminal."""

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
"""Place in a value: positions of lists, keys of dicts, names of fields."""

_CONTAINERS = (Mapping, Sequence, AbstractSet)
_TEXTS = (str, bytes, bytearray, memoryview)  # sequences that are single values
_MAX_DEPTH = 200
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
            "before": plain(self.before),
            "after": plain(self.after),
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
    if isinstance(value, Raw):
        return {**value.parts}
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


def plain(value: Any) -> Any:
    """Return a value as JSON; what JSON does not have becomes text, or its `repr`.

    Bytes become base64, infinities and NaN their names. Types are lost.
    """
    try:
        data = to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=_other)
        return json.loads(data)
    except (ValueError, RecursionError):  # not Unicode, cyclic, or too deep
        return _plain(value, _MAX_DEPTH)


def _other(value: Any) -> Any:
    return value.parts if isinstance(value, Raw) else repr(value)


def _plain(value: Any, depth: int) -> Any:
    """Do the same for what pydantic refuses: containers item by item, all else as its `repr`."""
    if isinstance(value, str):
        return str(value)  # (json.dumps writes half a surrogate as an escape)
    if depth and isinstance(value, Mapping):
        return {str(k): _plain(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, _CONTAINERS) and not isinstance(value, _TEXTS):
        return [_plain(item, depth - 1) for item in value]
    if value is None or isinstance(value, bool | int):
        return value
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - it is the value's own code that fails
        return f"<{type(value).__name__}: {type(error).__name__} in its repr>"


def _value_data(value: Any) -> Any:
    """Return a value as JSON with the name of its class, and sets in order."""
    data = plain(value)
    if type(data) is dict and fields(value) is not None:
        return {CLASS: type(value).__name__, **data}
    return sorted(data, key=repr) if isinstance(value, set | frozenset) else data


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


# -- text: every line is one line of printable characters, whatever a thread stores ----


def _side_text(side: DiffSide) -> str:
    place = f"{side.thread} {side.ns}".rstrip()
    return printable(f"{place} {side.checkpoint} step {side.step} {side.source} {side.time}")


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
    """Return a value on one line; of a message its class, content and tool calls."""
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
