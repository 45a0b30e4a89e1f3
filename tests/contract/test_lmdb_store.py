"""The contract on examples/lmdb_store.py, the example of docs/writing-a-backend.md."""

import subprocess
from pathlib import Path

import pytest
from kit.forked import python

from examples.lmdb_store import LmdbDatabase
from threadkeep.backends import Batch, FindThreads, ReadHead
from threadkeep.errors import DiskFullError, InvalidArgumentError, OpenError
from threadkeep.testing import BackendContract

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from examples.lmdb_store import LmdbDatabase
from threadkeep.backends import Batch
database = LmdbDatabase(sys.argv[1], map_size=2**16)
def killed(moves):
    with database._rows(write=True) as rows:
        rows.make(moves[0])
        os.kill(os.getpid(), signal.SIGKILL)
database.commit(Batch("whole", 1))
database.make = killed
database.commit(Batch("half", 1))
"""


class TestLmdb(BackendContract):
    def new_backend(self, folder):
        return LmdbDatabase(str(folder / "store"))

    def reopen(self, folder):
        return LmdbDatabase(str(folder / "store"))


@pytest.fixture
def database(tmp_path):
    database = LmdbDatabase(str(tmp_path / "store"), map_size=2**16)
    yield database
    database.close()


def names(database):
    return database.fetch([FindThreads(None, 100, empty=True)])[0]


def test_errors_are_those_of_threadkeep(database, tmp_path):
    with pytest.raises(InvalidArgumentError):
        database.commit(Batch("x" * 600, 1))
    with pytest.raises(DiskFullError):
        database.commit_many([Batch(f"{number:0400}", 1) for number in range(200)])
    assert names(database) == []
    with pytest.raises(OpenError):
        LmdbDatabase(str(tmp_path / "store"))


def test_a_killed_process_leaves_whole_moves_and_no_lock(database, tmp_path):
    command = [*python(), "-c", KILLED, str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode < 0, done.stderr
    assert names(database) == ["whole"]
    database.commit(Batch("whole", 2))
    assert len(database.fetch([ReadHead("whole")])[0].tips) == 2
