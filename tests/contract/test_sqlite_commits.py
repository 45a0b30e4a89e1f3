"""Group commit: who shares a transaction, and who gets which result."""

import sqlite3
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import pytest
import sqlite_children as children

from threadkeep.backends.sqlite import SqliteBackend, commits
from threadkeep.engine.model import Batch, DropThread, HeadFence, ReadSizes, ReadThread, WritesFence
from threadkeep.errors import (
    BackendError,
    ClosedError,
    ConflictError,
    DiskFullError,
    LockedError,
    SegmentTakenError,
)
from threadkeep.testing.records import checkpoint, segment, uid, write


@pytest.fixture
def backend(tmp_path):
    backend = SqliteBackend(tmp_path / "threads.db", synchronous="normal", busy_timeout=0.05)
    yield backend
    backend.close()


@pytest.fixture
def statements(backend):
    """What the writing connection is told, statement by statement."""
    told = []
    backend._connections.writer().set_trace_callback(told.append)
    return told


class Announced(deque):
    """A queue that says when so many wait in it."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        self.full = threading.Event()

    def extend(self, tickets):
        super().extend(tickets)
        if len(self) == self.count:
            self.full.set()


def together(backend, changes):
    """Commit all changes, each from its own thread, all waiting before the first begins."""
    waiting = backend._queue._waiting.tickets = Announced(len(changes))
    with ThreadPoolExecutor(len(changes)) as pool:
        with backend._connections.write_lock:
            results = [pool.submit(backend.commit, change) for change in changes]
            assert waiting.full.wait(children.SECONDS)
        return [result.exception(children.SECONDS) for result in results]


def batch(number, **fields):
    return Batch("t", 1, checkpoints=(checkpoint(number),), **fields)


def stored(backend):
    return len(backend.fetch([ReadThread("t")])[0].checkpoints)


def told_from_outside(statements):
    """Each statement once: the driver tells a statement's text again for all its triggers do."""
    return [text for text, _ in groupby(statements)]


def test_what_only_adds_rows_is_one_statement(backend, statements):
    segments = (segment(1), segment(2))
    backend.commit(batch(1, born=1, generation=0, segments=segments, writes=(write(1),)))
    (statement,) = told_from_outside(statements)
    assert statement.startswith("INSERT INTO tk_added")


def test_what_does_more_is_one_transaction(backend, statements):
    backend.commit(batch(1, fences=(HeadFence("", None),)))
    first, *between, last = told_from_outside(statements)
    assert (first, last) == ("BEGIN IMMEDIATE", "COMMIT")
    assert not [text for text in between if "SAVEPOINT" in text]


def test_many_rows_are_added_a_part_at_a_time(backend, statements):
    segments = tuple(segment(n) for n in range(200))
    backend.commit(batch(1, segments=segments))
    parts = [text for text in told_from_outside(statements) if text.startswith("INSERT")]
    assert len(parts) == 5  # the thread alone, and 202 rows by 64
    statements.clear()
    taken = segment(199, data=b"other bytes")
    with pytest.raises(SegmentTakenError):
        backend.commit(batch(2, segments=(*(segment(n) for n in range(300, 400)), taken)))
    assert statements[-1] == "ROLLBACK"
    (rows,) = backend.fetch([ReadThread("t")])
    assert (len(rows.checkpoints), len(rows.segments)) == (1, 200)


def test_changes_that_wait_together_share_a_commit(backend, statements):
    assert together(backend, [batch(n) for n in range(20)]) == [None] * 20
    assert statements.count("COMMIT") == statements.count("BEGIN IMMEDIATE") == 1
    assert stored(backend) == 20


def test_a_transaction_is_bounded(backend, statements, monkeypatch):
    monkeypatch.setattr(commits, "_MOST", 8)
    assert together(backend, [batch(n) for n in range(20)]) == [None] * 20
    assert statements.count("COMMIT") == 3
    assert stored(backend) == 20


def test_a_refused_change_leaves_its_neighbours_alone(backend, statements):
    backend.commit(batch(50, segments=(segment(0),)))
    statements.clear()
    taken = segment(0, data=b"other bytes")
    refused = [batch(60 + n, segments=(segment(1 + n), taken), bump=True) for n in range(3)]
    changes = [batch(n) for n in range(5)]
    results = together(backend, [*changes[:2], *refused, *changes[2:]])
    assert [type(result) for result in results] == [
        *[type(None)] * 2,
        *[SegmentTakenError] * 3,
        *[type(None)] * 3,
    ]
    assert len({id(result) for result in results[2:5]}) == 3  # each caller has its own
    assert statements.count("COMMIT") == 1
    (rows,) = backend.fetch([ReadThread("t")])
    assert (len(rows.checkpoints), len(rows.segments), rows.generation) == (6, 1, 0)


def test_refused_changes_alone_write_nothing(backend, statements):
    backend.commit(batch(50))
    refused = [batch(60 + n, fences=(HeadFence("", None),)) for n in range(3)]
    statements.clear()
    assert {type(result) for result in together(backend, refused)} == {ConflictError}
    assert statements.count("COMMIT") == 0


def test_a_change_that_the_driver_refuses_fails_alone(backend):
    (pages,) = backend._connections.writer().execute("PRAGMA page_count").fetchone()
    backend._connections.writer().execute(f"PRAGMA max_page_count = {pages + 3}")
    huge = batch(9, segments=(segment(0, data=b"x" * 200_000),))
    results = together(backend, [batch(1), huge, batch(2), Batch("\ud800", 1), batch(3)])
    assert [type(result).__name__ for result in results] == [
        *("NoneType", "DiskFullError", "NoneType", "InvalidArgumentError", "NoneType")
    ]
    assert isinstance(results[1], DiskFullError)
    assert stored(backend) == 3


def test_a_lock_that_stays_fails_all_that_wait(backend, tmp_path):
    other = sqlite3.connect(tmp_path / "threads.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    results = together(backend, [batch(n) for n in range(4)])
    assert [type(result) for result in results] == [LockedError] * 4
    assert len({id(result) for result in results}) == 4
    other.close()
    backend.commit(batch(1))


def test_a_commit_that_fails_fails_all(backend):
    def no_commit(action, name, *_):
        refused = action == sqlite3.SQLITE_TRANSACTION and name == "COMMIT"
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    writer = backend._connections.writer()
    writer.set_authorizer(no_commit)
    holds = (WritesFence("", uid(99), 1, 0),)  # more than one statement: each needs a COMMIT
    results = together(backend, [batch(n, fences=holds) for n in range(3)])
    assert [type(result) for result in results] == [BackendError] * 3
    assert "not authorized" in str(results[0])
    writer.set_authorizer(None)
    backend.commit(batch(9))
    assert stored(backend) == 1


def test_closing_fails_all_that_wait(backend):
    backend.close()
    results = together(backend, [batch(n) for n in range(3)])
    assert [type(result) for result in results] == [ClosedError] * 3


# -- interruptions -------------------------------------------------------------------


def test_an_interrupted_leader_leaves_the_others_their_turn(backend, monkeypatch):
    carry_out = commits.carry_out
    left = [1]

    def interrupted_once(db, change):
        carry_out(db, change)
        if left:
            left.pop()
            raise KeyboardInterrupt

    monkeypatch.setattr(commits, "carry_out", interrupted_once)
    results = together(backend, [batch(n) for n in range(5)])
    kinds = sorted(type(result).__name__ for result in results)
    assert kinds == ["KeyboardInterrupt", *["NoneType"] * 4]
    assert stored(backend) == 4


def test_the_queue_is_only_gone_over_while_nobody_adds_to_it(backend):
    """A garbage collection may let another thread run in the midst of it."""
    line = backend._queue._waiting

    class Guarded(deque):
        def __iter__(self):
            assert line._lock.locked()
            return super().__iter__()

        def extend(self, tickets):
            assert line._lock.locked()
            super().extend(tickets)

    line.tickets = Guarded()
    backend.commit(batch(1))
    backend.commit(DropThread("t", 2))
    backend.commit(batch(2))
    assert stored(backend) == 1


def test_an_interruption_before_anything_is_done_loses_no_ticket(backend, monkeypatch):
    settle = backend._queue._settle
    left = [1]

    def interrupted_once(tickets):
        if left:
            left.pop()
            raise KeyboardInterrupt
        settle(tickets)

    monkeypatch.setattr(backend._queue, "_settle", interrupted_once)
    results = together(backend, [batch(n) for n in range(5)])
    kinds = sorted(type(result).__name__ for result in results)
    assert kinds == ["KeyboardInterrupt", *["NoneType"] * 4]
    assert stored(backend) == 4
    assert not backend._queue._waiting


@pytest.mark.parametrize("change", [DropThread("t", 2), batch(2), batch(2, bump=True)])
def test_an_interruption_leaves_no_transaction_open(backend, monkeypatch, change):
    def interrupted(db, change):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(commits, "carry_out", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.commit(change)
    assert not backend._connections._writer.in_transaction
    backend.commit(batch(1))
    assert stored(backend) == 1


@pytest.mark.parametrize("place", ["file", "memory"])
@pytest.mark.parametrize("more", [{}, {"bump": True}])
def test_a_transaction_left_open_takes_no_commit_with_it(backend, place, more):
    if place == "memory":
        backend = SqliteBackend(":memory:")
    writer = backend._connections.writer()
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO tk_threads (thread) VALUES ('half done')")
    backend.commit(batch(1, **more))
    backend._connections.rest_writer()  # what was not committed is gone now
    assert stored(backend) == 1
    threads = backend._connections.writer().execute("SELECT thread FROM tk_threads")
    assert threads.fetchall() == [("t",)]


def test_an_interrupted_waiter_withdraws(backend):
    class Interrupting:
        def __enter__(self):
            raise KeyboardInterrupt

        def __exit__(self, *_):
            raise AssertionError

    lock = backend._connections.write_lock
    backend._connections.write_lock = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        backend.commit(batch(1))
    backend._connections.write_lock = lock
    backend.commit(batch(2))
    assert stored(backend) == 1


# -- space ---------------------------------------------------------------------------


def fill(backend, thread):
    segments = tuple(segment(n, data=bytes(10_000)) for n in range(40))
    backend.commit(Batch(thread, 1, segments=segments, checkpoints=(checkpoint(1),)))


def size(backend):
    return backend.fetch([ReadSizes(None, 1)])[0].total


def test_a_dropped_thread_gives_its_pages_back(backend):
    fill(backend, "keep")
    kept = size(backend)
    fill(backend, "drop")
    assert size(backend) > kept * 1.8
    backend.commit(DropThread("drop", 2))
    assert size(backend) < kept * 1.3
    assert len(backend.fetch([ReadThread("keep")])[0].segments) == 40


def test_dropped_segments_give_their_pages_back(backend):
    fill(backend, "t")
    full = size(backend)
    drops = tuple((1, n, 1) for n in range(40))
    backend.commit(Batch("t", 1, drop_segments=drops, segments=(segment(0, 40),), bump=True))
    assert size(backend) < full / 2


def test_giving_back_steps_aside_for_others(backend, monkeypatch):
    monkeypatch.setattr(commits, "_STEPS", 2)
    monkeypatch.setattr(commits, "_STEP_PAGES", 4)
    fill(backend, "drop")
    full = size(backend)
    backend.commit(DropThread("drop", 2))
    assert size(backend) == full - 8 * 4096
