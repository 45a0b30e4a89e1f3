"""Commits: what shares a transaction, how many statements it takes, and which result is whose."""

import sqlite3
from contextlib import closing

import pytest
from kit import sqlite

from threadkeep._core.engine.model import (
    Batch,
    DropThread,
    HeadFence,
    ReadCheckpoint,
    ReadSizes,
    ReadThread,
)
from threadkeep._core.engine.thread_entry import (
    EntryUpdate,
    ReadEntry,
    StatusEvent,
)
from threadkeep._stores.records import tie
from threadkeep._stores.sqlite import changes
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import (
    BackendError,
    ClosedError,
    ConflictError,
    CorruptionError,
    DiskFullError,
    SegmentTakenError,
)
from threadkeep.testing.records import checkpoint, linked, segment, uid, write


@pytest.fixture
def backend(tmp_path):
    backend = SqliteBackend(tmp_path / "threads.db", synchronous="normal", busy_timeout=0.05)
    yield backend
    backend.close()


@pytest.fixture
def statements(backend):
    with sqlite.statements(backend) as found:
        yield found


def batch(number, **fields):
    return Batch("t", 1, checkpoints=(checkpoint(number),), **fields)


def stored(backend):
    return len(backend.fetch([ReadThread("t")])[0].checkpoints)


def kinds(statements):
    """The first words of each statement, and its table where it writes."""
    found = [text.split() for text in statements]
    places = {"INSERT": "INTO", "DELETE": "FROM"}
    return [
        " ".join((words[0], *words[words.index(places[words[0]]) + 1 :][:1]))
        if words[0] in places
        else words[0]
        for words in found
    ]


def test_what_only_adds_rows_is_a_statement_for_each_table(backend, statements):
    segments = (segment(1), segment(2))
    writes = (write(1), write(2), write(1))
    touch = EntryUpdate(9, at=5, saves=True, event=StatusEvent(None, uid(1)))
    backend.commit(batch(1, life=0, generation=0, segments=segments, writes=writes, touch=touch))
    assert kinds(statements) == [
        *("BEGIN", "SELECT", "INSERT tk_threads", "INSERT tk_heap_segments"),
        *("INSERT tk_checkpoints", "INSERT tk_writes", "COMMIT"),
    ]
    statements.clear()
    backend.commit(Batch("t", 1, writes=(write(1),)))
    assert kinds(statements) == ["BEGIN", "UPDATE", "INSERT tk_writes", "COMMIT"]


def test_a_group_inserts_the_rows_of_all_threads_together(backend, statements):
    """Of many threads, new and known. So are the heads of those that are known."""
    backend.commit(Batch("t0", 1, segments=(segment(0),)))
    statements.clear()
    group = [
        Batch(f"t{n}", 1, segments=(segment(10 + n),), checkpoints=(checkpoint(n),))
        for n in range(16)
    ]
    assert backend.commit_many(group) == [None] * 16
    assert kinds(statements) == [
        *("BEGIN", *["SELECT"] * 15, "UPDATE", *["INSERT tk_threads"] * 15),
        *("INSERT tk_heap_segments", "INSERT tk_checkpoints", "COMMIT"),
    ]
    statements.clear()
    group = [one._replace(segments=(), checkpoints=(), writes=(write(1),)) for one in group]
    assert backend.commit_many(group) == [None] * 16
    assert kinds(statements) == [
        *("BEGIN", "SAVEPOINT", "UPDATE", "RELEASE", "INSERT tk_writes", "COMMIT"),
    ]


def test_a_group_that_is_sent_again_is_made_once(backend, tmp_path):
    """Its tips are those of the first time: as after an answer that was lost."""
    threads = "abcde"
    with closing(SqliteBackend(tmp_path / "threads.db")) as again:
        backend.commit_many([Batch(name, 1) for name in threads])
        for name in threads:
            again.fetch([ReadCheckpoint(name, "")])
        group = [Batch(name, 1, writes=(write(1),), link=linked()) for name in threads]
        tie(group)
        assert backend.commit_many(group) == again.commit_many(group) == [None] * len(group)
    found = backend.fetch([ReadThread(name) for name in threads])
    assert [len(rows.orphans) for rows in found] == [1] * len(group)


def test_a_seal_in_a_group_is_checked_by_itself(backend, statements):
    backend.commit(Batch("t0", 1, segments=tuple(segment(n) for n in range(8))))
    drops = tuple((1, n, 1) for n in range(8))
    seal = Batch("t0", 1, segments=(segment(0, 8, data=b"all"),), drop_segments=drops)
    taken = seal._replace(segments=(segment(0, 9),), drop_segments=drops[:7])
    before, after = (Batch("t1", 1, segments=(segment(n),)) for n in range(2))
    statements.clear()
    results = backend.commit_many([before, taken, seal, after])
    none = type(None)
    assert [type(one) for one in results] == [none, SegmentTakenError, none, none]
    assert statements.count("COMMIT") == 1
    places = [backend.fetch([ReadThread(thread)])[0].segments for thread in ("t0", "t1")]
    assert [[one[:3] for one in some] for some in places] == [[(1, 0, 8)], [(1, 0, 1), (1, 1, 1)]]


def test_what_does_more_is_one_transaction(backend, statements):
    backend.commit(batch(1, fences=(HeadFence("", None),)))
    first, *between, last = statements
    assert (first, last) == ("BEGIN IMMEDIATE", "COMMIT")
    assert not [text for text in between if "SAVEPOINT" in text]


def test_many_rows_are_added_a_part_at_a_time(backend, statements):
    segments = tuple(segment(n) for n in range(200))
    backend.commit(batch(1, segments=segments))
    parts = [text for text in statements if text.startswith("INSERT INTO tk_heap_segments")]
    assert [text.count("x'") for text in parts] == [64, 64, 64, 8]
    statements.clear()
    taken = segment(199, data=b"other bytes")
    with pytest.raises(SegmentTakenError):
        backend.commit(batch(2, segments=(*(segment(n) for n in range(300, 400)), taken)))
    assert statements[-1] == "ROLLBACK"
    (rows,) = backend.fetch([ReadThread("t")])
    assert (len(rows.checkpoints), len(rows.segments)) == (1, 200)


def test_few_texts_do_for_groups_of_any_size(backend, statements):
    for size in range(1, 101):
        group = [Batch(f"t{n}", 1, writes=(write(size),)) for n in range(size)]
        assert backend.commit_many(group) == [None] * size
    texts = {text.count("(") for text in statements if text.startswith("INSERT INTO tk_writes")}
    assert len(texts) <= 18


def test_a_refused_change_leaves_its_neighbours_alone(backend, statements):
    backend.commit(batch(50, segments=(segment(0),)))
    statements.clear()
    taken = segment(0, data=b"other bytes")
    refused = [
        batch(60 + n, segments=(segment(1 + n), taken), bump_generation=True) for n in range(3)
    ]
    changes = [batch(n) for n in range(5)]
    results = backend.commit_many([*changes[:2], *refused, *changes[2:]])
    none = [type(None)]
    assert [type(one) for one in results] == [*none * 2, *[SegmentTakenError] * 3, *none * 3]
    assert len({id(result) for result in results[2:5]}) == 3  # each caller has its own
    assert statements.count("COMMIT") == 1
    (rows,) = backend.fetch([ReadThread("t")])
    assert (len(rows.checkpoints), len(rows.segments), rows.generation) == (6, 1, 0)


def test_refused_changes_alone_write_nothing(backend, statements):
    backend.commit(batch(50))
    refused = [batch(60 + n, fences=(HeadFence("", None),)) for n in range(3)]
    statements.clear()
    assert {type(result) for result in backend.commit_many(refused)} == {ConflictError}
    assert statements.count("COMMIT") == 0


def test_a_change_that_the_driver_refuses_fails_alone(backend):
    (pages,) = backend._connections.writer().execute("PRAGMA page_count").fetchone()
    backend._connections.writer().execute(f"PRAGMA max_page_count = {pages + 3}")
    huge = batch(9, segments=(segment(0, data=b"x" * 200_000),))
    results = backend.commit_many([batch(1), huge, batch(2), Batch("\ud800", 1), batch(3)])
    assert [type(result).__name__ for result in results] == [
        *("NoneType", "DiskFullError", "NoneType", "InvalidArgumentError", "NoneType")
    ]
    assert isinstance(results[1], DiskFullError)
    assert stored(backend) == 3


def test_a_commit_that_fails_fails_all(backend):
    def no_commit(action, name, *_):
        refused = action == sqlite3.SQLITE_TRANSACTION and name == "COMMIT"
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    writer = backend._connections.writer()
    writer.set_authorizer(no_commit)
    results = backend.commit_many([batch(n) for n in range(3)])
    assert [type(result) for result in results] == [BackendError] * 3
    assert "not authorized" in str(results[0])
    writer.set_authorizer(None)
    backend.commit(batch(9))
    assert stored(backend) == 1


def test_closing_fails_all(backend):
    backend.close()
    results = backend.commit_many([batch(n) for n in range(3)])
    assert [type(result) for result in results] == [ClosedError] * 3


@pytest.mark.parametrize(
    "damage", ["updated_at = 'late'", "seq = 'x'", "logs = x'00'", "heap = 1.5"]
)
def test_a_damaged_row_of_a_thread_refuses_its_own_changes_alone(backend, damage):
    """Of a thread that this connection has not written."""
    told = EntryUpdate(1, at=7, saves=True, event=StatusEvent(None, uid(1)))
    for thread in ("t", "damaged"):
        backend.commit(Batch(thread, 1, touch=told))
    writer = backend._connections.writer()
    writer.execute(f"UPDATE tk_threads SET {damage} WHERE thread = 'damaged'")
    backend._connections.heads.clear()
    change = Batch("damaged", 1, touch=told)
    results = backend.commit_many([batch(1), change, batch(2)])
    assert [type(result) for result in results] == [type(None), CorruptionError, type(None)]
    assert stored(backend) == 2
    assert backend.fetch([ReadEntry("t")])[0].state == "active"


# -- interruptions -------------------------------------------------------------------


@pytest.mark.parametrize("change", [DropThread("t", 2), batch(2), batch(2, bump_generation=True)])
def test_an_interruption_leaves_no_transaction_open(backend, monkeypatch, change):
    def interrupted(db, moves):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(changes, "make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.commit(change)
    assert not backend._connections._writer.in_transaction
    backend.commit(batch(1))
    assert stored(backend) == 1


@pytest.mark.parametrize("place", ["file", "memory"])
@pytest.mark.parametrize("more", [{}, {"bump_generation": True}])
def test_a_transaction_left_open_takes_no_commit_with_it(backend, place, more):
    if place == "memory":
        backend = SqliteBackend(":memory:")
    writer = backend._connections.writer()
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO tk_threads (thread) VALUES ('half done')")
    backend.commit(batch(1, **more))
    backend._connections.rest_writer()  # uncommitted rows are gone now
    assert stored(backend) == 1
    threads = backend._connections.writer().execute("SELECT thread FROM tk_threads")
    assert threads.fetchall() == [("t",)]


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
    backend.commit(
        Batch("t", 1, drop_segments=drops, segments=(segment(0, 40),), bump_generation=True)
    )
    assert size(backend) < full / 2


def test_little_is_given_back_at_a_time(backend, monkeypatch):
    monkeypatch.setattr(changes, "_STEPS", 2)
    monkeypatch.setattr(changes, "_STEP_PAGES", 4)
    fill(backend, "drop")
    full = size(backend)
    backend.commit(DropThread("drop", 2))
    assert size(backend) == full - 8 * 4096
