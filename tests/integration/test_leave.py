"""Threads leave for LangGraph's own savers, which continue them.

The oracle: the thread played on LangGraph's saver from the beginning, or as ours shows it.
"""

from __future__ import annotations

import copy
import json
import operator
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.engine import shown
from kit.places import at
from kit.runs import SCHEMAS, Delta, story, told
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from threadkeep import MemorySaver
from threadkeep.errors import BackendError

from .driver import play
from .scenarios import SCENARIOS
from .test_adopt import assert_same, fill, history, official

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TARGETS = ("sqlite", "postgres", "memory")


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """One of LangGraph's savers, and the name of its database."""
    with official(request.param, tmp_path) as found:
        yield found


def seen(saver: Any, serde: Any = None) -> dict[Any, Any]:
    """All that a saver shows; with a serializer, values as LangGraph's saver would return them.

    Of versions only the number counts: LangGraph's savers add a hash.
    """

    def read(value: Any) -> Any:
        return value if serde is None else serde.loads_typed(serde.dumps_typed(value))

    def numbers(versions: Any) -> Any:
        return {name: int(str(v).partition(".")[0]) for name, v in versions.items()}

    found = {}
    for one in saver.list(None):
        checkpoint = one.checkpoint
        values = {name: read(v) for name, v in checkpoint["channel_values"].items()}
        own = {node: numbers(v) for node, v in checkpoint["versions_seen"].items()}
        versions = numbers(checkpoint["channel_versions"])
        parts = {"channel_values": values, "channel_versions": versions, "versions_seen": own}
        writes = [(task, channel, read(v)) for task, channel, v in one.pending_writes]
        metadata = json.loads(json.dumps(one.metadata, sort_keys=True))
        whole = one._replace(
            checkpoint={**checkpoint, **parts}, metadata=metadata, pending_writes=writes
        )
        found[shown(whole)["place"]] = shown(whole)
    return found


@pytest.mark.drawn(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", TARGETS)
def test_everything_is_the_same(backend: str, where: str, tmp_path: Path) -> None:
    with official(where, tmp_path) as (saver, name), open_backend(backend, tmp_path) as ours:
        fill(ours, [])
        expected = seen(ours, saver.serde)
        foreseen = ours.threads.leave(name, dry_run=True)
        assert seen(saver) == {}
        done = ours.threads.leave(name, verify=True)
        assert (done.conflicts, done.skipped, done.differences) == ({}, {}, {})
        assert (done.checkpoints, done.verified) == (len(expected), len(expected))
        assert (foreseen.checkpoints, foreseen.threads) == (done.checkpoints, done.threads)
        assert_same(seen(saver), expected)
        for place in expected:
            assert history(saver, place) == history(ours, place)
        again = ours.threads.leave(name)
        assert (again.checkpoints, again.writes, again.unchanged) == (0, 0, len(expected))


@pytest.mark.drawn(20)
@pytest.mark.parametrize("where", ["sqlite", "postgres"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_people_do_with_graphs(name: str, where: str, tmp_path: Path) -> None:
    with official(where, tmp_path) as (saver, database), MemorySaver() as ours:
        play(SCENARIOS[name], ours, durability=SCENARIOS[name].durabilities[0], api="sync")
        done = ours.threads.leave(database, verify=True)
        assert (done.conflicts, done.skipped, done.differences) == ({}, {}, {})
        assert_same(seen(saver), seen(ours, saver.serde))


# -- LangGraph's saver continues -----------------------------------------------------------


@pytest.mark.drawn(2)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_graph_goes_on_where_it_was(schema: str, target: Any) -> None:
    """It comes back, and continues here."""
    saver, name = target
    here, there = (lambda saver: story(saver, SCHEMAS[schema])), at("t")
    with MemorySaver() as ours:
        for who in ("a", "b"):
            here(ours).invoke({"log": [who]}, there)
        ours.threads.leave(name)
        here(saver).invoke({"log": ["c"]}, there)
        states = list(here(saver).get_state_history(there))
        assert states[0].values["log"] == told("a", "b", "c")
        ours.threads.adopt(name)
        assert ours.threads.adopt(name).conflicts == {}
        back = list(here(ours).get_state_history(there))
        assert [one.values for one in back] == [one.values for one in states]
        here(ours).invoke({"log": ["d"]}, there)
        assert ours.threads.leave(name, verify=True).differences == {}
        here(saver).invoke({"log": ["e"]}, there)
        assert here(saver).get_state(there).values["log"] == told("a", "b", "c", "d", "e")


class Talk(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def asking(saver: Any, schema: Any = Talk) -> Any:
    """A graph whose subgraph asks twice, with an answer in between."""

    def ask(state: Any) -> Any:
        return {"log": [interrupt("first?"), interrupt("second?")]}

    inner = StateGraph(Talk).add_node("ask", ask).add_edge(START, "ask").compile()
    outer = StateGraph(schema).add_node("inner", lambda state: inner.invoke({"log": []}))
    return outer.add_edge(START, "inner").compile(checkpointer=saver)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("schema", [Talk, Delta])
def test_an_interrupt_in_a_subgraph_is_answered_there(schema: Any, target: Any) -> None:
    saver, name = target
    with MemorySaver() as ours:
        asking(ours, schema).invoke({"log": ["go"]}, at("t"))
        ours.threads.leave(name)
        asking(ours, schema).invoke(Command(resume="one"), at("t"))
        done = ours.threads.leave(name, verify=True)
        assert (done.conflicts, done.differences) == ({}, {})
        assert asking(saver, schema).get_state(at("t")).interrupts[0].value == "second?"
        state = asking(saver, schema).invoke(Command(resume="two"), at("t"))
        assert state["log"] == ["go", "one", "two"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_branches_keep_their_values(schema: str, target: Any) -> None:
    """Two branches count the same versions here; LangGraph's tables keep values by version."""
    saver, name = target
    with MemorySaver() as ours:
        graph = story(ours, SCHEMAS[schema])
        graph.invoke({"log": ["a"]}, at("t"))
        start = graph.get_state(at("t")).config
        ends = []
        for who in ("b", "c"):
            graph.invoke({"log": [who]}, start)
            ends.append(graph.get_state(at("t")).config)
        ours.threads.leave(name)
    there = story(saver, SCHEMAS[schema])
    for who, end in zip(("b", "c"), ends, strict=True):
        assert there.get_state(end).values["log"] == told("a", who)
        assert there.invoke({"log": ["d"]}, end)["log"] == told("a", who, "d")


# -- again -------------------------------------------------------------------------------


def test_both_sides_may_change(target: Any) -> None:
    saver, name = target
    with MemorySaver() as ours:
        for thread in ("here", "there", "both", "deleted"):
            story(ours).invoke({"log": ["a"]}, at(thread))
        ours.threads.leave(name)
        for one, threads in ((ours, ("here", "both")), (saver, ("there", "both"))):
            for thread in threads:
                story(one).invoke({"log": ["b"]}, at(thread))
        ours.delete_thread("deleted")
        before = seen(saver)
        done = ours.threads.leave(name)
        assert (done.newer, done.deleted, list(done.conflicts)) == (
            ["there"],
            ["deleted"],
            ["both"],
        )
        after = seen(saver)
        assert before.items() <= after.items()
        assert {place[0] for place in after.keys() - before.keys()} == {"here"}


def test_an_interrupt_answered_on_both_sides_is_a_conflict(target: Any) -> None:
    saver, name = target

    def stops(saver: Any) -> Any:
        builder = StateGraph(Talk).add_node("ask", lambda _: {"log": [interrupt("?")]})
        builder.add_node("stop", lambda _: 1 / 0).add_edge("ask", "stop")
        return builder.add_edge(START, "ask").compile(checkpointer=saver)

    with MemorySaver() as ours:
        stops(ours).invoke({"log": []}, at("t"))
        ours.threads.leave(name)
        with pytest.raises(ZeroDivisionError):
            stops(ours).invoke(Command(resume="here"), at("t"))
        there = saver.get_tuple(at("t"))
        saver.put_writes(there.config, [("__resume__", ["there"])], there.pending_writes[0][0])
        before = seen(saver)
        assert list(ours.threads.leave(name).conflicts) == ["t"]
        assert seen(saver) == before


class Dying(InMemorySaver):
    """Fails at one of its writes, as a database that is stopped."""

    left = 0

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise ConnectionError

    def put(self, *args: Any) -> Any:
        self._count()
        return super().put(*args)

    def put_writes(self, *args: Any) -> None:
        self._count()
        super().put_writes(*args)


@pytest.mark.parametrize("schema", [Talk, Delta])
def test_interrupted_at_each_write(schema: Any) -> None:
    """The partial copy is an earlier state of the thread, and the next call completes it."""
    with MemorySaver() as ours:
        graph = asking(ours, schema)
        for _ in range(2):
            graph.invoke({"log": ["go"]}, at("t"))
            graph.invoke(Command(resume="one"), at("t"))
            graph.invoke(Command(resume="two"), at("t"))
        known = [one.values.get("log") for one in graph.get_state_history(at("t"))]
        for number in count():
            saver = Dying()
            saver.left = number
            try:
                ours.threads.leave(saver)
            except BackendError:
                pass
            else:
                break
            there = asking(saver, schema)
            assert there.get_state(at("t")).values.get("log") in [*known, None]
            _finished(copy.deepcopy(saver), schema)
            ours.threads.leave(saver)
            assert seen(saver) == seen(ours, saver.serde)
        assert number > 20


def _finished(saver: Any, schema: Any) -> None:
    """Continue from a partial copy to the end."""
    saver.left = -1
    graph = asking(saver, schema)
    if not list(saver.list(at("t"))):
        return
    state = graph.invoke(None, at("t"))
    for _ in range(4):
        if not (state and state.get("__interrupt__")):
            break
        state = graph.invoke(Command(resume="x"), at("t"))
    assert not graph.get_state(at("t")).next
