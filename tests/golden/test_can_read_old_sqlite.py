"""A database of an earlier release is read, brought to this one's tables, and written to."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from threadkeep import SqliteSaver
from threadkeep.backends.sqlite import (
    SqliteBackend,
    maintenance,
)
from threadkeep.engine.thread_entry import (
    ReadEntry,
    SearchThreads,
    ThreadQuery,
)
from threadkeep.errors import NotSetUpError
from threadkeep.saver import Saver

V1 = Path(__file__).parent / "sqlite" / "v1.sqlite"
ALL = SearchThreads(ThreadQuery(), "thread", descending=False, after=None, limit=10)


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copy(V1, tmp_path / "old.db"))


def _seen(backend):
    (entries,) = backend.fetch([ALL])
    return [(e.thread, e.state, e.waits_at is not None, e.labels) for e in entries]


def _check_entries(backend):
    assert _seen(backend) == [("finished", "active", False, ()), ("waiting", "suspended", True, ())]
    finished, gone = backend.fetch([ReadEntry("finished"), ReadEntry("gone")])
    assert finished.created_at < finished.updated_at
    assert 1_000 < finished.size < 20_000
    assert gone.state == "deleted"
    assert gone.updated_at == gone.deleted_at > finished.updated_at


def test_old_tables_are_brought_up_to_date(old):
    for _ in range(2):
        backend = SqliteBackend(old)
        _check_entries(backend)
        backend.close()
    fresh = sqlite3.connect(old.with_name("fresh.db"))
    SqliteBackend(old.with_name("fresh.db")).close()
    upgraded = sqlite3.connect(old)
    names = "SELECT type, name FROM sqlite_master ORDER BY 1, 2"
    assert upgraded.execute(names).fetchall() == fresh.execute(names).fetchall()
    for table in ("tk_threads", "tk_labels"):
        columns = f"SELECT name, type, pk FROM pragma_table_info('{table}')"
        assert upgraded.execute(columns).fetchall() == fresh.execute(columns).fetchall()
    fresh.close()
    upgraded.close()


def test_old_threads_are_read_and_go_on(old):
    with SqliteSaver.from_conn_string(str(old)) as saver:
        assert saver.check().ok
        found = saver.get_tuple({"configurable": {"thread_id": "finished"}})
        messages = found.checkpoint["channel_values"]["messages"]
        assert [message.content for message in messages][-2:] == ["hello 2", "answer 5"]
        assert len(list(saver.list(None))) == 12


def test_an_old_file_that_may_only_be_read_is_read(old):
    before = old.read_bytes()
    backend = SqliteBackend(old, read_only=True)
    with pytest.raises(NotSetUpError, match="no registry"):
        backend.fetch([ALL])
    backend.close()
    with Saver(SqliteBackend(old, read_only=True)) as saver:
        assert saver.check().ok
        assert len(list(saver.list(None))) == 12
    assert old.read_bytes() == before


def test_whoever_has_the_old_tables_open_destroys_nothing(old):
    """The old table's name is gone: what an earlier release says of it fails."""
    open_still = sqlite3.connect(old, isolation_level=None)
    (before,) = open_still.execute("SELECT count(*) FROM tk_segments").fetchone()
    SqliteBackend(old).close()
    with pytest.raises(sqlite3.OperationalError, match="tk_segments"):
        open_still.execute("DELETE FROM tk_segments WHERE thread = 1")
    assert open_still.execute("SELECT count(*) FROM tk_heap_segments").fetchone() == (before,)
    open_still.close()


def test_an_old_backup_is_restored(old, tmp_path):
    new = tmp_path / "new.db"
    maintenance.restore(old, str(new), 5, replace=False)
    backend = SqliteBackend(new)
    _check_entries(backend)
    backend.close()
