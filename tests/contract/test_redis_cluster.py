"""The contract on a Redis cluster of three nodes, and a slot that moves while it is written to."""

import asyncio
import operator
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Annotated, TypedDict

import pytest
import redis
import redis.asyncio
from kit.contract import Variant, awaited
from kit.redis_servers import Writer, cluster, free_port
from langgraph.graph import START, StateGraph

import threadkeep
from threadkeep._core.engine.model import Batch, FindThreads, HeadFence, ReadCheckpoint, ReadThread
from threadkeep._stores.redis.backend import RedisBackend, opened
from threadkeep._stores.redis.rows import (
    index_of,
    keys_of,
)
from threadkeep._stores.redis.scripts import RedisCommand
from threadkeep._stores.sync_bridge import finish
from threadkeep.cache import open_cache
from threadkeep.errors import StaleThreadError
from threadkeep.testing import BackendContract
from threadkeep.testing.records import NOW, checkpoint, segment, uid, write

_numbers = count()


def new_prefix():
    return f"tk-{next(_numbers)}"


class TestCluster(BackendContract):
    prefix = ""

    def new_backend(self, folder):
        self.prefix = new_prefix()
        return self.reopen(folder)

    def reopen(self, folder):
        return RedisBackend(cluster().url, prefix=self.prefix)


class TestAsyncCluster(Variant):
    def new_backend(self, folder):
        return awaited(RedisBackend(cluster().url, prefix=new_prefix()))


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def graph(saver):
    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"said": [f"{len(state['said'])} so far"]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def test_a_saver_on_a_cluster():
    """Everything that spans threads, which are on all nodes."""
    with threadkeep.open_saver(f"{cluster().url}?prefix={new_prefix()}") as saver:
        runs = graph(saver)
        threads = [f"thread {number}" for number in range(9)]
        for thread in threads:
            to = {"configurable": {"thread_id": thread}, "run_id": uuid.uuid4()}
            runs.invoke({"said": ["one"]}, to)
            asyncio.run(runs.ainvoke({"said": ["two"]}, to))
            assert runs.get_state(to).values["said"] == ["one", "1 so far", "two", "3 so far"]
            assert len(list(runs.get_state_history(to))) == 6
        ids = [found.checkpoint["id"] for found in saver.list(None)]
        assert len(ids) == 54
        assert ids == sorted(ids, reverse=True)
        saver.copy_thread("thread 1", "copy")
        saver.delete_thread("thread 1")
        saver.prune(threads[2:])
        report = saver.check()
        assert report.ok, report.findings
        assert report.threads == 9
        assert saver.stats().checkpoints == 6 + 6 + 7  # two whole ones, seven pruned


def node():
    return {"host": "127.0.0.1", "port": cluster().nodes[1].port}


def test_a_given_cluster_client_stays_open():
    with redis.RedisCluster(**node()) as client:
        backend = opened(client, prefix=new_prefix())
        backend.commit(Batch("t", NOW, checkpoints=(checkpoint(1),)))
        backend.close()
        assert client.ping()


async def test_a_given_async_cluster_client_stays_open():
    async with redis.asyncio.RedisCluster(**node()) as client:
        backend = opened(client, prefix=new_prefix())
        await backend.commit(Batch("t", NOW, checkpoints=(checkpoint(1),)))
        (state,) = await backend.fetch([ReadCheckpoint("t", "")])
        assert state.found.row == checkpoint(1)
        await backend.close()
        assert await client.ping()


def test_the_first_calls_at_once_go_to_the_right_nodes(monkeypatch):
    """Of a client that does not know the slots yet; a redirection may close used connections."""
    errors = []
    call = redis.asyncio.cluster.ClusterNode.execute_command

    async def noted(self, *words, **options):
        try:
            return await call(self, *words, **options)
        except redis.exceptions.MovedError as error:
            errors.append(error)
            raise

    monkeypatch.setattr(redis.asyncio.cluster.ClusterNode, "execute_command", noted)

    async def read(saver, number):
        return await saver.aget_tuple({"configurable": {"thread_id": f"thread {number}"}})

    async def begin():
        async with threadkeep.AsyncRedisSaver(cluster().url, prefix=new_prefix()) as saver:
            return await asyncio.gather(*(read(saver, number) for number in range(64)))

    assert asyncio.run(begin()) == [None] * 64
    assert not errors


def test_more_calls_at_once_than_connections():
    """Pools of a cluster don't wait for a free connection, so calls are repeated."""
    reads = [[ReadCheckpoint(f"thread {number}", "")] for number in range(24)]
    backend = RedisBackend(cluster().url, prefix=new_prefix(), max_connections=2)
    at_once = threading.Barrier(len(reads))

    def fetch(read):
        at_once.wait()
        return backend.fetch(read)

    async def begin():
        face = backend.asynchronous
        found = await asyncio.gather(*(face.fetch(read) for read in reads))
        await face.close()
        return found

    with ThreadPoolExecutor(len(reads)) as threads:
        assert all(state.found is None for (state,) in threads.map(fetch, reads))
    assert all(state.found is None for (state,) in asyncio.run(begin()))
    backend.close()


def test_a_url_names_several_nodes():
    """One of them is enough."""
    ports = (free_port(), cluster().nodes[0].port)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    with threadkeep.open_saver(f"redis+cluster://{hosts}?prefix={new_prefix()}") as saver:
        to = {"configurable": {"thread_id": "t"}}
        graph(saver).invoke({"said": ["one"]}, to)
        found = asyncio.run(graph(saver).aget_state(to))
        assert found.values["said"] == ["one", "1 so far"]


# -- the index of threads, which is in a slot of its own ---------------------------------


class Sweeping:
    """A source that empties the index after others have added to it."""

    def __init__(self, inner, index, times):
        self.inner, self.index, self.times = inner, index, times
        self.is_cluster, self.sent = True, []

    async def send(self, calls):
        answers = []
        for call in calls:
            self.sent.append(call.words[0])
            answers += await self.inner.send([call])
            if call.words[0] == "ZADD" and self.times:
                self.times -= 1
                await self.inner.send([RedisCommand(("DEL", self.index))])
        return answers


@pytest.mark.parametrize("swept", [0, 1])
def test_a_new_thread_is_in_the_index_whoever_sweeps_it_meanwhile(swept):
    prefix = new_prefix()
    backend = RedisBackend(cluster().url, prefix=prefix)
    backend.face._source = source = Sweeping(backend.face._source, index_of(prefix), swept)
    backend.commit(Batch("t", NOW, checkpoints=(checkpoint(1),)))
    assert source.sent == ["EVALSHA", "ZADD", "EVALSHA", "ZADD", "INFO"]
    source.sent.clear()
    backend.commit(Batch("t", NOW, checkpoints=(checkpoint(2),)))
    assert source.sent == ["EVALSHA"]
    backend.face._source = source.inner
    assert backend.fetch([FindThreads(None, 9)]) == [["t"]]
    backend.close()


def test_a_thread_that_came_back_stays_in_the_index():
    backend = RedisBackend(cluster().url, prefix=new_prefix())
    backend.commit(Batch("t", NOW, checkpoints=(checkpoint(1),)))
    finish(backend.face.sweep("t"))  # by somebody who has just not found it
    finish(backend.face.sweep("never there"))
    assert backend.fetch([FindThreads(None, 9, empty=True)]) == [["t"]]
    backend.close()


def test_a_refused_batch_brings_no_thread_into_the_index():
    prefix = new_prefix()
    backend = RedisBackend(cluster().url, prefix=prefix)
    with pytest.raises(StaleThreadError):
        backend.commit(Batch("t", NOW, generation=7))
    client = redis.RedisCluster(**node())
    assert not client.exists(index_of(prefix))
    client.close()
    backend.close()


# -- a slot that moves -------------------------------------------------------------------


def batch(number):
    return Batch(
        "busy",
        NOW,
        fences=(HeadFence("", uid(number - 1) if number > 1 else None),),
        segments=(segment(number, data=b"%d" % number * 1000),),
        checkpoints=(checkpoint(number, number - 1, key_pos=number),),
        writes=(write(number),),
    )


@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_a_slot_moves_while_its_thread_is_written_to(face):
    prefix = new_prefix()
    with_cluster = cluster()
    backend = RedisBackend(with_cluster.url, prefix=prefix)
    blocking = backend if face == "blocking" else awaited(backend)
    with Writer(blocking.commit, batch) as writer:
        writer.wait_for(20)
        key = keys_of(prefix, "busy")[0]
        for _ in range(4):
            with_cluster.move(key, (with_cluster.owner(key) + 1) % 3)
            writer.wait_for(20)
    (rows,) = blocking.fetch([ReadThread("busy")])
    assert [s.row.id for s in rows.checkpoints] == [uid(n) for n in range(1, writer.done + 1)]
    assert all(s.keyframe and s.writes for s in rows.checkpoints)
    blocking.close()
    if face == "awaited":
        blocking.stop()
        backend.close()


# -- caches of node results --------------------------------------------------------------


def test_a_cache_is_in_one_slot():
    keys = [(("a",), f"key {n}") for n in range(50)]
    url = f"{cluster().url}?prefix={new_prefix()}"
    with open_cache(url, max_entries=20, lease=60) as cache:
        assert cache.get(keys) == {}
        cache.set({key: (n, 60) for n, key in enumerate(keys)})
        found = cache.get(keys)
        assert len(found) == 20
        assert asyncio.run(cache.aget(list(found))) == found
        cache.delete(keys[:40])
        cache.clear([("a",)])
        assert asyncio.run(cache.aget(keys)) == {}
