"""Texts: numbers, names and URLs in reports and errors, texts of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 thread", "2,000 threads"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shown(name: str) -> str:
    """Return a name, escaped if it would disturb a terminal or a log."""
    return name if name.isprintable() else ascii(name)


def size(count: float) -> str:
    """Return a number of bytes with its unit: "1.2 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 999.5:  # noqa: PLR2004 - what would be rounded to 1000
            return f"{count:.{0 if unit == 'bytes' else 1}f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def lasting(seconds: float) -> str:
    """Return a duration with its unit: "120 ms", "4.2 s", "3.0 min", "5.0 h", "2 d"."""
    if 0 < seconds < 0.001:  # noqa: PLR2004 - a millisecond
        return "<1 ms"
    for most, size, unit in ((1, 0.001, "ms"), (60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < most:
            count = seconds / size
            return f"{count:.{1 if unit != 'ms' and count < 10 else 0}f} {unit}"  # noqa: PLR2004 - digits
    return f"{seconds / 86400:,.0f} d"


Messages: TypeAlias = "Sequence[BaseMessage]"


def text_of(message: BaseMessage) -> str:
    """Return the text of a message's content, which is a str or a list of blocks."""
    content: Any = message.content
    if isinstance(content, str):
        return content
    texts = [block.get("text") if isinstance(block, Mapping) else block for block in content]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def is_unicode(text: str) -> bool:
    """Return True if UTF-8 can encode the text: it has no lone surrogates."""
    if text.isascii():
        return True
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return False
    return True


def is_public(text: str) -> bool:
    """Return True if an error may show the text: it cannot hold a password."""
    return not set(text) & set("@=")


def shown_url(text: str) -> str:
    return repr(text) if is_public(text) else "This"
