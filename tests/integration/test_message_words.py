"""The index of messages (`search="messages"`): kept in commits, a hint, removed with threads."""

import asyncio
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.backends import open_backend
from kit.engine import Chain
from kit.places import at
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from threadkeep import KeyRing, MemorySaver, Retention, SqliteSaver, guard
from threadkeep._core.engine.thread_entry import (
    CountThreads,
    Lifecycle,
    SearchThreads,
    ThreadQuery,
)
from threadkeep._stores.postgres.message_index import PostgresIndex
from threadkeep.errors import InvalidArgumentError, NotSetUpError, ThreadkeepError
from threadkeep.threads import finding

from .test_finding import QUERIES, TALKS, _echo, fill, ids

STORES = ("memory", "sqlite", "postgres")


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def saver(name: str, tmp_path: Path) -> Any:
    with open_backend(name, tmp_path, search="messages") as opened:
        yield opened


def search(saver: Any, **query: Any) -> list[str]:
    """Return the threads of a query, also those that are deleted, sorted."""
    wanted = ThreadQuery((*Lifecycle,), **query)
    (entries,) = saver._store.backend.fetch([SearchThreads(wanted, "thread", False, None, 1000)])
    assert saver._store.backend.fetch([CountThreads(wanted)]) == [len(entries)]
    return [one.thread for one in entries]


def words_in(saver: Any, *words: str) -> list[str]:
    """Return the threads with an indexed message that has all words, sorted."""
    others = unindexed(saver)
    return [one for one in search(saver, words=words) if one not in others]


def unindexed(saver: Any) -> list[str]:
    return search(saver, unindexed=True)


def without(saver: Any) -> Any:
    """Return a saver without the option on the same store."""
    import copy  # noqa: PLC0415

    other = copy.copy(saver)
    other._engine = saver._engine._replace(words=None)
    other._clones, other._views = {}, {}
    return other


def test_saves_index_their_messages(saver: Any) -> None:
    graph = fill(saver)
    assert unindexed(saver) == []
    assert words_in(saver, "kettle") == ["kettle"]
    assert words_in(saver, "退", "款") == ["tea"]
    for query, want in QUERIES:
        found = saver.threads.find(query)
        assert sorted(ids(found)) == want
        assert (found.indexed, found.complete, found.unindexed) == (True, True, 0)
    assert asyncio.run(saver.threads.afind("kettle")) == saver.threads.find("kettle")
    graph.invoke({"messages": [HumanMessage("And a samovar?")]}, at("tea"))
    assert words_in(saver, "samovar") == ["tea"]
    assert (ids(saver.threads.find("samovar")), unindexed(saver)) == (["tea"], [])
    assert saver.threads.find("samovar").threads_read == 1


def test_an_index_is_only_a_hint(saver: Any) -> None:
    graph = fill(saver)
    graph.update_state(at("kettle"), {"messages": [RemoveMessage("m2")]})
    assert words_in(saver, "carrier") == ["kettle"]
    assert ids(saver.threads.find("carrier")) == []


def test_only_new_messages_are_indexed(saver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def noted(*given: Any) -> tuple[str, ...]:
        made = finding.words_of(*given)
        said.extend(made)
        return made

    monkeypatch.setattr(saver, "_engine", saver._engine._replace(words=noted))
    graph = _echo(saver)
    for number in range(30):
        graph.invoke({"messages": [HumanMessage(f"hello {number}")]}, at("one"))
    assert len([one for one in said if "hello" in one]) == 30
    assert unindexed(saver) == []


def test_a_saver_without_the_option_leaves_gaps(saver: Any) -> None:
    fill(saver)
    graph = _echo(without(saver))
    graph.invoke({"messages": [HumanMessage("A samovar.")]}, at("tea"))
    graph.invoke({"messages": [HumanMessage("A samovar.")]}, at("new"))
    assert unindexed(saver) == ["new", "tea"]
    found = saver.threads.find("samovar")
    assert (ids(found), found.unindexed, found.complete) == (["new", "tea"], 2, True)
    _echo(saver).invoke({"messages": [HumanMessage("One more cup.")]}, at("tea"))
    assert unindexed(saver) == ["new", "tea"]  # (its earlier messages are not indexed)
    calls: list[Any] = []
    assert saver.threads.index(progress=lambda *said: calls.append(said)) == 2
    assert calls[-1] == ("threads indexed", 2, 2)
    assert unindexed(saver) == []
    assert words_in(saver, "samovar") == ["new", "tea"]
    assert words_in(saver, "退") == ["tea"]
    assert saver.threads.index() == 0
    assert asyncio.run(saver.threads.aindex()) == 0


def test_threads_from_before_the_index(name: str, tmp_path: Path) -> None:
    with open_backend(name, tmp_path) as plain:
        fill(plain)
        assert plain.threads.find("kettle").indexed is False
        assert plain.threads.index() == len(TALKS)
        assert words_in(plain, "kettle") == ["kettle"]
        assert plain.threads.find("kettle").indexed is True
        _echo(plain).invoke({"messages": [HumanMessage("A samovar.")]}, at("tea"))
        assert unindexed(plain) == ["tea"]


def test_forks_and_copies_are_not_indexed_until_they_are_built(saver: Any) -> None:
    graph = fill(saver)
    saver.threads.fork("tea", new_thread_id="fork")
    saver.copy_thread("tea", "copy")
    assert unindexed(saver) == ["copy", "fork"]
    assert sorted(ids(saver.threads.find("退款"))) == ["copy", "fork", "tea"]
    graph.invoke({"messages": [HumanMessage("A samovar.")]}, at("fork"))
    assert saver.threads.index() == 2
    assert words_in(saver, "退") == ["copy", "fork", "tea"]


def test_a_replay_from_an_older_checkpoint_is_not_indexed_until_it_is_asked_for(saver: Any) -> None:
    graph = _echo(saver)
    without_index = _echo(without(saver))
    graph.invoke({"messages": [HumanMessage("first kettle")]}, at("one"))
    (first, *_) = graph.get_state_history(at("one"))
    without_index.invoke({"messages": [HumanMessage("second samovar")]}, at("one"))
    assert unindexed(saver) == ["one"]
    graph.invoke({"messages": [HumanMessage("third teapot")]}, first.config)
    assert unindexed(saver) == ["one"]
    found = saver.threads.find("teapot")
    assert (ids(found), found.indexed, found.unindexed) == (["one"], True, 1)
    assert saver.threads.index() == 1
    assert [ids(saver.threads.find(one)) for one in ("kettle", "teapot", "samovar")] == [
        ["one"],
        ["one"],
        [],
    ]


def test_a_branch_beside_a_run_hides_no_message(saver: Any) -> None:
    graph = _echo(saver)
    graph.invoke({"messages": [HumanMessage("first kettle")]}, at("one"))
    (first, *_) = graph.get_state_history(at("one"))
    graph.invoke({"messages": [HumanMessage("second samovar")]}, at("one"))
    run = saver.get_tuple(at("one"))  # (it continues below)
    graph.update_state(first.config, {"messages": [HumanMessage("a branch")]})
    again = {"configurable": {**at("one")["configurable"], "checkpoint_ns": ""}}
    again["configurable"]["checkpoint_id"] = run.checkpoint["id"]
    graph.invoke({"messages": [HumanMessage("third teapot")]}, again)
    for word in ("kettle", "samovar", "teapot"):
        assert ids(saver.threads.find(word)) == ["one"], word
    assert ids(saver.threads.find("branch")) == []


def test_a_copy_whose_newest_checkpoint_comes_first_hides_no_message(saver: Any) -> None:
    with MemorySaver() as other:
        graph = _echo(other)
        for word in ("kettle", "samovar"):
            graph.invoke({"messages": [HumanMessage(word)]}, at("one"))
        for found in other.list(at("one")):
            config = found.parent_config or {"configurable": {**at("one")["configurable"]}}
            config["configurable"].setdefault("checkpoint_ns", "")
            versions = found.checkpoint["channel_versions"]
            saver.put(config, found.checkpoint, found.metadata, versions)
    for word in ("kettle", "samovar"):
        assert ids(saver.threads.find(word)) == ["one"], word


def test_words_of_a_long_text_fit_into_a_tsvector(saver: Any) -> None:
    words = [f"слово{n}" for n in range(10_000)]
    text = "_".join(words)
    _echo(saver).invoke({"messages": [HumanMessage(text)]}, at("long"))
    for word in words[:400:40]:
        assert ids(saver.threads.find(word)) == ["long"], word


def test_the_index_is_built_again(saver: Any) -> None:
    fill(saver)
    assert saver.threads.index() == 0
    assert saver.threads.index(again=True) == len([*saver.threads.search()])
    assert ids(saver.threads.find("kettle")) == ["kettle"]


@pytest.mark.parametrize("change", ["save", "delete"])
def test_a_damaged_index_in_sqlite_stops_no_change(change: str, tmp_path: Path) -> None:
    file = tmp_path / "words.db"
    with SqliteSaver(file, search="messages") as saver:
        graph = fill(saver)
        assert not saver.check().findings
        halved = "substr(block, 1, length(block) / 2) || zeroblob(9)"
        sql = f"UPDATE threadkeep_words_data SET block = {halved} WHERE id > 1000"
        with closing(sqlite3.connect(file)) as other:
            other.execute(sql)
            if change == "delete":  # (and more, which it meets at once)
                other.execute("UPDATE threadkeep_words_data SET block = x'00' WHERE id = 10")
            other.commit()
        if change == "save":
            (finding,) = saver.check().findings
            assert "threadkeep index --again" in finding.problem
        for number in range(40) if change == "save" else ():
            graph.invoke({"messages": [HumanMessage("A samovar.")]}, at(f"new-{number}"))
        if change == "delete":
            saver.delete_thread("kettle")
        else:
            assert len(saver.threads.find("samovar", limit=100).hits) == 40
        assert saver.threads.find("kettle").complete
        assert ids(saver.threads.find("kettle")) == (["kettle"] if change == "save" else [])
        assert saver.threads.index()
        assert (unindexed(saver), saver.check().findings) == ([], ())


def test_edits(saver: Any) -> None:
    graph = fill(saver)
    saver.threads.edit("tea", {"messages": [HumanMessage("A samovar.")]})
    assert (words_in(saver, "samovar"), unindexed(saver)) == (["tea"], [])
    graph.update_state(at("kettle"), {"messages": [AIMessage("A teapot.")]})
    assert (words_in(saver, "teapot"), unindexed(saver)) == (["kettle"], [])


def test_deletion_and_erasure_leave_no_word(saver: Any, tmp_path: Path) -> None:
    graph = fill(saver)
    saver.delete_thread("kettle")
    assert words_in(saver, "kettle") == []
    saver.threads.erase("tea")
    assert words_in(saver, "退") == []
    assert unindexed(saver) == []
    graph.invoke({"messages": [HumanMessage("A samovar.")]}, at("kettle"))
    assert (words_in(saver, "samovar"), unindexed(saver)) == (["kettle"], [])
    without(saver).delete_thread("late-parcel-1041")
    assert words_in(saver, "1041") == []


def test_tenants(saver: Any) -> None:
    a, b = saver.for_tenant("a"), saver.for_tenant("b")
    fill(a)
    assert (ids(a.threads.find("kettle")), ids(b.threads.find("kettle"))) == (["kettle"], [])
    assert b.threads.find("kettle").threads_read == 0
    _echo(without(b)).invoke({"messages": [HumanMessage("A samovar.")]}, at("kettle"))
    assert b.threads.index() == 1
    assert a.threads.index() == 0
    assert ids(b.threads.find("samovar")) == ["kettle"]


def test_many_threads_of_a_common_word(saver: Any) -> None:
    saver.put_many(
        [
            Chain(saver, f"t{number:03}").arguments(messages=[HumanMessage("hello")])
            for number in range(600)
        ]
    )
    assert unindexed(saver) == []
    found = saver.threads.find("hello", limit=5)
    assert (len(found.hits), found.complete) == (5, False)
    everything = saver.threads.find("hello", limit=1000, seconds=60)
    assert (len(everything.hits), everything.complete) == (600, True)
    assert everything.threads_read == 600


@pytest.mark.parametrize("how", ["saves", "index"])
def test_hits_are_the_newest_threads(saver: Any, how: str) -> None:
    graph = _echo(saver if how == "saves" else without(saver))
    for number in range(40):
        graph.invoke({"messages": [HumanMessage("hello")]}, at(f"t{number:02}"))
    time.sleep(1.1)  # (`updated_at` may be a second old)
    for thread in ("t07", "t03"):
        graph.invoke({"messages": [HumanMessage("one more")]}, at(thread))
    if how == "index":
        saver.threads.index()
    newest = [one.id for one in saver.threads.search()]
    assert newest[:3] == ["t03", "t07", "t39"]
    found = saver.threads.find("hello", limit=5)
    assert (ids(found), found.indexed, found.threads_read) == (newest[:5], True, 5)
    rest = saver.threads.find("hello", limit=100, updated_before=found.oldest)
    assert (ids(rest), rest.indexed, rest.complete) == (newest[5:], True, True)


def test_filters(saver: Any) -> None:
    graph = fill(saver)
    graph.invoke({"messages": [HumanMessage("A kettle.")]}, at("tea"))
    saver.threads.tag("tea", "urgent")
    assert sorted(ids(saver.threads.find("kettle"))) == ["kettle", "tea"]
    found = saver.threads.find("kettle", tags=["urgent"])
    assert (ids(found), found.indexed, found.threads_read) == (["tea"], True, 1)
    _echo(without(saver)).invoke({"messages": [HumanMessage("A samovar.")]}, at("new"))
    found = saver.threads.find("samovar", id_prefix="ne")
    assert (ids(found), found.unindexed, found.threads_read) == (["new"], 1, 1)
    assert saver.threads.find("samovar", id_prefix="tea").unindexed == 0
    assert saver.threads.find("kettle", state="archived").hits == ()


def test_ids_and_metadata_have_their_place_among_the_hits(saver: Any) -> None:
    graph = _echo(saver)
    for number in range(300):
        if number in (150, 250):
            saver.threads.create(f"x-hel{number}", metadata={"about": "hello"})
        elif number != 299:
            Chain(saver, f"t{number:03}").put(messages=[HumanMessage("hello")])
    graph.invoke({"messages": [HumanMessage("hello")]}, at("x-hel250"))
    newest = [one.id for one in saver.threads.search(limit=300)]
    found = saver.threads.find("hello", limit=300, seconds=60)
    assert (ids(found), found.threads_read, found.complete) == (newest, 299, True)
    assert [one.thread.id for one in found.hits if one.found_in == "metadata"] == ["x-hel150"]


def test_layered_memory_makes_only_the_tables(tmp_path: Path) -> None:
    with open_backend("postgres", tmp_path) as plain:
        fill(plain)
        PostgresIndex(plain._store.backend.face).create()
        assert plain.threads.find("kettle").indexed is False
        assert plain.threads.index() == len(TALKS)
        assert (words_in(plain, "kettle"), unindexed(plain)) == (["kettle"], [])


def test_many_threads_that_are_not_indexed(saver: Any) -> None:
    fill(saver)
    without(saver).put_many(
        [
            Chain(saver, f"t{number:03}").arguments(messages=[HumanMessage("hello")])
            for number in range(200)
        ]
    )
    found = saver.threads.find("hello", limit=1000, seconds=60)
    assert (len(found.hits), found.unindexed, found.complete) == (200, 200, True)
    hurried = saver.threads.find("no such", seconds=1e-6)
    assert (hurried.complete, hurried.indexed) == (False, True)
    assert saver.threads.index() == 200
    assert len(saver.threads.find("hello", limit=1000).hits) == 200


def test_interleaved_saves_of_a_group(saver: Any) -> None:
    async def turns() -> None:
        graph = _echo(saver)
        talk = {"messages": [HumanMessage("hello")]}
        await asyncio.gather(*[graph.ainvoke(talk, at(f"t{n}")) for n in range(20)])

    asyncio.run(turns())
    assert (len(words_in(saver, "hello")), unindexed(saver)) == (20, [])


def test_archived_and_restored(tmp_path: Path) -> None:
    cold = (tmp_path / "cold").as_uri()
    with SqliteSaver(str(tmp_path / "t.db"), cold=cold, search="messages") as saver:
        fill(saver)
        saver.threads.archive("kettle")
        found = saver.threads.find("carrier")
        assert (ids(found), found.archived) == ([], 1)
        saver.threads.restore("kettle")
        assert ids(saver.threads.find("carrier")) == ["kettle"]
        saver.threads.index()
        assert unindexed(saver) == []


def test_a_refused_save_indexes_nothing(saver: Any) -> None:
    chain = Chain(saver, "one")
    chain.put(messages=[HumanMessage("hello")])
    saver.delete_thread("one")
    with suppress(ThreadkeepError):
        chain.put(messages=[HumanMessage("hello"), AIMessage("samovar")])
    assert words_in(saver, "samovar") == ids(saver.threads.find("samovar"))


def test_refused_stores(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="search"):
        MemorySaver(search="words")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="encrypted"):
        SqliteSaver(str(tmp_path / "t.db"), search="messages", keys=KeyRing([b"k" * 32]))
    with MemorySaver() as plain:
        assert plain.threads.index() == 0


@pytest.mark.parametrize("other", ["redis", "mysql"])
def test_stores_without_an_index(other: str, tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="has no index of messages"),
        open_backend(other, tmp_path, search="messages"),
    ):
        pass
    with open_backend(other, tmp_path) as plain:
        with pytest.raises(InvalidArgumentError, match="has no index of messages"):
            plain.threads.index()
        fill(plain)
        assert plain.threads.find("kettle").indexed is False


def test_setup_creates_the_index(saver: Any) -> None:
    """So that roles which only save need no right to create it."""
    without(saver).setup()
    with pytest.raises(NotSetUpError):
        unindexed(saver)
    fill(without(saver))
    saver.setup()
    assert len(unindexed(saver)) == len(TALKS)
    assert saver.threads.index() == len(TALKS)
    asyncio.run(saver.asetup())
    assert unindexed(saver) == []


def test_reads_before_the_index_exists(saver: Any) -> None:
    saver.get_tuple(at("none"))
    for query in ({"words": ("a",)}, {"unindexed": True}):
        with pytest.raises(NotSetUpError):
            search(saver, **query)
    assert saver.threads.find("a").indexed is False


def test_indexing_beside_a_guarded_run(saver: Any) -> None:
    graph = _echo(without(saver))
    with guard(saver, "one"):
        graph.invoke({"messages": [HumanMessage("A samovar.")]}, at("one"))
        assert saver.threads.index() == 1
        graph.invoke({"messages": [HumanMessage("A teapot.")]}, at("one"))
    assert unindexed(saver) == ["one"]
    for word in ("samovar", "teapot"):
        assert ids(saver.threads.find(word)) == ["one"]


def test_a_save_during_the_indexing_wins(saver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fill(saver)
    _echo(without(saver)).invoke({"messages": [HumanMessage("A samovar.")]}, at("one"))

    def late(changes: Any) -> Any:
        monkeypatch.undo()
        graph.invoke({"messages": [HumanMessage("A teapot.")]}, at("one"))
        return (yield from finding.commit_many(changes))

    monkeypatch.setattr(finding, "commit_many", late)
    assert saver.threads.index() == 0
    assert unindexed(saver) == ["one"]
    assert saver.threads.index() == 1
    assert words_in(saver, "teapot") == words_in(saver, "samovar") == ["one"]


def test_retention_keeps_the_index(saver: Any) -> None:
    graph = fill(saver)
    for number in range(3):
        graph.invoke({"messages": [HumanMessage(f"cup {number}")]}, at("tea"))
    saver.threads.gc(Retention(keep_last=1))
    assert (unindexed(saver), words_in(saver, "退")) == ([], ["tea"])
    assert ids(saver.threads.find("cup 1")) == ["tea"]


def extend(value: list[Any], writes: Any) -> list[Any]:
    return [*value, *[one for write in writes for one in write]]


def test_delta_channels(saver: Any) -> None:
    channel = DeltaChannel(extend, list, snapshot_frequency=2)
    graph = StateGraph(TypedDict("State", {"messages": Annotated[list[Any], channel]}))
    graph.add_node("idle", lambda _: {"messages": [AIMessage("A teapot.")]})
    graph.add_edge(START, "idle")
    chat = graph.compile(checkpointer=saver)
    for number in range(5):
        chat.invoke({"messages": [HumanMessage(f"cup {number}")]}, at("delta"))
    found = saver.threads.find("teapot")
    assert (found.skipped, unindexed(saver)) == ({}, [])
    assert ids(found) in ([], ["delta"])  # (as the last snapshot has it)


def test_a_bundle_is_not_indexed_until_it_is_built(saver: Any, tmp_path: Path) -> None:
    fill(saver)
    saver.threads.export_bundle("tea", tmp_path / "tea.tkb")
    saver.threads.import_bundle(tmp_path / "tea.tkb", "imported")
    assert unindexed(saver) == ["imported"]
    assert sorted(ids(saver.threads.find("退款"))) == ["imported", "tea"]
    saver.threads.import_bundle(tmp_path / "tea.tkb", replace=True)
    assert ids(saver.threads.find("退款")) != []
