"""Graphs whose threads stop in every way, for any release of LangGraph since 0.2.10.

`make_langgraph.py` plays them on LangGraph's own saver; the tests continue them.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from langgraph.types import Command, Send, interrupt
except ImportError:  # before 0.2.57, a node raised its question
    from langgraph.constants import Send
    from langgraph.errors import NodeInterrupt

    Command = None

    def interrupt(question: Any) -> Any:
        raise NodeInterrupt(question)


class State(TypedDict):
    """The steps that a thread has made."""

    steps: Annotated[list[str], operator.add]


class Kind(NamedTuple):
    """A kind of thread: its graph, the inputs that made it, and an input that continues it."""

    graph: StateGraph
    inputs: list[Any]
    rest: Callable[[Any], Any] = lambda _: None
    options: dict[str, Any] = {}  # noqa: RUF012 - of a named tuple


def _graph(*edges: Any, **nodes: Any) -> StateGraph:
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for start, end in edges:
        builder.add_edge(start, end)
    return builder


def _step(text: str) -> Callable[[Any], Any]:
    return lambda _: {"steps": [text]}


def _ask(*questions: str) -> Callable[[Any], Any]:
    return lambda _: {"steps": [interrupt(question) for question in questions]}


def _answers(state: Any) -> Any:
    """Answer each waiting question by its id."""
    found = [one for task in state.tasks for one in task.interrupts]
    return Command(resume={one.id: "yes, " + one.value for one in found})


def _chat() -> StateGraph:
    def bot(state: Any) -> Any:
        text = "to " + state["messages"][-1].content
        return {"messages": [AIMessage(text, id=text)]}

    builder = StateGraph(MessagesState)
    builder.add_node("bot", bot)
    builder.add_edge(START, "bot")
    return builder


def _send() -> StateGraph:
    builder = _graph(plan=_step("plan"), work=lambda sent: {"steps": [sent["job"]]})
    builder.add_edge(START, "plan")
    jobs = [Send("work", {"job": "first"}), Send("work", {"job": "second"})]
    builder.add_conditional_edges("plan", lambda _: jobs, ["work"])
    return builder


class Flaky:
    """A node that fails until `mended`."""

    mended = False

    def __call__(self, _: Any) -> Any:
        if not self.mended:
            raise ValueError("no connection")
        return {"steps": ["mended"]}


FLAKY = Flaky()


def _inner() -> StateGraph:
    inner = _graph((START, "before"), ("before", "ask"), before=_step("inner"), ask=_ask("in?"))
    return _graph((START, "sub"), ("sub", END), sub=inner.compile())


_FIRST = {"steps": ["in"]}
_YES = lambda _: Command(resume="yes")  # noqa: E731 - in a table

KINDS = {
    "chat": Kind(
        _chat(),
        [{"messages": [HumanMessage(text, id=text)]} for text in ("hi", "more")],
        lambda _: {"messages": [HumanMessage("last", id="last")]},
    ),
    "send": Kind(_send(), [_FIRST], options={"interrupt_before": ["work"]}),
    "failed": Kind(
        _graph((START, "good"), (START, "bad"), good=_step("good"), bad=FLAKY), [_FIRST]
    ),
    "before": Kind(
        _graph((START, "a"), ("a", "b"), a=_step("a"), b=_step("b")),
        [_FIRST],
        options={"interrupt_before": ["b"]},
    ),
    "asks": Kind(_graph((START, "ask"), ask=_ask("ok?")), [_FIRST], _YES),
    "subgraph": Kind(_inner(), [_FIRST], _YES),
}
if Command is not None:
    KINDS["asks_again"] = Kind(
        _graph((START, "ask"), ask=_ask("first?", "second?")), [_FIRST, Command(resume="one")], _YES
    )
    KINDS["asks_twice"] = Kind(
        _graph((START, "one"), (START, "two"), one=_ask("1?"), two=_ask("2?")), [_FIRST], _answers
    )


def config(kind: str) -> dict[str, Any]:
    """Return the config of the thread of a kind."""
    return {"configurable": {"thread_id": kind}}


def compiled(kind: str, saver: Any) -> Any:
    """Return the graph of a kind on a saver."""
    graph, _, _, options = KINDS[kind]
    return graph.compile(checkpointer=saver, **options)


def play(saver: Any) -> None:
    """Make the thread of each kind."""
    for kind, (_, inputs, *_) in KINDS.items():
        graph = compiled(kind, saver)
        for given in inputs:
            with suppress(ValueError):
                graph.invoke(given, config(kind))
