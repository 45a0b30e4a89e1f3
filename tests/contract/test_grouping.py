"""Group commit: the contract through the queue, and what the queue itself promises."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from postgres_kit import url_for

from threadkeep import GroupCommit, open_saver
from threadkeep.backends.grouping import AsyncGrouped, Grouped, grouped
from threadkeep.backends.memory import MemoryBackend
from threadkeep.backends.postgres import PostgresBackend
from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.engine.model import Batch, FindThreads, HeadFence, ReadThread
from threadkeep.errors import (
    BackendError,
    ConflictError,
    InvalidArgumentError,
    UnreachableError,
)
from threadkeep.testing import BackendContract, Blocking
from threadkeep.testing.records import checkpoint, write

HOW = GroupCommit(max_batch=5, max_wait=0.001)


class TestGroupedMemory(BackendContract):
    def new_backend(self, folder):
        return Grouped(MemoryBackend(), HOW)


class TestGroupedSqlite(BackendContract):
    def new_backend(self, folder):
        return Grouped(SqliteBackend(folder / "t.db", synchronous="normal"), HOW)

    def reopen(self, folder):
        return self.new_backend(folder)


class TestGroupedPostgres(BackendContract):
    def new_backend(self, folder):
        return Grouped(PostgresBackend(url_for(folder), max_size=4), HOW)


class TestAsyncGroupedPostgres(BackendContract):
    def new_backend(self, folder):
        async def make():
            return AsyncGrouped(PostgresBackend(url_for(folder), max_size=4).asynchronous, HOW)

        return Blocking(make)


class Watched(MemoryBackend):
    """Counts transactions; the first one waits until it is let go."""

    def __init__(self):
        super().__init__()
        self.groups = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.fails = lambda changes: None

    def commit_many(self, changes):
        self.groups.append(len(changes))
        if len(self.groups) == 1:
            self.begun.set()
            assert self.go_on.wait(10)
        self.fails(changes)
        return super().commit_many(changes)


def crowd(store, changes, how):
    """Commit the first change, and all others while that is under way; the errors met."""
    errors = [None] * len(changes)
    backend = Grouped(store, how)

    def work(number):
        try:
            backend.commit(changes[number])
        except BackendError as error:
            errors[number] = error
        except ConflictError as error:
            errors[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(changes))]
    threads[0].start()
    assert store.begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(backend._queue._waiting) < len(changes):
        pass
    store.go_on.set()
    for thread in threads:
        thread.join(10)
    return errors


def batches(count):
    return [Batch(f"t{n}", 1, writes=(write(n),)) for n in range(count)]


def test_commits_that_wait_share_a_transaction():
    store = Watched()
    assert crowd(store, batches(12), GroupCommit(max_batch=100, max_wait=0)) == [None] * 12
    assert store.groups == [1, 11]
    assert len(store.fetch([FindThreads(None, 99, empty=True)])[0]) == 12


def test_a_transaction_holds_no_more_than_it_may():
    store = Watched()
    crowd(store, batches(12), GroupCommit(max_batch=4, max_wait=0))
    assert store.groups == [1, 4, 4, 3]


def test_each_caller_gets_its_own_result():
    store = Watched()
    changes = batches(6)
    fence = (HeadFence("", "nowhere"),)
    store.commit(Batch("t3", 1, checkpoints=(checkpoint(1),)))
    changes[3] = Batch("t3", 1, fences=(HeadFence("", None),), checkpoints=(checkpoint(2),))
    changes[4] = Batch("t4", 1, fences=fence, checkpoints=(checkpoint(2),))
    errors = crowd(store, changes, GroupCommit(max_wait=0))
    assert [type(error) for error in errors if error] == [ConflictError]
    assert errors[3] is not None
    (rows,) = store.fetch([ReadThread("t3")])
    assert len(rows.checkpoints) == 1


def test_where_a_transaction_fails_each_is_tried_alone():
    store = Watched()

    def fails(changes):
        if len(changes) > 1 or changes[0].thread == "t2":
            raise BackendError("no")

    store.fails = fails
    errors = crowd(store, batches(5), GroupCommit(max_wait=0))
    assert [number for number, error in enumerate(errors) if error] == [2]
    assert len(store.fetch([FindThreads(None, 99, empty=True)])[0]) == 4


def test_a_store_that_is_away_fails_all_at_once():
    store, tries = Watched(), []

    def fails(changes):
        tries.append(len(changes))
        raise UnreachableError("away", hint="wait")

    store.fails = fails
    errors = crowd(store, batches(5), GroupCommit(max_wait=0))
    assert tries == [1, 4]
    assert [type(error) for error in errors] == [UnreachableError] * 5
    assert len({id(error) for error in errors}) == 5  # each caller has its own


@pytest.mark.filterwarnings("ignore:coroutine")  # (one that was interrupted as it began)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_leaves_no_turn_taken():
    """A signal's handler runs where a function begins: whichever it is, the turn is free after."""
    backend = Grouped(MemoryBackend(), GroupCommit(max_wait=0))
    interrupted = 0
    while True:
        left = interrupted + 1

        def begin(_frame, _event, _argument):
            nonlocal left
            left -= 1
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt

        sys.settrace(begin)
        try:
            backend.commit(Batch("t", 1))
            break
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        after = threading.Thread(target=backend.commit, args=(Batch("t", 1),), daemon=True)
        after.start()
        after.join(10)
        assert not after.is_alive(), f"interrupted at call {interrupted}"
    assert interrupted > 10


async def test_a_cancelled_commit_takes_no_other_with_it():
    class Slow:
        def __init__(self):
            self.inner = MemoryBackend()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def fetch(self, reads):
            return self.inner.fetch(reads)

        async def commit(self, change):
            raise AssertionError

        async def close(self):
            self.inner.close()

        async def commit_many(self, changes):
            self.begun.set()
            await self.go_on.wait()
            return self.inner.commit_many(changes)

    store = Slow()
    backend = AsyncGrouped(store, GroupCommit(max_wait=0))
    tasks = [asyncio.create_task(backend.commit(change)) for change in batches(6)]
    await store.begun.wait()
    tasks[0].cancel()  # under way: it holds the turn
    tasks[3].cancel()  # waiting
    store.go_on.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in results].count(asyncio.CancelledError) == 2
    (found,) = await store.fetch([FindThreads(None, 99, empty=True)])
    assert {"t1", "t2", "t4", "t5"} <= set(found)
    assert "t3" not in found
    await backend.close()


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"max_batch": 1.5}, {"max_wait": -1}])
def test_what_has_no_meaning_is_refused(options):
    with pytest.raises(InvalidArgumentError, match="no meaning"):
        GroupCommit(**options)


def test_a_store_that_cannot_is_named():
    class Plain:
        def fetch(self, reads): ...

        def commit(self, change): ...

        def close(self): ...

    with pytest.raises(InvalidArgumentError, match="Plain cannot commit in groups"):
        grouped(Plain(), GroupCommit(), is_async=False)
    with pytest.raises(InvalidArgumentError, match="group_commit=5"):
        open_saver("memory://", group_commit=5)
