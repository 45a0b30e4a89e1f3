"""Plans: each step runs in either way, and no part of an ended plan continues."""

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest
from kit.engine import memory_saver

from threadkeep._run import driver
from threadkeep._run.driver import End, external, on, sync_or_async
from threadkeep._run.together import together
from threadkeep.errors import BackendError
from threadkeep.threads.transfer import whole_thread


def names(saver: Any, where: list[Any]) -> Any:
    where.append((yield from external(threading.current_thread)))
    found = yield from on(saver, whole_thread.all_threads())
    both = yield from on(
        saver, together([[whole_thread.all_threads(), whole_thread.all_threads()]])
    )
    return found, both


async def test_steps_in_either_way() -> None:
    saver, where = memory_saver()._store, []
    assert driver.run(names(saver, where)) == ([], [[[], []]])
    assert await driver.arun(names(saver, where)) == ([], [[[], []]])
    assert where[0] is threading.current_thread()
    assert where[1] is not threading.current_thread()


async def awaited() -> str:
    return f"awaited in {asyncio.current_task() is not None}"


async def test_what_there_is_in_both_ways_is_called_in_one() -> None:
    assert driver.run(sync_or_async(lambda: "waited", awaited)) == "waited"
    assert await driver.arun(sync_or_async(lambda: "waited", awaited)) == "awaited in True"


async def test_a_cancelled_plan_waits_for_what_it_awaits() -> None:
    begun, go, seen = asyncio.Event(), asyncio.Event(), []

    async def slow() -> None:
        begun.set()
        await go.wait()
        seen.append("done")

    running = asyncio.ensure_future(driver.arun(sync_or_async(lambda: None, slow)))
    await begun.wait()
    running.cancel()
    asyncio.get_running_loop().call_soon(go.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen == ["done"]


def failing() -> Any:
    raise BackendError("full")


def catching() -> Any:
    try:
        yield from external(failing)
    except BackendError as error:
        text = error.message
    return (yield from external(text.upper))


async def test_errors_come_to_the_plan() -> None:
    assert driver.run(catching()) == "FULL"
    assert await driver.arun(catching()) == "FULL"
    with pytest.raises(BackendError):
        driver.run(external(failing))


async def test_a_cancelled_plan_is_closed_after_the_step_under_way() -> None:
    begun, go, seen = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert go.wait(20)
        seen.append("done")

    def plan() -> Any:
        try:
            yield from external(slow)
        finally:
            seen.append("closed")

    task = asyncio.ensure_future(driver.arun(plan()))
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    assert seen == []
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["done", "closed"]


# -- the end of a background thread, set while it waits and in the middle of waiting --

WAIT = 10


class Owner:
    """Something that a thread belongs to; in a cycle, as owners often are."""

    def __init__(self) -> None:
        self.own = self


def test_it_ends_a_wait() -> None:
    end = End()
    assert not end.wait(0.001)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: end.wait(3600) and ended.set())
    thread.start()
    end.set()
    thread.join(WAIT)
    assert ended.is_set()
    assert end.wait(3600)
    assert end.wait(threading.TIMEOUT_MAX)


def test_the_owner_that_is_collected_ends_it() -> None:
    owner, end = Owner(), End()
    reference = weakref.ref(owner, end.set)
    del owner
    gc.collect()
    assert reference() is None
    assert end.wait(3600)
