"""SQLite's failures: each typed, nothing changed, and the backend continues."""

import sqlite3

import pytest
import sqlite_children as children
from kit.selection import SEED, some

from threadkeep._core.engine.model import (
    Batch,
    FindThreads,
    ReadCheckpoint,
    ReadDamage,
    ReadSegments,
    ReadThread,
    ScanCheckpoints,
    Span,
)
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import (
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    LockedError,
    NewerDatabaseError,
    NotOursError,
    ReadOnlyError,
    ThreadkeepError,
)
from threadkeep.testing.records import checkpoint, segment, write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "threads.db"


@pytest.fixture
def backend(path):
    backend = SqliteBackend(path, synchronous="normal", busy_timeout=0.05)
    yield backend
    backend.close()


# -- locked --------------------------------------------------------------------------


def test_a_lock_that_stays_is_an_error_that_a_retry_may_cure(backend, path):
    children.put(backend, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LockedError) as raised:
        children.put(backend, 2)
    assert raised.value.retryable
    assert isinstance(raised.value.__cause__, sqlite3.OperationalError)
    assert str(path) in raised.value.hint
    results = backend.commit_many([Batch("t", 1) for _ in range(4)])
    assert [type(result) for result in results] == [LockedError] * 4
    assert len({id(result) for result in results}) == 4  # each caller has its own
    assert children.numbers(backend) == [1]  # readers are never blocked
    other.execute("ROLLBACK")
    other.close()
    children.put(backend, 2)
    assert children.numbers(backend) == [1, 2]


# -- full ----------------------------------------------------------------------------


def test_a_full_disk_changes_nothing(backend):
    children.put(backend, 1)
    writer = backend._connections.writer()
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = Batch("t", 1, segments=(segment(5, data=b"x" * 50_000),), checkpoints=(checkpoint(2),))
    with pytest.raises(DiskFullError) as raised:
        backend.commit(large)
    assert "Free space" in raised.value.hint
    assert children.numbers(backend) == [1]
    children.put(backend, 2)
    writer.execute("PRAGMA max_page_count = 1000000")
    backend.commit(Batch("t", 1, segments=(segment(5, data=b"x" * 50_000),)))
    assert children.numbers(backend) == [1, 2]


def test_a_file_that_may_not_grow_changes_nothing(path):
    pytest.importorskip("resource")
    told, count, stored = children.in_child(children.with_small_files, str(path), 300_000)
    assert told in ("BackendError", "DiskFullError")
    assert count > 0
    assert stored == count + 1


# -- values --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        {"checkpoints": (checkpoint(2, id="\ud800"),)},
        {"checkpoints": (checkpoint(2, ns="\ud800"),)},
        {"checkpoints": (checkpoint(2, run=2**63),)},
        {"writes": (write(1, task_path="\udfff"),)},
        {"segments": (segment(2**63),)},
        {"thread": "\ud800"},
    ],
    ids=["id", "namespace", "run", "path", "start", "thread"],
)
def test_values_that_sqlite_cannot_hold_are_refused(backend, rows):
    children.put(backend, 1)
    with pytest.raises(InvalidArgumentError, match="cannot store"):
        backend.commit(Batch(**{"thread": "t", "now": 1, "bump_generation": True, **rows}))
    assert children.numbers(backend) == [1]
    assert backend.fetch([ReadThread("t")])[0].generation == 0


def test_reads_of_such_values_are_refused(backend):
    with pytest.raises(InvalidArgumentError):
        backend.fetch([ReadCheckpoint("\ud800", "")])
    with pytest.raises(InvalidArgumentError):
        backend.fetch([ReadSegments("t", (Span(1, 0, 2**63),))])
    children.put(backend, 1)


# -- damaged -------------------------------------------------------------------------


def filled(path):
    backend = SqliteBackend(path, synchronous="normal")
    for number in range(1, 120):
        children.put(backend, number)
    backend.commit(Batch("t", 1, segments=(segment(0, log=9, data=b"large" * 9000),)))
    backend.close()
    return path.read_bytes()


def ask_everything(path):
    backend = SqliteBackend(path)
    try:
        damage, *_ = backend.fetch(
            [
                ReadDamage(),
                ReadThread("t"),
                ReadCheckpoint("t", ""),
                ReadSegments("t", (Span(1, 0, 1000), Span(9, 0, 1))),
                ScanCheckpoints(None, None, None, None, {"step": 3}, None, 1000),
                FindThreads(None, 10, ("run",)),
            ]
        )
        children.put(backend, 1000)
    finally:
        backend.close()
    return damage


@pytest.mark.parametrize("lost", [0.9, 0.5, 0.1])
def test_a_truncated_file_is_damaged(path, lost):
    content = filled(path)
    path.write_bytes(content[: -int(len(content) * lost)])
    with pytest.raises(CorruptionError) as raised:
        ask_everything(path)
    assert "threadkeep check" in raised.value.hint


def test_a_lost_middle_is_damaged(path):
    content = filled(path)
    path.write_bytes(content[:8192] + b"\0" * 40_960 + content[8192 + 40_960 :])
    with pytest.raises(CorruptionError):
        ask_everything(path)


def test_damage_is_told_line_by_line(path):
    filled(path)
    other = sqlite3.connect(path)
    (root,) = other.execute(
        "SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'tk_threads'"
    ).fetchone()
    other.execute("PRAGMA writable_schema = ON")
    other.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = 'tk_writes'", (root,))
    other.commit()
    other.close()
    backend = SqliteBackend(path)
    (damage,) = backend.fetch([ReadDamage()])
    assert damage
    assert all(isinstance(line, str) and line != "ok" for line in damage)
    backend.close()


def test_flipped_bytes_never_end_in_an_untyped_error(path):
    content = filled(path)
    told = set()
    step = some(1009, 397)
    for at in range(SEED % step, len(content), step):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            ask_everything(path)
        except ThreadkeepError as error:
            told.add(type(error))
        finally:
            for name in ("-wal", "-shm"):
                path.with_name(path.name + name).unlink(missing_ok=True)
    assert CorruptionError in told
    # (byte 18 of the file says if it may be written)
    assert told <= {CorruptionError, NotOursError, NewerDatabaseError, ReadOnlyError}
