"""The contract of `commit_many`, for backends that have it."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from threadkeep.engine.model import Batch, CopyThread, DropThread, HeadFence
from threadkeep.errors import ConflictError, StaleThreadError, ThreadExistsError
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, segment, uid, write

if TYPE_CHECKING:
    from threadkeep.engine.model import Change


class GroupContract(Contract):
    """Several changes at once: each as if it came alone, after those before it."""

    def group(self, *changes: Change) -> list[Any]:
        """Carry out the changes together; the types of the refusals."""
        commit_many = getattr(self.backend, "commit_many", None)
        if commit_many is None:
            pytest.skip("this backend has no commit_many")
        return [type(error) if error is not None else None for error in commit_many(changes)]

    def test_each_change_of_a_group_is_carried_out(self) -> None:
        """`commit_many` carries out each change."""
        rows: dict[str, Any] = {"segments": (segment(0),), "checkpoints": (checkpoint(1),)}
        threads = ("b", "a", "c")
        assert self.group(*(Batch(thread, NOW, **rows) for thread in threads)) == [None] * 3
        assert [self.head(thread=thread) for thread in threads] == [uid(1)] * 3
        assert self.group(DropThread("a", NOW), CopyThread("b", "d", NOW)) == [None, None]
        assert self.head(thread="a") is None
        assert self.head(thread="d") == uid(1)

    def test_no_changes_no_results(self) -> None:
        """For no changes there is no result."""
        assert self.group() == []

    def test_changes_of_one_thread_keep_their_order(self) -> None:
        """In order: each change finds what the one before it left."""
        first = Batch(THREAD, NOW, checkpoints=(checkpoint(1),), writes=(write(1, body=b"1"),))
        fenced = Batch(
            THREAD, NOW, fences=(HeadFence("", uid(1)),), checkpoints=(checkpoint(2, 1),)
        )
        last = Batch(THREAD, NOW, writes=(write(1, body=b"2"),))
        assert self.group(first, fenced, last) == [None, None, None]
        assert [w.body for w in self.stored(1).writes] == [b"1", b"2"]
        assert self.head() == uid(2)

    def test_a_refused_change_leaves_its_neighbours_alone(self) -> None:
        """A change that is refused changes nothing, and the others are carried out."""
        self.put(segments=(segment(0),), checkpoints=(checkpoint(5),))
        self.put(thread="full", checkpoints=(checkpoint(1),))
        stale = Batch(THREAD, NOW, generation=7, checkpoints=(checkpoint(6),))
        late = Batch(THREAD, NOW, fences=(HeadFence("", uid(4)),), checkpoints=(checkpoint(7),))
        new = Batch("new", NOW, fences=(HeadFence("", None),), checkpoints=(checkpoint(1),))
        copy = CopyThread(THREAD, "full", NOW)
        results = self.group(stale, new, late, copy, Batch(THREAD, NOW, writes=(write(5),)))
        assert results == [StaleThreadError, None, ConflictError, ThreadExistsError, None]
        assert self.head() == uid(5)
        assert len(self.stored(5).writes) == 1
        assert self.head(thread="new") == uid(1)

    def test_copies_keep_their_place(self) -> None:
        """In order: a copy has what was put before it, and is refused where its target was."""
        put = [Batch(thread, NOW, checkpoints=(checkpoint(1),)) for thread in ("b", "z")]
        changes = (put[0], CopyThread("b", "a", NOW), put[1], CopyThread("b", "z", NOW))
        assert self.group(*changes) == [None, None, None, ThreadExistsError]
        assert self.head(thread="a") == uid(1)

    def test_a_large_group(self) -> None:
        """Groups may be larger than whatever a store does at once."""
        changes = [Batch(f"t{n % 7}", NOW, writes=(write(n),)) for n in range(250)]
        assert self.group(*changes) == [None] * 250
        assert sum(len(self.rows(f"t{n}").orphans) for n in range(7)) == 250
