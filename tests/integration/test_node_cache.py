"""Graphs whose nodes have a `cache_policy`, on every store."""

import asyncio
import gc
from contextlib import suppress
from operator import add
from time import monotonic
from typing import Annotated, Any, TypedDict

import pytest
from kit.backends import BACKENDS, open_backend
from langchain_core.messages import AIMessage
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, Command, Send, interrupt

from threadkeep.cache import NodeCache, open_cache


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[Any], add]


class Node:
    """A node that counts its runs, and does something before it returns."""

    def __init__(self, act=lambda x: None):
        self.runs, self.act = 0, act

    def __call__(self, state: State) -> State:
        self.runs += 1
        self.act(state["x"])
        return {"log": [AIMessage(f"of {state['x']}", id="1"), (1, 2)]}


def graph_of(cache, node, *, ttl=None, saver=None, goto=()):
    builder = StateGraph(State)
    builder.add_node(
        "node", node, cache_policy=CachePolicy(key_func=lambda s: str(s["x"]), ttl=ttl)
    )
    builder.add_conditional_edges(START, lambda s: list(goto) or ["node"])
    return builder.compile(cache=cache, checkpointer=saver)


@pytest.fixture(params=BACKENDS)
def saver(request, tmp_path):
    with open_backend(request.param, tmp_path) as saver:
        yield saver


def thread(name):
    return {"configurable": {"thread_id": name}}


def test_a_second_run_skips_the_node(saver):
    node = Node()
    with NodeCache(saver.backend) as cache:
        graph = graph_of(cache, node, ttl=60, saver=saver)
        first = graph.invoke({"x": 1}, thread("a"))
        (update,) = graph.stream({"x": 1}, thread("b"), stream_mode="updates")
        assert update == {"node": {"log": first["log"]}, "__metadata__": {"cached": True}}
        assert type(graph.get_state(thread("b")).values["log"][1]) is tuple
        assert node.runs == 1
        graph.invoke({"x": 2}, thread("a"))
        assert node.runs == 2
        graph.clear_cache(["other"])
        graph.invoke({"x": 1}, thread("c"))
        assert node.runs == 2
        graph.clear_cache(["node"])
        graph.invoke({"x": 1}, thread("d"))
        assert node.runs == 3


async def test_and_so_it_does_in_async_runs(saver):
    node = Node()
    async with NodeCache(saver.backend, lease=20) as cache:
        graph = graph_of(cache, node, saver=saver, goto=[Send("node", {"x": n}) for n in range(9)])
        first = await graph.ainvoke({"x": 0}, thread("a"))
        again = await graph.ainvoke({"x": 0}, thread("b"))
        assert again == first
        assert node.runs == 9
        await graph.aclear_cache()
        await graph.ainvoke({"x": 0}, thread("c"))
        assert node.runs == 18


@pytest.mark.parametrize("lease", [None, 20])
def test_only_a_node_that_finished_is_cached(saver, lease):
    answers = []
    node = Node(lambda x: answers.append(interrupt("ask")))
    with NodeCache(saver.backend, lease=lease) as cache:
        graph = graph_of(cache, node, saver=saver)
        begin = monotonic()
        assert "__interrupt__" in graph.invoke({"x": 1}, thread("a"))
        assert graph.invoke(Command(resume="yes"), thread("a"))["log"]
        assert answers == ["yes"]
        assert graph.invoke({"x": 1}, thread("b"))["log"]
        assert node.runs == 2

        failing = Node(lambda x: 1 / 0)
        graph = graph_of(cache, failing)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                graph.invoke({"x": 7})
        assert failing.runs == 2
        assert monotonic() - begin < 10  # (no run waited for the lease of an ended run)


async def test_a_run_that_failed_holds_up_no_other_task():
    fail = [True]

    async with open_cache("memory://", lease=20) as cache:
        graph = graph_of(cache, Node(lambda x: x / 0 if fail else x))

        async def run():
            with suppress(ZeroDivisionError):
                return await graph.ainvoke({"x": 3})

        assert await asyncio.create_task(run()) is None
        fail.clear()
        for _ in range(5):
            gc.collect()  # (LangGraph's runs are reference cycles,
            await asyncio.sleep(0)  # with generators that the event loop has to close)
        begin = monotonic()
        assert (await asyncio.create_task(run()))["log"]
        assert monotonic() - begin < 10


def test_runs_at_the_same_time_compute_once(saver):
    async def both(graph):
        return await asyncio.gather(*(graph.ainvoke({"x": 1}) for _ in range(5)))

    class Slow(Node):
        async def __call__(self, state: State) -> State:
            await asyncio.sleep(0.02)
            return super().__call__(state)

    node = Slow()
    with NodeCache(saver.backend, lease=20) as cache:
        results = asyncio.run(both(graph_of(cache, node)))
        assert node.runs == 1
        assert all(result == results[0] for result in results)


def test_a_task_that_is_called_while_others_run_waits_for_none_of_them(saver):
    runs = []

    @task(cache_policy=CachePolicy())
    def double(n: int) -> int:
        runs.append(n)
        return 2 * n

    with NodeCache(saver.backend, lease=20) as cache:

        @entrypoint(cache=cache)
        def flow(numbers: list[int]) -> list[int]:
            futures = [double(n) for n in numbers]  # each asks for all that have no result yet
            return [future.result() for future in futures]

        begin = monotonic()
        assert flow.invoke([1, 2, 3]) == [2, 4, 6]
        assert flow.invoke([1, 2, 3]) == [2, 4, 6]
        assert sorted(runs) == [1, 2, 3]
        assert monotonic() - begin < 10
