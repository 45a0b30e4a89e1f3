"""Conversations for tests of layered memory, and what must hold of their views."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from threadkeep.memory import add_messages
from threadkeep.memory.window import is_marker


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: int


def talk(messages: int, start: int = 0) -> list[BaseMessage]:
    """Return a conversation of questions and answers, with ids and texts by position."""
    kinds = HumanMessage, AIMessage
    return [
        kinds[number % 2](f"message {number}", id=f"m{number}")
        for number in range(start, start + messages)
    ]


def call(name: str, *calls: str, text: str = "") -> AIMessage:
    """Return a message that calls tools."""
    found = [{"name": "tool", "args": {"on": one}, "id": one} for one in calls]
    return AIMessage(text, tool_calls=found, id=name)


def result(call_id: str, text: str = "found", name: str | None = None) -> ToolMessage:
    """Return a tool's result."""
    return ToolMessage(text, tool_call_id=call_id, id=name or f"result {call_id}")


class Speaker:
    """Draws turns of a conversation: what a user says, and what a model and its tools answer."""

    def __init__(self, seed: object) -> None:
        self.chance = random.Random(f"{seed}")
        self._numbers = count()

    def question(self) -> HumanMessage:
        number = next(self._numbers)
        return HumanMessage(f"question {number}", id=f"h{number}")

    def replies(self) -> list[BaseMessage]:
        """Return some rounds of tool calls, with parallel ones, and an answer."""
        found: list[BaseMessage] = []
        for _ in range(self.chance.choice((0, 0, 1, 1, 2, 5))):
            number = next(self._numbers)
            calls = [f"c{number}-{at}" for at in range(self.chance.choice((1, 1, 2, 7)))]
            found.append(call(f"a{number}", *calls))
            found += [result(one) for one in self.chance.sample(calls, len(calls))]
        number = next(self._numbers)
        return [*found, AIMessage(f"answer {number}", id=f"a{number}")]


class Chat:
    """A graph whose model replies with given messages, and records its input."""

    def __init__(self, saver: Any, state: Any = State, **options: Any) -> None:
        self.tape: deque[list[Any]] = deque()
        self.shown: list[list[BaseMessage]] = []
        builder = StateGraph(state)
        builder.add_node("model", self._model)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", lambda _: "model" if self.tape else END)
        self.graph = builder.compile(checkpointer=saver, **options)

    def _model(self, state: Any) -> Any:
        self.shown.append([*state["messages"]])
        return {"messages": self.tape.popleft()} if self.tape else {"notes": 1}

    def say(self, thread: Any, messages: Sequence[Any], *, each: bool = False) -> list[Any]:
        """Run a turn: the first message is the input, the model says the others; return the view.

        Args:
            thread: its id, or a config.
            messages: the texts.
            each: the model says one message in each of its calls.
        """
        first, *others = messages
        self.tape.extend([one] for one in others) if each else self.tape.append(others)
        config = {"configurable": {"thread_id": thread}} if isinstance(thread, str) else thread
        return self.graph.invoke({"messages": [first]}, config)["messages"]

    def talk(self, thread: str, messages: Iterable[Any]) -> None:
        """Run a turn for each pair of messages."""
        found = list(messages)
        for start in range(0, len(found), 2):
            self.say(thread, found[start : start + 2])


def texts(messages: Iterable[BaseMessage]) -> list[tuple[str, str | None, Any]]:
    """Return the kind, id and content of messages."""
    return [(one.type, one.id, one.content) for one in messages]


def originals(view: Iterable[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a view without those of memory."""
    return [one for one in view if not is_marker(one)]


def orphans(view: Sequence[BaseMessage], full: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the tool calls and results of a view whose counterpart, of the whole, it lacks."""
    seen = {id_of(one) for one in view}
    return [
        one
        for pair in pairs(full)
        if len({id_of(each) in seen for each in pair}) == 2
        for one in pair
        if id_of(one) in seen
    ]


def pairs(messages: Sequence[BaseMessage]) -> list[tuple[BaseMessage, BaseMessage]]:
    """Return each tool result with the newest message before it that calls it."""
    callers: dict[str, BaseMessage] = {}
    found = []
    for one in messages:
        if isinstance(one, AIMessage):
            for each in (*one.tool_calls, *one.invalid_tool_calls):
                callers[each["id"] or ""] = one
        elif isinstance(one, ToolMessage) and one.tool_call_id in callers:
            found.append((callers[one.tool_call_id], one))
    return found


def id_of(message: BaseMessage) -> object:
    return message.id or id(message)
