"""Texts: numbers, names and URLs in reports and errors, words for indexes, texts of messages."""

from __future__ import annotations

import re
import unicodedata
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


_TOKEN_CHARS = 64
_CHARACTER = (
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U000323af"
)
_PART = rf"[^\W_{_CHARACTER}]+"
_TOKEN = re.compile(rf"[{_CHARACTER}]|{_PART}(?:[-_.]+{_PART})*")
_JOINT = re.compile("([-_.]+)")
_IDENTIFIER = re.compile(r"[\d_]")
_JOINED = 4


def tokens(text: str) -> list[str]:
    """Return the words of a text, casefolded; each Chinese, Japanese or Korean character is one.

    The parts of `order-1234`, `foo_bar` or `2.5` are words, and so is the whole, or up to four of
    its parts. So `a.foo_bar.c` contains `foo_bar`, and a text has all words of any part of it.
    """
    found = []
    for word in _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold()):
        parts = _JOINT.split(word)  # parts and separators alternate
        found += parts[::2]
        for length in range(3, min(len(parts), 2 * _JOINED - 1) + 1, 2):
            joined = ("".join(parts[i : i + length]) for i in range(0, len(parts) - length + 1, 2))
            found += [each for each in joined if _IDENTIFIER.search(each)]
    return [token[:_TOKEN_CHARS] for token in found]


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
