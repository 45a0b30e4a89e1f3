"""Threads leave for LangGraph's own savers, which continue them.

The oracle: the thread played on LangGraph's saver from the beginning, or as ours shows it.
"""

import copy
import json
import operator
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.engine import shown
from kit.places import at
from kit.runs import SCHEMAS, Delta, Plain, story, told
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from threadkeep import (
    ExtractiveSummarizer,
    KeyRing,
    LayeredCheckpointSaver,
    Layers,
    MemorySaver,
    StreamingCheckpointSaver,
)
from threadkeep import SqliteSaver as SqliteStore
from threadkeep.errors import BackendError, NotLangGraphError, ThreadNotFoundError

from .driver import play
from .foreign import foreign
from .scenarios import SCENARIOS
from .test_adopt import KEY, assert_same, fill, history, official

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
        assert ours.threads.adopt(name, verify=True).conflicts == {}
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


def test_the_next_question_comes_back(target: Any) -> None:
    """A task that asks again replaces its question, there and here."""
    saver, name = target
    with MemorySaver() as ours:
        asking(ours).invoke({"log": ["go"]}, at("t"))
        ours.threads.leave(name)
        asking(saver).invoke(Command(resume="one"), at("t"))
        assert ours.threads.adopt(name).writes > 0
        assert ours.threads.adopt(name).writes == 0
        assert asking(ours).get_state(at("t")).interrupts[0].value == "second?"
        asking(ours).invoke(Command(resume="two"), at("t"))
        assert ours.threads.adopt(name).writes == 0
        done = ours.threads.leave(name, verify=True)
        assert (done.conflicts, done.differences) == ({}, {})
        assert asking(saver).get_state(at("t")).values["log"] == ["go", "one", "two"]


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


@pytest.mark.drawn(1)
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


# -- parts that LangGraph's tables do not hold -------------------------------------------


def test_the_report_lists_parts_that_are_not_held(tmp_path: Path) -> None:
    with MemorySaver(cold=f"file://{tmp_path / 'cold'}") as ours:
        for who in ("a", "b", "c"):
            story(ours, Delta).invoke({"log": [who]}, at("delta"))
            story(ours).invoke({"log": [who]}, at("plain"))
        for thread in ("delta", "plain"):
            ours.threads.fork(thread, None, f"{thread}-fork")
        ours.prune(["delta", "plain"])
        head = ours.get_tuple(at("plain")).config["configurable"]["checkpoint_id"]
        ours.threads.tag("plain", "best", checkpoint_id=head)
        ours.threads.pin("plain")
        ours.threads.update("plain", metadata={"user": "u"}, ttl=3600)
        ours.threads.create("empty", tags=["one", "two"])
        ours.threads.archive("plain-fork")
        streaming = StreamingCheckpointSaver(ours)
        streaming.start_streaming("delta-fork")
        streaming.update("delta-fork", "half of it")
        streaming.stop_streaming("delta-fork", status="pending")
        target = InMemorySaver()
        done = ours.threads.leave(target, verify=True)
        assert (done.skipped, done.differences) == ({}, {})
        hidden = done.not_held["delta"]["pruned checkpoints"]
        assert hidden > 5
        assert done.not_held == {
            "delta": {"pruned checkpoints": hidden},
            "delta-fork": {"origin": 1, "partial output": 1},
            "empty": {"tags": 2},
            "plain": {
                "metadata": 1,
                "pin": 1,
                "ttl": 1,
                "marked checkpoints": 1,
                "missing parents": 1,
            },
            "plain-fork": {"origin": 1},
        }
    for thread, schema in (("delta", Delta), ("plain", SCHEMAS["plain"]), ("plain-fork", Talk)):
        graph = story(target, schema)
        assert graph.get_state(at(thread)).values["log"] == told("a", "b", "c")
        assert graph.invoke({"log": ["d"]}, at(thread))["log"] == told("a", "b", "c", "d")


def test_the_report_counts_writes_of_other_runs() -> None:
    """Two runs begin from the same checkpoint; LangGraph's tables have room for one."""
    with MemorySaver() as ours:
        story(ours, Delta).invoke({"log": ["a"]}, at("t"))
        loads = [ours.get_tuple(at("t")) for _ in range(2)]
        for number, loaded in enumerate(loads):
            ours.put_writes(loaded.config, [("log", [f"{number}"])], "task")
            child = {**empty_checkpoint(), "channel_versions": {}}
            ours.put(loaded.config, child, {"step": 9}, {})
        done = ours.threads.leave(InMemorySaver())
        assert done.not_held == {"t": {"writes of other runs": 1}}


def test_layered_memory_is_found_there(target: Any) -> None:
    saver, name = target
    policy = Layers(full_window=4, summary_window=8, batch=2)
    with LayeredCheckpointSaver(MemorySaver(), policy, ExtractiveSummarizer()) as ours:
        builder = StateGraph(MessagesState).add_node("say", lambda _: {"messages": ["yes"]})
        graph = builder.add_edge(START, "say").compile(checkpointer=ours)
        for number in range(12):
            graph.invoke({"messages": [str(number)]}, at("t"))
        said = [one.content for one in ours.full_messages("t")]
        assert len(said) == 24
        done = ours.threads.leave(name, verify=True)
        assert done.differences == {}
        assert done.not_held["t"]["layered memory"] > 0
    there = LayeredCheckpointSaver(saver, policy, ExtractiveSummarizer())
    assert [one.content for one in there.full_messages("t")] == said
    graph = builder.compile(checkpointer=there)
    graph.invoke({"messages": ["more"]}, at("t"))
    assert [one.content for one in there.full_messages("t")] == [*said, "more", "yes"]


def test_values_are_encrypted_with_a_key(tmp_path: Path) -> None:
    file = tmp_path / "langgraph.db"
    with MemorySaver(keys=KeyRing([KEY])) as ours:
        story(ours).invoke({"log": ["secret"]}, at("t"))
        assert ours.threads.leave(file, dry_run=True).plain
        done = ours.threads.leave(file, key=KEY, verify=True)
        assert (done.plain, done.differences) == (False, {})
        assert b"secret" not in b"".join([one.read_bytes() for one in tmp_path.iterdir()])
        with SqliteSaver.from_conn_string(str(file)) as there:
            there.serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
            assert ours.threads.leave(there).unchanged == done.checkpoints
            story(there).invoke({"log": ["b"]}, at("t"))
            assert story(there).get_state(at("t")).values["log"] == told("secret", "b")


def test_a_checkpoint_that_is_refused_skips_the_thread(tmp_path: Path) -> None:
    with official("postgres", tmp_path) as (saver, name), MemorySaver() as ours:
        story(ours).invoke({"log": ["a"]}, at("b"))
        builder = StateGraph(Plain).add_node("n", lambda _: {}).add_edge(START, "n")
        graph = builder.compile(checkpointer=ours)
        graph.invoke({"log": ["fine"]}, at("a"))
        graph.invoke({"log": []}, {**at("a"), "metadata": {"note": float("nan")}})
        done = ours.threads.leave(name)
        assert done.threads == 1
        assert "LangGraph's saver refuses checkpoint" in done.skipped["a"]
        assert builder.compile(checkpointer=saver).get_state(at("a")).values == {}
        assert done.checkpoints == len([*saver.list(None)]) == len([*ours.list(at("b"))])
        assert story(saver).get_state(at("b")).values["log"] == told("a")


@pytest.mark.parametrize("continued", [False, True])
def test_a_refused_thread_stays_if_a_program_has_continued_it(
    target: tuple[Any, Any], continued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has answered its first checkpoint, and not yet added another one."""
    saver, _ = target
    put, count = type(saver).put, []

    def refusing(self: Any, *args: Any) -> Any:
        count.append(args)
        if len(count) == 2:
            if continued:
                (first,) = saver.list(at("t"))
                saver.put_writes(first.config, [("log", ["answer"])], "another")
            raise ValueError
        return put(self, *args)

    monkeypatch.setattr(type(saver), "put", refusing)
    with MemorySaver() as ours:
        story(ours).invoke({"log": ["a"]}, at("t"))
        assert "refuses checkpoint" in ours.threads.leave(saver).skipped["t"]
    there = [one.pending_writes for one in saver.list(at("t"))]
    assert len(there) == continued
    assert all(("another", "log", ["answer"]) in writes for writes in there)


@pytest.mark.parametrize("kind", ["saver", "file"])
def test_a_store_of_ours_is_refused(kind: str, tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "ours.db") as other, MemorySaver() as ours:
        story(other).invoke({"log": ["a"]}, at("t"))
        with pytest.raises(NotLangGraphError, match="threadkeep store already"):
            ours.threads.leave(other if kind == "saver" else tmp_path / "ours.db")
        with pytest.raises(ThreadNotFoundError):
            ours.threads.leave(tmp_path / "new.db", ["absent"])
        assert not (tmp_path / "new.db").exists()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("where", ["aiosqlite", "aiopostgres"])
async def test_savers_of_event_loops(where: str, tmp_path: Path) -> None:
    async with foreign(where, tmp_path) as saver, MemorySaver() as ours:
        await story(ours).ainvoke({"log": ["a"]}, at("t"))
        assert (await ours.threads.aleave(saver, verify=True)).differences == {}
        await story(saver).ainvoke({"log": ["b"]}, at("t"))
        state = await story(saver).aget_state(at("t"))
        assert state.values["log"] == told("a", "b")
