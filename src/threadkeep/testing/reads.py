"""Contract of reads: checkpoints, paths, threads, sizes and segments."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from typing import Any

from threadkeep._core.engine import thread_sizes
from threadkeep._core.engine.heads import MOST_LOGS
from threadkeep._core.engine.model import (
    FREE,
    HIDDEN,
    NESTED,
    OWN_NS,
    Batch,
    Child,
    FindThreads,
    ReadCheckpoint,
    ReadDamage,
    ReadPath,
    ReadSegments,
    ReadSizes,
    ReadThread,
    ScanCheckpoints,
    Span,
    ThreadRows,
    ThreadState,
)
from threadkeep._core.engine.thread_entry import EntryUpdate, ThreadEntry
from threadkeep._core.engine.usage import DAY, HOUR, ReadUsage, ThreadUsage
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep.errors import SegmentTakenError
from threadkeep.testing.records import (
    NOW,
    THREAD,
    Contract,
    bodies,
    checkpoint,
    places,
    segment,
    uid,
    write,
)

# Ascending by code point. LangGraph's own ids are UUIDs, but any text is valid.
MIXED_IDS = (
    "",
    "00000000-0000-0000-0000-00000000000",
    "00000000-0000-0000-0000-000000000000",
    "00000000-0000-0000-0000-000000000000-later",
    "1",
    "1ef0a000-0000-6000-8000-000000000001",
    "1ef0a000-0000-6000-8000-00000000000F",
    "1ef0a000-0000-6000-8000-00000000000f",
    "1ef0a000-0000-6000-8000-0000000000100",
    "1ef0a000_0000_6000_8000_000000000001",
    "2",
    "20",
    "Checkpoint",
    "checkpoint",
    "f",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "g",
    "é",
    "\U0001f600",
)
ROWS = (
    checkpoint(1),
    checkpoint(1, 0, run=2**62, seen=7, flags=FREE | NESTED | HIDDEN),
    checkpoint(1, ts="2024-01-01", exact=b"\x00\xff", manifest=b""),
    checkpoint(1, ts=-1, run=-(2**63), key_log=2**63 - 1, key_pos=2**40),
    checkpoint(1, ts=253_402_300_799_999_999),
    checkpoint(1, ts=-62_135_596_800_000_000 + 1),
    checkpoint(1, ns="child:1|grandchild", metadata='{"ключ \\" \'": "\\ud83d\\ude00 é"}'),
    checkpoint(1, manifest=bytes(range(256)) * 400, exact=b""),
    *[
        checkpoint(1, metadata=metadata)
        for metadata in (
            '{"source":"loop","step":1,"parents":{}}',
            '{"source":"input","step":-1,"parents":{}}',
            '{"source":"update","step":0,"parents":{}}',
            '{"source":"loop","step":999999999999999999999,"parents":{}}',
            '{"source":"loop","step":-0,"parents":{}}',
            '{"source":"loop","step":1.0,"parents":{}}',
            '{"source":"loop","step":1,"parents":{}} ',
            '{"source": "loop","step":1,"parents":{}}',
            '{"step":1,"source":"loop","parents":{}}',
            '{"source":"l\\u00f6p","step":1,"parents":{}}',
            '{"source":"löp","step":1,"parents":{}}',
            "{}",
        )
    ],
)


class ReadContract(Contract):
    """Reads return rows as they were put."""

    def test_an_unknown_thread_is_empty(self) -> None:
        """An unknown thread reads as an empty one: generation 0, never deleted, no rows."""
        assert self.backend.fetch(
            [
                ReadCheckpoint("nobody", "", None),
                ReadCheckpoint("nobody", "", uid(1)),
                ReadSegments("nobody", (Span(1, 0, 10),)),
                ReadPath("nobody", "", uid(1), 10),
                ReadThread("nobody"),
                ScanCheckpoints("nobody", None, None, None, {}, None, 10),
                FindThreads(None, 10),
            ]
        ) == [ThreadState(0, 0), ThreadState(0, 0), [], [], ThreadRows(0, 0, (), (), ()), [], []]

    def test_replies_come_in_request_order(self) -> None:
        """`fetch` returns one reply per read, in the order of the reads."""
        self.put(segments=(segment(0),), checkpoints=(checkpoint(1), checkpoint(2, 1)))
        replies = self.backend.fetch(
            [
                ReadCheckpoint(THREAD, "", uid(2)),
                ReadSegments(THREAD, (Span(1, 0, 1),)),
                ReadCheckpoint(THREAD, "", uid(1)),
                FindThreads(None, 10),
                ReadCheckpoint(THREAD, "", uid(2)),
            ]
        )
        assert [replies[at].found.row.id for at in (0, 2, 4)] == [uid(2), uid(1), uid(2)]
        assert replies[1] == [segment(0)]
        assert replies[3] == [THREAD]
        assert self.backend.fetch([]) == []

    def test_checkpoint_rows_come_back_as_they_were(self) -> None:
        """Every field of a checkpoint row is read with the same type and value.

        Metadata is read as the same text, also if the store parses it.
        """
        for row in ROWS:
            self.put(checkpoints=(row,))
            found = self.stored(1, ns=row.ns).row
            assert found == row
            assert type(found.ts) is type(row.ts)

    def test_ids_of_any_text_keep_their_order(self) -> None:
        """Checkpoint ids may be any text, and are ordered by code point."""
        parents = (None, *MIXED_IDS)
        rows = [
            checkpoint(0, id=key, parent=parent)
            for key, parent in zip(MIXED_IDS, parents, strict=False)
        ]
        self.put(
            checkpoints=tuple(reversed(rows)), writes=(write(0, task_id="g", checkpoint_id=""),)
        )
        found = self.rows().checkpoints
        assert [s.row for s in found] == rows
        assert self.head() == MIXED_IDS[-1]
        assert [w.task_id for w in found[0].writes] == ["g"]

    def test_the_head_is_the_greatest_visible_id(self) -> None:
        """The head is the greatest id that is not hidden. A read by id finds hidden ones."""
        self.put(checkpoints=(checkpoint(9, 5, flags=HIDDEN),))
        assert self.head() is None
        self.put(checkpoints=(checkpoint(5),))
        self.put(checkpoints=(checkpoint(3), checkpoint(7, 5, flags=NESTED | FREE)))
        assert self.head() == uid(7)
        assert self.stored(9).row.flags == HIDDEN
        assert self.state(2)[:3] == (0, 0, None)

    def test_threads_and_namespaces_are_apart(self) -> None:
        """A read returns writes and children only of its own thread and namespace."""
        rows: dict[str, Any] = {"checkpoints": (checkpoint(1),), "writes": (write(1),)}
        self.put(**rows, segments=(segment(0),))
        self.put(
            checkpoints=(checkpoint(1, ns="child"), checkpoint(2, 1, ns="child")),
            writes=(write(1, ns="child", body=b"other"),),
        )
        self.put(thread="thread-2", **rows)
        assert self.stored(1).child is None
        assert bodies(self.stored(1).writes) == [b"body 1"]
        assert bodies(self.stored(1, ns="child").writes) == [b"other"]
        assert self.stored(1, thread="thread-2").keyframe is None
        assert self.state(2).found is None

    def test_the_keyframe_is_the_whole_segment_that_holds_it(self) -> None:
        """`keyframe` is the whole segment that holds (key_log, key_pos), or None."""
        first, second, other = segment(0, 2), segment(2, 3), segment(0, log=2)
        self.put(segments=(first, second, other))
        for log, position, keyframe in (
            (1, 0, first),
            (1, 4, second),
            (1, 5, None),
            (2, 0, other),
            (3, 0, None),
        ):
            self.put(checkpoints=(checkpoint(1, key_log=log, key_pos=position),))
            assert self.stored(1).keyframe == keyframe

    def test_writes_belong_to_their_checkpoint(self) -> None:
        """A checkpoint is read with all of its write rows, unchanged and in `seq` order."""
        first = write(1, run=2**62, seen=3, task_path="", body=b"")
        second = write(1, task_id="no uuid", task_path="путь", body=b"\x00" * 70_000)
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1)), writes=(first, write(2)))
        self.put(writes=(second,))
        found = self.stored(1).writes
        assert [w.seq for w in found] == sorted({w.seq for w in found})
        assert [w._replace(seq=0) for w in found] == [first, second]

    def test_the_child_is_the_first_of_a_greater_id(self) -> None:
        """`child` is the child with the smallest id above the checkpoint's id."""
        self.put(
            checkpoints=(
                checkpoint(5),
                checkpoint(4, 5),
                checkpoint(6),
                checkpoint(8, 5, run=8),
                checkpoint(7, 5, run=2**40, seen=3, flags=HIDDEN),
            )
        )
        assert self.stored(5).child == Child(uid(7), 2**40, 3)
        assert self.stored(8).child is None

    def test_path_goes_up_nearest_first(self) -> None:
        """A path is the checkpoint and its ancestors, hidden ones too, at most `limit` in all."""
        self.put(
            segments=(segment(0),),
            checkpoints=(
                checkpoint(1, 0),
                checkpoint(9, 1, flags=HIDDEN),
                checkpoint(3, 1),
                checkpoint(4, 9),
            ),
            writes=(write(9),),
        )
        path = self.one(ReadPath(THREAD, "", uid(4), 10))
        assert path == [self.stored(number) for number in (4, 9, 1)]
        assert bodies(path[1].writes) == [b"body 9"]
        assert path[2].keyframe == segment(0)
        assert self.one(ReadPath(THREAD, "", uid(4), 2)) == path[:2]
        assert self.one(ReadPath(THREAD, "", uid(5), 3)) == []
        assert self.one(ReadPath(THREAD, "child", uid(4), 3)) == []

    def test_thread_rows_are_all_rows(self) -> None:
        """`ReadThread` returns hidden checkpoints, orphan writes and positions of segments too."""
        self.put(
            segments=(segment(0, 2, data=b"four"), segment(3, log=2, data=b"12345"), segment(2)),
            checkpoints=(
                checkpoint(2, 1, flags=HIDDEN),
                checkpoint(1, exact=b"e"),
                checkpoint(1, ns="child"),
                checkpoint(0, ns="a"),
            ),
            writes=(write(2), write(2, run=5), write(9), write(1, ns="a"), write(1, ns="child")),
            bump_generation=True,
        )
        rows = self.rows()
        order = [("", uid(1)), ("", uid(2)), ("a", uid(0)), ("child", uid(1))]
        assert places(rows.checkpoints) == order
        assert rows.checkpoints == tuple(
            self.one(ReadCheckpoint(THREAD, ns, key)).found for ns, key in order
        )
        assert {(w.ns, w.checkpoint_id) for w in rows.orphans} == {("", uid(9)), ("a", uid(1))}
        found = [(p.log, p.start, p.count, p.size) for p in rows.segments]
        assert found == [(1, 0, 2, 4), (1, 2, 1, len(segment(2).data)), (2, 3, 1, 5)]
        assert (rows.generation, rows.deleted_at) == (1, 0)

    def test_a_careful_read_of_sound_rows_leaves_nothing_out(self) -> None:
        """`ReadThread(skip=True)` returns the same rows if all of them are readable."""
        self.put(
            segments=(segment(0, 2, log=2),),
            checkpoints=(checkpoint(1), checkpoint(2, 1, exact=b"e"), checkpoint(1, ns="child")),
            writes=(write(2), write(2, run=5), write(9), write(1, ns="child")),
        )
        assert self.rows().checkpoints
        assert self.one(ReadThread(THREAD, skip=True)) == self.rows()
        assert self.one(ReadThread("nobody", skip=True)) == ThreadRows(0, 0, (), (), ())

    def test_found_threads_hold_checkpoints(self) -> None:
        """`FindThreads` lists threads with checkpoints, also hidden ones, and with `empty` all."""
        for thread in ("b", "ä", "a", "B"):
            self.put(thread=thread, checkpoints=(checkpoint(1, flags=HIDDEN),))
        self.put(thread="only writes", writes=(write(1),), segments=(segment(0),))
        self.drop("deleted")
        assert self.threads() == ["B", "a", "b", "ä"]
        assert self.threads(limit=2) == ["B", "a"]
        assert self.threads("a", 2) == ["b", "ä"]
        assert self.threads("aa", 1) == ["b"]
        assert self.threads("a", empty=True) == ["b", "deleted", "only writes", "ä"]
        assert self.threads("a", 2, empty=True) == ["b", "deleted"]

    def test_found_threads_have_one_of_the_runs(self) -> None:
        """`FindThreads(run_ids=...)` lists only threads with a checkpoint of any of these runs."""
        for thread, run in (("a", '"run 1"'), ("b", '"run 2"'), ("c", "null"), ("d", '"\\" é"')):
            self.put(thread=thread, checkpoints=(checkpoint(1, metadata=f'{{"run_id": {run}}}'),))
        self.put(thread="e", checkpoints=(checkpoint(1),))
        assert self.threads(run_ids=("run 1",)) == ["a"]
        assert self.threads(run_ids=("run 2", "run 1", "run 3")) == ["a", "b"]
        assert self.threads("a", run_ids=("run 2", "run 1")) == ["b"]
        assert self.threads(run_ids=('" é',)) == ["d"]
        assert self.threads(run_ids=("run 3",)) == []

    def test_sizes_count_rows_and_bytes(self) -> None:
        """`ReadSizes` counts the rows and bytes of each thread that has any."""
        assert self.one(ReadSizes(None, 10)).threads == ()
        self.put(
            thread="b",
            checkpoints=(checkpoint(1, manifest=b"m" * 500), checkpoint(2, flags=HIDDEN)),
            writes=(write(1, body=b"w" * 300),),
            segments=(segment(0, data=b"s" * 700), segment(1, data=b"s" * 70_000)),
        )
        self.put(thread="a", writes=(write(1),))
        self.put(thread="nothing", bump_generation=True)
        sizes = self.one(ReadSizes(None, 10))
        orphan, full = sizes.threads
        assert (orphan.thread, orphan.checkpoints, orphan.writes) == ("a", 0, 1)
        counted = (full.thread, full.checkpoints, full.writes, full.segments, full.segment_bytes)
        assert counted == ("b", 2, 1, 2, 70_700 + 2 * self.overhead)
        assert 800 < full.row_bytes < 2_000
        assert sizes.total > 70_700  # (a store may free other space meanwhile)
        assert [s.thread for s in self.one(ReadSizes("a", 1)).threads] == ["b"]
        assert self.one(ReadDamage()) == []

    def test_usage_counts_the_store(self) -> None:
        """`ReadUsage` counts threads by their entries, and rows by hour and thread.

        Without `counts_usage`, the counts come from other reads of the backend.
        """
        ages = {"a": (0, 1, 1, 30), "b": (5,), "idle": (24 * 40,)}
        for thread, hours in ages.items():
            at = NOW - min(hours) * HOUR
            entry = ThreadEntry(thread, "active", at, at)
            rows = [checkpoint(9 - at, ts=NOW - hour * HOUR - 1) for at, hour in enumerate(hours)]
            self.put(
                thread=thread, now=at, entry=entry, touch=EntryUpdate(size=100), writes=(write(9),)
            )
            self.put(thread=thread, now=at, checkpoints=(*rows, checkpoint(1, ts="yesterday")))
        self.put(thread="a", touch=EntryUpdate(size=900))
        self.put(thread=f"{OWN_NS}x", now=NOW, entry=ThreadEntry(f"{OWN_NS}x", "active", NOW, NOW))
        self.drop("gone")
        read = ReadUsage(NOW, NOW - 30 * DAY, 2)
        counting = thread_sizes.usage(read, counts_usage=self.backend.counts_usage)
        found = LayeredBackend(self.backend).run(counting)
        assert (found.threads, found.bytes, found.checkpoints) == (3, 1200, 9)
        assert 3 <= found.writes <= 3 + self.own_writes
        assert (found.idle_threads, found.idle_bytes) == (1, 100)
        assert found.hours[-6:] == ((1, 50), (0, 0), (0, 0), (0, 0), (2, 400), (1, 200))
        assert not any(hour.checkpoints for hour in found.hours[:-6])
        a = ThreadUsage("a", 1000, 5, 1, 3, NOW)
        b = ThreadUsage("b", 100, 2, 1, 1, NOW - 5 * HOUR)
        assert found.largest == (a, b)
        assert found.busiest == (a, b)
        assert len(found.sample) == 2
        assert (found.missing_indexes, found.notes) == ((), ())

    def test_what_is_stored_outlives_the_backend(self) -> None:
        """Every commit that returned is still stored after `close` and reopening."""
        self.put(
            checkpoints=(checkpoint(1),),
            writes=(write(1),),
            segments=(segment(0),),
            bump_generation=True,
        )
        before = self.rows()
        self.start_again()
        after = self.rows()  # (numbers of generations are valid for one open backend)
        assert after._replace(generation=before.generation) == before
        assert after.generation == self.state().generation != self.state(thread="new").generation
        assert self.segments((1, 0, 1)) == [segment(0)]
        assert self.head() == uid(1)
        assert before.checkpoints[0].row.ts == NOW + 1


# Starts and counts that overlap a segment of five elements at 10, or two adjacent ones at 40.
OVERLAPS = (
    *((10, 5), (10, 4), (10, 6), (12, 1), (8, 9), (8, 3), (14, 3), (8, 7), (14, 1)),
    *((40, 4), (41, 2)),
)


class SegmentContract(Contract):
    """Segments are found by span, may be put twice, and never overlap."""

    def test_segments_come_back_in_order(self) -> None:
        """`ReadSegments` returns each segment that overlaps a span once, by log and start."""
        stored = [segment(0, 3), segment(3, 2), segment(9, 1), segment(0, 4, log=7)]
        self.put(segments=tuple(reversed(stored)))
        assert self.segments((1, 0, 10), (7, 0, 1)) == stored
        assert self.segments((7, 3, 4), (1, 4, 5), (1, 0, 1)) == [stored[0], stored[1], stored[3]]
        assert self.segments((1, 2, 4), (1, 0, 9), (1, 4, 4), (1, 3, 5)) == stored[:2]
        assert self.segments() == []

    def test_a_span_finds_what_it_overlaps(self) -> None:
        """A span covers `start <= p < stop` of one log. An empty span finds nothing."""
        self.put(segments=(segment(0, 3),))
        for start, stop in ((0, 3), (2, 3), (0, 1), (0, 100)):
            assert self.segments((1, start, stop)) == [segment(0, 3)], (start, stop)
        for start, stop in ((3, 5), (3, 100), (1, 1), (0, 0)):
            assert self.segments((1, start, stop)) == [], (start, stop)
        assert self.segments((2, 0, 10)) == []

    def test_none_are_found_for_another_generation(self) -> None:
        """`ReadSegments` with another generation than the thread's finds nothing."""
        self.put(segments=(segment(0),))

        def found(generation: int | None) -> Any:
            return self.one(ReadSegments(THREAD, (Span(1, 0, 1),), generation))

        assert [found(number) for number in (None, 0, 1, -1)] == [[segment(0)]] * 2 + [[], []]
        self.put(bump_generation=True)
        assert [found(number) for number in (0, 1)] == [[], [segment(0)]]
        assert self.one(ReadSegments("nobody", (Span(1, 0, 1),), 0)) == []

    def test_none_are_found_for_tips_that_are_not_named(self) -> None:
        """`ReadSegments` finds nothing if the thread's row does not name each tip of `base`."""
        self.put(segments=(segment(0),))
        first = self.state().tips
        self.put(segments=(segment(1),))
        second = self.state().tips
        assert second[1:] == first
        for base, found in ((first, [segment(0)]), (second, [segment(0)]), ((*first, 5), [])):
            assert self.one(ReadSegments(THREAD, (Span(1, 0, 1),), base=base)) == found

    def test_bytes_come_back_as_they_were(self) -> None:
        """The data of a segment may be any bytes of any length."""
        blocks = [b"\x00", bytes(range(256)), b"x" * 4096, b"y" * 65_536, b"z" * 3_000_001]
        self.put(segments=tuple(segment(n, data=data) for n, data in enumerate(blocks)))
        assert [s.data for s in self.segments((1, 0, len(blocks)))] == blocks

    def test_places_are_64_bits(self) -> None:
        """Logs and positions may be any numbers up to 63 bits."""
        near, far = segment(0, log=0), segment(2**62, 2**40, log=2**63 - 1)
        self.put(segments=(far, near))
        assert self.segments((2**63 - 1, 2**62 + 5, 2**62 + 6), (0, 0, 1)) == [near, far]

    def test_an_overlap_is_refused(self) -> None:
        """A segment that overlaps another one raises `SegmentTakenError`.

        Also with the same bytes, and within one batch.
        """
        self.put(segments=(segment(10, 5), segment(0, 2), segment(40, 2), segment(42, 2)))
        for start, count in OVERLAPS:
            taken = segment(start, count, data=b"other bytes")
            batch = Batch(THREAD, NOW, segments=(segment(20), taken, segment(30)))
            self.refuses(batch, SegmentTakenError)
        for clash in ((segment(40, 4),), (segment(20, 3), segment(22, 3))):
            self.refuses(Batch(THREAD, NOW, segments=clash), SegmentTakenError)

    def test_old_logs_keep_their_ends(self) -> None:
        """`ReadEnds` finds the ends of logs that the head does not list: nothing overlaps there."""
        self.put(segments=(segment(0, log=0), segment(5, log=0)))
        self.put(segments=tuple(segment(0, log=n) for n in range(1, MOST_LOGS + 2)))
        self.put(segments=(segment(2, log=0),))
        taken = Batch(THREAD, NOW, segments=(segment(5, log=0, data=b"other bytes"),))
        self.refuses(taken, SegmentTakenError)

    def test_neighbours_are_welcome(self) -> None:
        """Adjacent segments, and segments of other logs and threads, do not overlap."""
        self.put(segments=(segment(10, 5),))
        self.put(segments=(segment(15), segment(9), segment(10, 5, log=2), segment(0, 9)))
        self.put(thread="thread-2", segments=(segment(10, 5, data=b"other bytes"),))
        assert len(self.rows().segments) == 5

    def test_dropped_where_all_matches(self) -> None:
        """`drop_segments` drops a segment only if log, start and count match."""
        self.put(segments=(segment(0, 3), segment(3, 3)))
        self.put(drop_segments=((1, 0, 2), (2, 0, 3), (1, 1, 3), (1, 3, 3), (1, 99, 1)))
        assert self.segments((1, 0, 6)) == [segment(0, 3)]

    def test_drops_come_before_additions(self) -> None:
        """A batch may replace many segments with one over the same positions."""
        parts = tuple(segment(n) for n in range(8))
        self.put(segments=parts)
        whole = segment(0, 8, data=b"sealed")
        self.put(drop_segments=tuple((1, n, 1) for n in range(8)), segments=(whole,))
        assert self.segments((1, 3, 4)) == [whole]
