"""Which threads are worth keeping at hand: the decision alone."""

import os
from datetime import timedelta

import pytest

from threadkeep.cache import (
    HotTier,
    lru,
)
from threadkeep.cache.lru import (
    KEEP,
    Admission,
    Fresh,
    Verdict,
)
from threadkeep.engine.model import Batch, ReadCheckpoint, Segment
from threadkeep.errors import InvalidArgumentError
from threadkeep.testing.records import NOW, checkpoint, uid, write

SECOND = 1_000_000
FIRST = Verdict(keep=True, anew=True)
NOTHING = Verdict(keep=False)
LET_GO = Verdict(keep=False, let_go=True)
BEGIN_AGAIN = Verdict(keep=True, anew=True, let_go=True)
ANY = {"max_bytes": None, "max_age": None, "min_reads": None}


class Clock:
    """A clock that is turned by hand."""

    def __init__(self):
        self.now = NOW / SECOND

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def decide(clock):
    def make(**limits):
        return Admission(HotTier(**{**ANY, **limits}), clock)

    return make


def seg(size=100, start=0):
    return Segment(1, start, 1, b"x" * size)


def met(rule, thread="t", ts=NOW, key=None):
    """A head was read, or the checkpoint `key`."""
    return rule.met(ReadCheckpoint(thread, "", key), checkpoint(1, ts=ts))


def read(rule, size=100, *, fetched=None, thread="t", generation=1):
    """A read has found so many bytes, of which so many came from the store."""
    fresh = seg(size if fetched is None else fetched)
    return rule.read(Fresh(thread, generation, [fresh]), [seg(size)])


def load(rule, size=100, **more):
    met(rule, more.get("thread", "t"))
    return read(rule, size, **more)


def stored(rule, size=100, thread="t", generation=1, **rows):
    return rule.stored(Batch(thread, NOW, generation, segments=(seg(size),), **rows))


# -- what can be said --------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        {"max_bytes": 0},
        {"max_bytes": 1.5},
        {"max_bytes": True},
        {"max_bytes": "1 MB"},
        {"max_age": 0},
        {"max_age": -1},
        {"max_age": float("nan")},
        {"max_age": "1h"},
        {"max_age": timedelta(0)},
        {"max_age": True},
        {"min_reads": -1},
        {"min_reads": 2.0},
        {"min_reads": False},
    ],
)
def test_limits_without_meaning_are_refused(limits):
    (name,) = limits
    with pytest.raises(InvalidArgumentError, match=name):
        HotTier(**limits)


def test_what_is_said_is_by_name_and_stays():
    with pytest.raises(TypeError):
        HotTier(10_000)
    with pytest.raises(AttributeError):
        HotTier().max_bytes = 5
    assert HotTier() == HotTier(max_bytes=10_000, max_age=3600, min_reads=3)


# -- how large ---------------------------------------------------------------------------


def test_without_limits_all_is_kept(decide):
    rule = decide()
    assert read(rule, 10**6) == FIRST
    assert read(rule, 10**6) == stored(rule, 10**6) == KEEP
    assert stored(rule, thread="new") == FIRST


def test_what_a_read_needs_is_measured(decide):
    rule = decide(max_bytes=1000)
    assert load(rule, 1000) == FIRST
    assert load(rule, 1001, thread="larger") == NOTHING
    assert load(rule, 1000, thread="larger") == FIRST


def test_a_thread_that_grows_is_let_go_of_once(decide):
    rule = decide(max_bytes=1000)
    assert load(rule, 600) == FIRST
    assert stored(rule, 400) == KEEP
    assert stored(rule, 1) == LET_GO
    assert stored(rule, 1) == NOTHING
    assert load(rule, 1001) == NOTHING
    assert load(rule, 900) == FIRST


def test_what_is_needed_no_more_makes_room(decide):
    """A state that is replaced at each step: a read needs the newest value alone."""
    rule = decide(max_bytes=1000)
    load(rule, 400)
    stored(rule, 400)
    assert load(rule, 400, fetched=0) == KEEP
    assert load(rule, 400) == BEGIN_AGAIN
    assert load(rule, 400) == KEEP


def test_what_others_have_put_at_hand_counts_once(decide):
    rule = decide(max_bytes=1000)
    assert [load(rule, 600, fetched=0) for _ in range(3)] == [FIRST, KEEP, KEEP]
    assert stored(rule, 400) == KEEP
    assert stored(rule, 1) == LET_GO


def test_another_generation_begins_with_nothing(decide):
    rule = decide(max_bytes=1000)
    load(rule, 900)
    assert load(rule, 900, generation=2) == KEEP
    assert stored(rule, 900, generation=3) == KEEP
    rule.forget("t")
    assert stored(rule, 900, generation=3) == FIRST


def test_what_was_not_kept_takes_no_room(decide):
    rule = decide(max_bytes=1000, min_reads=3)
    assert [load(rule, 500) for _ in range(4)] == [NOTHING, NOTHING, FIRST, KEEP]
    rule = decide(max_bytes=1000, min_reads=2)
    load(rule, 600)
    met(rule)
    assert stored(rule, 100) == FIRST, "alone"
    assert read(rule, 700, fetched=600) == KEEP


# -- how old -----------------------------------------------------------------------------


def test_a_thread_is_kept_as_long_as_it_is_young(decide, clock):
    rule = decide(max_age=60)
    assert load(rule) == FIRST
    clock.now += 59
    assert load(rule) == KEEP
    clock.now += 1
    assert read(rule) == LET_GO
    assert read(rule) == NOTHING
    assert stored(rule, checkpoints=(checkpoint(2, ts=NOW + 60 * SECOND),)) == FIRST


def test_a_head_that_is_old_lets_go_of_its_thread(decide, clock):
    rule = decide(max_age=60)
    load(rule)
    assert met(rule) is False
    clock.now += 60
    assert [met(rule), met(rule)] == [True, False]


def test_who_has_only_seen_old_checkpoints_has_seen_an_old_thread(decide):
    rule = decide(max_age=60)
    assert met(rule, ts=NOW - 61 * SECOND, key=uid(1)) is False
    assert read(rule) == NOTHING
    met(rule, ts=NOW, key=uid(2))
    assert read(rule) == FIRST
    met(rule, ts=NOW - 61 * SECOND, key=uid(1))
    assert read(rule) == KEEP


def test_the_newest_checkpoint_of_a_batch_counts(decide):
    rule = decide(max_age=60)
    old = checkpoint(1, ts=NOW - 61 * SECOND)
    assert stored(rule, checkpoints=(old,)) == NOTHING
    assert stored(rule, checkpoints=(checkpoint(2, ts=NOW), old)) == FIRST
    assert stored(rule, checkpoints=(checkpoint(3, ts="now"), old)) == LET_GO


def test_writes_are_of_their_time(decide, clock):
    rule = decide(max_age=60)
    load(rule)
    clock.now += 60
    assert stored(rule) == LET_GO
    later = NOW + 60 * SECOND
    batch = Batch("t", later, 1, segments=(seg(),), writes=(write(1),))
    assert rule.stored(batch) == FIRST


def test_what_is_of_no_known_age_is_not_kept(decide):
    rule = decide(max_age=60)
    met(rule, ts="yesterday")
    assert read(rule) == NOTHING
    met(rule, ts=NOW, key=uid(1))
    assert read(rule) == stored(rule, writes=(write(1),)) == NOTHING
    assert load(rule) == FIRST
    assert met(rule, ts="yesterday") is True


def test_a_thread_of_which_nothing_is_known_is_old(decide):
    assert read(decide(max_age=60)) == NOTHING


# -- how often ---------------------------------------------------------------------------


def test_a_load_counts_once(decide):
    rule = decide(min_reads=3)
    assert [load(rule) for _ in range(4)] == [NOTHING, NOTHING, FIRST, KEEP]


def test_a_head_without_segments_and_segments_without_a_head_count(decide):
    rule = decide(min_reads=3)
    met(rule)
    assert read(rule) == read(rule) == NOTHING
    assert read(rule) == FIRST
    rule = decide(min_reads=3)
    for _ in range(3):
        met(rule)
    assert read(rule) == FIRST


def test_checkpoints_that_are_named_and_saves_are_no_reads(decide):
    rule = decide(min_reads=1)
    met(rule, key=uid(1))
    assert stored(rule) == stored(rule, checkpoints=(checkpoint(1),)) == NOTHING
    assert read(rule) == FIRST
    assert stored(rule) == KEEP


def test_reads_of_long_ago_count_no_more(decide, clock):
    rule = decide(min_reads=3, max_age=60)
    clock.now -= clock.now % 30
    for _ in range(2):
        met(rule, ts=NOW)
    clock.now += 59
    met(rule, ts=NOW + 59 * SECOND)
    assert read(rule) == FIRST
    clock.now += 30
    assert load(rule) == NOTHING, "two within 60 seconds"


def test_who_reads_seldom_lets_others_keep_it(decide, clock):
    rule = decide(min_reads=2, max_age=60, max_bytes=1000)
    load(rule)
    assert load(rule) == FIRST
    clock.now += 600
    met(rule, ts=NOW + 600 * SECOND)
    assert read(rule) == NOTHING
    assert stored(rule, 1001) == LET_GO, "but not what has grown"


def test_a_clock_that_goes_back_only_forgets_reads(decide, clock):
    rule = decide(min_reads=2, max_age=60)
    load(rule)
    clock.now -= 10_000
    assert [load(rule), load(rule)] == [NOTHING, FIRST]


def test_without_an_age_reads_count_for_ever(decide, clock):
    rule = decide(min_reads=2)
    load(rule)
    clock.now += 10**9
    assert load(rule) == FIRST


# -- what is remembered --------------------------------------------------------------------


def test_the_threads_not_met_for_longest_are_forgotten(decide, monkeypatch):
    monkeypatch.setattr(lru, "_THREADS", 3)
    rule = decide(min_reads=2)
    for thread in "abcad":
        met(rule, thread)
    assert read(rule, thread="a") == FIRST
    met(rule, "b")
    assert read(rule, thread="b") == NOTHING


def test_saves_make_no_thread_known_that_must_be_read(decide, monkeypatch):
    monkeypatch.setattr(lru, "_THREADS", 3)
    rule = decide(min_reads=2)
    load(rule)
    for number in range(10):
        assert stored(rule, thread=f"imported {number}") == NOTHING
    assert load(rule) == FIRST


def test_exactly_that_thread_is_forgotten(decide):
    rule = decide(min_reads=2)
    for thread in ("a", "ab", "b"):
        load(rule, thread=thread)
    rule.forget("a")
    assert [load(rule, thread=t) for t in ("a", "ab")] == [NOTHING, FIRST]
    rule.forget(None)
    assert load(rule, thread="b") == NOTHING


def test_only_what_is_small_and_young_may_be_kept_by_others(decide, clock):
    rule = decide(max_bytes=1000, max_age=60, min_reads=9)
    assert rule.may_be_shared("t")
    load(rule)
    assert rule.may_be_shared("t")
    load(rule, 1001)
    assert not rule.may_be_shared("t")
    load(rule)
    assert rule.may_be_shared("t")
    clock.now += 60
    assert not rule.may_be_shared("t")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_a_child_forked_in_the_middle_of_a_change_begins_anew(decide):
    rule = decide(min_reads=2)
    load(rule)
    with rule._lock:
        child = os.fork()
        if not child:
            os._exit([load(rule), load(rule)] != [NOTHING, FIRST])
    assert os.waitpid(child, 0)[1] == 0
    assert load(rule) == FIRST
