"""Ids as they are stored: short, and in the order of their text.

Only the two directions live here. Invariant: SQLite orders packed ids (TEXT before
BLOB, both bytewise) as Python orders the texts, whatever the texts are.

A canonical lower-case UUID is its 16 bytes. Any other text follows the UUID just below
it: that UUID's 16 bytes and then the text, in one BLOB. Text below every UUID stays TEXT.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

_UUID_BYTES = 16
_HEX = "0123456789abcdef"
_SHAPE = "x" * 8 + "-xxxx-xxxx-xxxx-" + "x" * 12


@lru_cache(maxsize=4096)
def pack_id(text: str) -> bytes | str:
    """Turn an id into what is stored."""
    packed = _uuid_bytes(text)
    if packed is not None:
        return packed
    below = _uuids_below(text)
    return (below - 1).to_bytes(_UUID_BYTES, "big") + text.encode() if below else text


@lru_cache(maxsize=4096)
def unpack_id(packed: bytes | str) -> str:
    """Turn what is stored back into the id."""
    if isinstance(packed, str):
        return packed
    return packed[_UUID_BYTES:].decode() if len(packed) > _UUID_BYTES else _uuid_text(packed.hex())


def _uuid_bytes(text: str) -> bytes | None:
    """The bytes of a canonical lower-case UUID; None for any other text."""
    if len(text) != len(_SHAPE) or not text[8] == text[13] == text[18] == text[23] == "-":
        return None
    digits = text.replace("-", "")
    try:
        packed = bytes.fromhex(digits)
    except ValueError:
        return None
    return packed if len(packed) == _UUID_BYTES and packed.hex() == digits else None


def _uuid_text(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _uuids_below(text: str) -> int:
    """How many canonical UUIDs sort before `text`, which is none itself."""
    digits, left = 0, 32
    for expected, found in zip(_SHAPE, text.ljust(len(_SHAPE), "\0"), strict=False):
        if expected == "-":
            if found != "-":
                return (digits + (found > "-")) << 4 * left
        else:
            left -= 1
            digits = digits * 16 + bisect_left(_HEX, found)
            if found not in _HEX:
                return digits << 4 * left
    return digits + 1
