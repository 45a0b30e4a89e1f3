"""Logs of forks that share segments: each thread appends only to its own."""

import pytest

from threadkeep._core.engine.model import Batch, DropThread, ForkThread, ReadThread
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import SegmentTakenError
from threadkeep.testing.records import checkpoint, segment, uid

ORIGIN = Batch("t", 1, segments=(segment(0), segment(1)), checkpoints=(checkpoint(1),))
WHOLE = segment(0, 2)
ENTRY = ThreadEntry("fork", "active", 1, 1, origin=("t", uid(1)))


@pytest.fixture(params=["memory", "sqlite"])
def backend(request):
    """With a thread and its fork, which share log 1."""
    backend = MemoryBackend() if request.param == "memory" else SqliteBackend(":memory:")
    backend.commit(ORIGIN)
    backend.commit(ForkThread("t", "fork", 2, 0, (("", uid(1)),), (), ENTRY))
    yield backend
    backend.close()


def places(backend):
    """The segments that both threads read."""
    found = [backend.fetch([ReadThread(name)])[0].segments for name in ("t", "fork")]
    assert found[0] == found[1]
    return [place[:3] for place in found[0]]


def test_a_fork_appends_to_its_own_logs(backend):
    with pytest.raises(SegmentTakenError):
        backend.commit(Batch("fork", 3, segments=(segment(2),)))
    backend.commit(Batch("fork", 3, segments=(segment(0, log=2),)))
    backend.commit(Batch("fork", 3, segments=(segment(1, log=2),)))
    with pytest.raises(SegmentTakenError):
        backend.commit(Batch("t", 3, segments=(segment(2, log=2),)))
    backend.commit(Batch("t", 3, segments=(segment(2),)))
    assert places(backend) == [(1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 0, 1), (2, 1, 1)]


def test_a_fork_replaces_segments_of_any_log(backend):
    """Positions that it drops. The log stays the origin's."""
    backend.commit(Batch("fork", 3, segments=(WHOLE,), drop_segments=((1, 0, 1), (1, 1, 1))))
    assert places(backend) == [(1, 0, 2)]
    backend.commit(Batch("t", 4, segments=(segment(2),)))
    with pytest.raises(SegmentTakenError):
        backend.commit(Batch("fork", 5, segments=(segment(3),)))
    assert places(backend) == [(1, 0, 2), (1, 2, 1)]


def test_what_a_fork_adds_with_a_new_generation_ends_the_log_for_all(backend):
    backend.commit(Batch("fork", 3, segments=(segment(2, 2),), bump_generation=True))
    for name in ("t", "fork"):
        for start in (3, 4):
            with pytest.raises(SegmentTakenError):
                backend.commit(Batch(name, 4, segments=(segment(start, data=b"other"),)))
    assert places(backend) == [(1, 0, 1), (1, 1, 1), (1, 2, 2)]


def test_a_dropped_fork_leaves_the_log_to_its_origin(backend):
    backend.commit(DropThread("fork", 3))
    backend.commit(Batch("t", 4, segments=(segment(2),)))
    with pytest.raises(SegmentTakenError):
        backend.commit(Batch("t", 5, segments=(segment(1, data=b"other"),)))
    (rows,) = backend.fetch([ReadThread("t")])
    assert [place.start for place in rows.segments] == [0, 1, 2]
