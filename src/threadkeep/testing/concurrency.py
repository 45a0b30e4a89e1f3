"""The contract of several threads at once. Bounded work, no sleeps."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

from threadkeep.engine.model import HeadFence, ReadCheckpoint, ReadThread
from threadkeep.errors import ConflictError, SegmentTakenError
from threadkeep.testing.records import THREAD, Contract, checkpoint, segment, write

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 4
ROUNDS = 25


class ConcurrencyContract(Contract):
    """Calls are thread-safe; a reply is a consistent view; of rivals one wins."""

    def together(self, work: Callable[[int], int]) -> list[int]:
        """Run `work(worker)` in several threads that start at the same moment."""
        start = Barrier(WORKERS)

        def run(worker: int) -> int:
            start.wait()
            return work(worker)

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(run, range(WORKERS)))

    def test_commits_of_many_threads_all_arrive(self) -> None:
        """Every commit that returned is stored, however many run at once."""

        def work(worker: int) -> int:
            for number in range(ROUNDS):
                key = worker * 1000 + number
                writes = (write(0), write(key))
                self.put(segments=(segment(key),), checkpoints=(checkpoint(key),), writes=writes)
                assert self.stored(key).writes[0].body == b"body %d" % key
            return ROUNDS

        assert sum(self.together(work)) == WORKERS * ROUNDS
        rows = self.rows()
        assert len(rows.checkpoints) == len(rows.segments) == WORKERS * ROUNDS
        shared = [w.seq for w in self.stored(0).writes if w.body == b"body 0"]
        assert shared == sorted(set(shared))

    def test_of_rivals_for_a_head_one_wins(self) -> None:
        """Of commits that expect the same head exactly one succeeds, each time."""
        self.put(checkpoints=(checkpoint(0),))

        def work(worker: int) -> int:
            won = 0
            for _ in range(ROUNDS):
                head = self.head() or ""
                row = checkpoint(_step(head) * 1000 + 1000 + worker, head)
                try:
                    self.put(fences=(HeadFence("", head),), checkpoints=(row,))
                    won += 1
                except ConflictError:
                    pass
            return won

        won = sum(self.together(work))
        rows = [s.row for s in self.rows().checkpoints]
        assert len(rows) == won + 1
        assert [row.parent for row in rows[1:]] == [row.id for row in rows[:-1]]

    def test_of_rivals_for_a_place_one_wins(self) -> None:
        """Of segments for one place exactly one is stored, the others are refused."""

        def work(worker: int) -> int:
            won = 0
            for step in range(ROUNDS):
                try:
                    self.put(segments=(segment(step, data=b"of %d" % worker),))
                    won += 1
                except SegmentTakenError:
                    pass
            return won

        assert sum(self.together(work)) == ROUNDS
        assert len(self.rows().segments) == ROUNDS

    def test_readers_see_whole_commits(self) -> None:
        """One fetch sees no half of a commit within one read."""

        def work(worker: int) -> int:
            if worker == 0:
                for number in range(1, ROUNDS * 4):
                    self.put(
                        segments=(segment(number),),
                        checkpoints=(checkpoint(number, number - 1, key_pos=number),),
                        writes=(write(number), write(number)),
                    )
                return 0
            whole = 0
            for _ in range(ROUNDS * 2):
                state, rows = self.backend.fetch([ReadCheckpoint(THREAD, ""), ReadThread(THREAD)])
                seen = [*rows.checkpoints, *([state.found] if state.found else [])]
                whole += all(s.keyframe and len(s.writes) == 2 for s in seen)
                assert len(rows.segments) == len(rows.checkpoints)
            return whole

        assert sum(self.together(work)) == (WORKERS - 1) * ROUNDS * 2


def _step(key: str) -> int:
    """The thousands of the number that `uid` was given."""
    return (uuid.UUID(key).int >> 64) // 1000
