"""Memory that reading a bundle may take, from what its records declare; nothing is opened for it.

A record may take 200 times its own size, and all records of a file together 64 MB beyond that.
Writers count as readers do, and write what would take more uncompressed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from threadkeep._core.codec.frame import opened_size
from threadkeep._core.engine.model import Segment

_TIMES = 200
BEYOND: Final = 1 << 26
UNLIMITED: Final = 1 << 62
_OBJECT = 80  # bytes, at most, of the object that a byte of MessagePack may stand for
_ELEMENT = 64  # bytes of an element in memory, beside its own


class Allowance:
    """Bytes of memory that the records of one file may still take, beyond those of their size."""

    def __init__(self, beyond: int) -> None:
        self._beyond = beyond

    def most(self, body: bytes) -> int:
        """Return how many bytes this record may take in memory."""
        return self._beyond + _TIMES * len(body)

    def take(self, body: bytes, needed: int) -> int:
        """Count a record as read; return how many bytes it may take beside those."""
        left = self.most(body) - needed
        self._beyond = min(self._beyond, left)
        return left


def parsed_size(plain: bytes, most: int) -> int:
    """Estimate the bytes that MessagePack and its objects take; `most` is enough to know.

    The objects are counted only where they could be too many.
    """
    if (1 + _OBJECT) * len(plain) <= most:
        return len(plain)
    return len(plain) + _OBJECT * _objects(plain, most // _OBJECT)


def opened_sizes(segments: Iterable[Segment]) -> int:
    """Return the bytes that the elements of segments take in memory, as the segments declare."""
    needed = 0
    for _, _, count, data in segments:
        size = opened_size(data)
        # (an element takes a byte or more: a damaged count is not believed)
        needed += size + _ELEMENT * max(0, min(count, size or len(data)))
    return needed


def _step(first: int) -> tuple[int, int]:
    """Return how many bytes an object of this first byte takes, and those of its length.

    The objects in an array or a map are counted by themselves.
    """
    if 0xA0 <= first <= 0xBF:  # noqa: PLR2004 - MessagePack's own, as below
        return 1 + first - 0xA0, 0
    return _STEPS.get(first, (1, 0))


_STEPS = {
    **{0xC4 + n: (1 + (1 << n), 1 << n) for n in range(3)},  # bin
    **{0xC7 + n: (2 + (1 << n), 1 << n) for n in range(3)},  # ext
    0xCA: (5, 0),
    0xCB: (9, 0),  # float
    **{0xCC + n: (1 + (1 << n % 4), 0) for n in range(8)},  # int
    **{0xD4 + n: (2 + (1 << n), 0) for n in range(5)},  # ext of a fixed size
    **{0xD9 + n: (1 + (1 << n), 1 << n) for n in range(3)},  # str
    0xDC: (3, 0),
    0xDD: (5, 0),
    0xDE: (3, 0),
    0xDF: (5, 0),  # array, map
}
_ALL_STEPS = [_step(first) for first in range(256)]


def _objects(plain: bytes, most: int) -> int:
    """Count the objects in MessagePack, up to one more than `most`."""
    at = count = 0
    while at < len(plain) and count <= most:
        step, width = _ALL_STEPS[plain[at]]
        if width:
            step += int.from_bytes(plain[at + 1 : at + 1 + width], "big")
        at += step
        count += 1
    return count
