"""A damaged row of `tk_threads`: found, mended, and safe values in its fields."""

import pytest

from threadkeep._core.engine.model import THREADS, Batch, HeadFence, ReadThread
from threadkeep._core.engine.thread_entry import EntryUpdate, ReadEntry, StatusEvent
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import ConflictError, CorruptionError, SegmentTakenError, StaleThreadError
from threadkeep.testing.records import checkpoint, linked, segment, uid, write

DAMAGE = [
    *("seq = 'x'", "newest = 5", "logs = x'c1'", "logs = 'x'", "tips = 'x'"),
    *("generation = -1", "life = 'x'", "heap = 'x'", "updated_at = 'x'", "revision = 'x'"),
]


@pytest.fixture
def backend():
    backend = SqliteBackend(":memory:")
    touch = EntryUpdate(5, at=7, labels=('"tag"',), saves=True, event=StatusEvent(None, uid(2)))
    rows = (checkpoint(1), checkpoint(2, 1))
    backend.commit(
        Batch("t", 1, checkpoints=rows, writes=(write(2),), segments=(segment(0),), touch=touch)
    )
    yield backend
    backend.close()


def damage(backend, column):
    backend._connections.writer().execute(f"UPDATE tk_threads SET {column}")
    backend._connections.heads.clear()


def mending(backend):
    (rows,) = backend.fetch([ReadThread("t", skip=True)])
    assert [row.table for row in rows.unreadable] == [THREADS]
    return Batch("t", 2, drop_unreadable=rows.unreadable, bump_generation=True)


@pytest.mark.parametrize("column", [one for one in DAMAGE if "tips" not in one])
def test_a_damaged_row_is_mended(backend, column):
    damage(backend, column)
    with pytest.raises(CorruptionError):
        backend.commit(Batch("t", 2, writes=(write(2),)))
    backend.commit(mending(backend))
    (rows, entry) = backend.fetch([ReadThread("t", skip=True), ReadEntry("t")])
    assert (rows.unreadable, entry) == ((), None)
    assert rows.generation > 0
    assert len(rows.tips) == 1


@pytest.mark.parametrize("column", DAMAGE)
def test_rows_of_before_still_count(backend, column):
    """For numbers of writes, for heads and for positions."""
    damage(backend, column)
    if "tips" not in column:
        backend.commit(mending(backend))
    backend.commit(Batch("t", 3, writes=(write(2),)))
    (rows,) = backend.fetch([ReadThread("t")])
    first, second = (row.seq for row in rows.checkpoints[-1].writes)
    assert first < second
    with pytest.raises(ConflictError):
        backend.commit(Batch("t", 3, fences=(HeadFence("", uid(1)),)))
    with pytest.raises(SegmentTakenError):
        backend.commit(Batch("t", 3, segments=(segment(0, data=b"other"),)))


def test_damaged_tips_prove_nothing(backend):
    damage(backend, "tips = 'x'")
    with pytest.raises(StaleThreadError):
        backend.commit(Batch("t", 2, writes=(write(2),), link=linked(5)))


def test_a_row_that_has_changed_is_left_alone(backend):
    damage(backend, "seq = 'x'")
    change = mending(backend)
    damage(backend, "revision = 9")
    with pytest.raises(ConflictError):
        backend.commit(change)
    damage(backend, "seq = 1")
    with pytest.raises(ConflictError):
        backend.commit(change)
