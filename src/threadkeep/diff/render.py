"""A difference as text for a person.

Pure functions. Invariant: every line is one line, near the width that was asked for, and
holds printable characters alone: what a thread stores cannot steer a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from threadkeep.diff import (
    parts,
    plain,
)
from threadkeep.diff.records import (
    Change,
    ChannelDiff,
    DiffSide,
    Path,
    TextEdit,
)

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "reordered": "~"}
_EDITS = 4  # of one text that are shown


def state(
    before: DiffSide, after: DiffSide, channels: Sequence[ChannelDiff], changes: int, width: int
) -> str:
    """A whole difference, of these channels."""
    lines = [f"- {_side(before)}", f"+ {_side(after)}"]
    for channel in channels:
        if channel.kind != "unchanged":
            lines += _channel(channel, changes, width)
    unchanged = [printable(one.channel) for one in channels if one.kind == "unchanged"]
    if unchanged:
        lines.append(shortened(f"unchanged: {', '.join(unchanged)}", width))
    return "\n".join(lines)


def _side(given: DiffSide) -> str:
    place = f"{given.thread} {given.ns}".rstrip()
    step, source = plain.value(given.step), plain.value(given.source)
    return printable(f"{place} {given.checkpoint} step {step} {source} {given.time}")


def _channel(given: ChannelDiff, changes: int, width: int) -> Iterator[str]:
    versions = f"{given.before_version} -> {given.after_version}"
    what: str = given.kind
    if given.kind == "version":
        what = "the same, under another version"
    if given.is_delta:
        what += ", kept as a delta: its writes"
    yield shortened(f"{printable(given.channel)}: {what} ({printable(versions)})", width)
    for change in islice(given.changes, changes):
        yield from _change(change, width)
    rest = len(given.changes) - changes
    if rest > 0:
        yield f"  ... and {rest} more"


def _change(given: Change, width: int) -> Iterator[str]:
    start = f"  {_SIGNS[given.kind]} {_place(given)}"
    if given.kind == "added":
        yield shortened(f"{start}{brief(given.after, width)}", width)
    elif given.kind == "removed":
        yield shortened(f"{start}{brief(given.before, width)}", width)
    elif given.text:
        yield start.rstrip()
        yield from (_edit(edit, width) for edit in given.text[:_EDITS])
        if len(given.text) > _EDITS:
            yield f"      ... and {len(given.text) - _EDITS} more"
    else:
        half = max((width - len(start)) // 2 - 2, 8)
        before, after = brief(given.before, half), brief(given.after, half)
        told = "order " if given.kind == "reordered" else ""
        yield f"{start}{told}{before} -> {after}"


def _edit(given: TextEdit, width: int) -> str:
    half = max(width // 2 - 12, 8)
    before = f"-{brief(given.before, half)} " if given.before else ""
    after = f"+{brief(given.after, half)}" if given.after else ""
    return f"      at {given.before_at}: {before}{after}".rstrip()


def _place(given: Change) -> str:
    """Where: in the value that has it, or in both where that is not the same."""
    if given.kind == "added":
        place = path(given.after_at)
    elif given.kind == "removed" or given.before_at == given.after_at:
        place = path(given.before_at)
    else:
        place = f"{path(given.before_at)} -> {path(given.after_at)}"
    return f"{place} " if place else ""


def path(given: Path) -> str:
    """A path as `[2].content`."""
    text = ""
    for step in given:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{brief(step, 40)}]"
    return text


def brief(given: Any, width: int) -> str:
    """A value on one line; of a message its class and content."""
    fields = parts.fields(given)
    if fields is not None and "content" in fields:
        content = json.dumps(plain.value(fields["content"]), ensure_ascii=False)
        text = f"{type(given).__name__} {content}"
    else:
        text = json.dumps(plain.value(given), ensure_ascii=False)
    return shortened(printable(text), width)


def printable(text: str) -> str:
    """The text with whatever is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, width: int) -> str:
    """At most so many characters of the text."""
    return text if len(text) <= width else f"{text[: max(width - 1, 1)]}…"
