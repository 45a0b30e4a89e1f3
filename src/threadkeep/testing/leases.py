"""Contract of `LeaseThread`: one holder at a time runs a thread, and saves under its lease."""
# ruff: noqa: S101 - tests are made of asserts

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest

from threadkeep._core.engine.model import (
    INPUTS_NS,
    Batch,
    CopyThread,
    ForkThread,
    LeaseThread,
)
from threadkeep._core.engine.thread_entry import (
    HELD_UNTIL,
    EntryUpdate,
    ReadClock,
    SearchThreads,
    StatusEvent,
    ThreadEntry,
    ThreadQuery,
)
from threadkeep._core.engine.tips import MOST
from threadkeep.errors import (
    LeaseLostError,
    ThreadLockedError,
)
from threadkeep.testing.records import NOW, THREAD, Contract, checkpoint, linked, uid, write

HOUR = 3_600_000_000
ONE, TWO = "one 1", "two 2"
LeaseState: TypeAlias = tuple[str | None, str | None, int]
"""Holder, kind ("live", "ended", "due", "later", "held" or None) and attempts."""
NONE: LeaseState = (None, None, 0)


class WithLeases(Contract):
    """Changes of leases, and threads that have them."""

    def lease(self, does: str, holder: str = ONE, *, length: int = HOUR, **fields: Any) -> None:
        """Commit a change of the lease. Attempt number 3 is the last one."""
        self.commit(self.change(does, holder, length=length, **fields))

    def change(
        self,
        does: str,
        holder: str = ONE,
        *,
        thread: str = THREAD,
        length: int = HOUR,
        last: int = 0,
    ) -> LeaseThread:
        """A change of the lease."""
        return LeaseThread(thread, does, holder, length, 3, last)

    def known_thread(
        self, thread: str = THREAD, status: str | None = "unfinished", **fields: Any
    ) -> None:
        """Put a thread of one checkpoint that is in the registry."""
        touch = EntryUpdate(saves=True, event=StatusEvent(status, uid(1)))
        self.put(thread=thread, checkpoints=(checkpoint(1),), touch=touch, **fields)

    def clock(self) -> int:
        """The store's time."""
        now: int = self.one(ReadClock(THREAD))
        return now

    def lease_of(self, thread: str = THREAD) -> LeaseState:
        """The lease of a thread, by the store's clock."""
        entry = self.known(thread)
        until, is_free = entry.lease_until, entry.holder is None
        if until is None or until == HELD_UNTIL:
            return entry.holder, None if until is None else "held", entry.attempts
        ends = ("later", "due") if is_free else ("live", "ended")
        return entry.holder, ends[until <= self.clock()], entry.attempts

    def with_lease(self, lease: LeaseState, thread: str = THREAD) -> None:
        """Put a thread with this lease."""
        holder, kind, attempts = lease
        self.known_thread(thread)
        for _ in range(attempts):
            self.lease("take", thread=thread)
            self.lease("fail", thread=thread, length=0)
        if holder is not None:
            self.lease("take", holder, thread=thread, length=0 if kind == "ended" else HOUR)
        elif kind == "due":
            self.lease("ask", thread=thread)  # (or failed)
        assert self.lease_of(thread) == lease


class LeaseContract(WithLeases):
    """Leases are taken, renewed and given back by the store's clock."""

    # -- taking and giving back ------------------------------------------------------

    def test_the_clock_is_the_stores(self) -> None:
        """`ReadClock` returns microseconds since 1970, which do not go back."""
        first, second = self.clock(), self.clock()
        assert first <= second
        assert abs(first - datetime.now(UTC).timestamp() * 1e6) < HOUR / 4

    def test_a_thread_has_one_holder(self) -> None:
        """The change "take" makes the holder until `length` later, and refuses others meanwhile."""
        self.known_thread()
        before = self.clock()
        self.lease("take")
        until = self.known().lease_until
        assert until is not None
        assert before + HOUR <= until <= self.clock() + HOUR
        assert self.lease_of() == (ONE, "live", 0)
        self.refuses(self.change("take", TWO), ThreadLockedError)
        with pytest.raises(ThreadLockedError, match="one runs the thread") as caught:
            self.lease("take", TWO)
        assert ONE not in str(caught.value)  # (its token is no one's business)
        self.lease("take")  # (as its first answer was lost)
        assert self.lease_of() == (ONE, "live", 0)
        self.lease("take", TWO, thread="thread-2")

    def test_of_rivals_for_a_lease_one_wins(self) -> None:
        """Of concurrent holders one takes the thread."""
        self.known_thread()

        def take(number: int) -> bool:
            try:
                self.lease("take", f"worker {number}")
            except ThreadLockedError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(take, range(8)))
        assert sum(won) == 1
        assert self.lease_of() == (f"worker {won.index(True)}", "live", 0)

    def test_of_rivals_in_a_group_the_first_wins(self) -> None:
        """A refused change leaves the others of its group alone."""
        self.known_thread()
        group = [self.change("take"), self.change("take", TWO), self.change("take", thread="other")]
        first, second, third = self.backend.commit_many(group)
        assert (first, third) == (None, None)
        assert isinstance(second, ThreadLockedError)
        assert self.lease_of() == (ONE, "live", 0)

    # -- batches ---------------------------------------------------------------------

    def test_a_guarded_batch_needs_its_holder(self) -> None:
        """A batch with another `guard` than the holder raises `LeaseLostError`."""
        more = Batch(THREAD, NOW, checkpoints=(checkpoint(2, 1),), writes=(write(1),), guard=ONE)
        self.refuses(more, LeaseLostError)
        self.known_thread()
        self.refuses(more, LeaseLostError)
        self.lease("take", TWO)
        self.refuses(more, LeaseLostError)
        self.lease("end", TWO)
        self.lease("take", length=0)
        self.commit(more)  # (no other has taken it)
        assert self.head() == uid(2)
        self.lease("take", TWO)
        self.refuses(more._replace(checkpoints=(checkpoint(3, 2),)), LeaseLostError)
        self.put(checkpoints=(checkpoint(4, 2),))  # (a batch without a guard needs none)

    # -- the thread's row ------------------------------------------------------------

    def test_renewals_leave_the_tips_of_the_run(self) -> None:
        """A renewal that names the `last` one takes its place among the tips."""
        run = linked()
        self.known_thread(link=run)
        last = 0
        for does in ("take", *["renew"] * (2 * MOST + 8)):
            link = linked()
            self.commit(self.change(does, last=last)._replace(link=link))
            last = link.tip
        assert self.state().tips == (last, run.tip)
        self.put(checkpoints=(checkpoint(2, 1),), link=linked(run.tip), guard=ONE)
        assert self.head() == uid(2)
        link = linked()
        self.commit(self.change("renew", last=last)._replace(link=link))  # (it is not the newest)
        assert {link.tip, last, run.tip} <= set(self.state().tips)

    def test_a_dropped_thread_has_no_lease(self) -> None:
        """A dropped thread has no holder. If an entry or rows take its place, the lease stays."""
        self.known_thread()
        self.lease("take")
        entry = ThreadEntry(THREAD, "archived", NOW, NOW)
        rows = Batch(THREAD, NOW, checkpoints=(checkpoint(1),))
        for kept in ({"entry": entry}, {"rows": rows, "entry": entry._replace(state="active")}):
            self.drop(**kept)
            assert self.lease_of() == (ONE, "live", 0)
        self.drop()
        assert (self.known().holder, self.known().lease_until) == (None, None)
        self.refuses(self.change("renew"), LeaseLostError)
        self.refuses(Batch(THREAD, NOW, writes=(write(1),), guard=ONE), LeaseLostError)
        self.lease("take", TWO)
        assert self.known().state == "deleted"  # (a lease makes no thread)

    def test_copies_and_forks_have_no_lease(self) -> None:
        """Neither a copy nor a fork has the lease of its source, which keeps it."""
        self.known_thread()
        self.lease("take")
        before = self.known()
        self.commit(CopyThread(THREAD, "copy", NOW + 1))
        entry = ThreadEntry("fork", "forked", NOW, NOW, origin=(THREAD, uid(1)))
        generation = self.state().generation
        self.commit(ForkThread(THREAD, "fork", NOW, generation, (("", uid(1)),), (), entry))
        assert self.lease_of("copy") == self.lease_of("fork") == NONE
        assert self.known() == before
        self.put(checkpoints=(checkpoint(2, 1),), guard=ONE)
        for thread in ("copy", "fork"):
            wrong = Batch(thread, NOW, checkpoints=(checkpoint(2, 1),), guard=ONE)
            self.refuses(wrong, LeaseLostError, thread=thread)

    def test_a_copy_has_no_stored_inputs(self) -> None:
        """Inputs that are stored in the source stay there, and run once."""
        self.known_thread()
        inputs = checkpoint(3, ns=INPUTS_NS), checkpoint(5, ns=INPUTS_NS)
        self.put(checkpoints=inputs, writes=(write(1),), asks=True)
        self.commit(CopyThread(THREAD, "copy", NOW + 1))
        assert [stored.row for stored in self.rows("copy").checkpoints] == [checkpoint(1)]
        assert len(self.rows("copy").checkpoints[0].writes) == 1
        assert [stored.row for stored in self.rows().checkpoints[1:]] == [*inputs]
        self.lease("take", thread="copy")
        self.lease("end", thread="copy")
        assert self.lease_of("copy") == NONE
        assert self.lease_of() == (None, "due", 0)

    def test_an_entry_that_is_set_keeps_the_lease(self) -> None:
        """`entry=` of a batch does not change the lease."""
        self.known_thread()
        self.lease("take")
        self.put(entry=self.known()._replace(pinned=True, holder=None, lease_until=None))
        assert self.known().pinned
        assert self.lease_of() == (ONE, "live", 0)

    def test_a_lease_of_a_new_thread(self) -> None:
        """A lease alone registers no thread. The holder's first save does."""
        self.lease("take")
        assert self.entry() is None
        self.known_thread(guard=ONE)
        assert self.lease_of() == (ONE, "live", 0)

    def test_leases_outlive_the_backend(self) -> None:
        """Leases are still stored after `close` and reopening."""
        self.with_lease((ONE, "live", 1))
        before = self.known()
        self.start_again()
        assert self.known() == before
        self.put(checkpoints=(checkpoint(2, 1),), guard=ONE)

    # -- searching -------------------------------------------------------------------

    def test_threads_are_found_by_lease(self) -> None:
        """`due` finds threads to resume. "running" and "held" go before any other status."""
        self.known_thread("plain", status=None)
        self.with_lease((ONE, "live", 0), "live")
        self.with_lease((ONE, "ended", 0), "dead")
        self.with_lease((None, "due", 1), "asked")
        self.with_lease((None, "held", 3), "held")
        for status in ("failed", "unfinished", "waiting"):
            for thread, does in ((f"{status} due", "ask"), (f"{status} live", "take")):
                event = StatusEvent(status, uid(1))
                self.put(thread=thread, touch=EntryUpdate(saves=True, event=event))
                self.lease(does, thread=thread)
            touch = EntryUpdate(saves=True, event=StatusEvent(status, uid(1)))
            self.put(thread=f"{status} alone", touch=touch)
        live = {"live", "failed live", "unfinished live", "waiting live"}
        free = ("dead", "asked", "failed due", "unfinished due", "waiting due")
        for now in (self.clock(), self.clock() + 2 * HOUR):
            is_later = now > self.clock() + HOUR
            running = set() if is_later else live
            for query, expected in (
                (ThreadQuery(due=now), {*free, *(live - running)}),
                (ThreadQuery(statuses=("running",)), running),
                (ThreadQuery(statuses=("held",)), {"held"}),
                (ThreadQuery(statuses=("running", "held")), {"held", *running}),
                (ThreadQuery(statuses=("done",)), {"plain"}),
                (
                    ThreadQuery(statuses=("unfinished",)),
                    {"dead", "asked", "unfinished due", "unfinished alone"}
                    | ({"live", "unfinished live"} - running),
                ),
                (
                    ThreadQuery(statuses=("failed", "held")),
                    {"held", "failed due", "failed alone"} | ({"failed live"} - running),
                ),
                (
                    ThreadQuery(statuses=("waiting",), due=now),
                    {"waiting due"} | ({"waiting live"} - running),
                ),
                (ThreadQuery(due=now, size=1), set()),
            ):
                asked = query._replace(now=now)
                read = SearchThreads(asked, "thread", descending=False, after=None, limit=100)
                names = [entry.thread for entry in self.one(read)]
                assert names == sorted(expected), query
                assert self.count(**asked._asdict()) == len(expected), query
        self.drop("asked")
        assert self.count(due=self.clock()) == len(free) - 1
