"""One object in several places of a state is several objects for the next run.

LangGraph's savers store it once for each place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from kit.graphs import linear
from kit.places import at
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from threadkeep import MemorySaver

TEXT = "more than is kept in a manifest itself " * 2


@dataclass
class Box:
    content: list[Any]


class Model(BaseModel):
    content: list[Any]


class State(TypedDict, total=False):
    turn: int
    value: Any
    beside: Any
    doubled: Annotated[list[Any], lambda old, new: [*old, *new, *new]]


PARTS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"content": [TEXT]},
    "dataclass": lambda: Box([TEXT]),
    "model": lambda: Model(content=[TEXT]),
    "message": lambda: HumanMessage([TEXT], id="1"),
}
PLACES: dict[str, tuple[Callable[[Any], State], Callable[[Any], Any]]] = {
    "list": (lambda part: {"value": [part, part]}, lambda state: state["value"][0]),
    "dict": (lambda part: {"value": {"a": part, "b": [part]}}, lambda state: state["value"]["a"]),
    "lists": (lambda part: {"value": [part], "beside": [part]}, lambda state: state["value"][0]),
    "channels": (lambda part: {"value": part, "beside": part}, lambda state: state["value"]),
    "reducer": (lambda part: {"doubled": [part]}, lambda state: state["doubled"][0]),
}


@pytest.mark.parametrize("made", [0, 1], ids=["read", "lent"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", PARTS)
def test_each_place_has_an_object_of_its_own(made: int, place: str, kind: str) -> None:
    makes, finds = PLACES[place]

    def node(state: State) -> State:
        if state["turn"] < made:
            return {"turn": state["turn"]}
        if state["turn"] == made:
            return makes(PARTS[kind]())
        part = finds(state)
        (part["content"] if isinstance(part, dict) else part.content).append("changed")
        return {**state, "doubled": []}

    def play(saver: Any) -> list[str]:
        graph = linear(saver, State, node=node)
        told = [repr(graph.invoke({"turn": n}, at(), durability="sync")) for n in range(made + 3)]
        return [*told, repr(graph.get_state(at()).values)]

    assert play(MemorySaver()) == play(InMemorySaver())
