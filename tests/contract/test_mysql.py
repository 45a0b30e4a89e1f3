"""The contract on MySQL, and what only a server of this kind does."""

import threading
from contextlib import closing

import pytest
from kit import mysql
from kit.rows import place, put, value_at

import threadkeep
from threadkeep._stores.items.records import GetItems, ItemPut, PutItems, SearchOptions
from threadkeep._stores.mysql import server
from threadkeep._stores.mysql.backend import MysqlBackend
from threadkeep.backends import Batch, FindThreads, ReadSegments, Segment, Span
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    NewerDatabaseError,
    OpenError,
    ReadOnlyError,
    StatementTimeoutError,
    UnreachableError,
)
from threadkeep.testing import BackendContract


class TestMysql(BackendContract):
    def new_backend(self, folder):
        return MysqlBackend(mysql.url_for(folder))

    def reopen(self, folder):
        return self.new_backend(folder)


@pytest.fixture
def backend(tmp_path):
    backend = MysqlBackend(mysql.url_for(tmp_path))
    yield backend
    backend.close()


def names(backend):
    return backend.fetch([FindThreads(None, 100, empty=True)])[0]


@pytest.mark.parametrize(
    "url", ["mysql://host", "mysql://host:x/db", "mysql://u:secret@h/d?x=1", "mysql:///"]
)
def test_urls_that_cannot_be_read(url):
    with pytest.raises((OpenError, InvalidArgumentError)) as refused:
        MysqlBackend(url)
    assert "secret" not in str(refused.value)
    assert refused.value.hint


def test_errors_are_those_of_threadkeep(backend, tmp_path):
    with pytest.raises(InvalidArgumentError, match="Data too long"):
        backend.commit(Batch("x" * 2000, 1))
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1\b"):
        names(MysqlBackend("mysql://user@127.0.0.1:1/database"))
    with pytest.raises(UnreachableError, match="nowhere"):
        names(MysqlBackend(mysql.url().rpartition("/")[0] + "/nowhere"))
    assert names(backend) == []


def test_a_statement_that_takes_too_long(backend):
    sql = "SET STATEMENT max_statement_time = 0.01 FOR SELECT SLEEP(9)"
    with pytest.raises(StatementTimeoutError, match="max_statement_time"):
        backend.call(lambda session: session.rows(sql))


def test_a_user_who_may_only_read(backend, tmp_path):
    backend.commit(Batch("thread", 1))
    user, database = "reader@'127.0.0.1'", mysql.database_for(tmp_path)
    mysql.rows(f"CREATE USER {user}")
    mysql.rows(f"GRANT SELECT ON {database}.* TO {user}")
    reader = MysqlBackend(mysql.url_for(tmp_path).replace("root", "reader"))
    try:
        assert names(reader) == ["thread"]
        with pytest.raises(ReadOnlyError):
            reader.commit(Batch("thread", 2))
    finally:
        reader.close()
        mysql.rows(f"DROP USER {user}")


def test_tables_of_a_later_release(backend, tmp_path):
    names(backend)
    store = f"{mysql.database_for(tmp_path)}.tk_store"
    mysql.rows(f"UPDATE {store} SET version = 99")
    try:
        with pytest.raises(NewerDatabaseError):
            names(MysqlBackend(mysql.url_for(tmp_path)))
    finally:
        mysql.rows(f"UPDATE {store} SET version = 1")


def test_a_first_use_that_stopped_in_the_middle(backend, tmp_path):
    names(backend)
    mysql.rows(f"DELETE FROM {mysql.database_for(tmp_path)}.tk_store")
    with closing(MysqlBackend(mysql.url_for(tmp_path))) as other:
        assert names(other) == []
        assert other.identity() == backend.identity()


def test_a_save_of_several_packets(backend):
    ((most,),) = mysql.rows("SELECT @@max_allowed_packet")
    values = [bytes([number]) * (most // 2) for number in range(65, 68)]
    stored = [Segment(1, at, 1, data) for at, data in enumerate(values)]
    backend.commit(Batch("thread", 1, segments=tuple(stored)))
    assert backend.fetch([ReadSegments("thread", (Span(1, 0, 3),))]) == [stored]
    for size in (most, 3 * most):
        with pytest.raises(InvalidArgumentError, match="max_allowed_packet"):
            backend.commit(Batch("other", 1, segments=(Segment(1, 0, 1, b"x" * size),)))
    assert names(backend) == ["thread"]
    assert backend.retries == 0


def test_a_server_with_other_defaults(backend, monkeypatch):
    defaults = """SET SESSION sql_select_limit = 1, max_sort_length = 64, sql_safe_updates = 1,
        completion_type = 'CHAIN', sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES';
        SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE;"""
    monkeypatch.setattr(server, "_SESSION", defaults + server._SESSION)
    stored = ["\\" * 100 + mark for mark in "'\"abc"]
    for name in reversed(stored):
        backend.commit(Batch(name, 1))
    assert names(backend) == sorted(stored)
    items, version = backend.items(SearchOptions()), 0
    for _ in range(2):
        items.commit(PutItems((ItemPut(("ns",), "key", "{}", expects=version),), 1))
        ((row,),) = items.fetch([GetItems(((("ns",), "key"),))])
        version = row.version


def killed(session_of):
    """Kill the connections of a database."""
    query = f"SELECT id FROM information_schema.processlist WHERE db = '{session_of}'"
    for (number,) in mysql.rows(query):
        mysql.rows(f"KILL {number}")


def test_lost_connections_are_replaced(backend, tmp_path):
    backend.commit(Batch("first", 1))
    killed(mysql.database_for(tmp_path))
    backend.commit(Batch("second", 1))
    killed(mysql.database_for(tmp_path))
    assert names(backend) == ["first", "second"]
    assert backend.retries == 2


def test_moves_that_meet_wait_in_no_circle(tmp_path):
    backends = [MysqlBackend(mysql.url_for(tmp_path)) for _ in range(4)]
    names_ = [f"thread-{number}" for number in range(6)]

    def commits(backend, turn):
        for at in range(20):
            order = names_[(at + turn) % 6 :] + names_[: (at + turn) % 6]
            refused = backend.commit_many([Batch(name, at) for name in order])
            assert refused == [None] * 6

    threads = [
        threading.Thread(target=commits, args=(one, turn)) for turn, one in enumerate(backends)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert names(backends[0]) == names_
    for one in backends:
        one.close()


def test_what_the_files_of_the_server_may_keep(backend):
    report = backend.scrub(rewrite=True)
    assert report.cleared == ()
    assert [place.split(":")[0] for place in report.remains] == [
        "InnoDB's files",
        "The redo and binary logs, backups and replicas",
    ]
    assert "OPTIMIZE TABLE" in report.remains[0]


def test_a_damaged_row_hides_no_other_thread(tmp_path):
    url = mysql.url_for(tmp_path)
    with threadkeep.open_saver(url) as saver:
        for thread in ("a", "b"):
            put(saver, place(thread), {"value": 1})
        database = url.rpartition("/")[2]
        mysql.rows(f"UPDATE {database}.tk_threads SET record = 'x' WHERE thread = 'a'")
    with threadkeep.open_saver(url) as saver:
        assert "b" in [one.id for one in saver.threads.search()]
        assert value_at(saver, place("b")) == 1
        with pytest.raises(CorruptionError, match="thread 'a'"):
            saver.get_tuple(place("a"))
        assert {finding.thread for finding in saver.check().findings} == {"a"}
