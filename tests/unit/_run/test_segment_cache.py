"""The decision which threads to cache."""

import os
from datetime import timedelta

import pytest

from threadkeep._core.engine.model import Batch, Segment
from threadkeep._core.policies import HotTier
from threadkeep._run import segment_cache
from threadkeep._run.segment_cache import (
    Admission,
    Verdict,
)
from threadkeep.errors import InvalidArgumentError
from threadkeep.testing.records import NOW, checkpoint, write

SECOND = 1_000_000
CACHE, SKIP, EVICT = Verdict
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


def read(rule, size=100, *, fetched=None, thread="t"):
    """Record a read: its bytes, and how many of them came from the store."""
    fresh = seg(size if fetched is None else fetched)
    return rule.read(thread, [seg(size)], [fresh])


def load(rule, size=100, *, thread="t", ts=NOW, **more):
    rule.note_checkpoint(thread, ts)
    return read(rule, size, thread=thread, **more)


def stored(rule, size=100, thread="t", **rows):
    return rule.stored(Batch(thread, NOW, 1, segments=(seg(size),), **rows))


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


def test_without_limits_all_is_cached(decide):
    rule = decide()
    assert read(rule, 10**6) == stored(rule, 10**6) == CACHE
    assert stored(rule, thread="new") == CACHE


def test_what_a_read_needs_is_measured(decide):
    rule = decide(max_bytes=1000)
    assert load(rule, 1000) == CACHE
    assert load(rule, 1001, thread="larger") == SKIP
    assert load(rule, 1000, thread="larger") == CACHE


def test_a_thread_that_grows_is_evicted_once(decide):
    rule = decide(max_bytes=1000)
    assert load(rule, 600) == CACHE
    assert stored(rule, 400) == CACHE
    assert stored(rule, 1) == EVICT
    assert stored(rule, 1) == SKIP
    assert load(rule, 1001) == SKIP
    assert load(rule, 900) == CACHE


def test_what_is_needed_no_more_makes_room(decide):
    """A state that is replaced at each step: a read needs the newest value alone."""
    rule = decide(max_bytes=1000)
    load(rule, 400)
    stored(rule, 400)
    assert load(rule, 400, fetched=0) == CACHE
    assert load(rule, 400) == EVICT
    assert load(rule, 400) == CACHE


def test_what_others_have_cached_counts_once(decide):
    rule = decide(max_bytes=1000)
    assert [load(rule, 600, fetched=0) for _ in range(3)] == [CACHE] * 3
    assert stored(rule, 400) == CACHE
    assert stored(rule, 1) == EVICT


def test_what_was_evicted_takes_no_room(decide):
    rule = decide(max_bytes=1000)
    load(rule, 900)
    rule.evicted("t")
    rule.evicted("unknown")
    assert stored(rule, 900) == CACHE
    assert stored(rule, 101) == EVICT


# -- how old -----------------------------------------------------------------------------


def test_a_thread_is_cached_as_long_as_it_is_young(decide, clock):
    rule = decide(max_age=60)
    assert load(rule) == CACHE
    clock.now += 59
    assert load(rule) == CACHE
    clock.now += 1
    assert read(rule) == EVICT
    assert read(rule) == SKIP
    assert stored(rule, checkpoints=(checkpoint(2, ts=NOW + 60 * SECOND),)) == CACHE


def test_the_newest_checkpoint_that_was_seen_counts(decide):
    rule = decide(max_age=60)
    old = NOW - 61 * SECOND
    assert load(rule, ts=old) == SKIP
    assert load(rule, ts=NOW) == CACHE
    assert load(rule, ts=old) == CACHE


def test_the_newest_checkpoint_of_a_batch_counts(decide):
    rule = decide(max_age=60)
    old = checkpoint(1, ts=NOW - 61 * SECOND)
    assert stored(rule, checkpoints=(old,)) == SKIP
    assert stored(rule, checkpoints=(checkpoint(2, ts=NOW), old)) == CACHE


def test_writes_are_of_their_time(decide, clock):
    rule = decide(max_age=60)
    load(rule)
    clock.now += 60
    assert stored(rule) == EVICT
    later = NOW + 60 * SECOND
    batch = Batch("t", later, 1, segments=(seg(),), writes=(write(1),))
    assert rule.stored(batch) == CACHE


def test_what_is_of_no_known_age_is_not_cached(decide):
    rule = decide(max_age=60)
    assert read(rule) == SKIP
    assert load(rule, ts="yesterday") == SKIP
    assert load(rule) == CACHE


# -- how often ---------------------------------------------------------------------------


def test_a_thread_is_cached_once_it_was_read_often(decide):
    rule = decide(min_reads=3)
    assert [load(rule) for _ in range(4)] == [SKIP, SKIP, CACHE, CACHE]


def test_saves_are_no_reads(decide):
    rule = decide(min_reads=1)
    assert stored(rule) == stored(rule, checkpoints=(checkpoint(1),)) == SKIP
    assert read(rule) == CACHE
    assert stored(rule) == CACHE


def test_reads_of_long_ago_count_no_more(decide, clock):
    rule = decide(min_reads=3, max_age=60)
    load(rule)
    clock.now += 30
    load(rule)
    clock.now += 29
    assert load(rule, ts=NOW + 59 * SECOND) == CACHE
    clock.now += 31
    assert load(rule, ts=NOW + 90 * SECOND) == SKIP, "two within 60 seconds"


def test_who_reads_seldom_leaves_it_to_others(decide, clock):
    rule = decide(min_reads=2, max_age=60, max_bytes=1000)
    load(rule)
    assert load(rule) == CACHE
    clock.now += 600
    assert load(rule, ts=NOW + 600 * SECOND) == SKIP
    assert stored(rule, 1001) == EVICT, "but not what has grown"


def test_without_an_age_reads_count_for_ever(decide, clock):
    rule = decide(min_reads=2)
    load(rule)
    clock.now += 10**9
    assert load(rule) == CACHE


# -- remembered values ---------------------------------------------------------------------


def test_the_threads_not_met_for_longest_are_forgotten(decide, monkeypatch):
    monkeypatch.setattr(segment_cache, "_THREADS", 3)
    rule = decide(min_reads=2)
    for thread in "abcad":
        rule.note_checkpoint(thread, NOW)
        if thread in "ab":
            read(rule, thread=thread)
    assert load(rule, thread="a") == CACHE
    assert load(rule, thread="b") == SKIP


def test_saves_make_no_thread_known_that_must_be_read(decide, monkeypatch):
    monkeypatch.setattr(segment_cache, "_THREADS", 3)
    rule = decide(min_reads=2)
    load(rule)
    for number in range(10):
        assert stored(rule, thread=f"imported {number}") == SKIP
    assert load(rule) == CACHE


def test_exactly_that_thread_is_forgotten(decide):
    rule = decide(min_reads=2)
    for thread in ("a", "ab", "b"):
        load(rule, thread=thread)
    rule.forget("a")
    assert [load(rule, thread=t) for t in ("a", "ab")] == [SKIP, CACHE]
    rule.forget(None)
    assert load(rule, thread="b") == SKIP


def test_only_what_is_small_and_young_may_be_cached_by_others(decide, clock):
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
            os._exit([load(rule), load(rule)] != [SKIP, CACHE])
    assert os.waitpid(child, 0)[1] == 0
    assert load(rule) == CACHE
