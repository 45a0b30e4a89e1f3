"""The contract of `DropThread` and `CopyThread`."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

import pytest

from threadkeep.engine.model import (
    HIDDEN,
    Batch,
    CopyThread,
    DropThread,
    FindThreads,
    ReadSizes,
    RowsFence,
    ThreadRows,
    ThreadState,
)
from threadkeep.engine.thread_entry import (
    CountThreads,
    EntryFence,
    ReadEntry,
    ThreadEntry,
    ThreadQuery,
    Touch,
)
from threadkeep.errors import ConflictError, StaleThreadError, ThreadExistsError
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, uid, write


class ThreadContract(Contract):
    """Whole threads: dropped for good, copied in full."""

    def fill(self, thread: str = THREAD) -> None:
        """Checkpoints of two namespaces, one hidden, writes, an orphan, segments."""
        self.put(
            thread=thread,
            segments=(segment(0, 2), segment(2), segment(0, log=2, data=b"x" * 70_000)),
            checkpoints=(
                checkpoint(1),
                checkpoint(2, 1, flags=HIDDEN),
                checkpoint(3, 2, exact=b"exact", run=5, seen=2),
                checkpoint(1, ns="child"),
            ),
            writes=(write(3, run=5), write(3), write(9), write(1, ns="child")),
        )

    # -- drop ------------------------------------------------------------------------

    def test_dropped_threads_hold_nothing(self) -> None:
        """Everything of the thread is removed, and a tombstone left."""
        self.fill()
        self.fill("thread-2")
        self.backend.commit(DropThread(THREAD, now=NOW))
        assert self.rows() == ThreadRows(1, NOW, (), (), ())
        assert self.state() == ThreadState(1, NOW)
        assert self.segments((1, 0, 10), (2, 0, 10)) == []
        assert self.one(FindThreads(None, 10)) == ["thread-2"]
        assert [s.thread for s in self.one(ReadSizes(None, 10)).threads] == ["thread-2"]
        assert len(self.rows("thread-2").checkpoints) == 4

    def test_a_thread_that_never_was_gets_a_tombstone(self) -> None:
        """A thread that never was gets the tombstone too."""
        self.backend.commit(DropThread("nobody", now=NOW))
        assert self.state(thread="nobody") == ThreadState(1, NOW)

    def test_a_later_drop_moves_the_tombstone(self) -> None:
        """Each drop raises the generation and dates the tombstone anew."""
        for now in (NOW, NOW + 5):
            self.backend.commit(DropThread(THREAD, now=now))
        assert self.state() == ThreadState(2, NOW + 5)

    def test_a_drop_at_0_leaves_no_tombstone(self) -> None:
        """Dropped at 0, a thread counts as never deleted: whatever is put there is taken."""
        self.fill()
        self.backend.commit(DropThread(THREAD, now=NOW))
        self.backend.commit(DropThread(THREAD, now=0))
        assert self.state() == ThreadState(2, 0)
        self.put(born=1, checkpoints=(checkpoint(1),))
        assert len(self.rows().checkpoints) == 1

    def test_a_drop_leaves_the_entry_that_it_brings(self) -> None:
        """With an entry the thread holds nothing, and is registered as the entry says."""
        self.fill()
        left = ThreadEntry(
            THREAD, "kept apart", 3, 4, labels=('"tag"',), pinned=True, ttl=5, waits_at=uid(3)
        )
        self.backend.commit(DropThread(THREAD, now=0, entry=left))
        assert self.rows() == ThreadRows(1, 0, (), (), ())
        found = self.one(ReadEntry(THREAD))
        assert found == left._replace(revision=found.revision)
        assert found.revision > 0
        query = ThreadQuery(states=("kept apart",), labels=('"tag"',))
        assert self.one(CountThreads(query)) == 1
        self.backend.commit(DropThread(THREAD, now=NOW))
        assert self.one(CountThreads(query)) == 0

    def test_rows_take_the_place_of_what_was_dropped(self) -> None:
        """In the same change, at the same positions, with writes numbered from 1 on."""
        self.fill()
        entry = ThreadEntry(THREAD, "active", 3, 4, labels=('"tag"',))
        new = Batch(
            THREAD,
            NOW + 1,
            segments=(segment(0, 3, data=b"new"),),
            checkpoints=(checkpoint(3),),
            writes=(write(3),),
            bump=True,
            entry=entry,
            touch=Touch(size=7, whole=True),
        )
        self.refuses(DropThread(THREAD, 0, 99, rows=new), StaleThreadError)
        self.refuses(DropThread(THREAD, 0, fences=(RowsFence(4, 3),), rows=new), ConflictError)
        self.backend.commit(DropThread(THREAD, 0, fences=(RowsFence(4, 4),), rows=new))
        rows = self.rows()
        assert (rows.generation, rows.deleted_at) == (2, 0)
        assert [s.row for s in rows.checkpoints] == [checkpoint(3)]
        assert [w.seq for w in rows.checkpoints[0].writes] == [1]
        assert self.segments((1, 0, 10), (2, 0, 10)) == [segment(0, 3, data=b"new")]
        found = self.one(ReadEntry(THREAD))
        assert found == entry._replace(size=7, revision=found.revision)
        assert self.one(CountThreads(ThreadQuery(states=("active",), labels=('"tag"',)))) == 1

    def test_a_drop_that_expects_something_else_is_refused(self) -> None:
        """`generation` and `fences` are checked as a batch's; what is refused changed nothing."""
        self.fill()
        generation, rows = self.rows().generation, RowsFence(4, 4)
        for expected, error in (
            ({"generation": generation + 1}, StaleThreadError),
            ({"fences": (RowsFence(4, 3),)}, ConflictError),
            ({"fences": (rows, EntryFence(7))}, ConflictError),
        ):
            self.refuses(DropThread(THREAD, NOW, **expected), error)
        assert len(self.rows().checkpoints) == 4
        entry = self.one(ReadEntry(THREAD))
        revision = 0 if entry is None else entry.revision
        fences = (rows, EntryFence(revision))
        self.backend.commit(DropThread(THREAD, NOW, generation, fences))
        assert self.state() == ThreadState(generation + 1, NOW)

    def test_a_new_life_starts_afresh(self) -> None:
        """After a drop the same rows can be put again; `seq` and logs start anew."""
        self.fill()
        self.backend.commit(DropThread(THREAD, now=NOW))
        self.put(
            born=NOW + 1,
            generation=1,
            segments=(segment(1, 3, data=b"other bytes"),),
            checkpoints=(checkpoint(3),),
        )
        rows = self.rows()
        assert [s.row for s in rows.checkpoints] == [checkpoint(3)]
        assert rows.checkpoints[0].writes == ()
        assert (rows.generation, rows.deleted_at) == (1, NOW)

    # -- copy ------------------------------------------------------------------------

    def test_a_copy_has_all_rows(self) -> None:
        """All rows are copied: hidden checkpoints, writes with their `seq`, segments."""
        self.fill()
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW))
        source, copy = self.rows(), self.rows("copy")
        assert [(s.row, s.writes, s.keyframe, s.child) for s in copy.checkpoints] == [
            (s.row, s.writes, s.keyframe, s.child) for s in source.checkpoints
        ]
        assert (copy.orphans, copy.segments) == (source.orphans, source.segments)
        assert {s.thread for s in copy.checkpoints} == {"copy"}
        everything = ((1, 0, 10), (2, 0, 10))
        assert self.segments(*everything, thread="copy") == self.segments(*everything)

    def test_a_copy_lives_on_its_own(self) -> None:
        """A change to one of the two does not reach the other."""
        self.fill()
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW))
        before = self.rows("copy")
        self.put(checkpoints=(checkpoint(4, 3),), writes=(write(3),), segments=(segment(3),))
        assert self.rows("copy") == before
        self.put(thread="copy", writes=(write(3, body=b"of the copy"),))
        self.backend.commit(DropThread(THREAD, now=NOW))
        assert self.stored(3, thread="copy").writes[-1].body == b"of the copy"
        assert len(self.segments((1, 0, 10), thread="copy")) == 2

    @pytest.mark.parametrize("flags", [0, HIDDEN])
    def test_a_target_with_checkpoints_is_refused(self, flags: int) -> None:
        """`ThreadExistsError` if `target` holds checkpoints; hidden ones count."""
        self.fill()
        self.put(thread="copy", checkpoints=(checkpoint(9, flags=flags),))
        self.refuses(CopyThread(THREAD, "copy", now=NOW), ThreadExistsError, thread="copy")
        self.refuses(CopyThread(THREAD, THREAD, now=NOW), ThreadExistsError)

    def test_a_copy_replaces_an_earlier_lifes_orphans(self) -> None:
        """Orphans of `target` are removed first, its tombstone cleared, generation raised."""
        self.fill()
        self.backend.commit(DropThread("copy", now=NOW))
        self.put(thread="copy", writes=(write(3),), segments=(segment(0, 9, data=b"late"),))
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW + 1))
        source, copy = self.rows(), self.rows("copy")
        assert (copy.generation, copy.deleted_at) == (2, 0)
        assert copy.segments == source.segments
        assert copy.orphans == source.orphans
        assert self.stored(3, thread="copy").writes == self.stored(3).writes

    @pytest.mark.parametrize("source", ["nobody", "dropped", "bumped"])
    def test_a_source_without_rows_changes_nothing(self, source: str) -> None:
        """A source that holds no rows changes nothing, whatever the target is."""
        self.backend.commit(DropThread("dropped", now=NOW))
        self.put(thread="bumped", bump=True)
        self.fill("target")
        before = self.rows("target")
        self.backend.commit(CopyThread(source, "target", now=NOW))
        self.backend.commit(CopyThread(source, "new", now=NOW))
        assert self.rows("target") == before
        assert self.state(thread="new") == ThreadState(0, 0)

    def test_a_source_whose_entry_has_changed_is_refused(self) -> None:
        """`ConflictError` if `revision` is not that of its entry; nothing is copied."""
        self.fill()
        known = ThreadEntry(THREAD, "active", NOW, NOW)
        for revision in (0, self.entry_revision(known)):
            self.put(entry=known._replace(labels=(f'"{revision}"',)))
            stale = CopyThread(THREAD, "copy", now=NOW, revision=revision)
            self.refuses(stale, ConflictError)
            assert self.state(thread="copy") == ThreadState(0, 0)
        self.backend.commit(CopyThread("nobody", "copy", now=NOW, revision=7))
        (entry,) = self.backend.fetch([ReadEntry(THREAD)])
        self.backend.commit(stale._replace(revision=entry.revision))
        assert len(self.rows("copy").checkpoints) == len(self.rows().checkpoints)

    def entry_revision(self, entry: ThreadEntry) -> int:
        """Set the thread's entry and return its revision."""
        self.put(entry=entry)
        (found,) = self.backend.fetch([ReadEntry(entry.thread)])
        return int(found.revision)

    def test_orphans_alone_are_copied(self) -> None:
        """A source may hold writes and segments alone."""
        self.put(writes=(write(1),), segments=(segment(0),))
        self.backend.commit(CopyThread(THREAD, "copy", now=NOW))
        copy = self.rows("copy")
        assert [w.checkpoint_id for w in copy.orphans] == [uid(1)]
        assert len(copy.segments) == 1
