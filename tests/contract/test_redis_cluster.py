"""The contract on a Redis cluster of three nodes, and a slot that moves while it is written to."""

import asyncio
import threading
from itertools import count

import pytest
import redis
import redis.asyncio
from redis_servers import cluster

from threadkeep.backends.redis import RedisBackend, opened
from threadkeep.backends.redis.keys import keys_of
from threadkeep.engine.model import Batch, HeadFence, ReadCheckpoint, ReadThread
from threadkeep.testing import BackendContract, Blocking
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


class TestAsyncCluster(BackendContract):
    def new_backend(self, folder):
        async def make():
            return RedisBackend(cluster().url, prefix=new_prefix()).asynchronous

        return Blocking(make)


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


def batch(number):
    return Batch(
        "busy",
        NOW,
        fences=(HeadFence("", uid(number - 1) if number > 1 else None),),
        segments=(segment(number, data=b"%d" % number * 1000),),
        checkpoints=(checkpoint(number, number - 1, key_pos=number),),
        writes=(write(number),),
    )


class Load:
    """Commits one checkpoint after the other until it is told to end."""

    def __init__(self, commit):
        self.commit = commit
        self.done = 0
        self.ended = threading.Event()
        self.moved_on = threading.Condition()

    def run(self):
        while not self.ended.is_set():
            self.commit(batch(self.done + 1))
            with self.moved_on:
                self.done += 1
                self.moved_on.notify_all()

    def wait_for(self, more):
        wanted = self.done + more
        with self.moved_on:
            assert self.moved_on.wait_for(lambda: self.done >= wanted, timeout=20)


@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_a_slot_moves_while_its_thread_is_written_to(face):
    prefix = new_prefix()
    with_cluster = cluster()
    backend = RedisBackend(with_cluster.url, prefix=prefix)
    blocking = backend if face == "blocking" else Blocking(lambda: of_loop(backend))
    load = Load(blocking.commit)
    worker = threading.Thread(target=load.run)
    worker.start()
    try:
        load.wait_for(20)
        key = keys_of(prefix, "busy")[0]
        for _ in range(4):
            with_cluster.move(key, (with_cluster.owner(key) + 1) % 3)
            load.wait_for(20)
    finally:
        load.ended.set()
        worker.join()
    (rows,) = blocking.fetch([ReadThread("busy")])
    assert [s.row.id for s in rows.checkpoints] == [uid(n) for n in range(1, load.done + 1)]
    assert all(s.keyframe and s.writes for s in rows.checkpoints)
    blocking.close()
    if face == "awaited":
        blocking.stop()
        backend.close()


async def of_loop(backend):
    await asyncio.sleep(0)
    return backend.asynchronous
