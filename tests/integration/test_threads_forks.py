"""Forks on every store: a fork equals a copy made when the checkpoint was saved."""

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from kit.engine import bytes_held
from kit.places import at
from kit.runs import extend
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from threadkeep._core.engine.model import ReadSegments, ReadThread, Span
from threadkeep._core.engine.operation import fetch
from threadkeep.errors import CheckpointNotFoundError, ThreadExistsError, ThreadNotFoundError


class Chat(TypedDict):
    said: Annotated[list[str], operator.add]


class Deltas(TypedDict):
    said: Annotated[list[str], DeltaChannel(extend)]


def _answer(state: Any) -> dict[str, Any]:
    return {"said": [f"answer to {state['said'][-1]}"]}


def _ask(state: Any) -> dict[str, Any]:
    return {"said": [f"asked: {interrupt('well?')}"]}


def _next(state: Any) -> str:
    return "ask" if state["said"][-2].endswith("?") else END


def _chat(saver: Any, schema: Any = Chat) -> Any:
    builder = StateGraph(schema).add_node("answer", _answer).add_node("ask", _ask)
    builder.add_edge(START, "answer").add_conditional_edges("answer", _next)
    return builder.compile(checkpointer=saver)


def _nested(
    saver: Any, *, persistent: bool = False, on_first: Callable[[], None] = lambda: None
) -> Any:
    def first(_: Any) -> dict[str, Any]:
        on_first()
        return {"said": ["in first"]}

    steps = StateGraph(Chat).add_sequence([("first", first), ("ask", _ask)])
    inner = steps.add_edge(START, "first").compile(checkpointer=True if persistent else None)
    builder = StateGraph(Chat).add_sequence([("inner", inner), ("answer", _answer)])
    return builder.add_edge(START, "inner").compile(checkpointer=saver)


def _fails_once(saver: Any) -> Any:
    failures = iter([True])

    def fragile(_: Any) -> dict[str, Any]:
        if next(failures, False):
            message = "not this time"
            raise OSError(message)
        return {"said": ["fragile"]}

    builder = StateGraph(Chat).add_node("start", lambda _: {}).add_node("fragile", fragile)
    builder.add_node("sound", lambda _: {"said": ["sound"]}).add_edge(START, "start")
    builder.add_conditional_edges("start", lambda _: [Send("sound", {}), Send("fragile", {})])
    return builder.compile(checkpointer=saver)


HELLO: Any = {"said": ["hello"]}
QUESTION: Any = {"said": ["really?"]}


def _try(graph: Any, given: Any, thread: str) -> None:
    try:
        graph.invoke(given, at(thread))
    except OSError:
        assert given is not None


# Each: the graph, its runs before the fork, and those after it.
STORIES: dict[str, tuple[Callable[[Any], Any], list[Any], list[Any]]] = {
    "turns": (_chat, [HELLO, {"said": ["again"]}], [{"said": ["more"]}, QUESTION]),
    "interrupt": (_chat, [HELLO, QUESTION], [Command(resume="yes"), {"said": ["more"]}]),
    "answered otherwise": (_chat, [QUESTION], [HELLO, QUESTION]),
    "deltas": (lambda s: _chat(s, Deltas), [HELLO, QUESTION], [Command(resume="no"), HELLO]),
    "subgraph": (_nested, [HELLO], [Command(resume="deep"), HELLO]),
    "subgraph with a memory": (
        lambda saver: _nested(saver, persistent=True),
        [HELLO],
        [Command(resume="deep"), HELLO],
    ),
    "failure": (_fails_once, [HELLO], [None, {"said": ["more"]}]),
}


def _seen(graph: Any, thread: str) -> Any:
    """Every state of a thread, without ids, times and the thread's id."""
    return [_shown(state) for state in graph.get_state_history(at(thread))]


def _status(found: Any) -> Any:
    return found.status, found.status_checkpoint


def _shown(state: Any) -> Any:
    tasks = [
        (task.name, task.path, repr(task.error), [i.value for i in task.interrupts], task.result)
        for task in state.tasks
    ]
    return state.values, state.next, tasks, state.metadata["step"], state.metadata["source"]


@pytest.mark.parametrize("story", STORIES)
def test_a_fork_is_what_a_copy_of_that_moment_is(saver: Any, story: str) -> None:
    make, before, after = STORIES[story]
    graph = make(saver)
    for given in before:
        _try(graph, given, "one")
    moment = graph.get_state(at("one")).config["configurable"]["checkpoint_id"]
    saver.copy_thread("one", "copy")
    early = saver.threads.fork("one", new_thread_id="early")
    for given in after:
        _try(graph, given, "one")
    late = saver.threads.fork("one", moment, "late")
    assert (early.state, late.state) == ("forked", "forked")
    copy = saver.threads.get("copy")
    assert _status(early) == _status(late) == _status(copy)
    assert early.failed_node == copy.failed_node
    assert late.failed_node in (copy.failed_node, None)  # (rows do not name a sent task's node)
    assert _seen(graph, "early") == _seen(graph, "late") == _seen(graph, "copy")
    assert saver.check().ok
    for given in after:
        for name in ("copy", "early", "late"):
            _try(graph, given, name)
    assert _seen(graph, "early") == _seen(graph, "late") == _seen(graph, "copy")
    assert _seen(graph, "one") == _seen(graph, "copy")
    ends = [saver.threads.get(name) for name in ("copy", "early", "late", "one")]
    assert {(end.state, end.status, end.failed_node) for end in ends} == {
        (ends[0].state, ends[0].status, ends[0].failed_node)
    }
    assert saver.check().ok


def test_a_fork_in_the_middle_of_a_run_runs_on_from_there(saver: Any) -> None:
    """Nodes that ran after the checkpoint run again."""
    graph = _chat(saver)
    graph.invoke(HELLO, at("one"))
    (begin,) = [s for s in graph.get_state_history(at("one")) if s.next == ("answer",)]
    fork = saver.threads.fork("one", begin.config["configurable"]["checkpoint_id"])
    assert graph.get_state(at(fork.id)).tasks[0].result is None
    assert graph.invoke(None, at(fork.id)) == graph.get_state(at("one")).values
    graph.update_state(at(fork.id), {"said": ["otherwise"]})
    assert graph.get_state(at(fork.id)).values["said"][-1] == "otherwise"
    assert len(graph.get_state(at("one")).values["said"]) == 2


@pytest.mark.parametrize("persistent", [False, True])
def test_a_subgraph_goes_on_where_it_was(saver: Any, persistent: bool) -> None:
    """Work before an interrupt is not repeated; later work is."""
    calls: list[str] = []
    graph = _nested(saver, persistent=persistent, on_first=lambda: calls.append("first"))
    graph.invoke(HELLO, at("one"))
    waiting = graph.get_state(at("one")).config["configurable"]["checkpoint_id"]
    graph.invoke(Command(resume="deep"), at("one"))
    assert len(calls) == 1
    fork = saver.threads.fork("one", waiting).id
    said = graph.invoke(Command(resume="other"), at(fork))["said"]
    assert said[-2:] == ["asked: other", "answer to asked: other"]
    assert len(calls) == 1
    *_, begin = [s for s in graph.get_state_history(at(fork)) if s.next == ("inner",)]
    again = saver.threads.fork(fork, begin.config["configurable"]["checkpoint_id"]).id
    before = len(calls)
    graph.invoke(None, at(again))
    assert len(calls) == before + (begin.tasks[0].interrupts == ())


def test_values_are_shared_where_the_store_can(saver: Any) -> None:
    graph = _chat(saver)
    graph.invoke({"said": ["x" * 200_000]}, at("one"))
    before = saver.stats().bytes_on_disk
    forks = [saver.threads.fork("one") for _ in range(8)]
    rows = saver._store.run(fetch(ReadThread("one")))
    if rows.family:
        assert sorted(rows.family) == sorted(fork.id for fork in forks)
        assert saver.stats().bytes_on_disk < before + 150_000
        assert all(fork.bytes < 20_000 for fork in forks)
    fork = saver._store.run(fetch(ReadThread(forks[0].id)))
    assert sum(s.size for s in fork.segments) == sum(s.size for s in rows.segments)


def test_segments_that_only_a_deleted_fork_needed_go_with_the_next_prune(saver: Any) -> None:
    graph = _chat(saver)
    graph.invoke(HELLO, at("one"))
    alone = {s.log for s in saver._store.run(fetch(ReadThread("one"))).segments}
    fork = saver.threads.fork("one").id
    graph.invoke({"said": ["secret" * 100]}, at(fork))
    saver.delete_thread(fork)
    saver.prune(["one"])
    rows = saver._store.run(fetch(ReadThread("one")))
    assert {s.log for s in rows.segments} <= alone
    everything = tuple(Span(s.log, s.start, s.start + s.count) for s in rows.segments)
    found = saver._store.run(fetch(ReadSegments("one", everything)))
    assert not any(b"secret" in segment.data for segment in found)
    assert saver.threads.get("one").bytes == bytes_held(saver, "one")


def test_what_is_known_of_a_fork(saver: Any) -> None:
    graph = _chat(saver)
    graph.invoke(QUESTION, at("one", user_id="u1"))
    saver.threads.tag("one", "vip")
    saver.threads.pin("one")
    fork = saver.threads.fork("one", new_thread_id="two")
    head = graph.get_state(at("one")).config["configurable"]["checkpoint_id"]
    assert fork.forked_from == ("one", head)
    assert (fork.metadata, fork.tags, fork.pinned) == ({"user_id": "u1"}, (), False)
    assert (fork.status, fork.status_checkpoint) == ("waiting", head)
    assert saver.threads.get("two") == fork
    assert [t.id for t in saver.threads.search(forked_from="one").threads] == ["two"]
    graph.invoke(Command(resume="yes"), at("two"))
    states = [(one.state, one.status) for one in map(saver.threads.get, ("two", "one"))]
    assert states == [("active", "done"), ("active", "waiting")]
    third = saver.threads.fork("two")
    assert third.forked_from[0] == "two"


def test_forks_of_what_is_not_there(saver: Any) -> None:
    graph = _chat(saver)
    with pytest.raises(ThreadNotFoundError):
        saver.threads.fork("one")
    saver.threads.create("one")
    with pytest.raises(ThreadNotFoundError):
        saver.threads.fork("one")
    graph.invoke(HELLO, at("one"))
    with pytest.raises(CheckpointNotFoundError):
        saver.threads.fork("one", "00000000-0000-0000-0000-000000000000")
    with pytest.raises(ThreadExistsError):
        saver.threads.fork("one", new_thread_id="one")
    saver.threads.create("two", tags=["waiting"])
    assert saver.threads.fork("one", new_thread_id="two").state == "forked"


@pytest.mark.drawn(1)
def test_two_processes_fork_and_run(another: Any) -> None:
    """Runs of the origin and of the fork continue side by side."""
    one, other = another(), another()
    graph, graph2 = _chat(one), _chat(other)
    graph.invoke(HELLO, at("one"))
    graph2.invoke(HELLO, at("one"))
    fork = other.threads.fork("one").id
    for turn in range(40):  # enough to be sealed, by both
        graph.invoke({"said": [f"turn {turn}"]}, at("one"))
        graph2.invoke({"said": [f"other turn {turn}"]}, at(fork))
    one.prune([fork])
    graph2.invoke({"said": ["last"]}, at(fork))
    graph.invoke({"said": ["last"]}, at("one"))
    for saver, thread, said in ((other, "one", "turn 39"), (one, fork, "other turn 39")):
        found = _chat(saver).get_state(at(thread)).values["said"]
        assert len(found) == 86
        assert found[-4:-2] == [said, f"answer to {said}"]
    assert one.check().ok
