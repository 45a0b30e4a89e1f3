"""SQLite files that cannot be opened, and their errors."""

import os
import re
import sqlite3
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlite_children as children

from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import (
    InvalidArgumentError,
    LockedError,
    NewerDatabaseError,
    NewerFormatError,
    NotOursError,
    OpenError,
    ReadOnlyError,
)

needs_users = pytest.mark.skipif(sys.platform == "win32", reason="rights are other things there")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "threads.db"


def filled(path):
    backend = SqliteBackend(path)
    children.put(backend, 1)
    backend.close()
    return path


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OpenError, match=re.escape(str(tmp_path / "absent"))) as raised:
        SqliteBackend(tmp_path / "absent" / "threads.db")
    assert "Create the folder" in raised.value.hint
    assert not (tmp_path / "absent").exists()


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(OpenError, match="is not a file"):
        SqliteBackend(tmp_path)


def test_an_empty_file_becomes_a_database(path):
    path.touch()
    assert filled(path).stat().st_size > 0


@pytest.mark.parametrize(
    "content", [b"just text\n" * 500, b"x", b"SQLite format 4\x00" + b"x" * 600]
)
def test_a_file_of_another_kind_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(NotOursError, match="is not a SQLite database"):
        SqliteBackend(path)
    assert path.read_bytes() == content


def test_langgraphs_own_database_is_named_and_left_alone(path):
    saver = pytest.importorskip("langgraph.checkpoint.sqlite").SqliteSaver
    with saver.from_conn_string(str(path)) as other:
        other.setup()
    before = path.read_bytes()
    with pytest.raises(NotOursError, match="LangGraph's own SQLite saver") as raised:
        SqliteBackend(path)
    assert f"threadkeep adopt {path} sqlite:///" in raised.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE customers (name)", "holds customers"),
        ("PRAGMA application_id = 77", "holds nothing"),
    ],
)
def test_a_database_of_another_program_is_refused(path, statement, says):
    other = sqlite3.connect(path)
    other.execute(statement)
    other.close()
    with pytest.raises(NotOursError, match=says):
        SqliteBackend(path)


def test_own_tables_beside_ours_do_no_harm(path):
    other = sqlite3.connect(filled(path))
    other.execute("CREATE TABLE notes (text)")
    other.close()
    backend = SqliteBackend(path)
    assert children.numbers(backend) == [1]
    backend.close()


def test_a_newer_database_asks_for_an_upgrade(path):
    other = sqlite3.connect(filled(path))
    other.execute("PRAGMA user_version = 2")
    other.close()
    with pytest.raises(NewerDatabaseError, match=r"version 2; .* version 1") as raised:
        SqliteBackend(path)
    assert isinstance(raised.value, OpenError)
    assert isinstance(raised.value, NewerFormatError)
    assert raised.value.hint == "Upgrade threadkeep."


def test_a_locked_file_is_waited_for(path):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LockedError) as raised:
        SqliteBackend(path, busy_timeout=0.05)
    assert raised.value.retryable
    other.close()
    filled(path)


def test_a_new_file_is_made_by_one_transaction_and_switched_to_wal_by_another(path):
    SqliteBackend(path).close()
    changes = int.from_bytes(path.read_bytes()[24:28], "big")  # the file's own count of commits
    assert changes == 2


def test_a_rollback_journal_is_switched_to_wal(path):
    other = sqlite3.connect(filled(path))
    other.execute("PRAGMA journal_mode = DELETE")
    other.close()
    backend = SqliteBackend(path)
    assert backend._connections.writer().execute("PRAGMA journal_mode").fetchone() == ("wal",)
    backend.close()


def test_the_settings_are_what_was_asked_for(path):
    for synchronous, number in (("full", 2), ("normal", 1)):
        backend = SqliteBackend(path, synchronous=synchronous)
        writer = backend._connections.writer()
        found = [
            writer.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode", "auto_vacuum", "page_size")
        ]
        assert found == [number, "wal", 2, 4096]
        backend.close()


@pytest.mark.parametrize(
    "options",
    [
        {"synchronous": "off"},
        {"synchronous": "FULL; DROP TABLE tk_threads"},
        {"busy_timeout": -1},
        {"busy_timeout": float("nan")},
        {"busy_timeout": float("inf")},
        {"busy_timeout": "3"},
        {"busy_timeout": None},
    ],
)
def test_options_of_no_meaning_are_refused(path, options):
    with pytest.raises(InvalidArgumentError):
        SqliteBackend(path, **options)
    assert not path.exists()


@pytest.mark.parametrize("database", ["", "a\0b", "\ud800.db", b"threads.db", None, 5])
def test_what_is_no_path_is_refused(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="is not a path"):
        SqliteBackend(database)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 250, "a" * 256, "a" * 5000, "é" * 128, "a/" * 3000 + "b"])
def test_a_name_that_is_too_long_is_told(name, tmp_path):
    with pytest.raises(OpenError, match="cannot be opened"):
        SqliteBackend(tmp_path / name)


def test_a_name_of_bytes_that_are_no_characters_is_a_path(tmp_path):
    SqliteBackend(tmp_path / "\udcff.db").close()
    assert (tmp_path / os.fsdecode(b"\xff.db")).is_file()


# -- connections in place of paths ---------------------------------------------------


def test_a_connection_in_a_transaction_is_left_alone(path):
    connection = sqlite3.connect(filled(path))
    connection.execute("CREATE TABLE notes (text)")
    connection.execute("INSERT INTO notes VALUES ('mine')")
    assert connection.in_transaction
    backend = SqliteBackend(connection, busy_timeout=0.05)
    assert children.numbers(backend) == [1]
    backend.close()
    assert connection.in_transaction
    connection.close()


def test_a_connection_to_memory_gives_a_database_of_its_own():
    connection = sqlite3.connect(":memory:")
    backend = SqliteBackend(connection)
    children.put(backend, 1)
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    assert children.numbers(backend) == [1]
    backend.close()
    connection.close()


def test_a_closed_connection_gives_nothing():
    connection = sqlite3.connect(":memory:")
    connection.close()
    with pytest.raises(OpenError, match="closed"):
        SqliteBackend(connection)


# -- connections that are lent -------------------------------------------------------


def is_open(connection):
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


def test_any_number_may_read_at_once_and_a_few_connections_stay(path):
    backend = SqliteBackend(filled(path))
    pool = backend._connections
    with ExitStack() as stack:
        with pool.write_lock:  # somebody is writing
            lent = [stack.enter_context(pool.reading()) for _ in range(20)]
        assert len(set(map(id, lent))) == 20
    assert sum(map(is_open, lent)) == 8
    with pool.reading() as still_lent:
        assert still_lent in lent  # not a ninth
        backend.close()
        assert list(filter(is_open, lent)) == [still_lent]
    assert not is_open(still_lent)


def test_a_program_of_one_thread_has_one_connection(path):
    backend = SqliteBackend(filled(path))
    children.put(backend, 2)
    pool = backend._connections
    with pool.reading() as connection:
        assert connection is pool._writer
        assert pool.write_lock.locked()  # who commits waits for this read; who reads does not
        with pool.reading() as reader:
            assert reader is not connection
    assert not pool.write_lock.locked()
    with pool.reading() as again:
        assert again is reader  # so that no writer waits for it
    backend.close()


def test_a_read_may_end_after_close(path):
    backend = SqliteBackend(filled(path))
    with ExitStack() as stack:
        with backend._connections.write_lock:
            connection = stack.enter_context(backend._connections.reading())
        backend.close()
        assert connection.execute("SELECT count(*) FROM tk_checkpoints").fetchone() == (1,)
    assert not is_open(connection)
    assert not path.with_name(path.name + "-wal").exists()


# -- without the rights --------------------------------------------------------------


@pytest.fixture
def open_folder():
    """A folder that any user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@needs_users
@pytest.mark.parametrize(
    ("file_mode", "folder_mode"), [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)]
)
def test_a_read_only_file_can_be_read(open_folder, file_mode, folder_mode):
    path = filled(open_folder / "threads.db")
    path.chmod(file_mode)
    open_folder.chmod(folder_mode)
    told = children.in_child(children.without_rights, str(path))
    assert told == {"read": [1], "write": "ReadOnlyError", "read again": [1]}


@needs_users
def test_a_file_that_others_write_can_be_read(open_folder):
    path = open_folder / "threads.db"
    backend = SqliteBackend(path)
    children.put(backend, 1)
    for file in open_folder.iterdir():
        file.chmod(0o444)
    open_folder.chmod(0o555)
    told = children.in_child(children.without_rights, str(path))
    assert told == {"read": [1], "write": "ReadOnlyError", "read again": [1]}
    backend.close()


@needs_users
@pytest.mark.parametrize(
    ("exists", "file_mode", "folder_mode"), [(True, 0o000, 0o755), (False, 0, 0o555)]
)
def test_a_file_out_of_reach_is_named(open_folder, exists, file_mode, folder_mode):
    path = open_folder / "threads.db"
    if exists:
        filled(path).chmod(file_mode)
    open_folder.chmod(folder_mode)
    kind, text = children.in_child(children.without_rights, str(path))["open"]
    assert kind == "OpenError"
    assert str(path) in text
    assert "access" in text
    assert os.access(path, os.F_OK) == exists


# -- for reading only ------------------------------------------------------------------


@pytest.mark.parametrize("in_use", [True, False])
def test_what_is_opened_for_reading_is_not_changed(path, in_use):
    filled(path)
    other = SqliteBackend(path)
    if in_use:
        children.put(other, 2)
    else:
        other.close()
    before = {file: file.read_bytes() for file in path.parent.iterdir() if "shm" not in file.name}
    reader = SqliteBackend(path, read_only=True)
    assert children.numbers(reader) == ([1, 2] if in_use else [1])
    with pytest.raises(ReadOnlyError):
        children.put(reader, 3)
    reader.close()
    after = {file: file.read_bytes() for file in path.parent.iterdir() if "shm" not in file.name}
    assert after == before
    other.close()


def test_nothing_is_made_for_reading(path):
    with pytest.raises(OpenError):
        SqliteBackend(path, read_only=True)
    assert not path.exists()
    path.touch()
    with pytest.raises(NotOursError, match="has no tables"):
        SqliteBackend(path, read_only=True)
    assert path.stat().st_size == 0
