"""Stubs: what the store holds in place of a segment whose bytes lie in the cold store.

Only that form lives here. Invariants: a stub stands at the segment's own place, and is a segment
as every store knows them; it names the bytes by where they lie and by their digest, so that
nothing else is ever taken for them.

A stub's data is a frame that lies elsewhere (see `codec.frame`), and says in MessagePack where:
`[object, first byte, bytes, SHA-256]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import ormsgpack

from threadkeep.codec.frame import ELSEWHERE, MAGIC, VERSION, elsewhere, pack_elsewhere
from threadkeep.engine.model import Segment
from threadkeep.errors import CorruptionError

STUB = bytes((MAGIC, VERSION << 4 | ELSEWHERE))
"""What a stub's data begins with."""

LEAST = 1024
"""Bytes from which it can be asked for that a segment is offloaded."""

USUAL = 140
"""Bytes that a stub takes, about."""

MOST = 512
"""Bytes that a stub takes at most."""


class Place(NamedTuple):
    """Where a segment's bytes lie: `size` of them, from `start` on, in the object `key`."""

    key: str
    start: int
    size: int
    sha256: bytes

    def holds(self, data: bytes) -> bool:
        """Whether these are the bytes that were put there."""
        return hashlib.sha256(data).digest() == self.sha256


def stubs_for(segments: Iterable[Segment], key: str) -> tuple[bytes, tuple[Segment, ...]]:
    """An object that holds the segments' bytes, one behind the other, and their stubs."""
    found, start = [], 0
    data = [segment.data for segment in segments]
    for segment in segments:
        size = len(segment.data)
        place = Place(key, start, size, hashlib.sha256(segment.data).digest())
        found.append(segment._replace(data=pack_elsewhere(ormsgpack.packb(list(place)))))
        start += size
    return b"".join(data), tuple(found)


def place_of(segment: Segment) -> Place | None:
    """Where a stub's bytes lie; None of a segment that is no stub.

    Raises:
        CorruptionError: it is damaged.
    """
    said = elsewhere(segment.data)
    if said is None:
        return None
    try:
        key, start, size, sha256 = ormsgpack.unpackb(said)
        return Place(str(key), int(start), int(size), bytes(sha256))
    except (ValueError, TypeError) as error:
        raise CorruptionError("Where a segment lies cannot be read.") from error
