"""Savers where programs fork, and where event loops and worker threads wait for each other."""

import asyncio
import operator
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import pytest
from kit.places import at
from kit.rows import aput, place, put, value_at
from kit.runs import story, told
from langgraph.graph import START, StateGraph
from langgraph.types import Send

import threadkeep
from threadkeep._stores.base import AsyncBackend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.errors import InvalidArgumentError
from threadkeep.savers.saver import Saver

SECONDS = 20


# -- forks ---------------------------------------------------------------------------


class Slow:
    """Waits while it is encoded."""


def in_fork(work: Callable[[], bool]) -> bool:
    """Run `work` in a forked child; whether it came to its end and returned True."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"no"
        try:
            answer = b"yes" if work() else b"no"
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe, ThreadPoolExecutor(1) as pool:
        heard = pool.submit(pipe.read)
        try:
            return heard.result(SECONDS) == b"yes"
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_a_child_forked_while_another_thread_encodes_goes_on(saver: Any) -> None:
    encoding, forked = threading.Event(), threading.Event()

    def encode(_: Slow) -> int:
        encoding.set()
        return int(forked.wait(SECONDS))

    threadkeep.register(Slow, encode, lambda _: Slow())

    def child() -> bool:
        head = put(saver, place(), {"value": "of the child"})
        return bool(value_at(saver, head) == "of the child")

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(put, saver, place(), {"value": Slow()})
        assert encoding.wait(SECONDS)
        try:
            assert in_fork(child)
        finally:
            forked.set()
        done.result()
    assert saver.check().ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_the_async_methods_work_in_a_forked_child(saver: Any) -> None:
    asyncio.run(aput(saver, place(), {"value": "of the parent"}))  # starts worker threads

    def child() -> bool:
        asyncio.run(aput(saver, place(), {"value": "of the child"}))
        return bool(value_at(saver, place()) == "of the child")

    assert in_fork(child)


# -- loops and threads ---------------------------------------------------------------


class State(TypedDict):
    seen: Annotated[list[int], operator.add]


async def test_sync_nodes_may_wait_for_the_loop(saver: Any) -> None:
    loop = asyncio.get_running_loop()
    workers = 40  # more than the event loop has threads

    def look(_: Any) -> Any:
        asked = asyncio.run_coroutine_threadsafe(graph.aget_state(at()), loop)
        return {"seen": [len(asked.result(SECONDS).values)]}

    builder = StateGraph(State)
    builder.add_node("look", look)
    builder.add_conditional_edges(START, lambda _: [Send("look", {})] * workers)
    graph = builder.compile(checkpointer=saver)
    result = await asyncio.wait_for(graph.ainvoke({"seen": [0]}, at()), SECONDS)
    assert len(result["seen"]) == 1 + workers


# -- async backends ------------------------------------------------------------------


class AsyncMemory(AsyncBackend):
    """The memory backend with a native async driver's face."""

    def __init__(self) -> None:
        self.inner = MemoryBackend()

    async def fetch(self, reads: Any) -> Any:
        await asyncio.sleep(0)
        return self.inner.fetch(reads)

    async def commit(self, change: Any) -> None:
        await asyncio.sleep(0)
        self.inner.commit(change)

    async def close(self) -> None:
        self.inner.close()


async def test_a_saver_on_an_async_backend() -> None:
    async with Saver(AsyncMemory()) as saver:
        graph = story(saver)
        await graph.ainvoke({"log": ["one"]}, at())
        assert (await graph.ainvoke({"log": ["two"]}, at()))["log"] == told("one", "two")
        states = [state async for state in graph.aget_state_history(at())]
        assert states[0].values["log"] == told("one", "two")
        with pytest.raises(InvalidArgumentError, match="async methods"):
            saver.get_tuple(place())
