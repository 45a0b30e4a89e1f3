"""The contract on Redis: blocking and awaited, over clients of ours and a program's own."""

import redis
import redis.asyncio
from redis_kit import empty_prefix, url, url_for

from threadkeep.backends.redis import RedisBackend, opened
from threadkeep.testing import BackendContract, Blocking


class TestRedis(BackendContract):
    def new_backend(self, folder):
        return RedisBackend(url_for(folder))

    def reopen(self, folder):
        return self.new_backend(folder)


class TestAsyncRedis(BackendContract):
    def new_backend(self, folder):
        async def make():
            return RedisBackend(url_for(folder)).asynchronous

        return Blocking(make)

    def reopen(self, folder):
        return self.new_backend(folder)


class Owning:
    """A backend over a client of the program's, which closes it too."""

    def __init__(self, given):
        self.given = given
        self.inner = opened(given, prefix=empty_prefix())
        self.fetch, self.commit = self.inner.fetch, self.inner.commit

    def close(self):
        self.inner.close()
        self.given.close()


class TestGivenClient(BackendContract):
    def new_backend(self, folder):
        return Owning(redis.Redis.from_url(url()))


class AsyncOwning(Owning):
    async def close(self):
        await self.inner.close()
        await self.given.aclose()


class TestGivenAsyncClient(BackendContract):
    def new_backend(self, folder):
        async def make():
            return AsyncOwning(redis.asyncio.Redis.from_url(url()))

        return Blocking(make)
