"""Writers: changes that wait together are committed together, and each caller hears of its own."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from threadkeep._core.engine.model import Batch, FindThreads, HeadFence
from threadkeep._core.engine.thread_entry import EntryUpdate, StatusEvent
from threadkeep._run.group_commit import MOST, LoopWriter, Writer
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import BackendError, ConflictError, StatementTimeoutError, UnreachableError
from threadkeep.testing.records import checkpoint, write

EMPTY = (HeadFence("", None),)  # holds where there is no checkpoint


class Gate(MemoryBackend):
    """Notes the threads of each group; the first group waits until the gate is opened."""

    def __init__(self):
        super().__init__()
        self.groups = []
        self.begun, self.opened = threading.Event(), threading.Event()
        self.fails = lambda names: None

    def commit_many(self, changes):
        names = [change.thread for change in changes]
        self.groups.append(names)
        if len(self.groups) == 1:
            self.begun.set()
            assert self.opened.wait(10)
        self.fails(names)
        return super().commit_many(changes)

    def threads(self):
        return self.fetch([FindThreads(None, 99, empty=True)])[0]


class AwaitedGate(Gate):
    """The same store, awaited."""

    async def commit_many(self, changes):
        await asyncio.sleep(0)
        return super().commit_many(changes)


def opened(kind=Gate):
    """A store whose groups wait for nothing."""
    store = kind()
    store.opened.set()
    return store


def failing(name, error):
    """Fail each group with a change of this thread."""

    def fails(names):
        if name in names:
            raise error

    return fails


def until(holds):
    """Wait until it holds, without keeping the interpreter from those who see to that."""
    pause = threading.Event()
    while not holds():
        pause.wait(0.001)


def batch(number, fences=()):
    return Batch(f"t{number}", 1, checkpoints=(checkpoint(number),), fences=fences)


def writes(number):
    return Batch(f"t{number}", 1, writes=(write(number),))


def together(store, changes, most=MOST):
    """Commit the first change, and the others while that is under way; the error of each."""
    writer = Writer(store, most)

    def commit(change):
        try:
            writer.commit(change)
        except BackendError as error:
            return error
        except ConflictError as error:
            return error

    with ThreadPoolExecutor(len(changes)) as pool:
        first = pool.submit(commit, changes[0])
        assert store.begun.wait(10)
        rest = [pool.submit(commit, change) for change in changes[1:]]
        until(lambda: len(writer._queue.tickets) == len(changes) - 1)
        store.opened.set()
        return [found.result(10) for found in (first, *rest)]


async def awaited(writer, change):
    """Commit a change, awaited."""
    await writer.submit(change)


def awaited_together(store, changes, make=Writer, most=MOST, *, wait=True):
    """The same of awaiting callers."""

    async def run():
        writer = make(store, most)
        futures = [writer.submit(change) for change in changes]
        assert not wait or await asyncio.to_thread(store.begun.wait, 10)
        store.opened.set()
        found = await asyncio.gather(*futures, return_exceptions=True)
        closed = writer.close()
        if closed is not None:
            await closed
        return found

    return asyncio.run(run())


def test_changes_that_wait_are_committed_together_in_their_order():
    store = Gate()
    assert together(store, [batch(n) for n in range(12)]) == [None] * 12
    assert [len(group) for group in store.groups] == [1, 11]
    assert len(store.threads()) == 12


def test_what_is_committed_is_let_go_of():
    store = opened()
    writer = Writer(store)
    writer.commit(batch(1))
    asyncio.run(awaited(writer, batch(2)))
    writer.close()
    assert not writer._queue.tickets


def test_a_group_holds_no_more_than_it_may():
    store = Gate()
    together(store, [batch(n) for n in range(12)], 4)
    assert [len(group) for group in store.groups] == [1, 4, 4, 3]


@pytest.mark.parametrize("make", [Writer, LoopWriter])
def test_awaiting_callers_share_a_group(make):
    store = opened(AwaitedGate if make is LoopWriter else Gate)
    found = awaited_together(store, [batch(n) for n in range(12)], make)
    assert found == [None] * 12
    names = [name for group in store.groups for name in group]
    assert names == [f"t{n}" for n in range(12)]
    assert len(store.groups) <= 3


@pytest.mark.parametrize("run", [together, awaited_together])
def test_each_caller_hears_of_its_own_change(run):
    store = Gate()
    earlier = [Batch(f"t{number}", 1, checkpoints=(checkpoint(9),)) for number in (1, 4)]
    MemoryBackend.commit_many(store, earlier)
    if run is awaited_together:
        store.opened.set()
    found = run(store, [batch(n, EMPTY) for n in range(6)])
    refused = [type(error) for error in found]
    assert refused == [ConflictError if n in (1, 4) else type(None) for n in range(6)]


def test_a_group_that_the_store_fails_is_committed_change_by_change():
    store = Gate()
    store.fails = failing("t3", BackendError("bad value"))
    found = together(store, [batch(n) for n in range(6)])
    assert [type(error) for error in found] == [
        BackendError if n == 3 else type(None) for n in range(6)
    ]
    assert store.groups[2:] == [["t1"], ["t2"], ["t3"], ["t4"], ["t5"]]


def test_a_store_that_cannot_be_reached_is_asked_once():
    store = Gate()

    def fails(names):
        if len(store.groups) == 2:
            raise UnreachableError("down")

    store.fails = fails
    found = together(store, [batch(n) for n in range(6)])
    assert [type(error) for error in found] == [type(None), *[UnreachableError] * 5]
    assert len(store.groups) == 2


def timing_out(*names):
    """Exceed the store's time limit for these threads, and count how often."""
    limits = []

    def fails(group):
        if not names or {*names} & {*group}:
            limits.append(group)
            raise StatementTimeoutError("too late")

    return fails, limits


@pytest.mark.parametrize("make", [Writer, LoopWriter])
def test_a_store_that_is_late_for_all_keeps_a_group_waiting_thrice_at_most(make):
    store = opened(AwaitedGate if make is LoopWriter else Gate)
    store.fails, limits = timing_out()
    found = awaited_together(store, [batch(n) for n in range(9)], make)
    assert [type(error) for error in found] == [StatementTimeoutError] * 9
    groups = {tuple(group) for group in limits if len(group) > 1}
    assert len(limits) - len(groups) <= 2  # (at most two groups, and each tries one change alone)
    assert len(limits) <= 6


def test_a_locked_thread_fails_alone_and_is_waited_for_twice():
    """Once in the group, once alone: its later changes fail with it."""
    store = Gate()
    store.fails, limits = timing_out("t3")
    changes = [batch(n) for n in range(4)] + [writes(3), batch(5), writes(3), batch(6)]
    found = together(store, changes)
    late = [isinstance(error, StatementTimeoutError) for error in found]
    assert late == [n in (3, 4, 6) for n in range(8)]
    assert [error for error in found if error is None] == [None] * 5
    assert len({id(error) for error in found if error}) == 3
    assert store.threads() == ["t0", "t1", "t2", "t5", "t6"]
    assert limits == [store.groups[1], ["t3"]]


@pytest.mark.parametrize("make", [Writer, LoopWriter])
def test_a_store_that_raises_anything_leaves_no_caller_waiting(make):
    store = opened(AwaitedGate if make is LoopWriter else Gate)
    store.fails = failing("t2", ZeroDivisionError)
    found = awaited_together(store, [batch(n) for n in range(4)], make)
    assert [type(error) for error in found] == [
        BackendError if n == 2 else type(None) for n in range(4)
    ]


def test_a_cancelled_caller_takes_no_neighbor_along():
    async def run():
        store = Gate()
        writer = Writer(store)
        first = asyncio.ensure_future(awaited(writer, batch(0)))
        assert await asyncio.to_thread(store.begun.wait, 10)
        second, third = [asyncio.ensure_future(awaited(writer, batch(n))) for n in (1, 2)]
        await asyncio.sleep(0)
        second.cancel()
        store.opened.set()
        await asyncio.gather(first, third)
        writer.close()
        return store.threads(), second.cancelled()

    assert asyncio.run(run()) == (["t0", "t1", "t2"], True)


def test_several_event_loops_meet_in_one_queue():
    store = Gate()
    writer = Writer(store)

    def one_loop(number):
        asyncio.run(awaited(writer, batch(number)))

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(one_loop, 0)]
        assert store.begun.wait(10)
        done += [pool.submit(one_loop, number) for number in range(1, 4)]
        until(lambda: len(writer._queue.tickets) == 4)
        store.opened.set()
        for found in done:
            found.result(10)
    assert [len(group) for group in store.groups] == [1, 3]


def test_pending_writes_wait_for_the_checkpoint_that_follows(monkeypatch):
    monkeypatch.setattr("threadkeep._run.group_commit._LINGER_SECONDS", 10)
    store = opened()
    writer = Writer(store)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(writer.commit, writes(1))
        until(lambda: len(writer._queue.tickets) == 1)
        writer.commit(batch(1))
        waiting.result(1)
    assert store.groups == [["t1", "t1"]]


def test_awaited_pending_writes_wait_for_the_checkpoint_that_follows(monkeypatch):
    monkeypatch.setattr("threadkeep._run.group_commit._LINGER_SECONDS", 10)
    store = opened()

    async def run():
        writer = Writer(store)
        waiting = [writer.submit(writes(n)) for n in (1, 2)]
        await asyncio.sleep(0.01)
        await asyncio.gather(*waiting, writer.submit(batch(1)))

    asyncio.run(run())
    assert store.groups == [["t1", "t2", "t1"]]


def test_a_pending_write_outlives_the_loop_of_its_caller():
    store = opened()
    writer = Writer(store)

    async def leave():
        writer.submit(writes(1))  # without waiting for it

    async def save():
        await asyncio.wait_for(awaited(writer, writes(2)), 10)

    asyncio.run(leave())
    until(lambda: store.groups)
    for _ in range(3):
        asyncio.run(save())
    writer.close()
    assert [name for names in store.groups for name in names] == ["t1", "t2", "t2", "t2"]


def test_a_loop_that_is_busy_holds_up_no_pending_write():
    store = opened()
    writer = Writer(store)

    async def compute():
        waiting = writer.submit(writes(1))
        until(lambda: store.groups)  # without giving way to the loop
        await waiting

    asyncio.run(compute())
    assert store.groups == [["t1"]]


def test_a_thread_that_ends_by_an_interrupt_is_followed_by_another():
    store = opened()
    writer = Writer(store)

    def interrupt(names):
        writer._wake_or_commit()  # somebody else wakes the thread meanwhile
        raise KeyboardInterrupt

    async def save(number):
        await asyncio.wait_for(awaited(writer, batch(number)), 10)

    store.fails = interrupt
    with pytest.raises(BackendError):
        asyncio.run(save(1))
    store.fails = lambda names: None
    asyncio.run(save(2))
    assert store.groups[-1] == ["t2"]


def test_waits_in_vain_become_ever_rarer(monkeypatch):
    monkeypatch.setattr("threadkeep._run.group_commit._LINGER_SECONDS", 0)
    store = opened()
    writer, waits = Writer(store), []
    note = writer._note_linger
    writer._note_linger = lambda **known: waits.append(known) or note(**known)
    for _ in range(1000):
        writer.commit(writes(1))
    assert 4 <= len(waits) <= 8


def test_one_wait_in_vain_among_useful_ones_leaves_out_none(monkeypatch):
    monkeypatch.setattr("threadkeep._run.group_commit._LINGER_SECONDS", 10)
    store = opened()
    writer = Writer(store)

    def turn(pool):
        waiting = pool.submit(writer.commit, writes(1))
        until(lambda: len(writer._queue.tickets) == 1)
        writer.commit(batch(1))
        waiting.result(1)

    with ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            turn(pool)
        with monkeypatch.context() as patched:
            patched.setattr("threadkeep._run.group_commit._LINGER_SECONDS", 0)
            writer.commit(writes(1))  # in vain
        turn(pool)
    assert store.groups == [["t1", "t1"]] * 4 + [["t1"], ["t1", "t1"]]


@pytest.mark.parametrize("status", ["waiting", "failed"])
def test_interrupts_and_failures_wait_for_nobody(status, monkeypatch):
    monkeypatch.setattr("threadkeep._run.group_commit._LINGER_SECONDS", 1000)
    store = opened()
    touch = EntryUpdate(saves=True, event=StatusEvent(status, "1"))
    Writer(store).commit(writes(1)._replace(touch=touch))
    assert store.groups == [["t1"]]


def test_without_a_thread_awaited_changes_are_committed_all_the_same(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    store = opened()
    writer = Writer(store)

    async def run():
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            await awaited(writer, batch(1))
        await awaited(writer, batch(2))  # (by a thread again)

    asyncio.run(run())
    assert store.threads() == ["t1", "t2"]


@pytest.mark.parametrize("make", [Writer, LoopWriter])
@pytest.mark.parametrize("found", [None, [], [None] * 5])
def test_results_of_the_wrong_number_are_errors(make, found):
    store = opened(AwaitedGate if make is LoopWriter else Gate)

    async def answer(changes):
        return found

    store.commit_many = answer if make is LoopWriter else lambda changes: found
    for error in awaited_together(store, [batch(n) for n in range(3)], make, wait=False):
        assert isinstance(error, BackendError)
        assert "commit_many" in str(error)


def test_a_change_that_was_interrupted_while_it_waited_is_left_out(monkeypatch):
    store = opened()
    writer = Writer(store)

    def interrupted(wake, seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("threadkeep._run.driver.Wake.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.commit(writes(1))
    writer.commit(batch(1))
    assert store.groups == [["t1"]]


def test_a_loop_that_shuts_down_commits_what_waits():
    store = opened(AwaitedGate)
    writer = LoopWriter(store)
    done = []

    async def save(number):
        try:
            await asyncio.sleep(1000)
        finally:
            await writer.submit(batch(number))
            done.append(number)

    async def run():
        tasks = [asyncio.ensure_future(save(number)) for number in range(3)]
        await asyncio.sleep(0)
        writer.submit(batch(3))
        return tasks

    asyncio.run(run())
    assert sorted(done) == [0, 1, 2]
    assert sorted(store.threads()) == ["t0", "t1", "t2", "t3"]


def test_the_thread_ends_with_the_writer():
    store = opened()
    writer = Writer(store)
    asyncio.run(awaited(writer, batch(0)))
    thread = writer._thread
    writer.close()
    thread.join(10)
    assert not thread.is_alive()
    asyncio.run(awaited(writer, batch(1)))  # (whether it is open is the store's to say)
    assert store.threads() == ["t0", "t1"]
