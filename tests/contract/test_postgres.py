"""The contract on PostgreSQL: blocking and awaited, over pools of ours and a program's own."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from kit.contract import AsyncOwning, Variant, awaited, owning
from kit.postgres import empty_schema, hashed, monthly, url, url_for
from kit.postgres_databases import wait_for_a_lock
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep._core.engine.model import Batch, CopyThread, DropThread, HeadFence, ReadThread
from threadkeep._stores.postgres.backend import PostgresBackend, opened
from threadkeep.errors import BackendError, ConflictError
from threadkeep.testing import BackendContract, BlockingBackend
from threadkeep.testing.records import checkpoint, uid


class TestPostgres(BackendContract):
    def new_backend(self, folder):
        return PostgresBackend(url_for(folder), max_size=8)

    def reopen(self, folder):
        return self.new_backend(folder)


class TestAsyncPostgres(Variant):
    def new_backend(self, folder):
        return awaited(PostgresBackend(url_for(folder), max_size=8))

    def reopen(self, folder):
        return self.new_backend(folder)


class TestPostgresWithTimeout(Variant):
    """Each call is a pipelined transaction then, that sets its own limit."""

    def new_backend(self, folder):
        return PostgresBackend(url_for(folder), max_size=8, statement_timeout=20)


class TestMonthlyPartitions(Variant):
    """Checkpoints by month, as `partition_by` makes them; the contract's lie in several."""

    def new_backend(self, folder):
        return PostgresBackend(url_for(folder, monthly), max_size=8)

    def reopen(self, folder):
        return self.new_backend(folder)


class TestHashPartitions(Variant):
    """All tables by a hash of the thread's id, as plain DDL makes them."""

    def new_backend(self, folder):
        return PostgresBackend(url_for(folder, hashed), max_size=8)

    def reopen(self, folder):
        return self.new_backend(folder)


class TestGivenPool(Variant):
    """A pool as programs have it: not in autocommit mode."""

    test_to_scrub_changes_no_row = None  # (needs autocommit: see test_postgres_scrubbing.py)

    def new_backend(self, folder):
        pool = ConnectionPool(url(), min_size=1, max_size=4, open=True)
        return owning(opened(pool, schema=empty_schema()), pool)


class TestGivenConnection(Variant):
    test_to_scrub_changes_no_row = None  # (needs autocommit: see test_postgres_scrubbing.py)

    def new_backend(self, folder):
        connection = psycopg.connect(url())
        return owning(opened(connection, schema=empty_schema()), connection)


class TestGivenAsyncPool(Variant):
    test_to_scrub_changes_no_row = None  # (needs autocommit: see test_postgres_scrubbing.py)

    def new_backend(self, folder):
        async def make():
            pool = AsyncConnectionPool(url(), min_size=1, max_size=4, open=False)
            await pool.open()
            return AsyncOwning(opened(pool, schema=empty_schema()), pool.close)

        return BlockingBackend(make)


class TestGivenAsyncConnection(Variant):
    def new_backend(self, folder):
        async def make():
            connection = await psycopg.AsyncConnection.connect(url(), autocommit=True)
            return AsyncOwning(opened(connection, schema=empty_schema()), connection.close)

        return BlockingBackend(make)


def test_a_put_whose_answer_was_lost_is_not_refused_for_what_came_after_it():
    backend = PostgresBackend(url(), schema=empty_schema(), max_size=2)
    first = Batch("t", 1, fences=(HeadFence("", None),), checkpoints=(checkpoint(1),))
    backend.commit(first)
    backend.commit(Batch("t", 1, fences=(HeadFence("", uid(1)),), checkpoints=(checkpoint(2, 1),)))
    backend.commit(first)
    other = first._replace(checkpoints=(checkpoint(1, manifest=b"another"),))
    with pytest.raises(ConflictError):
        backend.commit(other)
    backend.close()


def test_a_copy_whose_source_is_deleted_while_it_waits_changes_nothing():
    backend = PostgresBackend(url(), schema=(schema := empty_schema()), max_size=2)
    backend.commit(Batch("source", 1, checkpoints=(checkpoint(1),)))
    backend.commit(DropThread("target", 7))
    with psycopg.connect(url()) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(f"SELECT {schema}.drop_thread('source', 9)")
        copying = pool.submit(backend.commit, CopyThread("source", "target", 1))
        wait_for_a_lock(url(), copying)
        rival.commit()
        copying.result(30)
    (target,) = backend.fetch([ReadThread("target")])
    assert (target.deleted_at, target.checkpoints) == (7, ())
    backend.close()


@pytest.mark.parametrize("change", [DropThread("t", 1), CopyThread("t", "u", 1)])
def test_no_change_is_made_from_an_old_snapshot(change):
    with psycopg.connect(url(), autocommit=True) as given:
        given.execute("SET default_transaction_isolation = 'repeatable read'")
        backend = opened(given, schema=(schema := empty_schema()))
        given.execute(f"INSERT INTO {schema}.writes SELECT 't', '', 'c', 1, 0, 0, '', '', ''")
        with pytest.raises(BackendError, match="READ COMMITTED"):
            backend.commit(change)
