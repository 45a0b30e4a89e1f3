"""Where a value's bytes refer to elements of logs, found without decoding the value.

Only this search lives here. Invariant: it finds every reference that the encoder wrote;
text may happen to look like one, so a caller must know which addresses there can be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import ormsgpack

from threadkeep.codec.format import Tag

_TYPE = bytes((Tag.REFERENCE,))
# The extension's header and the pair inside: a list of two numbers of up to 9 bytes each.
_HEADER = re.compile(b"(?:[\xd4-\xd8]|\xc7([\x03-\x13]))" + re.escape(_TYPE) + b"(?=\x92)")
_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class Reference(NamedTuple):
    """The address of an element, how many bytes the reference itself takes, and from where on."""

    log: int
    pos: int
    size: int
    at: int


def references(data: bytes) -> Iterator[Reference]:
    """What looks like a reference in the bytes of a value, at any depth."""
    for header in _HEADER.finditer(data):
        first = data[header.start()]
        length = _FIXED[first] if header[1] is None else header[1][0]
        try:
            pair = ormsgpack.unpackb(data[header.end() : header.end() + length])
        except ValueError:
            continue
        if len(pair) == 2 and all(type(number) is int for number in pair):  # noqa: PLR2004 - a pair
            yield Reference(pair[0], pair[1], len(header[0]) + length, header.start())
