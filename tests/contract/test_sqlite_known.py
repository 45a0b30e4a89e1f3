"""SQLite's writing connection remembers rows: the same as in the file, with no more queries."""

import random
import sqlite3
from contextlib import closing

import pytest
from kit import sqlite
from kit.tips import without_tips

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    CopyThread,
    DropThread,
    ForkThread,
    ReadCheckpoint,
    ReadThread,
)
from threadkeep._core.engine.thread_entry import (
    Cause,
    EntryUpdate,
    ThreadEntry,
    transition,
)
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.sqlite import additions, connections, known, known_segments
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.sqlite.reads import checkpoint as answer
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


# -- few questions -------------------------------------------------------------------


def test_a_thread_lately_written_is_not_asked_for(backend):
    backend.commit(turn(1))
    pieces = (segment(1), segment(2), segment(0, log=7))
    for batch, expected in (
        (turn(2, segments=pieces), ["INSERT", "UPDATE", "INSERT"]),
        (Batch("t", 1, writes=(write(2),)), ["UPDATE", "INSERT"]),
    ):
        commit = told(backend, lambda batch=batch: backend.commit(batch))
        assert commit == ["BEGIN", *expected, "COMMIT"]


def test_a_put_carries_the_segments_of_its_writes_without_questions(backend):
    backend.commit(turn(1))
    brought, own = (segment(1), segment(0, log=7)), segment(2)
    write_first = Batch("t", 1, segments=brought, writes=(write(1),))
    backend.commit(write_first)
    carrying = turn(2, segments=(*brought, own))
    commit = told(backend, lambda: backend.commit(carrying))
    assert commit == ["BEGIN", "INSERT", "UPDATE", "INSERT", "COMMIT"]
    commit = told(backend, lambda: backend.commit(turn(3, segments=brought)))
    assert commit[1:-1] == ["UPDATE", "INSERT"]
    (rows,) = backend.fetch([ReadThread("t")])
    assert len(rows.segments) == 4


def test_other_bytes_at_a_recent_place_are_refused(backend):
    backend.commit(turn(1, segments=(segment(0), segment(1, data=b"one"))))
    with pytest.raises(SegmentTakenError):
        backend.commit(turn(2, segments=(segment(1, data=b"two"),)))


def test_a_recent_segment_that_was_dropped_is_stored_again(backend):
    backend.commit(turn(1, segments=(segment(0), segment(1))))
    backend.commit(turn(2, drop_segments=((1, 1, 1),)))
    backend.commit(turn(3, segments=(segment(1),)))
    (rows,) = backend.fetch([ReadThread("t")])
    assert [(place.start, place.count) for place in rows.segments] == [(0, 1), (1, 1)]


def test_recent_segments_are_sealed_without_questions(backend):
    backend.commit(turn(1, segments=(segment(0), *[segment(n) for n in range(1, 6)])))
    drops = tuple((1, n, 1) for n in range(1, 5))
    seal = turn(2, segments=(segment(1, 4), segment(6)), drop_segments=drops)
    expected = ["BEGIN", "DELETE", "INSERT", "UPDATE", "INSERT", "COMMIT"]
    assert told(backend, lambda: backend.commit(seal))[:6] == expected
    (rows,) = backend.fetch([ReadThread("t")])
    places = [(place.start, place.count) for place in rows.segments]
    assert places == [(0, 1), (1, 4), (5, 1), (6, 1)]


def test_a_head_outlives_the_sealing_of_another_log(backend):
    backend.commit(turn(1, segments=(segment(0), segment(0, log=7), segment(1, log=7))))
    drops = ((7, 0, 1), (7, 1, 1))
    backend.commit(Batch("t", 1, segments=(segment(0, 2, log=7),), drop_segments=drops))
    assert told(backend, lambda: head(backend)) == []
    backend.commit(Batch("t", 1, segments=(segment(0, data=b"new"),), drop_segments=((1, 0, 1),)))
    assert told(backend, lambda: head(backend)) == ["SELECT"]


def test_a_gap_that_was_reserved_is_filled_without_questions(backend):
    backend.commit(turn(1, segments=(segment(0), segment(3))))
    filling = turn(2, segments=(segment(1), segment(2)))
    commit = told(backend, lambda: backend.commit(filling))
    assert commit == ["BEGIN", "INSERT", "UPDATE", "INSERT", "COMMIT"]
    with pytest.raises(SegmentTakenError):
        backend.commit(turn(3, segments=(segment(2, data=b"other"),)))


def test_gaps_of_a_log_are_not_known_by_its_drops_alone(backend, monkeypatch):
    backend.commit(turn(1, segments=(segment(0), segment(1), segment(2))))
    monkeypatch.setattr(known_segments, "_MOST_LOGS", 0)
    backend.commit(Batch("t", 1, drop_segments=((1, 1, 1),)))
    monkeypatch.undo()
    with pytest.raises(SegmentTakenError):
        backend.commit(Batch("t", 1, segments=(segment(1, 3),)))


def test_a_batch_may_carry_a_segment_twice(backend):
    backend.commit(turn(1))
    recent = backend._connections.known.recent
    twice = segment(1, data=b"x")
    for number in range(1, 4):
        backend.commit(Batch("t", 1, segments=(twice, twice), writes=(write(1),)))
        assert recent._bytes == sum(map(known_segments._bytes_of, recent.values())), number


def test_a_commit_that_was_interrupted_at_its_end_leaves_no_old_head(backend, monkeypatch):
    backend.commit(turn(1))
    with monkeypatch.context() as patched:
        patched.setattr(known.Known, "_publish", lambda self, db: interrupt())
        with pytest.raises(KeyboardInterrupt):
            backend.commit(turn(2))
    backend.commit(Batch("u", 1, writes=(write(1),)))
    assert backend.at_hand(HEAD) is None
    assert head(backend)[0] == uid(2)


def interrupt():
    raise KeyboardInterrupt


def test_recent_segments_are_bounded(backend):
    recent = backend._connections.known.recent
    for number in range(200):
        backend.commit(Batch("t", 1, segments=(segment(number, data=bytes(10_000)),)))
    assert 100 <= len(recent) <= 104
    backend.commit(Batch("t", 1, segments=(segment(200, data=bytes(20_000)),)))
    assert (1, 1, 200) not in recent
    assert (1, 1, 199) in recent


def test_a_thread_of_before_is_asked_for_once(backend, other):
    other.commit(turn(1))
    assert told(backend, lambda: backend.commit(turn(2)))[:2] == ["BEGIN", "SELECT"]
    assert told(backend, lambda: backend.commit(turn(3)))[:2] == ["BEGIN", "UPDATE"]


def test_a_head_lately_written_is_read_from_memory(backend):
    backend.commit(turn(1))
    backend.commit(turn(2))
    backend.commit(Batch("t", 1, writes=(write(2, body=b"one"),)))
    backend.commit(Batch("t", 1, writes=(write(2, body=b"two"),)))
    found = []
    assert told(backend, lambda: found.append(head(backend))) == []
    assert found == [(uid(2), [b"one", b"two"])]


def test_a_head_with_writes_that_came_before_it_is_read_from_memory(backend):
    backend.commit(turn(1))
    early = (write(2, body=b"early"), write(3, body=b"earlier"))
    backend.commit(Batch("t", 1, writes=early))
    for number, body in ((2, b"early"), (3, b"earlier")):
        backend.commit(turn(number))
        found = []
        assert told(backend, lambda found=found: found.append(head(backend))) == []
        assert found == [(uid(number), [body])]


def test_many_writes_that_came_before_their_head_are_not_remembered(backend):
    backend.commit(turn(1))
    backend.commit(Batch("t", 1, writes=(write(2, body=bytes(20_000)), write(2))))
    backend.commit(turn(2))
    assert told(backend, lambda: head(backend)) == ["SELECT"] * 2
    assert not backend._connections.known.threads["t"].early


def test_a_head_that_was_read_is_read_once(backend, other):
    other.commit(turn(1))
    backend.commit(Batch("t", 1, writes=(write(1),)))
    assert told(backend, lambda: head(backend)) == ["SELECT"] * 2
    assert told(backend, lambda: head(backend)) == []


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
    backend.commit(Batch("t", 1, writes=(write(1),)))  # it notices the other one
    db = backend._connections.writer()

    def watch(call):
        db.set_trace_callback(lambda text: text.startswith("BEGIN") and call())

    yield watch
    db.set_trace_callback(None)
    with backend._connections.reading() as db:  # (waits as long as ever)
        assert db.execute("PRAGMA busy_timeout").fetchone() == (30_000,)


def test_a_commit_beside_others_takes_the_lock_soon_and_sees_what_they_did(backend, waits):
    """Another connection commits writes while this one tries to take the lock a third time."""
    attempts = []
    with closing(sqlite3.connect(backend.location.path, isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        rival.execute("UPDATE tk_writes SET seq = seq + 40 WHERE seq = 2")

        def attempt():
            attempts.append(1)
            if len(attempts) == 3:
                rival.execute("COMMIT")

        waits(attempt)
        backend.commit(Batch("t", 1, writes=(write(1),)))
    assert len(attempts) == 3
    assert [row.seq for row in backend.fetch([HEAD])[0].found.writes] == [1, 42, 43]


def test_a_commit_beside_others_waits_for_the_timeout(backend, waits, monkeypatch):
    attempts = []
    clock = iter((0.0, 29.9, 30.0, 31.0))
    monkeypatch.setattr(connections, "monotonic", lambda: next(clock))
    with closing(sqlite3.connect(backend.location.path, isolation_level=None)) as rival:
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, OverflowError])
def test_what_was_rolled_back_is_forgotten(backend, monkeypatch, error):
    def fails(run):
        raise error

    backend.commit(turn(1))
    with monkeypatch.context() as patched:
        patched.setattr(additions._Additions, "store", fails)
        with pytest.raises((KeyboardInterrupt, Exception)):
            backend.commit(turn(2, segments=(segment(1),), writes=(write(1),)))
    assert head(backend) == (uid(1), [])
    backend.commit(turn(2, segments=(segment(1, data=b"other"),), writes=(write(1),)))
    assert head(backend) == (uid(2), [])
    backend._connections.rest_writer()
    assert [len(one.writes) for one in backend.fetch([ReadThread("t")])[0].checkpoints] == [1, 0]


def test_what_was_refused_leaves_nothing(backend):
    backend.commit(turn(1))
    taken = segment(0, data=b"other")
    refused = turn(2, segments=(segment(1), taken), writes=(write(1),))
    kept, failure = backend.commit_many([turn(3), refused])
    assert (kept, type(failure)) == (None, SegmentTakenError)
    assert head(backend) == (uid(3), [])
    backend.commit(Batch("t", 1, segments=(segment(1, data=b"mine"),), writes=(write(1),)))
    assert is_right(backend, ["t"])


@pytest.mark.parametrize("most", [0, 1, 3])
def test_what_is_known_is_bounded(backend, monkeypatch, most):
    monkeypatch.setattr(known_segments, "_MOST_LOGS", most)
    for name in ("_MOST", "_MOST_SPACES", "_MOST_WRITTEN"):
        monkeypatch.setattr(known, name, most)
    threads = [f"t{n}" for n in range(5)]
    for number in range(1, 6):
        group = [
            Batch(
                thread,
                1,
                segments=(segment(number), segment(0, log=number + 1)),
                checkpoints=(checkpoint(number), checkpoint(number, ns=f"sub:{number}")),
                writes=(write(number), write(1), write(number, ns=f"sub:{number}")),
            )
            for thread in threads
            for _ in range(2)
        ]
        assert backend.commit_many(group) == [None] * 10
        assert is_right(backend, threads)
    held = backend._connections.known
    assert len(held.threads) <= most
    assert len(held.heaps) <= most
    assert len(held._heads) <= most


def test_the_bytes_of_remembered_threads_are_bounded(backend, monkeypatch):
    monkeypatch.setattr(known, "_LIMIT", 50_000)
    threads = [f"thread {number}" for number in range(20)]
    body = bytes(4_000)
    for thread in threads:
        backend.commit(turn(1)._replace(thread=thread, writes=(write(1, body=body),)))
    held = backend._connections.known
    assert [*held.threads] == threads[-7:]
    assert held._heads.keys() <= held.threads.keys()
    assert held._bytes == sum(thread.weight for thread in held.threads.values())
    for thread in threads:
        read = ReadCheckpoint(thread, "")
        assert [row.body for row in backend.fetch([read])[0].found.writes] == [body]


def test_a_new_connection_knows_nothing(backend):
    backend.commit(turn(1))
    connections = backend._connections
    connections._writer.close()
    connections._forget_writer()
    assert told(backend, lambda: backend.commit(turn(2)))[:2] == ["BEGIN", "SELECT"]
    assert head(backend) == (uid(2), [])


def test_a_large_head_is_not_remembered(backend):
    backend.commit(turn(1, segments=(segment(0, data=bytes(20_000)),)))
    assert told(backend, lambda: head(backend)) == ["SELECT"]
    backend.commit(turn(2, segments=(segment(1, data=bytes(20_000)),)))
    assert backend._connections.known.threads["t"].head is None


# -- stories -------------------------------------------------------------------------

THREADS = ("t", "u", "v")


def is_right(backend, threads=THREADS):
    """Compare all that is known with what the file says."""
    held = backend._connections.known
    db = backend._connections.writer()
    if not held.holds(db):
        return True
    for thread in threads:
        for key in (None, *[uid(number) for number in range(1, 9)]):
            read = ReadCheckpoint(thread, "", key)
            state = held.head(read)
            assert state is None or state == answer(db, read)
    for name, thread in held.threads.items():
        for ns, space in thread.spaces.items():
            of = (thread.number, ns)
            ids = column(db, "SELECT id FROM tk_checkpoints WHERE thread = ? AND ns = ?", of)
            assert space.top == max(map(known_id, ids), default=""), name
            written = column(db, "SELECT checkpoint FROM tk_writes WHERE thread = ? AND ns = ?", of)
            for number in range(1, 9):
                seq = space.last_seq(uid(number))
                assert seq in (None, last_seq(db, of, number))
            assert all(
                known_id(one) in space.written or known_id(one) <= space.below for one in written
            )
    for heap, known_heap in held.heaps.items():
        stored = db.execute(
            "SELECT log, start, start + count FROM tk_heap_segments WHERE thread = ?", (heap,)
        ).fetchall()
        for log, gaps in known_heap.gaps.items():
            places = [place for of, *place in stored if of == log]
            assert all(stop <= a or b <= start for start, stop in places for a, b in gaps)
        logs = {log for log, *_ in stored}
        assert not known_heap.is_whole or logs <= known_heap.gaps.keys()
    for (heap, log, start), one in held.recent.items():
        of = (heap, log, start, one.count, one.data)
        sql = "SELECT count(*) FROM tk_heap_segments WHERE (thread, log, start, count, data) ="
        assert column(db, f"{sql} (?, ?, ?, ?, ?)", of) == [1]
    return True


def column(db, sql, values):
    return [value for (value,) in db.execute(sql, values)]


def known_id(packed):
    return additions.unpack_id(packed)


def last_seq(db, of, number):
    (seq,) = db.execute(
        "SELECT max(seq) FROM tk_writes WHERE thread = ? AND ns = ? AND checkpoint = ?",
        (*of, additions.pack_id(uid(number))),
    ).fetchone()
    return seq or 0


def a_batch(dice):
    """A batch of what graphs, seals, deletions and repairs do, sense or none."""
    number = dice.randint(1, 8)
    start, log = dice.randint(0, 9), dice.randint(1, 2)
    ns = dice.choice(["", "", "", "sub"])
    pieces = [segment(start, dice.choice([1, 1, 3]), log=log) for _ in range(dice.randint(0, 2))]
    fields = {
        "segments": tuple(dict.fromkeys(pieces)),
        "checkpoints": tuple(
            checkpoint(
                number,
                dice.choice([None, number - 1]),
                ns=ns,
                flags=dice.choice([0, 0, 0, HIDDEN]),
                key_log=log,
                key_pos=dice.randint(0, start),
            )
            for _ in range(dice.randint(0, 1))
        ),
        "writes": tuple(write(dice.randint(1, 8), ns=ns) for _ in range(dice.randint(0, 2))),
    }
    if dice.random() < 0.3:
        fields["drop_segments"] = tuple((log, n, dice.choice([1, 3])) for n in range(start))
    if dice.random() < 0.3:
        fields["touch"] = EntryUpdate(
            5, at=number, transitions=(transition(Cause.SAVE, uid(number)),)
        )
    if dice.random() < 0.1:
        fields["generation"] = dice.randint(0, 2)
    if dice.random() < 0.2:
        odd = {
            "drop_checkpoints": ((ns, uid(number)),),
            "hide_checkpoints": ((ns, uid(number)),),
            "drop_writes": ((ns, uid(number), 1),),
            "bump_generation": True,
        }
        name = dice.choice([*odd])
        fields[name] = odd[name]
    return Batch(dice.choice(THREADS), number, **fields)


def a_change(dice, *, shares):
    if dice.random() < 0.9:
        return a_batch(dice)
    source, target = dice.sample(THREADS, 2)
    entry = ThreadEntry(target, "active", 1, 1)
    ids = tuple(("", uid(number)) for number in range(1, 9))
    changes = [DropThread(source, dice.randint(1, 9)), CopyThread(source, target, 9)]
    if shares:
        changes += [ForkThread(source, target, 9, n, ids, (), entry) for n in range(3)]
    return dice.choice(changes)


class Forgetful(SqliteBackend):
    """A backend that asks each time."""

    def commit_many(self, changes):
        self._connections.known = known.Known()
        return super().commit_many(changes)

    def fetch(self, reads):
        self._connections.known = known.Known()
        return super().fetch(reads)


@pytest.mark.drawn(12)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("shares", [True, False])
def test_a_story_of_two_savers_is_that_of_one_that_asks(backend, other, seed, shares):
    dice = random.Random(seed)
    plain = Forgetful(":memory:") if shares else MemoryBackend()
    for _ in range(40):
        group = [a_change(dice, shares=shares) for _ in range(dice.choice([1, 1, 1, 3]))]
        acting = dice.choice([backend, backend, backend, other])
        found, expected = acting.commit_many(group), plain.commit_many(group)
        assert [type(one) for one in found] == [type(one) for one in expected]
        for one in (backend, other):
            assert is_right(one)
            for thread in THREADS:
                for read in (ReadCheckpoint(thread, ""), ReadCheckpoint(thread, "sub")):
                    at_hand, (state,), (same,) = (
                        one.at_hand(read),
                        one.fetch([read]),
                        plain.fetch([read]),
                    )
                    assert at_hand in (None, state)
                    assert without_tips(state) == without_tips(same)
    for thread in THREADS:
        rows, same = (one.fetch([ReadThread(thread)])[0] for one in (backend, plain))
        assert (rows.checkpoints, rows.orphans) == (same.checkpoints, same.orphans)
        assert rows.segments == same.segments
    plain.close()
