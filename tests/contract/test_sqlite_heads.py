"""SQLite remembers heads of threads: fewer statements, and the same rules."""

import random
import sqlite3
from contextlib import closing
from itertools import pairwise

import pytest
from kit import sqlite
from kit.stories import THREADS, a_change
from kit.tips import without_tips

from threadkeep._core.engine import positions
from threadkeep._core.engine.model import (
    Batch,
    DropThread,
    ReadCheckpoint,
    ReadThread,
)
from threadkeep._core.engine.thread_entry import (
    ReadEntry,
)
from threadkeep._stores import committing
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.sqlite import changes, connections, moves
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import LockedError, SegmentTakenError, ThreadDeletedError
from threadkeep.testing.records import checkpoint, segment, uid, write

HEAD = ReadCheckpoint("t", "")


@pytest.fixture
def backend(tmp_path):
    with closing(SqliteBackend(tmp_path / "threads.db", synchronous="normal")) as backend:
        yield backend


@pytest.fixture
def other(backend, tmp_path):
    """Another saver on the same file."""
    with closing(SqliteBackend(tmp_path / "threads.db", synchronous="normal")) as other:
        yield other


def told(backend, call):
    """The first words of the statements of a call."""
    with sqlite.statements(backend) as found:
        call()
    return [text.split()[0] for text in found]


def turn(number, **fields):
    """A superstep of thread "t": a checkpoint, its keyframe in a segment at position 0."""
    fields = {"segments": (segment(0),) if number == 1 else (), **fields}
    return Batch("t", 1, checkpoints=(checkpoint(number, number - 1),), **fields)


def head(backend):
    """The head's id and its writes."""
    (state,) = backend.fetch([HEAD])
    return state.found.row.id, [row.body for row in state.found.writes]


# -- few statements ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "statements"),
    [
        (turn(2, segments=(segment(3), segment(0, log=7))), ["UPDATE", "INSERT", "INSERT"]),
        (Batch("t", 1, writes=(write(2),)), ["UPDATE", "INSERT"]),
        (turn(2, segments=(segment(1), segment(2))), ["UPDATE", "INSERT", "INSERT"]),
    ],
    ids=["further", "writes", "appends"],
)
def test_a_thread_lately_written_is_not_read(backend, batch, statements):
    backend.commit(turn(1))
    commit = told(backend, lambda: backend.commit(batch))
    assert commit == ["BEGIN", *statements, "COMMIT"]


def test_a_gap_that_was_reserved_is_filled_without_reads(backend):
    backend.commit(turn(1, segments=(segment(0), segment(3))))
    filling = turn(2, segments=(segment(1), segment(2)))
    commit = told(backend, lambda: backend.commit(filling))
    assert commit == ["BEGIN", "UPDATE", "INSERT", "INSERT", "COMMIT"]
    with pytest.raises(SegmentTakenError):
        backend.commit(turn(3, segments=(segment(2, data=b"other"),)))


def test_a_put_carries_the_segments_of_its_writes(backend):
    backend.commit(turn(1))
    brought = (segment(1), segment(0, log=7))
    backend.commit(Batch("t", 1, segments=brought, writes=(write(1),)))
    backend.commit(turn(2, segments=(*brought, segment(2))))
    (rows,) = backend.fetch([ReadThread("t")])
    assert len(rows.segments) == 4


def test_other_bytes_at_a_recent_place_are_refused(backend):
    backend.commit(turn(1, segments=(segment(0), segment(1, data=b"one"))))
    with pytest.raises(SegmentTakenError):
        backend.commit(turn(2, segments=(segment(1, data=b"two"),)))


def test_a_segment_that_was_dropped_is_stored_again(backend):
    backend.commit(turn(1, segments=(segment(0), segment(1))))
    backend.commit(turn(2, drop_segments=((1, 1, 1),)))
    backend.commit(turn(3, segments=(segment(1),)))
    (rows,) = backend.fetch([ReadThread("t")])
    assert [(place.start, place.count) for place in rows.segments] == [(0, 1), (1, 1)]


def test_a_thread_of_before_is_read_once(backend, other):
    other.commit(turn(1))
    assert told(backend, lambda: backend.commit(turn(2)))[:2] == ["BEGIN", "SELECT"]
    assert told(backend, lambda: backend.commit(turn(3)))[:2] == ["BEGIN", "UPDATE"]


# -- others --------------------------------------------------------------------------


def test_what_others_commit_is_seen_at_the_next_load(backend, other):
    for number in range(1, 6):
        (backend, other)[number % 2].commit(turn(number))
        assert head(backend) == head(other) == (uid(number), [])


def test_what_others_commit_refuses_the_next_commit(backend, other):
    backend.commit(turn(1))
    other.commit(Batch("t", 1, segments=(segment(1),)))
    with pytest.raises(SegmentTakenError):
        backend.commit(turn(2, segments=(segment(1, data=b"mine"),)))
    other.commit(DropThread("t", 5))
    with pytest.raises(ThreadDeletedError):
        backend.commit(turn(2, life=0))
    assert backend.fetch([HEAD])[0].found is None


def test_writes_beside_those_of_others_go_on_counting(backend, other):
    backend.commit(turn(1))
    for number in range(6):
        (backend, other)[number % 2].commit(Batch("t", 1, writes=(write(1),)))
    assert [row.seq for row in backend.fetch([HEAD])[0].found.writes] == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def waits(backend, other):
    """Calls a function at each attempt to take the lock, of a backend beside another one."""
    backend.commit(turn(1))
    other.commit(Batch("t", 1, writes=(write(1),)))
    backend.commit(Batch("t", 1, writes=(write(1),)))
    db = backend._connections.writer()

    def watch(call):
        db.set_trace_callback(lambda text: text.startswith("BEGIN") and call())

    yield watch
    db.set_trace_callback(None)
    with backend._connections.reading() as db:  # (waits as long as ever)
        assert db.execute("PRAGMA busy_timeout").fetchone() == (30_000,)


def test_a_commit_beside_others_takes_the_lock_soon_and_sees_what_they_did(backend, other, waits):
    """Another one commits writes while this one tries to take the lock a third time."""
    attempts = []
    backend._connections._contended = 1
    with closing(sqlite3.connect(backend.location.path, isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")

        def attempt():
            attempts.append(1)
            if len(attempts) == 3:
                rival.execute("COMMIT")
                other.commit(Batch("t", 1, writes=(write(1),)))

        waits(attempt)
        backend.commit(Batch("t", 1, writes=(write(1),)))
    assert len(attempts) == 3
    assert [row.seq for row in backend.fetch([HEAD])[0].found.writes] == [1, 2, 3, 4]


def test_a_commit_beside_others_waits_for_the_timeout(backend, waits, monkeypatch):
    attempts = []
    backend._connections._contended = 1
    clock = iter((0.0, 29.9, 30.0))
    with (
        closing(sqlite3.connect(backend.location.path, isolation_level=None)) as rival,
        monkeypatch.context() as patched,
    ):
        patched.setattr(connections, "monotonic", lambda: next(clock))
        rival.execute("BEGIN IMMEDIATE")
        waits(lambda: attempts.append(1))
        with pytest.raises(LockedError):
            backend.commit(Batch("t", 1, writes=(write(1),)))
    assert len(attempts) == 2
    backend.commit(Batch("t", 1, writes=(write(1),)))
    assert [row.seq for row in backend.fetch([HEAD])[0].found.writes] == [1, 2, 3]


def test_a_load_does_not_wait_for_a_commit(backend):
    backend.commit(turn(1))
    with backend._connections.write_lock:
        assert head(backend) == (uid(1), [])


# -- what does not last --------------------------------------------------------------


def fails(error):
    def fail(*args):
        raise error

    return fail


@pytest.mark.parametrize("error", [KeyboardInterrupt, OverflowError])
def test_what_was_rolled_back_is_forgotten(backend, monkeypatch, error):
    backend.commit(turn(1))
    with monkeypatch.context() as patched:
        patched.setattr(moves._Making, "insert", fails(error))
        with pytest.raises((KeyboardInterrupt, Exception)):
            backend.commit(turn(2, segments=(segment(1),), writes=(write(1),)))
    assert head(backend) == (uid(1), [])
    backend.commit(turn(2, segments=(segment(1, data=b"other"),), writes=(write(1),)))
    assert head(backend) == (uid(2), [])
    assert [len(one.writes) for one in backend.fetch([ReadThread("t")])[0].checkpoints] == [1, 0]


def test_a_commit_that_was_interrupted_at_its_end_is_seen(backend, monkeypatch):
    backend.commit(turn(1))
    with monkeypatch.context() as patched:
        patched.setattr(committing.Heads, "keep", fails(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            backend.commit(turn(2, writes=(write(2),)))
    backend.commit(Batch("t", 1, writes=(write(2),)))
    assert [row.seq for row in backend.fetch([HEAD])[0].found.writes] == [1, 2]


def test_what_was_refused_leaves_nothing(backend):
    backend.commit(turn(1))
    taken = segment(0, data=b"other")
    refused = turn(2, segments=(segment(1), taken), writes=(write(1),))
    kept, failure = backend.commit_many([turn(3), refused])
    assert (kept, type(failure)) == (None, SegmentTakenError)
    assert head(backend) == (uid(3), [])
    backend.commit(Batch("t", 1, segments=(segment(1, data=b"mine"),), writes=(write(1),)))
    (rows,) = backend.fetch([ReadThread("t")])
    assert [row.seq for one in rows.checkpoints for row in one.writes] == [1]


# -- stories -------------------------------------------------------------------------


def is_sound(rows):
    """No two segments overlap, and the writes of a checkpoint have different numbers."""
    places = sorted(rows.segments)
    apart = all(a.log != b.log or a.start + a.count <= b.start for a, b in pairwise(places))
    numbers = [[row.seq for row in one.writes] for one in rows.checkpoints]
    return apart and all(len({*some}) == len(some) for some in numbers)


@pytest.mark.parametrize("seed", range(80))
def test_a_story_of_two_savers_is_that_of_one_in_memory(backend, other, seed, monkeypatch):
    """Also if few heads are remembered, and list few logs; and if few are set together."""
    monkeypatch.setattr(moves, "_MANY", 1 + seed % 3)
    monkeypatch.setattr(committing, "_MOST_HEADS", seed % 4)
    monkeypatch.setattr(positions, "MOST_LOGS", 1 + seed % 3)
    monkeypatch.setattr(changes, "_give_back", lambda db: None)
    dice = random.Random(seed)
    plain = MemoryBackend()
    for _ in range(60):
        group = [a_change(dice) for _ in range(dice.choice([1, 1, 1, 3]))]
        acting = dice.choice([backend, backend, backend, other])
        found, expected = acting.commit_many(group), plain.commit_many(group)
        assert [type(one) for one in found] == [type(one) for one in expected]
    reads = [read(name) for name in THREADS for read in (ReadThread, ReadEntry)]
    replies = [[without_tips(reply) for reply in one.fetch(reads)] for one in (backend, plain)]
    for mine, same in zip(*replies, strict=True):
        assert mine == same
    assert all(map(is_sound, replies[0][::2]))
    plain.close()
