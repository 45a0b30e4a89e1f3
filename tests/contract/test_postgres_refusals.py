"""Refusals of PostgreSQL become typed errors with a hint; nothing is changed."""

import asyncio
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest
from kit.postgres import empty_schema, url
from kit.postgres_server import SECONDS, free_port, server
from kit.rows import aput, place, put, value_at
from kit.sync_face import FACES

from threadkeep import AsyncPostgresSaver, PostgresSaver
from threadkeep._core.engine.model import CopyThread
from threadkeep._stores.postgres.backend import AsyncPostgresBackend, PostgresBackend
from threadkeep.errors import (
    BackendError,
    DiskFullError,
    InvalidArgumentError,
    NotSetUpError,
    ReadOnlyError,
    StatementTimeoutError,
    ThreadExistsError,
    UnreachableError,
)
from threadkeep.testing.records import NOW

PASSWORD = "swordfish-4711"
_numbers = count()


@pytest.fixture(scope="module")
def own_server():
    """A server where we may make roles, and where one of them needs a password."""
    with server() as own:
        rules = own.data / "pg_hba.conf"
        rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        own.control("reload")
        with psycopg.connect(own.url(), autocommit=True) as admin:
            admin.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")
        yield own


@pytest.fixture
def admin(own_server):
    with psycopg.connect(own_server.url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(own_server):
    """A schema with one thread, and a saver of its owner."""
    schema = f"store{next(_numbers)}"
    with PostgresSaver(own_server.url(), schema=schema) as saver:
        saver.setup()
        put(saver, place(), {"value": 0})
        saver.schema = schema
        yield saver


def new_role(admin, schema, rights="SELECT, INSERT, UPDATE, DELETE"):
    name = f"role_of_{schema}"
    admin.execute(
        f"CREATE ROLE {name} LOGIN;"
        f" GRANT USAGE ON SCHEMA {schema} TO {name};"
        f" GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO {name}"
    )
    return name


@contextmanager
def nothing_changes(saver, error, match):
    """The block fails like this, and the thread has one checkpoint still, that can be followed."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert [found.checkpoint["channel_values"]["value"] for found in saver.list(place())] == [0]
    assert saver.check().ok


# -- locks and times -------------------------------------------------------------------


def test_the_shortest_limit_is_a_limit(own_server, store):
    options = {"schema": store.schema, "statement_timeout": 0.0001}
    with psycopg.connect(own_server.url()) as rival:
        rival.execute(f"SELECT FROM {store.schema}.threads FOR UPDATE")
        with (
            PostgresSaver(own_server.url(), **options) as saver,
            nothing_changes(store, StatementTimeoutError, "statement_timeout"),
        ):
            put(saver, place(), {"value": 1}, value=2)


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
async def test_a_statement_that_waits_too_long_is_given_up(own_server, store, face):
    options = {"schema": store.schema, "statement_timeout": 0.2}
    async with AsyncPostgresSaver(own_server.url(), **options) as limited:
        saver = face(limited)
        with psycopg.connect(own_server.url()) as rival:
            rival.execute(f"SELECT FROM {store.schema}.threads FOR UPDATE")
            with nothing_changes(store, StatementTimeoutError, "statement_timeout") as caught:
                await aput(saver, place(), {"value": 1}, value=2)
            assert caught.value.retryable
            found = await saver.aget_tuple(place())  # readers do not wait
            assert found.checkpoint["channel_values"]["value"] == 0
        await aput(saver, place(), {"value": 1}, value=2)
        assert value_at(store, place()) == 1


async def test_saves_that_wait_together_share_the_time_limit(own_server, store, monkeypatch):
    """A lock on the whole table, which every save waits for."""
    late = []
    commit_many = AsyncPostgresBackend.commit_many

    async def counted(self, changes):
        try:
            return await commit_many(self, changes)
        except StatementTimeoutError:
            late.append(len(changes))
            raise

    monkeypatch.setattr(AsyncPostgresBackend, "commit_many", counted)
    options = {"schema": store.schema, "statement_timeout": 0.2}
    async with AsyncPostgresSaver(own_server.url(), **options) as saver:
        with psycopg.connect(own_server.url()) as rival:
            rival.execute(f"LOCK TABLE {store.schema}.threads IN EXCLUSIVE MODE")
            saves = [aput(saver, place(f"t{number}"), {"value": 1}) for number in range(16)]
            found = await asyncio.gather(*saves, return_exceptions=True)
        assert {type(error) for error in found} == {StatementTimeoutError}
        assert len(late) <= 6
        await aput(saver, place(), {"value": 1}, value=2)


def test_two_copies_in_opposite_directions_do_not_wait_for_each_other(own_server, store):
    """A deadlock would be tried again, unseen: the server is asked whether it met one."""
    a, b = (PostgresBackend(own_server.url(), schema=store.schema) for _ in range(2))
    with ThreadPoolExecutor(2) as pool:
        for number in range(30):
            for thread in ("x", "y"):
                put(store, place(f"{thread}{number}"), {"value": 1})
            changes = (
                CopyThread(f"x{number}", f"y{number}", NOW),
                CopyThread(f"y{number}", f"x{number}", NOW),
            )
            done = [pool.submit(one.commit, c) for one, c in zip((a, b), changes, strict=True)]
            errors = [one.exception(SECONDS) for one in done]
            assert [type(error) for error in errors] == [ThreadExistsError] * 2
    a.close()
    b.close()
    with psycopg.connect(own_server.url()) as db:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert db.execute(query).fetchone() == (0,)


def test_a_deadlock_and_a_serialization_failure_are_tried_again(admin, store):
    """Other failures of the database, simulated by triggers."""
    for code in ("40P01", "40001"):
        admin.execute(
            f"CREATE SEQUENCE {store.schema}.failures_{code};"
            f" CREATE FUNCTION {store.schema}.fail_{code}() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN IF nextval('{store.schema}.failures_{code}') < 3 THEN"
            f" RAISE EXCEPTION 'rivals' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$;"
            f" CREATE TRIGGER fail_{code} BEFORE INSERT ON {store.schema}.checkpoints"
            f" FOR EACH ROW EXECUTE FUNCTION {store.schema}.fail_{code}()"
        )
    put(store, place(), {"value": 1}, value=2)
    assert [found.checkpoint["channel_values"]["value"] for found in store.list(place())] == [1, 0]
    for code in ("40P01", "40001"):
        last = admin.execute(f"SELECT last_value FROM {store.schema}.failures_{code}").fetchone()
        assert last[0] >= 3


def test_saves_need_no_isolation_level(own_server, admin, store):
    role = new_role(admin, store.schema)
    for number, level in enumerate(("repeatable read", "serializable"), 1):
        admin.execute(f"ALTER ROLE {role} SET default_transaction_isolation = '{level}'")
        with PostgresSaver(own_server.url(user=role), schema=store.schema) as saver:
            put(saver, place(), {"value": number}, value=number + 1)
        assert value_at(store, place()) == number


# -- servers that cannot store ---------------------------------------------------------


@pytest.mark.parametrize("table", ["segments", "checkpoints", "threads"])
def test_a_full_disk(admin, store, table):
    """Said by a trigger, in the server's own words: half of the batch may be stored by then."""
    admin.execute(
        f"CREATE FUNCTION {store.schema}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'could not extend file: No space left on device'"
        " USING ERRCODE = '53100'; END $$;"
        f" CREATE TRIGGER fail AFTER INSERT ON {store.schema}.{table}"
        f" FOR EACH ROW EXECUTE FUNCTION {store.schema}.fail()"
    )
    thread = "another" if table == "threads" else place()["configurable"]["thread_id"]
    with nothing_changes(store, DiskFullError, "No space left on device"):
        put(store, place(thread), {"value": list(range(2000))}, value=2)
    admin.execute(f"DROP TRIGGER fail ON {store.schema}.{table}")
    put(store, place(thread), {"value": list(range(2000))}, value=2)
    assert value_at(store, place(thread)) == list(range(2000))


def test_a_role_that_reads_by_default(own_server, admin, store):
    role = new_role(admin, store.schema)
    admin.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    with PostgresSaver(own_server.url(user=role), schema=store.schema) as saver:
        assert value_at(saver, place()) == 0
        with nothing_changes(store, ReadOnlyError, "target_session_attrs=read-write"):
            put(saver, place(), {"value": 1}, value=2)
        with nothing_changes(store, ReadOnlyError, "read-only"):
            saver.delete_thread("thread")


@pytest.mark.parametrize("rights", ["SELECT", "SELECT, UPDATE, DELETE", "SELECT, INSERT"])
def test_a_role_with_too_few_rights(own_server, admin, store, rights):
    role = new_role(admin, store.schema, rights)
    with PostgresSaver(own_server.url(user=role), schema=store.schema) as saver:
        assert value_at(saver, place()) == 0
        with nothing_changes(store, ReadOnlyError, "Grant this user"):
            put(saver, place(), {"value": 1}, value=2)


def test_a_role_without_any_right(own_server, admin, store):
    admin.execute("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN")
    with PostgresSaver(own_server.url(user="stranger"), schema=store.schema) as saver:
        with pytest.raises(ReadOnlyError, match="USAGE on the schema"):
            saver.get_tuple(place())
        with pytest.raises(ReadOnlyError, match="CREATE"):
            saver.setup()


def test_an_id_that_is_too_long_for_an_index(store):
    alphabet = [chr(n) for n in range(0x4E00, 0x9E00)]  # nothing that compression could shorten
    with nothing_changes(store, InvalidArgumentError, "2,000 bytes"):
        put(store, place("".join(alphabet[::3])), {"value": 1})


# -- servers that cannot be reached ----------------------------------------------------


def refused(database):
    """The message of each face, and what stands in its chain of causes; soon, not after 30 s."""
    began = time.monotonic()
    with pytest.raises(UnreachableError) as caught, PostgresSaver(database) as saver:
        saver.get_tuple(place())

    async def awaited():
        async with AsyncPostgresSaver(database) as saver:
            await saver.aget_tuple(place())

    with pytest.raises(UnreachableError) as acaught:
        asyncio.run(awaited())
    assert time.monotonic() - began < 10
    assert "cannot be reached" in caught.value.message
    assert "http" not in caught.value.hint
    return "".join("".join(traceback.format_exception(e.value)) for e in (caught, acaught))


def test_a_wrong_password_is_said_at_once_and_never_shown(own_server):
    place_ = f"127.0.0.1:{own_server.port}/postgres"
    said = refused(f"postgresql://guarded:not-{PASSWORD}@{place_}")
    assert "Check the user and the password" in said or "accepts this user" in said
    assert PASSWORD not in said
    said = refused(f"host=127.0.0.1 port={own_server.port} user=guarded password=no{PASSWORD}")
    assert PASSWORD not in said


def test_a_wrong_database(own_server):
    said = refused(f"postgresql://guarded:{PASSWORD}@127.0.0.1:{own_server.port}/absent")
    assert '"absent" does not exist' in said
    assert PASSWORD not in said


def test_a_wrong_port():
    port = free_port()
    said = refused(f"postgresql://guarded:{PASSWORD}@127.0.0.1:{port}/postgres")
    assert f"127.0.0.1:{port}" in said
    assert PASSWORD not in said


def test_a_saver_that_was_refused_may_be_let_in_later(own_server):
    with psycopg.connect(own_server.url(), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS later")
        with PostgresSaver(own_server.url(database="later")) as saver:
            for _ in range(2):
                with pytest.raises(UnreachableError):
                    saver.get_tuple(place())
            admin.execute("CREATE DATABASE later")
            with pytest.raises(NotSetUpError):
                saver.get_tuple(place())


@pytest.mark.parametrize("text", ["postgresql://u:{}@[half/x", "host='{}", "password={} nonsense"])
def test_a_url_that_cannot_be_read_does_not_show_its_password(text):
    with pytest.raises((InvalidArgumentError, BackendError)) as caught:
        PostgresSaver(text.format(PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


# -- pools -----------------------------------------------------------------------------


def test_a_pool_without_a_free_connection_is_an_error_in_time():
    schema = empty_schema()
    options = {"schema": schema, "max_size": 1, "timeout": 0.3}
    with psycopg.connect(url()) as rival, PostgresSaver(url(), **options) as saver:
        for thread in "ab":
            put(saver, place(thread), {"value": 1})
        rival.execute(f"SELECT FROM {schema}.threads FOR UPDATE")
        with ThreadPoolExecutor(2) as pool:
            saved = pool.submit(put, saver, place("a"), {"value": 2}, value=2)
            wait_until_waiting(schema)
            with pytest.raises(UnreachableError, match="raise max_size"):
                pool.submit(saver.get_tuple, place("b")).result(SECONDS)
            rival.rollback()
            saved.result(SECONDS)
        assert len(list(saver.list(None))) == 3


async def test_an_async_pool_without_a_free_connection_is_an_error_in_time():
    schema = empty_schema()
    options = {"schema": schema, "max_size": 1, "timeout": 0.3}
    async with AsyncPostgresSaver(url(), **options) as saver:
        for thread in "ab":
            await aput(saver, place(thread), {"value": 1})
        with psycopg.connect(url()) as rival:
            rival.execute(f"SELECT FROM {schema}.threads FOR UPDATE")
            saved = asyncio.ensure_future(aput(saver, place("a"), {"value": 2}, value=2))
            await asyncio.to_thread(wait_until_waiting, schema)
            with pytest.raises(UnreachableError, match="raise max_size"):
                await saver.aget_tuple(place("b"))
        await saved


def wait_until_waiting(schema):
    """Wait until a commit waits for a row of the schema."""
    waits = """
        SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND query LIKE %s
    """
    deadline = time.monotonic() + SECONDS
    with psycopg.connect(url(), autocommit=True) as watcher:
        while not watcher.execute(waits, (f"%{schema}%",)).fetchone()[0]:
            assert time.monotonic() < deadline
