"""The life of a thread that a save belongs to, where no object of its own names the run."""

from typing import Any

import langgraph.runtime
import pytest
from kit.engine import config, everything
from kit.graphs import linear
from kit.places import at
from kit.runs import Gate, Run
from langgraph.checkpoint.base import empty_checkpoint
from typing_extensions import TypedDict

from threadkeep._core import arguments
from threadkeep._core.langgraph_internals import RUNTIME
from threadkeep.errors import ThreadDeletedError

DURABILITIES = ("sync", "async", "exit")


class State(TypedDict, total=False):
    said: str


def two_steps(saver: Any, gate: Gate, *, keeps: bool | None = None) -> Any:
    """A graph that waits at a gate if told to, and then calls a subgraph."""

    def waits(state: State) -> State:
        if state["said"] == "secret":
            gate.pass_through()
        return {}

    return linear(
        saver,
        State,
        waits=waits,
        inner=linear(keeps, State, tell=lambda state: {"said": f"told {state['said']}"}),
    )


def empty(above: str | None = None) -> tuple[Any, ...]:
    parents = {} if above is None else {"parents": {"": above}}
    return empty_checkpoint(), {"step": 1, **parents}, {}


@pytest.mark.parametrize("how", ["fork", "copy"])
def test_late_saves_do_not_reach_what_took_the_place_of_a_deleted_thread(
    saver: Any, how: str
) -> None:
    saver.put(config(thread="source"), *empty())
    old = saver.put(config(thread="target"), *empty())
    saver.delete_thread("target")
    if how == "fork":
        saver.threads.fork("source", new_thread_id="target")
    else:
        saver.copy_thread("source", "target")
    before = everything(saver)
    with pytest.raises(ThreadDeletedError):
        saver.put_writes(old, [("said", "late")], "task")
    with pytest.raises(ThreadDeletedError):
        saver.put(old, *empty())
    above = old["configurable"]["checkpoint_id"]
    with pytest.raises(ThreadDeletedError):
        saver.put(config(thread="target", ns="inner:1"), *empty(above))
    assert everything(saver) == before
    anew = saver.put(saver.get_tuple(config(thread="target")).config, *empty())
    saver.put_writes(anew, [("said", "new")], "task")


@pytest.mark.parametrize("keeps", [None, True])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_without_a_control_a_subgraph_belongs_to_the_run_around_it(
    saver: Any, durability: Any, keeps: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before LangGraph 1.2: the runtime belongs to one graph."""
    monkeypatch.setattr(arguments, "_run_of", lambda configurable: configurable.get(RUNTIME))
    gate = Gate()
    graph = two_steps(saver, gate, keeps=keeps)
    run = Run(graph.invoke, {"said": "secret"}, at(), durability=durability)
    gate.wait_until_reached()
    saver.delete_thread("thread")
    gate.open()
    assert isinstance(run.finish(), ThreadDeletedError)
    assert everything(saver) == {}
    for _ in range(2):
        assert graph.invoke({"said": "new"}, at(), durability=durability) == {"said": "told new"}


@pytest.mark.skipif(not hasattr(langgraph.runtime, "RunControl"), reason="since LangGraph 1.2")
def test_runs_of_several_threads_may_have_one_control(saver: Any) -> None:
    """A service may drain all of its runs by one object."""
    gate, control = Gate(), langgraph.runtime.RunControl()
    graph = two_steps(saver, gate)
    run = Run(graph.invoke, {"said": "secret"}, at(), control=control)
    gate.wait_until_reached()
    saver.delete_thread("thread")
    graph.invoke({"said": "new"}, at("other"), control=control)
    gate.open()
    assert isinstance(run.finish(), ThreadDeletedError)
    assert {place[0] for place in everything(saver)} == {"other"}
    assert graph.invoke({"said": "new"}, at(), control=control) == {"said": "told new"}
