"""Threads that vanish under a process that remembers them: nothing may be built on lost rows."""

import operator
from typing import Annotated, TypedDict

import pytest
import redis
from kit.redis import empty_prefix, url
from langgraph.graph import START, StateGraph

from threadkeep import RedisSaver
from threadkeep._core.engine.model import (
    Batch,
    FindThreads,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
)
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep.errors import StaleThreadError
from threadkeep.testing.records import NOW, THREAD, checkpoint, linked, segment, uid

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


# -- tips --------------------------------------------------------------------------------


@pytest.fixture
def backend(prefix):
    made = RedisBackend(url(), prefix=prefix)
    yield made
    made.close()


def first(*base):
    link = linked(*base)
    return Batch(THREAD, NOW, 0, segments=(segment(0),), checkpoints=(checkpoint(1),), link=link)


def test_a_change_that_builds_on_an_earlier_life_is_stale(backend, vanish):
    made = first()
    backend.commit(made)
    later = Batch(THREAD, NOW, 0, checkpoints=(checkpoint(2),), link=linked(made.tip))
    vanish()
    with pytest.raises(StaleThreadError):
        backend.commit(later)
    assert backend.fetch([FindThreads(None, 9)]) == [[]]
    backend.commit(first())
    with pytest.raises(StaleThreadError):
        backend.commit(later)


def test_segments_of_an_earlier_life_are_not_read(backend, vanish):
    made = first()
    backend.commit(made)
    read = ReadSegments(THREAD, (segment(0).span,), 0, base=(made.tip,))
    assert backend.fetch([read]) == [[segment(0)]]
    vanish()
    backend.commit(first())
    assert backend.fetch([read]) == [[]]


def test_it_does_not_matter_who_makes_a_thread_first(backend, prefix, vanish):
    other = RedisBackend(url(), prefix=prefix)
    for again in (int, vanish):
        again()
        backend.fetch([ReadCheckpoint(THREAD, "")])
        other.commit(Batch(THREAD, NOW, 0, checkpoints=(checkpoint(5),)))
        backend.commit(first())
        (rows,) = other.fetch([ReadThread(THREAD)])
        assert [one.row.id for one in rows.checkpoints] == [uid(1), uid(5)]
    other.close()
