"""Forks merged into their origin, channel by channel, on every store."""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from kit.graphs import linear
from kit.places import at
from kit.runs import extend
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from threadkeep.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    MergeConflictError,
    ThreadNotFoundError,
)


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    total: Annotated[int, operator.add]
    note: str
    other: str


def _work(state: State) -> dict[str, Any]:
    said = state["messages"][-1].content
    found: dict[str, Any] = {"messages": [AIMessage(f"re: {said}")], "total": 1}
    if said.startswith(("note ", "other ")):
        key, value = said.split(" ", 1)
        found[key] = value
    return found


def _graph(saver: Any) -> Any:
    return linear(saver, State, work=_work)


def _say(graph: Any, thread: str, *texts: str) -> None:
    for text in texts:
        graph.invoke({"messages": [HumanMessage(text)]}, at(thread))


def _values(graph: Any, thread: str) -> dict[str, Any]:
    values = dict(graph.get_state(at(thread)).values)
    values["messages"] = [m.content for m in values["messages"]]
    return values


@pytest.fixture
def graph(saver: Any) -> Any:
    graph = _graph(saver)
    _say(graph, "one", "note first", "hello")
    return graph


def test_what_only_the_fork_changed_is_taken(saver: Any, graph: Any) -> None:
    saver.threads.fork("one", new_thread_id="fork")
    _say(graph, "fork", "other theirs", "more")
    before = graph.get_state(at("fork"))
    merge = saver.threads.merge_fork("fork", "one")
    assert set(merge.channels) == {"messages", "total", "other"}
    assert merge.conflicts == ()
    assert _values(graph, "one") == _values(graph, "fork")
    head = graph.get_state(at("one"))
    assert head.config["configurable"]["checkpoint_id"] == merge.checkpoint
    assert head.next == ()
    assert head.metadata["source"] == "update"
    assert head.metadata["merged_from"] == "fork"
    assert graph.get_state(at("fork")) == before
    assert saver.check().ok
    _say(graph, "one", "and on")
    assert _values(graph, "one")["total"] == 5


def test_what_both_changed_is_refused_or_resolved(saver: Any, graph: Any) -> None:
    saver.threads.fork("one", new_thread_id="fork")
    _say(graph, "fork", "note theirs")
    _say(graph, "one", "note ours", "other ours")
    head = graph.get_state(at("one"))
    with pytest.raises(MergeConflictError, match="messages, total") as refused:
        saver.threads.merge_fork("fork", "one")
    assert "strategy" in refused.value.hint
    looked = saver.threads.merge_fork("fork", "one", dry_run=True)
    assert {c.channel for c in looked.conflicts} == {"messages", "total", "note"}
    assert looked.checkpoint is None
    assert graph.get_state(at("one")) == head
    merge = saver.threads.merge_fork("fork", "one", "theirs")
    assert {c.resolution for c in merge.conflicts} == {"theirs"}
    merged = _values(graph, "one")
    assert merged["note"] == "theirs"
    assert merged["other"] == "ours"
    assert merged["messages"] == _values(graph, "fork")["messages"]


def test_the_graphs_reducers_take_what_the_fork_wrote(saver: Any, graph: Any) -> None:
    saver.threads.fork("one", new_thread_id="fork")
    _say(graph, "fork", "note theirs", "third")
    _say(graph, "one", "note ours", "fourth")
    merge = saver.threads.merge_fork("fork", "one", graph)
    assert {c.resolution for c in merge.conflicts} == {"reducer"}
    assert _values(graph, "one") == {
        "messages": [
            *("note first", "re: note first", "hello", "re: hello"),
            *("note ours", "re: note ours", "fourth", "re: fourth"),
            *("note theirs", "re: note theirs", "third", "re: third"),
        ],
        "total": 6,
        "note": "theirs",
    }
    assert saver.check().ok


def test_a_function_decides(saver: Any, graph: Any) -> None:
    saver.threads.fork("one", new_thread_id="fork")
    _say(graph, "fork", "note theirs")
    _say(graph, "one", "note ours")
    asked = []

    def choose(channel: str, base: Any, ours: Any, theirs: Any) -> Any:
        asked.append((channel, base if isinstance(base, str | int) else len(base)))
        return f"{ours} and {theirs}" if channel == "note" else ours

    saver.threads.merge_fork("fork", "one", choose)
    assert sorted(asked) == [("messages", 4), ("note", "first")]  # (the totals are the same)
    merged = _values(graph, "one")
    assert (merged["note"], merged["total"]) == ("ours and theirs", 3)
    assert merged["messages"][-2:] == ["note ours", "re: note ours"]


def test_what_was_to_run_next_still_is(saver: Any) -> None:
    graph = linear(saver, State, work=_work, ask=lambda _: {"note": interrupt("which?")})
    _say(graph, "one", "hello")
    saver.threads.fork("one", new_thread_id="fork")
    graph.update_state(at("fork"), {"other": "theirs"}, as_node="work")
    saver.threads.merge_fork("fork", "one")
    state = graph.get_state(at("one"))
    assert state.next == ("ask",)
    assert state.values["other"] == "theirs"
    assert len(state.values["messages"]) == 2
    graph.invoke(None, at("one"))
    done = graph.invoke(Command(resume="this"), at("one"))
    assert (done["note"], done["other"]) == ("this", "theirs")
    assert graph.get_state(at("one")).next == ()


def test_merges_of_what_is_no_fork(saver: Any, graph: Any) -> None:
    threads = saver.threads
    with pytest.raises(ThreadNotFoundError):
        threads.merge_fork("nobody", "one")
    with pytest.raises(InvalidArgumentError, match="not a fork"):
        threads.merge_fork("one", "one")
    threads.fork("one", new_thread_id="fork")
    with pytest.raises(InvalidArgumentError, match="strategy"):
        threads.merge_fork("fork", "one", "mine")
    _say(graph, "two", "hello")
    with pytest.raises(CheckpointNotFoundError, match="forked checkpoint"):
        threads.merge_fork("fork", "two")
    assert threads.merge_fork("fork", "one").checkpoint is None
    _say(graph, "one", "more")
    saver.prune(["one"])
    with pytest.raises(CheckpointNotFoundError, match="forked checkpoint"):
        threads.merge_fork("fork", "one")


def test_delta_channels_are_refused(saver: Any) -> None:
    class Deltas(TypedDict):
        said: Annotated[list[str], DeltaChannel(extend)]

    builder = StateGraph(Deltas).add_node("work", lambda _: {"said": ["re"]})
    graph = builder.add_edge(START, "work").compile(checkpointer=saver)
    graph.invoke({"said": ["hello"]}, at("one"))
    saver.threads.fork("one", new_thread_id="fork")
    graph.invoke({"said": ["more"]}, at("fork"))
    with pytest.raises(InvalidArgumentError, match="said is a DeltaChannel"):
        saver.threads.merge_fork("fork", "one", "theirs")
