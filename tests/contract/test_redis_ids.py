"""Unusual ids on Redis: empty, with NUL and its replacement, or the beginning of another id."""

import pytest
from kit.redis import empty_prefix, url

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    HeadFence,
    ReadCheckpoint,
    ReadPath,
    ReadThread,
    ScanCheckpoints,
)
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.redis.rows import (
    pack_number,
    pack_text,
    place,
    unpack_number,
    unpack_text,
)
from threadkeep.testing.records import NOW, checkpoint, write

IDS = (
    "",
    "\0",
    "\0\1",
    "\1",
    "\1\1",
    "\1\2",
    "\2",
    "a",
    "a\0",
    "a\0b",
    "a\1",
    "ab",
    "b",
    "é",
    "😀",
)
SPACES = ("", "\0", "n", "n\0", "n\1x")
THREADS = ("t", "{t}", "}{\0 :é", "")
PLACES = sorted((ns, key) for ns in SPACES for key in IDS)


@pytest.fixture
def backend():
    """A store whose threads each have a checkpoint with a parent and a write at every place."""
    made = RedisBackend(url(), prefix=empty_prefix())
    parents = dict(zip(IDS, (None, *IDS), strict=False))
    rows = [checkpoint(0, ns=ns, id=key, parent=parents[key]) for ns, key in PLACES]
    writes = [write(0, ns=ns, checkpoint_id=key, body=b"first") for ns, key in PLACES]
    for thread in THREADS:
        batch = Batch(thread, NOW, checkpoints=tuple(rows[::-1]), writes=tuple(writes[::-1]))
        made.commit(batch)
    yield made
    made.close()


def rows_of(backend, thread):
    (rows,) = backend.fetch([ReadThread(thread)])
    return rows


@pytest.mark.parametrize("thread", THREADS)
def test_each_place_is_found(backend, thread):
    stored = rows_of(backend, thread).checkpoints
    assert [(one.row.ns, one.row.id) for one in stored] == PLACES
    assert all(len(one.writes) == 1 for one in stored)
    for ns in SPACES:
        states = backend.fetch([ReadCheckpoint(thread, ns, key) for key in IDS])
        assert [one.found for one in states] == [one for one in stored if one.row.ns == ns]
        (head,) = backend.fetch([ReadCheckpoint(thread, ns)])
        assert head.found.row.id == IDS[-1]
        (path,) = backend.fetch([ReadPath(thread, ns, IDS[-1], 99)])
        assert [one.row.id for one in path] == [*IDS[::-1]]
        for key in IDS:
            (page,) = backend.fetch([ScanCheckpoints(thread, ns, None, key, {}, None, 99)])
            assert [one.row.id for one in page] == [other for other in IDS[::-1] if other < key]


@pytest.mark.parametrize("at", PLACES[::3])
def test_a_change_of_one_place_leaves_the_others(backend, at):
    def others():
        found = rows_of(backend, "{t}").checkpoints
        return {(one.row.ns, one.row.id): one for one in found if (one.row.ns, one.row.id) != at}

    def found():
        (state,) = backend.fetch([ReadCheckpoint("{t}", *at)])
        return state.found

    before = others()
    (first,) = found().writes
    fenced = Batch("{t}", NOW, fences=(HeadFence(*at),))
    (refusal,) = backend.commit_many([fenced])
    newer = next((key for key in IDS if key > at[1]), None)
    assert (None if refusal is None else refusal.checkpoint) == newer
    for change in (
        {"replace_writes": (first._replace(body=b"other"),)},
        {"hide_checkpoints": (at,)},
        {"drop_writes": ((*at, first.seq),)},
        {"drop_checkpoints": (at,)},
    ):
        backend.commit(Batch("{t}", NOW, **change))
        assert {key: one._replace(child=None) for key, one in others().items()} == {
            key: one._replace(child=None) for key, one in before.items()
        }
        if "replace_writes" in change:
            assert [one.body for one in found().writes] == [b"other"]
        if "hide_checkpoints" in change:
            assert found().row.flags & HIDDEN
        if "drop_writes" in change:
            assert found().writes == ()
    assert found() is None
    assert rows_of(backend, "{t}").orphans == ()


def test_packed_texts_keep_their_order():
    assert sorted(PLACES, key=lambda pair: place(*pair) + b"\0") == PLACES
    assert [unpack_text(pack_text(text)) for text in IDS] == list(IDS)


@pytest.mark.parametrize("number", [0, 1, 255, 2**40, 2**63 - 1, -1, -(2**63)])
def test_packed_numbers_come_back(number):
    assert unpack_number(pack_number(number)) == number
