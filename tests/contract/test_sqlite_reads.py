"""Reads of SQLite: few statements, and what damage makes of them."""

import re

import pytest
from kit import sqlite

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    Child,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ScanCheckpoints,
    Span,
)
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import CorruptionError
from threadkeep.testing.records import checkpoint, segment, uid, write

LARGE = b"x" * 200_000


@pytest.fixture
def backend():
    backend = SqliteBackend(":memory:")
    yield backend
    backend.close()


def asked(backend, *reads):
    """The replies, and the statements that they took."""
    with sqlite.statements(backend) as told:
        return backend.fetch(reads), told


def fill(backend):
    rows = (checkpoint(1), checkpoint(2, 1, run=7, seen=2), checkpoint(3, 2, flags=HIDDEN))
    writes = (write(1, body=b"a"), write(1, body=b"b"), write(2, body=b"c"))
    backend.commit(Batch("t", 1, checkpoints=rows, writes=writes, segments=(segment(0, 3),)))


@pytest.mark.parametrize(
    ("id", "found", "writes", "child", "statements"),
    [
        (None, uid(2), [(3, b"c")], Child(uid(3), 0, 0), 2),
        (uid(2), uid(2), [(3, b"c")], Child(uid(3), 0, 0), 1),
        (uid(1), uid(1), [(1, b"a"), (2, b"b")], Child(uid(2), 7, 2), 1),
    ],
)
def test_a_checkpoint_with_all_that_belongs_to_it_is_one_state(
    backend, id, found, writes, child, statements
):
    fill(backend)
    (state,), told = asked(backend, ReadCheckpoint("t", "", id))
    assert len(told) == statements
    assert state.found.row.id == found
    assert state.found.keyframe == segment(0, 3)
    assert [(row.seq, row.body) for row in state.found.writes] == writes
    assert state.found.child == child


@pytest.mark.parametrize(
    ("writes", "rows", "child"),
    [
        ((write(2, body=b"c"),), (), None),
        ((), (checkpoint(3, 2, flags=HIDDEN),), Child(uid(3), 0, 0)),
        ((write(1, body=b"c"),), (checkpoint(3, 1, flags=HIDDEN),), None),
    ],
)
def test_a_head_without_writes_and_child_is_one_statement(tmp_path, writes, rows, child):
    first = SqliteBackend(tmp_path / "a.db")
    heads = (checkpoint(1), checkpoint(2, 1, run=7, seen=2))
    first.commit(Batch("t", 1, checkpoints=heads, segments=(segment(0, 3),)))
    second = SqliteBackend(tmp_path / "a.db")
    (state,), told = asked(second, ReadCheckpoint("t", ""))
    assert (state.found.row.id, state.found.writes, state.found.child) == (uid(2), (), None)
    assert state.found.keyframe == segment(0, 3)
    assert len(told) == 1
    first.commit(Batch("t", 1, checkpoints=rows, writes=writes))
    (state,), told = asked(second, ReadCheckpoint("t", ""))
    assert [one.body for one in state.found.writes] == [
        one.body for one in writes if one.checkpoint_id == uid(2)
    ]
    assert (state.found.row.id, state.found.child) == (uid(2), child)
    first.close()
    second.close()


def test_writes_without_their_checkpoint_are_no_checkpoint(backend):
    backend.commit(Batch("t", 1, writes=(write(1),), bump_generation=True))
    for id in (None, uid(1)):
        (state,), _ = asked(backend, ReadCheckpoint("t", "", id))
        assert (state.generation, state.found) == (1, None)


def test_several_reads_are_of_one_state(backend):
    fill(backend)
    _, told = asked(backend, ReadCheckpoint("t", ""), ReadSegments("t", (Span(1, 0, 3),)))
    assert (told[0], told[-1], len(told)) == ("BEGIN", "COMMIT", 5)


def test_segments_are_one_statement_whatever_their_number(backend):
    segments = tuple(segment(n, log=log) for log in (1, 2) for n in range(40))
    backend.commit(Batch("t", 1, segments=segments))
    for spans in (
        (Span(1, 0, 40), Span(2, 0, 40)),
        tuple(Span(log, n, n + 1) for log in (2, 1) for n in range(3, 29)),
        (Span(1, 5, 5), Span(3, 0, 9)),
    ):
        (found,), told = asked(backend, ReadSegments("t", spans, generation=0))
        wanted = [
            s for s in segments if any(s.log == p.log and s.start in range(*p[1:]) for p in spans)
        ]
        assert found == wanted
        assert len(told) == (1 if wanted else 2)  # (the heap's number may be damaged)


def test_a_segment_that_holds_many_spans_is_read_once(backend):
    segments = (segment(0, 50), segment(50, 50), segment(0, 10, log=2))
    backend.commit(Batch("t", 1, segments=segments))
    spans = (Span(2, 3, 4), *(Span(1, n, n + 2) for n in range(90, 0, -4)), Span(2, 5, 9))
    (found,), told = asked(backend, ReadSegments("t", spans))
    assert found == list(segments)
    assert len(told) == 1
    assert asked(backend, ReadSegments("t", (Span(1, 49, 60), Span(1, 2, 70), Span(1, 60, 61))))[
        0
    ] == [list(segments[:2])]


@pytest.mark.parametrize("count", [65, 200])
def test_very_many_spans_are_of_one_state(backend, count):
    segments = tuple(segment(n) for n in range(2 * count))
    backend.commit(Batch("t", 1, segments=segments))
    spans = tuple(Span(1, n, n + 1) for n in range(0, 2 * count, 2))
    (found,), told = asked(backend, ReadSegments("t", spans))
    assert found == list(segments[::2])
    assert (told[0], told[-1]) == ("BEGIN", "COMMIT")


def test_large_segments_and_those_of_many_elements(backend):
    segments = (segment(0), segment(1, data=LARGE), segment(2, 5000), segment(0, log=2))
    backend.commit(Batch("t", 1, segments=segments, bump_generation=True))
    for spans, wanted in (
        ((Span(1, 0, 2), Span(2, 0, 1)), [*segments[:2], segments[3]]),
        ((Span(1, 2, 5002),), [segments[2]]),
    ):
        assert asked(backend, ReadSegments("t", spans, generation=1))[0] == [wanted]
        assert asked(backend, ReadSegments("t", spans, generation=0))[0] == [[]]


def test_checkpoints_are_read_without_the_values_stored_beside_their_keyframe(tmp_path):
    # The pages of both values are destroyed: who reads any of them fails.
    path = tmp_path / "a.db"
    segments = (segment(0, data=LARGE, log=0), segment(0, log=1), segment(0, data=LARGE, log=2))
    backend = SqliteBackend(path)
    backend.commit(Batch("t", 1, checkpoints=(checkpoint(1),), segments=segments))
    backend.close()
    page = b"x" * 4000
    content = path.read_bytes()
    assert page in content
    path.write_bytes(re.sub(b".{4}" + page, b"\xff" * 4004, content, flags=re.DOTALL))

    backend = SqliteBackend(path, read_only=True)
    scan = ScanCheckpoints("t", "", None, None, {}, None, 10)
    state, scanned, found = backend.fetch(
        [ReadCheckpoint("t", "", uid(1)), scan, ReadPath("t", "", uid(1), 5)]
    )
    assert [one.keyframe for one in (state.found, *scanned, *found)] == [segment(0, log=1)] * 3
    with pytest.raises(CorruptionError):
        backend.fetch([ReadSegments("t", (Span(0, 0, 1),))])
    backend.close()


@pytest.mark.parametrize(
    "to", ["data = 'text'", "data = 5", "count = 'one'", "count = 1.5", "count = x'01'"]
)
def test_segments_of_the_wrong_types_are_damage(backend, to):
    backend.commit(Batch("t", 1, segments=(segment(0), segment(1))))
    db = backend._connections.writer()
    db.execute(f"UPDATE tk_heap_segments SET {to} WHERE start = 1")
    with pytest.raises(CorruptionError):
        backend.fetch([ReadSegments("t", (Span(1, 0, 2),))])
    assert backend.fetch([ReadSegments("t", (Span(1, 0, 1),))]) == [[segment(0)]]


def test_segments_of_a_thread_whose_heap_is_damaged(backend):
    backend.commit(Batch("t", 1, segments=(segment(0), segment(1))))
    db = backend._connections.writer()
    db.execute("UPDATE tk_threads SET heap = 'odd'")
    assert backend.fetch([ReadSegments("t", (Span(1, 0, 2),))]) == [[segment(0), segment(1)]]
