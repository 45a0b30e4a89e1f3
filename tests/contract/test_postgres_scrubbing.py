"""Erased threads leave no bytes in PostgreSQL's files."""

from uuid import uuid4

import psycopg
import pytest
from kit.engine import Chain
from kit.postgres_server import server
from kit.remnants import remnants
from psycopg_pool import AsyncConnectionPool

from threadkeep import PostgresSaver, open_saver
from threadkeep._core.codec.frame import Compression
from threadkeep._stores.postgres import maintenance
from threadkeep.errors import UnfinishedErasureError

PLAIN = Compression(level=0)


@pytest.fixture(scope="module")
def own():
    with server("max_prepared_transactions=2") as started:
        yield started


@pytest.fixture
def marker():
    """Return the marker to search for: a new one each time, since tests share a server."""
    return f"marker-{uuid4().hex}"


@pytest.fixture
def store(own, marker, request):
    """A saver on a schema of its own, with a thread that holds the marker and one that does not."""
    name = f"s_{request.node.name.translate(str.maketrans('[]- ', '____'))}"
    url = f"{own.url()}?schema={name}"
    with open_saver(url, max_size=2, compression=PLAIN) as saver:
        saver.setup()
        for thread, said in (("x", marker), ("y", "else")):
            fill(saver, thread, said)
        yield saver


def fill(saver, thread, said):
    chain = Chain(saver, thread)
    for number in range(12):
        chain.put(said=[f"{said} {n}" for n in range(number)], long=said * 500)
        saver.put_writes(chain.at, [("said", said)], f"task {number}")
    saver.threads.update(thread, metadata={"name": said})


def schema_of(saver):
    return saver._store.backend.face.schema.strip('"')


@pytest.fixture
def found(own, marker):
    """Looks for the table files, of all databases, in which the marker stands."""
    return lambda: files_with(own, marker)


def files_with(own, marker):
    with psycopg.connect(own.url(), autocommit=True) as admin:
        admin.execute("CHECKPOINT")
    return [*remnants(own.data / "base", marker)]


def test_tables_that_are_written_anew_hold_nothing(own, store, found):
    with psycopg.connect(own.url(), autocommit=True) as admin:
        admin.execute("ANALYZE")
    store.prune(["x"])
    assert found()
    report = store.threads.erase("x", rewrite=True)
    assert "PostgreSQL's tables and indexes, rewritten" in report.cleared
    assert found() == []
    assert any("pg_wal" in line for line in report.remains)
    assert not any("pg_statistic" in line for line in report.remains)
    assert store.check().ok
    assert store.get_tuple({"configurable": {"thread_id": "y"}}) is not None


async def test_the_same_awaited(store, marker, found):
    assert found()
    report = await store.threads.aerase(metadata={"name": marker}, rewrite=True)
    assert [one.thread for one in report.threads] == ["x"]
    assert found() == []


async def test_over_connections_that_can_only_be_awaited(own, store, found):
    schema = schema_of(store)
    how = {"kwargs": {"autocommit": True}, "min_size": 1, "max_size": 2, "open": False}
    async with AsyncConnectionPool(own.url(), **how) as pool:
        saver = PostgresSaver(pool, schema=schema)
        report = await saver.threads.aerase("x", rewrite=True)
        assert report.threads[0].checkpoints == 12
        assert found() == []


def test_without_it_the_report_says_what_vacuum_leaves(store, found):
    report = store.threads.erase("x")
    assert any("VACUUM FULL" in line for line in report.remains)
    # (and so it is)
    assert found()
    store.threads.erase("x", rewrite=True)
    assert found() == []


def test_an_older_transaction_is_an_error_that_names_it(own, store, found, monkeypatch):
    monkeypatch.setattr(maintenance, "_PATIENCE", 0.2)
    with psycopg.connect(own.url()) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        process = other.execute("SELECT pg_backend_pid()").fetchone()[0]
        with pytest.raises(UnfinishedErasureError, match=f"process {process}") as caught:
            store.threads.erase("x", rewrite=True)
        assert caught.value.report.threads[0].checkpoints == 12
    report = store.threads.erase("x", rewrite=True)
    assert report.threads[0].checkpoints == 0
    assert found() == []


def test_a_connection_that_is_not_in_autocommit(own, store, found):
    schema = schema_of(store)
    with psycopg.connect(own.url()) as given, PostgresSaver(given, schema=schema) as saver:
        with pytest.raises(UnfinishedErasureError, match="autocommit"):
            saver.threads.erase("x", rewrite=True)
        report = saver.threads.erase("x")
        assert any("VACUUM could not be run" in line for line in report.remains)
        given.rollback()
        given.autocommit = True
        assert saver.threads.erase("x", rewrite=True).ok
        assert found() == []


def test_a_prepared_transaction_is_one_too(own, store, found, monkeypatch):
    monkeypatch.setattr(maintenance, "_PATIENCE", 0.2)
    with psycopg.connect(own.url(), autocommit=True) as other:
        other.execute("CREATE TABLE IF NOT EXISTS anything (n int)")
        other.execute("BEGIN; INSERT INTO anything VALUES (1); PREPARE TRANSACTION 'forgotten'")
        with pytest.raises(UnfinishedErasureError, match="prepared transaction forgotten"):
            store.threads.erase("x", rewrite=True)
        other.execute("ROLLBACK PREPARED 'forgotten'")
    assert store.threads.erase("x", rewrite=True).ok
    assert found() == []


def test_a_role_that_may_not_is_told(own, store):
    schema = schema_of(store)
    with psycopg.connect(own.url(), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE app_{schema} LOGIN")
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO app_{schema}")
        rights = "SELECT, INSERT, UPDATE, DELETE"
        admin.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO app_{schema}")
    url = f"{own.url(user=f'app_{schema}')}?schema={schema}"
    with open_saver(url, max_size=1, compression=PLAIN) as app:
        report = app.threads.erase("x")
        assert any("VACUUM could not be run" in line for line in report.remains)
        with pytest.raises(UnfinishedErasureError, match="owns the schema's tables"):
            app.threads.erase("x", rewrite=True)
