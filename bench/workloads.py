"""Workloads: graphs and their inputs, turn by turn, the same for every saver.

Each workload is a fresh object in each process: it builds its graph over a saver and
says what the next turn's thread and input are. The nodes do no work of their own, so
that the time of a turn is LangGraph's and the saver's.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import (
    _messages_delta_reducer,  # what LangGraph offers for messages in a DeltaChannel
    add_messages,
)
from langgraph.graph.state import CompiledStateGraph

from bench.conversations import Conversation, Message, Turn, joined, load, made_up, words
from bench.messages import from_assistant, from_tool
from bench.sizes import Sizes

Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]
Builder: TypeAlias = StateGraph[Any, Any, Any, Any]


@dataclass(frozen=True)
class Call:
    """One turn: the input of one `invoke` on one thread."""

    thread: str
    input: dict[str, Any]
    messages: int = 0  # the length of the thread's message list afterwards


class Workload(Protocol):
    """A graph and its turns."""

    title: str
    delta: bool  # whether it has a channel that a DeltaChannel can replace

    def graph(self, saver: BaseCheckpointSaver[Any], *, delta: bool) -> Graph:
        """Compile the graph over the saver, its growing channels as DeltaChannels or not."""

    def turns(self) -> Iterator[Call]:
        """The calls, in order; each is run before the next one is asked for."""

    def __len__(self) -> int: ...


def merge(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    return {**old, **new}


def merge_all(old: dict[str, str], writes: Sequence[dict[str, str]]) -> dict[str, str]:
    for write in writes:
        old = {**old, **write}
    return old


# -- conversations, replayed ---------------------------------------------------------


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    tool_results: Annotated[dict[str, str], merge]
    steps: Annotated[int, add]
    policy: str


class DeltaTalk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]
    tool_results: Annotated[dict[str, str], DeltaChannel(merge_all)]
    steps: Annotated[int, add]
    policy: str


def awaited(node: Callable[[Talk], Talk]) -> Any:
    """The node as a coroutine."""

    async def run(state: Talk) -> Talk:
        return node(state)

    return run


@dataclass
class Replay:
    """Recorded conversations: an agent node and a tools node emit the recorded messages.

    Each conversation is a thread. The nodes alternate as the record does, so that the
    supersteps, checkpoints and pending writes are those of a real tool-calling agent.
    """

    title: str
    conversations: Sequence[Conversation]
    limit: int | None = None
    delta: bool = True
    awaits: bool = False  # nodes are coroutines, for async runs
    tape: deque[Message] = field(default_factory=deque)
    supersteps: int = 0

    def __len__(self) -> int:
        turns = sum(len(c.turns) for c in self.conversations)
        return turns if self.limit is None else min(turns, self.limit)

    def graph(self, saver: BaseCheckpointSaver[Any], *, delta: bool) -> Graph:
        schema = DeltaTalk if delta else Talk
        builder: Builder = StateGraph(schema)
        for name, node in (("agent", self.agent), ("tools", self.tools)):
            builder.add_node(name, awaited(node) if self.awaits else node, input_schema=schema)
        builder.add_edge(START, "agent")
        builder.add_conditional_edges("agent", self.upcoming, ["agent", "tools", END])
        builder.add_edge("tools", "agent")
        return builder.compile(checkpointer=saver)

    def upcoming(self, state: Any) -> str:  # noqa: ARG002 - the tape decides
        if not self.tape:
            return END
        return "agent" if self.tape[0]["role"] == "assistant" else "tools"

    def agent(self, state: Talk) -> Talk:  # noqa: ARG002 - the tape decides
        self.supersteps += 1
        if not self.tape:  # the record ends with the user, or with a tool
            return {"steps": 1}
        return {"messages": [from_assistant(self.tape.popleft())], "steps": 1}

    def tools(self, state: Talk) -> Talk:  # noqa: ARG002 - the tape decides
        self.supersteps += 1
        results = []
        while self.tape and self.tape[0]["role"] == "tool":
            results.append(from_tool(self.tape.popleft()))
        return {
            "messages": list(results),
            "tool_results": {r.tool_call_id: str(r.content) for r in results},
        }

    def turns(self) -> Iterator[Call]:
        left = len(self)
        for conversation in self.conversations:
            messages = 0
            for number, turn in enumerate(conversation.turns[:left]):
                messages += 1 + len(turn.replies)
                yield self.call(conversation, number, turn, messages)
            left -= len(conversation.turns)
            if left <= 0:
                return

    def call(self, conversation: Conversation, number: int, turn: Turn, messages: int) -> Call:
        self.tape.extend(turn.replies)
        self.supersteps += 1  # the one that takes the input
        given: dict[str, Any] = {"messages": [HumanMessage(turn.user["content"] or "")]}
        if number == 0:
            given["policy"] = conversation.system
        return Call(conversation.name, given, messages)


# -- a synthetic chat ----------------------------------------------------------------


class ChatState(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class DeltaChatState(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def answer(state: ChatState) -> ChatState:
    """An answer of about 300 characters, the same for the same question."""
    question = str(state["messages"][-1].content)
    return {"messages": [AIMessage(words(random.Random(question), 45))]}


def chat_graph(saver: BaseCheckpointSaver[Any], *, delta: bool = False) -> Graph:
    """One node that answers: two messages and three checkpoints a turn."""
    schema = DeltaChatState if delta else ChatState
    builder: Builder = StateGraph(schema)
    builder.add_node("answer", answer, input_schema=schema)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


@dataclass
class Chat:
    """A chat of one thread: two messages and three checkpoints a turn."""

    title: str
    count: int
    delta: bool = True

    def __len__(self) -> int:
        return self.count

    def graph(self, saver: BaseCheckpointSaver[Any], *, delta: bool) -> Graph:
        return chat_graph(saver, delta=delta)

    def turns(self) -> Iterator[Call]:
        chance = random.Random(11)
        for number in range(self.count):
            question = HumanMessage(words(chance, 20))
            yield Call("chat", {"messages": [question]}, 2 * number + 2)


# -- large values --------------------------------------------------------------------


class Draft(TypedDict, total=False):
    document: str
    line: int


@dataclass
class Document:
    """One long text; each turn changes one line."""

    title: str
    size: int
    count: int
    delta: bool = False  # a text is no list of changes: nothing for a DeltaChannel

    def __len__(self) -> int:
        return self.count

    def graph(self, saver: BaseCheckpointSaver[Any], *, delta: bool) -> Graph:
        if delta:
            raise ValueError("a document cannot be a DeltaChannel")
        builder: Builder = StateGraph(Draft)
        builder.add_node("edit", self.edit)
        builder.add_edge(START, "edit")
        builder.add_edge("edit", END)
        return builder.compile(checkpointer=saver)

    def edit(self, state: Draft) -> Draft:
        lines = state["document"].split("\n")
        at = state["line"] % len(lines)
        lines[at] = words(random.Random(f"{state['line']} {lines[at]}"), 9)
        return {"document": "\n".join(lines)}

    def turns(self) -> Iterator[Call]:
        chance = random.Random(13)
        document = "\n".join(words(chance, 9) for _ in range(max(1, self.size // 56)))
        for number in range(self.count):
            start = {"document": document} if number == 0 else {}
            yield Call("document", {**start, "line": chance.randrange(1_000_000)})


class Folder(TypedDict, total=False):
    files: Annotated[dict[str, str], merge]
    change: str


class DeltaFolder(TypedDict, total=False):
    files: Annotated[dict[str, str], DeltaChannel(merge_all)]
    change: str


@dataclass
class Files:
    """A dict of many files; each turn changes one."""

    title: str
    files: int
    size: int
    count: int
    delta: bool = True

    def __len__(self) -> int:
        return self.count

    def graph(self, saver: BaseCheckpointSaver[Any], *, delta: bool) -> Graph:
        schema = DeltaFolder if delta else Folder
        builder: Builder = StateGraph(schema)
        builder.add_node("change", self.change, input_schema=schema)
        builder.add_edge(START, "change")
        builder.add_edge("change", END)
        return builder.compile(checkpointer=saver)

    def text(self, seed: str) -> str:
        return words(random.Random(seed), self.size // 6)

    def change(self, state: Folder) -> Folder:
        name = state["change"]
        return {"files": {name: self.text(state["files"][name][:40] + name)}}

    def turns(self) -> Iterator[Call]:
        names = [f"src/module_{n:04}.py" for n in range(self.files)]
        chance = random.Random(17)
        for number in range(self.count):
            start = {"files": {name: self.text(name) for name in names}} if number == 0 else {}
            yield Call("files", {**start, "change": chance.choice(names)})


# -- by name -------------------------------------------------------------------------


def build(name: str, sizes: Sizes, data: Path | None) -> Workload:
    """The workload `name`: chat, conversations, endless, document or files."""
    if name == "chat":
        return Chat("S: a synthetic chat", sizes.chat_turns)
    if name == "document":
        return Document(
            "a document edited line by line", sizes.document_bytes, sizes.document_turns
        )
    if name == "files":
        return Files("a dict of files", sizes.files, sizes.file_bytes, sizes.file_turns)
    found = load(data) if data else made_up(sizes.conversations or 100)
    found = found[: sizes.conversations]
    source = "recorded" if data else "made-up"
    if name == "conversations":
        return Replay(f"{len(found)} {source} conversations, one a thread", found)
    return Replay(
        f"R: {source} conversations joined into one thread", [joined(found)], sizes.endless_turns
    )
