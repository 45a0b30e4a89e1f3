"""Caches in front of a store: the contract through them, and their own promises."""

from __future__ import annotations

import asyncio
import operator
import random
import socket
from typing import Annotated, TypedDict

import pytest
import redis
from kit.contract import Variant
from kit.layers import Layered, ThroughCache, awaiting, stack_of
from kit.postgres import url_for
from kit.redis import url as redis_url
from kit.selection import some
from kit.tips import reading
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph

from threadkeep import (
    AsyncPostgresSaver,
    PostgresSaver,
    ReadCache,
    RedisSaver,
    SqliteSaver,
    open_saver,
)
from threadkeep._core.engine.model import Batch, ReadCheckpoint, ReadSegments, Segment, Span
from threadkeep._run import segment_cache
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.segment_cache import (
    CacheLayer,
    Fresh,
    Hot,
    SegmentCache,
)
from threadkeep._stores.base import Backend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.open import open_hot
from threadkeep._stores.postgres import backend as postgres_backend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep.errors import (
    InvalidArgumentError,
    OpenError,
    SegmentTakenError,
    UnreachableError,
)
from threadkeep.savers.saver import Saver
from threadkeep.testing.records import NOW, THREAD, linked, segment

SMALL = ReadCache(threads=2, bytes=100_000)
TIP = 5


class TestHotPostgres(ThroughCache, Variant):
    def new_backend(self, folder):
        backend = PostgresBackend(url_for(folder), max_size=4)
        return opened(Layered, backend, open_hot(redis_url()))


class TestAsyncHotPostgres(ThroughCache, Variant):
    def new_backend(self, folder):
        backend = PostgresBackend(url_for(folder), max_size=4).asynchronous
        return opened(awaiting, backend, open_hot(redis_url()), SMALL)


def opened(face, backend, hot, cache=None):
    faces = LayeredBackend(hot)
    layer = CacheLayer(cache, Hot(faces))
    stack = stack_of(backend, layer)
    found = face(stack, faces)  # (the database was emptied behind its back)
    if face is Layered:
        stack.run(layer.clear())
    else:
        found._run(stack.arun_here(layer.clear()))
    return found


# -- in memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"bytes": 0}, {"ttl": 0}, {"ttl": float("nan")}, {"threads": 1.5}]
)
def test_limits_without_meaning_are_refused(options):
    with pytest.raises(InvalidArgumentError):
        ReadCache(**options)


@pytest.mark.parametrize("cache", [5, "yes", object()])
def test_what_is_no_cache_is_refused(cache):
    with pytest.raises(InvalidArgumentError):
        open_saver("memory://", cache=cache)


def seg(start=0, count=1, size=100, log=1):
    return Segment(log, start, count, b"x" * size)


def everything(thread, generation=0):
    spans = (Span(1, 0, 1000), Span(2, 0, 1000))
    return ReadSegments(thread, spans, generation, base=(TIP,), named=(TIP,))


def fresh(thread, generation, segments, drops=()):
    return Fresh(thread, generation, segments, drops, (TIP,), TIP)


def test_the_threads_not_used_for_longest_go_first():
    kept = SegmentCache(ReadCache(threads=2))
    for thread in "ab":
        kept.keep(fresh(thread, 0, [seg()]))
    assert kept.find(everything("a")) == [seg()]
    kept.keep(fresh("c", 0, [seg()]))
    assert kept.find(everything("b")) == []
    assert kept.find(everything("a")) == kept.find(everything("c")) == [seg()]


def test_no_more_bytes_are_kept_than_told():
    kept = SegmentCache(ReadCache(bytes=10_000))
    for number in range(50):
        kept.keep(fresh(f"t{number}", 0, [seg(size=3000)]))
        assert kept.size <= 10_000
    assert kept.find(everything("t49")) == [seg(size=3000)]
    kept.keep(fresh("large", 0, [seg(size=20_000)]))
    assert kept.find(everything("large")) == []
    assert kept.size <= 10_000


def test_what_was_not_used_for_a_while_goes():
    now = 0.0
    kept = SegmentCache(ReadCache(ttl=10), lambda: now)
    kept.keep(fresh("a", 0, [seg()]))
    kept.keep(fresh("b", 0, [seg()]))
    now = 8.0
    assert kept.find(everything("b")) == [seg()]
    now = 11.0
    assert kept.find(everything("a")) == []
    assert kept.find(everything("b")) == [seg()]
    now = 40.0
    assert kept.find(everything("b")) == []
    assert kept.size == 0


def test_a_larger_segment_takes_the_place_of_those_in_it():
    kept = SegmentCache(ReadCache())
    kept.keep(fresh("a", 0, [seg(0), seg(1), seg(2), seg(0, log=2)]))
    before = kept.size
    kept.keep(fresh("a", 0, [seg(0, 2)], drops=[(1, 0, 1), (1, 1, 1)]))
    assert kept.find(everything("a")) == [seg(0, 2), seg(2), seg(0, log=2)]
    kept.keep(fresh("a", 0, [seg(0, 3)]))
    assert kept.find(everything("a")) == [seg(0, 3), seg(0, log=2)]
    assert kept.size < before


def test_another_generation_begins_with_nothing():
    kept = SegmentCache(ReadCache())
    kept.keep(fresh("a", 0, [seg()]))
    kept.keep(fresh("a", 1, [seg(5)]))
    assert kept.find(everything("a", 1)) == [seg(5)]
    assert kept.find(everything("a", 0)) == []


def test_exactly_that_thread_is_cleared():
    kept = SegmentCache(ReadCache())
    for thread in ("a", "ab", "b"):
        kept.keep(fresh(thread, 0, [seg()]))
    kept.clear("a")
    assert [bool(kept.find(everything(t))) for t in ("a", "ab", "b")] == [False, True, True]
    kept.clear()
    assert kept.size == 0
    assert kept.find(everything("b")) == []


# -- reads of the store ------------------------------------------------------------------


class Counting(MemoryBackend):
    def __init__(self):
        super().__init__()
        self.asked = []

    def fetch(self, reads):
        self.asked += [type(read).__name__ for read in reads]
        return super().fetch(reads)


class State(TypedDict):
    said: Annotated[list, operator.add]


def graph(saver):
    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"said": [{"text": "word " * 40}]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def config(thread="t"):
    return {"configurable": {"thread_id": thread}}


def said(saver, thread="t"):
    found = saver.get_tuple(config(thread))
    return found and found.checkpoint["channel_values"]["said"]


def test_only_the_head_is_asked_for_what_was_just_written():
    backend = Counting()
    with Saver(backend, cache=ReadCache(), working_set_bytes=0) as saver:
        for _ in range(3):
            graph(saver).invoke({"said": [{"text": "question " * 40}]}, config())
        backend.asked.clear()
        assert len(said(saver)) == 6
        assert backend.asked == ["ReadCheckpoint"]


def test_what_was_read_once_is_not_read_again():
    backend = Counting()
    with Saver(backend) as writer:
        graph(writer).invoke({"said": [{"text": "question " * 40}]}, config())
        with Saver(backend, cache=ReadCache(), working_set_bytes=0) as saver:
            assert said(saver) == said(saver)
            backend.asked.clear()
            saver.get_tuple(config())
            assert backend.asked == ["ReadCheckpoint"]
            saver.clear_cache("other")
            saver.clear_cache("")
            saver.get_tuple(config())
            assert backend.asked == ["ReadCheckpoint"] * 2
            saver.clear_cache("t")
            saver.get_tuple(config())
            assert backend.asked[2:] == ["ReadCheckpoint", "ReadSegments"]
            backend.asked.clear()
            saver.clear_cache()
            saver.get_tuple(config())
            assert backend.asked == ["ReadCheckpoint", "ReadSegments"]


def test_clearing_takes_what_this_process_remembers_too():
    backend = Counting()
    with Saver(backend) as saver:
        graph(saver).invoke({"said": [{"text": "question " * 40}]}, config())
        saver.get_tuple(config())
        backend.asked.clear()
        saver.clear_cache("t")
        saver.get_tuple(config())
        assert backend.asked == ["ReadCheckpoint", "ReadSegments"]


# -- others write meanwhile ----------------------------------------------------------------


def checkpoint(number, said):
    found = empty_checkpoint()
    found["channel_values"] = {"said": said}
    found["channel_versions"] = {"said": number}
    return found


def one_step(chance, saver, number):
    """Something that a process may do to a thread."""
    thread = chance.choice("ab")
    where = config(thread)
    where["configurable"]["checkpoint_ns"] = ""
    head = saver.get_tuple(where)
    before = head.checkpoint["channel_values"]["said"] if head is not None else []
    do = chance.random()
    if do < 0.05:
        saver.delete_thread(thread)
    elif do < 0.15:
        saver.prune([thread])
    elif do < 0.2:
        saver.clear_cache(thread)
    elif do < 0.4 and head is not None:
        saver.put_writes(
            head.config, [("said", [{"n": number, "text": "write " * 30}])], f"{number}"
        )
    else:
        new = checkpoint(number, [*before[-20:], {"n": number, "text": "put " * 30}])
        saver.put(head.config if head is not None else where, new, {}, {"said": number})


def seen(saver):
    found = {thread: saver.get_tuple(config(thread)) for thread in "ab"}
    return {t: f and (f.checkpoint, f.metadata, f.pending_writes) for t, f in found.items()}


def openers(tmp_path, kind):
    if kind == "sqlite":
        path = str(tmp_path / "t.db")
        return lambda **options: SqliteSaver(path, synchronous="normal", **options)
    return lambda **options: PostgresSaver(url_for(tmp_path), max_size=2, **options)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "hot postgres"])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_stale_is_read_whoever_writes(tmp_path, kind, seed):
    chance = random.Random(seed)
    opened = openers(tmp_path, kind)
    more = {"hot": redis_url()} if kind.startswith("hot") else {"cache": ReadCache(threads=2)}
    with opened(**more) as plain:
        plain.setup()
        plain.clear_cache()  # (the database was emptied behind its back)
    with opened() as plain, opened(**more, working_set_bytes=0) as one, opened(**more) as other:
        for number in range(1, some(30, 60)):
            one_step(chance, chance.choice([plain, one, other]), number)
            with opened(working_set_bytes=0) as fresh:
                expected = seen(fresh)
            assert seen(one) == expected
            assert seen(other) == expected
        assert plain.check().findings == ()


# -- hot: a Redis in front of PostgreSQL ---------------------------------------------------


class HotKeys:
    """The hot store's keys of one database; other tests use the same hot store."""

    def __init__(self, client, folder):
        self.client = client
        self.folder = folder

    def __call__(self, ending=""):
        backend = PostgresBackend(url_for(self.folder))
        pattern = f"tk-hot:{{{backend.identity()}%2F*{ending}"
        backend.close()
        return list(self.client.scan_iter(match=pattern))


@pytest.fixture
def hot(tmp_path):
    with redis.Redis.from_url(redis_url()) as client:
        yield HotKeys(client, tmp_path)


@pytest.fixture
def saver(tmp_path, hot):
    with PostgresSaver(
        url_for(tmp_path), max_size=2, hot=redis_url(), working_set_bytes=0
    ) as opened:
        opened.setup()
        opened.clear_cache()  # (the database was emptied behind its back)
        graph(opened).invoke({"said": [{"text": "question " * 40}]}, config())
        yield opened


class Spy:
    """Counts the requests to the database."""

    def __init__(self, saver):
        backend = saver._store.backend
        self.segments = 0
        inner = backend.fetch

        def fetch(reads):
            self.segments += sum(isinstance(read, ReadSegments) for read in reads)
            return inner(reads)

        backend.fetch = fetch


def test_a_head_that_another_process_wrote_comes_from_the_hot_store(tmp_path, saver):
    with PostgresSaver(url_for(tmp_path), max_size=2, hot=redis_url()) as other:
        spy = Spy(other)
        assert said(other) == said(saver)
        assert spy.segments == 0


def test_all_keys_of_the_hot_store_expire(saver, hot):
    assert hot()
    assert all(0 < hot.client.ttl(key) <= 3600 for key in hot())


def test_a_hot_store_that_was_flushed_fills_again(saver, hot):
    before = said(saver)
    hot.client.unlink(*hot())
    spy = Spy(saver)
    assert said(saver) == before
    assert spy.segments == 1
    assert said(saver) == before
    assert spy.segments == 1


def test_a_hot_store_may_drop_any_key(saver, hot):
    before = said(saver)
    for kind in "tps":
        hot.client.unlink(*hot(f":{kind}"))
        assert said(saver) == before, kind
        spy = Spy(saver)
        assert said(saver) == before
        assert spy.segments == 0, "it was filled again"


def test_what_is_of_another_generation_is_not_taken(tmp_path, saver, hot):
    with PostgresSaver(url_for(tmp_path), max_size=2) as plain:
        for _ in range(2):
            graph(plain).invoke({"said": [{"text": "another " * 40}]}, config())
        plain.prune(["t"])
        expected = said(plain)
    assert said(saver) == expected
    spy = Spy(saver)
    assert said(saver) == expected
    assert spy.segments == 0


def test_two_databases_share_a_hot_store(tmp_path, saver):
    (tmp_path / "other").mkdir()
    with PostgresSaver(
        url_for(tmp_path / "other"), max_size=2, hot=redis_url(), working_set_bytes=0
    ) as other:
        other.setup()
        other.delete_thread("t")
        for _ in range(3):
            graph(other).invoke({"said": [{"text": "elsewhere " * 40}]}, config())
        assert len(said(other)) == 6
        assert len(said(saver)) == 2
        other.clear_cache()
        spy = Spy(saver)
        assert len(said(saver)) == 2
        assert spy.segments == 0, "the other's cache was cleared, not this one's"


def test_a_deleted_thread_leaves_the_hot_store(saver, hot):
    assert hot(":s")
    saver.delete_thread("t")
    assert not hot(":s")


def test_exactly_one_thread_leaves_the_hot_store(saver, hot):
    graph(saver).invoke({"said": [{"text": "question " * 40}]}, config("t2"))
    saver.clear_cache("t")
    assert len(hot(":s")) == 1
    saver.clear_cache()
    assert hot() == []


def nobody():
    """The URL of a server that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"redis://127.0.0.1:{taken.getsockname()[1]}/0"


def test_a_hot_store_that_is_absent_is_missed_by_nobody(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(segment_cache, "_PAUSE", 3600)
    with PostgresSaver(url_for(tmp_path), max_size=2, hot=nobody()) as saver:
        saver.setup()
        for _ in range(3):
            graph(saver).invoke({"said": [{"text": "question " * 40}]}, config())
        assert len(said(saver)) == 6
        saver.delete_thread("t")
    warned = [r for r in caplog.records if "disabled for" in r.getMessage()]
    assert len(warned) == 1, "it is not asked again and again"


def test_what_a_hot_store_damages_is_not_taken(saver, hot):
    before = said(saver)
    (key,) = hot(":s")
    for field, data in hot.client.hgetall(key).items():
        hot.client.hset(key, field, data[:-1] + bytes([data[-1] ^ 1]))
    assert said(saver) == before
    spy = Spy(saver)
    assert said(saver) == before
    assert spy.segments == 0, "it was filled again"


def test_a_store_that_cannot_be_cleared_is_told(tmp_path):
    with PostgresSaver(url_for(tmp_path), max_size=2, hot=nobody()) as saver:
        saver.setup()
        graph(saver).invoke({"said": []}, config())
        for thread in ("t", None):
            with pytest.raises(UnreachableError):
                saver.clear_cache(thread)


def test_a_database_that_cannot_be_named_goes_without(tmp_path, monkeypatch, caplog):
    with PostgresSaver(url_for(tmp_path), max_size=2, hot=redis_url()) as saver:
        saver.setup()
        refused = "SELECT 1 / 0, 2, 3 WHERE %s IS NOT NULL"
        monkeypatch.setattr(postgres_backend, "_IDENTITY", refused)
        graph(saver).invoke({"said": [{"text": "question"}]}, config())
        assert len(said(saver)) == 2
    assert "disabled for" in caplog.text


def test_awaiting_calls_have_it_too(tmp_path, saver):
    async def main():
        async with AsyncPostgresSaver(
            url_for(tmp_path), max_size=2, hot=redis_url(), cache=ReadCache(), working_set_bytes=0
        ) as other:
            await graph(other).ainvoke({"said": [{"text": "question " * 40}]}, config())
            found = await other.aget_tuple(config())
            assert len(found.checkpoint["channel_values"]["said"]) == 4
            await other.aclear_cache("t")
            assert await other.aget_tuple(config()) == found

    asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["redis+cluster://u:hunter2@127.0.0.1", "http://nothing", "redis://a:b", ""]
)
def test_a_url_of_no_single_server_is_refused(tmp_path, url):
    with pytest.raises((InvalidArgumentError, OpenError)) as caught:
        PostgresSaver(url_for(tmp_path), hot=url)
    assert "hunter2" not in str(caught.value)


def test_stores_without_a_name_are_refused(tmp_path):
    for url in ("memory://", f"sqlite:///{tmp_path / 't.db'}"):
        with pytest.raises(InvalidArgumentError, match="PostgreSQL"):
            open_saver(url, hot=redis_url())
    with pytest.raises(InvalidArgumentError, match="PostgreSQL"):
        RedisSaver(redis_url(), hot=redis_url())


class Failing(Backend):
    """A hot store whose server fails on chosen calls."""

    def __init__(self):
        self.asked = 0

    def fetch(self, reads):
        self.asked += 1
        raise OpenError("It cannot be reached.")

    commit = clear = close = fetch


def test_what_failed_is_left_alone_for_a_while():
    now, store = 0.0, Failing()
    hot = Hot(LayeredBackend(store), lambda: now)
    stack = stack_of(MemoryBackend())
    for at in (0.0, 1.0, 4.9, 5.1, 6.0):
        now = at
        assert stack.run(hot.find(everything("t"))) == []
        stack.run(hot.keep(fresh("t", 0, [seg()])))
        stack.run(hot.evict("t"))
    assert store.asked == 2


def test_a_commit_that_fails_is_not_kept():
    backend = Layered(stack_of(MemoryBackend(), CacheLayer(ReadCache())))
    first = Batch(THREAD, NOW, generation=0, segments=(segment(0),), link=linked())
    backend.commit(first)
    other = Segment(1, 0, 1, b"other bytes")
    with pytest.raises(SegmentTakenError):
        backend.commit(first._replace(segments=(other,)))
    assert first_segment(backend) == [segment(0)]


def first_segment(backend):
    (state,) = backend.fetch([ReadCheckpoint(THREAD, "")])
    (found,) = backend.fetch([reading(THREAD, [Span(1, 0, 1)], state)])
    return found


def test_what_was_dropped_under_no_generation_is_not_kept():
    backend = Layered(stack_of(MemoryBackend(), CacheLayer(ReadCache())))
    link = linked()
    backend.commit(Batch(THREAD, NOW, generation=0, segments=(segment(0),), link=link))
    other = Segment(1, 0, 1, b"other bytes")
    dropping = Batch(THREAD, NOW, drop_segments=((1, 0, 1),), segments=(other,), link=link)
    backend.commit(dropping)
    assert first_segment(backend) == [other]
