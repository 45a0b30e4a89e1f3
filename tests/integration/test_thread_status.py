"""The status of a thread, compared with LangGraph's `get_state` at every checkpoint."""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from threadkeep import MemorySaver
from threadkeep.threads import ThreadStatus

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class FailsError(Exception):
    """An error of a node."""


def node(name):
    return lambda _: {"log": [name]}


def fails(_):
    raise FailsError("the model answered 502")


def asks(_):
    return {"log": [interrupt("May I?")]}


def chain(*nodes, **options):
    """A graph of nodes one after the other."""
    graph = StateGraph(State)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0][0])
    return lambda saver: graph.compile(checkpointer=saver, **options)


def diamond(**deferred):
    graph = StateGraph(State)
    for name in "abc":
        graph.add_node(name, node(name))
    graph.add_node("slow", node("slow"))
    graph.add_node("end", node("end"), **deferred)
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_edge("a", "c")
    graph.add_edge("c", "slow")
    if deferred:
        graph.add_edge("b", "end")
        graph.add_edge("slow", "end")
    else:
        graph.add_edge(["b", "slow"], "end")
    return lambda saver: graph.compile(checkpointer=saver)


def sends(worker):
    graph = StateGraph(State)
    graph.add_node("plan", lambda _: Command(goto=[Send("work", {}), Send("work", {})]))
    graph.add_node("work", worker)
    graph.add_edge(START, "plan")
    return lambda saver: graph.compile(checkpointer=saver)


def routed():
    graph = StateGraph(State)
    graph.add_node("a", lambda _: Command(goto="b", update={"log": ["a"]}))
    graph.add_node("b", node("b"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("b", lambda s: "b" if len(s["log"]) < 4 else END)
    return lambda saver: graph.compile(checkpointer=saver)


def functional(saver):
    @task
    def step(x):
        return f"{x}!"

    @entrypoint(checkpointer=saver)
    def flow(x, previous=None):
        return [*(previous or []), step(x["log"][0]).result()]

    return flow


def functional_asking(saver):
    @entrypoint(checkpointer=saver)
    def flow(_):
        return interrupt("May I?")

    return flow


GRAPHS = {
    "chain": (chain(("a", node("a")), ("b", node("b"))), "done"),
    "join": (diamond(), "done"),
    "deferred": (diamond(defer=True), "done"),
    "sends": (sends(node("work")), "done"),
    "routed": (routed(), "done"),
    "subgraph": (chain(("a", node("a")), ("sub", diamond()(None))), "done"),
    "functional": (functional, "done"),
    "functional that asks": (functional_asking, "waiting"),
    "asks": (chain(("a", node("a")), ("ask", asks)), "waiting"),
    "subgraph asks": (chain(("sub", chain(("ask", asks))(None))), "waiting"),
    "fails": (chain(("a", node("a")), ("bad", fails)), "failed"),
    "subgraph fails": (chain(("sub", chain(("bad", fails))(None))), "failed"),
    "a sent task fails": (sends(fails), "failed"),
    "stopped before": (
        chain(("a", node("a")), ("b", node("b")), interrupt_before=["b"]),
        "unfinished",
    ),
    "stopped after": (
        chain(("a", node("a")), ("b", node("b")), interrupt_after=["a"]),
        "unfinished",
    ),
}


def expected(state):
    """The status that LangGraph's view of a checkpoint shows."""
    if any(task.error for task in state.tasks):
        return "failed"
    if state.interrupts:
        return "waiting"
    return "unfinished" if state.next else "done"


def played(graph, config=CONFIG, **options):
    try:
        graph.invoke({"log": ["q"]}, config, **options)
    except FailsError:
        return


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_status_is_what_langgraph_shows(name, durability):
    build, last = GRAPHS[name]
    with MemorySaver() as saver:
        graph = build(saver)
        for turn in range(2):
            played(graph, durability=durability)
            state = graph.get_state(CONFIG)
            assert saver.threads.get("t").status == expected(state) == last, turn
        assert saver.check().ok
        for at, state in enumerate(graph.get_state_history(CONFIG)):
            saver.threads.fork("t", state.config["configurable"]["checkpoint_id"], f"fork {at}")
            fork = {"configurable": {"thread_id": f"fork {at}"}}
            assert saver.threads.get(f"fork {at}").status == expected(graph.get_state(fork)), at
        assert saver.check().ok


@pytest.mark.parametrize("name", ["fails", "subgraph fails", "a sent task fails"])
def test_the_failed_node_is_known(name):
    build, _ = GRAPHS[name]
    with MemorySaver() as saver:
        played(build(saver))
        found = saver.threads.get("t")
        failed = {"fails": "bad", "subgraph fails": "sub", "a sent task fails": "work"}[name]
        assert found.failed_node == failed
        newest = saver.get_tuple(CONFIG).config["configurable"]["checkpoint_id"]
        assert found.status_checkpoint == newest
        assert [one.id for one in saver.threads.search(failed_node=failed)] == ["t"]
        assert saver.threads.count(status=["waiting", "done"]) == 0


def test_a_failure_ends_with_the_next_checkpoint():
    broken = [True]

    def flaky(_):
        if broken:
            raise FailsError
        return {"log": ["fixed"]}

    with MemorySaver() as saver:
        graph = chain(("a", node("a")), ("flaky", flaky), ("b", node("b")))(saver)
        played(graph)
        assert saver.threads.get("t").status is ThreadStatus.FAILED
        broken.clear()
        graph.invoke(None, CONFIG)
        found = saver.threads.get("t")
        assert (found.status, found.failed_node, found.status_checkpoint) == ("done", None, None)


def test_an_error_that_a_node_handles_is_no_failure():
    graph = StateGraph(State)
    graph.add_node("bad", fails, error_handler=lambda _: {"log": ["handled"]})
    graph.add_edge(START, "bad")
    with MemorySaver() as saver:
        compiled = graph.compile(checkpointer=saver)
        compiled.invoke({"log": ["q"]}, CONFIG)
        assert saver.threads.get("t").status == "done"
        assert saver.check().ok


def test_an_input_without_a_run_is_unfinished():
    with MemorySaver() as saver:
        graph = chain(("a", node("a")))(saver)
        graph.update_state(CONFIG, {"log": ["q"]}, as_node="__input__")
        assert graph.get_state(CONFIG).next
        assert saver.threads.get("t").status == "unfinished"
        graph.update_state(CONFIG, {"log": ["x"]}, as_node="a")
        assert saver.threads.get("t").status == expected(graph.get_state(CONFIG))


def test_a_replay_of_an_older_checkpoint_changes_nothing_until_it_saves():
    with MemorySaver() as saver:
        graph = chain(("a", node("a")), ("ask", asks), ("b", node("b")))(saver)
        played(graph)
        graph.invoke(Command(resume="yes"), CONFIG)
        assert saver.threads.get("t").status == "done"
        old = [one.config for one in graph.get_state_history(CONFIG) if one.next == ("ask",)]
        graph.invoke(None, old[-1])
        assert saver.threads.get("t").status == expected(graph.get_state(CONFIG)) == "waiting"
        assert saver.check().ok
