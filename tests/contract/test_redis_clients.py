"""Clients of redis-py: our own and a program's, in threads, event loops and forked processes."""

import asyncio
import gc
import os
import threading
import warnings
from unittest import mock

import pytest
import redis
import redis.asyncio
from kit.redis import empty_prefix, url
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection as BlockingConnection

import threadkeep
from threadkeep._core.engine.model import (
    Batch,
    HeadFence,
    ReadCheckpoint,
    ReadSegments,
    ReadThread,
    Segment,
    Span,
)
from threadkeep._stores.redis.backend import AsyncRedisBackend, RedisBackend, opened
from threadkeep.errors import InvalidArgumentError, OpenError, StaleThreadError
from threadkeep.testing.records import NOW, THREAD, checkpoint, segment, uid, write


def batch(number):
    return Batch(
        THREAD,
        NOW,
        generation=0,
        life=0,
        fences=(HeadFence("", uid(number - 1) if number > 1 else None),),
        segments=(segment(number), segment(number, log=2)),
        checkpoints=(checkpoint(number, number - 1 or None),),
        writes=(write(number), write(number - 1)),
    )


READS = [
    ReadCheckpoint(THREAD, ""),
    ReadSegments(THREAD, (Span(1, 0, 9),)),
    ReadThread(THREAD),
]


@pytest.fixture
def backend():
    made = RedisBackend(url(), prefix=empty_prefix())
    yield made
    made.close()


class Trips:
    """Counts the requests: each one is a round trip."""

    def __init__(self, kind):
        self.count = 0
        self.patch = mock.patch.object(kind, "send_packed_command", self.counting(kind))

    def counting(self, kind):
        inner = kind.send_packed_command

        def send(connection, *args, **kwargs):
            self.count += 1
            return inner(connection, *args, **kwargs)

        return send


def test_a_call_is_one_round_trip(backend):
    backend.commit(batch(1))  # connects, and brings the scripts
    backend.fetch(READS)
    trips = Trips(BlockingConnection)
    with trips.patch:
        backend.commit(batch(2))
        assert trips.count == 1
        backend.fetch(READS[:1])
        assert trips.count == 2
        backend.fetch(READS)
        assert trips.count == 3


def test_a_group_is_one_round_trip(backend):
    backend.commit(batch(1))
    backend.fetch([ReadCheckpoint(thread, "") for thread in "abcd"])
    trips = Trips(BlockingConnection)
    with trips.patch:
        group = [batch(2), *(batch(1)._replace(thread=thread) for thread in "abc")]
        assert backend.commit_many(group) == [None] * 4
        assert trips.count == 1
        group = [batch(3), batch(1)._replace(thread="d"), batch(4), batch(2)._replace(thread="d")]
        assert backend.commit_many(group) == [None] * 4
        assert trips.count == 2
        group = [batch(1)._replace(thread=thread) for thread in "ef"]  # (not read before)
        assert backend.commit_many(group) == [None] * 2
        assert trips.count == 4


def test_a_refused_batch_leaves_the_others_of_its_thread_alone(backend):
    backend.commit(batch(1))
    third = batch(3)._replace(fences=())
    stale = batch(2)._replace(generation=7, segments=(segment(5), segment(6)))
    assert [type(error) for error in backend.commit_many([stale, third, stale, batch(4)])] == [
        *(StaleThreadError, type(None), StaleThreadError, type(None))
    ]
    (thread,) = backend.fetch([ReadThread(batch(1).thread)])
    assert [stored.row.id for stored in thread.checkpoints] == [uid(1), uid(3), uid(4)]


async def test_an_awaited_call_is_one_round_trip(backend):
    face = backend.asynchronous
    await face.commit(batch(1))
    await face.fetch(READS)
    trips = Trips(AsyncConnection)
    with trips.patch:
        await face.commit(batch(2))
        await face.fetch(READS[:1])
        assert trips.count == 2
    await face.close()


def test_large_values(backend):
    data = os.urandom(1 << 20) * 24
    backend.commit(Batch(THREAD, NOW, segments=(Segment(1, 0, 1, data),)))
    ((found,),) = backend.fetch([ReadSegments(THREAD, (Span(1, 0, 1),))])
    assert found.data == data


def test_many_spans_and_rows_at_once(backend):
    """More than Lua's stack has room for."""
    numbers = range(9000)
    backend.commit(
        Batch(
            THREAD,
            NOW,
            segments=tuple(segment(2 * n) for n in numbers),
            writes=tuple(write(1) for _ in numbers),
        )
    )
    spans = tuple(Span(1, 2 * n, 2 * n + 1) for n in numbers)
    segments, rows = backend.fetch([ReadSegments(THREAD, spans), ReadThread(THREAD)])
    assert [s.start for s in segments] == [2 * n for n in numbers]
    assert [w.seq for w in rows.orphans] == [n + 1 for n in numbers]


def test_each_event_loop_has_a_client_of_its_own(backend):
    async def use(number):
        for at in range(3):
            row = checkpoint(number * 10 + at)
            await backend.asynchronous.commit(Batch(THREAD, NOW, checkpoints=(row,)))
        return await backend.asynchronous.fetch(READS)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(3):
            asyncio.run(use(number))  # none is closed by hand
        others = [threading.Thread(target=asyncio.run, args=(use(n),)) for n in (4, 5)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        gc.collect()
    (rows,) = backend.fetch(READS[2:])
    assert len(rows.checkpoints) == 15


async def test_closing_from_elsewhere_closes_the_loops_client():
    backend = RedisBackend(url(), prefix=empty_prefix())
    await backend.asynchronous.commit(batch(1))
    (client, _) = next(iter(backend.asynchronous._source._loops.values()))
    await asyncio.to_thread(backend.close)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(c.is_connected for c in client.connection_pool._available_connections)
    with pytest.raises(threadkeep.errors.ClosedError):
        await backend.asynchronous.fetch(READS)


async def test_a_cancelled_call_leaves_no_answer_behind(backend):
    face = backend.asynchronous
    await face.commit(batch(1))
    for pauses in range(12):
        task = asyncio.ensure_future(face.fetch(READS))
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        (state,) = await face.fetch([ReadCheckpoint(THREAD, "")])
        assert state.found.row.id == uid(1)
    await face.close()


def test_a_child_process_has_connections_of_its_own(backend):
    backend.commit(batch(1))
    child = os.fork()
    if not child:
        backend.commit(batch(2))
        os._exit(0)
    for _ in range(50):
        (state,) = backend.fetch(READS[:1])
        assert state.found.row.id in (uid(1), uid(2))
    assert os.waitpid(child, 0)[1] == 0
    assert backend.fetch(READS[:1])[0].found.row.id == uid(2)


# -- arguments -----------------------------------------------------------------------


def test_a_client_that_decodes_is_refused():
    with redis.Redis.from_url(url(), decode_responses=True) as client:
        with pytest.raises(InvalidArgumentError, match="decode_responses"):
            opened(client)
        with pytest.raises(InvalidArgumentError, match="decode_responses"):
            threadkeep.RedisSaver(client)
    with pytest.raises(InvalidArgumentError, match="decode_responses"):
        opened(redis.asyncio.Redis(decode_responses=True))
    with pytest.raises(InvalidArgumentError, match="decode_responses"):
        opened("redis://localhost?decode_responses=True")


def test_a_given_client_stays_open():
    with redis.Redis.from_url(url()) as client:
        backend = opened(client, prefix=empty_prefix())
        backend.commit(batch(1))
        backend.close()
        assert client.ping()


async def test_a_given_async_client_serves_one_event_loop():
    async with redis.asyncio.Redis.from_url(url()) as client:
        assert isinstance(opened(client), AsyncRedisBackend)
        async with threadkeep.AsyncRedisSaver(client, prefix=empty_prefix()) as saver:
            assert await saver.aget_tuple({"configurable": {"thread_id": "1"}}) is None
            found = await asyncio.to_thread(saver.get_tuple, {"configurable": {"thread_id": "1"}})
            assert found is None
            with pytest.raises(InvalidArgumentError, match="async backend"):
                saver.get_tuple({"configurable": {"thread_id": "1"}})
        assert await client.ping()


def test_a_client_by_the_name_that_langgraphs_classes_have():
    with redis.Redis.from_url(url()) as client:
        with threadkeep.RedisSaver(redis_client=client, prefix=(prefix := empty_prefix())) as saver:
            saver.threads.create("t")
        with threadkeep.RedisSaver.from_conn_string(redis_client=client, prefix=prefix) as saver:
            assert saver.threads.get("t") is not None
        with threadkeep.RedisStore(redis_client=client, prefix=prefix) as store:
            store.put(("users",), "ann", {"likes": "tea"})
        assert client.ping()
    with pytest.raises(InvalidArgumentError, match="NoneType is no Redis server"):
        threadkeep.RedisSaver()


def test_what_is_no_server_is_refused():
    with pytest.raises(InvalidArgumentError, match="dict is no Redis server"):
        opened({})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("prefix", ""), ("prefix", "a{b}"), ("prefix", None)),
        *(("ttl", 0), ("ttl", -1), ("ttl", "1"), ("ttl", True), ("ttl", float("inf"))),
        *(("ttl", {"default_ttl": 0}), ("ttl", {"default_ttl": "60"}), ("ttl", {"default": 60})),
        *(("ttl", {"refresh_on_read": 1}), ("ttl", {"default_ttl": 10**9})),
        *(("ttl_refresh_on_read", 1), ("max_connections", 0), ("max_connections", 1.5)),
        *(("timeout", 0), ("timeout", None), ("timeout", float("nan"))),
    ],
)
def test_options_are_checked(option, value):
    with pytest.raises(InvalidArgumentError, match=option):
        RedisBackend(url(), **{option: value})


def test_unknown_options_are_refused():
    with pytest.raises(InvalidArgumentError, match="no option 'schema'"):
        threadkeep.open_saver(url(), schema="x")


@pytest.mark.parametrize(
    "bad",
    ["redis://host:port", "redis+cluster://u:secret@h:99999999", "redis://h?socket_timeout=x"],
)
def test_a_url_that_cannot_be_read(bad):
    with pytest.raises(OpenError) as caught:
        threadkeep.open_saver(bad)
    assert "secret" not in str(caught.value)


def test_the_prefix_may_be_in_the_url():
    prefix = empty_prefix()
    with threadkeep.open_saver(f"{url()}?prefix={prefix}") as saver:
        saver.put(
            {"configurable": {"thread_id": "1", "checkpoint_ns": ""}},
            {
                "v": 4,
                "id": uid(1),
                "ts": "",
                "channel_values": {},
                "channel_versions": {},
                "versions_seen": {},
            },
            {},
            {},
        )
    with redis.Redis.from_url(url()) as client:
        assert client.exists(f"{prefix}:{{1}}:t", f"{prefix}:threads") == 2
