"""Issues that users report of LangGraph's savers, tried on ours."""

import asyncio
import gc
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.places import at
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt


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
