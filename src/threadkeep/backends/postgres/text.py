r"""Text as PostgreSQL can hold it: any but a NUL.

Only the two directions live here. Invariant: what is written is ordered as Python orders
the texts, and read back it is the same text.

A NUL becomes `\x01\x01`, and a `\x01` (so that none is taken for one) `\x01\x02`. In JSON,
where both can only be escapes, the same is done to the escapes.
"""

from __future__ import annotations

import re

_JSON_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u000([01])")


def pack_text(text: str) -> str:
    """Turn a text into what is stored."""
    if text.isprintable() or ("\0" not in text and "\1" not in text):
        return text
    return text.replace("\1", "\1\2").replace("\0", "\1\1")


def unpack_text(stored: str) -> str:
    """Turn what is stored back into the text."""
    if "\1" not in stored:
        return stored
    return stored.replace("\1\1", "\0").replace("\1\2", "\1")


def pack_json(text: str) -> str:
    """Do to the texts in a JSON text what `pack_text` does to one."""
    if "\\u000" not in text:
        return text
    return _JSON_ESCAPE.sub(lambda found: found[1] + _ESCAPED[found[2]], text)


_ESCAPED = {"0": "\\u0001\\u0001", "1": "\\u0001\\u0002"}
