"""Threads of LangGraph's own savers are adopted unchanged: from each of them, into each store.

The oracle is LangGraph's own saver: what it gives of each checkpoint is what ours must give.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl
from uuid import uuid4

import ormsgpack
import psycopg
import pytest
from kit import backends
from kit.backends import BACKENDS, open_backend
from kit.engine import Dying, difference, everything, fresh, interrupted, shown, use_backend
from kit.places import at
from kit.runs import Delta, Plain, story, told
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from threadkeep import (
    ExtractiveSummarizer,
    LayeredCheckpointSaver,
    Layers,
    MemorySaver,
    StreamingCheckpointSaver,
)
from threadkeep._core.engine.logs import SEAL_BYTES
from threadkeep._core.engine.model import ReadThread
from threadkeep._run.layered_backend import LayeredBackend
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.sealed import SealedBackend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep.errors import (
    BackendError,
    CorruptionError,
    InvalidArgumentError,
    NotLangGraphError,
    OpenError,
    ThreadNotFoundError,
    UnknownTypeError,
    WrongKeyError,
)
from threadkeep.keys import KeyRing
from threadkeep.savers.saver import Saver

from .driver import play
from .foreign import emptied, tables
from .scenarios import SCENARIOS

SOURCES = ("sqlite", "postgres", "memory")
LONG = " ".join(str(number) for number in range(300))
KEY = b"0123456789abcdef"


@contextmanager
def official(
    name: str, folder: Path, postgres: Callable[[], str] = emptied, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """One of LangGraph's own savers, and what names its database."""
    if name == "memory":
        saver = InMemorySaver(**options)
        yield saver, saver
    elif name == "sqlite":
        file = folder / f"{uuid4()}.db"
        with SqliteSaver.from_conn_string(str(file)) as saver:
            saver.serde = options.get("serde", saver.serde)
            yield saver, file
    else:
        url = postgres()
        with PostgresSaver.from_conn_string(url) as saver:
            saver.serde = options.get("serde", saver.serde)
            yield saver, url_of(url)


def url_of(conninfo: str) -> str:
    """A conninfo as the URL that a program would write."""
    parts = psycopg.conninfo.conninfo_to_dict(conninfo)
    schema = str(parts.pop("options")).partition("search_path=")[2]
    host, port = parts.pop("host"), parts.pop("port", None)
    rest = "&".join(f"{k}={v}" for k, v in parts.items() if k not in ("user", "dbname", "password"))
    where = f"?host={host}" + (f"&port={port}" if port else "")
    return f"postgresql://{parts['user']}@/{parts['dbname']}{where}&schema={schema}&{rest}"


def fill(saver: Any, played: Iterable[str] | None = None) -> None:
    """Threads of most kinds: forks, subgraphs, fan-out, interrupts, errors, DeltaChannels."""
    for schema, thread in ((Plain, "plain"), (Delta, "delta")):
        for who in ("a", "b", "c"):
            story(saver, schema).invoke({"log": [who]}, at(thread))
    for name in PLAYED if played is None else played:
        play(SCENARIOS[name], saver, durability="sync", api="sync")


PLAYED = (
    "agent_with_two_tools",
    "chat_that_removes_messages",
    "copy_and_update_at_once",
    "delta_fanned_out_3",
    "delta_forked_3",
    "fan_out",
    "nested_values_that_change_deep_inside",
    "subgraph_with_a_memory_that_asks",
)


def theirs(saver: Any) -> dict[Any, Any]:
    """All that LangGraph's saver gives; the order of values by channel is free."""
    threads = sorted({found.config["configurable"]["thread_id"] for found in saver.list(None)})
    found = [shown(one) for thread in threads for one in saver.list(at(thread))]
    return {one["place"]: one for one in found}


def assert_same(ours: dict[Any, Any], expected: dict[Any, Any]) -> None:
    assert ours.keys() == expected.keys()
    for place, one in expected.items():
        assert ours[place] == one, difference(ours[place], one)


class Filled(NamedTuple):
    """One of LangGraph's savers that holds threads of most kinds, and what it gives of them."""

    saver: Any
    name: Any
    given: dict[Any, Any]
    histories: dict[Any, Any]


def history(saver: Any, place: tuple[str, str, str]) -> Any:
    config = at(place[0], checkpoint_ns=place[1], checkpoint_id=place[2])
    return saver.get_delta_channel_history(config=config, channels=["log"])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Filled]]:
    """Fills each kind of saver once: they are adopted from, never written to."""
    with ExitStack() as stack:

        @cache
        def fill_once(source: str) -> Filled:
            folder, own = tmp_path_factory.mktemp("filled"), partial(tables, "filled")
            saver, name = stack.enter_context(official(source, folder, own))
            fill(saver)
            given = theirs(saver)
            return Filled(saver, name, given, {place: history(saver, place) for place in given})

        yield fill_once


# -- all of it ---------------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_is_the_same(source: str, backend: str, tmp_path: Path, filled: Any) -> None:
    saver, name, expected, histories = filled(source)
    with open_backend(backend, tmp_path) as ours:
        heard: list[Any] = []
        done = ours.threads.adopt(name, verify=True, progress=lambda *a: heard.append(a))
        assert (done.checkpoints, done.verified) == (len(expected), len(expected))
        count = len(expected)
        assert heard[-1] == ("threads read", done.threads, done.threads)
        assert ("checkpoints read", count, count) in heard
        assert ("checkpoints verified", count, count) in heard
        assert_same(everything(ours), expected)
        for place, told_there in histories.items():
            assert history(ours, place) == told_there
        assert theirs(saver) == expected
        assert ours.check().ok


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_people_do_with_graphs(name: str, tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, _), MemorySaver(conflicts="raise") as ours:
        play(SCENARIOS[name], inner, durability=SCENARIOS[name].durabilities[0], api="sync")
        ours.threads.adopt(inner, verify=True)
        assert_same(everything(ours), theirs(inner))
        with MemorySaver() as other:
            ours.threads.mirror(other)
            assert_same(everything(other), everything(ours))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("source", SOURCES)
def test_a_graph_goes_on_where_it_was(source: str, filled: Any) -> None:
    with MemorySaver() as ours:
        ours.threads.adopt(filled(source).name, ["plain", "delta"])
        for schema, thread in ((Plain, "plain"), (Delta, "delta")):
            story(ours, schema).invoke({"log": ["d"]}, at(thread))
            state = story(ours, schema).get_state(at(thread))
            assert state.values["log"] == told("a", "b", "c", "d")


def talk(saver: Any, turns: int) -> None:
    """A chat whose messages grow by one a turn, and an answer."""
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(LONG)]})
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    for number in range(turns):
        graph.invoke({"messages": [HumanMessage(f"{number} {LONG}")]}, at("t"))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("source", SOURCES)
def test_it_is_stored_as_what_changed(source: str, tmp_path: Path) -> None:
    with official(source, tmp_path) as (saver, name), MemorySaver() as ours:
        talk(saver, 30)
        ours.threads.adopt(name, verify=True)
        stats = ours.stats()
        assert stats.full_copy_bytes > 10 * stats.bytes_on_disk
        with MemorySaver() as direct:
            direct.get_next_version = saver.get_next_version  # LangGraph's are long texts
            talk(direct, 30)
            # Random ids decide how much is not sealed yet, here and there, when the talk ends.
            assert stats.bytes_on_disk < 1.2 * direct.stats().bytes_on_disk + SEAL_BYTES


def test_of_each_saver_object(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sqlite, file = stack.enter_context(official("sqlite", tmp_path))
        postgres, _ = stack.enter_context(official("postgres", tmp_path))
        unsaved = stack.enter_context(SqliteSaver.from_conn_string(":memory:"))
        pool = stack.enter_context(ConnectionPool(postgres.conn.info.dsn, min_size=1, max_size=1))
        for saver in (sqlite, postgres, unsaved):
            story(saver).invoke({"log": ["a"]}, at("t"))
        for saver in (sqlite, postgres, unsaved, PostgresSaver(pool)):
            with MemorySaver() as ours:
                assert ours.threads.adopt(saver, verify=True).threads == 1
                assert_same(everything(ours), theirs(saver))
        with MemorySaver() as ours:
            assert ours.threads.adopt(f"sqlite:///{file}").threads == 1


def test_threads_of_layered_memory_and_of_streams(tmp_path: Path) -> None:
    with official("sqlite", tmp_path) as (saver, name), MemorySaver() as ours:
        policy = Layers(full_window=4, summary_window=8, batch=2)
        talk(LayeredCheckpointSaver(saver, policy, ExtractiveSummarizer()), 10)
        streaming = StreamingCheckpointSaver(saver)
        streaming.start_streaming("t")
        streaming.update("t", "half of it")
        streaming.stop_streaming("t", status="pending")
        assert ours.threads.adopt(name, verify=True).threads == 1
        assert len(LayeredCheckpointSaver(ours, policy).full_messages("t")) == 20
        assert [part.text for part in ours.partial("t")] == ["half of it"]


async def test_of_each_async_saver_object(tmp_path: Path) -> None:
    url = emptied()
    async with (
        AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as sqlite,
        AsyncPostgresSaver.from_conn_string(url) as postgres,
        AsyncSqliteSaver.from_conn_string(":memory:") as unsaved,
    ):
        for saver in (sqlite, postgres):
            await story(saver).ainvoke({"log": ["a"]}, at("t"))
            with MemorySaver() as ours:
                assert (await ours.threads.aadopt(saver, verify=True)).threads == 1
                head = ours.get_tuple(at("t"))
                assert head.checkpoint["channel_values"]["log"] == told("a")
        with MemorySaver() as ours, pytest.raises(OpenError, match="in memory"):
            await ours.threads.aadopt(unsaved)


# -- again, and in the middle ------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
def test_done_again_it_brings_the_rest(source: str, tmp_path: Path, saver: Any) -> None:
    with official(source, tmp_path) as (inner, name):
        fill(inner, ["subgraph_with_a_memory_that_asks"])
        first = saver.threads.adopt(name)
        again = saver.threads.adopt(name)
        assert (again.checkpoints, again.writes) == (0, 0)
        assert again.unchanged == first.checkpoints
        config = {**at("plain"), "recursion_limit": 9}
        story(inner).invoke({"log": ["d"]}, config)
        head = inner.get_tuple(at("plain"))
        inner.put_writes(head.config, [("log", ["pending"])], "late", "~late")
        more = saver.threads.adopt(name, verify=True)
        assert more.unchanged == first.checkpoints
        assert more.checkpoints == 4
        assert_same(everything(saver), theirs(inner))
        assert saver.check().ok


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_is_written_meanwhile(source: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Of each thread one state is read; doing it again brings the rest."""
    monkeypatch.setattr("threadkeep.threads.transfer.adopt._MOST_CHECKPOINTS", 3)
    with official(source, tmp_path) as (inner, name), MemorySaver() as ours:
        for thread in ("t", "u"):
            story(inner).invoke({"log": ["a"]}, at(thread))
            story(inner).invoke({"log": ["b"]}, at(thread))
        meanwhile = ["c", "d"]

        def progress(what: str, done: int, total: int) -> None:
            if meanwhile:
                story(inner).invoke({"log": [meanwhile.pop(0)]}, at("t"))

        assert ours.threads.adopt(name, verify=True, progress=progress).checkpoints == 16
        assert story(ours).get_state(at("t")).values["log"] == told("a", "b")
        assert ours.threads.adopt(name, verify=True).checkpoints == 8
        assert_same(everything(ours), theirs(inner))


@pytest.mark.parametrize("encrypted", [False, True])
def test_into_a_store_with_a_serializer(encrypted: bool, tmp_path: Path) -> None:
    """Encrypted values have other bytes each time."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY) if encrypted else None
    with (
        official("memory", tmp_path) as (inner, name),
        MemorySaver(serde=serde or JsonPlusSerializer()) as ours,
    ):
        fill(inner, ["subgraph_with_a_memory_that_asks"])
        done = ours.threads.adopt(name, verify=True)
        assert done.verified == done.checkpoints
        assert ours.threads.adopt(name, verify=True).unchanged == done.checkpoints


def test_deleted_here_and_used_again(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        story(inner).invoke({"log": ["a"]}, at("t"))
        ours.threads.adopt(name)
        ours.delete_thread("t")
        story(ours).invoke({"log": ["b"]}, at("t"))
        assert ours.threads.adopt(name, "t").conflicts == {"t": APART}
        assert story(ours).get_state(at("t")).values["log"] == told("b")


def test_used_again_while_it_comes_back(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        story(inner).invoke({"log": ["a"]}, at("t"))
        ours.threads.adopt(name)
        ours.delete_thread("t")
        racing = interrupted(ours, lambda: story(ours).invoke({"log": ["b"]}, at("t")))
        assert racing.threads.adopt(name, "t").conflicts == {"t": APART}
        assert story(fresh(ours)).get_state(at("t")).values["log"] == told("b")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("commits", [0, 1, 2, 7, 20, 25])
def test_cut_off_anywhere_it_goes_on(commits: int, tmp_path: Path) -> None:
    with official("sqlite", tmp_path) as (inner, name), MemorySaver() as ours:
        for who in ("a", "b"):
            story(inner, Delta).invoke({"log": [who]}, at("delta"))
            story(inner).invoke({"log": [who]}, at("plain"))
        backend = ours._store.backend
        use_backend(ours, Dying(backend, commits))
        with pytest.raises(BackendError, match="killed"):
            ours.threads.adopt(name)
        assert ours.check().ok
        use_backend(ours, backend)
        expected = theirs(inner)
        before = len(everything(ours))
        done = ours.threads.adopt(name, verify=True)
        assert (done.unchanged, done.checkpoints) == (before, len(expected) - before)
        assert_same(everything(ours), expected)


async def test_cancelled_it_goes_on(saver: Any, filled: Any) -> None:
    _, name, expected, _ = filled("sqlite")
    begun = asyncio.Event()
    task = asyncio.ensure_future(
        saver.threads.aadopt(name, progress=lambda what, done, total: begun.set())
    )
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await saver.threads.aadopt(name, verify=True)
    assert_same(everything(saver), expected)
    await saver.aclose()


def test_large_threads_are_read_in_parts(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("threadkeep.threads.transfer.adopt._MOST_BYTES", 3000)
    with official("postgres", tmp_path) as (inner, name), MemorySaver() as ours:
        for number in range(30):
            story(inner).invoke({"log": [f"{number}{'x' * 100}"]}, at("t"))
        parts: list[Any] = []
        ours.threads.adopt(name, verify=True, progress=lambda *a: parts.append(a))
        assert len(parts) > 10
        assert_same(everything(ours), theirs(inner))


def test_what_is_here_in_another_state_is_kept(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        story(inner).invoke({"log": ["a"]}, at("t"))
        head = inner.get_tuple(at("t"))
        other = {**head.checkpoint, "channel_versions": {"log": 99}, "channel_values": {"log": []}}
        ours.put(at("t", checkpoint_ns=""), other, {}, {})
        before = everything(ours)
        why = f"Checkpoint {head.checkpoint['id']} is stored already, in another state."
        assert ours.threads.adopt(name).conflicts == {"t": why}
        assert all(everything(ours)[place] == one for place, one in before.items())
        assert ours.threads.adopt(name, replace=True).replaced == ["t"]
        assert_same(everything(ours), theirs(inner))


# -- both went on --------------------------------------------------------------------------

APART = "The thread here and the source have diverged."


def gone_on(inner: Any, name: Any, saver: Any) -> None:
    """Adopt a thread that both continue afterwards, and one that neither continues."""
    for thread in ("t", "u"):
        story(inner).invoke({"log": ["a"]}, at(thread))
    saver.threads.adopt(name)
    story(saver).invoke({"log": ["here"]}, at("t"))
    story(inner).invoke({"log": ["late"]}, at("t"))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("source", SOURCES)
def test_a_thread_that_both_went_on_with_is_left_alone(
    source: str, tmp_path: Path, saver: Any
) -> None:
    with official(source, tmp_path) as (inner, name):
        gone_on(inner, name, saver)
        story(inner).invoke({"log": ["more"]}, at("u"))
        before = everything(saver)
        done = saver.threads.adopt(name, verify=True)
        assert (done.conflicts, done.threads, done.checkpoints) == ({"t": APART}, 1, 4)
        assert all(everything(saver)[place] == one for place, one in before.items())
        assert story(saver).get_state(at("t")).values["log"] == told("a", "here")
        assert story(saver).get_state(at("u")).values["log"] == told("a", "more")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("source", SOURCES)
def test_the_line_of_the_source_goes_into_a_fork(source: str, tmp_path: Path, saver: Any) -> None:
    with official(source, tmp_path) as (inner, name):
        gone_on(inner, name, saver)
        for late in ("late", "later"):
            done = saver.threads.adopt(name, as_fork=True, verify=True)
            assert (done.forks, done.conflicts) == ({"t": "t-adopted"}, {})
            expected = {p: o for p, o in theirs(inner).items() if p[0] == "t"}
            fork = {("t", *p[1:]): o for p, o in everything(saver).items() if p[0] == "t-adopted"}
            assert fork.keys() == expected.keys()
            if late == "late":
                story(inner).invoke({"log": ["later"]}, at("t"))
        assert story(saver).get_state(at("t")).values["log"] == told("a", "here")
        assert story(saver).get_state(at("t-adopted")).values["log"] == told("a", "late", "later")
        assert saver.threads.get("t-adopted").forked_from[0] == "t"
        saver.threads.merge_fork("t-adopted", "t", story(saver))
        merged = story(saver).get_state(at("t")).values["log"]
        assert set(told("late", "later", "here")) <= set(merged)
        assert saver.check().ok


def test_a_fork_that_went_on_too_is_a_conflict(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        gone_on(inner, name, ours)
        ours.threads.adopt(name, as_fork=True)
        story(ours).invoke({"log": ["x"]}, at("t-adopted"))
        story(inner).invoke({"log": ["later"]}, at("t"))
        done = ours.threads.adopt(name, as_fork=True)
        assert done.conflicts == {"t": APART}


def test_a_dry_run_tells_and_changes_nothing(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        story(inner).invoke({"log": ["a"]}, at("t"))
        story(inner).invoke({"log": ["a"]}, at("u"))
        assert ours.threads.adopt(name, dry_run=True).threads == 2
        assert not everything(ours)
        ours.threads.adopt(name)
        story(ours).invoke({"log": ["ours"]}, at("t"))
        story(inner).invoke({"log": ["theirs"]}, at("t"))
        before = everything(ours)
        for options in ({}, {"replace": True}, {"as_fork": True}):
            told_before = ours.threads.adopt(name, dry_run=True, **options)
            assert everything(ours) == before
            with MemorySaver() as copy:
                ours.threads.mirror(copy)
                done = copy.threads.adopt(name, **options)
                assert told_before.conflicts.keys() == done.conflicts.keys()
                for field in ("threads", "checkpoints", "unchanged", "replaced", "forks"):
                    assert getattr(told_before, field) == getattr(done, field), (field, options)


def test_threads_with_nothing_in_common(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        story(ours).invoke({"log": ["ours"]}, at("t"))
        story(inner).invoke({"log": ["theirs"]}, at("t"))
        assert ours.threads.adopt(name).conflicts == {"t": APART}
        assert ours.threads.adopt(name, as_fork=True).forks == {"t": "t-adopted"}
        assert story(ours).get_state(at("t")).values["log"] == told("ours")
        assert story(ours).get_state(at("t-adopted")).values["log"] == told("theirs")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("source", SOURCES)
async def test_the_thread_of_the_source_replaces_the_one_here(
    source: str, tmp_path: Path, saver: Any
) -> None:
    with official(source, tmp_path) as (inner, name):
        gone_on(inner, name, saver)
        done = await saver.threads.aadopt(name, replace=True, verify=True)
        assert (done.replaced, done.conflicts) == (["t"], {})
        assert_same(everything(saver), theirs(inner))
        story(saver).invoke({"log": ["on"]}, at("t"))
        assert story(saver).get_state(at("t")).values["log"] == told("a", "late", "on")
        assert saver.check().ok
    await saver.aclose()


def test_nothing_is_replaced_by_what_cannot_be_read(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        gone_on(inner, name, ours)
        head = inner.get_tuple(at("t"))
        place = ("t", "", "log", head.checkpoint["channel_versions"]["log"])
        inner.blobs[place] = ("msgpack", b"\xc1")
        with pytest.raises(CorruptionError):
            ours.threads.adopt(name, "t", replace=True)
        assert [*ours.threads.adopt(name, replace=True).skipped] == ["t"]
        assert story(ours).get_state(at("t")).values["log"] == told("a", "here")


def test_a_thread_that_went_on_here_alone_is_no_conflict(tmp_path: Path, saver: Any) -> None:
    with official("memory", tmp_path) as (inner, name):
        play(SCENARIOS["subgraph_with_a_memory_that_asks"], inner, durability="sync", api="sync")
        story(inner).invoke({"log": ["a"]}, at("t"))
        saver.threads.adopt(name)
        saver.prune(["t"])
        story(saver).invoke({"log": ["b"]}, at("t"))
        story(saver).invoke({"log": ["c"]}, at("t"))
        assert not saver.threads.adopt(name).conflicts  # pruned checkpoints come back
        assert story(saver).get_state(at("t")).values["log"] == told("a", "b", "c")


def test_replace_and_as_fork_exclude_each_other() -> None:
    with MemorySaver() as ours, pytest.raises(InvalidArgumentError, match="Use one of them"):
        ours.threads.adopt(InMemorySaver(), replace=True, as_fork=True)


def test_a_deleted_thread_comes_back_only_if_it_is_named(tmp_path: Path, saver: Any) -> None:
    with official("memory", tmp_path) as (inner, name):
        for thread in ("a", "b"):
            story(inner).invoke({"log": ["x"]}, at(thread))
        saver.threads.adopt(name)
        saver.delete_thread("a")
        done = saver.threads.adopt(name)
        assert (done.deleted, done.threads, done.checkpoints) == (["a"], 1, 0)
        assert saver.get_tuple(at("a")) is None
        assert saver.threads.adopt(name, "a").threads == 1
        assert_same(everything(saver), theirs(inner))
        story(saver).invoke({"log": ["y"]}, at("a"))


def test_what_was_pruned_here_stays_sound(tmp_path: Path, saver: Any) -> None:
    with official("memory", tmp_path) as (inner, name):
        for who in ("a", "b"):
            story(inner, Delta).invoke({"log": [who]}, at("t"))
        saver.threads.adopt(name)
        saver.prune(["t"])
        saver.threads.adopt(name, verify=True)
        assert story(saver, Delta).get_state(at("t")).values["log"] == told("a", "b")
        assert saver.check().ok


def test_verify_finds_what_differs(tmp_path: Path) -> None:
    with official("memory", tmp_path) as (inner, name), MemorySaver() as ours:
        story(inner).invoke({"log": ["a"]}, at("t"))
        ours.threads.adopt(name)
        head = inner.get_tuple(at("t"))
        place = ("t", "", "log", head.checkpoint["channel_versions"]["log"])
        inner.blobs[place] = inner.serde.dumps_typed(["another"])
        with pytest.raises(CorruptionError, match="channel_values of 'log'"):
            ours.threads.adopt(name, verify=True)
        del inner.storage["t"][""][head.checkpoint["id"]]
        ours.threads.adopt(name, verify=True)


@pytest.mark.parametrize("source", SOURCES)
def test_a_damaged_thread_is_skipped_and_named(source: str, tmp_path: Path) -> None:
    with official(source, tmp_path) as (inner, name), MemorySaver() as ours:
        for thread in ("a", "bad", "c"):
            story(inner).invoke({"log": ["x"]}, at(thread))
        head = inner.get_tuple(at("bad")).config["configurable"]["checkpoint_id"]
        if source == "memory":
            checkpoint, _, parent = inner.storage["bad"][""][head]
            inner.storage["bad"][""][head] = checkpoint, inner.serde.dumps_typed([1]), parent
        else:
            mark = "?" if source == "sqlite" else "%s"
            db = inner.conn
            db.execute(
                f"UPDATE checkpoints SET metadata = '[1]' WHERE checkpoint_id = {mark}", (head,)
            )
            if source == "sqlite":
                db.commit()
        report = ours.threads.adopt(name, verify=True)
        assert (report.threads, [*report.skipped]) == (2, ["bad"])
        assert "metadata" in report.skipped["bad"]
        assert head in report.skipped["bad"]
        for thread in ("a", "c"):
            assert story(ours).invoke({"log": ["y"]}, at(thread))["log"] == told("x", "y")
        with pytest.raises(InvalidArgumentError, match="metadata"):
            ours.threads.adopt(name, "bad")
        assert ours.check().ok


@pytest.mark.parametrize("metadata", ["nothing", '{"n": 123456789012345678901234567890}'])
def test_metadata_that_sqlite_has_as_text(metadata: str, tmp_path: Path) -> None:
    with official("sqlite", tmp_path) as (inner, name), MemorySaver() as ours:
        story(inner).invoke({"log": ["x"]}, at("t"))
        inner.conn.execute("UPDATE checkpoints SET metadata = ?", (metadata,))
        inner.conn.commit()
        report = ours.threads.adopt(name, verify=True)
        if metadata == "nothing":
            assert "not valid JSON" in report.skipped["t"]
        else:
            assert ours.get_tuple(at("t")).metadata == json.loads(metadata)
            assert report.verified == report.checkpoints


# -- values ------------------------------------------------------------------------------


@pytest.mark.drawn(1)
@pytest.mark.parametrize("source", SOURCES)
def test_encrypted(source: str, tmp_path: Path) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    with official(source, tmp_path, serde=serde) as (inner, name):
        story(inner).invoke({"log": ["secret"]}, at("t"))
        with MemorySaver() as ours:
            assert ours.threads.adopt(inner, verify=True).threads == 1
            assert_same(everything(ours), theirs(inner))
        if source == "memory":
            return
        with MemorySaver() as ours:
            for given in (None, b"another key 1234"):
                with pytest.raises(WrongKeyError, match="checkpoint"):
                    ours.threads.adopt(name, key=given)
            with pytest.raises(InvalidArgumentError, match="16, 24 or 32"):
                ours.threads.adopt(name, key="short")
            assert not everything(ours)
            ours.threads.adopt(name, key=KEY.decode(), verify=True)
            assert_same(everything(ours), theirs(inner))


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
def test_keys_of_the_saver_are_tried(source: str, tmp_path: Path) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    with official(source, tmp_path, serde=serde) as (inner, name):
        story(inner).invoke({"log": ["secret"]}, at("t"))
        with sealed_saver(b"another key 1234") as ours:
            with pytest.raises(WrongKeyError, match="checkpoint"):
                ours.threads.adopt(name)
            assert not everything(ours)
        with sealed_saver(b"another key 1234", KEY) as ours:
            done = ours.threads.adopt(name, verify=True)
            assert (done.threads, done.plain) == (1, 0)
            assert_same(everything(ours), theirs(inner))


def test_values_that_are_not_encrypted_are_counted(tmp_path: Path) -> None:
    """LangGraph's class accepts them."""
    with official("sqlite", tmp_path) as (inner, name):
        story(inner).invoke({"log": ["plain"]}, at("t"))
        inner.serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
        story(inner).invoke({"log": ["secret"]}, at("u"))
        with sealed_saver(KEY) as ours:
            done = ours.threads.adopt(name)
            assert (done.threads, done.plain > done.checkpoints / 2) == (2, True)
            assert ours.threads.adopt(name, "u").plain == 0
            assert_same(everything(ours), theirs(inner))
        with MemorySaver() as ours:
            assert ours.threads.adopt(name, "t").plain == 0  # (no keys were given)


def sealed_saver(*keys: bytes) -> Saver:
    return Saver(SealedBackend(MemoryBackend(), StoreKeys(KeyRing(keys))))


def test_a_serializer_of_the_programs_own(tmp_path: Path) -> None:
    class Backwards(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> Any:
            kind, data = super().dumps_typed(obj)
            return f"{kind}-backwards", data[::-1]

        def loads_typed(self, data: Any) -> Any:
            return super().loads_typed((data[0].removesuffix("-backwards"), data[1][::-1]))

    with official("sqlite", tmp_path, serde=Backwards()) as (inner, name):
        story(inner).invoke({"log": ["a"]}, at("t"))
        with MemorySaver() as ours:
            with pytest.raises(UnknownTypeError, match="serializer"):
                ours.threads.adopt(name)
            ours.threads.adopt(inner, verify=True)
            assert_same(everything(ours), theirs(inner))


def test_pickles_only_from_a_saver_that_has_them(tmp_path: Path) -> None:
    serde = JsonPlusSerializer(pickle_fallback=True)
    with official("sqlite", tmp_path, serde=serde) as (inner, name):
        inner.put_writes(put_one(inner, {"log": ["a"]}), [("log", complex(1, 2))], "task")
        with MemorySaver() as ours, pytest.raises(UnknownTypeError, match="pickle"):
            ours.threads.adopt(name)
        with MemorySaver(pickle_fallback=True) as ours:
            ours.threads.adopt(inner)
            assert ours.get_tuple(at("t")).pending_writes == [("task", "log", complex(1, 2))]


def test_a_class_that_is_not_there_is_named_with_its_checkpoint(tmp_path: Path) -> None:
    with official("sqlite", tmp_path) as (inner, name), MemorySaver() as ours:
        place = put_one(inner, {"log": 1})["configurable"]["checkpoint_id"]
        unknown = ormsgpack.Ext(5, ormsgpack.packb(["lost.module", "Lost", {"a": 1}, "x"]))
        inner.conn.execute(
            "INSERT INTO writes VALUES ('t', '', ?, 'task', '', 0, 'log', 'msgpack', ?)",
            (place, ormsgpack.packb(unknown)),
        )
        inner.conn.commit()
        with pytest.raises(UnknownTypeError, match=place) as caught:
            ours.threads.adopt(name)
        assert "lost.module.Lost" in str(caught.value)
        assert "register" in caught.value.hint


def put_one(saver: Any, values: dict[str, Any], thread: str = "t", **more: Any) -> Any:
    """A checkpoint whose channels are all of version 1."""
    versions = dict.fromkeys(values, 1)
    made = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions, **more}
    return saver.put(at(thread, checkpoint_ns=""), made, {"source": "loop"}, versions)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("source", SOURCES)
def test_values_that_neighbours_share_stay_apart(source: str, tmp_path: Path) -> None:
    """Equal objects of one checkpoint come back as objects of their own."""
    items = [Send("a", {"n": 1}), Send("a", {"n": 1}), Send("b", 2)]
    with official(source, tmp_path) as (inner, name), MemorySaver() as ours:
        config = put_one(inner, {"one": items, "other": list(items)})
        for number in range(3):
            made = {**empty_checkpoint(), "channel_values": {"one": items[number:]}}
            made["channel_versions"] = {"one": 2 + number, "other": 1}
            made["channel_values"]["other"] = items
            config = inner.put(config, made, {}, {"one": 2 + number})
        ours.threads.adopt(name, verify=True)
        assert_same(everything(ours), theirs(inner))
        first = list(ours.list(at("t")))[-1].checkpoint["channel_values"]
        assert first["one"][0] is not first["one"][1]
        assert first["one"][0] is not first["other"][0]


def test_a_value_that_a_saver_leaves_out_is_left_out(tmp_path: Path) -> None:
    """LangGraph's SqliteSaver shows what each checkpoint was given, whatever its versions."""
    with official("sqlite", tmp_path) as (inner, name), MemorySaver() as ours:
        config = put_one(inner, {"a": [1, 2], "b": "x"})
        made = {**empty_checkpoint(), "channel_values": {"b": "changed in place"}}
        made["channel_versions"] = {"a": 1, "b": 1}
        inner.put(config, made, {}, {})
        ours.threads.adopt(name, verify=True)
        assert_same(everything(ours), theirs(inner))


def test_ids_that_are_no_text_in_memory(tmp_path: Path) -> None:
    inner = InMemorySaver()
    story(inner).invoke({"log": ["a"]}, {"configurable": {"thread_id": 7}})
    with MemorySaver() as ours:
        assert ours.threads.adopt(inner, "7").threads == 1
        assert story(ours).get_state(at("7")).values["log"] == told("a")


# -- old forms ---------------------------------------------------------------------------

OLD_SQLITE = """
CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
    checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB,
    metadata BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
CREATE TABLE writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
    checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, idx INTEGER NOT NULL,
    channel TEXT NOT NULL, type TEXT, value BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));
"""


def test_tables_without_task_paths_sqlite(tmp_path: Path) -> None:
    file, serde = tmp_path / "old.db", JsonPlusSerializer()
    made = {**empty_checkpoint(), "v": 1, "pending_sends": [Send("a", 1)]}
    with closing(sqlite3.connect(file)) as db:
        db.executescript(OLD_SQLITE)
        row = ("t", "", made["id"], None, *serde.dumps_typed(made), b'{"step": -1}')
        db.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for idx, channel in enumerate(("a", "__interrupt__", "b")):  # all counted, once
            row = ("t", "", made["id"], "task", idx, channel, *serde.dumps_typed(idx))
            db.execute("INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.commit()
    before = file.read_bytes()
    with MemorySaver() as ours:
        ours.threads.adopt(file, verify=True)
        assert file.read_bytes() == before
        with SqliteSaver.from_conn_string(str(file)) as inner:
            assert_same(everything(ours), theirs(inner))
        head = ours.get_tuple(at("t"))
        assert [w[1] for w in head.pending_writes] == ["a", "__interrupt__", "b"]
        assert head.checkpoint["pending_sends"] == [Send("a", 1)]


@pytest.mark.parametrize("has_path", [True, False])
def test_sends_of_old_checkpoints_postgres(has_path: bool, tmp_path: Path) -> None:
    """LangGraph's saver moves them into a channel when it loads: so is what we adopt."""
    with official("postgres", tmp_path) as (inner, name), ExitStack() as stack:
        first = put_one(inner, {"log": ["a"]}, v=3)
        inner.put_writes(first, [("__pregel_tasks", Send("b", 2))], "2", "~2")
        inner.put_writes(first, [("__pregel_tasks", Send("a", 1)), ("log", [])], "1", "~1")
        made = {**empty_checkpoint(), "v": 3, "channel_versions": {"log": 1, "n": 2}}
        second = inner.put(first, {**made, "channel_values": {"log": ["a"], "n": 5}}, {}, {"n": 2})
        inner.put(second, {**made, "id": empty_checkpoint()["id"]}, {}, {})
        none = {**empty_checkpoint(), "v": 1, "channel_versions": {}}
        inner.put(at("u", checkpoint_ns=""), none, {}, {})
        expected = theirs(inner)
        if not has_path:
            stack.callback(
                inner.conn.execute,
                "ALTER TABLE checkpoint_writes ADD COLUMN task_path TEXT NOT NULL DEFAULT ''",
            )
            inner.conn.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
        with MemorySaver() as ours:
            if not has_path:
                with pytest.raises(OpenError, match="older release"):
                    ours.threads.adopt(name, verify=True)
                assert not everything(ours)
            ours.threads.adopt(name, verify=has_path)
            got = everything(ours)
            if has_path:
                assert_same(got, expected)
            moved = ours.get_tuple(at("t", checkpoint_id=second["configurable"]["checkpoint_id"]))
            sends = moved.checkpoint["channel_values"]["__pregel_tasks"]
            assert sends == [Send("a", 1), Send("b", 2)]
            assert moved.checkpoint["channel_versions"]["__pregel_tasks"] == 2


def test_values_in_json_as_the_first_releases_wrote_them(tmp_path: Path) -> None:
    with official("postgres", tmp_path) as (inner, name):
        config = put_one(inner, {"log": ["a"]})
        inner.conn.execute(
            "UPDATE checkpoint_blobs SET type = 'json', blob = %s", (b'[{"a": 1.5}, null]',)
        )
        inner.conn.execute("UPDATE checkpoints SET metadata = %s", (Jsonb({"x": [1, None]}),))
        with MemorySaver() as ours:
            ours.threads.adopt(name, verify=True)
            found = ours.get_tuple(config)
            assert found.checkpoint["channel_values"]["log"] == [{"a": 1.5}, None]
            assert found.metadata == {"x": [1, None]}


# -- invalid sources ---------------------------------------------------------------------


def test_what_is_no_source(tmp_path: Path) -> None:
    other, text = tmp_path / "other.db", tmp_path / "letter.txt"
    with closing(sqlite3.connect(other)) as db:
        db.execute("CREATE TABLE checkpoints (n)")
    text.write_text("to somebody, with more than a few words in it")
    with MemorySaver() as ours:
        for source in (other, text, str(other), f"sqlite:///{other}"):
            with pytest.raises(NotLangGraphError):
                ours.threads.adopt(source)
        for source in (tmp_path / "nothing.db", "redis://127.0.0.1", "host=x dbname=y"):
            with pytest.raises(OpenError):
                ours.threads.adopt(source)
        for source in (5, None, b"path"):
            with pytest.raises(InvalidArgumentError):
                ours.threads.adopt(source)
        with pytest.raises(ThreadNotFoundError, match="'nobody'"):
            ours.threads.adopt(InMemorySaver(), "nobody")


def test_tables_of_the_shallow_saver_are_refused(tmp_path: Path) -> None:
    with official("postgres", tmp_path) as (inner, name), MemorySaver() as ours:
        inner.conn.execute("ALTER TABLE checkpoints RENAME COLUMN parent_checkpoint_id TO x")
        try:
            with pytest.raises(NotLangGraphError, match="Shallow"):
                ours.threads.adopt(name)
        finally:
            inner.conn.execute("ALTER TABLE checkpoints RENAME COLUMN x TO parent_checkpoint_id")


def schema_of(url: str) -> str:
    return dict(parse_qsl(url.partition("?")[2]))["schema"]


def test_missing_rights_and_a_missing_schema_are_named(tmp_path: Path) -> None:
    with official("postgres", tmp_path) as (inner, name), MemorySaver() as ours:
        inner.conn.execute(f'GRANT USAGE ON SCHEMA "{schema_of(name)}" TO pg_monitor')
        with pytest.raises(OpenError, match=r"cannot be read: .*permission denied"):
            ours.threads.adopt(f"{name}options=-crole%3Dpg_monitor")
        for move in (ours.threads.adopt, ours.threads.leave):
            with pytest.raises(OpenError, match="has no schema elsewhere"):
                move(name.replace(schema_of(name), "elsewhere"))


@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres"])
def test_ours_already(name: str, tmp_path: Path) -> None:
    with open_backend(name, tmp_path) as saver, MemorySaver() as ours:
        story(saver).invoke({"log": ["a"]}, at("t"))
        with pytest.raises(NotLangGraphError, match="threadkeep"):
            ours.threads.adopt(saver)
        if name == "memory":
            return
        source = tmp_path / "threads.db" if name == "sqlite" else backends.url_of(name, tmp_path)
        with pytest.raises(NotLangGraphError, match="already"):
            ours.threads.adopt(source)


def test_a_saver_of_another_kind_is_refused() -> None:
    class Other(InMemorySaver.__mro__[1]):  # type: ignore[misc] # LangGraph's base class
        pass

    with MemorySaver() as ours, pytest.raises(InvalidArgumentError, match="losslessly"):
        ours.threads.adopt(Other())


def test_a_server_that_is_not_there_shows_no_password() -> None:
    with MemorySaver() as ours, pytest.raises(OpenError) as caught:
        ours.threads.adopt("postgresql://me:hidden@127.0.0.1:1/x?connect_timeout=2")
    assert "hidden" not in str(caught.value)


def test_nothing_is_left_of_an_earlier_thread(filled: Any) -> None:
    """Read the stored data with a saver that remembers nothing."""
    with MemorySaver() as ours:
        ours.threads.adopt(filled("sqlite").name)
        for thread in {place[0] for place in everything(ours)}:
            (rows,) = LayeredBackend(ours._store.backend).blocking.fetch([ReadThread(thread)])
            assert not rows.orphans
