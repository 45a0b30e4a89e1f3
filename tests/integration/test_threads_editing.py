"""Values edited without a graph, beside `graph.update_state` with one, on every store."""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from kit.graphs import linear
from kit.places import at
from langchain_core.messages import HumanMessage
from langgraph.channels import DeltaChannel, EphemeralValue, LastValue
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, Overwrite, interrupt

from threadkeep import SqliteSaver
from threadkeep.errors import (
    CheckpointNotFoundError,
    ConflictError,
    InvalidArgumentError,
    ThreadArchivedError,
    ThreadNotFoundError,
    UnserializableError,
)
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.threads import editing


class State(TypedDict, total=False):
    notes: Annotated[list[str], operator.add]
    order: dict[str, Any]
    answer: str


class Noted(MessagesState, total=False):
    note: str


def _plan(state: State) -> dict[str, Any]:
    return {"notes": ["planned"], "order": {"number": 17, "stops": [1, 2]}}


def _left(state: State) -> dict[str, Any]:
    return {"notes": [f"left of {state['order']['number']}"]}


def _ask(state: State) -> dict[str, Any]:
    return {"answer": f"{interrupt(state['order'])} for {state['order']['number']}"}


def _graph(saver: Any) -> Any:
    """After the first node run two others; one waits for an answer, and a condition follows it."""
    builder = StateGraph(State)
    for name, node in (("plan", _plan), ("left", _left), ("ask", _ask)):
        builder.add_node(name, node)
    builder.add_node("end", lambda state: {"notes": [f"end of {state['order']['number']}"]})
    builder.add_edge(START, "plan").add_edge("plan", "left").add_edge("plan", "ask")
    builder.add_conditional_edges("ask", lambda state: "end" if state["answer"] else END)
    return builder.compile(checkpointer=saver)


@pytest.fixture
def graph(saver: Any) -> Any:
    """Two threads that wait at `ask`; `left` has finished."""
    graph = _graph(saver)
    for thread in ("edited", "updated"):
        graph.invoke({"notes": ["asked"]}, at(thread))
    return graph


def _seen(graph: Any, thread: str) -> Any:
    state = graph.get_state(at(thread))
    said = {key: state.metadata[key] for key in ("source", "step", "parents")}
    return state.values, set(state.next), said, bool(state.interrupts)


@pytest.mark.parametrize("old", [False, True])
def test_an_edit_is_what_update_state_makes_of_it(saver: Any, graph: Any, old: bool) -> None:
    new = {"notes": ["edited"], "order": {"number": 18}}
    ids = {}
    for thread in ("edited", "updated"):
        history = [*graph.get_state_history(at(thread))]
        ids[thread] = history[0].config["configurable"]["checkpoint_id"]
        assert len(history) == 3
    base = at("updated", checkpoint_id=ids["updated"]) if old else at("updated")
    writes = {name: Overwrite(value) if name == "notes" else value for name, value in new.items()}
    graph.update_state(base, writes, as_node="plan")
    config = saver.threads.edit("edited", new, checkpoint_id=ids["edited"] if old else None)
    assert _seen(graph, "edited") == _seen(graph, "updated")
    edited = saver.get_tuple(at("edited"))
    assert edited.config == config
    assert edited.parent_config["configurable"]["checkpoint_id"] == ids["edited"]
    for thread in ("edited", "updated"):  # both nodes run again, with the new values
        graph.invoke(None, at(thread))
        graph.invoke(Command(resume="yes"), at(thread))
    assert _seen(graph, "edited") == _seen(graph, "updated")
    assert graph.get_state(at("edited")).values == {
        "notes": ["edited", "left of 18", "end of 18"],
        "order": {"number": 18},
        "answer": "yes for 18",
    }
    assert saver.check().ok


def test_a_node_that_should_run_again_still_does(saver: Any) -> None:
    """It has run for an earlier value of the edited channel, and not yet for this one."""
    first = NodeBuilder().subscribe_only("a").do(lambda text: f"{text} 1").write_to("b")
    second = NodeBuilder().subscribe_only("b").do(lambda text: f"{text} 2").write_to("c")
    graph = Pregel(
        nodes={"first": first, "second": second},
        channels={"a": EphemeralValue(str), "b": LastValue(str), "c": LastValue(str)},
        input_channels=["a"],
        output_channels=["b", "c"],
        checkpointer=saver,
        interrupt_before_nodes=["second"],
    )
    for text in ("one", "two"):
        graph.invoke({"a": text}, at("t"))
        assert graph.get_state(at("t")).next == ("second",)
        saver.threads.edit("t", {"b": f"edited {text}"})
        assert graph.get_state(at("t")).next == ("second",)
        assert graph.invoke(None, at("t"))["c"] == f"edited {text} 2"


def test_only_edited_channels_change(saver: Any, graph: Any) -> None:
    before = saver.get_tuple(at("edited")).checkpoint
    saver.threads.edit("edited", {"order": {"number": 19}})
    after = saver.get_tuple(at("edited")).checkpoint
    assert after["channel_values"]["notes"] == before["channel_values"]["notes"]
    changed = {
        name
        for name, version in after["channel_versions"].items()
        if version != before["channel_versions"][name]
    }
    assert changed == {"order"}
    assert after["versions_seen"].keys() == before["versions_seen"].keys()


def test_an_edit_of_the_head_is_refused_after_it_has_moved(saver: Any, graph: Any) -> None:
    head = saver.get_tuple(at("edited")).config["configurable"]["checkpoint_id"]
    first = saver.threads.edit("edited", {"order": {}}, checkpoint_id=head, if_head=True)
    with pytest.raises(ConflictError, match="newer checkpoint"):
        saver.threads.edit("edited", {"order": {}}, checkpoint_id=head, if_head=True)
    assert saver.get_tuple(at("edited")).config == first


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, "values"),
        ({"absent": 1}, "channel: 'absent'"),
        ({"branch:to:ask": None}, "channel: 'branch:to:ask'"),
        ([1], "values"),
    ],
)
def test_edits_that_are_refused(saver: Any, graph: Any, values: Any, match: str) -> None:
    head = saver.get_tuple(at("edited")).config
    with pytest.raises(InvalidArgumentError, match=match):
        saver.threads.edit("edited", values)
    with pytest.raises(InvalidArgumentError, match="if_head"):
        saver.threads.edit("edited", {"order": 1}, if_head=True)
    with pytest.raises(ThreadNotFoundError):
        saver.threads.edit("nobody", {"order": 1})
    with pytest.raises(CheckpointNotFoundError):
        saver.threads.edit("edited", {"order": 1}, checkpoint_id="absent")
    with pytest.raises(UnserializableError):
        saver.threads.edit("edited", {"order": object()})
    assert saver.get_tuple(at("edited")).config == head


def test_delta_channels_are_refused(saver: Any) -> None:
    state: Any = TypedDict(
        "state", {"log": Annotated[list[str], DeltaChannel(operator.add)], "note": str}
    )
    builder = StateGraph(state).add_node("work", lambda _: {"note": "one"})
    graph: Any = builder.add_edge(START, "work").compile(checkpointer=saver)
    graph.invoke({"log": ["a"]}, at("t"))
    with pytest.raises(InvalidArgumentError, match="DeltaChannel"):
        saver.threads.edit("t", {"note": "two"})


@pytest.mark.parametrize("is_head", [False, True])
def test_a_checkpoint_that_is_removed_meanwhile(
    saver: Any, graph: Any, monkeypatch: pytest.MonkeyPatch, is_head: bool
) -> None:
    """The edit holds only the new values: those of the others must not be lost with it."""
    old, before, head = [one.config for one in saver.list(at("edited"))][::-1]
    at_old = before["configurable"]["checkpoint_id"]
    removed = head if is_head else before
    save = editing.put.save

    def removing(engine: Any, call: Any) -> Any:
        monkeypatch.undo()
        saver.delete_checkpoints("edited", [removed["configurable"]["checkpoint_id"]])
        return (yield from save(engine, call))

    monkeypatch.setattr(editing.put, "save", removing)
    if is_head:
        kept = saver.get_tuple(before).checkpoint["channel_values"]
        new = saver.threads.edit("edited", {"notes": ["new"]})
        assert saver.get(new)["channel_values"] == {**kept, "notes": ["new"]}
    else:
        with pytest.raises(CheckpointNotFoundError):
            saver.threads.edit("edited", {"notes": ["new"]}, checkpoint_id=at_old)
        assert [one.config for one in saver.list(at("edited"))] == [head, old]
    assert saver.check().ok


def test_an_edit_is_stored_when_it_returns(tmp_path: Any) -> None:
    with SqliteSaver(tmp_path / "t.db") as saver, SqliteSaver(tmp_path / "t.db") as other:
        _graph(saver).invoke({"notes": ["asked"]}, at("t"))
        for one in [*saver.list(at("t"))][:2]:
            own = one.config["configurable"]["checkpoint_id"]
            new = saver.threads.edit("t", {"notes": ["new"]}, checkpoint_id=own)
            assert other.get(new)["channel_values"]["notes"] == ["new"]


# -- on one store: above every backend -------------------------------------------------


def test_an_archived_thread_is_restored_by_its_own_saver_alone(tmp_path: Any) -> None:
    cold = f"file://{tmp_path}/cold"
    with SqliteSaver(tmp_path / "t.db", cold=cold) as saver:
        graph = _graph(saver)
        graph.invoke({"notes": ["asked"]}, at("t"))
        saver.threads.archive("t")
        with SqliteSaver(tmp_path / "t.db") as without, pytest.raises(ThreadArchivedError):
            without.threads.edit("t", {"order": {}})
        saver.threads.edit("t", {"order": {"number": 20}})
        assert graph.get_state(at("t")).values["order"] == {"number": 20}


def test_layered_memory_keeps_its_archived_messages(tmp_path: Any) -> None:
    with SqliteSaver(tmp_path / "t.db") as saver:
        layers = Layers(full_window=4, summary_window=8, batch=1)
        memory: Any = LayeredCheckpointSaver(saver, layers)
        graph: Any = linear(memory, Noted, work=lambda _: {"note": "one"})
        for number in range(20):
            graph.invoke({"messages": [HumanMessage(f"m{number}", id=f"m{number}")]}, at("t"))
        full = memory.full_messages("t")
        saver.threads.edit("t", {"note": "two"})
        assert graph.get_state(at("t")).values["note"] == "two"
        assert memory.full_messages("t") == full
        with pytest.raises(InvalidArgumentError, match="archived messages"):
            saver.threads.edit("t", {"messages": []})
        graph.invoke({"messages": [HumanMessage("next", id="next")]}, at("t"))
        assert [one.id for one in memory.full_messages("t")] == [*(m.id for m in full), "next"]
        assert memory.check().ok
