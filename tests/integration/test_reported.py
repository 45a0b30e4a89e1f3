"""Issues that users report of LangGraph's savers, tried on ours."""

import asyncio
import gc
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.graphs import linear
from kit.places import at
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict


@pytest.fixture(params=BACKENDS)
async def saver(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    async with open_backend(request.param, tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("by_id", [False, True])
async def test_tasks_before_an_interrupt_in_a_subgraph_run_once(saver: Any, by_id: bool) -> None:
    ran = []

    @task
    async def prepare(text: str) -> str:
        ran.append(text)
        return f"{text} prepared"

    @task
    async def ask(text: str) -> str:
        return f"{text}, {interrupt('?')}"

    @entrypoint()
    async def inner(text: str) -> str:
        return await ask(await prepare(text))

    @entrypoint(checkpointer=saver)
    async def outer(text: str) -> str:
        return await inner.ainvoke(text)

    await outer.ainvoke("tea", at())
    place = (await outer.aget_state(at())).config if by_id else at()
    assert await outer.ainvoke(Command(resume="with milk"), place) == "tea prepared, with milk"
    assert ran == ["tea"]


async def test_a_chain_of_saves_keeps_no_checkpoint(saver: Any) -> None:
    """LangGraph makes each save a task that holds the one before it."""
    ids = set()

    async def save(before: asyncio.Task[Any] | None, step: int) -> Any:
        parent = await before if before else at(checkpoint_ns="")
        checkpoint = {**empty_checkpoint(), "id": str(uuid6(clock_seq=step))}
        ids.add(checkpoint["id"])
        return await saver.aput(parent, checkpoint, {"source": "loop", "step": step}, {})

    last = None
    for step in range(40):
        last = asyncio.create_task(save(last, step))
    assert last is not None
    await last
    gc.collect()
    known = [o.get("id") for o in gc.get_objects() if type(o) is dict]
    assert len([id for id in known if isinstance(id, str) and id in ids]) <= 3


async def test_a_cancelled_run_that_saves_late_does_not_replace_newer_state(saver: Any) -> None:
    gate, at_gate, saved = asyncio.Event(), asyncio.Event(), asyncio.Event()
    aput = saver.aput

    async def late(*args: Any) -> Any:
        at_gate.set()
        await gate.wait()
        place = await aput(*args)
        saved.set()
        return place

    class State(TypedDict):
        text: str

    run = linear(saver, State, keep=lambda state: state)
    saver.aput = late
    first = asyncio.create_task(run.ainvoke({"text": "cancelled"}, at(), durability="exit"))
    await at_gate.wait()
    first.cancel()
    saver.aput = aput
    await run.ainvoke({"text": "newer"}, at(), durability="exit")
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await saved.wait()
    assert (await run.aget_state(at())).values == {"text": "newer"}
    history = [state.values async for state in run.aget_state_history(at())]
    assert {"text": "cancelled"} in history  # it did save
