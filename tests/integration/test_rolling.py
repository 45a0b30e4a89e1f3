"""Programs on LangGraph's saver and on threadkeep beside each other, on the same threads."""

import asyncio
import logging
import operator
import os
import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from kit import runs
from kit.backends import open_backend
from kit.places import at
from kit.runs import extend
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from threadkeep import Retention, SqliteSaver
from threadkeep.errors import (
    ClosedError,
    InvalidArgumentError,
    OpenError,
    ThreadExistsError,
    ThreadNotFoundError,
    UnfinishedErasureError,
)
from threadkeep.keys import KeyRing
from threadkeep.threads.transfer import adopt, rolling, source_sqlite
from threadkeep.threads.transfer.rolling import Rolling
from threadkeep.threads.transfer.source_memory import MemorySource

from .test_adopt import official
from .test_processes_and_loops import in_fork

SOURCES = ("memory", "sqlite", "postgres")


class State(TypedDict):
    notes: Annotated[list[str], operator.add]
    other: list[str]


def _ask(state: State) -> dict[str, Any]:
    first = interrupt(f"first of {len(state['notes'])}?")
    return {"notes": [first, interrupt(f"second after {first}?")]}


def graph_on(saver: Any) -> Any:
    """A node, then one that asks two questions."""
    builder = StateGraph(State)
    builder.add_node("think", lambda state: {"notes": [f"thought {len(state['notes'])}"]})
    builder.add_node("ask", _ask)
    builder.add_edge(START, "think").add_edge("think", "ask")
    return builder.compile(checkpointer=saver)


def said(text: str) -> dict[str, Any]:
    return {"notes": [text]}


@pytest.fixture
def pods(tmp_path: Any) -> Any:
    """Start a program on LangGraph's saver, and programs on ours beside it."""
    with ExitStack() as stack:

        def start(source: str, backend: str = "sqlite", count: int = 1, **options: Any) -> Any:
            made = official(source, tmp_path)
            old, name = stack.enter_context(made)
            if source == "sqlite":
                old.setup()
            name = name if source == "memory" else str(name)
            given = {"migrate_from": name, **options}
            ours = [open_backend(backend, tmp_path, **given) for _ in range(count)]
            return old, *[stack.enter_context(one) for one in ours]

        yield start


def story(graph: Any, thread: str = "t") -> list[Any]:
    """All that a thread shows to a program."""
    return [
        (one.config["configurable"]["checkpoint_id"], one.values, one.next, one.metadata["step"])
        for one in graph.get_state_history(at(thread))
    ]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_each_answers_the_others_questions(source: str, backend: str, pods: Any) -> None:
    old, new = map(graph_on, pods(source, backend, mirror_back=True))
    old.invoke(said("one"), at("t"))
    assert new.get_state(at("t")).interrupts == old.get_state(at("t")).interrupts
    new.invoke(Command(resume="by new"), at("t"))
    old.invoke(Command(resume="by old"), at("t"))
    assert new.invoke(said("two"), at("t"))["__interrupt__"][0].value == "first of 6?"
    old.invoke(Command(resume="by old"), at("t"))
    new.invoke(Command(resume="by new"), at("t"))
    assert new.get_state(at("t")).values["notes"][-2:] == ["by old", "by new"]
    assert story(new) == story(old)
    new.invoke(said("begun here"), at("other"))
    assert story(old, "other") == story(new, "other")
    old.invoke(Command(resume="continued there"), at("other"))
    assert story(old, "other") == story(new, "other")


@pytest.mark.parametrize("kind", ["sqlite", "unsaved", "connection", "pool"])
def test_a_saver_in_place_of_its_url(kind: str, tmp_path: Any) -> None:
    with ExitStack() as stack:
        source = "sqlite" if kind in ("sqlite", "unsaved") else "postgres"
        old_saver, _ = stack.enter_context(official(source, tmp_path))
        if kind == "unsaved":
            old_saver = stack.enter_context(type(old_saver).from_conn_string(":memory:"))
        if kind == "pool":  # (libpq's arguments may be given apart)
            database = old_saver.conn.info.get_parameters()
            given: Any = {"autocommit": True, "row_factory": dict_row, **database}
            pool = stack.enter_context(ConnectionPool("", kwargs=given, min_size=1))
            old_saver = type(old_saver)(pool)
        old = graph_on(old_saver)
        old.invoke(said("one"), at("t"))
        options = {"migrate_from": old_saver, "mirror_back": True}
        new = graph_on(stack.enter_context(open_backend("memory", tmp_path, **options)))
        for answer in ("first", "second"):
            new.invoke(Command(resume=answer), at("t"))
        assert story(old) == story(new)
        old.invoke(said("two"), at("t"))
        assert story(old) == story(new)


def test_lost_connections_lose_no_save_there(pods: Any, monkeypatch: Any) -> None:
    savers = pods("postgres", mirror_back=True)
    db, new = savers[0].conn, graph_on(savers[1])
    monkeypatch.setenv("PGAPPNAME", name := f"mirror of {os.getpid()}")  # (of later connections)
    new.invoke(said("one"), at("t"))
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    assert db.execute(ended, (name,)).fetchall()
    new.invoke(Command(resume="yes"), at("t"))
    written = [[one[1] for one in each.get_tuple(at("t")).pending_writes] for each in savers]
    assert written[0] == written[1]


@pytest.fixture
def taken(monkeypatch: Any) -> list[str]:
    """The threads of each copy."""
    names, take = [], adopt.take

    def spy(*given: Any, **options: Any) -> Any:
        names.append(given[3])
        return take(*given, **options)

    monkeypatch.setattr(adopt, "take", spy)
    return names


def test_later_turns_are_brought_and_nothing_is_read_twice(pods: Any, taken: Any) -> None:
    old, new = map(graph_on, pods("sqlite", mirror_back=True))
    for turn in range(3):
        old.invoke(said(f"old {turn}"), at("t"))
        for answer in ("first", "second"):
            new.invoke(Command(resume=answer), at("t"))
        assert new.get_state(at("t")).values["notes"][-2:] == ["first", "second"]
    new.invoke(said("alone"), at("t"))
    new.get_state(at("t"))
    assert taken == ["t"] * 3, "once for each turn of the other program"


async def test_a_slow_store_there_does_not_stop_the_event_loop(pods: Any, monkeypatch: Any) -> None:
    old, saver = pods("memory", mirror_back=True)
    await saver.aget_tuple(at("t"))
    asked, written, go = [threading.Event() for _ in range(3)]
    state, write = MemorySource.state, rolling.Rolling._writing

    def slow(source: Any, thread: str) -> Any:
        asked.set()
        assert go.wait(10), "the event loop has stopped"
        return state(source, thread)

    def begun(self: Any) -> Any:
        written.set()
        return write(self)

    monkeypatch.setattr(MemorySource, "state", slow)
    monkeypatch.setattr(rolling.Rolling, "_writing", begun)
    reading = asyncio.create_task(saver.aget_tuple(at("other")))
    await asyncio.to_thread(asked.wait)
    checkpoint = empty_checkpoint()
    place = at("t", checkpoint_ns="")
    writing = asyncio.create_task(saver.aput(place, checkpoint, {"source": "input"}, {}))
    await asyncio.to_thread(written.wait)
    go.set()
    await asyncio.gather(reading, writing)
    assert old.get_tuple(at("t")).checkpoint["id"] == checkpoint["id"]


def test_a_thread_that_both_have_continued_is_named(pods: Any, caplog: Any) -> None:
    old_saver, saver = pods("sqlite")
    old, new = graph_on(old_saver), graph_on(saver)
    old.invoke(said("one"), at("t"))
    for answer in ("first", "second"):
        new.invoke(Command(resume=f"{answer} here"), at("t"))
        old.invoke(Command(resume=f"{answer} there"), at("t"))
    with caplog.at_level(logging.WARNING, "threadkeep"):
        new.invoke(said("two"), at("t"))
    assert "Thread 't' was continued here and by LangGraph's saver" in caplog.text
    assert new.get_state(at("t")).values["notes"][-2:] == ["two", "thought 5"]
    source = old_saver.conn.execute("PRAGMA database_list").fetchone()[2]
    assert [*saver.threads.adopt(source, dry_run=True).conflicts] == ["t"]
    assert saver.threads.adopt(source, as_fork=True).forks == {"t": "t-adopted"}


class Deltas(TypedDict):
    count: int
    log: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=2)]


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
def test_snapshots_of_delta_channels_are_no_differences(source: str, pods: Any) -> None:
    """SqliteSaver has them with one checkpoint, we with all of the same version."""
    old_saver, saver, other = pods(source, count=2, mirror_back=True)
    builder = StateGraph(Deltas).add_node("tell", lambda _: {"log": ["told"]})
    builder.add_edge(START, "tell")
    old, new, last = (builder.compile(checkpointer=one) for one in (old_saver, saver, other))
    for graph in (old, new, new, new, old):
        graph.invoke({"count": 1}, at("t"))
    assert last.get_state(at("t")).values["log"] == ["told"] * 5
    assert other.threads.adopt(old_saver, verify=True).conflicts == {}
    assert other.threads.leave(old_saver, verify=True).differences == {}


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
def test_mirrored_messages_are_verified(source: str, pods: Any) -> None:
    """LangGraph's serializer does not keep which fields of a message were set."""
    old, saver = pods(source, mirror_back=True)
    builder = StateGraph(MessagesState)
    builder.add_node("bot", lambda state: {"messages": [("ai", "hello")]})
    builder.add_edge(START, "bot")
    for one in (old, saver):
        builder.compile(checkpointer=one).invoke({"messages": [("user", "hi")]}, at("t"))
    assert saver.threads.adopt(old, verify=True).verified == 6


def test_what_is_deleted_stays_deleted(pods: Any) -> None:
    old_saver, saver = pods("sqlite")
    graph_on(old_saver).invoke(said("one"), at("t"))
    assert saver.get_tuple(at("t")) is not None
    saver.delete_thread("t")
    assert saver.get_tuple(at("t")) is None
    assert old_saver.get_tuple(at("t")) is not None, "without mirror_back nothing is written there"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_thread_that_was_deleted_there_is_named(
    source: str, backend: str, pods: Any, caplog: Any
) -> None:
    old_saver, first, second = pods(source, backend, count=2)
    graph_on(old_saver).invoke(said("one"), at("t"))
    expected = story(graph_on(first))
    graph_on(first).invoke(said("here alone"), at("new"))
    old_saver.delete_thread("t")
    with caplog.at_level(logging.WARNING, "threadkeep"):
        for saver in (first, second, second):  # (the second one has never seen it there)
            assert story(graph_on(saver)) == expected
            assert saver.get_tuple(at("new")) is not None
    named = [one.getMessage() for one in caplog.records]
    assert len(named) == 2
    assert all("'t' was deleted in LangGraph's tables" in one for one in named)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
@pytest.mark.parametrize("mirror_back", [True, False])
def test_a_thread_that_was_deleted_there_is_deleted(
    source: str, backend: str, mirror_back: bool, pods: Any, tmp_path: Any
) -> None:
    given = {"mirror_back": mirror_back, "migrate_deletions": True}
    old_saver, first, second = pods(source, backend, count=2, **given)
    old = graph_on(old_saver)
    old.invoke(said("one"), at("t"))
    graph_on(first).invoke(Command(resume="here"), at("t"))
    graph_on(first).invoke(said("here alone"), at("new"))
    first.threads.export_bundle("t", tmp_path / "t.tkb")
    first.threads.import_bundle(tmp_path / "t.tkb", "copy")
    old_saver.delete_thread("t")
    assert second.get_tuple(at("t")) is None
    assert first.get_tuple(at("t")) is None
    assert {one.config["configurable"]["thread_id"] for one in first.list(None)} == {"new", "copy"}
    for name in ("new", "copy"):
        assert second.get_tuple(at(name)) is not None
    old.invoke(said("begun again"), at("t"))
    assert story(graph_on(second)) == story(old)


def test_an_adopted_thread_that_was_deleted_there_is_deleted(pods: Any, tmp_path: Any) -> None:
    old_saver, saver = pods("memory", migrate_deletions=True)
    graph_on(old_saver).invoke(said("one"), at("t"))
    with open_backend("sqlite", tmp_path) as plain:
        plain.threads.adopt(old_saver)
        before = plain.threads.get("t").updated_at
        plain.threads.adopt(old_saver)
        assert plain.threads.get("t").updated_at == before
    old_saver.delete_thread("t")
    assert saver.get_tuple(at("t")) is None


def test_a_thread_that_another_store_had_stays(pods: Any, tmp_path: Any) -> None:
    other = InMemorySaver()
    graph_on(other).invoke(said("one"), at("t"))
    with open_backend("sqlite", tmp_path) as plain:
        plain.threads.adopt(other)
    _, saver = pods("memory", migrate_deletions=True)
    assert story(graph_on(saver)) == story(graph_on(other))


def test_an_alias_of_the_host_is_reported_but_deletes_nothing(
    pods: Any, caplog: Any, monkeypatch: Any
) -> None:
    old_saver, first, second = pods("sqlite", count=2, migrate_deletions=True)
    graph_on(old_saver).invoke(said("one"), at("t"))
    expected = story(graph_on(first))
    old_saver.delete_thread("t")
    monkeypatch.setattr(source_sqlite, "node", lambda: "alias")
    assert story(graph_on(second)) == expected
    assert "'t' was deleted in LangGraph's tables" in caplog.text


def test_deleted_in_both_and_begun_again_there(pods: Any) -> None:
    old_saver, saver = pods("sqlite", mirror_back=True)
    old, new = graph_on(old_saver), graph_on(saver)
    old.invoke(said("one"), at("t"))
    saver.delete_thread("t")
    assert old_saver.get_tuple(at("t")) is None
    old.invoke(said("begun again"), at("t"))
    assert story(new) == story(old)


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_many_touch_a_thread_first(backend: str, pods: Any, taken: Any) -> None:
    old, *savers = pods("sqlite", backend, count=3)
    graph_on(old).invoke(said("one"), at("t"))
    for answer in ("a", "b"):
        graph_on(old).invoke(Command(resume=answer), at("t"))
    wanted, found = story(graph_on(old)), []
    go = threading.Barrier(6)

    def look(saver: Any) -> None:
        go.wait()
        found.append(story(graph_on(saver)))

    tasks = [threading.Thread(target=look, args=(saver,)) for saver in savers * 2]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert found == [wanted] * 6
    assert len(taken) == 3, "once by each program"
    assert savers[0].check().ok


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
def test_a_failure_there_loses_nothing(
    source: str, pods: Any, monkeypatch: Any, caplog: Any
) -> None:
    old_saver, saver = pods(source, mirror_back=True)
    old, new = graph_on(old_saver), graph_on(saver)
    old.invoke(said("one"), at("t"))
    with monkeypatch.context() as patch:
        patch.setattr(type(old_saver), "put", lambda *_: 1 / 0)
        new.invoke(Command(resume="a"), at("t"))
        new.invoke(Command(resume="b"), at("t"))
    assert "could not be written into LangGraph's tables" in caplog.text
    new.invoke(said("two"), at("t"))
    assert old.get_state(at("t")).values == new.get_state(at("t")).values
    assert old.get_state(at("t")).interrupts == new.get_state(at("t")).interrupts


def test_refused_options(tmp_path: Any) -> None:
    for option in ("mirror_back", "migrate_deletions"):
        with pytest.raises(InvalidArgumentError, match=option):
            SqliteSaver(tmp_path / "a.db", **{option: True})
    with pytest.raises(InvalidArgumentError, match="plain values"):
        SqliteSaver(
            tmp_path / "a.db",
            keys=KeyRing.generate(),
            migrate_from=str(tmp_path / "b.db"),
            mirror_back=True,
        )
    with pytest.raises(InvalidArgumentError, match="migrate_from"):
        SqliteSaver(tmp_path / "a.db", migrate_from=7)
    saver = SqliteSaver(tmp_path / "a.db", migrate_from=InMemorySaver())
    with saver, pytest.raises(InvalidArgumentError, match="tenants"):
        saver.for_tenant("acme")
    with pytest.raises(ClosedError):
        saver.get_tuple(at("t"))


async def test_a_wrong_source_is_found_when_the_saver_opens(tmp_path: Any) -> None:
    """Not at a request, when the old programs have been stopped."""
    saver = SqliteSaver(tmp_path / "a.db", migrate_from=tmp_path / "b.db")
    with pytest.raises(OpenError, match=r"no file .*b\.db"):
        saver.__enter__()
    with pytest.raises(OpenError, match=r"no file .*b\.db"):
        await saver.__aenter__()
    saver.close()


@pytest.mark.parametrize("mirror_back", [False, True])
def test_a_thread_that_was_erased_and_begun_again(
    mirror_back: bool, pods: Any, tmp_path: Any
) -> None:
    """The erasure is another program's, which does not know LangGraph's tables."""
    old_saver, saver, other = pods("sqlite", count=2, mirror_back=mirror_back)
    old = graph_on(old_saver)
    old.invoke(said("erased"), at("t"))
    graph_on(saver).get_state(at("t"))
    with open_backend("sqlite", tmp_path) as eraser:
        eraser.threads.erase("t")
    graph_on(saver).invoke(said("begun again"), at("t"))
    wanted = story(graph_on(saver))
    assert story(graph_on(other)) == wanted
    assert [*other.threads.adopt(old_saver).conflicts] == ["t"]
    assert other.threads.adopt(old_saver, as_fork=True).forks == {"t": "t-adopted"}


@pytest.mark.parametrize("mirror_back", [False, True])
def test_what_retention_removed_does_not_come_back(mirror_back: bool, pods: Any) -> None:
    old_saver, *savers = pods("sqlite", count=2, mirror_back=mirror_back)
    old = with_subgraph(old_saver)
    for turn in range(3):
        old.invoke(said(f"old {turn}"), at("t"))
        for saver in savers:
            left = [*saver.list(at("t"))]
            assert left[0].checkpoint == old_saver.get_tuple(at("t")).checkpoint
            saver.threads.gc(Retention(keep_last=1))
        assert len(left) == 1, "the second program copies nothing again"
    assert savers[0].check().ok


def with_subgraph(saver: Any) -> Any:
    inner = StateGraph(State).add_node("think", lambda _: {"notes": ["inside"]})
    outer = StateGraph(State).add_node("inner", inner.add_edge(START, "think").compile())
    return outer.add_edge(START, "inner").compile(checkpointer=saver)


@pytest.mark.parametrize("mirror_back", [False, True])
def test_a_stream_that_was_saved_here_is_no_turn(mirror_back: bool, pods: Any) -> None:
    old_saver, saver = pods("sqlite", mirror_back=mirror_back)
    old, new = graph_on(old_saver), graph_on(saver)
    old.invoke(said("one"), at("t"))
    new.get_state(at("t"))
    with saver.streaming("t") as stream:
        stream.update("partial output")
    old.invoke(said("two"), at("t"))
    assert story(new) == story(old)
    spaces = old_saver.conn.execute("SELECT DISTINCT checkpoint_ns FROM checkpoints")
    assert [*spaces] == [("",)]


def test_turns_after_a_prune_there_arrive(pods: Any) -> None:
    old_saver, saver = pods("postgres")
    old, new = graph_on(old_saver), graph_on(saver)
    old.invoke(said("one"), at("t"))
    assert new.get_state(at("t")).next
    old_saver.prune(["t"])
    old.invoke(Command(resume="yes"), at("t"))
    assert new.get_state(at("t")).interrupts == old.get_state(at("t")).interrupts
    assert len(story(new)) == 3


@pytest.mark.parametrize("mirror_back", [False, True])
async def test_erasures_name_or_clear_the_tables(mirror_back: bool, pods: Any) -> None:
    old_saver, saver = pods("sqlite", mirror_back=mirror_back)
    old = graph_on(old_saver)
    for thread in ("read here", "unread", "other"):
        old.invoke(said("secret"), at(thread))
    saver.threads.create("read here", metadata={"user_id": "u1"})
    assert saver.get_tuple(at("read here")) is not None
    asked = {"metadata": {"user_id": "u1"}, "thread_ids": ["unread"]}
    done = await saver.threads.adelete_account(**asked)
    assert {one.thread for one in done.threads} == {"read here", "unread"}
    assert ("LangGraph's tables" in done.cleared) == mirror_back
    assert ("hold unread, read here: delete" in str(done.remains)) != mirror_back
    assert "LangGraph's tables alone are not found by metadata" in str(done.remains)
    for thread in ("read here", "unread"):
        assert saver.get_tuple(at(thread)) is None
        assert (old_saver.get_tuple(at(thread)) is None) == mirror_back
    assert saver.threads.erase("other").threads
    with pytest.raises(ThreadNotFoundError):
        saver.threads.erase("nowhere")


def test_an_erasure_that_cannot_reach_the_tables_is_unfinished(pods: Any, monkeypatch: Any) -> None:
    old_saver, saver = pods("sqlite", mirror_back=True)
    graph_on(old_saver).invoke(said("secret"), at("t"))
    with monkeypatch.context() as patch:
        patch.setattr(type(old_saver), "delete_thread", lambda *_: 1 / 0)
        with pytest.raises(UnfinishedErasureError, match="LangGraph's saver failed"):
            saver.threads.erase("t")
    saver.threads.erase("t")
    assert old_saver.get_tuple(at("t")) is None


def test_retention_deletes_in_both_what_neither_uses(pods: Any) -> None:
    old_saver, saver = pods("sqlite", mirror_back=True)
    old = graph_on(old_saver)
    for thread in ("t", "unused"):
        old.update_state(at(thread), said("one"), as_node="ask")
        assert saver.get_tuple(at(thread)) is not None
    old.update_state(at("t"), said("two"), as_node="ask")
    threads, hour = saver.threads, timedelta(hours=1)
    then = threads.get("unused").updated_at + hour + timedelta(microseconds=1)
    threads._engine = threads._engine._replace(now=lambda: int(then.timestamp() * 1e6))
    assert threads.gc(Retention(ttl=hour)).deleted == ("unused",)
    assert old_saver.get_tuple(at("unused")) is None
    assert graph_on(saver).get_state(at("t")).values["notes"] == ["one", "two"]
    saver.prune(["t"], strategy="delete")
    assert old_saver.get_tuple(at("t")) is None


def test_copies_of_a_thread_have_its_last_turn(pods: Any) -> None:
    old_saver, saver = pods("sqlite")
    graph_on(old_saver).invoke(said("one"), at("t"))
    saver.copy_thread("t", "copy")
    assert len(story(graph_on(saver), "copy")) == len(story(graph_on(old_saver)))
    graph_on(old_saver).invoke(said("one"), at("there"))
    with pytest.raises(ThreadExistsError):
        saver.copy_thread("t", "there")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_a_forked_worker_has_connections_of_its_own(pods: Any) -> None:
    old_saver, saver = pods("postgres", mirror_back=True)
    old, new = graph_on(old_saver), graph_on(saver)
    new.invoke(said("before"), at("t"))
    new.get_state(at("t"))
    parents = {connection_of(saver._rolling._asked), *writers_of(saver)}

    def child() -> bool:
        new.invoke(Command(resume="in the child"), at("t"))
        new.get_state(at("t"))
        return parents.isdisjoint({connection_of(saver._rolling._asked), *writers_of(saver)})

    assert in_fork(child)
    assert new.get_state(at("t")).interrupts[0].value == "second after in the child?"
    assert story(new) == story(old)


def connection_of(source: Any) -> int:
    """The process of the server that answers a connection."""
    return int(source._source._db.info.backend_pid)


def writers_of(saver: Any) -> set[int]:
    with saver._rolling._writer.conn.connection() as connection:
        return {connection.info.backend_pid}


def test_ancestors_that_are_missing_there_are_written_too(pods: Any, monkeypatch: Any) -> None:
    """LangGraph's savers rebuild a DeltaChannel from the writes of ancestors."""
    old_saver, saver = pods("sqlite", mirror_back=True)
    old_saver.setup()
    old, new = runs.story(old_saver, runs.Delta), runs.story(saver, runs.Delta)
    for who in ("a", "b"):
        new.invoke({"log": [who]}, at("t"))
    saver.threads.fork("t", new_thread_id="fork")
    old_saver.delete_thread("t")
    with monkeypatch.context() as patch:
        patch.setattr(type(old_saver), "put_writes", lambda *_: 1 / 0)
        patch.setattr(type(old_saver), "put", lambda *_: 1 / 0)
        new.invoke({"log": ["refused there"]}, at("fork"))
    for thread in ("t", "fork"):
        new.invoke({"log": ["c"]}, at(thread))
        old.invoke({"log": ["d"]}, at(thread))
        assert len(old.get_state(at(thread)).values["log"]) > 11
        assert story(old, thread) == story(new, thread)


@pytest.mark.parametrize("source", SOURCES)
def test_writes_that_come_after_later_checkpoints_arrive(source: str, pods: Any) -> None:
    """Runs that overlap on a thread: a node of one ends after the other has continued."""
    old_saver, saver = pods(source, mirror_back=True)
    old_saver.get_tuple(at("t"))  # (makes the tables)
    gate = runs.Gate()
    old = runs.story(old_saver, runs.Delta, {"old-first": gate})
    new = runs.story(saver, runs.Delta)
    new.invoke({"log": ["begin"]}, at("t"))
    held = runs.Run(old.invoke, {"log": ["old"]}, at("t"), durability="sync")
    gate.wait_until_reached()
    for _ in range(2):
        new.invoke({"log": ["new"]}, at("t"))
        new.get_state(at("t"))
    gate.open()
    held.finish()
    assert new.get_state(at("t")).values == old.get_state(at("t")).values
    assert new.get_state(at("t")).values["log"] == runs.told("begin", "old")


def test_writes_of_a_killed_process_are_written_there_by_the_next(
    pods: Any, monkeypatch: Any
) -> None:
    old_saver, saver, other = pods("sqlite", count=2, mirror_back=True)
    old_saver.setup()

    def graph_of(saver: Any, act: Any = None) -> Any:
        builder = StateGraph(runs.Delta).add_node("think", lambda _: {"log": ["thought"]})
        builder.add_node("act", act or (lambda _: {"log": ["acted"]}))
        builder.add_edge(START, "think").add_edge(START, "act")
        return builder.compile(checkpointer=saver)

    begun = threading.Event()

    def killed(_: Any) -> Any:
        assert begun.wait(runs.WAIT)
        raise OSError

    put_writes = Rolling._write

    def refuse(*given: Any) -> Any:
        if given[2] == "put_writes" and given[3][1][0][1] == ["thought"]:
            begun.set()
            raise OSError
        return put_writes(*given)

    graph_of(saver).invoke({"log": ["before"]}, at("t"))
    assert other.get_tuple(at("t")) is not None
    with monkeypatch.context() as patch:
        patch.setattr(Rolling, "_write", refuse)
        with pytest.raises(OSError):
            graph_of(saver, killed).invoke({"log": ["now"]}, at("t"))
    graph_of(other).invoke(None, at("t"))
    log = graph_of(other).get_state(at("t")).values["log"]
    assert sorted(log[3:]) == ["acted", "now", "thought"]
    assert graph_of(old_saver).get_state(at("t")).values["log"] == log
