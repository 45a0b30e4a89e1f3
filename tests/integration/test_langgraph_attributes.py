"""Attributes that programs read from LangGraph's savers and stores, on ours."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import Any
from unittest import mock

import aiosqlite
import pytest
from kit.places import at
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

import threadkeep

SQLITE = [threadkeep.SqliteSaver, threadkeep.SqliteStore]
STATEMENTS = {name for name in vars(PostgresSaver.__base__) if name.endswith("_SQL")}
NOT_HERE = STATEMENTS | {"stack"}  # an ExitStack of InMemorySaver


@pytest.fixture
def own(tmp_path):
    connection = sqlite3.connect(tmp_path / "threads.db", check_same_thread=False)
    with closing(connection):
        yield connection


@pytest.fixture(params=SQLITE, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_a_given_connection_is_there(own, kind):
    with kind(own) as opened:
        assert hasattr(opened, "conn")
        with opened.lock, opened.conn:
            opened.conn.execute("CREATE TABLE audit (what)")
        assert opened.conn is own
        assert opened.is_setup
        assert opened.for_tenant("a").conn is own
        assert not hasattr(opened, "loop")


async def test_so_is_one_of_aiosqlite_and_the_event_loop(tmp_path, kind):
    async with aiosqlite.connect(tmp_path / "threads.db") as own, kind(own) as opened:
        async with opened.lock, opened.conn.execute("SELECT 1") as cursor:
            assert await cursor.fetchone() == (1,)
        assert opened.conn is own
        assert opened.loop is asyncio.get_running_loop()


async def test_another_thread_asks_a_saver_in_its_loop(tmp_path):
    async with threadkeep.AsyncSqliteSaver(tmp_path / "threads.db") as saver:

        def ask():
            found = asyncio.run_coroutine_threadsafe(saver.aget_tuple(at()), saver.loop)
            return found.result(60)

        assert await asyncio.to_thread(ask) is None


def test_savers_around_it_have_them_too(own):
    with threadkeep.SqliteSaver(own) as saver:
        layered = threadkeep.LayeredCheckpointSaver(saver)
        for one in (saver.with_allowlist([("x", "Y")]), layered, threadkeep.observe(saver)):
            assert one.conn is own
            assert isinstance(one.jsonplus_serde, JsonPlusSerializer)
        with pytest.raises(AttributeError, match=r"Use saver.list\(None\)"):
            _ = layered.storage


def test_a_subclass_may_have_its_own(own):
    class Mine(threadkeep.SqliteSaver):
        def __init__(self, conn: Any) -> None:
            super().__init__(conn)
            self.conn, self.lock, self.is_setup = "mine", threading.Lock(), False

    with Mine(own) as saver:
        assert saver.conn == "mine"
        assert type(saver.lock) is type(threading.Lock())


@pytest.mark.parametrize("name", ["conn", "storage", "writes", "blobs", "cursor", "MIGRATIONS"])
def test_others_are_missing_and_name_their_replacement(tmp_path, name):
    for saver in (threadkeep.InMemorySaver(), threadkeep.SqliteSaver(tmp_path / "t.db")):
        with saver:
            assert not hasattr(saver, name)
            with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. \w+ .*\."):
                getattr(saver, name)


def test_of_stores_too():
    with threadkeep.InMemoryStore() as store:
        with pytest.raises(AttributeError, match=r"Use store.search\(\(\)\)"):
            _ = store._data
        assert not hasattr(store, "conn")


async def test_no_attribute_of_langgraphs_classes_is_missing_without_a_word(tmp_path):
    """A new release of LangGraph with new attributes fails here."""
    file, server = str(tmp_path / "t.db"), "postgresql://localhost/none"
    async with aiosqlite.connect(":memory:") as connection:
        for theirs, ours in (
            (InMemorySaver(), threadkeep.InMemorySaver()),
            (SqliteSaver(mock.Mock()), threadkeep.SqliteSaver(file)),
            (AsyncSqliteSaver(connection), threadkeep.AsyncSqliteSaver(file)),
            (PostgresSaver(mock.Mock()), threadkeep.PostgresSaver(server)),
            (AsyncPostgresSaver(mock.Mock()), threadkeep.AsyncPostgresSaver(server)),
            (InMemoryStore(), threadkeep.InMemoryStore()),
            (SqliteStore(mock.Mock()), threadkeep.SqliteStore(file)),
            (AsyncSqliteStore(connection), threadkeep.AsyncSqliteStore(file)),
            (PostgresStore(mock.Mock()), threadkeep.PostgresStore(server)),
            (AsyncPostgresStore(mock.Mock()), threadkeep.AsyncPostgresStore(server)),
        ):
            names = {name for name in dir(theirs) if not name.startswith("_")} - NOT_HERE
            for name in sorted(name for name in names if not hasattr(ours, name)):
                with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. "):
                    getattr(ours, name)
            await ours.aclose()
