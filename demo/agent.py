"""The agent: a model node and a tools node over LangGraph's message state, on either saver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Self, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import threadkeep

Agent: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]

OURS, THEIRS = "threadkeep", "langgraph"  # the two savers
THREAD = "reader"
CONFIG: RunnableConfig = {"configurable": {"thread_id": THREAD}, "recursion_limit": 100}
INSTRUCTIONS = SystemMessage(
    "You answer questions about the files of one folder. Look with the tools before you"
    " answer, and answer in a few lines."
)
REMEMBERED = 5  # turns that the model is shown; the state keeps all of them


class Stopwatch:
    """Counts the seconds in which at least one thread is inside its `with` block."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._since = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        with self._lock:
            if self._inside == 0:
                self._since = perf_counter()
            self._inside += 1
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self.seconds += perf_counter() - self._since


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
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    saver: BaseCheckpointSaver[Any],
    stopwatch: Stopwatch,
) -> Agent:
    """Compile the agent; the stopwatch runs while the model is asked."""
    with_tools = model.bind_tools(tools)

    def ask(state: MessagesState) -> dict[str, Any]:
        with stopwatch:
            return {"messages": [with_tools.invoke([INSTRUCTIONS, *recent(state["messages"])])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)
