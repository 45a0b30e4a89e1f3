"""Layers and the driver: the contract through each of them, and how requests pass them."""

import asyncio
import sys
import threading
from contextlib import suppress
from functools import partial

import pytest
from kit.contract import Variant
from kit.layers import Awaited, Layered, acommit, awaiting, one, stack_of
from kit.postgres import url_for

from threadkeep._core.engine.model import Batch, CopyThread, DropThread, ReadCheckpoint, ReadThread
from threadkeep._core.engine.operation import (
    Call,
    Commit,
    CommitMany,
    External,
    Fetch,
    call,
    commit,
    external,
    fetch,
)
from threadkeep._run.driver import CHANGES
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._run.together import together
from threadkeep._stores.base import Backend
from threadkeep._stores.cold_store import ColdStore
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import InvalidArgumentError, StaleThreadError, ThreadkeepError
from threadkeep.savers.saver import Saver
from threadkeep.testing import BackendContract
from threadkeep.testing.records import NOW, checkpoint, write
from threadkeep.threads.archives.layer import TierLayer

# -- the contract ------------------------------------------------------------------------


def tiering(folder):
    return TierLayer(ColdStore((folder / "cold").as_uri()))


class WithTiering:
    """The layer sets the revisions that a source's entry must have, whatever they are above."""

    test_a_fork_needs_its_origins_entry_as_it_was_read = None
    test_a_source_whose_entry_has_changed_is_refused = None


class TestTiering(WithTiering, BackendContract):
    def new_backend(self, folder):
        return Layered(stack_of(MemoryBackend(), tiering(folder)))


class TestTieringInTheLoop(WithTiering, Variant):
    """A store that is instant is used in the event loop."""

    def new_backend(self, folder):
        return awaiting(stack_of(MemoryBackend(), tiering(folder)))


class TestAwaitedStore(WithTiering, Variant):
    """Of a store that can only be awaited, commits go through a task."""

    def new_backend(self, folder):
        return awaiting(stack_of(Awaited(MemoryBackend()), tiering(folder)))


class TestSqlite(Variant):
    """Commits of blocking callers go through the writer."""

    def new_backend(self, folder):
        return Layered(stack_of(SqliteBackend(folder / "t.db", synchronous="normal")))

    def reopen(self, folder):
        return self.new_backend(folder)


class TestSqliteAwaited(Variant):
    """Commits of awaiting callers go through the writer, reads through worker threads."""

    def new_backend(self, folder):
        return awaiting(stack_of(SqliteBackend(folder / "t.db", synchronous="normal")))


class TestPostgresAwaited(Variant):
    def new_backend(self, folder):
        return awaiting(stack_of(PostgresBackend(url_for(folder), max_size=4)))


# -- the way of a request ----------------------------------------------------------------


class Noting:
    """A layer that notes what passes it."""

    handles = CHANGES | {Fetch}

    def __init__(self, name, seen, asks=()):
        self.name = name
        self.seen = seen
        self.asks = asks

    def answer(self, request):
        self.seen.append(f"{self.name} gets {type(request).__name__}")
        for own in self.asks:  # noqa: UP028 - a list cannot be sent the reply
            yield own
        try:
            reply = yield request
        except ThreadkeepError as error:
            self.seen.append(f"{self.name} gets {type(error).__name__}")
            raise
        self.seen.append(f"{self.name} is done")
        return reply


READ = ReadCheckpoint("t", "")
BATCH = Batch("t", NOW, checkpoints=(checkpoint(1),))
REFUSED = Batch("t", NOW, generation=7, checkpoints=(checkpoint(2),))


def test_a_request_passes_the_layer():
    seen = []
    stack = stack_of(MemoryBackend(), Noting("layer", seen))
    assert stack.run(fetch(READ)).found is None
    order = ["layer gets Fetch", "layer is done"]
    assert seen == order
    seen.clear()
    asyncio.run(stack.arun_here(fetch(READ)))
    assert seen == order


def test_what_a_layer_asks_for_itself_does_not_pass_it():
    seen = []
    stack_of(MemoryBackend(), Noting("layer", seen, asks=[Fetch([READ])])).commit(BATCH)
    assert seen == ["layer gets Commit", "layer is done"]


def test_what_is_beneath_does_not_change_when_a_layer_is_put_in_front():
    seen = []
    beneath = stack_of(MemoryBackend())
    stack = beneath.under(Noting("layer", seen))
    beneath.run(fetch(READ))
    assert seen == []
    stack.run(fetch(READ))
    assert len(seen) == 2


def test_a_refusal_is_thrown_in_at_the_layer_and_then_in_the_operation():
    seen = []

    def operation():
        with suppress(StaleThreadError):
            yield Commit(REFUSED)
        seen.append("the operation goes on")
        (reply,) = yield Fetch([READ])
        return reply

    stack = stack_of(MemoryBackend(), Noting("layer", seen))
    assert stack.run(operation()).found is None
    assert seen[:3] == [
        *("layer gets Commit", "layer gets StaleThreadError", "the operation goes on"),
    ]
    with pytest.raises(StaleThreadError):
        stack.commit(REFUSED)


def test_what_a_layer_raises_is_thrown_in_where_the_request_came_from():
    class Refusing(Noting):
        def answer(self, request):
            raise StaleThreadError(f"{self.name} refuses")
            yield

    def operation():
        with pytest.raises(StaleThreadError, match="layer refuses"):
            yield Fetch([READ])
        return "it goes on"

    assert stack_of(MemoryBackend(), Refusing("layer", [])).run(operation()) == "it goes on"


def test_a_layer_that_recovers_answers():
    class Patient(Noting):
        def answer(self, request):
            with suppress(StaleThreadError):
                return (yield request)
            return (yield Commit(BATCH))

    stack = stack_of(MemoryBackend(), Patient("", []))
    stack.commit(REFUSED)
    assert stack.run(fetch(READ)).found is not None


def callers():
    """Names of the functions that run the operation which asks."""
    frame, names = sys._getframe(2), []
    while frame is not None and frame.f_code.co_name != "run":
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def asking():
    names = callers()
    yield Fetch([READ])
    return names


def test_an_operation_is_driven_by_one_loop():
    assert stack_of(MemoryBackend()).run(asking()) == ["drive"]
    assert stack_of(MemoryBackend(), Noting("", [])).run(asking()) == ["drive"]


class OfDeletions(Noting):
    handles = frozenset({DropThread})


def test_a_layer_meets_the_kinds_that_it_handles_alone(monkeypatch):
    seen = []
    stack = stack_of(MemoryBackend(), OfDeletions("layer", seen))
    stack.run(commit(BATCH))
    stack.run(fetch(READ))
    stack.commit(CopyThread("t", "u", NOW))
    assert seen == []
    stack.commit(DropThread("t", NOW))
    assert seen == ["layer gets Commit", "layer is done"]


async def test_a_change_that_no_layer_handles_goes_to_the_store_directly(monkeypatch):
    stack = stack_of(MemoryBackend(), OfDeletions("layer", []))

    def never(*_):
        raise AssertionError

    for name in ("run", "arun_here", "answer", "aanswer"):
        monkeypatch.setattr(stack, name, never)
    stack.commit(BATCH)
    await acommit(stack, Batch("u", NOW, checkpoints=(checkpoint(1),)))
    for thread in "tu":
        (found,) = stack.backend.fetch([ReadCheckpoint(thread, "")])
        assert found.found is not None
    for commits in (stack.commit, partial(acommit, stack)):
        with pytest.raises(AssertionError):
            await commits(DropThread("t", NOW))


def test_an_operation_that_is_cut_off_is_closed_with_its_layers():
    closed = []

    def interrupted():
        raise KeyboardInterrupt

    class Holding(Noting):
        def answer(self, request):
            try:
                return (yield External(interrupted))
            finally:
                closed.append("the layer")

    def operation():
        try:
            yield Fetch([READ])
        finally:
            closed.append("the operation")

    with pytest.raises(KeyboardInterrupt):
        stack_of(MemoryBackend(), Holding("", [])).run(operation())
    assert closed == ["the layer", "the operation"]


# -- an open store -----------------------------------------------------------------------


def test_an_open_store_has_a_layer_for_archives():
    with Saver(MemoryBackend()) as saver:
        assert type(saver._store._layer) is TierLayer


def test_a_batch_meets_no_layer_where_there_is_no_cache():
    with Saver(MemoryBackend()) as saver:
        assert Batch not in saver._store._handles


class Plain(Backend):
    """A backend with the methods that are required, and no others."""

    def __init__(self):
        self.inner = MemoryBackend()

    def fetch(self, reads):
        return self.inner.fetch(reads)

    def commit(self, change):
        self.inner.commit(change)

    def close(self):
        self.inner.close()


def test_a_store_that_cannot_commit_in_groups():
    batches = [BATCH, REFUSED, Batch("u", NOW, writes=(write(1),))]
    store = LayeredBackend(Plain(), TierLayer())
    refusals = store.run(one(CommitMany(batches)))
    assert [type(error) for error in refusals] == [type(None), StaleThreadError, type(None)]
    assert store.run(fetch(ReadThread("u"))).orphans


def test_many_operations_share_a_transaction():
    class Counting(MemoryBackend):
        groups = ()

        def commit_many(self, changes):
            self.groups += (len(changes),)
            return super().commit_many(changes)

    backend = Counting()
    stack = stack_of(backend)
    batches = [Batch(f"t{n}", NOW, checkpoints=(checkpoint(1),)) for n in range(150)]
    assert stack.run(together([map(commit, batches)])) == [[None] * 150]
    assert backend.groups == (100, 50)
    refused = [*batches[:3], REFUSED._replace(thread="t9")]
    assert stack.run(together([map(commit, refused)])) is None


def test_a_deletion_comes_behind_what_was_collected():
    stack = stack_of(MemoryBackend())
    done = together([[commit(BATCH), commit(DropThread("t", NOW)), fetch(READ)]])
    state = stack.run(done)[0][-1]
    assert state.found is None
    assert state.generation == 1


# -- where requests are carried out ------------------------------------------------------


class Where(MemoryBackend):
    """Notes which threads use it."""

    instant = False

    def __init__(self):
        super().__init__()
        self.used = {}

    def note(self, what):
        self.used[what] = threading.current_thread()

    def fetch(self, reads):
        self.note("fetch")
        return super().fetch(reads)

    def commit(self, change):
        self.note("commit")
        super().commit(change)

    def commit_many(self, changes):
        self.note("commit_many")
        return super().commit_many(changes)

    def identity(self):
        self.note("identity")
        return super().identity()


class Instant(Where):
    instant = True


def everything():
    yield Fetch([READ])
    yield Commit(BATCH)
    yield CommitMany([BATCH])
    yield Call("identity")
    return (yield from external(threading.current_thread))


def test_blocking_calls_are_made_in_the_callers_thread():
    for backend in (Where(), Instant()):
        stack_of(backend).run(everything())
        assert set(backend.used.values()) == {threading.current_thread()}


async def test_an_instant_store_is_used_in_the_event_loop():
    backend = Instant()
    there = await stack_of(backend).arun_here(everything())
    assert set(backend.used.values()) == {threading.current_thread()}
    assert set(backend.used) == {"fetch", "commit", "commit_many", "identity"}
    assert there is not threading.current_thread()


async def test_a_store_that_blocks_is_used_in_worker_threads():
    backend = Where()
    stack = stack_of(backend)
    await stack.arun_here(everything())
    assert threading.current_thread() not in backend.used.values()
    assert backend.used["fetch"].name.startswith("threadkeep-read")
    assert "commit" not in backend.used, "the writer commits in groups"
    await acommit(stack, BATCH)
    assert backend.used["commit_many"].name == "threadkeep-writer"
    await stack.aclose()


async def test_a_store_of_both_kinds_is_awaited_where_the_caller_awaits():
    class Both(Where):
        def __init__(self):
            super().__init__()
            self.native = MemoryBackend()
            self.asynchronous = Awaited(self.native)

    backend = Both()
    stack = stack_of(backend)
    assert await stack.arun(call("identity")) == backend.native.identity()
    await acommit(stack, BATCH)
    assert backend.used == {}
    assert (await stack.arun(fetch(READ))).found is not None
    assert stack.run(fetch(READ)).found is None


def test_a_store_that_can_only_be_awaited_says_so():
    stack = stack_of(Awaited(MemoryBackend()))
    for refused in (stack.run, lambda _: stack.commit(BATCH)):
        with pytest.raises(InvalidArgumentError, match="Awaited is an async backend"):
            refused(fetch(READ))
