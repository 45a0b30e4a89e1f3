"""PostgreSQL behind PgBouncer in transaction mode: each transaction may have another session.

Debian's is older than 1.21 and knows nothing of prepared statements, so that ours are off.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from kit.contract import Variant, awaited
from kit.postgres import empty_schema, make, url, url_for
from kit.postgres_server import SECONDS, bouncer
from kit.rows import aput, place, put, value_at

from threadkeep import AsyncPostgresSaver, MemorySaver, PostgresSaver
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.postgres.messages import ONE_STATE, send
from threadkeep._stores.postgres.statement import Statement
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import BackendError, OpenError, StatementTimeoutError
from threadkeep.testing import BlockingBackend

POOLED = {"prepare_threshold": None}


@pytest.fixture(scope="module")
def between():
    """A PgBouncer with four connections to the server."""
    with bouncer(url()) as found:
        yield found


class TestBehindPgBouncer(Variant):
    @pytest.fixture(autouse=True)
    def _backend(self, tmp_path, between):
        self.folder, self.between = tmp_path, between
        self.backend = self.new_backend(tmp_path)
        yield
        self.backend.close()
        if isinstance(self.backend, BlockingBackend):
            self.backend.stop()

    def new_backend(self, folder):
        schema = url_for(folder).rpartition("=")[2]
        return PostgresBackend(self.between, schema=schema, max_size=8, **POOLED)

    def reopen(self, folder):
        return self.new_backend(folder)


class TestAsyncBehindPgBouncer(TestBehindPgBouncer):
    def new_backend(self, folder):
        return awaited(super().new_backend(folder))


@pytest.fixture
def sessions():
    """Return the number of server sessions of our clients, by application name."""

    def count(name):
        with psycopg.connect(url()) as db:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            return db.execute(query, (name,)).fetchone()[0]

    return count


@pytest.mark.parametrize("statement_timeout", [None, 30])
def test_more_clients_than_the_server_has_connections_for(between, sessions, statement_timeout):
    options = {"schema": empty_schema(), "max_size": 24, "statement_timeout": statement_timeout}
    options["application_name"] = f"threadkeep, many {statement_timeout}"

    def run(saver, number):
        config = place(str(number))
        for step in range(5):
            config = put(saver, config, {"value": [*range(step)]}, value=step + 1)
            saver.put_writes(config, [("value", step)], "task")
            assert value_at(saver, place(str(number))) == [*range(step)]
        return len(list(saver.list(place(str(number)))))

    with PostgresSaver(between, **options, **POOLED) as saver, ThreadPoolExecutor(24) as pool:
        runs = [pool.submit(run, saver, number) for number in range(24)]
        assert [one.result(SECONDS) for one in runs] == [5] * 24
        assert 1 <= sessions(options["application_name"]) <= 4
        assert saver.check().ok


def test_without_the_option_for_old_bouncers_the_error_names_it(between):
    """Sessions are shared, so statements that one client prepared are met by others."""
    options = {"schema": empty_schema(), "prepare_threshold": 1}

    def run(number):
        with PostgresSaver(between, **options) as saver:
            config = place(str(number))
            for step in range(20):
                config = put(saver, config, {"value": step}, value=step + 1)

    with ThreadPoolExecutor(12) as pool:
        runs = [pool.submit(run, number) for number in range(12)]
        errors = [error for one in runs if (error := one.exception(SECONDS))]
    assert errors
    for error in errors:
        assert isinstance(error, BackendError)
        assert "prepare_threshold=None" in error.hint, error


async def test_more_tasks_than_the_server_has_connections_for(between):
    options = {"schema": empty_schema(), "max_size": 24}

    async def run(saver, number):
        config = place(str(number))
        for step in range(5):
            config = await aput(saver, config, {"value": [*range(step)]}, value=step + 1)
            await saver.aput_writes(config, [("value", step)], "task")
        return [found async for found in saver.alist(place(str(number)))]

    async with AsyncPostgresSaver(between, **options, **POOLED) as saver:
        found = await asyncio.gather(*(run(saver, number) for number in range(48)))
        assert [len(one) for one in found] == [5] * 48
        assert (await saver.acheck()).ok


def test_a_time_limit_is_for_its_own_statement_only(between):
    """The next client of the same session has its own."""
    schema = empty_schema()
    options = {"schema": schema, **POOLED}
    limited = PostgresSaver(between, statement_timeout=0.2, **options)
    with psycopg.connect(url()) as rival, limited, PostgresSaver(between, **options) as free:
        put(free, place(), {"value": 0})
        rival.execute(f"SELECT FROM {schema}.threads FOR UPDATE")
        for _ in range(4):
            with pytest.raises(StatementTimeoutError):
                put(limited, place(), {"value": 1})
        for _ in range(8):
            with psycopg.connect(between, **POOLED) as client:
                assert client.execute("SHOW statement_timeout").fetchone() == ("0",)
        rival.rollback()
        put(limited, place(), {"value": 1})


def test_tables_can_be_made_through_it_and_no_lock_is_left_behind(between):
    schema = f"{empty_schema()}_pooled"
    make(schema)  # so that it is dropped in the end
    with psycopg.connect(url(), autocommit=True) as db:
        db.execute(f"DROP SCHEMA {schema} CASCADE")
        with (
            PostgresSaver(between, schema=schema, **POOLED) as saver,
            ThreadPoolExecutor(8) as pool,
        ):
            for done in [pool.submit(saver.setup) for _ in range(8)]:
                done.result(SECONDS)
            saver.setup()
            put(saver, place(), {"value": 1})
        mine = """SELECT 1 FROM pg_locks WHERE locktype = 'advisory'
            AND classid::bigint << 32 | objid::bigint = hashtextextended(%s, 0)"""
        assert db.execute(mine, (f'threadkeep "{schema}"',)).fetchall() == []


def test_a_bouncer_that_restarts_is_not_noticed():
    schema = empty_schema()
    with bouncer(url()) as before:
        port = int(before.rpartition(":")[2].partition("/")[0])
        saver = PostgresSaver(before, schema=schema, min_size=3, **POOLED)
        config = put(saver, place(), {"value": 0})
    with saver, bouncer(url(), listen_port=port):
        put(saver, config, {"value": 1}, value=2)
        assert value_at(saver, place()) == 1


def test_a_schema_of_langgraphs_tables_does_not_reach_other_programs(between):
    """The next client of the same session would have its search_path."""
    schema = empty_schema()
    with MemorySaver() as saver:
        for move in (saver.threads.adopt, saver.threads.leave):
            with pytest.raises(OpenError, match="PgBouncer"):
                move(f"{between}?schema={schema}")
        with pytest.raises(OpenError, match="no tables"):
            saver.threads.adopt(f"{between}?schema=public")


@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection])
async def test_a_transaction_ends_with_its_last_sync(kind, tmp_path):
    """For a Flush after it, a bouncer would keep a session until the client's next transaction."""
    statements = [Statement("SELECT 1"), Statement("SELECT 2")]
    conn = await result(kind.connect(url(), autocommit=True))
    with (tmp_path / "trace").open("w") as trace:
        conn.pgconn.trace(trace.fileno())
        assert await send(conn, statements, ONE_STATE) == [[(1,)], [(2,)]]
        conn.pgconn.untrace()
    said = (tmp_path / "trace").read_text()
    await result(conn.close())
    assert said.count("Sync") == 1
    assert "Flush" not in said
