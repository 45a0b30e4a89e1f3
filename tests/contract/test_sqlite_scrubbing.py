"""Erased threads leave no bytes in SQLite's files, whatever happened before."""

import sqlite3
import subprocess
import threading
from contextlib import closing

import pytest
from kit.engine import Chain, everything
from kit.forked import python
from kit.remnants import remnants

from threadkeep import Retention, SqliteSaver
from threadkeep._core.codec.frame import Compression
from threadkeep.errors import LockedError, ThreadkeepError, UnfinishedErasureError

MARKER = "marker-8d30b1e6f4"
OPTIONS = {"synchronous": "normal", "compression": Compression(level=0)}
ERASE = """
import sys
from threadkeep import SqliteSaver
with SqliteSaver(sys.argv[1]) as saver:
    print(saver.threads.erase(sys.argv[2]).ok)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "threads.db"


def fill(saver, thread="x", said=MARKER, turns=40):
    """Lists that grow and are sealed, long values, pending writes, metadata, all with the text."""
    chain = Chain(saver, thread)
    for number in range(turns):
        chain.put(said=[f"{said} {n}" for n in range(number)], long=f"{number} {said * 200}")
        saver.put_writes(chain.at, [("said", f"written {said}")], f"task {number}")
    saver.threads.update(thread, metadata={"name": said})
    saver.threads.tag(thread, said)
    return chain


def test_nothing_is_left(path):
    with SqliteSaver(path, **OPTIONS) as saver:
        fill(saver, "y", "else")
        fill(saver)
        kept = {place: one for place, one in everything(saver).items() if place[0] == "y"}
        assert remnants(path.parent, MARKER)
        report = saver.threads.erase("x")
        assert remnants(path.parent, MARKER) == {}
        assert (path.parent / "threads.db-wal").stat().st_size == 0
        assert report.threads[0].checkpoints == 40
        assert everything(saver) == kept
        assert saver.check().ok
        fill(saver, "y2", "else")
    assert remnants(path.parent, MARKER) == {}


def test_nothing_is_left_of_what_was_removed_before(path):
    """Prunes, seals, retention, deletion: each leaves bytes in free space, which SQLite keeps."""
    with SqliteSaver(path, **OPTIONS) as saver:
        for number in range(4):
            fill(saver, f"y{number}", "else")
            chain = fill(saver, "x")
            if number == 0:
                saver.prune(["x"])
            elif number == 1:
                saver.threads.gc(Retention(keep_last=3, channels={"long": "latest"}))
            elif number == 2:
                saver.delete_thread("x")
            else:
                chain.put(said=[], long="")
                saver.threads.gc(Retention(keep_last=1))
                saver.threads.untag("x", MARKER)
                saver.threads.update("x", metadata={"name": None})
        assert remnants(path.parent, MARKER)
        saver.threads.erase("x")
        assert remnants(path.parent, MARKER) == {}
        assert saver.check().ok


async def test_in_front_of_it_nothing_is_held_back(path):
    async with SqliteSaver(path, **OPTIONS) as saver:
        fill(saver)
        report = await saver.threads.aerase(metadata={"name": MARKER})
        assert report.threads[0].checkpoints == 40
        assert remnants(path.parent, MARKER) == {}


def test_others_have_it_open(path):
    """Idle connections of other programs hold nothing back, and one of them may do it."""
    with SqliteSaver(path, **OPTIONS) as saver, closing(sqlite3.connect(path)) as other:
        fill(saver)
        assert other.execute("SELECT count(*) FROM tk_checkpoints").fetchone() == (40,)
        command = [*python(), "-c", ERASE, str(path), "x"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "True\n"
        assert remnants(path.parent, MARKER) == {}


def test_a_reader_of_an_older_state_is_an_error_that_says_so(path):
    with (
        SqliteSaver(path, busy_timeout=0.05, **OPTIONS) as saver,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        fill(saver)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM tk_checkpoints").fetchone()
        with pytest.raises(UnfinishedErasureError, match="still reads them") as caught:
            saver.threads.erase("x")
        report = caught.value.report
        assert (report.ok, report.threads[0].checkpoints) == (False, 40)
        assert isinstance(caught.value.__cause__, LockedError)
        assert remnants(path.parent, MARKER)
        assert saver.threads.get("x").state == "deleted"
        other.execute("ROLLBACK")
        assert saver.threads.erase("x").ok
        assert remnants(path.parent, MARKER) == {}


def test_a_writer_in_the_way_is_an_error_too(path):
    """The thread was deleted before: only a tombstone and the files' remnants are left."""
    with (
        SqliteSaver(path, busy_timeout=0.05, **OPTIONS) as saver,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        fill(saver)
        saver.delete_thread("x")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnfinishedErasureError, match="locked"):
            saver.threads.erase("x")
        assert remnants(path.parent, MARKER)
        other.execute("ROLLBACK")
        report = saver.threads.erase("x")
        assert (report.ok, report.threads[0].checkpoints, report.threads[0].bytes) == (True, 0, 0)
        assert remnants(path.parent, MARKER) == {}


def test_beside_others_that_write(path):
    """Other connections of this and another program continue, and store whole data."""
    failures = []
    with SqliteSaver(path, **OPTIONS) as saver, SqliteSaver(path, **OPTIONS) as apart:
        fill(saver)

        def write(name):
            try:
                fill(saver if name == "y0" else apart, name, "else", turns=15)
                with closing(sqlite3.connect(path)) as other:
                    for _ in range(20):
                        other.execute("PRAGMA wal_checkpoint")
            except ThreadkeepError as error:
                failures.append(error)

        others = [threading.Thread(target=write, args=(f"y{n}",)) for n in range(3)]
        for one in others:
            one.start()
        saver.threads.erase("x")
        assert remnants(path.parent, MARKER) == {}
        for one in others:
            one.join()
        assert failures == []
        assert saver.check().ok
        assert len(everything(saver)) == 45
