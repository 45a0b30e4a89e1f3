"""A save that reads nothing stores the same rows as the operation, byte by byte."""

import copy
from operator import add
from typing import Annotated, Any

import pytest
from kit.engine import Counted, put_operation
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict

from threadkeep._core import arguments
from threadkeep._core.engine import put
from threadkeep.savers.saver import Saver

LONG = "a text that is too long to be kept in the manifest itself, as most of what people say is"


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    notes: Annotated[list[Any], add]
    found: Annotated[dict[str, str], lambda old, new: {**old, **new}]
    steps: Annotated[int, add]
    text: str
    last: Any


def talk(state: State) -> State:
    n = state.get("steps", 0)
    new = [AIMessage(f"{n} {LONG}", id=f"a{n}"), AIMessage("short", id=f"b{n}")]
    return {
        "messages": new[: 1 + n % 2],
        "steps": 1,
        "text": "word" if n % 2 else f"{n} {LONG * n}",
    }


def unnamed(state: State) -> State:
    """Messages that get their ids from LangGraph, one of them by itself."""
    n = state.get("steps", 0)
    return {"messages": AIMessage(LONG) if n % 2 else [AIMessage(f"{n}"), HumanMessage(LONG)]}


def edit(state: State) -> State:
    """An edit in the middle, a removal, and objects that are stored elsewhere already."""
    messages = state["messages"]
    changed = copy.copy(messages[0])
    changed.content = f"{changed.content}!"
    return {"messages": [changed, RemoveMessage(id=messages[-1].id)], "last": messages[:2]}


def collect(state: State) -> State:
    n = state.get("steps", 0)
    return {"notes": [f"{n} {LONG}", n, None], "found": {f"{n}": LONG, "n": str(n)}, "last": None}


def ask(state: State) -> State:
    return {"text": interrupt(LONG)} if state.get("steps", 0) > 3 else {"last": state["notes"]}


class Recorder(InMemorySaver):
    """Records each call, with copies of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def get_tuple(self, config):
        self.calls.append(("get_tuple", (config,)))
        return super().get_tuple(config)

    def put(self, config, checkpoint, metadata, new_versions):
        held = {**checkpoint, "channel_values": dict(checkpoint["channel_values"])}
        self.calls.append(("put", (config, copy_of(held), metadata, new_versions)))
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config, writes, task_id, task_path=""):
        self.calls.append(("put_writes", (config, list(writes), task_id, task_path)))
        super().put_writes(config, writes, task_id, task_path)


def copy_of(checkpoint):
    seen = {node: dict(versions) for node, versions in checkpoint["versions_seen"].items()}
    versions = dict(checkpoint["channel_versions"])
    return {**checkpoint, "versions_seen": seen, "channel_versions": versions}


def recorded(*nodes) -> list[tuple[str, tuple[Any, ...]]]:
    saver = Recorder()
    graph = StateGraph(State)
    names = [f"{node.__name__} {number}" for number, node in enumerate(nodes)]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for before, after in zip([START, *names], names, strict=False):
        graph.add_edge(before, after)
    runner = graph.compile(checkpointer=saver)
    for turn in range(8):
        said = {"messages": [HumanMessage(f"{turn} {LONG}", id=f"h{turn}")], "notes": []}
        runner.invoke(said, {"configurable": {"thread_id": "t"}}, durability="sync")
    return saver.calls


def stored_by(calls, *, flat: bool) -> list[Any]:
    """Return the changes that the calls commit, without their random tips."""
    backend = Counted()
    tokens = iter(range(1, 100_000))
    saver = Saver(backend)
    saver._engine = _fixed(saver._engine, tokens)
    for name, given in calls:
        if flat or name == "get_tuple":
            getattr(saver, name)(*given)
        elif name == "put":
            saver._store.run(put_operation(saver, *given))
        else:
            saver._store.run(put.save(saver._engine, arguments.put_writes(*given)))
    return [change._replace(link=None) for change in backend.commits]


def _fixed(engine, tokens):
    """The engine with fixed random numbers and times."""
    engine.working_set._token = lambda bits: next(tokens)
    return engine._replace(token=lambda bits: next(tokens), now=lambda: next(tokens))


@pytest.mark.parametrize(
    "nodes",
    [(talk,), (unnamed, talk), (talk, edit), (collect, talk, collect), (collect, ask), (talk, ask)],
    ids=lambda nodes: "-".join(node.__name__ for node in nodes),
)
def test_a_save_without_reading_stores_what_the_operation_does(nodes):
    calls = recorded(*nodes)
    flat, operations = stored_by(calls, flat=True), stored_by(calls, flat=False)
    assert len(flat) == len(operations) > 8
    for one, other in zip(flat, operations, strict=True):
        assert one == other
