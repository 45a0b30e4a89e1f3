"""Stubs in place of segments whose bytes are in the cold store."""

import hashlib

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.codec.frame import Compression, pack, pack_elsewhere
from threadkeep._core.engine.cold_references import MOST, STUB, Location, location_of, stubs_for
from threadkeep._core.engine.model import Segment, SegmentInfo, Span
from threadkeep._core.engine.refs import covering
from threadkeep.errors import CorruptionError
from threadkeep.threads.archives.offload import _piece

KEY = f"threads/{'0' * 40}/{'1' * 16}/{'2' * 16}.tkp"


@given(st.lists(st.binary(max_size=3000), max_size=6))
def test_an_object_holds_what_its_stubs_say(given: list[bytes]) -> None:
    segments = [Segment(3, 10 * i, 2, data) for i, data in enumerate(given)]
    data, stubs = stubs_for(segments, KEY, lambda data, _: data)
    for segment, stub in zip(segments, stubs, strict=True):
        assert (stub.log, stub.span, stub.count) == (segment.log, segment.span, segment.count)
        place = location_of(stub)
        assert place is not None
        found = data[place.start : place.start + place.size]
        assert (place.key, found, place.matches(found)) == (KEY, segment.data, True)
        assert not place.matches(found + b"?")
        assert stub.data.startswith(STUB)
        assert len(stub.data) <= MOST


def test_a_stub_is_read_by_every_release() -> None:
    """The form of version 1."""
    digest = hashlib.sha256(b"bytes").digest()
    data = bytes.fromhex("94") + ormsgpack.packb("a/b.tkp") + b"\x07\x05\xc4\x20" + digest
    stub = Segment(1, 0, 1, pack_elsewhere(data))
    assert location_of(stub) == Location("a/b.tkp", 7, 5, digest)
    assert pack_elsewhere(ormsgpack.packb(["a/b.tkp", 7, 5, digest])) == stub.data


def test_what_is_no_stub() -> None:
    assert location_of(Segment(1, 0, 1, pack([b"element"], Compression()))) is None
    for wrong in (b"", b"\xc1", ormsgpack.packb(["key", 1, 2]), ormsgpack.packb(7)):
        with pytest.raises(CorruptionError):
            location_of(Segment(1, 0, 1, pack_elsewhere(wrong)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))), st.integers(0, 40))
def test_what_is_idle_of_a_segment(given: list[tuple[int, int]], start: int) -> None:
    used = covering([Span(7, a, a + n) for a, n in given])
    piece = _piece(SegmentInfo(7, start, 10, 1000), {7: used}, {7: [Span(7, 0, 100)]})
    idle = [p for span in piece.idle for p in range(span.start, span.stop)]
    busy = [p for span in piece.busy for p in range(span.start, span.stop)]
    assert sorted(idle + busy) == list(range(start, start + 10))
    assert all(not any(span.start <= p < span.stop for span in used) for p in idle)
