"""Heads from memory, which awaiting callers read: never older than what anybody has committed."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from threadkeep._core.engine.model import Batch, ReadCheckpoint
from threadkeep._stores.sqlite import opening
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.sqlite.known import Known
from threadkeep.testing.records import checkpoint, segment, uid, write

pytestmark = pytest.mark.skipif(os.name != "posix", reason="memory is shared in other ways")

HEAD = ReadCheckpoint("t", "")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "threads.db"


@pytest.fixture
def backend(path):
    """With two supersteps of a thread; the second one is cached."""
    with closing(SqliteBackend(path, synchronous="normal")) as backend:
        backend.commit(turn(1))
        backend.commit(turn(2))
        assert at_hand(backend) == uid(2)
        yield backend


def turn(number):
    segments = (segment(0),) if number == 1 else ()
    return Batch("t", 1, checkpoints=(checkpoint(number, number - 1),), segments=segments)


def at_hand(backend):
    """The id of the head, if memory has it."""
    state = backend.at_hand(HEAD)
    (found,) = backend.fetch([HEAD])
    assert state in (None, found)
    return None if state is None else state.found.row.id


def elsewhere(path, code):
    """Run code in another process, whose connection is `db`."""
    start = f"import sqlite3; db = sqlite3.connect({os.fspath(path)!r}, isolation_level=None)"
    subprocess.run([sys.executable, "-c", f"{start}\n{code}"], check=True)


# -- cached rows ---------------------------------------------------------------------


def test_the_head_is_that_of_the_last_commit(backend):
    backend.commit(Batch("t", 1, writes=(write(2, body=b"one"), write(3, body=b"early"))))
    (found,) = backend.fetch([HEAD])
    assert backend.at_hand(HEAD) == found
    assert [row.body for row in found.found.writes] == [b"one"]
    backend.commit(turn(3))
    assert at_hand(backend) == uid(3)
    assert [row.body for row in backend.at_hand(HEAD).found.writes] == [b"early"]


def test_only_heads_of_root_namespaces_are(backend):
    assert backend.at_hand(ReadCheckpoint("t", "", uid(2))) is not None
    for other in (("t", "", uid(1)), ("t", "sub"), ("u", "")):
        assert backend.at_hand(ReadCheckpoint(*other)) is None


def test_a_commit_under_way_does_not_matter_until_it_is_done(backend):
    """The head of before is right until then, and no reader waits."""
    connections = backend._connections
    begun, go_on = threading.Event(), threading.Event()

    def stop(text):
        if text == "COMMIT":
            begun.set()
            go_on.wait(10)

    connections.writer().set_trace_callback(stop)
    committing = threading.Thread(target=backend.commit, args=(turn(3),))
    committing.start()
    assert begun.wait(10)
    found = backend.at_hand(HEAD)
    go_on.set()
    committing.join()
    assert found.found.row.id == uid(2)
    assert at_hand(backend) == uid(3)


# -- others that write -----------------------------------------------------------------


def test_a_commit_of_another_saver_is_noticed(backend, path):
    with closing(SqliteBackend(path, synchronous="normal")) as other:
        other.commit(turn(3))
        assert backend.at_hand(HEAD) is None
        assert backend.fetch([HEAD])[0].found.row.id == uid(3)
        backend.commit(turn(4))
        assert at_hand(backend) is None
        assert at_hand(backend) == uid(4)  # it was read
        backend.commit(turn(5))
        assert at_hand(backend) == uid(5)
        assert at_hand(other) is None


@pytest.mark.parametrize("hidden", [False, True])
def test_a_commit_of_another_process_is_noticed(backend, path, hidden):
    """Also one whose connection has closed, and has left the WAL to us, or has emptied it."""
    wal = "PRAGMA wal_checkpoint(TRUNCATE)" if hidden else "SELECT 1"
    elsewhere(path, f"db.execute('DELETE FROM tk_checkpoints'); db.execute({wal!r})")
    assert backend.at_hand(HEAD) is None
    assert backend.fetch([HEAD])[0].found is None


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_commit_right_after_ours_is_noticed(backend, path, monkeypatch, is_empty):
    """Before we have looked at the header that our commit left; or did not change, if empty."""
    publish = Known._publish

    def late(known, db):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DELETE FROM tk_checkpoints WHERE id <> ?", (b"",))
        publish(known, db)

    with monkeypatch.context() as patched:
        patched.setattr(Known, "_publish", late)
        backend.commit(Batch("t", 1) if is_empty else turn(3))
    assert backend.at_hand(HEAD) is None
    assert backend.fetch([HEAD])[0].found is None


def test_emptying_the_wal_loses_nothing(backend, path):
    for mode in ("PASSIVE", "FULL", "RESTART", "TRUNCATE"):
        elsewhere(path, f"db.execute('PRAGMA wal_checkpoint({mode})')")
        assert at_hand(backend) in (None, uid(2))
    backend.commit(turn(3))
    assert [at_hand(backend) for _ in range(2)][-1] == uid(3)


def test_an_index_of_another_file_is_not_believed(backend, path, tmp_path, monkeypatch):
    """As on a file system that does not share memory: the header stays as our commits pass."""
    with closing(SqliteBackend(tmp_path / "other.db")) as other:
        other.commit(turn(1))
        known = other._connections.known
        foreign = opening.find_index(other._connections.writer(), str(path))
        assert foreign is not None
        known._index = foreign
        for number in (2, 3, 4):
            other.commit(turn(number))
            assert other.at_hand(HEAD) is None


# -- where nothing is at hand ------------------------------------------------------------


def test_nothing_is_at_hand_in_memory_nor_with_a_rollback_journal(tmp_path):
    with closing(SqliteBackend(":memory:")) as backend:
        backend.commit(turn(1))
        backend.commit(turn(2))
        assert backend.at_hand(HEAD) is None
    with closing(sqlite3.connect(tmp_path / "plain.db")) as db:
        assert opening.find_index(db, str(tmp_path / "plain.db")) is None


def test_nothing_is_at_hand_once_it_is_closed(backend):
    backend.close()
    assert backend.at_hand(HEAD) is None


def test_nothing_is_at_hand_in_the_child_of_a_fork(backend):
    """It has no connection yet that keeps the file."""
    child = os.fork()
    if child == 0:
        os._exit(0 if backend.at_hand(HEAD) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert at_hand(backend) == uid(2)


# -- descriptors ---------------------------------------------------------------------


def test_other_savers_of_the_file_leave_its_locks_alone(backend, path):
    """Closing a descriptor of `-shm` would drop them: another process could cut the file short."""
    for number in (3, 5):
        with closing(SqliteBackend(path, synchronous="normal")) as other:
            other.commit(turn(number))
            other.commit(turn(number + 1))
    code = f"""
import fcntl, sys
with open({os.fspath(path) + "-shm"!r}, "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)  # of processes that opened it
    except OSError:
        sys.exit()
sys.exit("unlocked")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors cannot be counted")
def test_descriptors_are_closed_with_the_last_connection(tmp_path):
    before = len([*Path("/proc/self/fd").iterdir()])
    for number in range(20):
        path = tmp_path / f"{number}.db"
        with closing(SqliteBackend(path)) as one, closing(SqliteBackend(path)) as other:
            one.commit(turn(1))
            other.commit(turn(2))
    assert len([*Path("/proc/self/fd").iterdir()]) <= before
