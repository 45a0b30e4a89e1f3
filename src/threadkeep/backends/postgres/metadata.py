"""Checkpoint metadata as it is stored: jsonb to search, and the text where jsonb changes it.

Only the two directions live here. Invariant: the text read back is the text that was
stored, letter by letter.

PostgreSQL's jsonb orders keys in its own way and writes spaces. Most metadata is
`{"source":"loop","step":7,"parents":{}}`: that is put together again from the jsonb. Of
any other the text is stored too.
"""

from __future__ import annotations

import re

from threadkeep.backends.postgres.text import pack_json, pack_text, unpack_text

_PLAIN = re.compile(r'\{"source":"([a-z]{1,16})","step":(-?[1-9][0-9]{0,17}|0),"parents":\{\}\}')
_STORED = re.compile(r'\{"step": (-?[0-9]+), "source": "([a-z]+)", "parents": \{\}\}')


def split(text: str) -> tuple[str, str | None]:
    """Turn metadata into what goes into the columns `metadata` and `metadata_text`."""
    return pack_json(text), None if _PLAIN.fullmatch(text) else pack_text(text)


def joined(stored: str, text: str | None) -> str:
    """Turn the two columns, both as text, back into the metadata."""
    if text is not None:
        return unpack_text(text)
    plain = _STORED.fullmatch(stored)
    if plain is None:  # somebody has edited it: what they meant
        return stored
    return f'{{"source":"{plain[2]}","step":{plain[1]},"parents":{{}}}}'
