"""Words of texts, for full-text indexes. The pattern takes 5 ms to compile: savers do without."""

from __future__ import annotations

import re
import unicodedata

_TOKEN_CHARS = 64
_BYTES = 900_000  # a tsvector has 1 MB, which PostgreSQL's `array_to_tsvector` does not check
CHARACTERS = (  # of a pattern: each Chinese, Japanese or Korean one
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U000323af"
)
_PART = rf"[^\W_{CHARACTERS}]+"
_TOKEN = re.compile(rf"[{CHARACTERS}]|{_PART}(?:[-_.]+{_PART})*")
_JOINT = re.compile("([-_.]+)")
_IDENTIFIER = re.compile(r"[\d_]")
_JOINED = 4


def joined(text: str) -> str:
    """Return the distinct words of a text, with spaces between them, at most 900,000 bytes."""
    words = " ".join(dict.fromkeys(tokens(text)))
    data = words.encode()
    return (
        words if len(data) <= _BYTES else data[:_BYTES].decode(errors="ignore").rpartition(" ")[0]
    )


def tokens(text: str) -> list[str]:
    """Return the words of a text, casefolded. Each Chinese, Japanese or Korean character is one.

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
