"""The rule of leases: however workers and clocks interleave, one at a time holds a thread."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core.engine.heads import Head
from threadkeep._core.engine.leases import move_of
from threadkeep._core.engine.model import LeaseThread
from threadkeep._core.engine.rule_reads import ReadNewer
from threadkeep._core.engine.thread_entry import HELD_UNTIL, ReadClock
from threadkeep.errors import HeldError, LeaseLostError, ThreadLockedError

MOST, LENGTH = 3, 10
HOLDERS = ("a 1", "b 2", "c 3")
DOES = ("take", "renew", "end", "yield", "fail", "hold", "release", "ask")


class Step(NamedTuple):
    does: str
    holder: str
    after: int  # time since the step before
    has_inputs: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(DOES),
        st.sampled_from(HOLDERS),
        st.integers(0, 2 * LENGTH),
        st.booleans(),
    ),
    max_size=40,
)


def made(head: Head, step: Step, now: int, tip: int) -> Head:
    """The head after a step; the same one if it is refused."""
    change = LeaseThread("t", step.does, step.holder, LENGTH, MOST)
    rule, replies = move_of(change, lambda _: head, tip), None
    try:
        while True:
            (read,) = next(rule) if replies is None else rule.send(replies)
            if isinstance(read, ReadClock):
                replies = [now]
            else:
                assert isinstance(read, ReadNewer)
                replies = [["an input"] if step.has_inputs else []]
    except StopIteration as stop:
        return head if stop.value is None else stop.value.new
    except ThreadLockedError:
        assert step.does == "take"
        assert is_live(head, now)
        assert head.holder != step.holder
        return head
    except LeaseLostError:
        assert step.does in ("renew", "end", "yield", "fail")
        assert head.holder != step.holder or not is_live(head, now)
        return head
    except HeldError:
        assert step.does == "take"
        is_dead = head.holder not in (None, step.holder) and not is_live(head, now)
        assert head.lease_until == HELD_UNTIL or (is_dead and head.attempts + 1 >= MOST)
        return head


def is_live(head: Head, now: int) -> bool:
    return head.holder is not None and (head.lease_until or 0) > now


@given(STEPS)
def test_one_at_a_time_holds_a_thread(steps: list[Step]) -> None:
    head, now = Head("t", tips=(1,), state="active"), 1_000_000
    for tip, step in enumerate(steps, 2):
        now += step.after
        old, head = head, made(head, step, now, tip)
        assert 0 <= head.attempts <= MOST
        if is_live(old, now) and old.holder != head.holder:
            assert step.holder == old.holder  # (it gave the thread back itself)
            assert step.does in ("end", "yield", "fail")
        if old.lease_until == HELD_UNTIL and old.holder is None:
            assert head == old or step.does == "release"
        if head.holder is not None:
            assert head.lease_until is not None
            assert head.lease_until <= now + LENGTH or head == old
        if head.lease_until == HELD_UNTIL:
            assert head.holder is None
            assert head.attempts >= MOST
        if head is not old:
            kept = {"tips": (), "holder": None, "lease_until": None, "attempts": 0}
            assert head._replace(**kept) == old._replace(**kept)
            assert head.tips == (tip, *old.tips)[:16]
        if step.does == "end" and head is not old:
            assert (head.lease_until is not None) == step.has_inputs
