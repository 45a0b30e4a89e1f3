r"""Texts and numbers as bytes whose order is the values' own.

Only these two directions live here. Invariants: packed texts are ordered by code point, hold no
NUL, and a NUL behind each tells where it ends; packed numbers are 8 bytes, those of 0 and more
in their order. Redis compares members byte by byte, which is all that it is asked to do (Lua's
`<` follows the server's locale, and its numbers are exact up to 2**53 only).

In a text, NUL becomes `\x01\x01`, and `\x01` (so that none is taken for one) `\x01\x02`.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_ESCAPES = ((b"\x01", b"\x01\x02"), (b"\x00", b"\x01\x01"))


def pack_text(text: str) -> bytes:
    """Turn a text into what is stored."""
    packed = text.encode()
    if b"\x00" in packed or b"\x01" in packed:
        for raw, escaped in _ESCAPES:
            packed = packed.replace(raw, escaped)
    return packed


def unpack_text(packed: bytes) -> str:
    """Turn what is stored back into the text."""
    if b"\x01" in packed:
        for raw, escaped in reversed(_ESCAPES):
            packed = packed.replace(escaped, raw)
    return packed.decode()


def place(*ids: str) -> bytes:
    """Ids one below the other, in the order of the first, then the second and so on."""
    return b"\x00".join(map(pack_text, ids))


def pack_number(number: int) -> bytes:
    """Turn a number of 64 bits, signed, into 8 bytes."""
    return (number & _MASK).to_bytes(8, "big")


def unpack_number(packed: bytes) -> int:
    """Turn 8 bytes back into the number."""
    return int.from_bytes(packed, "big", signed=True)
