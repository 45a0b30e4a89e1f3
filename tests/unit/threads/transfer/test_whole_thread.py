"""Whole threads, taken out of one store and put into another, one request at a time."""

import dataclasses
from contextlib import nullcontext

import pytest
from kit.engine import (
    Chain,
    Counted,
    Steps,
    config,
    everything,
    fresh,
    memory_saver,
    rows_in_memory,
    run_config,
    run_on,
    until_commit,
)
from kit.selection import some

from threadkeep._core.codec.frame import Compression, pack
from threadkeep._core.engine.model import (
    Batch,
    CopyThread,
    DropThread,
    ReadSegments,
    ReadThread,
    Segment,
    WriteRow,
)
from threadkeep._core.engine.operation import Fetch
from threadkeep._core.engine.registration import ThreadSnapshot, read_snapshot
from threadkeep._core.engine.rows import manifest_of, unpack_writes
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import ConflictError, ThreadDeletedError, ThreadExistsError
from threadkeep.savers.saver import Saver
from threadkeep.threads.retention import apply
from threadkeep.threads.transfer import whole_thread
from threadkeep.threads.transfer.meter import QUIET

LONG = "x" * 90
NOW = 1_763_000_000_000_000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """So that a thread of a test is read and put in several requests."""
    monkeypatch.setattr("threadkeep._core.parts._MOST_ROWS", 7)
    monkeypatch.setattr("threadkeep._core.parts._MOST_BYTES", 2000)


@pytest.fixture
def saver():
    """A store with a thread that has a bit of everything."""
    saver = memory_saver()
    fill(Chain(saver))
    fill(Chain(saver, ns="child"))
    saver.put_writes(config(checkpoint_id="99999999"), [("n", 1)], "orphan")
    return saver


def fill(chain, count=30):
    for i in range(count):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"], n=i)
        chain.saver.put_writes(chain.at, [("n", i)], "b")
        chain.saver.put_writes(chain.at, [("m", [LONG * i])], "a")
    return chain


def read(saver, thread="t"):
    return run_on(whole_thread.read_thread(thread), saver._store.backend)


def put(saver, whole, *, replace=False):
    return run_on(whole_thread.put_thread(whole, NOW, replace=replace), saver._store.backend)


def sound(saver):
    report = fresh(saver).check()
    assert report.ok, report.findings
    return True


def rows(saver, thread="t"):
    (found,) = saver._store.backend.fetch([ReadThread(thread)])
    return found


# -- reading -----------------------------------------------------------------------------


def test_what_is_put_is_what_was_read(saver):
    target = memory_saver()
    assert put(target, read(saver)) == "added"
    assert everything(target) == everything(saver) != {}
    assert read(target) == read(saver)
    assert sound(target)


def test_a_thread_that_nobody_knows_is_nothing():
    assert read(memory_saver(), "nobody").is_nothing


@pytest.mark.parametrize("number", range(1, 14))
def test_a_thread_that_is_pruned_while_it_is_read(saver, number):
    """After any request, the rows read refer only to existing rows."""
    steps = Steps(whole_thread.read_thread("t"), saver._store.backend)
    for _ in range(number):
        if steps.request is not None:
            steps.step()
    saver.prune(["t"])
    fill(Chain(saver, start=100), 5)
    target = memory_saver()
    put(target, steps.finish())
    assert sound(target)


def test_a_thread_that_grows_and_is_sealed_while_it_is_read():
    saver = memory_saver()
    chain = fill(Chain(saver), 20)
    before = everything(saver)
    steps = Steps(whole_thread.read_thread("t"), saver._store.backend)
    steps.step()
    while steps.request is not None:
        fill(chain, 12)
        steps.step()
    target = memory_saver()
    put(target, steps.result)
    assert everything(target) == before
    assert sound(target)


class Restless(Counted):
    def fetch(self, reads):
        self.commit(Batch("t", NOW, bump_generation=True))
        return super().fetch(reads)


def test_a_thread_that_is_pruned_all_the_time_is_an_error(saver):
    backend = Restless(saver._store.backend)
    with pytest.raises(ConflictError, match="Other writers"):
        run_on(whole_thread.read_thread("t"), backend)


def test_positions_that_were_given_again_are_not_taken_for_the_old_ones(saver):
    """The thread is removed, and another of the same segments' places is put there."""
    steps = Steps(whole_thread.read_thread("t"), saver._store.backend)
    until_segments(steps)
    other = memory_saver()
    fill(Chain(other, "u"), 3)
    other._store.backend.commit(CopyThread("u", "t", NOW))
    moved = read(other)
    saver.delete_thread("t")
    put(saver, moved)
    assert steps.finish().checkpoints == moved.checkpoints


def until_segments(steps):
    while not any(isinstance(read, ReadSegments) for read in steps.request.reads):
        steps.step()
    return steps


def test_a_thread_that_expires_while_it_is_read(saver):
    """As on Redis: everything is removed at once, including its generation."""
    steps = until_segments(Steps(whole_thread.read_thread("t"), saver._store.backend))
    rows_in_memory(saver).clear()
    assert steps.finish().is_nothing


def test_segments_that_are_sealed_between_two_parts_do_not_overlap():
    backend = MemoryBackend()
    parts = [Segment(1, i, 1, pack([b"%d" % i], Compression())) for i in range(20)]
    row = WriteRow("", "1", 0, 0, "task", "", b"body", 1)
    backend.commit(Batch("t", NOW, segments=tuple(parts), writes=(row,)))
    steps = until_segments(Steps(whole_thread.read_thread("t"), backend))
    steps.step()
    sealed = Segment(1, 3, 15, pack([b"%d" % i for i in range(3, 18)], Compression()))
    dropped = tuple((s.log, s.start, s.count) for s in parts[3:18])
    backend.commit(Batch("t", NOW, segments=(sealed,), drop_segments=dropped))
    assert list(steps.finish().segments) == [*parts[:3], sealed, *parts[18:]]


# -- numbers of writes -------------------------------------------------------------------


def test_writes_keep_their_numbers_where_some_are_gone():
    """A run that had seen the second write of three still has, though the first is gone."""
    saver = memory_saver()
    chain = Chain(saver)
    first = chain.put(n=0)
    for task in ("gone", "kept", "too"):
        saver.put_writes(first, [("n", task)], task)
    loaded = fresh(saver).get_tuple(run_config())
    saver.put_writes(first, [("n", "late")], "late")
    chain.at = loaded.config
    chain.put(n=1)
    child = rows(saver).checkpoints[1].row
    assert child.seen == 3
    saver._store.backend.commit(Batch("t", NOW, drop_writes=(("", child.parent, 1),)))
    want = everything(fresh(saver))

    target = memory_saver()
    put(target, read(saver))
    moved = rows(target).checkpoints
    assert [row.seq for row in moved[0].writes] == [2, 3, 4]
    assert moved[1].row == child
    manifest_of(moved[1].row)
    assert all(unpack_writes(row) for row in moved[0].writes)
    assert everything(target) == want
    assert sound(target)
    target.put_writes(first, [("n", "more")], "more")
    assert [row.seq for row in rows(target).checkpoints[0].writes] == [2, 3, 4, 5]


def test_a_write_that_is_gone_there_comes_back_at_its_place(saver):
    target = memory_saver()
    put(target, read(saver))
    first = next(one.writes[0] for one in rows(target).checkpoints if len(one.writes) > 1)
    gone = (first.ns, first.checkpoint_id, first.seq)
    target._store.backend.commit(Batch("t", NOW, drop_writes=(gone,)))
    assert put(target, read(saver)) == "extended"
    assert read(target) == read(saver)
    assert sound(target)


# -- putting -----------------------------------------------------------------------------


def test_nothing_refers_to_what_is_not_there_yet_and_a_cut_off_put_is_completed(saver):
    whole = read(saver)
    number = 0
    while True:
        target = memory_saver()
        steps = Steps(whole_thread.put_thread(whole, NOW), target._store.backend)
        for _ in range(number):
            if steps.request is not None:
                steps.step()
        ended = steps.request is None
        steps.close()
        assert sound(target)
        assert (put(target, whole) == "unchanged") is ended
        assert everything(target) == everything(saver)
        number += some(2, 1)
        if ended:
            break
    assert number > 15


class Twice(Counted):
    """The answer to commit number `at` is lost, and the backend sends it again."""

    at = -1

    def commit(self, change):
        super().commit(change)
        if len(self.commits) == self.at:
            super().commit(change)


def test_an_answer_that_was_lost(saver):
    """Whichever it was: writes are not there twice, and nothing else is missing."""
    whole = read(saver)
    backend = Twice()
    run_on(whole_thread.put_thread(whole, NOW), backend)
    needed = len(backend.commits)
    assert needed > 20
    for number in range(1, needed + 1):
        backend = Twice()
        backend.at = number
        run_on(whole_thread.put_thread(whole, NOW), backend)
        assert run_on(whole_thread.read_thread("t"), backend) == whole


def test_what_somebody_else_has_put_between_two_batches_is_not_lost(saver):
    """Others' rows are met at the next batch, whichever it is."""
    whole = read(saver)
    number, ended = 0, False
    while not ended:
        target = memory_saver()
        steps = Steps(whole_thread.put_thread(whole, NOW), target._store.backend)
        for _ in range(number):
            steps.step()
        number += 1
        if steps.request is None:
            break
        mine = WriteRow("", "mine", 0, 0, "task", "", b"body")
        target._store.backend.commit(Batch("t", NOW, writes=(mine,)))
        # (only its entry is missing once all rows are there)
        there = whole_thread.rows_of(whole_thread.whole_of(ThreadSnapshot("t", None, rows(target))))
        is_whole = whole_thread.rows_of(whole) <= there
        with nullcontext() if is_whole else pytest.raises(ThreadExistsError):
            steps.finish()
        assert mine in [row._replace(seq=0) for row in rows(target).orphans]
        segments = len(rows(target).segments)
        assert segments <= 7 * max(number - 2, 0)
    assert number > 20


def test_a_thread_of_another_state_is_refused_or_replaced(saver):
    whole = read(saver)
    target = memory_saver()
    fill(Chain(target, start=100), 3)
    before = everything(target)
    with pytest.raises(ThreadExistsError, match="in another state"):
        put(target, whole)
    assert everything(target) == before
    generation = rows(target).generation
    assert put(target, whole, replace=True) == "replaced"
    assert everything(target) == everything(saver)
    assert rows(target).generation > generation


def test_what_stands_there_gives_way_in_one_change(saver):
    backend = Counted()
    fill(Chain(Saver(backend), start=100), 3)
    backend.asked()
    run_on(whole_thread.put_thread(read(saver), NOW, replace=True), backend)
    (change,) = backend.commits
    assert isinstance(change, DropThread)
    assert change.rows.checkpoints == read(saver).checkpoints


def test_what_came_while_it_was_looked_at_is_not_replaced_unseen(saver):
    there = memory_saver()
    chain = Chain(there)
    chain.put(n=1)
    steps = Steps(whole_thread.put_thread(read(saver), NOW, replace=True), there._store.backend)
    while isinstance(steps.request, Fetch):
        steps.step()
    chain.put(n=2)
    with pytest.raises(ConflictError):
        steps.carry_out()
    assert len(everything(there)) == 2
    steps.fail(ConflictError())
    assert steps.finish() == "replaced"
    assert everything(there) == everything(saver)


def test_an_earlier_state_is_extended(saver):
    whole = read(saver)
    backend = Counted()
    fill(Chain(Saver(backend)), 3)
    backend.asked()
    assert run_on(whole_thread.put_thread(whole, NOW), backend) == "extended"
    assert all(isinstance(change, Batch) for change in backend.commits)
    assert run_on(whole_thread.read_thread("t"), backend).checkpoints == whole.checkpoints


def test_what_is_known_of_a_thread_is_left_unless_marks_are_wanted(saver):
    saver.threads.update("t", metadata={"plan": "old"})
    whole = read(saver)
    saver.threads.update("t", metadata={"plan": "new"})
    assert put(saver, whole) == "unchanged"
    assert saver.threads.get("t").metadata == {"plan": "new"}
    backend = saver._store.backend
    there = run_on(read_snapshot("t"), backend)
    run_on(whole_thread.put_rows(whole, there, NOW, QUIET, replace=False), backend)
    assert saver.threads.get("t").metadata == {"plan": "old"}


def test_nothing_is_changed_on_trial(saver):
    whole = read(saver)
    backend = Counted()
    assert run_on(whole_thread.put_thread(whole, NOW, dry_run=True), backend) == "added"
    assert backend.commits == []


def test_rows_alone_do_not_make_the_same_thread(saver):
    """The same rows over other elements, or damaged ones: replacing them brings them back."""
    whole = read(saver)
    target = memory_saver()
    changed = [Segment(s.log, s.start, s.count, s.data[::-1]) for s in whole.segments]
    put(target, dataclasses.replace(whole, segments=tuple(changed)))
    with pytest.raises(ThreadExistsError):
        put(target, whole)
    put(target, whole, replace=True)
    assert set(read(target).segments) == set(whole.segments)


def test_a_thread_that_is_there_already_is_only_read(saver):
    whole = read(saver)
    backend = Counted()
    run_on(whole_thread.put_thread(whole, NOW), backend)
    backend.asked()
    assert run_on(whole_thread.put_thread(whole, NOW), backend) == "unchanged"
    assert backend.asked()[1] == 0


# -- tombstones --------------------------------------------------------------------------


def test_tombstones_are_put_too(saver):
    saver.delete_thread("t")
    whole = read(saver)
    assert whole.deleted_at
    assert not whole.checkpoints
    target = memory_saver()
    assert put(target, whole) == "added"
    assert put(target, whole) == "unchanged"
    assert rows(target).deleted_at == whole.deleted_at


def test_a_thread_that_was_deleted_since_lives_on_where_it_stood(saver):
    """Its tombstone is the bundle's: runs on checkpoints older than the deletion continue."""
    target = memory_saver()
    chain = Chain(target)
    # An id of version 6 tells its time: long before the deletion.
    chain.at = target.put(*_dated(chain))
    whole = read(target)
    target.delete_thread("t")
    with pytest.raises(ThreadDeletedError):
        target.put_writes(chain.at, [("n", 1)], "late")
    put(target, whole)
    assert rows(target).deleted_at == 0
    target.put_writes(chain.at, [("n", 1)], "task")
    assert len(fresh(target).get_tuple(config()).pending_writes) == 1


def _dated(chain):
    at, made, metadata, new = chain.arguments(n=0)
    return at, {**made, "id": "1ef00000-0000-6000-8000-000000000000"}, metadata, new


def test_a_saver_that_knew_the_thread_does_not_rely_on_it(saver):
    """Its logs ended elsewhere: what it remembers of them must not be built on."""
    older = read(saver)
    chain = Chain(saver, start=40)
    chain.values = {"m": []}
    found = saver.get_tuple(run_config())
    chain.at, chain.values = found.config, dict(found.checkpoint["channel_values"])
    chain.versions = dict(found.checkpoint["channel_versions"])
    fill(chain, 6)
    put(saver, older, replace=True)
    chain.put(m=[*chain.values["m"], "after"])
    assert sound(saver)
    assert fresh(saver).get_tuple(config()).checkpoint["channel_values"]["m"][-1] == "after"


def test_a_saver_that_knew_a_thread_that_has_expired_does_not_rely_on_it():
    """Its generation is gone with it: the one that is put must be another."""
    saver = memory_saver()
    chain = fill(Chain(saver), 10)
    older = read(saver)
    fill(chain, 6)
    rows_in_memory(saver).clear()
    put(saver, older)
    chain.put(m=[*chain.values["m"], "after"])
    assert sound(saver)


def test_deleting_while_it_is_put(saver):
    whole = read(saver)
    target = memory_saver()
    steps = until_commit(Steps(whole_thread.put_thread(whole, NOW), target._store.backend))
    steps.step()
    run_on(apply.delete_thread(target._engine, "t"), target._store.backend)
    steps.finish()
    assert everything(target) == everything(saver)
    assert sound(target)


def test_the_tombstone_of_another_drop_is_kept(saver):
    saver._store.backend.commit(DropThread("u", NOW))
    assert run_on(whole_thread.all_threads(), saver._store.backend) == ["t", "u"]
