"""The agent: a model node and a tools node over LangGraph's message state, on either saver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import threadkeep
from demo.model import Model
from demo.tools import Stopwatch

Agent: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]

OURS, THEIRS = "threadkeep", "langgraph"  # the two savers
THREAD = "reader"
CONFIG: RunnableConfig = {"configurable": {"thread_id": THREAD}, "recursion_limit": 100}
INSTRUCTIONS = SystemMessage(
    "You answer questions about the files of one folder. Look with the tools before you"
    " answer, and answer in a few lines."
)
REMEMBERED = 5  # turns that the model is shown; the state keeps all of them


@contextmanager
def open_saver(name: str, file: Path) -> Iterator[BaseCheckpointSaver[Any]]:
    """Open one of the two savers on a file, with its default settings."""
    if name == OURS:
        with threadkeep.SqliteSaver(file) as saver:
            yield saver
    else:
        with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
            yield LangGraphSqliteSaver(connection)


def at_checkpoint(checkpoint: str) -> RunnableConfig:
    """Return the config of one checkpoint of the thread."""
    return {**CONFIG, "configurable": {**CONFIG["configurable"], "checkpoint_id": checkpoint}}


def recent(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the last few turns, from a user's message on."""
    starts = [n for n, message in enumerate(messages) if isinstance(message, HumanMessage)]
    return list(messages[starts[-REMEMBERED:][0] :])


def build(
    model: Model,
    tools: Sequence[BaseTool],
    saver: BaseCheckpointSaver[Any],
    stopwatch: Stopwatch,
) -> Agent:
    """Compile the agent; the stopwatch runs while the model is asked."""

    def ask(state: MessagesState) -> dict[str, Any]:
        with stopwatch:
            return {"messages": [model([INSTRUCTIONS, *recent(state["messages"])])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)
