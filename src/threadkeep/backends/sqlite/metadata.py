"""Checkpoint metadata as it is stored: what every checkpoint has, in columns of its own.

Only the split and the SQL that undoes it live here. Invariant: the text read back is the
text that was stored, byte for byte.

Most metadata is `{"source":"loop","step":7,"parents":{}}`: then `source` and `step` say
it all and `metadata` is NULL, which saves some 30 bytes a checkpoint. Any other text is
stored whole, beside NULLs.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r'\{"source":"([a-z]{1,16})","step":(-?[1-9][0-9]{0,17}|0),"parents":\{\}\}')

TEXT = """coalesce(c.metadata,
    '{"source":"' || c.source || '","step":' || c.step || ',"parents":{}}')"""
"""The metadata of row `c` of `tk_checkpoints`, in SQL."""


def split(text: str) -> tuple[str, int, str]:
    """Turn metadata into `source`, `step` and the text; no source: it is the text that counts."""
    plain = _PLAIN.fullmatch(text)
    return ("", 0, text) if plain is None else (plain[1], int(plain[2]), "")
