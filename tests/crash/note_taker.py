"""A graph of two nodes that take notes."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph


class State(TypedDict):
    notes: Annotated[list[str], operator.add]


def graph_on(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("think", lambda state: {"notes": [f"thought {len(state['notes'])}"]})
    builder.add_node("act", lambda state: {"notes": ["acted"]})
    builder.add_edge(START, "think").add_edge("think", "act")
    return builder.compile(checkpointer=saver)


def turn(graph: Any, text: str) -> None:
    graph.invoke({"notes": [text]}, {"configurable": {"thread_id": "t"}})
