"""Runs that meet on one thread: forks that keep apart, or one that is refused.

Two savers on one file stand for two processes.
"""

import operator
import random
from typing import Annotated, Any

import pytest
from kit.graphs import linear
from kit.places import at
from kit.rows import place, put
from kit.runs import SCHEMAS, Gate, HeldBack, Plain, Run, leaves, story, told
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from threadkeep.errors import ConflictError

DURABILITIES = ("sync", "async", "exit")
STEPS = ("put", "first", "second")


@pytest.fixture(params=("one saver", "two savers"))
def pair(request: pytest.FixtureRequest, another: Any) -> Any:
    """The savers of two runs: the same one, or one for each on the same file."""

    def open_pair(**options: Any) -> Any:
        first = another(**options)
        return first, (first if request.param == "one saver" else another(**options))

    return open_pair


def invoke(graph: Any, who: str, durability: str = "sync", config: Any = None) -> Any:
    return graph.invoke({"log": [who]}, config or at(), durability=durability)["log"]


def held_at(saver: Any, schema: Any, step: str, durability: str) -> tuple[Any, Gate, Run]:
    """The run "slow", which waits before its first put or inside its second node."""
    gate = Gate()
    if step == "put":
        slow = story(HeldBack(saver, gate), schema)
    else:
        slow = story(saver, schema, {f"slow-{step}": gate})
    run = Run(invoke, slow, "slow", durability)
    gate.wait_until_reached()
    return story(saver, schema), gate, run


def log_of(graph: Any) -> Any:
    return graph.get_state(at()).values.get("log")


# -- conflicts="fork": both succeed, and neither has any part of the other -----------


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_overlapping_runs_fork_and_each_keeps_its_own_writes(
    pair: Any, schema: str, step: str, durability: str
) -> None:
    slow, fast = pair()
    invoke(story(slow, SCHEMAS[schema]), "base")
    graph, gate, run = held_at(slow, SCHEMAS[schema], step, durability)
    results = [invoke(story(fast, SCHEMAS[schema]), "fast", durability)]
    gate.open()
    results.append(run.finish())
    assert results[1] == told("base", "slow")
    if step == "put" or durability == "exit":
        assert results[0] == told("base", "fast")
    assert sorted(leaf.values["log"] for leaf in leaves(graph)) == sorted(results)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_update_meanwhile_stays_out_of_the_runs_state(pair: Any, schema: str) -> None:
    slow, fast = pair()
    invoke(story(slow, SCHEMAS[schema]), "base")
    graph, gate, run = held_at(slow, SCHEMAS[schema], "put", "sync")
    story(fast, SCHEMAS[schema]).update_state(at(), {"log": ["updated"]}, as_node="second")
    gate.open()
    assert run.finish() == told("base", "slow")
    assert log_of(graph) == told("base", "slow")


def test_writes_of_two_runs_with_equal_task_ids_keep_apart(pair: Any) -> None:
    slow, fast = pair()
    base = put(slow, place(), log=1)
    heads = {}
    loads = {"slow": slow.get_tuple(place()), "fast": fast.get_tuple(place())}
    for who, saver in (("fast", fast), ("slow", slow)):
        saver.put_writes(loads[who].config, [("log", who), ("other", who)], "same task")
    for who, saver in (("slow", slow), ("fast", fast)):
        heads[who] = put(saver, loads[who].config, log=2)
    for who, saver in (("slow", fast), ("fast", slow)):
        found = saver.get_delta_channel_history(config=heads[who], channels=["log", "other"])
        assert [w[2] for c in ("log", "other") for w in found[c]["writes"]] == [who, who]
    assert (
        base["configurable"]["checkpoint_id"]
        == loads["slow"].config["configurable"]["checkpoint_id"]
    )


def test_before_any_child_is_there_the_first_run_of_a_task_counts(pair: Any) -> None:
    one, two = pair()
    put(one, place(), log=1)
    first, second = one.get_tuple(place()), two.get_tuple(place())
    one.put_writes(first.config, [("log", "first")], "same task")
    two.put_writes(second.config, [("log", "second"), ("more", "second")], "same task")
    two.put_writes(second.config, [("log", "of its own")], "task of its own")
    assert one.get_tuple(place()).pending_writes == [
        ("same task", "log", "first"),
        ("task of its own", "log", "of its own"),
    ]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_writes_of_a_run_that_failed_count_for_the_run_that_resumes_it(
    pair: Any, schema: str
) -> None:
    crashing, resuming = pair()
    broken = [True]

    def bad(_: Any) -> Any:
        if broken:
            broken.clear()
            message = "broken"
            raise RuntimeError(message)
        return {"log": ["bad at last"]}

    done = Gate()

    def good(_: Any) -> Any:
        done.open()
        return {"log": ["good"]}

    def compiled(saver: Any) -> Any:
        builder = StateGraph(SCHEMAS[schema])
        builder.add_node("good", good)
        builder.add_node("bad", bad)
        builder.add_edge(START, "good")
        builder.add_edge(START, "bad")
        return builder.compile(checkpointer=saver)

    with pytest.raises(RuntimeError, match="broken"):
        compiled(crashing).invoke({"log": ["in"]}, at(), durability="sync")
    graph = compiled(resuming)
    result = graph.invoke(None, at(), durability="sync")["log"]
    assert sorted(result) == sorted(["in", "good", "bad at last"])
    assert log_of(graph) == result
    assert invoke(graph, "more")[:3] == result


def test_seeded_random_numbers_do_not_make_two_runs_one(pair: Any) -> None:
    one, two = pair()
    put(one, place(), log=1)
    loaded = []
    for saver in (one, two):
        random.seed(42)
        loaded.append(saver.get_tuple(place()).config)
    one.put_writes(loaded[0], [("log", "loser")], "task")
    two.put_writes(loaded[1], [("log", "winner")], "task")
    base = loaded[1]
    put(two, loaded[1], log=2)
    assert two.get_tuple(
        place(checkpoint=str(base["configurable"]["checkpoint_id"]))
    ).pending_writes == [("task", "log", "winner")]


# -- conflicts="raise": the later one is refused -------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("base", [[], ["base"]], ids=("fresh thread", "on a head"))
@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_run_that_comes_second_is_refused(
    pair: Any, schema: str, base: list[str], durability: str
) -> None:
    slow, fast = pair(conflicts="raise")
    for who in base:
        invoke(story(slow, SCHEMAS[schema]), who)
    graph, gate, run = held_at(slow, SCHEMAS[schema], "put", durability)
    won = invoke_or_lose(story(fast, SCHEMAS[schema]), "fast")
    gate.open()
    lost = run.finish()
    if isinstance(won, ConflictError):  # the slow run's input was a write on the head
        won, lost = lost, won
    assert isinstance(lost, ConflictError)
    assert won in (told(*base, "fast"), told(*base, "slow"))
    assert [leaf.values["log"] for leaf in leaves(graph)] == [won]
    assert invoke(graph, "next") == [*won, *told("next")]


def invoke_or_lose(graph: Any, who: str) -> Any:
    try:
        return invoke(graph, who)
    except ConflictError as error:
        return error


def test_an_update_that_comes_first_refuses_the_run(pair: Any) -> None:
    slow, fast = pair(conflicts="raise")
    invoke(story(slow), "base")
    graph, gate, run = held_at(slow, Plain, "put", "sync")
    story(fast).update_state(at(), {"log": ["updated"]}, as_node="second")
    gate.open()
    assert isinstance(run.finish(), ConflictError)
    assert log_of(graph) == [*told("base"), "updated"]


def test_a_run_that_comes_first_refuses_the_update(pair: Any) -> None:
    slow, fast = pair(conflicts="raise")
    graph = story(slow)
    invoke(graph, "base")
    gate = Gate()
    late = Run(
        story(HeldBack(fast, gate)).update_state, at(), {"log": ["updated"]}, as_node="second"
    )
    gate.wait_until_reached()
    invoke(graph, "quick")
    gate.open()
    assert isinstance(late.finish(), ConflictError)
    assert log_of(graph) == told("base", "quick")


def test_a_later_put_expects_the_runs_own_previous_one(pair: Any) -> None:
    slow, fast = pair(conflicts="raise")
    invoke(story(slow), "base")
    graph, gate, run = held_at(slow, Plain, "second", "sync")
    story(fast).update_state(at(), {"log": ["updated"]}, as_node="second")
    gate.open()
    assert isinstance(run.finish(), ConflictError)
    assert log_of(graph) == [*told("base"), "slow", "slow-first", "updated"]


def test_a_run_that_meets_anothers_writes_loses_before_it_puts(pair: Any) -> None:
    one, two = pair(conflicts="raise")
    put(one, place(), log=1)
    first, second = one.get_tuple(place()), two.get_tuple(place())
    one.put_writes(first.config, [("log", "first")], "task")
    with pytest.raises(ConflictError):
        two.put_writes(second.config, [("log", "second")], "task")
    one.put_writes(first.config, [("log", "more")], "another task")
    head = put(one, first.config, log=2)
    found = two.get_delta_channel_history(config=head, channels=["log"])
    assert [w[2] for w in found["log"]["writes"]] == ["more", "first"]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_losers_leftovers_are_nowhere(pair: Any, schema: str) -> None:
    slow, fast = pair(conflicts="raise")
    invoke(story(slow, SCHEMAS[schema]), "base")
    head = slow.get_tuple(place()).config
    _, gate, run = held_at(slow, SCHEMAS[schema], "put", "sync")
    won = invoke_or_lose(story(fast, SCHEMAS[schema]), "fast")
    gate.open()
    lost = run.finish()
    loser = "slow" if isinstance(lost, ConflictError) else "fast"
    assert loser == "slow" or isinstance(won, ConflictError)
    for saver in (slow, fast):
        assert [t for t in map(repr, saver.list(None)) if loser in t] == []
        assert [w for w in saver.get_tuple(head).pending_writes if loser in repr(w)] == []
    assert slow.check().ok


def test_a_run_may_wait_for_the_user_and_be_resumed_by_anyone(pair: Any) -> None:
    one, two = pair(conflicts="raise")

    def compiled(saver: Any) -> Any:
        return linear(saver, Plain, ask=lambda _: {"log": [interrupt("?")]})

    compiled(one).invoke({"log": ["in"]}, at())
    assert compiled(two).invoke(Command(resume="yes"), at())["log"] == ["in", "yes"]
    assert compiled(one).invoke({"log": ["in"]}, at())["log"] == ["in", "yes", "in"]


# -- operations without fences -------------------------------------------------------


def test_going_back_forks_freely(pair: Any) -> None:
    one, two = pair(conflicts="raise")
    graph, other = story(one), story(two)
    invoke(graph, "base")
    old = next(s.config for s in graph.get_state_history(at()) if s.next == ("second",))
    invoke(other, "more")
    graph.invoke(None, old)
    assert invoke(other, "instead", config=old)[-3:] == told("instead")
    graph.update_state(old, {"log": ["changed"]})
    other.update_state(old, None, as_node="__copy__")
    other.update_state(at(), None, as_node="__copy__")
    assert invoke(graph, "after")[-3:] == told("after")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_runs_that_come_after_one_that_chose_its_checkpoint_are_fenced(
    pair: Any, durability: str
) -> None:
    slow, fast = pair(conflicts="raise")
    graph = story(slow)
    invoke(graph, "base")
    graph.update_state(graph.get_state(at()).config, {"log": ["chosen"]}, as_node="second")
    graph, gate, run = held_at(slow, Plain, "second", durability)
    won = invoke_or_lose(story(fast), "fast")
    gate.open()
    results = [won, run.finish()]
    assert sum(isinstance(result, ConflictError) for result in results) == 1


def test_a_node_may_update_its_own_thread(pair: Any) -> None:
    one, _ = pair(conflicts="raise")
    graphs: list[Any] = []

    def meddle(state: Any) -> Any:
        graphs[0].update_state(at(), {"log": ["by the node"]}, as_node="after")
        return {"log": [f"{len(state['log'])} seen"]}

    graphs.append(linear(one, Plain, meddle=meddle, after=lambda _: {"log": ["after"]}))
    assert invoke(graphs[0], "in") == ["in", "1 seen", "after"]


def test_subgraphs_with_a_memory_may_run_in_parallel(pair: Any) -> None:
    one, _ = pair(conflicts="raise")

    class Inner(TypedDict, total=False):
        mine: Annotated[list[Any], operator.add]
        log: Any

    builder = StateGraph(Plain)
    builder.add_node("inner", linear(True, Inner, tell=lambda s: {"log": [f"ran {s['mine'][-1]}"]}))
    builder.add_conditional_edges(START, lambda _: [Send("inner", {"mine": [n]}) for n in range(3)])
    graph = builder.compile(checkpointer=one)
    for turn in range(2):
        result = invoke(graph, f"turn {turn}")
        assert len(result) == 4 * (turn + 1)


# -- deletion while a run is under way -----------------------------------------------


# -- on each store ---------------------------------------------------------------------
