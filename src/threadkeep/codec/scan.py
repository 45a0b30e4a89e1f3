"""Scans of values and of their bytes: depth of nesting, and references to elements of logs.

ormsgpack recurses in C, 0.3 KB of stack a level when it packs and 0.5 KB when it unpacks,
and stops by itself only within one call. Objects within objects are calls within calls:
without a limit over all of them, deep or hostile data would end the process. Neither measure
here recurses further than `LIMIT`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import ormsgpack

from threadkeep.codec.format import Tag

LIMIT = 254
"""Levels of lists and dicts that ormsgpack packs in one call."""

SHALLOW = 4
"""Objects within objects up to here are not measured: four calls' worth of stack is there."""

_CONTAINERS = bytes((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))
_OTHERS = bytes(set(range(256)) - set(_CONTAINERS))


def depth_of_value(value: Any, level: int = 0) -> int:
    """Return the levels of lists and dicts in a value; `LIMIT` + 1 if there are more."""
    kind = type(value)
    if level > LIMIT or (kind is not list and kind is not dict):
        return level
    inside = value if kind is list else value.values()
    return max((depth_of_value(item, level + 1) for item in inside), default=level + 1)


def depth_of_bytes(data: bytes) -> int:
    """Return the levels of arrays and maps in msgpack, or up to `SHALLOW` more.

    The number of bytes that may open a container is a bound at the speed of C; the exact
    measure is taken only where that is not enough.
    """
    bound = len(data.translate(None, _OTHERS))
    return bound if bound <= SHALLOW else _exact(data)


def _exact(data: bytes) -> int:
    """Walk over the items; the decoder refuses those that are cut short."""
    open_counts: list[int] = []
    at = deepest = 0
    while at < len(data):
        at, children = _step(data, at)
        if open_counts:
            open_counts[-1] -= 1
        if children:
            open_counts.append(children)
            deepest = max(deepest, len(open_counts))
        while open_counts and not open_counts[-1]:
            open_counts.pop()
    return deepest


# Marker -> (bytes of a length or count that follows it, bytes beside what that counts)
_SIZED = {
    **{0xC4 + i: (1 << i, 0) for i in range(3)},  # bytes
    **{0xC7 + i: (1 << i, 1) for i in range(3)},  # extensions: a tag before the payload
    **{0xD9 + i: (1 << i, 0) for i in range(3)},  # text
}
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # children per count
_FIXED = {
    **dict(zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True)),  # numbers
    **{0xD4 + i: 1 + (1 << i) for i in range(5)},  # extensions of a fixed size
}


def _step(data: bytes, at: int) -> tuple[int, int]:
    """Return the start of the next item, and the number of items inside this one."""
    mark = data[at]
    at += 1
    if 0x80 <= mark < 0xA0:  # noqa: PLR2004 - a small map or array
        return at, (mark & 15) * (2 if mark < 0x90 else 1)  # noqa: PLR2004
    if 0xA0 <= mark < 0xC0:  # noqa: PLR2004 - short text
        return at + (mark & 31), 0
    if mark in _COUNTED:
        width, per = _COUNTED[mark]
        return at + width, int.from_bytes(data[at : at + width], "big") * per
    if mark in _SIZED:
        width, beside = _SIZED[mark]
        return at + width + beside + int.from_bytes(data[at : at + width], "big"), 0
    return at + _FIXED.get(mark, 0), 0


_TYPE = bytes((Tag.REFERENCE,))
# The extension's header and the pair inside: a list of two numbers of up to 9 bytes each.
_HEADER = re.compile(b"(?:[\xd4-\xd8]|\xc7([\x03-\x13]))" + re.escape(_TYPE) + b"(?=\x92)")
_PAYLOADS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class Reference(NamedTuple):
    """Address of an element, in `size` bytes of a value from `at` on."""

    log: int
    pos: int
    size: int
    at: int


def references(data: bytes) -> Iterator[Reference]:
    """Yield all references in the bytes of a value, at any depth.

    Text may happen to look like one: a caller must know which addresses there can be.
    """
    for header in _HEADER.finditer(data):
        first = data[header.start()]
        length = _PAYLOADS[first] if header[1] is None else header[1][0]
        try:
            pair = ormsgpack.unpackb(data[header.end() : header.end() + length])
        except ValueError:
            continue
        if len(pair) == 2 and all(type(number) is int for number in pair):  # noqa: PLR2004 - a pair
            yield Reference(pair[0], pair[1], len(header[0]) + length, header.start())
