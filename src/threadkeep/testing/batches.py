"""Contract of batches and their fences."""

from __future__ import annotations

from typing import Any

import pytest

from threadkeep.engine.model import (
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
from threadkeep.errors import (
    ClosedError,
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
)
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, uid, write

# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point


class BatchContract(Contract):
    """Batches: checked first, then carried out, all or nothing."""

    def test_an_empty_batch_is_harmless(self) -> None:
        """A batch without rows changes nothing."""
        self.put()
        assert self.rows().generation == 0
        assert self.head() is None

    def test_a_checkpoint_replaces_by_namespace_and_id(self) -> None:
        """Checkpoint rows replace by (ns, id); parent, flags and all."""
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1), checkpoint(2, 1, ns="child")))
        self.put(checkpoints=(checkpoint(2, metadata="{}", flags=FREE),))
        assert self.stored(2).row == checkpoint(2, metadata="{}", flags=FREE)
        assert self.stored(2, ns="child").row == checkpoint(2, 1, ns="child")
        assert self.stored(1).child is None
        assert len(self.rows().checkpoints) == 3

    def test_writes_are_only_ever_added(self) -> None:
        """Write rows are added, never replaced: the same one twice is two rows."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1), write(1)))
        self.put(writes=(write(1),))
        assert [w.body for w in self.stored(1).writes] == [b"body 1"] * 3

    def test_seq_grows_with_every_row_of_a_checkpoint(self) -> None:
        """`seq` is given at commit and grows with every row; what was put in is ignored."""
        self.put(writes=(write(1, seq=99), write(1, seq=-5), write(2)))
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, seq=1),))
        numbers = [w.seq for w in self.stored(1).writes]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 3
        assert min(numbers) > 0
        assert 99 not in numbers

    def test_writes_may_come_before_their_checkpoint(self) -> None:
        """A write whose checkpoint is not there is an orphan until it is."""
        self.put(writes=(write(1),))
        assert self.state(1).found is None
        assert [w.body for w in self.rows().orphans] == [b"body 1"]
        self.put(checkpoints=(checkpoint(1),))
        assert self.rows().orphans == ()
        assert [w.body for w in self.stored(1).writes] == [b"body 1"]

    def test_a_dropped_checkpoint_leaves_its_writes(self) -> None:
        """`drop_checkpoints` drops checkpoints alone, and only those named."""
        self.put(
            checkpoints=(checkpoint(1), checkpoint(2, 1), checkpoint(1, ns="child")),
            writes=(write(1),),
            segments=(segment(0),),
        )
        self.put(drop_checkpoints=(("", uid(1)), ("", uid(9)), ("absent", uid(2))))
        rows = self.rows()
        assert [(s.row.ns, s.row.id) for s in rows.checkpoints] == [("", uid(2)), ("child", uid(1))]
        assert [w.body for w in rows.orphans] == [b"body 1"]
        assert len(rows.segments) == 1

    def test_a_dropped_child_is_no_child(self) -> None:
        """`child` follows what is there."""
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1), checkpoint(3, 1)))
        self.put(drop_checkpoints=(("", uid(2)),))
        child = self.stored(1).child
        assert child is not None
        assert child.id == uid(3)

    def test_writes_are_dropped_by_seq(self) -> None:
        """`drop_writes` drops the row of that namespace, checkpoint and `seq`."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, body=b"a"), write(1, body=b"b")))
        first, second = self.stored(1).writes
        absent = (("", uid(1), second.seq + 7), ("child", uid(1), second.seq), ("", uid(2), 1))
        self.put(drop_writes=(("", uid(1), first.seq), *absent))
        assert self.stored(1).writes == (second,)

    def test_hiding_adds_the_flag(self) -> None:
        """`hide_checkpoints` flags what is there; the absent is harmless."""
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1, flags=FREE)))
        self.put(hide_checkpoints=(("", uid(2)), ("", uid(2)), ("", uid(9)), ("child", uid(1))))
        assert self.stored(2).row.flags == FREE | HIDDEN
        assert self.stored(1).row.flags == 0
        assert self.head() == uid(1)
        assert self.state(9).found is None

    def test_bump_raises_the_generation(self) -> None:
        """`bump` raises the generation; nothing else of a batch does."""
        self.put(segments=(segment(0),), checkpoints=(checkpoint(1),))
        assert self.state().generation == 0
        self.put(drop_segments=((1, 0, 1),), bump=True)
        assert self.state().generation == 1
        self.put(generation=1, bump=True)
        assert self.rows().generation == 2

    def test_born_must_be_after_the_tombstone(self) -> None:
        """`born` must be greater than `deleted_at`, else `ThreadDeletedError`."""
        fence = HeadFence("", uid(1))
        for born in (1, 0, -5):  # never deleted: any time will do
            self.put(born=born, checkpoints=(checkpoint(1),))
            self.put(born=born, checkpoints=(checkpoint(1),), fences=(fence,))
        self.backend.commit(DropThread(THREAD, now=NOW))
        for born in (1, NOW):
            batch = Batch(THREAD, NOW + 5, born=born, checkpoints=(checkpoint(2),))
            self.refuses(batch, ThreadDeletedError)
        self.put(born=NOW + 1, checkpoints=(checkpoint(3),))
        self.put(checkpoints=(checkpoint(4),))
        assert self.head() == uid(4)

    @pytest.mark.parametrize("generation", [0, 2, -1])
    def test_the_generation_must_be_the_threads_own(self, generation: int) -> None:
        """Another `generation` than the thread's own is a `StaleThreadError`."""
        self.put(bump=True)
        batch = Batch(THREAD, NOW, generation=generation, segments=(segment(0),))
        self.refuses(batch, StaleThreadError)
        self.put(generation=1, segments=(segment(0),))

    def test_an_unknown_thread_is_of_generation_0(self) -> None:
        """A thread that is not there yet has generation 0."""
        batch = Batch("new", NOW, generation=1, checkpoints=(checkpoint(1),))
        self.refuses(batch, StaleThreadError, thread="new")
        self.put(thread="new", generation=0, born=1, checkpoints=(checkpoint(1),))
        assert self.head(thread="new") == uid(1)

    def test_checks_come_in_order(self) -> None:
        """`born` is checked first, then `generation`, then fences, then segments."""
        self.put(checkpoints=(checkpoint(5),))
        self.backend.commit(DropThread(THREAD, now=NOW))
        self.put(segments=(segment(0),), checkpoints=(checkpoint(5),))
        wrong: dict[str, Any] = {
            "born": NOW,
            "generation": 99,
            "fences": (HeadFence("", uid(1)),),
            "segments": (segment(0, data=b"other bytes"),),
        }
        for field, error in (
            ("born", ThreadDeletedError),
            ("generation", StaleThreadError),
            ("fences", ConflictError),
            ("segments", SegmentTakenError),
        ):
            self.refuses(Batch(THREAD, NOW, **wrong), error)
            del wrong[field]

    def test_a_refused_batch_changes_nothing(self) -> None:
        """All or nothing, whatever else the batch holds."""
        self.put(
            checkpoints=(checkpoint(1), checkpoint(2, 1)),
            writes=(write(1), write(2)),
            segments=(segment(0), segment(5)),
        )
        seq = self.stored(1).writes[0].seq
        everything: dict[str, Any] = {
            "segments": (segment(7), segment(5, data=b"other bytes")),
            "checkpoints": (checkpoint(3, 2), checkpoint(1, metadata="{}")),
            "writes": (write(1), write(3)),
            "drop_segments": ((1, 0, 1),),
            "drop_checkpoints": (("", uid(2)),),
            "drop_writes": (("", uid(1), seq),),
            "hide_checkpoints": (("", uid(1)),),
            "bump": True,
        }
        self.refuses(Batch(THREAD, NOW, **everything), SegmentTakenError)
        everything["segments"] = (segment(7),)
        fenced = Batch(THREAD, NOW, fences=(HeadFence("", uid(1)),), **everything)
        self.refuses(fenced, ConflictError)

    def test_a_refused_first_batch_leaves_no_thread(self) -> None:
        """A batch that is refused does not bring its thread into being."""
        taken = (segment(0, 2), segment(1, 2))
        batch = Batch("new", NOW, segments=taken, checkpoints=(checkpoint(1),), bump=True)
        self.refuses(batch, SegmentTakenError, thread="new")
        assert self.state(thread="new").generation == 0

    def test_a_retry_is_harmless(self) -> None:
        """A commit done twice is as good as once, but for write rows, which are twice there."""
        batch = Batch(
            THREAD,
            NOW,
            generation=0,
            born=1,
            fences=(HeadFence("", uid(1)),),
            segments=(segment(0),),
            checkpoints=(checkpoint(2, 1),),
            writes=(write(2),),
        )
        self.put(checkpoints=(checkpoint(1),))
        self.backend.commit(batch)
        once = self.rows()
        self.backend.commit(batch)
        twice = self.rows()
        assert [s.row for s in twice.checkpoints] == [s.row for s in once.checkpoints]
        assert twice.segments == once.segments
        assert {w.body for w in self.stored(2).writes} == {b"body 2"}

    def test_a_closed_backend_refuses_everything(self) -> None:
        """`close` may be called twice; later calls raise `ClosedError`."""
        self.put(checkpoints=(checkpoint(1),))
        self.backend.close()
        self.backend.close()
        with pytest.raises(ClosedError):
            self.backend.fetch([ReadCheckpoint(THREAD, "")])
        with pytest.raises(ClosedError):
            self.put(checkpoints=(checkpoint(2),))


# ruff: noqa: S101 - tests are made of asserts


class FenceContract(Contract):
    """Fences: hold, or a `ConflictError` and nothing has changed."""

    def fenced(self, *fences: Fence, number: int = 9) -> Batch:
        """A batch with these fences that puts checkpoint `number`."""
        return Batch(
            THREAD,
            NOW,
            fences=fences,
            segments=(segment(number),),
            checkpoints=(checkpoint(number),),
            writes=(write(number),),
        )

    # -- head fences -----------------------------------------------------------------

    def test_the_expected_head_holds(self) -> None:
        """Holds if no checkpoint of the namespace has an id greater than `expected`."""
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1)))
        self.backend.commit(self.fenced(HeadFence("", uid(2))))
        assert self.head() == uid(9)

    @pytest.mark.parametrize("flags", [0, FREE, HIDDEN, FREE | HIDDEN])
    def test_a_newer_head_conflicts(self, flags: int) -> None:
        """A greater id conflicts, hidden or of a fork, even below the batch's own."""
        self.put(checkpoints=(checkpoint(1), checkpoint(2, 1, flags=flags)))
        self.refuses(self.fenced(HeadFence("", uid(1))), ConflictError)

    def test_a_greater_id_than_the_batchs_own_conflicts(self) -> None:
        """The batch's own id does not matter: greater than `expected` is enough."""
        self.put(checkpoints=(checkpoint(20),))
        self.refuses(self.fenced(HeadFence("", uid(1)), number=9), ConflictError)

    def test_the_batchs_own_checkpoints_do_not_count(self) -> None:
        """Not counted are the batch's own checkpoints: a retry is harmless."""
        batch = Batch(
            THREAD,
            NOW,
            fences=(HeadFence("", uid(1)),),
            checkpoints=(checkpoint(2, 1), checkpoint(3, 2)),
        )
        self.put(checkpoints=(checkpoint(1),))
        for _ in range(2):
            self.backend.commit(batch)
        assert self.head() == uid(3)

    def test_own_checkpoints_of_another_namespace_count(self) -> None:
        """An id of the batch's own in another namespace is not the one stored here."""
        self.put(checkpoints=(checkpoint(9),))
        batch = Batch(
            THREAD, NOW, fences=(HeadFence("", uid(1)),), checkpoints=(checkpoint(9, ns="child"),)
        )
        self.refuses(batch, ConflictError)

    @pytest.mark.parametrize("expected", [None, uid(1)])
    def test_nested_checkpoints_do_not_count(self, expected: str | None) -> None:
        """Not counted are checkpoints flagged NESTED, with other flags or alone."""
        rows = [checkpoint(5, flags=NESTED), checkpoint(6, flags=NESTED | FREE | HIDDEN)]
        self.put(checkpoints=tuple(rows))
        self.backend.commit(self.fenced(HeadFence("", expected)))
        assert self.head() == uid(9)
        self.refuses(self.fenced(HeadFence("", expected), number=10), ConflictError)

    def test_none_expects_an_empty_namespace(self) -> None:
        """`expected` None: the namespace has no such checkpoint at all."""
        self.put(checkpoints=(checkpoint(1, ns="child"),), writes=(write(1),))
        self.backend.commit(self.fenced(HeadFence("", None)))
        self.refuses(self.fenced(HeadFence("", None), number=10), ConflictError)

    def test_smallest_ids_count_for_none(self) -> None:
        """Any id conflicts with None, the empty one too."""
        self.put(checkpoints=(checkpoint(0, id=""),))
        self.refuses(self.fenced(HeadFence("", None)), ConflictError)

    def test_expected_need_not_be_there(self) -> None:
        """Only greater ids are asked for: `expected` itself may be gone."""
        self.put(checkpoints=(checkpoint(1),))
        self.backend.commit(self.fenced(HeadFence("", uid(5))))
        assert self.head() == uid(9)

    def test_other_namespaces_and_threads_do_not_count(self) -> None:
        """A fence looks at its own namespace of its own thread."""
        self.put(checkpoints=(checkpoint(1), checkpoint(8, ns="child")))
        self.put(thread="thread-2", checkpoints=(checkpoint(8),))
        self.backend.commit(self.fenced(HeadFence("", uid(1))))
        assert self.head() == uid(9)

    # -- writes fences ---------------------------------------------------------------

    def test_writes_of_another_run_conflict(self) -> None:
        """Conflicts with a write row of another run and a greater `seq` than seen."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, run=7),))
        (seen,) = (w.seq for w in self.stored(1).writes)
        self.refuses(self.fenced(WritesFence("", uid(1), run=8, seen=seen - 1)), ConflictError)
        self.refuses(self.fenced(WritesFence("", uid(1), run=0, seen=seen - 1)), ConflictError)
        self.backend.commit(self.fenced(WritesFence("", uid(1), run=8, seen=seen)))

    @pytest.mark.parametrize("run", [0, 7])
    def test_writes_of_the_own_run_do_not_count(self, run: int) -> None:
        """A run's own write rows are no conflict, seen or not."""
        self.put(writes=(write(1, run=run), write(1, run=run)))
        self.backend.commit(self.fenced(WritesFence("", uid(1), run=run, seen=0)))
        other = 8 if run else 1
        self.refuses(self.fenced(WritesFence("", uid(1), run=other, seen=0)), ConflictError)

    def test_writes_elsewhere_do_not_count(self) -> None:
        """A fence looks at one checkpoint of one namespace of one thread."""
        self.put(writes=(write(2, run=7), write(1, run=7, ns="child")))
        self.put(thread="thread-2", writes=(write(1, run=7),))
        self.backend.commit(self.fenced(WritesFence("", uid(1), run=8, seen=0)))

    def test_the_batchs_own_writes_do_not_count(self) -> None:
        """A fence is checked before the batch's own rows are there."""
        batch = Batch(
            THREAD, NOW, fences=(WritesFence("", uid(1), 8, 0),), writes=(write(1, run=7),)
        )
        self.backend.commit(batch)

    # -- rows fences -----------------------------------------------------------------

    def test_all_rows_of_the_thread_count(self) -> None:
        """Holds if the thread has exactly this many checkpoint rows and write rows."""
        self.backend.commit(self.fenced(RowsFence(0, 0), number=1))
        self.put(
            checkpoints=(checkpoint(2, flags=HIDDEN), checkpoint(1, ns="child")),
            writes=(write(1), write(3, ns="orphan")),
        )
        self.put(thread="thread-2", checkpoints=(checkpoint(1),), writes=(write(1),))
        for counts in ((2, 3), (4, 3), (3, 2), (3, 4), (0, 0)):
            self.refuses(self.fenced(RowsFence(*counts)), ConflictError)
        self.backend.commit(self.fenced(RowsFence(3, 3)))

    def test_every_fence_must_hold(self) -> None:
        """Each fence must hold, whichever comes first."""
        self.put(checkpoints=(checkpoint(1),), writes=(write(1, run=7),))
        holds, fails = HeadFence("", uid(1)), WritesFence("", uid(1), run=8, seen=0)
        self.refuses(self.fenced(holds, fails), ConflictError)
        self.refuses(self.fenced(fails, holds), ConflictError)
        self.backend.commit(self.fenced(holds, HeadFence("child", None)))
