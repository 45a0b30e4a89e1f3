"""The contract on PostgreSQL: blocking and awaited, over pools of ours and a program's own."""

import psycopg
from postgres_kit import empty_schema, url, url_for
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep.backends.postgres import PostgresBackend, opened
from threadkeep.testing import BackendContract, Blocking


class TestPostgres(BackendContract):
    def new_backend(self, folder):
        return PostgresBackend(url_for(folder), max_size=8)

    def reopen(self, folder):
        return self.new_backend(folder)


class TestAsyncPostgres(BackendContract):
    def new_backend(self, folder):
        async def make():
            return PostgresBackend(url_for(folder), max_size=8).asynchronous

        return Blocking(make)

    def reopen(self, folder):
        return self.new_backend(folder)


class TestPostgresWithTimeout(BackendContract):
    """Each call is a pipelined transaction then, that sets its own limit."""

    def new_backend(self, folder):
        return PostgresBackend(url_for(folder), max_size=8, statement_timeout=20)


class Owning:
    """A backend over something of the program's, which closes it too."""

    def __init__(self, given):
        self.given = given
        self.inner = opened(given, schema=empty_schema())
        self.fetch, self.commit = self.inner.fetch, self.inner.commit
        self.commit_many = self.inner.commit_many

    def close(self):
        self.inner.close()
        self.given.close()


class TestGivenPool(BackendContract):
    """A pool as programs have it: not in autocommit mode."""

    def new_backend(self, folder):
        return Owning(ConnectionPool(url(), min_size=1, max_size=4, open=True))


class TestGivenConnection(BackendContract):
    def new_backend(self, folder):
        return Owning(psycopg.connect(url()))


class AsyncOwning(Owning):
    async def close(self):
        await self.inner.close()
        await self.given.close()


class TestGivenAsyncPool(BackendContract):
    def new_backend(self, folder):
        async def make():
            pool = AsyncConnectionPool(url(), min_size=1, max_size=4, open=False)
            await pool.open()
            return AsyncOwning(pool)

        return Blocking(make)


class TestGivenAsyncConnection(BackendContract):
    def new_backend(self, folder):
        async def make():
            return AsyncOwning(await psycopg.AsyncConnection.connect(url(), autocommit=True))

        return Blocking(make)
