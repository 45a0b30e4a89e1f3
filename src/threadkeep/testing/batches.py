"""Contract of batches and fences."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from typing import Any

import pytest

from threadkeep._core.engine.model import (
    FREE,
    HIDDEN,
    NESTED,
    Batch,
    DropThread,
    Fence,
    HeadFence,
    ReadCheckpoint,
    RowsFence,
    WritesFence,
)
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep._core.engine.tips import MOST
from threadkeep.errors import (
    ClosedError,
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
)
from threadkeep.testing.records import (
    NOW,
    THREAD,
    Contract,
    bodies,
    checkpoint,
    linked,
    places,
    segment,
    uid,
    write,
)


class BatchContract(Contract):
    """Batches are checked first, then applied in full or not at all."""

    def test_a_checkpoint_replaces_by_namespace_and_id(self) -> None:
        """A checkpoint row replaces the whole row of the same namespace and id."""
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1), checkpoint(2, 1, ns="child")))
        self.put(checkpoints=(checkpoint(2, metadata="{}", flags=FREE),))
        assert self.stored(2).row == checkpoint(2, metadata="{}", flags=FREE)
        assert self.stored(2, ns="child").row == checkpoint(2, 1, ns="child")
        assert self.stored(1).child is None
        assert len(self.rows().checkpoints) == 3

    def test_writes_are_only_ever_added(self) -> None:
        """A write row is added, never replaced, and may come before its checkpoint."""
        self.put(writes=(write(1, seq=99), write(1, seq=-5), write(2)))
        assert self.state(1).found is None
        assert sorted(bodies(self.rows().orphans)) == [b"body 1", b"body 1", b"body 2"]
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, seq=1),))
        assert bodies(self.stored(1).writes) == [b"body 1"] * 3
        assert bodies(self.rows().orphans) == [b"body 2"]
        numbers = [w.seq for w in self.stored(1).writes]  # the store's own ascending numbers
        assert numbers == sorted(set(numbers))
        assert numbers[0] > 0
        assert 99 not in numbers

    def test_writes_of_another_copy_keep_their_numbers(self) -> None:
        """In a `numbered` batch. The numbers of later writes are greater."""
        rows = (write(1, seq=1), write(1, seq=2), write(2, seq=1))
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1)), writes=rows, numbered=True)
        assert [w.seq for w in self.stored(1).writes] == [1, 2]
        assert [w.seq for w in self.stored(2).writes] == [1]
        self.put(writes=(write(1), write(2)))
        assert [w.seq for w in self.stored(1).writes][:2] == [1, 2]
        assert all(len({w.seq for w in self.stored(n).writes}) == 4 - n for n in (1, 2))

    def test_a_dropped_checkpoint_leaves_its_writes(self) -> None:
        """`drop_checkpoints` drops only the named checkpoints, and keeps their writes."""
        self.put(
            checkpoints=(checkpoint(1), checkpoint(2, 1), checkpoint(3, 1)),
            writes=(write(2),),
            segments=(segment(0),),
        )
        self.put(drop_checkpoints=(("", uid(2)), ("", uid(9)), ("absent", uid(1))))
        rows = self.rows()
        assert places(rows.checkpoints) == [("", uid(1)), ("", uid(3))]
        assert bodies(rows.orphans) == [b"body 2"]
        assert len(rows.segments) == 1
        child = self.stored(1).child
        assert child is not None
        assert child.id == uid(3)

    def test_writes_are_dropped_by_seq(self) -> None:
        """`drop_writes` drops the write row of that namespace, checkpoint and `seq`."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, body=b"a"), write(1, body=b"b")))
        first, second = self.stored(1).writes
        absent = (("", uid(1), second.seq + 7), ("child", uid(1), second.seq), ("", uid(2), 1))
        self.put(drop_writes=(("", uid(1), first.seq), *absent))
        assert self.stored(1).writes == (second,)

    def test_writes_are_replaced_by_seq(self) -> None:
        """`replace_writes` changes bytes and path of that row, and ignores unknown rows."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, body=b"a"), write(1, body=b"b")))
        first, second = self.stored(1).writes
        absent = (first._replace(seq=9), first._replace(ns="child"), write(2, body=b"z"))
        new = first._replace(task_path="", body=b"new")
        self.put(replace_writes=(new, *absent))
        self.put(writes=(write(1, body=b"c"),))
        assert bodies(self.stored(1).writes) == [b"new", b"b", b"c"]
        assert self.stored(1).writes[:2] == (new, second)

    def test_hiding_adds_the_flag(self) -> None:
        """`hide_checkpoints` adds the flag HIDDEN, and ignores unknown checkpoints."""
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1, flags=FREE)))
        self.put(hide_checkpoints=(("", uid(2)), ("", uid(2)), ("", uid(9)), ("child", uid(1))))
        assert self.stored(2).row.flags == FREE | HIDDEN
        assert self.stored(1).row.flags == 0
        assert self.head() == uid(1)
        assert self.state(9).found is None

    def test_bump_raises_the_generation(self) -> None:
        """Only `bump_generation` of a batch raises the generation."""
        self.put(segments=(segment(0),), checkpoints=(checkpoint(1),))
        assert self.state().generation == 0
        self.put(drop_segments=((1, 0, 1),), bump_generation=True)
        assert self.state().generation == 1
        self.put(generation=1, bump_generation=True)
        assert self.rows().generation == 2

    def test_a_batch_belongs_to_one_life(self) -> None:
        """A batch of another `life` raises `ThreadDeletedError`. Before a deletion it is 0."""
        assert self.state().life == 0
        fence = HeadFence("", uid(1))
        for _ in range(2):
            self.put(life=0, checkpoints=(checkpoint(1),), fences=(fence,))
        lives = [0]
        for number in (2, 3):
            self.drop()
            lives.append(self.state().life)
            assert self.rows().life == lives[-1]
            for life in (*lives[:-1], lives[-1] + 1):
                batch = Batch(THREAD, NOW + 5, life=life, checkpoints=(checkpoint(9),))
                self.refuses(batch, ThreadDeletedError)
            self.put(life=lives[-1], checkpoints=(checkpoint(number),))
        assert len(set(lives)) == len(lives)
        self.put(checkpoints=(checkpoint(4),))
        assert self.head() == uid(4)
        for kept in ({"entry": ThreadEntry(THREAD, "active", NOW, NOW)}, {"now": 0}):
            self.drop(**kept)
            assert self.state().life == lives[-1]

    def test_a_row_names_its_last_tips(self) -> None:
        """The row names the tips of the last commits. A change without one gets one."""
        assert self.state(thread="new").tips == self.rows("new").tips == ()
        links = [linked() for _ in range(3)]
        for link in links:
            self.put(link=link)
        tips = [link.tip for link in reversed(links)]
        assert [*self.state().tips] == [*self.rows().tips] == tips
        self.put(checkpoints=(checkpoint(1),))
        first, *rest = self.state(1).tips
        assert first > 0
        assert rest == tips
        links = [linked() for _ in range(2 * MOST)]
        for link in links:
            self.put(link=link)
        assert self.state().tips == tuple([link.tip for link in reversed(links)][:MOST])
        end = linked()
        self.drop(link=end)
        assert self.state()[3:5] == self.rows()[-2:] == ((end.tip,), end.tip)

    def test_a_batch_builds_on_tips(self) -> None:
        """A batch or drop whose base the row does not name raises `StaleThreadError`."""
        one = linked()
        self.put(link=one)
        two = linked(one.tip)
        self.put(link=two)
        last = linked(one.tip, two.tip)
        self.put(link=last, checkpoints=(checkpoint(1),))
        for base in ((14,), (two.tip, 14), (14, last.tip)):
            link = linked(*base)
            more = Batch(THREAD, NOW, checkpoints=(checkpoint(2),), link=link)
            self.refuses(more, StaleThreadError)
            self.refuses(more._replace(fences=(HeadFence("", uid(1)),)), StaleThreadError)
            self.refuses(DropThread(THREAD, NOW, link=link), StaleThreadError)
            self.refuses(more._replace(thread="new"), StaleThreadError, thread="new")
        end = linked(last.tip)
        self.drop(link=end)
        assert self.state().tips == (end.tip,)

    def test_the_generation_must_be_the_threads_own(self) -> None:
        """A batch of another `generation` raises `StaleThreadError`. A new thread has 0."""
        stale = Batch(THREAD, NOW, generation=1, segments=(segment(0),), bump_generation=True)
        self.refuses(stale, StaleThreadError)
        assert self.state().generation == 0
        self.put(generation=0, life=0, bump_generation=True)
        for generation in (0, 2, -1):
            self.refuses(stale._replace(generation=generation), StaleThreadError)
        self.commit(stale)

    def test_checks_come_in_order(self) -> None:
        """A batch is checked in this order: `life`, `generation`, fences, segments."""
        self.put(checkpoints=(checkpoint(5),))
        self.drop()
        self.put(segments=(segment(0),), checkpoints=(checkpoint(5),))
        wrong: dict[str, Any] = {
            "life": 1,
            "generation": 99,
            "fences": (HeadFence("", uid(1)),),
            "segments": (segment(0, data=b"other bytes"),),
        }
        for field, error in (
            ("life", ThreadDeletedError),
            ("generation", StaleThreadError),
            ("fences", ConflictError),
            ("segments", SegmentTakenError),
        ):
            self.refuses(Batch(THREAD, NOW, **wrong), error)
            del wrong[field]

    def test_a_refused_batch_changes_nothing(self) -> None:
        """A refused batch changes nothing."""
        self.put(
            checkpoints=(checkpoint(1), checkpoint(2, 1)),
            writes=(write(1), write(2)),
            segments=(segment(0), segment(1), segment(5)),
        )
        seq = self.stored(1).writes[0].seq
        everything: dict[str, Any] = {
            "segments": (segment(0, 2), segment(7), segment(5, data=b"other bytes")),
            "checkpoints": (checkpoint(3, 2), checkpoint(1, metadata="{}")),
            "writes": (write(1), write(3)),
            "drop_segments": ((1, 0, 1), (1, 1, 1)),
            "drop_checkpoints": (("", uid(2)),),
            "drop_writes": (("", uid(1), seq),),
            "hide_checkpoints": (("", uid(1)),),
            "bump_generation": True,
        }
        self.refuses(Batch(THREAD, NOW, **everything), SegmentTakenError)
        everything["segments"] = (segment(7),)
        fenced = Batch(THREAD, NOW, fences=(HeadFence("", uid(1)),), **everything)
        self.refuses(fenced, ConflictError)

    def test_a_retry_is_harmless(self) -> None:
        """A repeated batch adds only its write rows again."""
        batch = Batch(
            *(THREAD, NOW, 0, 0),
            fences=(HeadFence("", uid(1)),),
            segments=(segment(0), segment(1, 4), segment(1, 4)),
            checkpoints=(checkpoint(2, 1), checkpoint(3, 2)),
            writes=(write(2),),
        )
        self.put(checkpoints=(checkpoint(1),))
        self.commit(batch)
        once = self.rows()
        self.commit(batch)
        twice = self.rows()
        assert [s.row for s in twice.checkpoints] == [s.row for s in once.checkpoints]
        assert twice.segments == once.segments
        assert len(once.segments) == 2
        assert set(bodies(self.stored(2).writes)) == {b"body 2"}

    def test_a_closed_backend_refuses_everything(self) -> None:
        """`close` may be called twice. `fetch` and `commit` then raise `ClosedError`."""
        self.put(checkpoints=(checkpoint(1),))
        self.backend.close()
        self.backend.close()
        with pytest.raises(ClosedError):
            self.backend.fetch([ReadCheckpoint(THREAD, "")])
        with pytest.raises(ClosedError):
            self.put(checkpoints=(checkpoint(2),))


HEAD_1 = HeadFence("", uid(1))
EMPTY = HeadFence("", None)
UNSEEN = WritesFence("", uid(1), run=8, seen=0)


class FenceContract(Contract):
    """If a fence does not hold, the batch raises `ConflictError` and changes nothing."""

    def fenced(self, *fences: Fence) -> Batch:
        """A batch with these fences that puts the checkpoint `uid(9)`."""
        return Batch(
            THREAD,
            NOW,
            fences=fences,
            segments=(segment(9),),
            checkpoints=(checkpoint(9),),
            writes=(write(9),),
        )

    @pytest.mark.parametrize(
        ("fence", "rows"),
        [
            (HeadFence("", uid(2)), (checkpoint(1), checkpoint(2, 1))),
            (HeadFence("", uid(5)), (checkpoint(1),)),  # (it need not be there)
            (HEAD_1, (checkpoint(1), checkpoint(8, ns="child"))),
            (HEAD_1, (checkpoint(5, flags=NESTED), checkpoint(6, flags=NESTED | FREE | HIDDEN))),
            (EMPTY, (checkpoint(5, flags=NESTED), checkpoint(1, ns="child"))),
            (EMPTY, (checkpoint(9),)),  # (the batch's own)
        ],
    )
    def test_a_head_holds(self, fence: Fence, rows: tuple[Any, ...]) -> None:
        """`HeadFence` holds if no checkpoint of `ns` without NESTED has an id above `expected`."""
        self.put(checkpoints=rows)
        self.put(thread="thread-2", checkpoints=(checkpoint(8),))
        self.commit(self.fenced(fence))
        assert self.head() == uid(9)

    @pytest.mark.parametrize(
        ("fence", "rows"),
        [
            *[
                (HEAD_1, (checkpoint(2, flags=flags),))
                for flags in (0, FREE, HIDDEN, FREE | HIDDEN)
            ],
            (HEAD_1, (checkpoint(20),)),  # (the batch's own id does not matter)
            (HEAD_1, (checkpoint(9), checkpoint(20))),  # (also if it is stored)
            (HeadFence("child", uid(1)), (checkpoint(9, ns="child"),)),  # (nor does its namespace)
            (EMPTY, (checkpoint(1),)),
            (EMPTY, (checkpoint(0, id=""),)),
        ],
    )
    def test_a_newer_head_conflicts(self, fence: Fence, rows: Any) -> None:
        """`HeadFence` fails on a greater id, also if hidden or forked, and with None on any id."""
        self.put(checkpoints=rows)
        self.refuses(self.fenced(fence), ConflictError)

    @pytest.mark.parametrize("run", [0, 7])
    def test_writes_of_another_run_conflict(self, run: int) -> None:
        """`WritesFence` fails on a write row of another run with a `seq` above `seen`."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, run=run), write(1, run=run)))
        seen = self.stored(1).writes[-1].seq
        self.put(writes=(write(2, run=5),))  # (now the thread's last write is a later one)
        for other in {0, 7, 8} - {run}:
            for last in (0, seen - 1):
                fence = WritesFence("", uid(1), run=other, seen=last)
                self.refuses(self.fenced(fence), ConflictError)
        self.commit(self.fenced(WritesFence("", uid(1), run=8, seen=seen)))
        self.commit(self.fenced(WritesFence("", uid(1), run=run, seen=0)))

    def test_writes_elsewhere_do_not_count(self) -> None:
        """`WritesFence` checks one checkpoint of one namespace and thread, before the batch."""
        self.put(writes=(write(2, run=7), write(1, run=7, ns="child")))
        self.put(thread="thread-2", writes=(write(1, run=7),))
        self.put(fences=(UNSEEN,), writes=(write(1, run=7),))
        self.refuses(self.fenced(UNSEEN), ConflictError)

    def test_all_rows_of_the_thread_count(self) -> None:
        """`RowsFence` holds if the thread has exactly these numbers of checkpoints and writes."""
        self.put(fences=(RowsFence(0, 0),), checkpoints=(checkpoint(1),), writes=(write(1),))
        self.put(
            checkpoints=(checkpoint(2, flags=HIDDEN), checkpoint(1, ns="child")),
            writes=(write(1), write(3, ns="orphan")),
        )
        self.put(thread="thread-2", checkpoints=(checkpoint(1),), writes=(write(1),))
        for counts in ((2, 3), (4, 3), (3, 2), (3, 4), (0, 0)):
            self.refuses(self.fenced(RowsFence(*counts)), ConflictError)
        self.commit(self.fenced(RowsFence(3, 3)))

    def test_every_fence_must_hold(self) -> None:
        """A batch is applied only if all of its fences hold."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, run=7),))
        self.refuses(self.fenced(HEAD_1, UNSEEN), ConflictError)
        self.refuses(self.fenced(UNSEEN, HEAD_1), ConflictError)
        self.commit(self.fenced(HEAD_1, HeadFence("child", None)))
