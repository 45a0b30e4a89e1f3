"""The contract on Redis: blocking and awaited, over clients of ours and a program's own."""

import atexit
import os
from functools import cache

import pytest
import redis
import redis.asyncio
from kit.contract import Variant
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
        async def make():
            return RedisBackend(url_for(folder)).asynchronous

        return BlockingBackend(make)

    def reopen(self, folder):
        return self.new_backend(folder)


def owning(given):
    """A blocking backend over something of the program's, which closes it too."""
    backend = opened(given, prefix=empty_prefix())
    close = backend.close
    backend.close = lambda: (close(), given.close())
    return backend


class TestGivenClient(Variant):
    """One that speaks the newer protocol."""

    def new_backend(self, folder):
        return owning(redis.Redis.from_url(url(), protocol=3))


class AsyncOwning:
    """A backend over a client of the program's, which closes it too."""

    def __init__(self, given):
        self.given = given
        self.inner = opened(given, prefix=empty_prefix())
        self.fetch, self.commit = self.inner.fetch, self.inner.commit
        self.commit_many, self.scrub = self.inner.commit_many, self.inner.scrub

    async def close(self):
        await self.inner.close()
        await self.given.aclose()


class TestGivenAsyncClient(Variant):
    def new_backend(self, folder):
        async def make():
            return AsyncOwning(redis.asyncio.Redis.from_url(url()))

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
