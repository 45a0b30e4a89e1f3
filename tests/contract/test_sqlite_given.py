"""A program's own connection to the file, in place of a path, with a transaction open on it."""

import sqlite3
import time

import aiosqlite
import pytest
import sqlite_children as children

from threadkeep import SqliteStore
from threadkeep._stores.sqlite import opening
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import LockedError

SOON = 20  # seconds; the default `busy_timeout` is 30
pytestmark = pytest.mark.usefixtures("short")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(opening, "_HELD_SECONDS", 0.05)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "threads.db"


@pytest.fixture
def own(path):
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    yield connection
    connection.close()


def writes(connection):
    connection.execute("CREATE TABLE IF NOT EXISTS audit (what)")
    connection.execute("INSERT INTO audit VALUES ('asked')")
    assert connection.in_transaction


def raises_soon(call):
    begun = time.monotonic()
    with pytest.raises(LockedError, match="open on the connection that you gave") as raised:
        call()
    assert "Commit or roll back on your connection" in raised.value.hint
    assert time.monotonic() - begun < SOON


def test_a_save_is_refused_soon_and_the_transaction_is_left_alone(own):
    backend = SqliteBackend(own)
    children.put(backend, 1)
    writes(own)
    raises_soon(lambda: children.put(backend, 2))
    assert own.in_transaction
    assert children.numbers(backend) == [1]
    own.commit()
    children.put(backend, 2)
    assert children.numbers(backend) == [1, 2]
    assert own.execute("SELECT what FROM audit").fetchone() == ("asked",)
    backend.close()


def test_so_is_an_opening_that_would_create_the_tables(own, path):
    own.execute("BEGIN IMMEDIATE")
    raises_soon(lambda: SqliteBackend(own).open())
    own.rollback()
    backend = SqliteBackend(own)
    backend.open()
    backend.close()
    own.execute("BEGIN IMMEDIATE")
    backend = SqliteBackend(own)  # the tables are there: opening needs no lock
    assert children.numbers(backend) == []
    own.rollback()
    backend.close()


def test_so_are_puts_of_stores(own):
    with SqliteStore(own) as store:
        store.put(("users",), "ann", {"likes": "tea"})
        writes(own)
        raises_soon(lambda: store.put(("users",), "bob", {"likes": "rum"}))
        own.commit()
        store.put(("users",), "bob", {"likes": "rum"})


async def test_a_connection_of_aiosqlite(path):
    async with aiosqlite.connect(path) as own:
        backend = SqliteBackend(own)
        children.put(backend, 1)
        await own.execute("CREATE TABLE audit (what)")
        await own.execute("INSERT INTO audit VALUES ('asked')")
        raises_soon(lambda: children.put(backend, 2))
        await own.commit()
        children.put(backend, 2)
        assert children.numbers(backend) == [1, 2]
        backend.close()


def test_others_are_waited_for(own, path):
    """The error for another program's lock is the usual one, whatever was given."""
    with_own = SqliteBackend(own, busy_timeout=0.05)
    children.put(with_own, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LockedError, match="another process"):
        children.put(with_own, 2)
    other.close()
    with_own.close()


def test_a_transaction_of_another_thread_that_ends_is_waited_for(path):
    other = sqlite3.connect(path, isolation_level=None)

    class Own:
        """A given connection: another thread ends its transaction before the second look."""

        looks = 0

        async def execute_fetchall(self, sql, parameters=None): ...

        def _connector(self):
            return sqlite3.connect(path)

        @property
        def in_transaction(self):
            self.looks += 1
            if self.looks == 2:
                other.execute("COMMIT")
            return self.looks < 2

    backend = SqliteBackend(own := Own())
    children.put(backend, 1)
    own.looks = 0
    other.execute("BEGIN IMMEDIATE")
    children.put(backend, 2)
    assert own.looks >= 2
    assert children.numbers(backend) == [1, 2]
    backend.close()
    other.close()
