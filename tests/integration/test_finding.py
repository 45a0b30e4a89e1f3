"""Threads found by words of their messages, ids and metadata, on every store."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from kit.damage import damaging
from kit.engine import Chain
from kit.places import at
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads import FoundThreads, finding
from threadkeep.threads.transfer.reading import LangGraphReader

CALL = {"name": "look_up_order", "args": {"order_id": "A-1041", "note": "a\nb"}, "id": "c1"}
TALKS: dict[str, list[AnyMessage]] = {
    "late-parcel-1041": [HumanMessage("My parcel is late."), AIMessage("I am sorry.")],
    "kettle": [
        HumanMessage("The Kettle leaks.", id="m0"),
        AIMessage("", tool_calls=[CALL], id="m1"),
        ToolMessage("The kettle was sent by carrier X on 2026-03-04.", tool_call_id="c1", id="m2"),
    ],
    "tea": [HumanMessage("我想退款，订单还没有到。"), AIMessage("好的，款已退。")],
    "code": [HumanMessage("Why does parse_header(foo.bar_baz) fail in src/app.py?")],
}


def _echo(saver: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("idle", lambda _: {})
    graph.add_edge(START, "idle")
    graph.add_edge("idle", END)
    return graph.compile(checkpointer=saver)


def fill(saver: Any) -> Any:
    graph = _echo(saver)
    for thread, talk in TALKS.items():
        graph.invoke({"messages": talk}, at(thread, user=f"of-{thread}"))
    return graph


def ids(found: FoundThreads) -> list[str]:
    return [one.thread.id for one in found.hits]


QUERIES = [
    ("kettle", ["kettle"]),
    ("KETTLE leaks", ["kettle"]),
    ("kettle sorry", []),  # no message has both
    ("leaks carrier", []),
    ("leak", []),
    ("look_up_order", ["kettle"]),
    ("order", ["kettle"]),  # (a part of the tool's name)
    ("1041", ["kettle", "late-parcel-1041"]),
    ("a-1041", ["kettle"]),
    ("parcel-1041", ["late-parcel-1041"]),
    ("cel-10", ["late-parcel-1041"]),
    ("b", ["kettle"]),  # after a line break of an argument
    ("2026-03", ["kettle"]),
    ("退款", ["tea"]),
    ("款退", []),
    ("退款 订单", ["tea"]),
    ("款已退", ["tea"]),
    ("parse_header", ["code"]),
    ("bar_baz", ["code"]),
    ("foo.bar_baz", ["code"]),
    ("app.py", ["code"]),
]


@pytest.mark.parametrize(("query", "want"), QUERIES)
def test_queries(query: str, want: list[str]) -> None:
    with MemorySaver() as saver:
        fill(saver)
        found = saver.threads.find(query)
        assert sorted(ids(found)) == want
        assert (found.threads_read, found.complete) == (len(TALKS), True)


def test_hits_on_every_store(saver: Any) -> None:
    fill(saver)
    found = saver.threads.find("kettle")
    assert asyncio.run(saver.threads.afind("kettle")) == found
    (hit,) = found.hits
    head = saver.get_tuple(at("kettle"))
    assert hit.thread == saver.threads.get("kettle")
    assert (hit.found_in, hit.count, hit.position, hit.role) == ("messages", 2, 2, "tool")
    assert (hit.channel, hit.message_id) == ("messages", "m2")
    assert hit.checkpoint_id == head.checkpoint["id"]
    assert [hit.excerpt[slice(*one)] for one in hit.matches] == ["kettle"]
    assert found.oldest == min(one.updated_at for one in saver.threads.search())
    (other,) = saver.threads.find("of-code").hits
    assert (other.found_in, other.excerpt, other.role) == ("metadata", "user=of-code", None)
    (named,) = saver.threads.find("cel-10").hits
    assert (named.found_in, named.matches) == ("id", ((8, 14),))
    assert named.excerpt == "late-parcel-1041"


def test_only_the_head_is_read(saver: Any) -> None:
    graph = fill(saver)
    graph.update_state(at("kettle"), {"messages": [RemoveMessage("m2"), RemoveMessage("m0")]})
    assert ids(saver.threads.find("kettle carrier")) == []
    (hit,) = saver.threads.find("kettle").hits
    assert (hit.found_in, hit.excerpt) == ("id", "kettle")


def test_limits(saver: Any) -> None:
    graph = _echo(saver)
    for number in range(12):
        graph.invoke({"messages": [HumanMessage(f"hello {number}")]}, at(f"t{number:02}"))
    found = saver.threads.find("hello", limit=3)
    newest = [one.id for one in saver.threads.search()]
    assert (ids(found), found.threads_read, found.complete) == (newest[:3], 3, False)
    rest = saver.threads.find("hello", updated_before=found.oldest)
    assert (ids(rest), rest.complete) == (newest[3:], True)
    hurried = saver.threads.find("no such word", seconds=1e-6)
    assert (hurried.hits, hurried.complete) == ((), False)
    assert 0 < hurried.threads_read < 12
    assert ids(saver.threads.find("hello", id_prefix="t07")) == ["t07"]
    assert saver.threads.find("hello", id_prefix="x") == FoundThreads()


def test_an_excerpt_is_one_line_around_the_match() -> None:
    text = "word " * 300 + "a\n\tneedle in it " + "word " * 300
    with MemorySaver() as saver:
        _echo(saver).invoke({"messages": [HumanMessage(text)]}, at("long"))
        (hit,) = saver.threads.find("Needle").hits
        assert "a needle in it" in hit.excerpt
        assert len(hit.excerpt) <= 122
        assert [hit.excerpt[slice(*one)] for one in hit.matches] == ["needle"]


@pytest.mark.parametrize("query", ["", " ,. ", 3, " ".join(f"w{n}" for n in range(1001))])
def test_refused_queries(query: Any) -> None:
    with MemorySaver() as saver, pytest.raises(InvalidArgumentError, match="query"):
        saver.threads.find(query)


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": True}, {"seconds": 0}, {"state": "x"}])
def test_refused_options(options: Any) -> None:
    with MemorySaver() as saver, pytest.raises(InvalidArgumentError):
        saver.threads.find("word", **options)


def test_other_channels_and_forms(saver: Any) -> None:
    talk = [{"role": "user", "content": "a kettle"}, {"role": "assistant", "content": "yes"}]
    Chain(saver, "dicts").put(numbers=[1, 2], chat=talk)
    Chain(saver, "texts").put(messages=["a kettle"], other=3)  # (text alone is no message)
    (hit,) = saver.threads.find("kettle").hits
    assert (hit.thread.id, hit.channel, hit.position) == ("dicts", "chat", 0)


def test_archived_threads_are_not_restored(tmp_path: Path) -> None:
    with SqliteSaver(str(tmp_path / "t.db"), cold=(tmp_path / "cold").as_uri()) as saver:
        fill(saver)
        saver.threads.archive("kettle")
        saver.delete_thread("code")
        found = saver.threads.find("kettle")
        assert (ids(found), found.hits[0].found_in, found.archived) == (["kettle"], "id", 1)
        assert ids(saver.threads.find("carrier")) == []
        entry = saver.threads.get("kettle")
        assert entry is not None
        assert entry.state == "archived"
        assert ids(saver.threads.find("parse_header")) == []


def test_an_unreadable_thread_is_skipped(tmp_path: Path) -> None:
    with MemorySaver() as saver:
        fill(saver)
        head = saver.get_tuple(at("kettle"))
        assert head is not None
        damaging("memory", saver, tmp_path).manifest("kettle", head.checkpoint["id"])
        found = saver.threads.find("kettle")
        assert [*found.skipped] == ["kettle"]
        assert (ids(found), found.hits[0].found_in) == (["kettle"], "id")
        assert found.as_json()["skipped"] == found.skipped


def test_tenants_find_their_own_threads(saver: Any) -> None:
    fill(saver.for_tenant("a"))
    (hit,) = saver.for_tenant("a").threads.find("kettle").hits
    assert hit.thread.id == "kettle"
    assert saver.for_tenant("b").threads.find("kettle").hits == ()


def test_langgraphs_own_database(tmp_path: Path) -> None:
    path = str(tmp_path / "theirs.db")
    with LangGraphSqliteSaver.from_conn_string(path) as theirs:
        fill(theirs)
    with LangGraphReader(path) as reader:
        found = reader.threads.find("kettle")
        (hit,) = found.hits
        assert (hit.thread.id, hit.count, hit.message_id) == ("kettle", 2, "m2")
        assert (found.threads_read, found.complete) == (len(TALKS), True)
        for query, want in QUERIES:
            assert sorted(ids(reader.threads.find(query))) == want


def test_large_threads_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = finding.heads, list[int]()

    def noted(engine: Any, threads: Any) -> Any:
        reads.append(len(threads))
        return read(engine, threads)

    monkeypatch.setattr(finding, "heads", noted)
    monkeypatch.setattr(finding, "_MOST_BYTES", 4000)
    with MemorySaver() as saver:
        graph = _echo(saver)
        for number in range(6):
            text = random.Random(number).randbytes(5_000).hex() if number % 2 else "small"
            graph.invoke({"messages": [HumanMessage(text)]}, at(str(number)))
        assert saver.threads.find("no such word").threads_read == 6
    assert reads == [1] * 6
