"""Contract of grouped commits, of scrubbing, and of concurrent commits."""
# ruff: noqa: S101, PLR2004 - tests are made of asserts, and numbers are their point

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

from threadkeep._core.engine.heads import Move
from threadkeep._core.engine.model import (
    Batch,
    CopyThread,
    DropThread,
    HeadFence,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
    Segment,
    Span,
)
from threadkeep._core.engine.thread_entry import EntryUpdate, StatusEvent, metadata_label
from threadkeep._stores.base import ScrubReport
from threadkeep.errors import (
    ConflictError,
    SegmentTakenError,
    StaleThreadError,
    ThreadDeletedError,
    ThreadExistsError,
)
from threadkeep.testing.records import (
    NOW,
    THREAD,
    Contract,
    after,
    bodies,
    checkpoint,
    linked,
    segment,
    uid,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from threadkeep._core.engine.model import Change

WORKERS = 4
ROUNDS = 25


def batch(*segments: Segment, thread: str = THREAD, **rows: Any) -> Batch:
    """A batch of these segments and rows."""
    return Batch(thread, NOW, segments=segments, **rows)


def seal(data: bytes, *pieces: tuple[int, int, int]) -> Batch:
    """A batch that replaces pieces with one segment from 0."""
    count = max(start + size for _, start, size in pieces)
    return batch(Segment(1, 0, count, data), drop_segments=pieces)


class GroupContract(Contract):
    """`commit_many` applies its changes in order, each as if it were committed alone."""

    def group(self, *changes: Change) -> list[Any]:
        """Commit the changes together and return the types of the errors."""
        results = self.backend.commit_many(changes)
        return [type(error) if error is not None else None for error in results]

    def test_each_change_of_a_group_is_carried_out(self) -> None:
        """`commit_many` applies each change, and returns an empty list for no change."""
        rows: dict[str, Any] = {"checkpoints": (checkpoint(1),)}
        threads = ("b", "a", "c")
        changes = [batch(segment(0), thread=thread, **rows) for thread in threads]
        assert self.group(*changes) == [None] * 3
        assert [self.head(thread=thread) for thread in threads] == [uid(1)] * 3
        assert self.group(DropThread("a", NOW), CopyThread("b", "d", NOW)) == [None, None]
        assert self.head(thread="a") is None
        assert self.head(thread="d") == uid(1)
        assert self.group() == []

    def test_a_refused_change_leaves_its_neighbours_alone(self) -> None:
        """`commit_many` applies the other changes if one is refused."""
        self.put(segments=(segment(0),), checkpoints=(checkpoint(5),))
        self.put(thread="full", checkpoints=(checkpoint(1),))
        results = self.group(
            batch(generation=7, checkpoints=(checkpoint(6),)),
            batch(thread="new", fences=(HeadFence("", None),), checkpoints=(checkpoint(1),)),
            batch(fences=(HeadFence("", uid(4)),), checkpoints=(checkpoint(7),)),
            CopyThread(THREAD, "full", NOW),
            batch(writes=(write(5),)),
        )
        assert results == [StaleThreadError, None, ConflictError, ThreadExistsError, None]
        assert self.head() == uid(5)
        assert len(self.stored(5).writes) == 1
        assert self.head(thread="new") == uid(1)

    def test_copies_keep_their_place(self) -> None:
        """A copy has the rows of earlier changes, and is refused if one of them made its target."""
        put = [batch(thread=thread, checkpoints=(checkpoint(1),)) for thread in ("b", "z")]
        changes = (put[0], CopyThread("b", "a", NOW), put[1], CopyThread("b", "z", NOW))
        assert self.group(*changes) == [None, None, None, ThreadExistsError]
        assert self.head(thread="a") == uid(1)

    def test_a_large_group(self) -> None:
        """`commit_many` takes groups of any size, also larger than the limits of the store."""
        changes = [batch(thread=f"t{n % 7}", writes=(write(n),)) for n in range(250)]
        assert self.group(*changes) == [None] * 250
        assert sum(len(self.rows(f"t{n}").orphans) for n in range(7)) == 250

    def test_tips_of_a_group(self) -> None:
        """Batches of a group may all build on the commits before it, and have one tip."""
        first = [linked(), linked()]
        made = [batch(thread=name, link=link) for name, link in zip("ab", first, strict=True)]
        assert self.group(*made) == [None, None]
        assert [self.state(thread=name).tips for name in "ab"] == [(link.tip,) for link in first]
        links = [linked(first[0].tip) for _ in range(3)]
        more = [batch(segment(n), thread="a", link=link) for n, link in enumerate(links)]
        late = batch(segment(9), thread="a", link=linked(first[0].tip, 6))
        assert self.group(*more, late) == [None, None, None, StaleThreadError]
        named = self.state(thread="a").tips
        assert named[0] == links[-1].tip
        assert {link.tip for link in (first[0], *links)} == {*named}
        assert self.everything("a") == [segment(n) for n in range(3)]

    # -- batches that only add ---------------------------------------------------------

    def test_refused_additions_leave_their_neighbours_alone(self) -> None:
        """A refused addition stores nothing. Additions to this and other threads are applied."""
        self.put(segments=(segment(0, 4),))
        self.drop("gone")
        results = self.group(
            batch(segment(4), checkpoints=(checkpoint(1),)),
            batch(segment(5), generation=7, writes=(write(1),)),
            batch(segment(0), thread="gone", life=0),
            batch(thread="new", generation=3, checkpoints=(checkpoint(1),)),
            batch(segment(6), segment(3, 2), writes=(write(1),)),
            batch(segment(3, 2), thread="other", checkpoints=(checkpoint(2),)),
            batch(segment(9), thread="gone", life=self.state(thread="gone").life),
            batch(segment(5, data=b"mine"), writes=(write(1, body=b"w"),)),
        )
        assert results == [
            *(None, StaleThreadError, ThreadDeletedError, StaleThreadError, SegmentTakenError),
            *(None, None, None),
        ]
        assert self.everything() == [segment(0, 4), segment(4), segment(5, data=b"mine")]
        assert bodies(self.stored(1).writes) == [b"w"]
        assert self.everything("other") == [segment(3, 2)]
        assert self.everything("gone") == [segment(9)]
        assert "new" not in self.threads(empty=True)

    def test_a_batch_builds_on_the_one_before_it(self) -> None:
        """A batch sees the segments, writes and entry of earlier batches of its group."""
        user = metadata_label("user_id", "u1")
        results = self.group(
            batch(
                segment(0),
                life=0,
                generation=0,
                checkpoints=(checkpoint(1),),
                writes=(write(1, body=b"1"), write(1, body=b"2")),
                touch=EntryUpdate(5, at=NOW, labels=(user,), saves=True),
            ),
            batch(
                segment(1),
                life=0,
                generation=0,
                writes=(write(1),),
                touch=EntryUpdate(7, at=NOW + 9, saves=True, event=StatusEvent("waiting", uid(1))),
            ),
            batch(thread="between"),
            batch(generation=0, checkpoints=(checkpoint(1, manifest=b"again"),)),
        )
        assert results == [None] * 4
        assert self.everything() == [segment(0), segment(1)]
        found = self.stored(1)
        assert bodies(found.writes) == [b"1", b"2", b"body 1"]
        assert len({row.seq for row in found.writes}) == 3
        assert found.row.manifest == b"again"
        entry = self.known()
        assert entry[1:6] == ("active", NOW, NOW + 9, 12, (user,))
        assert (entry.status, entry.status_at) == ("waiting", uid(1))
        over = EntryUpdate(1, whole=True, event=StatusEvent("unfinished", uid(2)))
        assert self.group(batch(touch=over)) == [None]
        entry = self.known()
        assert (entry.size, entry.status, entry.status_at) == (1, "unfinished", None)

    def test_segments_of_one_group_may_not_overlap(self) -> None:
        """A group stores equal segments once, and refuses a later batch that overlaps."""
        same = batch(segment(4, 2))
        over = [segment(5), segment(3, 2), segment(0, 9), segment(4, 2, data=b"other bytes")]
        late = [batch(segment(20 + n), one) for n, one in enumerate(over)]
        apart = batch(segment(6), segment(2, 2), segment(5, log=2))
        results = self.group(same, same, *late, apart, same)
        assert results == [None, None, *[SegmentTakenError] * 4, None, None]
        assert self.everything() == [segment(2, 2), segment(4, 2), segment(6), segment(5, log=2)]

    def test_a_seal_within_a_group(self) -> None:
        """A batch in a group drops segments of earlier batches before it adds its own."""
        self.put(segments=tuple(segment(n) for n in range(4)))
        more = [batch(segment(n)) for n in (4, 5)]
        pieces = [(1, n, 1) for n in range(6)]
        sealed, late = seal(b"sealed", *pieces), seal(b"too late", *pieces[:3])
        results = self.group(*more, sealed, late, batch(segment(6)))
        assert results == [*[None] * 3, SegmentTakenError, None]
        assert self.everything() == [segment(0, 6, data=b"sealed"), segment(6)]
        assert self.group(seal(b"again", (1, 0, 6)), sealed) == [None, SegmentTakenError]
        assert self.segments((1, 0, 6)) == [segment(0, 6, data=b"again")]

    def test_a_refused_seal_drops_nothing(self) -> None:
        """A refused batch drops no segments, neither stored ones nor its group's."""
        self.put(segments=(segment(0), segment(1, 2)))
        sealed = seal(b"sealed", (1, 0, 1), (1, 3, 1), (1, 1, 1))
        assert self.group(batch(segment(3)), sealed) == [None, SegmentTakenError]
        assert self.everything() == [segment(0), segment(1, 2), segment(3)]

    def test_additions_keep_their_place_among_others(self) -> None:
        """In a group, `DropThread` removes rows that were added before it, and no later ones."""
        added = [batch(segment(n), writes=(write(1),)) for n in range(3)]
        old = batch(segment(5), life=0)
        fenced = batch(fences=(HeadFence("", uid(1)),), checkpoints=(checkpoint(2),))
        drop = DropThread(THREAD, NOW)
        results = self.group(added[0], added[1], drop, old, added[2], fenced, added[0])
        assert results == [None, None, None, ThreadDeletedError, None, None, None]
        assert self.everything() == [segment(0), segment(2)]
        assert len(self.rows().orphans) == 2
        assert self.head() == uid(2)

    def test_a_copy_of_a_copy_waits_for_a_late_batch(self) -> None:
        """In a group, copies follow the batches and copies before them."""
        self.put(segments=(segment(0),), checkpoints=(checkpoint(1),))
        late = batch(segment(0, 2), drop_segments=((1, 0, 1), (1, 1, 1)))
        copies = [CopyThread(THREAD, "copy", NOW), CopyThread("copy", "copy of it", NOW)]
        assert self.group(late, *copies) == [None, None, None]
        spans = (Span(1, 0, 9),)
        reads = [ReadSegments("copy", spans), ReadSegments("copy of it", spans)]
        assert self.backend.fetch(reads) == [[segment(0, 2)]] * 2

    def test_a_move_proves_its_head(self) -> None:
        """`make` refuses a move if its head has moved, or a dropped segment is missing.

        It changes nothing then, and makes the other moves. A thread without a row has no tips.
        The store may have lost it.
        """
        self.put(checkpoints=(checkpoint(1),), segments=(segment(0),))
        self.put(thread="other", checkpoints=(checkpoint(1),))
        head, lost = self.row(), self.row("other")._replace(thread="lost")
        added: dict[str, Any] = {"writes": (write(1, seq=7),)}
        for refused in (
            Move(after(head), after(after(head)), **added),
            Move(lost, after(lost), **added),
            Move(head, after(head), (segment(7),), drop_segments=((1, 6, 1),)),
        ):
            before = self.rows(refused.old.thread)
            other = self.row("other")
            made = self.make(refused, Move(other, after(other), checkpoints=(checkpoint(2),)))
            assert made[0] is None, f"The backend made this move; refuse it: {refused}"
            assert made[1] == self.row("other") != other
            assert self.rows(refused.old.thread) == before
            assert self.threads(empty=True) == ["other", THREAD]
        assert self.make(Move(head, after(head), **added)) == [self.row()]

    def test_to_scrub_changes_no_row(self) -> None:
        """`scrub` changes no rows, and gives the same report again when it is repeated."""
        rows: dict[str, Any] = {"checkpoints": (checkpoint(1),), "writes": (write(1),)}
        self.put(segments=(segment(0),), **rows)
        self.put(thread="gone", segments=(segment(0),), **rows)
        self.drop("gone")
        reads = [ReadThread(THREAD), ReadThread("gone")]
        before = self.backend.fetch(reads)
        told = self.backend.scrub(rewrite=False)
        assert isinstance(told, ScrubReport)
        assert all(isinstance(line, str) for line in (*told.cleared, *told.remains))
        assert self.backend.scrub(rewrite=False) == told
        assert self.backend.fetch(reads) == before
        self.put(thread="new", **rows)
        assert len(self.rows("new").checkpoints) == 1


class ConcurrencyContract(Contract):
    """Calls are thread-safe, reads are consistent, and one of several rival commits succeeds."""

    def together(self, work: Callable[[int], int]) -> int:
        """Run `work(worker)` in several threads that start together, and return the sum."""
        start = Barrier(WORKERS)

        def run(worker: int) -> int:
            start.wait()
            return work(worker)

        with ThreadPoolExecutor(WORKERS) as pool:
            return sum(pool.map(run, range(WORKERS)))

    def wins(self, error: type[Exception], **rows: Any) -> bool:
        """Return True if the rows could be put, False if this error was raised."""
        try:
            self.put(**rows)
        except error:
            return False
        return True

    def test_commits_of_many_threads_all_arrive(self) -> None:
        """Every commit that returned is stored, with any number of concurrent commits."""

        def work(worker: int) -> int:
            for number in range(ROUNDS):
                key = worker * 1000 + number
                writes = (write(0), write(key))
                self.put(segments=(segment(key),), checkpoints=(checkpoint(key),), writes=writes)
                assert self.stored(key).writes[0].body == b"body %d" % key
            return ROUNDS

        assert self.together(work) == WORKERS * ROUNDS
        rows = self.rows()
        assert len(rows.checkpoints) == len(rows.segments) == WORKERS * ROUNDS
        shared = [w.seq for w in self.stored(0).writes if w.body == b"body 0"]
        assert shared == sorted(set(shared))

    def test_of_rivals_for_a_head_one_wins(self) -> None:
        """Exactly one of the concurrent commits that expect the same head succeeds."""
        self.put(checkpoints=(checkpoint(0),))

        def work(worker: int) -> int:
            won = 0
            for _ in range(ROUNDS):
                head = self.head() or ""
                step = (uuid.UUID(head).int >> 64) // 1000
                row = checkpoint((step + 1) * 1000 + worker, head)
                fences = (HeadFence("", head),)
                won += self.wins(ConflictError, fences=fences, checkpoints=(row,))
            return won

        won = self.together(work)
        rows = [s.row for s in self.rows().checkpoints]
        assert len(rows) == won + 1
        assert [row.parent for row in rows[1:]] == [row.id for row in rows[:-1]]

    def test_of_rivals_for_a_place_one_wins(self) -> None:
        """Exactly one of the concurrent segments for one position is stored."""

        def work(worker: int) -> int:
            mine = [segment(step, data=b"of %d" % worker) for step in range(ROUNDS)]
            return sum(self.wins(SegmentTakenError, segments=(one,)) for one in mine)

        assert self.together(work) == ROUNDS
        assert len(self.rows().segments) == ROUNDS

    def test_readers_see_whole_commits(self) -> None:
        """A read returns either all rows of a commit or none."""

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

        assert self.together(work) == (WORKERS - 1) * ROUNDS * 2
