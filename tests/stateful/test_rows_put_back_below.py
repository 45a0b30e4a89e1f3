"""Rows go back below a run that needs them: writes, a checkpoint, archived messages.

Saves that need them are refused, whichever of the run's saves meets the loss first.
"""

import operator
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.put_back import copy_rows
from kit.stepwise import Requests
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from threadkeep.errors import ConflictError

AT: Any = {"configurable": {"thread_id": "t"}}
LONG = "x" * 90
FILES_AND_SERVERS = [name for name in BACKENDS if name != "memory"]
AWAITED = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaiting"])


def extended(old: list[str], writes: list[list[str]]) -> list[str]:
    return [*old, *[one for write in writes for one in write]]


class Steps(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(extended, snapshot_frequency=8)]  # (in a third run)
    whole: Annotated[list[str], operator.add]
    count: int


def said(text: str) -> Steps:
    return {"log": [f"{text} {LONG}"], "whole": [f"{text} {LONG}"]}


def steps_on(saver: Any, *, asks: bool = False) -> Any:
    builder = StateGraph(Steps)
    for name in ("one", "two"):

        def step(state: Steps, name: str = name) -> Steps:
            answer = interrupt("really?") if asks and name == "one" else "of itself"
            text = f"{name} {len(state['log'])} {answer}"
            return {**said(text), "count": len(state["log"])}

        builder.add_node(name, step)
    builder.add_edge(START, "one").add_edge("one", "two")
    return builder.compile(checkpointer=saver)


@pytest.fixture(params=FILES_AND_SERVERS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes empty stores: a saver, what opens others, and what copies the rows."""
    with ExitStack() as stack:
        numbers = iter(range(1000))

        def make() -> Any:
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            opened = partial(open_backend, request.param, folder)
            saver = stack.enter_context(opened())
            return saver, opened, partial(copy_rows, request.param, folder, saver)

        yield make


async def run(graph: Any, given: Any, durability: str, *, awaited: bool) -> Any:
    if awaited:
        return await graph.ainvoke(given, AT, durability=durability)
    return graph.invoke(given, AT, durability=durability)


@AWAITED
@pytest.mark.parametrize("asks", [False, True], ids=["runs", "answers"])
@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_a_delta_channel_never_lacks_what_was_lost(
    stores: Any, awaited: bool, durability: str, asks: bool
) -> None:
    refused = 0
    given: Any = Command(resume="yes") if asks else said("second")
    for copied in range(10):
        saver, opened, copy = stores()
        graph, requests, kept = steps_on(saver, asks=asks), Requests(saver), list[Any]()
        await run(graph, said("first"), "sync", awaited=awaited)
        requests.arm()
        requests.before(copied, lambda kept=kept, copy=copy: kept.append(copy()))
        requests.before(copied + 1, lambda kept=kept: kept.pop()())
        try:
            left = await run(graph, given, durability, awaited=awaited)
        except ConflictError:
            refused += 1
            continue
        if kept or requests.count <= copied:  # the run had ended
            break
        with opened() as fresh:
            assert steps_on(fresh).get_state(AT).values == left
    assert refused


@AWAITED
@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_a_run_never_begins_with_a_part_of_what_was_lost(
    stores: Any, awaited: bool, durability: str
) -> None:
    refused = 0
    for lost in range(10):
        saver, opened, copy = stores()
        graph, requests = steps_on(saver), Requests(saver)
        await run(graph, said("first"), "sync", awaited=awaited)
        put_back = copy()
        await run(graph, said("second"), "sync", awaited=awaited)
        requests.arm()
        requests.before(lost, put_back)
        try:
            await run(graph, said("third"), durability, awaited=awaited)
        except ConflictError:
            refused += 1
            continue
        if requests.count <= lost:  # the run had ended
            break
        with opened() as fresh:
            found = steps_on(fresh).get_state(AT).values
        assert found["log"] == found["whole"]
    assert refused


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_write_is_lost_of_which_its_run_learns_from_others(stores: Any, durability: str) -> None:
    """Rows from before the write: a save of its checkpoint, or another run, meets the loss."""
    saver, opened, copy = stores()
    graph, kept, copied, stored = steps_on(saver), list[Any](), threading.Event(), threading.Event()
    put, put_writes = saver.put, saver.put_writes

    def watched(config: Any, made: Any, metadata: Any, versions: Any) -> Any:
        if durability == "async" and metadata["step"] == 0:
            kept.append(copy())
            copied.set()
            assert stored.wait(20)
            kept.pop()()
        elif kept:
            kept.pop()()
            other = threading.Thread(target=graph.invoke, args=(None, AT))
            other.start()
            other.join()
        return put(config, made, metadata, versions)

    def written(config: Any, writes: Any, task: str, task_path: str = "") -> None:
        is_first = not stored.is_set() and "one " in str(dict(writes).get("log"))
        if is_first and durability == "async":
            assert copied.wait(20)
        elif is_first:
            kept.append(copy())
        put_writes(config, writes, task, task_path)
        if is_first:
            stored.set()

    saver.put, saver.put_writes = watched, written
    with pytest.raises(ConflictError):
        graph.invoke(said("first"), AT, durability=durability)
    assert not kept
    with opened() as fresh:
        found = steps_on(fresh).get_state(AT).values
    assert found["log"] == found["whole"]


@AWAITED
async def test_a_question_waits_or_is_refused(stores: Any, awaited: bool) -> None:
    saver, _, copy = stores()
    stored = threading.Event()
    put_writes, aput_writes = saver.put_writes, saver.aput_writes

    lost: list[bool] = []

    def noted(*given: Any) -> None:
        put_writes(*given)
        if lost:
            stored.set()

    async def anoted(*given: Any) -> None:
        await aput_writes(*given)
        if lost:
            stored.set()

    saver.put_writes, saver.aput_writes = noted, anoted

    def beside(_state: Any) -> Any:
        put_back()
        lost.append(True)
        return {"items": [f"beside {LONG}"]}

    def ask(_state: Any) -> Any:
        assert stored.wait(20)  # until the other task's save has met the loss
        return {"items": [interrupt("really?")]}

    builder: Any = StateGraph(TypedDict("S", {"items": Annotated[list[str], operator.add]}))
    builder.add_node("begin", lambda _: {"items": [LONG]})
    builder.add_node("beside", beside)
    builder.add_node("ask", ask)
    builder.add_edge(START, "begin").add_edge("begin", "beside").add_edge("begin", "ask")
    saver.put(
        {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {}
    )
    put_back = copy()
    with pytest.raises(ConflictError):
        await run(builder.compile(checkpointer=saver), {"items": ["?"]}, "sync", awaited=awaited)
