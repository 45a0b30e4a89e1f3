"""The agent: a model node and a tools node over LangGraph's message state, nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from demo.stopwatch import Stopwatch

Agent: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]

INSTRUCTIONS = SystemMessage(
    "You answer questions about the files of one folder. Look with the tools before you"
    " answer, and answer in a few lines."
)
REMEMBERED = 5  # turns that the model is shown; the state keeps all of them
CONFIG: RunnableConfig = {"configurable": {"thread_id": "reader"}, "recursion_limit": 100}


def place(checkpoint: str) -> RunnableConfig:
    """The config of one checkpoint of the thread."""
    return {**CONFIG, "configurable": {**CONFIG["configurable"], "checkpoint_id": checkpoint}}


def recent(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The last few turns, from a user's message on."""
    starts = [n for n, message in enumerate(messages) if isinstance(message, HumanMessage)]
    return list(messages[starts[-REMEMBERED:][0] :])


def build(
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    saver: BaseCheckpointSaver[Any],
    stopwatch: Stopwatch,
) -> Agent:
    """Compile the agent; the stopwatch runs while the model is asked."""
    asked = model.bind_tools(tools)

    def ask(state: MessagesState) -> dict[str, Any]:
        with stopwatch:
            return {"messages": [asked.invoke([INSTRUCTIONS, *recent(state["messages"])])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("model", ask)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)
