"""With `conflicts="fork"`, runs that do not descend from another run's head are reported."""

import logging
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest
from kit.backends import open_backend
from kit.graphs import linear
from kit.places import at
from kit.rows import checkpoint, metadata, place, put
from kit.runs import Gate, HeldBack, Plain, Run, story, told
from langgraph.graph import END, START, StateGraph

from threadkeep.errors import ConflictError

LOSES = "Concurrent runs forked thread 'thread'"


@pytest.fixture
def warnings(caplog: Any) -> Iterator[Any]:
    """The warnings of runs so far, as text. (Savers of other tests may warn of lost servers.)"""
    with caplog.at_level(logging.WARNING, logger="threadkeep"):
        yield lambda: [
            text for r in caplog.records if (text := r.getMessage()).startswith("Concurrent runs")
        ]


def invoke(graph: Any, who: str, config: Any = None, durability: str = "sync") -> Any:
    return graph.invoke({"log": [who]}, config or at(), durability=durability)["log"]


def head(saver: Any) -> str:
    return str(saver.get_tuple(place()).config["configurable"]["checkpoint_id"])


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("base", [[], ["base"]], ids=("fresh thread", "on a head"))
def test_a_run_that_is_overtaken_is_told_of_once(
    ours: Any, warnings: Any, base: list[str], durability: str
) -> None:
    for who in base:
        invoke(story(ours), who)
    gate = Gate()
    slow = Run(invoke, story(HeldBack(ours, gate)), "slow", None, durability)
    gate.wait_until_reached()
    invoke(story(ours), "fast", None, durability)
    left = head(ours)
    assert (ours.forked_runs, warnings()) == (0, [])
    gate.open()
    assert slow.finish() == told(*base, "slow")
    assert ours.forked_runs == 1
    (said,) = warnings()
    assert LOSES in said
    assert left in said
    assert 'conflicts="raise"' in said
    ids = [c.config["configurable"]["checkpoint_id"] for c in ours.list(at()) if c.metadata]
    assert sum(i in said for i in ids) == 2
    invoke(story(ours), "next")
    assert ours.forked_runs == ours.counters().conflicts == 1


def test_a_run_that_is_overtaken_in_the_middle_is_told_of_once(ours: Any, warnings: Any) -> None:
    gate = Gate()
    slow = Run(invoke, story(ours, gates={"slow-first": gate}), "slow")
    gate.wait_until_reached()
    invoke(story(ours), "fast")
    gate.open()
    slow.finish()
    assert ours.forked_runs == len(warnings()) == 1


def looping(saver: Any) -> Any:
    """A graph that runs its subgraph, of two nodes, again and again."""

    def again(state: Any) -> str:
        return "inner" if len(state["log"]) < 20 else END

    inner = StateGraph(Plain)
    inner.add_sequence([(name, lambda _: {"log": ["x"]}) for name in ("one", "two")])
    inner.add_edge(START, "one")
    outer = StateGraph(Plain)
    outer.add_node("inner", inner.compile())
    outer.add_node("after", lambda _: {"log": ["after"]})
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "after")
    outer.add_conditional_edges("after", again)
    return outer.compile(checkpointer=saver)


@pytest.mark.parametrize("runs", [2, 4])
def test_runs_with_subgraphs_are_told_of_once_each(ours: Any, warnings: Any, runs: int) -> None:
    graph = looping(ours)
    options = {"durability": "sync", "subgraphs": True, "stream_mode": "values"}
    streams = [graph.stream({"log": [f"run {i}"]}, at(), **options) for i in range(runs)]
    steps = list(zip_longest(*streams))  # a step of each, in turn
    assert len(steps) > 10
    assert ours.forked_runs == len(warnings()) == runs


def test_a_run_that_is_loaded_meanwhile_is_told_of_once(ours: Any, warnings: Any) -> None:
    gates = [Gate(), Gate()]
    slow = Run(
        invoke, story(HeldBack(ours, gates[0]), gates={"slow-second": gates[1]}), "slow", None
    )
    gates[0].wait_until_reached()
    invoke(story(ours), "fast")
    gates[0].open()
    gates[1].wait_until_reached()
    assert ours.forked_runs == 1
    invoke(story(ours), "next")
    gates[1].open()
    slow.finish()
    assert ours.forked_runs == len(warnings()) == 1


def test_an_update_that_is_overtaken_is_told_of(ours: Any, warnings: Any) -> None:
    invoke(story(ours), "base")
    gate = Gate()
    slow = story(HeldBack(ours, gate))
    late = Run(slow.update_state, at(), {"log": ["updated"]}, as_node="second")
    gate.wait_until_reached()
    invoke(story(ours), "fast")
    gate.open()
    late.finish()
    assert ours.forked_runs == len(warnings()) == 1


def test_a_run_that_is_refused_is_not_counted(tmp_path: Any, warnings: Any) -> None:
    with open_backend("sqlite", tmp_path, conflicts="raise") as saver:
        gate = Gate()
        slow = Run(invoke, story(HeldBack(saver, gate)), "slow")
        gate.wait_until_reached()
        invoke(story(saver), "fast")
        gate.open()
        assert isinstance(slow.finish(), ConflictError)
        assert (saver.forked_runs, warnings()) == (0, [])


def test_savers_with_another_allowlist_count_together(ours: Any) -> None:
    clone = ours.with_allowlist([("some", "Class")])
    loaded = [saver.get_tuple(place()) for saver in (ours, clone)]
    assert loaded == [None, None]
    put(ours, place(), log=1)
    first, second = ours.get_tuple(place()), clone.get_tuple(place())
    put(clone, second.config, log=2)
    put(ours, first.config, log=2)
    assert ours.forked_runs == clone.forked_runs == 1


# -- wanted branches -----------------------------------------------------------------


def test_whoever_chooses_a_checkpoint_branches_silently(ours: Any, warnings: Any) -> None:
    graph = story(ours)
    for who in ("base", "more"):
        invoke(graph, who)
    old = next(s.config for s in graph.get_state_history(at()) if s.next == ("second",))
    graph.invoke(None, old)
    invoke(graph, "instead", old)
    graph.update_state(old, {"log": ["changed"]})
    graph.update_state(old, None, as_node="__copy__")
    graph.update_state(at(), None, as_node="__copy__")
    invoke(graph, "after")
    assert (ours.forked_runs, warnings()) == (0, [])


def test_a_node_may_update_its_own_thread(ours: Any, warnings: Any) -> None:
    graphs: list[Any] = []

    def meddle(_: Any) -> Any:
        graphs[0].update_state(at(), {"log": ["by the node"]}, as_node="after")
        return {"log": ["seen"]}

    graphs.append(linear(ours, Plain, meddle=meddle, after=lambda _: {"log": ["after"]}))
    for _ in range(2):
        invoke(graphs[0], "in")
    assert (ours.forked_runs, warnings()) == (0, [])


def test_checkpoints_that_a_program_puts_by_itself_are_its_own_affair(
    ours: Any, warnings: Any
) -> None:
    base = put(ours, place(), {"log": ["base"]})
    for _ in range(2):
        put(ours, base, {"log": ["branch"]})
    branch = checkpoint({"log": ["at once"]})
    ours.put_many([(base, branch, metadata(), branch["channel_versions"])])
    assert (ours.forked_runs, warnings()) == (0, [])


def test_a_head_that_another_process_removed_is_left_behind_by_nobody(
    ours: Any, tmp_path: Any, warnings: Any
) -> None:
    invoke(story(ours), "base")
    story(ours).invoke({"log": ["gone"]}, at() | {"metadata": {"run_id": "gone"}})
    removed = head(ours)
    with open_backend("sqlite", tmp_path) as another:
        another.delete_for_runs(["gone"])
    assert head(ours) < removed
    put(ours, ours.get_tuple(place()).config, log=9)
    assert (ours.forked_runs, warnings()) == (0, [])
