"""Stubs: segments of the store whose bytes are in the cold store.

A stub stands at the segment's own place, and is a segment as every store knows them. Its data is a
frame that lies elsewhere (see `codec.frame`), in MessagePack: `[object, first byte, bytes,
SHA-256]`. Bytes with another digest are never taken for the segment's: the stub is left, and fails
alone where it is opened.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import ormsgpack

from threadkeep.codec.frame import ELSEWHERE, MAGIC, VERSION, elsewhere, pack_elsewhere
from threadkeep.engine.model import Read, ReadSegments, Segment
from threadkeep.errors import BackendError, CorruptionError, ThreadArchivedError

if TYPE_CHECKING:
    from threadkeep.cold.store import ColdStore

STUB = bytes((MAGIC, VERSION << 4 | ELSEWHERE))
"""First bytes of a stub's data."""

LEAST = 1024
"""Smallest limit in bytes that can be set for offloading."""

USUAL = 140
"""Bytes that a stub takes, about."""

MOST = 512
"""Bytes that a stub takes at most."""

WITH_COLD = "Open the store with cold=, the URL of the cold store (in the shell: TK_COLD)."
_log = logging.getLogger("threadkeep")


class Location(NamedTuple):
    """Location of a segment's bytes: `size` of them, from `start` on, in the object `key`."""

    key: str
    start: int
    size: int
    sha256: bytes

    def matches(self, data: bytes) -> bool:
        """Return whether these are the bytes that were put there."""
        return hashlib.sha256(data).digest() == self.sha256


def stubs_for(segments: Iterable[Segment], key: str) -> tuple[bytes, tuple[Segment, ...]]:
    """Return an object that holds the segments' bytes, one behind the other, and their stubs."""
    stubs, data, start = [], list[bytes](), 0
    for segment in segments:
        size = len(segment.data)
        location = Location(key, start, size, hashlib.sha256(segment.data).digest())
        stubs.append(segment._replace(data=pack_elsewhere(ormsgpack.packb(list(location)))))
        data.append(segment.data)
        start += size
    return b"".join(data), tuple(stubs)


def location_of(segment: Segment) -> Location | None:
    """Return the location of a stub's bytes; None of a segment that is no stub.

    Raises:
        CorruptionError: it is damaged.
    """
    packed = elsewhere(segment.data)
    if packed is None:
        return None
    try:
        key, start, size, sha256 = ormsgpack.unpackb(packed)
        return Location(str(key), int(start), int(size), bytes(sha256))
    except (ValueError, TypeError) as error:
        raise CorruptionError("The location of an offloaded segment cannot be read.") from error


def is_stub(segment: Segment) -> bool:
    """Return whether it is a stub that can be read."""
    try:
        return location_of(segment) is not None
    except CorruptionError:
        return False


# -- from stubs to segments ------------------------------------------------------------


def stubbed(reads: Sequence[Read], replies: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Iterate over the replies with stubs in place of segments: number and thread."""
    for number, read in enumerate(reads):
        if isinstance(read, ReadSegments) and not read.stub:
            for segment in replies[number]:
                if segment.data.startswith(STUB):
                    yield number, read.thread
                    break


def whole(cold: ColdStore | None, thread: str, segments: Iterable[Segment]) -> list[Segment]:
    """Return a thread's segments, with their bytes in place of the stubs among them.

    Raises:
        ThreadArchivedError: there is no cold store.
        OpenError, BackendError: it refused, or failed.
    """
    found = list(segments)
    by_object: dict[str, list[tuple[int, Location]]] = {}
    for number, segment in enumerate(found):
        location = location_of(segment) if is_stub(segment) else None
        if location is not None:  # (whoever opens a damaged one is told)
            by_object.setdefault(location.key, []).append((number, location))
    for key, stubs in by_object.items():
        if cold is None:
            raise ThreadArchivedError(
                "Parts of this thread are in the cold store.", hint=WITH_COLD, thread=thread
            )
        parts = _parts(cold, key, [location for _, location in stubs])
        for (number, location), data in zip(stubs, parts, strict=True):
            if location.matches(data):
                found[number] = found[number]._replace(data=data)
            else:
                _log.error("The cold store lost or changed the object %s.", key)
    return found


def _parts(cold: ColdStore, key: str, locations: Sequence[Location]) -> list[bytes]:
    """The bytes of some locations in an object; none where it does not have them."""
    try:
        return cold.get_parts(key, [(at.start, at.size) for at in locations])
    except CorruptionError:
        return [b""] * len(locations)
    except BackendError:
        data = cold.get(key)  # it may be just shorter than it was; if not, this raises too
        return [data[at.start : at.start + at.size] for at in locations]
