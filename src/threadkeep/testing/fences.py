"""The contract of fences: when a commit finds the thread as it expects it."""
# ruff: noqa: S101 - tests are made of asserts

from __future__ import annotations

import pytest

from threadkeep.engine.model import (
    FREE,
    HIDDEN,
    NESTED,
    Batch,
    Fence,
    HeadFence,
    RowsFence,
    WritesFence,
)
from threadkeep.errors import ConflictError
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, uid, write


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
