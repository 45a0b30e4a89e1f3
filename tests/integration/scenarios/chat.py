"""Conversations: `add_messages` in all its uses, and an agent with tools."""

from typing import Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode, tools_condition

from .table import scenario


def one_node(node: Any, schema: Any = MessagesState) -> StateGraph[Any]:
    """START -> node -> END."""
    builder = StateGraph(schema)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder


def human(number: int, text: str = "") -> HumanMessage:
    return HumanMessage(content=text or f"question {number}", id=f"human-{number}")


def answer(state: Any) -> dict[str, list[AnyMessage]]:
    count = len(state["messages"])
    return {"messages": [AIMessage(content=f"answer {count}", id=f"ai-{count}")]}


@scenario
async def chat_of_three_turns(run: Any) -> None:
    run.compile(one_node(answer))
    for turn in range(3):
        await run.invoke({"messages": [human(turn)]})


@scenario
async def chat_with_stream(run: Any) -> None:
    run.compile(one_node(answer))
    for turn in range(2):
        await run.stream({"messages": [human(turn)]}, stream_mode=["values", "updates"])


@scenario(raced_ids=True)
async def chat_with_messages_without_ids(run: Any) -> None:
    run.compile(one_node(lambda s: {"messages": [AIMessage(content=f"n{len(s['messages'])}")]}))
    for turn in range(3):
        await run.invoke({"messages": [HumanMessage(content=f"q{turn}")]})


@scenario(raced_ids=True)
async def chat_with_dicts_and_pairs_for_messages(run: Any) -> None:
    run.compile(one_node(lambda s: {"messages": [("ai", f"n{len(s['messages'])}")]}))
    await run.invoke({"messages": [{"role": "user", "content": "a dict", "id": "d"}]})
    await run.invoke({"messages": ("user", "a pair")})
    await run.invoke({"messages": "a string"})


@scenario
async def chat_that_removes_messages(run: Any) -> None:
    def trim(state: Any) -> dict[str, Any]:
        gone = [RemoveMessage(id=m.id) for m in state["messages"][:-2]]
        return {"messages": [*gone, *answer(state)["messages"]]}

    run.compile(one_node(trim))
    for turn in range(4):
        await run.invoke({"messages": [human(turn)]})
    await run.update({"messages": [RemoveMessage(id="human-3")]})
    await run.invoke({"messages": [human(9)]})


@scenario
async def chat_that_removes_all_messages(run: Any) -> None:
    def summarise(state: Any) -> dict[str, Any]:
        if len(state["messages"]) < 4:
            return answer(state)
        keep = [SystemMessage(content="summary", id=f"sum-{len(state['messages'])}")]
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *keep]}

    run.compile(one_node(summarise))
    for turn in range(5):
        await run.invoke({"messages": [human(turn)]})


@scenario
async def chat_that_replaces_a_message_by_id(run: Any) -> None:
    def revise(state: Any) -> dict[str, Any]:
        first = state["messages"][0]
        count = len(state["messages"])
        return {"messages": [human(0, f"{first.content}+{count}"), *answer(state)["messages"]]}

    run.compile(one_node(revise))
    for turn in range(4):
        await run.invoke({"messages": [human(turn)]})


# The newest message is left alone, since its write may be under way; so may be the
# checkpoint before, unless each is waited for.
@scenario(durabilities=("sync", "exit"))
async def chat_that_changes_messages_in_place_and_returns_them(run: Any) -> None:
    def stamp(state: Any) -> dict[str, Any]:
        for message in state["messages"][:-1]:
            message.additional_kwargs["seen"] = message.additional_kwargs.get("seen", 0) + 1
        return {"messages": state["messages"]}

    run.compile(one_node(stamp))
    for turn in range(3):
        await run.invoke({"messages": [human(turn)]})


@tool
def lookup(word: str) -> str:
    """Look a word up."""
    return f"meaning of {word}"


@tool
def count(word: str) -> int:
    """Count letters."""
    return len(word)


TOOLS = [lookup, count]


def think(state: Any) -> dict[str, Any]:
    """A scripted model: two tool calls after a question, then an answer."""
    number = len(state["messages"])
    if isinstance(state["messages"][-1], ToolMessage):
        return {"messages": [AIMessage(content="done", id=f"ai-{number}")]}
    word = state["messages"][-1].content
    calls = [
        {"name": t.name, "args": {"word": word}, "id": f"call-{number}-{t.name}"} for t in TOOLS
    ]
    return {"messages": [AIMessage(content="", tool_calls=calls, id=f"ai-{number}")]}


def agent() -> StateGraph[Any]:
    builder = StateGraph(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode(TOOLS))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


@scenario(raced_ids=True)
async def agent_with_two_tools(run: Any) -> None:
    run.compile(agent())
    for turn, word in enumerate(("span", "segment")):
        await run.invoke({"messages": [human(turn, word)]})


@scenario(raced_ids=True)
async def agent_that_waits_before_its_tools(run: Any) -> None:
    run.compile(agent(), interrupt_before=["tools"])
    await run.invoke({"messages": [human(0, "log")]})
    await run.state()
    await run.invoke(None)
    await run.invoke({"messages": [human(1, "fence")]})
    await run.invoke({"messages": [human(2, "never mind")]})
    await run.invoke(None)
