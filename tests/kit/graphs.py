"""Graphs of the plainest form."""

from typing import Any

from langgraph.graph import START, StateGraph


def linear(saver: Any, schema: Any, **nodes: Any) -> Any:
    """A graph whose nodes run one after the other."""
    graph = StateGraph(schema).add_sequence([*nodes.items()])
    return graph.add_edge(START, next(iter(nodes))).compile(checkpointer=saver)
