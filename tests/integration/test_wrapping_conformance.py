"""LangGraph's own savers show the same as `wrap` gives them: its suite, and runs of graphs."""

from __future__ import annotations

import operator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from kit.places import at
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from threadkeep import wrap

from .driver import play
from .foreign import BLOCKING, FOREIGN, MODES, emptied, foreign, wrapped
from .scenarios import SCENARIOS
from .sync_face import SyncFace
from .test_conformance import published

if TYPE_CHECKING:
    from pathlib import Path


async def is_there(case: Any, name: str, saver: Any) -> bool:
    """Whether the saver can do what the case, which must pass then, is about."""
    try:
        await case(SyncFace(saver) if name in BLOCKING else saver)
    except NotImplementedError:
        return False
    return True


@pytest.mark.drawn(24)
@pytest.mark.parametrize("capability", Capability)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FOREIGN)
async def test_published_suite(
    name: str, mode: str, capability: Capability, tmp_path: Path
) -> None:
    for case in published(capability):
        async with foreign(name, tmp_path) as saver:
            can = await is_there(case, name, saver)
        async with wrapped(name, mode, tmp_path) as saver:
            assert await is_there(case, name, saver) == can


# -- graphs ------------------------------------------------------------------------------

PLAYED = [
    "agent_with_two_tools",
    "ask_again_after_going_back",
    "chat_that_removes_messages",
    "copy_and_update_at_once",
    "delta_forked_3",
    "fan_out",
    "lists_that_are_edited_everywhere",
    "nested_values_that_change_deep_inside",
    "subgraph_with_a_memory_that_asks",
]


def opened(name: str, stack: ExitStack) -> Any:
    if name == "sqlite":
        return stack.enter_context(SqliteSaver.from_conn_string(":memory:"))
    if name == "postgres":
        return stack.enter_context(PostgresSaver.from_conn_string(emptied()))
    return InMemorySaver()


@pytest.mark.drawn(24)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "api"),
    [("memory", "sync"), ("memory", "async"), ("sqlite", "sync"), ("postgres", "sync")],
)
@pytest.mark.parametrize("scenario", PLAYED)
def test_scenario(scenario: str, name: str, api: str, mode: str) -> None:
    durability = SCENARIOS[scenario].durabilities[-1]
    with ExitStack() as stack:
        plain = opened(name, stack)
        want = play(SCENARIOS[scenario], plain, durability=durability, api=api)
    with ExitStack() as stack:
        saver = wrap(opened(name, stack), **MODES[mode])
        stack.callback(saver.close)
        got = play(SCENARIOS[scenario], saver, durability=durability, api=api)
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert mine == theirs, f"answer {number} differs"


class Said(TypedDict):
    """What a graph has said so far."""

    said: Annotated[list[str], operator.add]


def say(state: Said) -> Any:
    return {"said": [f"{len(state['said'])}"]}


async def spoken(saver: Any) -> Any:
    builder = StateGraph(Said)
    builder.add_sequence([("one", say), ("two", say)])
    builder.add_edge(START, "one")
    graph = builder.compile(checkpointer=saver)
    for _ in range(3):
        await graph.ainvoke({"said": ["hello"]}, at())
    found = [state async for state in graph.aget_state_history(at())]
    return [(state.values, state.next, state.metadata, len(state.tasks)) for state in found]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["aiosqlite", "aiopostgres"])
async def test_an_awaited_run(name: str, mode: str, tmp_path: Path) -> None:
    async with foreign(name, tmp_path) as saver:
        want = await spoken(saver)
    async with wrapped(name, mode, tmp_path) as saver:
        assert await spoken(saver) == want
    assert len(want) == 12
