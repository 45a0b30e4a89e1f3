"""States of every shape: reducers, models, nesting, values that change their type."""

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any

from langgraph.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    Topic,
    UntrackedValue,
)
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Overwrite
from pydantic import BaseModel
from typing_extensions import TypedDict

from .table import scenario


def chain(schema: Any, *nodes: Any) -> StateGraph[Any]:
    """START -> nodes in order -> END; a node's name is its function's."""
    builder = StateGraph(schema)
    builder.add_sequence(list(nodes))
    builder.add_edge(START, nodes[0].__name__)
    builder.add_edge(nodes[-1].__name__, END)
    return builder


class Numbers(TypedDict):
    items: Annotated[list[Any], operator.add]


@scenario
async def list_that_is_overwritten(run: Any) -> None:
    def cut(state: Numbers) -> Any:
        return {"items": Overwrite(state["items"][1:-1])}

    run.compile(chain(Numbers, cut))
    await run.invoke({"items": [1, 2, 3, 4]})
    await run.invoke({"items": [5, 6, 7]})
    await run.invoke({"items": []})


class Point(BaseModel):
    x: int
    tags: list[str] = []


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Newer keys win; None removes a key."""
    return {k: v for k, v in {**(old or {}), **new}.items() if v is not None}


class Files(TypedDict):
    files: Annotated[dict[str, Any], merge]


@scenario
async def dict_that_merges(run: Any) -> None:
    def edit(state: Files) -> Any:
        return {"files": {"log": len(state["files"]), "first": {"lines": ["a"] * 3}}}

    run.compile(chain(Files, edit))
    await run.invoke({"files": {"a": 1, "b": [1, 2]}})
    await run.invoke({"files": {"a": None, "c": {"deep": {"er": [1]}}}})
    await run.invoke({"files": {"c": {"deep": {"er": [1, 2]}}}})
    await run.invoke({"files": {"a": "again, now last"}})


class Plan(BaseModel):
    goal: str
    steps: list[dict[str, Any]] = []
    point: Point | None = None


@scenario
async def pydantic_state(run: Any) -> None:
    def plan(state: Plan) -> Any:
        return {"steps": [*state.steps, {"do": state.goal, "n": len(state.steps)}]}

    def place(state: Plan) -> Any:
        return {"point": Point(x=len(state.steps), tags=[state.goal])}

    run.compile(chain(Plan, plan, place))
    for goal in ("read", "write", "rest"):
        await run.invoke({"goal": goal})
    await run.update({"goal": "updated"})


@dataclass
class Desk:
    notes: Annotated[list[dict[str, Any]], operator.add] = field(default_factory=list)
    owner: str = "nobody"
    best: Point | None = None


@scenario
async def dataclass_state(run: Any) -> None:
    def note(state: Desk) -> Any:
        return {"notes": [{"by": state.owner, "n": len(state.notes)}]}

    def judge(state: Desk) -> Any:
        return {"best": Point(x=len(state.notes))}

    run.compile(chain(Desk, note, judge))
    await run.invoke({"owner": "ada"})
    await run.invoke({"notes": [{"by": "user"}]})
    await run.invoke(Desk(owner="bob"))


class Anything(TypedDict, total=False):
    value: Any
    other: Any


def lambda_node() -> Any:
    def echo(state: Anything) -> Any:
        return {"other": state.get("value")}

    return echo


@scenario
async def nested_values_that_change_deep_inside(run: Any) -> None:
    def deepen(state: Anything) -> Any:
        tree = {"rows": [{"cells": [{"v": i * j} for j in range(3)]} for i in range(4)], "n": 0}
        value = state.get("value") or tree
        rows = [*value["rows"]]
        at = value["n"] % 4
        rows[at] = {"cells": [*rows[at]["cells"], {"v": f"new {value['n']}"}]}
        return {"value": {**value, "rows": rows, "n": value["n"] + 1}}

    run.compile(chain(Anything, deepen))
    for _ in range(5):
        await run.invoke({"other": "go"})


@scenario
async def lists_that_are_edited_everywhere(run: Any) -> None:
    edits = [
        list(range(40)),
        list(range(1, 40)),
        [*range(1, 20), "in the middle", *range(20, 40)],
        [*range(20, 40), *range(1, 20)],
        list(range(39, 0, -1)),
        [*range(5)] * 3,
        [],
        [[]],
        [{"k": i} for i in range(20)],
        [{"k": i} for i in range(20) if i % 3],
    ]
    run.compile(chain(Anything, lambda_node()))
    for value in edits:
        await run.invoke({"value": value})


HANDLE = object()  # cannot be stored, and need not: its channel is untracked


class Public(TypedDict, total=False):
    shown: Annotated[list[str], operator.add]
    scratch: Annotated[str, EphemeralValue]
    handle: Annotated[Any, UntrackedValue]
    whichever: Annotated[Any, AnyValue]


class Private(TypedDict):
    secret: str


@scenario
async def private_ephemeral_and_untracked_channels(run: Any) -> None:
    def make(state: Public) -> Any:
        hidden = {"secret": "s" * 3, "handle": HANDLE}
        return {**hidden, "scratch": "gone soon", "whichever": [1]}

    def use(state: Private) -> Any:
        return {"shown": [state["secret"]]}

    def check(state: Public) -> Any:
        return {"shown": [state.get("scratch", "none"), type(state.get("handle")).__name__]}

    run.compile(chain(Public, make, use, check))
    await run.invoke({"shown": ["start"], "scratch": "input"})
    await run.invoke({"shown": ["again"]})


def topic_graph() -> Any:
    """A graph of channels, without a state schema."""
    one = NodeBuilder().subscribe_only("given").do(lambda x: f"one {x}").write_to("log", "next")
    two = NodeBuilder().subscribe_only("next").do(lambda x: f"two {x}").write_to("log", "sum")
    return {
        "nodes": {"one": one, "two": two},
        "channels": {
            "given": EphemeralValue(str),
            "next": LastValue(str),
            "log": Topic(str, accumulate=True),
            "sum": BinaryOperatorAggregate(str, operator.add),
        },
        "input_channels": ["given"],
        "output_channels": ["log", "sum"],
    }


# The channel's own list is handed to every put: only where the loop waits for the put
# does LangGraph's saver encode it before it grows.
@scenario(durabilities=("sync", "exit"))
async def topic_that_accumulates(run: Any) -> None:
    run.graph = Pregel(**topic_graph(), checkpointer=run.saver)
    for given in ("a", "b", "c"):
        await run.invoke({"given": given})
