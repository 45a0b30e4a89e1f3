"""The contract of segments: where they may lie, and which of them a span finds."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from threadkeep.engine.model import Batch, ReadSegments, Span
from threadkeep.errors import SegmentTakenError
from threadkeep.testing.records import NOW, THREAD, Contract, segment

# Starts and counts that overlap a segment of five elements at 10.
OVERLAPS = ((10, 5), (10, 4), (10, 6), (12, 1), (8, 9), (8, 3), (14, 3), (8, 7), (14, 1))


class SegmentContract(Contract):
    """Segments: found by span, put twice without harm, never one over another."""

    def test_segments_come_back_in_order(self) -> None:
        """The segments that overlap the spans, each once, in (log, start) order."""
        stored = [segment(0, 3), segment(3, 2), segment(9, 1), segment(0, 4, log=7)]
        self.put(segments=tuple(reversed(stored)))
        assert self.segments((1, 0, 10), (7, 0, 1)) == stored
        assert self.segments((7, 3, 4), (1, 4, 5), (1, 0, 1)) == [stored[0], stored[1], stored[3]]
        assert self.segments((1, 2, 4), (1, 0, 9), (1, 4, 4), (1, 3, 5)) == stored[:2]

    def test_a_span_finds_what_it_overlaps(self) -> None:
        """A span is `start <= p < stop`: an empty one finds nothing."""
        self.put(segments=(segment(0, 3),))
        for start, stop in ((0, 3), (2, 3), (0, 1), (0, 100)):
            assert self.segments((1, start, stop)) == [segment(0, 3)], (start, stop)
        for start, stop in ((3, 5), (3, 100), (1, 1), (0, 0)):
            assert self.segments((1, start, stop)) == [], (start, stop)

    def test_absent_logs_are_empty(self) -> None:
        """Spans over what is not there find nothing; the reply may have holes."""
        self.put(segments=(segment(0), segment(5)))
        assert self.segments((2, 0, 10)) == []
        assert self.segments((1, 0, 10)) == [segment(0), segment(5)]
        assert self.segments() == []

    def test_none_are_found_for_another_generation(self) -> None:
        """A read under another generation than the thread's own finds none."""
        self.put(segments=(segment(0),))
        span = Span(1, 0, 1)
        found = [
            self.one(ReadSegments(THREAD, (span,), generation)) for generation in (None, 0, 1, -1)
        ]
        assert found == [[segment(0)], [segment(0)], [], []]
        self.put(bump=True)
        found = [self.one(ReadSegments(THREAD, (span,), generation)) for generation in (0, 1)]
        assert found == [[], [segment(0)]]
        assert self.one(ReadSegments("nobody", (span,), 0)) == []

    def test_bytes_come_back_as_they_were(self) -> None:
        """Data is any bytes of any length."""
        blocks = [b"\x00", bytes(range(256)), b"x" * 4096, b"y" * 65_536, b"z" * 3_000_001]
        self.put(segments=tuple(segment(n, data=data) for n, data in enumerate(blocks)))
        assert [s.data for s in self.segments((1, 0, len(blocks)))] == blocks

    def test_places_are_64_bits(self) -> None:
        """Logs and positions may be any numbers of 63 bits."""
        far = segment(2**62, 2**40, log=2**63 - 1)
        self.put(segments=(far, segment(0, log=0)))
        assert self.segments((2**63 - 1, 2**62 + 5, 2**62 + 6), (0, 0, 1)) == [
            segment(0, log=0),
            far,
        ]

    def test_the_same_segment_twice_is_one(self) -> None:
        """A segment that is there with the same bytes is skipped: a retry is harmless."""
        for _ in range(2):
            self.put(segments=(segment(0), segment(1, 4), segment(1, 4)))
        assert len(self.rows().segments) == 2

    def test_an_overlap_is_refused(self) -> None:
        """One that overlaps stored positions in any other way is a `SegmentTakenError`."""
        self.put(segments=(segment(10, 5), segment(0, 2), segment(40, 2)))
        for start, count in OVERLAPS:
            taken = segment(start, count, data=b"other bytes")
            batch = Batch(THREAD, NOW, segments=(segment(20), taken, segment(30)))
            self.refuses(batch, SegmentTakenError)
            assert self.segments((1, 20, 21), (1, 30, 31)) == [], (start, count)

    def test_one_over_many_is_refused(self) -> None:
        """A segment over several stored ones is refused, even with their very bytes."""
        self.put(segments=(segment(0, 2), segment(2, 2)))
        self.refuses(Batch(THREAD, NOW, segments=(segment(0, 4),)), SegmentTakenError)

    def test_an_overlap_within_a_batch_is_refused(self) -> None:
        """Segments of one batch may not overlap each other either."""
        batch = Batch(THREAD, NOW, segments=(segment(0, 3), segment(2, 3)))
        self.refuses(batch, SegmentTakenError)

    def test_neighbours_are_welcome(self) -> None:
        """Positions that touch do not overlap; logs and threads are apart."""
        self.put(segments=(segment(10, 5),))
        self.put(segments=(segment(15), segment(9), segment(10, 5, log=2), segment(0, 9)))
        self.put(thread="thread-2", segments=(segment(10, 5, data=b"other bytes"),))
        assert len(self.rows().segments) == 5

    def test_dropped_where_all_matches(self) -> None:
        """`drop_segments` drops only where log, start and count all match."""
        self.put(segments=(segment(0, 3), segment(3, 3)))
        self.put(drop_segments=((1, 0, 2), (2, 0, 3), (1, 1, 3), (1, 3, 3), (1, 99, 1)))
        assert self.segments((1, 0, 6)) == [segment(0, 3)]

    def test_drops_come_before_additions(self) -> None:
        """Many segments are replaced by one over the same positions in one batch."""
        parts = tuple(segment(n) for n in range(8))
        self.put(segments=parts)
        whole = segment(0, 8, data=b"sealed")
        self.put(drop_segments=tuple((1, n, 1) for n in range(8)), segments=(whole,))
        assert self.segments((1, 3, 4)) == [whole]

    def test_one_is_exchanged_for_another_at_its_place(self) -> None:
        """Log, start and count stay the same, the bytes do not; there and back."""
        for data in (b"as it was" * 9000, b"stub", b"as it was" * 9000):
            self.put(drop_segments=((1, 3, 2),), segments=(segment(3, 2, data=data),), bump=True)
            assert [found.data for found in self.segments((1, 0, 9))] == [data]

    def test_a_refused_batch_drops_nothing(self) -> None:
        """All or nothing: drops of a refused batch have not happened."""
        self.put(segments=(segment(0), segment(1), segment(9, 3)))
        batch = Batch(
            THREAD,
            NOW,
            drop_segments=((1, 0, 1), (1, 1, 1)),
            segments=(segment(0, 2), segment(10, data=b"taken")),
        )
        self.refuses(batch, SegmentTakenError)
