"""Values that change while they are stored or afterwards, or that merely look equal."""

import copy
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from kit.graphs import linear
from kit.places import at
from kit.rows import place, put, value_at
from kit.runs import Plain
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState
from pydantic import BaseModel, ConfigDict, PrivateAttr

from threadkeep import register


def same(one: Any, other: Any) -> bool:
    """Equal, type for type and in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*map(list, one.items())] == [*map(list, other.items())] and all(
            same(a, b) for a, b in zip(one.values(), other.values(), strict=True)
        )
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


# -- values that change while they are stored, or afterwards -------------------------


@dataclass
class Box:
    items: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    items: list[Any] = field(default_factory=list)


class Foreign:
    """A class that its user registered with functions of their own."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]


register(Foreign, encode=lambda f: f.items, decode=Foreign)


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    items: list[Any] = []
    _hidden: list[Any] = PrivateAttr(default_factory=list)


def change_model(number: int) -> Callable[[Any], None]:
    return {
        0: lambda m: m.items.append(1),
        1: lambda m: m._hidden.append(2),
        2: lambda m: setattr(m, "extra", [len(m.items)]),
        3: lambda m: m.extra.append("in an extra field"),
        4: lambda m: setattr(m, "items", m.items),  # only the set of given fields changes
    }[number]


def steps(*changes: Callable[[Any], Any]) -> list[Callable[[Any], Any]]:
    return list(changes)


CHANGES: dict[str, tuple[Callable[[], Any], list[Callable[[Any], Any]]]] = {
    "list": (
        lambda: [0],
        steps(lambda v: v.append(1), lambda v: v.insert(0, 2), lambda v: v.pop()),
    ),
    "list of lists": (lambda: [[0], [1]], steps(lambda v: v[0].append(1), lambda v: v[1].clear())),
    "dict": (dict, steps(lambda v: v.update(a=1), lambda v: v.update(b=[2]), lambda v: v.pop("a"))),
    "list in dict": (lambda: {"a": [0]}, steps(lambda v: v["a"].append(1))),
    "set": (set, steps(lambda v: v.add(1), lambda v: v.add(2), lambda v: v.discard(1))),
    "set in list": (lambda: [{0}], steps(lambda v: v[0].add(1), lambda v: v.append({2}))),
    "deque": (deque, steps(lambda v: v.append(1), lambda v: v.appendleft(2))),
    "bytearray": (lambda: bytearray(b"x" * 9), steps(lambda v: v.extend(b"y"), lambda v: v.pop())),
    "array": (lambda: np.zeros(9), steps(lambda v: v.__setitem__(3, 1.5), lambda v: v.fill(7))),
    "array in a list": (lambda: [np.zeros(3)], steps(lambda v: v[0].fill(7))),
    "dataclass": (Box, steps(lambda v: v.items.append(1), lambda v: setattr(v, "items", []))),
    "dataclass in a list": (lambda: [Box()], steps(lambda v: v[0].items.append(1))),
    "slots": (Slotted, steps(lambda v: v.items.append(1), lambda v: setattr(v, "items", [3]))),
    "registered class": (lambda: Foreign([0]), steps(lambda v: v.items.append(1))),
    "registered class in a list": (lambda: [Foreign([])], steps(lambda v: v[0].items.append(1))),
    "model": (Model, steps(*map(change_model, range(5)))),
    "message": (
        lambda: [AIMessage(content="text", id="1")],
        steps(
            lambda v: setattr(v[0], "content", "other"),
            lambda v: v[0].additional_kwargs.update(k=[1]),
            lambda v: v[0].additional_kwargs["k"].append(2),
            lambda v: v[0].tool_calls.append({"name": "t", "args": {}, "id": "c"}),
            lambda v: v[0].response_metadata.update(finish="stop"),
            lambda v: setattr(v[0], "id", "given by a reducer"),
        ),
    ),
    "tuple of lists": (lambda: ([0], [1]), steps(lambda v: v[0].append(1))),
    "ordered dict": (
        lambda: OrderedDict(a=1, b=2),
        steps(lambda v: v.move_to_end("a"), lambda v: v.update(c=3)),
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_one_container_changed_between_puts_leaves_history_whole(saver: Any, kind: str) -> None:
    """Topics and reducers such as `operator.iadd` hand the same object to every put."""
    make, changes = CHANGES[kind]
    value = make()
    configs, wanted = [], []
    config = place()
    for version, change in enumerate([lambda _: None, *changes], 1):
        change(value)
        wanted.append(copy.deepcopy(value))
        config = put(saver, config, {"value": value}, value=version)
        saver.put_writes(config, [("value", value)], "task")
        configs.append(config)
    for config, want in zip(configs, wanted, strict=True):
        found = saver.get_tuple(config)
        assert same(found.checkpoint["channel_values"]["value"], want)
        assert same(found.pending_writes[0][2], want)


def test_a_value_changed_in_place_and_returned_again_is_noticed(saver: Any) -> None:
    def stamp(state: Any) -> Any:
        for message in state["messages"][:-1]:
            message.additional_kwargs["seen"] = message.additional_kwargs.get("seen", 0) + 1
        return {"messages": state["messages"]}

    graph = linear(saver, MessagesState, stamp=stamp)
    for turn in range(4):
        message = HumanMessage(content=f"turn {turn}", id=f"human-{turn}")
        graph.invoke({"messages": [message]}, at(), durability="sync")
    stamps = [m.additional_kwargs.get("seen", 0) for m in value_at(saver, place(), "messages")]
    assert stamps == [3, 2, 1, 0]


def test_a_change_in_place_that_is_not_returned_is_not_kept(saver: Any) -> None:
    """As on LangGraph's `InMemorySaver`; its `SqliteSaver` keeps it."""

    def meddle(state: Any) -> Any:
        for item in state["log"]:
            item["meddled"] = True
        return {}

    def play(checkpointer: Any) -> Any:
        graph = linear(checkpointer, Plain, meddle=meddle)
        graph.update_state(at(), {"log": [{"n": 0}]}, as_node="meddle")
        for turn in (1, 2):
            graph.invoke({"log": []}, at(), durability="sync")
            graph.update_state(at(), {"log": [{"n": turn}]}, as_node="meddle")
        graph.invoke(None, at(), durability="sync")
        return graph.get_state(at()).values

    wanted = {"log": [{"n": 0}, {"n": 1}, {"n": 2}]}
    assert play(InMemorySaver()) == wanted
    assert play(saver) == wanted
