"""`saver.threads.branches`: the tree of a thread, on every backend by both APIs."""

import operator
from typing import Annotated, Any

import pytest
from kit.graphs import linear
from kit.places import THREAD, at
from kit.rows import aput, place
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError

from . import delta_spec


class State(TypedDict, total=False):
    log: Annotated[list, operator.add]


def graph(saver: Any, *, asks: bool = False) -> Any:
    def answer(state: Any) -> Any:
        return {"log": [interrupt("which?") if asks else "none"]}

    return linear(saver, State, a=lambda s: {"log": [f"a{len(s['log'])}"]}, b=answer)


def id_of(config: Any) -> str:
    return config["configurable"]["checkpoint_id"]


async def as_listed(saver: Any, ns: str = "") -> Any:
    """Parent, time and metadata of each checkpoint, as the saver lists them."""
    return {
        found.checkpoint["id"]: (
            found.parent_config and id_of(found.parent_config),
            found.checkpoint["ts"],
            found.metadata,
        )
        async for found in saver.alist(at(checkpoint_ns=ns))
    }


def told(found: Any) -> Any:
    return {one.id: (one.parent, one.time, one.metadata) for one in found.checkpoints.values()}


async def test_a_line_has_one_tip(look: Any) -> None:
    await graph(look.saver).ainvoke({"log": ["turn"]}, at())
    found = await look("branches", THREAD)
    assert told(found) == await as_listed(look.saver)
    assert [one.step for one in found.checkpoints.values()] == [-1, 0, 1, 2]
    assert [one.source for one in found.checkpoints.values()] == ["input", "loop", "loop", "loop"]
    assert found.tips == (found.head,)
    assert len(found.roots) == 1
    assert found.forks == ()


async def test_what_a_step_did_and_what_comes_next(look: Any) -> None:
    """As `next` of the graph's states, but without reading values."""
    builder = StateGraph(State).add_node("a", lambda s: {"log": ["a"]}).add_edge(START, "a")
    builder.add_node("b", lambda s: {"log": [1 / len(s["log"][2:])]})
    builder.add_conditional_edges("a", lambda s: [Send("b", {"log": s["log"]})])
    made = builder.compile(checkpointer=look.saver)
    with pytest.raises(ZeroDivisionError):
        await made.ainvoke({"log": ["turn"]}, at())
    tree = await look("branches", THREAD)
    told = [(one.next, one.has_sends, one.written) for one in tree.checkpoints.values()]
    assert told == [(("__start__",), False, ()), (("a",), False, ("log",)), ((), True, ("log",))]
    assert [state.next async for state in made.aget_state_history(at())] == [
        ("b",),
        ("a",),
        ("__start__",),
    ]
    assert [len(one.failed) for one in tree.checkpoints.values()] == [0, 0, 1]
    await made.aupdate_state(at(), {"log": ["more"]}, as_node="b")
    tree = await look("branches", THREAD)
    assert not tree.checkpoints[tree.head].has_sends  # the list exists and is empty


async def test_pruned_and_hidden_ancestors(look: Any) -> None:
    made = await delta_spec.chat(look.saver, 3)
    before = await look("branches", THREAD)
    await look.saver.aprune([THREAD])
    (left,) = (await look("branches", THREAD)).checkpoints.values()
    assert left.visible_parent is None
    assert left.hidden == len(before.checkpoints) - 1
    assert not left.is_cut
    await made.ainvoke({"log": ["again"]}, at())
    found = await look("branches", THREAD)
    assert found.roots == (left.id,)
    assert [one.hidden for one in found.checkpoints.values()][1:] == [0, 0, 0, 0]


async def test_a_parent_that_is_not_there_is_said_to_be_absent(look: Any) -> None:
    await graph(look.saver).ainvoke({"log": ["turn"]}, at())
    head = (await look("branches", THREAD)).head
    await look.saver.aprune([THREAD])
    (left,) = (await look("branches", THREAD)).checkpoints.values()
    assert left.id == head
    assert left.parent is not None
    assert left.is_cut
    assert (left.visible_parent, left.hidden) == (None, 0)


async def test_subgraphs_have_trees_of_their_own(look: Any) -> None:
    await linear(look.saver, State, inner=graph(True, asks=True)).ainvoke({"log": ["turn"]}, at())
    namespaces = {c.config["configurable"]["checkpoint_ns"] for c in look.saver.list(at())}
    assert len(namespaces) == 2
    trees = await look("branches_by_ns", THREAD)
    assert trees.keys() == namespaces
    for ns in namespaces:
        found = await look("branches", THREAD, ns)
        assert trees[ns] == found
        assert told(found) == await as_listed(look.saver, ns)
        assert found.checkpoints[found.head].waiting


async def test_what_is_not_there(look: Any) -> None:
    await aput(look.saver, place(), {"v": 1})
    await look.refuses(ThreadNotFoundError, "branches", "nobody")
    await look.refuses(ThreadNotFoundError, "branches", THREAD, "nowhere")
    await look.refuses(ThreadNotFoundError, "branches_by_ns", "nobody")
    await look.refuses(InvalidArgumentError, "branches", THREAD, 5)
    await look.refuses(InvalidArgumentError, "branches", "\ud800")
