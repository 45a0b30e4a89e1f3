"""Stubs of segments, and the bytes that they stand for.

Only the way back lives here. Invariants: bytes are what was put there, by their digest; where
the cold store does not have them the stub is left, and whoever opens it is told so: damage in
one segment keeps nobody from the others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from threadkeep.cold.offloaded import (
    STUB,
    Place,
    place_of,
)
from threadkeep.engine.model import Read, ReadSegments, Segment
from threadkeep.errors import BackendError, CorruptionError, ThreadArchivedError

if TYPE_CHECKING:
    from threadkeep.cold.store import ColdStore

WITH_COLD = "Open the store with cold=, the URL of the cold store (in the shell: TK_COLD)."
_log = logging.getLogger("threadkeep")


def stubbed(reads: Sequence[Read], replies: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Which of the replies have stubs in place of segments, and of which thread."""
    for number, read in enumerate(reads):
        if isinstance(read, ReadSegments) and not read.stub:
            for segment in replies[number]:
                if segment.data.startswith(STUB):
                    yield number, read.thread
                    break


def whole(cold: ColdStore | None, thread: str, segments: Iterable[Segment]) -> list[Segment]:
    """A thread's segments, with their bytes in place of the stubs among them.

    Raises:
        ThreadArchivedError: there is no cold store.
        OpenError, BackendError: it refused, or failed.
    """
    found = list(segments)
    for key, stubs in _by_object(found).items():
        if cold is None:
            raise ThreadArchivedError(
                "Parts of this thread are in the cold store.",
                hint=WITH_COLD,
                thread=thread,
            )
        parts = _parts(cold, key, [place for _, place in stubs])
        for (number, place), data in zip(stubs, parts, strict=True):
            if place.holds(data):
                found[number] = found[number]._replace(data=data)
            else:
                _log.error("The cold store has something else, or nothing, where %s was put.", key)
    return found


def _by_object(segments: Sequence[Segment]) -> dict[str, list[tuple[int, Place]]]:
    """Which of the segments lie in which object."""
    found: dict[str, list[tuple[int, Place]]] = {}
    for number, segment in enumerate(segments):
        try:
            place = place_of(segment)
        except CorruptionError:
            continue  # (whoever opens it is told)
        if place is not None:
            found.setdefault(place.key, []).append((number, place))
    return found


def _parts(cold: ColdStore, key: str, places: Sequence[Place]) -> list[bytes]:
    """The bytes at these places of an object; none where it does not have them."""
    try:
        return cold.get_parts(key, [(place.start, place.size) for place in places])
    except CorruptionError:
        return [b""] * len(places)
    except BackendError:
        data = cold.get(key)  # it may be just shorter than it was; if not, this raises too
        return [data[place.start : place.start + place.size] for place in places]
