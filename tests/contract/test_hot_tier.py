"""`HotTier` in front of a store: the cached values, and the reads of the store."""

from __future__ import annotations

import random
import uuid
from contextlib import contextmanager

import pytest
import redis
from kit.contract import Variant
from kit.layers import Awaited, Layered, awaiting, stack_of
from kit.redis import url as redis_url
from kit.tips import reading

from threadkeep import ReadCache
from threadkeep._core.codec.frame import Compression, pack
from threadkeep._core.engine.model import (
    Batch,
    DropThread,
    ReadCheckpoint,
    ReadSegments,
    Segment,
    Span,
)
from threadkeep._core.engine.tips import Link, Proof
from threadkeep._core.policies import HotTier, Tiering
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.segment_cache import CacheLayer, Hot
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.open import open_hot
from threadkeep.testing import BlockingBackend
from threadkeep.testing.records import NOW, THREAD, checkpoint, linked
from threadkeep.threads.archives.layer import TierLayer

SECOND = 1_000_000
SMALL = HotTier(max_bytes=1000, max_age=60, min_reads=2)


def frame(number: int, size: int) -> bytes:
    """The frame of one element, of so many bytes with its header."""
    return pack([bytes([number]) * (size - 7)], Compression(level=0))


class TestTiered(Variant):
    """Reads return the stored values, whatever the rule admits or evicts."""

    def new_backend(self, folder):
        tier = HotTier(max_bytes=20, max_age=60, min_reads=1)
        cache = CacheLayer(ReadCache(), None, tier, lambda: NOW / SECOND)
        return Layered(stack_of(MemoryBackend(), cache))

    def segments(self, *spans, thread=THREAD):
        asked = tuple(Span(*span) for span in spans)
        read = reading(thread, asked, self.rows(thread))
        self.one(ReadCheckpoint(thread, ""))
        found = [self.one(read) for _ in range(3)]
        assert found == [self.one(ReadSegments(thread, asked))] * 3
        return found[0]


# -- reads of the store --------------------------------------------------------------------


class Store(MemoryBackend):
    """Counts the reads of segments."""

    counts_for_all = True

    def __init__(self):
        super().__init__()
        self.asked = 0
        self.name = uuid.uuid4().hex

    def identity(self):
        return self.name

    def fetch(self, reads):
        self.asked += sum(isinstance(read, ReadSegments) for read in reads)
        return super().fetch(reads)


class Process:
    """One process's use of a store, by its own clock."""

    def __init__(self, store, kind, cache, hot, tier):
        self.store = store
        self.now = NOW / SECOND
        self.hot = None if hot is None else LayeredBackend(hot)
        kept = None if self.hot is None else Hot(self.hot)
        self.cache = CacheLayer(cache, kept, tier, lambda: self.now)
        if kind == "blocking":
            self.stack = stack_of(store, self.cache)
            self.front = Layered(self.stack, self.hot)
        else:
            self.stack = stack_of(Awaited(store), self.cache)
            self.front = awaiting(self.stack, self.hot)

    def save(self, number=1, size=100, thread=THREAD, age=0, **rows):
        """A checkpoint, and a segment with its values."""
        (state,) = self.front.fetch([ReadCheckpoint(thread, "", "none")])
        ts = int(self.now * SECOND) - age * SECOND
        segment = Segment(1, number, 1, frame(number, size))
        rows = {"segments": (segment,), "checkpoints": (checkpoint(number, ts=ts),), **rows}
        link = Link(Proof.of(state))
        self.front.commit(Batch(thread, ts, state.generation, **rows, link=link))

    def load(self, *numbers, thread=THREAD):
        """The sizes of the head's values, and how often the store was asked for some."""
        before = self.store.asked
        (state,) = self.front.fetch([ReadCheckpoint(thread, "")])
        spans = tuple(Span(1, number, number + 1) for number in numbers or (1,))
        (found,) = self.front.fetch([reading(thread, spans, state)])
        assert [s.data[-1] for s in found] == [s.start for s in found]
        return [len(s.data) for s in found], self.store.asked - before

    def near(self):
        """Return the bytes kept in memory, approximately."""
        return self.cache._memory.size if self.cache._memory is not None else 0

    def clear(self, thread):
        if isinstance(self.front, Layered):
            self.stack.run(self.cache.clear(thread))
        else:
            self.front._run(self.stack.arun_here(self.cache.clear(thread)))

    def close(self):
        self.front.close()
        if isinstance(self.front, BlockingBackend):
            self.front.stop()


@contextmanager
def opened(store, kind, level, tier=SMALL):
    cache = None if level == "hot" else ReadCache()
    hot = None if level == "memory" else open_hot(redis_url())
    process = Process(store, kind, cache, hot, tier)
    try:
        yield process
    finally:
        process.close()


@pytest.fixture
def store():
    return Store()


@pytest.fixture(params=["blocking", "awaiting"])
def kind(request):
    return request.param


@pytest.fixture(params=["memory", "hot", "both"])
def level(request):
    return request.param


@pytest.fixture
def process(store, kind, level):
    with opened(store, kind, level) as process:
        yield process


def is_held(store):
    """Return True if the hot store has any of this store's values."""
    with redis.Redis.from_url(redis_url()) as client:
        keys = client.scan_iter(match=f"tk-hot:{{{store.name}%2F*:s")
        return any(client.hlen(key) for key in keys)


def test_without_a_rule_everything_is_kept(store, kind, level):
    with opened(store, kind, level, None) as process:
        process.save(size=10**6, age=10**6)
        assert process.load() == ([10**6], 0)


def test_a_thread_is_kept_once_it_was_read_often(process):
    process.save()
    assert [process.load()[1] for _ in range(4)] == [1, 1, 0, 0]
    process.save(2)
    assert process.load(1, 2) == ([100, 100], 0)


def test_a_large_thread_is_not_kept(process):
    process.save(size=1001)
    assert [process.load() for _ in range(4)] == [([1001], 1)] * 4


def test_a_thread_that_grows_is_let_go_of(process, store, level):
    process.save(size=900)
    for _ in range(2):
        process.load()
    assert process.load() == ([900], 0)
    process.save(2, size=101)
    assert process.near() == 0
    if level != "memory":
        assert not is_held(store)
    assert [process.load(1, 2) for _ in range(2)] == [([900, 101], 1)] * 2


def test_a_value_that_is_replaced_again_and_again_stays_at_hand(process):
    """Only values that a read needs count, not all saved values."""
    for number in range(1, 30):
        process.save(number, size=300)
        process.load(number)
        assert process.near() <= 1000 + 3 * 200, "with what lists and numbers take"
    assert process.load(29) == ([300], 0)
    assert process.load(1) == ([300], 1)


def test_what_makes_room_is_kept_whole(process, store):
    """Also what of it was at hand before."""
    process.save(1, 400)
    for _ in range(2):
        process.load()
    process.save(2, 400)
    store.commit(Batch(THREAD, NOW, segments=(Segment(1, 3, 1, frame(3, 300)),)))
    asked = [process.load(1, 3) for _ in range(3)]
    assert asked == [([400, 300], 1), ([400, 300], 1), ([400, 300], 0)]
    assert process.load(2) == ([400], 1)


def test_a_thread_that_ages_is_let_go_of(process, store, level):
    process.save()
    for _ in range(2):
        process.load()
    assert process.load()[1] == 0
    process.now += 60
    process.load()
    if level != "memory":
        assert not is_held(store)
    assert [process.load()[1] for _ in range(3)] == [1, 1, 1]
    process.save(2)
    assert [process.load(1, 2)[1] for _ in range(2)] == [1, 0]


def test_an_old_thread_that_is_brought_in_is_not_kept(process):
    process.save(age=61)
    assert [process.load()[1] for _ in range(4)] == [1] * 4


def test_a_deleted_thread_is_no_more_at_hand(process):
    process.save()
    for _ in range(3):
        process.load()
    process.front.commit(DropThread(THREAD, NOW))
    process.now += 1
    process.save(size=50)
    assert process.load() == ([50], 1)
    assert process.near() == 0, "it is read for the first time"


def test_a_pruned_thread_is_still_often_read(process):
    process.save()
    process.save(2)
    for _ in range(3):
        process.load(1, 2)
    process.save(3, drop_segments=((1, 1, 1),), bump_generation=True)
    assert [process.load(2, 3) for _ in range(2)] == [([100, 100], 1), ([100, 100], 0)]


def test_a_thread_with_an_unknown_time_is_not_kept(process):
    process.save(checkpoints=(checkpoint(1, ts="yesterday"),))
    assert [process.load()[1] for _ in range(3)] == [1, 1, 1]


def test_other_processes_take_what_one_has_put_in_the_hot_store(store, kind):
    with opened(store, kind, "hot") as one, opened(store, kind, "both") as other:
        one.save()
        assert other.load()[1] == 1
        assert [one.load()[1] for _ in range(3)] == [1, 1, 0]
        assert is_held(store)
        assert other.load()[1] == 0


def test_who_knows_that_it_is_large_does_not_ask_the_hot_store(store, kind):
    with opened(store, kind, "hot") as one, opened(store, kind, "hot", None) as other:
        one.save(size=1001)
        one.load()
        other.load()
        assert is_held(store)
        assert other.load()[1] == 0
        assert one.load()[1] == 1


class Both(Store):
    @property
    def asynchronous(self):
        return Awaited(self)


def test_both_faces_of_a_store_count_together():
    with opened(Both(), "blocking", "memory") as process:
        blocking = process.front
        process.save()
        assert process.load()[1] == 1
        process.front = awaiting(process.stack)
        assert [process.load()[1] for _ in range(2)] == [1, 0]
        process.front.stop()
        process.front = blocking
        assert process.load()[1] == 0


def test_clearing_forgets_how_often_a_thread_was_read(process):
    process.save()
    for _ in range(3):
        process.load()
    process.clear(THREAD)
    assert [process.load()[1] for _ in range(3)] == [1, 1, 0]


# -- a store that is open ------------------------------------------------------------------


def test_an_open_store_passes_it_on():
    for tier, expected in ((None, 0), (HotTier(max_bytes=1, max_age=None, min_reads=None), 1)):
        store = Store()
        front = Layered(
            LayeredBackend(store, TierLayer(), cache=ReadCache(), tiering=Tiering(hot=tier))
        )
        batch = Batch(THREAD, NOW, 0, segments=(Segment(1, 0, 1, b"12"),), link=linked())
        front.commit(batch)
        (state,) = front.fetch([ReadCheckpoint(THREAD, "")])
        front.fetch([reading(THREAD, [Span(1, 0, 1)], state)])
        assert store.asked == expected


# -- others write meanwhile ----------------------------------------------------------------


def one_step(chance, process, thread, number):
    """Something that a process may do to a thread."""
    do, size = chance.random(), chance.choice([10, 400])
    if do < 0.05:
        process.front.commit(DropThread(thread, int(process.now * SECOND)))
    elif do < 0.15:
        gone = tuple((1, n, 1) for n in range(1, number - 4) if chance.random() < 0.2)
        process.save(number, size, thread, drop_segments=gone, bump_generation=True)
    else:
        process.save(number, size, thread)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_stale_is_read_whoever_writes(store, kind, level, seed):
    chance, had = random.Random(seed), 0
    numbers = {"a": 0, "b": 0}
    with opened(store, kind, level) as one, opened(store, kind, level) as other:
        for _ in range(60):
            one.now = other.now = one.now + chance.choice([0, 0, 1, 40])
            thread = chance.choice("ab")
            numbers[thread] += 1
            one_step(chance, chance.choice([one, other]), thread, numbers[thread])
            thread = chance.choice("ab")
            head, last = ReadCheckpoint(thread, ""), numbers[thread] + 1
            (state,) = MemoryBackend.fetch(store, [head])
            span = Span(1, max(last - chance.choice([1, 3, 60]), 1), last)
            read = reading(thread, [span], state)
            for front in (one.front, other.front):
                before = store.asked
                assert front.fetch([head]) == [state]
                assert front.fetch([read]) == MemoryBackend.fetch(store, [read])
                had += store.asked == before
    assert had
