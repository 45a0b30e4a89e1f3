"""Values that nodes change in place, with and without returning them."""

from typing import Any

from kit.graphs import linear
from kit.places import at
from kit.rows import place, value_at
from kit.runs import Plain
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState


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
