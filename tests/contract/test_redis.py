"""The contract on Redis: blocking and awaited, over clients of ours and a program's own."""

import atexit
import os
from functools import cache

import pytest
import redis
import redis.asyncio
from kit.contract import AsyncOwning, Variant, awaited, owning
from kit.redis import empty_prefix, url, url_for
from kit.redis_servers import Server

from threadkeep._stores.redis.backend import RedisBackend, opened
from threadkeep.testing import BackendContract, BlockingBackend


class TestRedis(Variant):
    def new_backend(self, folder):
        return RedisBackend(url_for(folder))

    def reopen(self, folder):
        return self.new_backend(folder)


class TestAsyncRedis(BackendContract):
    def new_backend(self, folder):
        return awaited(RedisBackend(url_for(folder)))

    def reopen(self, folder):
        return self.new_backend(folder)


class TestGivenClient(Variant):
    """One that speaks the newer protocol."""

    def new_backend(self, folder):
        client = redis.Redis.from_url(url(), protocol=3)
        return owning(opened(client, prefix=empty_prefix()), client)


class TestGivenAsyncClient(Variant):
    def new_backend(self, folder):
        async def make():
            client = redis.asyncio.Redis.from_url(url())
            return AsyncOwning(opened(client, prefix=empty_prefix()), client.aclose)

        return BlockingBackend(make)


@cache
def newer_server():
    """A server of the newest version that is here; it is stopped when the process ends."""
    program = os.environ.get("TK_TEST_REDIS_NEW_BIN")
    if not program:
        return None
    server = Server(program=program)
    atexit.register(server.stop)
    return server


class TestNewerRedis(Variant):
    """Redis or Valkey of version 7 or newer."""

    def new_backend(self, folder):
        server = newer_server()
        if server is None:
            pytest.skip("no newer Redis: see scripts/services")
        server.admin.flushall()
        return RedisBackend(server.url)
