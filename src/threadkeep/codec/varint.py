"""Whole numbers as LEB128: seven bits a byte, the lowest first (as in DWARF and WebAssembly).

Only the two directions live here. Invariant: a number takes as few bytes as it can.
"""

from __future__ import annotations

from threadkeep.errors import CorruptionError

_MORE = 0x80  # the bit of a byte that says that another follows
_MOST = 10  # bytes: enough for 64 bits
_SMALL = [bytes((n,)) for n in range(_MORE)]


def pack(number: int) -> bytes:
    """Return the bytes of a number of 0 or more."""
    if number < _MORE:
        return _SMALL[number]
    out = bytearray()
    while number >= _MORE:
        out.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def read(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends.

    Raises:
        CorruptionError: no number of 64 bits begins there.
    """
    number = shift = 0
    for byte in data[at : at + _MOST]:
        at += 1
        number |= (byte & (_MORE - 1)) << shift
        if byte < _MORE:
            return number, at
        shift += 7
    raise CorruptionError("Stored bytes are cut short inside a number.")
