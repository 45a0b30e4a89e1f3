"""The rule of leases, which all databases share: what each change of a lease leads to."""

from typing import Any

import pytest

from threadkeep._core.engine.model import INPUTS_NS, OWN_NS, Batch
from threadkeep._core.engine.thread_entry import EntryFence, ThreadEntry
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import HeldError, LeaseLostError, StaleThreadError, ThreadDeletedError
from threadkeep.testing.leases import HOUR, NONE, ONE, TWO, LeaseState, WithLeases
from threadkeep.testing.records import NOW, THREAD, checkpoint, linked, uid, write


class TestLeases(WithLeases):
    def new_backend(self, folder: Any) -> MemoryBackend:
        return MemoryBackend()

    @pytest.mark.parametrize(
        ("does", "old", "new"),
        [
            ("take", NONE, (ONE, "live", 0)),
            ("take", (None, "due", 2), (ONE, "live", 2)),
            ("take", (TWO, "ended", 1), (ONE, "live", 2)),
            ("take", (ONE, "ended", 1), (ONE, "live", 1)),
            ("renew", (ONE, "live", 1), (ONE, "live", 1)),
            ("end", (ONE, "live", 2), NONE),
            ("end", (ONE, "ended", 0), NONE),
            ("yield", (ONE, "live", 2), (None, "due", 2)),
            ("yield", (ONE, "ended", 0), (None, "due", 0)),
            ("fail", (ONE, "live", 1), (None, "later", 2)),
            ("fail", (ONE, "live", 2), (None, "held", 3)),
            ("hold", (TWO, "ended", 2), (None, "held", 3)),
            ("release", (None, "held", 3), (None, "due", 0)),
            ("free", (None, "held", 3), (None, "due", 0)),
            ("free", (None, "due", 2), (None, "due", 0)),
            ("free", (TWO, "live", 1), (None, "due", 0)),
            ("free", (TWO, "ended", 1), (None, "due", 0)),
            ("ask", NONE, (None, "due", 0)),
        ],
    )
    def test_a_lease_changes(self, does: str, old: LeaseState, new: LeaseState) -> None:
        """Each change of a lease leads to the holder, end and attempts that `LeaseThread` names."""
        self.with_lease(old)
        self.lease(does)
        assert self.lease_of() == new

    @pytest.mark.parametrize(
        ("does", "old"),
        [
            ("hold", NONE),
            ("hold", (TWO, "live", 2)),
            ("hold", (TWO, "ended", 1)),
            ("hold", (None, "due", 2)),
            ("release", NONE),
            ("release", (None, "due", 2)),
            ("release", (TWO, "live", 1)),
            ("free", NONE),
            ("ask", (TWO, "live", 1)),
            ("ask", (TWO, "ended", 1)),
            ("ask", (None, "due", 2)),
            ("ask", (None, "held", 3)),
        ],
    )
    def test_other_leases_stay(self, does: str, old: LeaseState) -> None:
        """The changes "hold", "release", "free" and "ask" leave other leases unchanged."""
        self.with_lease(old)
        before = self.known()
        self.lease(does)
        assert self.known() == before

    @pytest.mark.parametrize("does", ["renew", "end", "yield", "fail"])
    @pytest.mark.parametrize("old", [NONE, (TWO, "live", 0), (TWO, "ended", 0), (None, "held", 3)])
    def test_a_lease_of_another_is_lost(self, does: str, old: LeaseState) -> None:
        """The changes of a holder raise `LeaseLostError` if another one holds the thread."""
        self.with_lease(old)
        before = self.known()
        self.refuses(self.change(does), LeaseLostError)
        assert self.known() == before

    def test_an_ended_lease_is_not_renewed(self) -> None:
        """The change "renew" raises `LeaseLostError` after the end of the lease."""
        self.with_lease((ONE, "ended", 0))
        self.refuses(self.change("renew"), LeaseLostError)

    def test_a_renewed_lease_ends_later(self) -> None:
        """A lease that is renewed ends `length` after the renewal."""
        self.known_thread()
        self.lease("take")
        before = self.clock()
        self.lease("renew", length=2 * HOUR)
        until = self.known().lease_until
        assert until is not None
        assert before + 2 * HOUR <= until <= self.clock() + 2 * HOUR

    def test_the_last_attempt_holds_the_thread(self) -> None:
        """After attempt number `most`, "take" raises `HeldError` until the thread is released."""
        self.with_lease((TWO, "ended", 2))
        self.refuses(self.change("take"), HeldError)
        assert self.lease_of() == (TWO, "ended", 2)
        self.lease("hold")
        for does in ("take", "hold", "ask"):
            if does == "take":
                self.refuses(self.change("take"), HeldError)
            else:
                self.lease(does)
            assert self.lease_of() == (None, "held", 3)
        self.lease("release")
        self.lease("take")
        assert self.lease_of() == (ONE, "live", 0)

    def test_a_death_before_anything_is_saved_is_no_attempt(self) -> None:
        """Of a thread that was only created, or never existed."""
        for number in range(4):
            self.lease("take", f"dead {number}", length=0)
        self.put(entry=ThreadEntry(THREAD, "created", NOW, NOW))
        for number in range(4):
            self.lease("take", f"dead {number}", length=0)
        self.lease("take")
        assert self.lease_of() == (ONE, "live", 0)

    def test_the_guard_comes_after_the_life(self) -> None:
        """A batch is checked in this order: `life`, `guard`, `generation`."""
        self.known_thread()
        wrong: dict[str, Any] = {"life": 1, "guard": ONE, "generation": 9}
        for field, error in (
            ("life", ThreadDeletedError),
            ("guard", LeaseLostError),
            ("generation", StaleThreadError),
        ):
            self.refuses(Batch(THREAD, NOW, **wrong), error)
            del wrong[field]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (NONE, (None, "due", 0)),
            ((ONE, "live", 1), (ONE, "live", 1)),
            ((ONE, "ended", 1), (ONE, "ended", 1)),
            ((None, "held", 3), (None, "held", 3)),
        ],
    )
    def test_a_batch_asks(self, old: LeaseState, new: LeaseState) -> None:
        """After a batch that `asks`, a thread without a holder is due."""
        self.with_lease(old)
        self.put(checkpoints=(checkpoint(1, ns=INPUTS_NS),), asks=True)
        assert self.lease_of() == new

    def test_stored_inputs_keep_a_thread_due(self) -> None:
        """After "end", a thread that has stored inputs is due."""
        self.known_thread()
        self.lease("take")
        self.put(checkpoints=(checkpoint(3, ns=INPUTS_NS), checkpoint(5, ns=INPUTS_NS)), asks=True)
        self.put(
            checkpoints=(checkpoint(4, 1),), drop_checkpoints=((INPUTS_NS, uid(3)),), guard=ONE
        )
        self.lease("end")
        assert self.lease_of() == (None, "due", 0)
        self.lease("take")
        self.put(
            checkpoints=(checkpoint(6, 4),), drop_checkpoints=((INPUTS_NS, uid(5)),), guard=ONE
        )
        self.lease("end")
        assert self.lease_of() == NONE

    @pytest.mark.parametrize(
        ("does", "new"), [("yield", (None, "due", 0)), ("fail", (None, "later", 1))]
    )
    def test_an_input_that_no_run_has_taken_stays_due(self, does: str, new: LeaseState) -> None:
        """Also if the holder stops before it has saved anything, and no node runs next."""
        self.known_thread(status=None)
        self.put(checkpoints=(checkpoint(3, ns=INPUTS_NS),))
        self.lease("take")
        self.lease(does)
        assert self.lease_of() == new

    @pytest.mark.parametrize(
        ("status", "new"),
        [("unfinished", (None, "due", 0)), ("failed", (None, "due", 0)), (None, NONE)],
    )
    def test_a_run_that_the_store_has_lost_is_due(
        self, status: str | None, new: LeaseState
    ) -> None:
        """After "end", if the thread's row does not name the tips of the link."""
        run, lost = linked(), linked()
        self.known_thread(status=status, link=run)
        for link, expected in ((linked(run.tip), NONE), (linked(lost.tip), new)):
            self.lease("take")
            self.commit(self.change("end")._replace(link=link))
            assert self.lease_of() == expected

    @pytest.mark.parametrize("does", ["yield", "fail"])
    def test_a_thread_that_is_done_is_not_due(self, does: str) -> None:
        """A holder that stops leaves nothing to resume, if no node runs next."""
        self.known_thread(status=None)
        self.lease("take")
        self.lease(does)
        assert self.lease_of() == NONE

    def test_progress_clears_the_attempts(self) -> None:
        """Attempts are counted since the last checkpoint of the graph. Other rows are none."""
        self.with_lease((ONE, "live", 2))
        self.put(writes=(write(1),), guard=ONE)
        self.put(checkpoints=(checkpoint(3, ns=INPUTS_NS),))
        self.put(checkpoints=(checkpoint(3, ns=f"{OWN_NS}partial"),), guard=ONE)
        assert self.lease_of() == (ONE, "live", 2)
        self.put(checkpoints=(checkpoint(2, 1),), guard=ONE)
        assert self.lease_of() == (ONE, "live", 0)

    def test_a_lease_changes_nothing_else(self) -> None:
        """Rows, generation and the revision of the entry stay, and so do size and times."""
        self.known_thread()
        before, rows = self.known(), self.rows()
        for does in ("ask", "take", "renew", "fail", "take", "end"):
            self.lease(does)
        after = self.known()
        assert after == before
        assert self.rows()._replace(tips=rows.tips) == rows
        self.put(fences=(EntryFence(before.revision),), generation=0, life=0)

    @pytest.mark.parametrize(
        ("does", "new"),
        [
            ("take", (ONE, "live", 1)),
            ("renew", (ONE, "live", 1)),
            ("end", NONE),
            ("yield", (None, "due", 1)),
            ("fail", (None, "later", 2)),
        ],
    )
    def test_a_repeated_change_is_made_once(self, does: str, new: LeaseState) -> None:
        """A change that comes again with the same tip, as its answer was lost, does nothing."""
        self.with_lease((None, "due", 1) if does == "take" else (ONE, "live", 1))
        change = self.change(does)._replace(link=linked())
        self.commit(change)
        self.commit(change)
        assert self.lease_of() == new
