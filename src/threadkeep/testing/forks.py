"""Contract of `ForkThread`: threads that share segments."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from typing import Any

import pytest

from threadkeep._core.engine.heads import Move
from threadkeep._core.engine.model import (
    Batch,
    CopyThread,
    DropThread,
    ForkThread,
    ReadDamage,
    ReadSegments,
    ReadSizes,
    RowsFence,
    ScanCheckpoints,
    Span,
)
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep.errors import (
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadExistsError,
)
from threadkeep.testing.records import (
    NOW,
    THREAD,
    Contract,
    after,
    checkpoint,
    ids,
    segment,
    uid,
    write,
)

FORK = "fork"


class ForkContract(Contract):
    """A fork has its own rows, and reads the segments of its origin."""

    def origin(self) -> None:
        """A thread of three checkpoints in two namespaces, with writes and segments."""
        self.put(
            segments=(segment(0, 2), segment(2), segment(0, log=2)),
            checkpoints=(checkpoint(1), checkpoint(2, 1), checkpoint(3, 2)),
        )
        self.put(checkpoints=(checkpoint(2, ns="child", exact=b"x"),), writes=(write(1), write(2)))
        self.put(writes=(write(2, run=7), write(3)))

    def fork(self, *, target: str = FORK, source: str = THREAD, **fields: Any) -> ForkThread:
        """A fork of the first two checkpoints, with one of the writes on the second."""
        rows = [w for stored in self.rows(source).checkpoints for w in stored.writes]
        writes = [w for w in rows if w.checkpoint_id == uid(1) or w.run == 7]
        change = ForkThread(
            source,
            target,
            NOW + 9,
            generation=self.state(thread=source).generation,
            checkpoints=(("", uid(1)), ("", uid(2)), ("child", uid(2)), ("", uid(99))),
            writes=(*[(w.ns, w.checkpoint_id, w.seq) for w in writes], ("", uid(2), 99)),
            entry=ThreadEntry(target, "active", NOW + 9, NOW + 9, 5, origin=(source, uid(2))),
        )
        return change._replace(**fields)

    def origin_and_fork(self) -> bool:
        """Put an origin and its fork, and return True if they share segments."""
        self.origin()
        self.commit(self.fork())
        return self.rows().family != ()

    def test_a_fork_has_the_rows_that_are_named(self) -> None:
        """A fork has the named rows that exist, unchanged and with their `seq`."""
        self.origin_and_fork()
        rows, source = self.rows(FORK), self.rows()
        assert [s.row for s in rows.checkpoints] == [
            s.row for s in source.checkpoints if s.row.id != uid(3)
        ]
        first, second = (source.checkpoints[n].writes for n in (0, 1))
        assert [w for s in rows.checkpoints for w in s.writes] == [first[0], second[1]]
        assert rows.orphans == ()
        assert self.head(thread=FORK) == uid(2)
        found = self.stored(2, thread=FORK)
        assert (found.thread, found.keyframe, found.child) == (FORK, segment(0, 2), None)
        scan = ScanCheckpoints(FORK, "", None, None, {}, None, 10)
        assert ids(self.one(scan)) == [uid(2), uid(1)]

    def test_the_empty_id_is_an_id(self) -> None:
        """A thread whose id is empty continues, and its fork keeps its segments."""
        for number in (1, 2):
            rows = (checkpoint(number),)
            self.put(thread="", segments=(segment(number),), checkpoints=rows)
        before = self.everything("")
        self.commit(self.fork(source="", checkpoints=(("", uid(1)), ("", uid(2))), writes=()))
        self.put(thread="", checkpoints=(checkpoint(3),), writes=(write(1),))
        assert [len(self.rows(name).checkpoints) for name in ("", FORK)] == [3, 2]
        assert self.everything(FORK) == before
        self.drop("", NOW + 20)
        assert self.everything("") == []
        assert self.everything(FORK) == before
        self.put(thread="", checkpoints=(checkpoint(4),), now=NOW + 30)
        assert self.head(thread="") == uid(4)
        assert self.one(ReadDamage()) == []

    def test_a_fork_reads_the_segments_of_its_origin(self) -> None:
        """A fork keeps its origin's segments, also after the origin is dropped."""
        self.origin_and_fork()
        before, infos = self.everything(), self.rows().segments
        assert self.everything(FORK) == before
        self.drop(THREAD, NOW + 20)
        assert self.everything(FORK) == before
        assert self.rows(FORK).segments == infos
        assert self.everything() == []
        assert self.threads() == [FORK]
        assert self.one(ReadDamage()) == []

    def test_an_origin_that_is_dropped_again_leaves_its_fork_alone(self) -> None:
        """An origin that is stored and dropped after its first drop has segments of its own."""
        self.origin_and_fork()
        before = self.everything(FORK)
        for at in (20, 30):
            self.drop(THREAD, NOW + at)
            self.put(segments=(segment(0, data=b"another"),), checkpoints=(checkpoint(at),))
            assert self.everything() == [segment(0, data=b"another")]
            assert self.everything(FORK) == before

    def test_rows_that_take_a_fork_s_place_leave_its_origin_alone(self) -> None:
        """`DropThread(rows=...)` on a fork leaves the segments of its origin unchanged."""
        self.origin_and_fork()
        before = self.everything()
        new = segment(0, 2, data=b"new")
        put = Batch(FORK, NOW + 20, segments=(new,), checkpoints=(checkpoint(1),))
        self.drop(FORK, 0, rows=put)
        assert self.everything(FORK) == [new]
        assert self.everything() == before
        assert self.rows(FORK).family == ()

    def test_a_move_proves_the_heads_beside_it(self) -> None:
        """`make` refuses a move if a head beside it has moved. Otherwise that one changes, too."""
        if not self.origin_and_fork():
            pytest.skip("this backend's threads do not share segments")
        head, fork = self.row(), self.row(FORK)
        move = Move(head, after(head), beside=((fork, after(fork, size=7)),))
        late = move._replace(beside=((after(fork), after(fork)),))
        assert self.make(late) == [None], "The backend made a move that is late beside; refuse it"
        assert (self.row(), self.row(FORK)) == (head, fork)
        assert self.make(move) == [self.row()]
        assert self.row(FORK).size == 7

    def test_both_go_on(self) -> None:
        """A fork and its origin can both grow. Only equal positions collide."""
        self.origin_and_fork()
        self.put(thread=FORK, segments=(segment(0, log=3),), checkpoints=(checkpoint(5, 2),))
        self.put(segments=(segment(0, log=4),), checkpoints=(checkpoint(4, 3),))
        assert self.segments((3, 0, 1), thread=FORK) == [segment(0, log=3)]
        assert self.segments((4, 0, 1)) == [segment(0, log=4)]
        assert self.head() == uid(4)
        assert self.head(thread=FORK) == uid(5)
        taken = Batch(FORK, NOW, segments=(segment(2, data=b"other"),))
        self.refuses(taken, SegmentTakenError, thread=FORK)
        self.put(thread=FORK, segments=(segment(2),))
        assert len(self.segments((1, 0, 9), thread=FORK)) == 2

    def test_either_replaces_shared_segments(self) -> None:
        """A fork and its origin can put others in place of shared ones, and append as before.

        Those hold the same elements, so caches may still return the former ones.
        """
        shared = self.origin_and_fork()
        for thread in (FORK, THREAD):
            self.put(thread=thread, drop_segments=((1, 0, 2),), segments=(segment(0, 2),))
            for name in (FORK, THREAD):
                assert self.segments((1, 0, 2), thread=name) == [segment(0, 2)]
        self.put(segments=(segment(3),))
        taken = Batch(FORK, NOW, segments=(segment(3, data=b"other"),))
        if shared:
            self.refuses(taken, SegmentTakenError, thread=FORK)
        assert self.segments((1, 3, 4)) == [segment(3)]

    def test_a_family_that_shares_is_told_of(self) -> None:
        """`family` names the threads that share segments, and is empty if none do."""
        shared = self.origin_and_fork()
        assert self.rows().family == ((FORK,) if shared else ())
        assert self.rows(FORK).family == ((THREAD,) if shared else ())
        self.commit(self.fork(target="third", source=FORK))
        names = ("third", FORK, THREAD)
        others = [tuple(sorted({*names} - {name})) for name in names]
        assert [self.rows(name).family for name in names] == (others if shared else [()] * 3)

    def test_what_is_removed_for_one_is_stale_for_all(self) -> None:
        """`bump_generation` raises the generation of all threads that share the segments."""
        shared = self.origin_and_fork()
        before = self.state(thread=FORK).generation
        self.put(drop_segments=((2, 0, 1),), bump_generation=True)
        assert (self.segments((2, 0, 1), thread=FORK) == []) == shared
        assert (self.state(thread=FORK).generation > before) == shared
        if shared:
            assert self.one(ReadSegments(FORK, (Span(1, 0, 1),), before)) == []
            stale = Batch(FORK, NOW, generation=before, checkpoints=(checkpoint(9),))
            self.refuses(stale, StaleThreadError, thread=FORK)

    def test_rows_of_the_family_count_for_a_fence(self) -> None:
        """`RowsFence` counts the rows of all threads that share the segments."""
        shared = self.origin_and_fork()
        own = RowsFence(4, 4)
        all_of_them = RowsFence(4 + 3, 4 + 2) if shared else own
        self.put(fences=(all_of_them,))
        self.put(thread=FORK, writes=(write(2),))
        for fence in (own, all_of_them):
            if shared:
                self.refuses(Batch(THREAD, NOW, fences=(fence,)), ConflictError)
            else:
                self.put(fences=(fence,))

    def test_the_last_one_takes_the_segments_along(self) -> None:
        """Shared segments are removed with their last thread. A copy shares none."""
        self.origin_and_fork()
        self.commit(CopyThread(FORK, "copy", now=NOW + 10))
        assert self.rows("copy").family == ()
        for name in (THREAD, FORK):
            self.drop(name, NOW + 20)
        assert self.segments((1, 0, 2), thread="copy") == [segment(0, 2)]
        assert self.head(thread="copy") == uid(2)
        self.drop("copy")
        assert self.one(ReadSizes(None, 10)).threads == ()
        assert self.everything(FORK) == []
        assert self.one(ReadDamage()) == []

    def test_a_deleted_member_starts_again(self) -> None:
        """A deleted thread that is used again shares no segments with its former forks."""
        self.origin_and_fork()
        self.drop(THREAD, NOW + 20)
        other = segment(0, 2, data=b"other")
        self.put(segments=(other,), checkpoints=(checkpoint(50),))
        assert self.everything() == [other]
        assert self.segments((1, 0, 2), thread=FORK) == [segment(0, 2)]
        assert self.rows().family == ()
        self.commit(self.fork(target="second", checkpoints=(("", uid(50)),), writes=()))
        assert self.segments((1, 0, 2), thread="second") == [other]
        self.drop(FORK, NOW + 21)
        assert self.segments((1, 0, 2), thread="second") == [other]

    def test_shared_segments_count_once(self) -> None:
        """`ReadSizes` counts shared segments once, for the first thread by name."""
        self.origin()
        self.put(thread="zoo", checkpoints=(checkpoint(1),))
        (before, _) = self.one(ReadSizes(None, 10)).threads
        self.commit(self.fork(target="z-fork"))
        sizes = {s.thread: s for s in self.one(ReadSizes(None, 10)).threads}
        assert sizes[THREAD] == before
        count = 0 if self.rows().family else before.segments
        assert (sizes["z-fork"].checkpoints, sizes["z-fork"].segments) == (3, count)

    def test_a_fork_needs_its_origin_as_it_was_read(self) -> None:
        """`ForkThread` with another generation than the origin's raises `StaleThreadError`."""
        self.origin()
        change = self.fork()
        self.put(bump_generation=True)
        self.refuses(change, StaleThreadError, thread=FORK)
        absent = change._replace(source="nobody", generation=5)
        self.refuses(absent, StaleThreadError, thread=FORK)
        assert self.entry(FORK) is None

    def test_a_fork_needs_its_origins_entry_as_it_was_read(self) -> None:
        """`ForkThread` raises `ConflictError` if the origin's entry has another `revision`."""
        self.origin()
        entry = ThreadEntry(THREAD, "active", NOW, NOW)
        self.put(entry=entry)
        change = self.fork(revision=self.known().revision)
        self.put(entry=entry._replace(pinned=True))
        self.refuses(change, ConflictError, thread=FORK)
        assert self.entry(FORK) is None
        self.commit(change._replace(revision=self.known().revision))
        assert self.entry(FORK) is not None

    def test_a_fork_replaces_no_checkpoints(self) -> None:
        """`ForkThread` raises `ThreadExistsError` if the target has checkpoints."""
        self.origin()
        self.put(thread=FORK, checkpoints=(checkpoint(7),))
        self.refuses(self.fork(), ThreadExistsError, thread=FORK)
        self.refuses(self.fork(target=THREAD), ThreadExistsError)
        self.drop(FORK)
        self.put(thread=FORK, segments=(segment(0, log=9),), writes=(write(3),))
        before, of_origin = self.state(thread=FORK).generation, self.everything()
        self.commit(self.fork())
        assert self.everything() == of_origin
        assert self.state(thread=FORK).deleted_at == 0
        assert self.state(thread=FORK).generation > before
        assert self.head(thread=FORK) == uid(2)
        assert self.segments((9, 0, 1), thread=FORK) == []
        assert self.rows(FORK).orphans == ()

    def test_who_comes_and_goes_is_noticed(self) -> None:
        """A new fork, and the deletion of one, raise the generation of all that share segments."""
        if not self.origin_and_fork():
            return
        for change in (self.fork(target="third"), DropThread(FORK, NOW + 20)):
            before = [self.state(thread=name).generation for name in (THREAD, FORK)]
            self.commit(change)
            after = [self.state(thread=name).generation for name in (THREAD, FORK)]
            assert all(new > old for new, old in zip(after, before, strict=True))
        stale = Batch(THREAD, NOW, generation=before[0], drop_segments=((2, 0, 1),))
        self.refuses(stale, StaleThreadError)

    def test_the_entry_of_a_fork_is_its_own_whole(self) -> None:
        """`entry=` replaces the target's former entry, and leaves the origin's unchanged."""
        self.origin()
        before = ThreadEntry(
            FORK, "created", NOW - 5, NOW - 5, labels=('"old"',), pinned=True, ttl=5
        )
        self.put(thread=FORK, entry=before)
        self.put(entry=before._replace(thread=THREAD, labels=('"mine"', '["user_id","u1"]')))
        of_origin = self.entry()
        entry = ThreadEntry(FORK, "forked", NOW + 9, NOW + 9, 5, origin=(THREAD, uid(2)))
        entry = entry._replace(status="waiting", status_at=uid(2))
        self.commit(self.fork(entry=entry))
        assert self.known(FORK)._replace(revision=0) == entry
        assert self.entry() == of_origin

    def test_forks_outlive_the_backend(self) -> None:
        """Forks and shared segments are still stored after `close` and reopening."""
        self.origin_and_fork()
        self.drop(THREAD, NOW + 20)
        self.start_again()
        assert self.segments((1, 0, 2), thread=FORK) == [segment(0, 2)]
