"""The contract on PostgreSQL: blocking and awaited, over pools of ours and a program's own."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from kit.contract import AsyncOwning, Variant, awaited, owning
from kit.postgres import empty_schema, hashed, url, url_for
from kit.postgres_databases import wait_for_a_lock
from kit.tips import link
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from threadkeep._core.engine.model import Batch, CopyThread, DropThread, HeadFence, ReadThread
from threadkeep._stores.postgres.backend import PostgresBackend, opened
from threadkeep.errors import ConflictError
from threadkeep.testing import BackendContract, BlockingBackend
from threadkeep.testing.records import checkpoint, uid, write


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
    first = Batch("t", 1, fences=(HeadFence("", None),), checkpoints=(checkpoint(1),), link=link(7))
    backend.commit(first)
    backend.commit(Batch("t", 1, fences=(HeadFence("", uid(1)),), checkpoints=(checkpoint(2, 1),)))
    backend.commit(first)
    other = first._replace(checkpoints=(checkpoint(1, manifest=b"another"),), link=link(8))
    with pytest.raises(ConflictError):
        backend.commit(other)
    backend.close()


def test_a_copy_whose_source_is_deleted_while_it_waits_changes_nothing():
    backend = PostgresBackend(url(), schema=(schema := empty_schema()), max_size=2)
    backend.commit(Batch("source", 1, checkpoints=(checkpoint(1),)))
    backend.commit(DropThread("target", 7))
    with psycopg.connect(url()) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(f"UPDATE {schema}.threads SET tips = '{{5}}' WHERE thread_id = 'source'")
        rival.execute(f"DELETE FROM {schema}.checkpoints WHERE thread_id = 'source'")
        copying = pool.submit(backend.commit, CopyThread("source", "target", 1))
        wait_for_a_lock(url(), copying)
        rival.commit()
        copying.result(30)
    (target,) = backend.fetch([ReadThread("target")])
    assert (target.deleted_at, target.checkpoints) == (7, ())
    backend.close()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("change", [Batch("t", 1, writes=(write(1),)), DropThread("t", 1)])
def test_a_change_that_waited_builds_on_what_it_waited_for(change, level):
    """Also if the program's connection keeps snapshots."""
    with (
        psycopg.connect(url(), autocommit=True) as given,
        psycopg.connect(url()) as rival,
        ThreadPoolExecutor(1) as pool,
    ):
        given.execute(f"SET default_transaction_isolation = '{level}'")
        backend = opened(given, schema=(schema := empty_schema()))
        backend.commit(Batch("t", 1, checkpoints=(checkpoint(1),)))
        rival.execute(f"UPDATE {schema}.threads SET generation = 7, tips = '{{5}}'")
        waiting = pool.submit(backend.commit, change)
        wait_for_a_lock(url(), waiting)
        rival.commit()
        waiting.result(30)
        (thread,) = backend.fetch([ReadThread("t")])
    if isinstance(change, Batch):
        assert (thread.generation, thread.tips[1:]) == (7, (5,))
        assert len(thread.checkpoints[0].writes) == 1
    else:
        assert (thread.generation, thread.checkpoints) == (8, ())
