"""`validate="strict"`: parents that exist, graphs that run as before, and the notes of `check`."""

import operator
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from kit.backends import open_backend
from kit.engine import Counted
from kit.places import THREAD
from kit.rows import checkpoint, metadata, place, put
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from threadkeep import MemorySaver, Saver
from threadkeep.errors import InvalidArgumentError

SUB = "sub|1"


@pytest.fixture
def saver_options() -> dict[str, Any]:
    return {"validate": "strict"}


def below(parent: str, own_id: str | None = None) -> tuple[Any, ...]:
    """The arguments of a put of a subgraph's checkpoint."""
    made: Any = checkpoint({"value": 1}) | ({} if own_id is None else {"id": own_id})
    return place(ns=SUB), made, metadata(parents={"": parent}), {"value": 1}


def id_of(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"])


# -- parents ---------------------------------------------------------------------------


async def test_a_parent_that_does_not_exist_is_refused(saver: Any) -> None:
    late = str(uuid6())
    put(saver, place(), {"value": "root"})
    for unknown in (str(uuid4()), "no uuid", late):
        for call in (saver.put, saver.aput):
            with pytest.raises(InvalidArgumentError, match=r"metadata\['parents'\]") as caught:
                await call(*below(unknown))
            assert caught.value.hint
            assert (caught.value.thread, caught.value.namespace) == (THREAD, SUB)
        with pytest.raises(InvalidArgumentError, match=r"metadata\['parents'\]"):
            saver.put_many([below(unknown)])
    assert [*saver.list(place(ns=SUB))] == []


def test_a_known_parent_is_not_read_and_one_of_another_process_is() -> None:
    backend = Counted()
    saver = Saver(backend, validate="strict")
    root = id_of(put(saver, place(), {"value": "root"}))
    put(saver, place(ns=SUB), {"value": "known"})
    backend.asked()
    saver.put(*below(root))
    assert backend.asked() == (0, 1)
    other = Saver(backend, validate="strict")
    other.put(*below(root))
    assert other.check().notes == ()


def test_the_parent_of_a_put_may_be_in_the_same_put_many(ours: Any) -> None:
    root = (place(), checkpoint({"value": 1}), metadata(), {"value": 1})
    ours.put_many([root, below(root[1]["id"])])
    assert ours.check().notes == ()


def test_a_newer_parent_may_still_arrive_and_check_notes_it_until_then(ours: Any) -> None:
    root: Any = checkpoint({"value": 1})
    child = id_of(ours.put(*below(root["id"])))
    (note,) = ours.check().notes
    assert (note.kind, note.namespace, note.checkpoint) == ("field", SUB, child)
    assert root["id"] in note.problem
    ours.put(place(), root, metadata(), {"value": 1})
    assert ours.check().notes == ()


# -- graphs ----------------------------------------------------------------------------


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def step(state: State) -> Any:
    return {"items": ["step"]}


def ask(state: State) -> Any:
    return {"items": [interrupt("?")]}


SUBGRAPH = (
    StateGraph(State)
    .add_node("step", step)
    .add_node("ask", ask)
    .add_edge(START, "step")
    .add_edge("step", "ask")
    .compile()
)
GRAPH = (
    StateGraph(State)
    .add_node("step", step)
    .add_node("sub", SUBGRAPH)
    .add_edge(START, "step")
    .add_edge("step", "sub")
    .add_edge("sub", END)
)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_graphs_run_as_before(ours: Any, durability: Any) -> None:
    graph, at, awaited = GRAPH.compile(checkpointer=ours), place(), place("awaited")
    graph.invoke({"items": []}, at, durability=durability)
    graph.invoke(Command(resume="yes"), at, durability=durability)
    graph.update_state(at, {"items": ["more"]})
    graph.invoke(None, [*graph.get_state_history(at)][-1].config, durability=durability)
    await graph.ainvoke({"items": []}, awaited, durability=durability)
    await graph.ainvoke(Command(resume="yes"), awaited, durability=durability)
    assert graph.get_state(awaited).values["items"] == ["step", "step", "step", "yes"]
    assert {one.config["configurable"]["checkpoint_ns"] != "" for one in ours.list(None)} == {
        False,
        True,
    }
    assert ours.check().notes == ()


# -- check -----------------------------------------------------------------------------


def test_check_notes_fields_only_if_strict(tmp_path: Any) -> None:
    with open_backend("sqlite", tmp_path) as saver:
        sound = put(saver, place(), {"value": 0})
        odd: Any = checkpoint({"value": 1}) | {"ts": "yesterday"}
        own_id = id_of(saver.put(sound, odd, {"source": "replay", "step": -5}, {"value": 1}))
        report = saver.check()
        assert (report.ok, report.notes) == (True, ())
    with open_backend("sqlite", tmp_path, validate="strict") as saver:
        report = saver.check()
        assert report.ok
        assert {(note.kind, note.checkpoint) for note in report.notes} == {("field", own_id)}
        problems = " ".join(note.problem for note in report.notes)
        assert all(name in problems for name in ("['ts']", "['source']", "['step']"))
        assert saver.threads.repair(dry_run=True).repaired == ()
        assert saver.get_tuple(place()).checkpoint["ts"] == "yesterday"


def test_another_level_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="validate"):
        MemorySaver(validate="all")  # type: ignore[arg-type]
