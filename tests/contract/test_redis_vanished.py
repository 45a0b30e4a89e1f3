"""Threads that vanish under a process that remembers them: nothing may be built on lost rows."""

import operator
from typing import Annotated, TypedDict

import pytest
import redis
from kit.redis import empty_prefix, url
from langgraph.graph import START, StateGraph

from threadkeep import RedisSaver
from threadkeep._core.engine.model import Batch, ReadCheckpoint, ReadThread
from threadkeep._stores.redis import server
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep.errors import StaleThreadError
from threadkeep.testing.records import NOW, THREAD, checkpoint, segment

CONFIG = {"configurable": {"thread_id": "t"}}
ALWAYS = {"role": "system", "content": "the same object in each run " * 20}


@pytest.fixture
def prefix():
    return empty_prefix()


# In one script: a save in flight must meet all the keys of its thread, or none.
VANISH = """
local cursor = '0'
repeat
    local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
    cursor = page[1]
    for _, key in ipairs(page[2]) do
        redis.call('DEL', key)
    end
until cursor == '0'
"""


@pytest.fixture
def vanish(prefix):
    """Takes every key away at once, as an expiry does, or a server that comes back empty."""
    with redis.Redis.from_url(url()) as client:
        yield lambda: client.eval(VANISH, 0, f"{prefix}:*")


class State(TypedDict):
    said: Annotated[list, operator.add]


def graph(saver, before_second=lambda: None):
    def first(_state):
        return {"said": [ALWAYS, {"content": "first " * 50}]}

    def second(_state):
        before_second()
        return {"said": [ALWAYS, {"content": "second " * 50}]}

    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def test_a_run_goes_on_when_its_thread_vanishes_in_the_middle(prefix, vanish):
    with RedisSaver(url(), prefix=prefix) as saver:
        result = graph(saver, before_second=vanish).invoke({"said": []}, CONFIG)
        assert saver.check().findings == ()
        with RedisSaver(url(), prefix=prefix) as other:
            assert other.get_tuple(CONFIG).checkpoint["channel_values"]["said"] == result["said"]


def test_a_thread_that_vanished_begins_anew(prefix, vanish):
    with RedisSaver(url(), prefix=prefix) as saver:
        for _ in range(3):
            result = graph(saver).invoke({"said": []}, CONFIG)
            assert len(result["said"]) == 4
            assert saver.check().findings == ()
            with RedisSaver(url(), prefix=prefix) as other:
                found = other.get_tuple(CONFIG).checkpoint["channel_values"]["said"]
                assert found == result["said"]
            vanish()


def test_another_process_brings_it_back_meanwhile(prefix, vanish):
    with RedisSaver(url(), prefix=prefix) as one, RedisSaver(url(), prefix=prefix) as other:
        graph(one).invoke({"said": []}, CONFIG)
        vanish()
        graph(other).invoke({"said": []}, CONFIG)
        result = graph(one).invoke({"said": []}, CONFIG)
        assert len(result["said"]) == 8
        assert one.check().findings == ()
        assert other.get_tuple(CONFIG).checkpoint["channel_values"]["said"] == result["said"]


# -- generations -----------------------------------------------------------------------


@pytest.fixture
def backend(prefix):
    made = RedisBackend(url(), prefix=prefix)
    yield made
    made.close()


def generation(backend, thread=THREAD):
    (state,) = backend.fetch([ReadCheckpoint(thread, "")])
    (rows,) = backend.fetch([ReadThread(thread)])
    assert rows.generation == state.generation
    return state.generation


def first(thread=THREAD, **rest):
    return Batch(thread, NOW, segments=(segment(0),), checkpoints=(checkpoint(1),), **rest)


def test_who_made_a_thread_calls_its_generation_what_it_was_before(backend):
    before = generation(backend)
    backend.commit(first(generation=before))
    assert generation(backend) == before
    backend.commit(Batch(THREAD, NOW, generation=before, bump_generation=True))
    assert generation(backend) == before + 1


def test_a_generation_of_an_earlier_life_is_stale(backend, vanish):
    before = generation(backend)
    backend.commit(first(generation=before))
    vanish()
    with pytest.raises(StaleThreadError):  # no reader has looked since
        backend.commit(first(generation=before))
    after = generation(backend)
    assert after != before
    with pytest.raises(StaleThreadError):
        backend.commit(first(generation=before))
    backend.commit(first(generation=after))
    assert generation(backend) == after
    with pytest.raises(StaleThreadError):
        backend.commit(first(generation=before))


def test_it_is_stale_too_where_that_life_was_forgotten(backend, vanish, monkeypatch):
    monkeypatch.setattr(server, "_MOST", 2)
    before = generation(backend)
    for thread in ("a", "b", "c"):
        backend.commit(first(thread, generation=generation(backend, thread)))
    vanish()
    with pytest.raises(StaleThreadError):
        backend.commit(first("a", generation=before))
    assert generation(backend, "a") != before


def test_lives_that_end_seldom_disturb_who_makes_another_thread():
    generations = server.Generations()
    before = generations.name("new", 0)
    for number in range(12_000):
        generations.began(str(number), number)
    for number in range(11_000, 12_000):
        assert generations.name(str(number), 0) != before
    assert generations.stored("new", before) is None
    for number in range(12_000, 22_000):
        generations.began(str(number), number)
    assert generations.stored("new", before) == server.NEVER


def test_two_lives_differ_for_who_made_neither(backend, prefix, vanish):
    other = RedisBackend(url(), prefix=prefix)
    other.commit(first())
    one = generation(backend)
    vanish()
    other.commit(first())
    assert generation(backend) != one
    with pytest.raises(StaleThreadError):
        backend.commit(first(generation=one))
    other.close()


def test_it_does_not_matter_who_makes_a_thread_first(backend, prefix, vanish):
    before = generation(backend)
    other = RedisBackend(url(), prefix=prefix)
    other.commit(Batch(THREAD, NOW, generation=generation(other), checkpoints=(checkpoint(5),)))
    backend.commit(first(generation=before))
    assert generation(backend) == before
    backend.commit(Batch(THREAD, NOW, generation=before, checkpoints=(checkpoint(2),)))
    other.commit(Batch(THREAD, NOW, bump_generation=True))
    with pytest.raises(StaleThreadError):
        backend.commit(Batch(THREAD, NOW, generation=before, checkpoints=(checkpoint(3),)))
    vanish()
    other.commit(first())
    with pytest.raises(StaleThreadError):
        backend.commit(Batch(THREAD, NOW, generation=before, checkpoints=(checkpoint(3),)))
    other.close()
