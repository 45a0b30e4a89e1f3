"""`threadkeep show`, `history`, `state`, `stats` and `delete`: their output about threads."""

import json
import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import ANY

import pytest
from kit import cli as cli_kit
from kit.cli import SECONDS, answering, threadkeep
from kit.engine import Chain, everything
from kit.forked import python
from kit.graphs import linear
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from threadkeep import SqliteSaver
from threadkeep.__main__ import main
from threadkeep.threads import last_statistics

OWN = """
import dataclasses

@dataclasses.dataclass
class Plan:
    steps: list
"""


class State(MessagesState):
    visits: int


def agent(state):
    visits = state.get("visits", 0) + 1
    if visits > 1:
        return {"messages": [AIMessage("Done.")], "visits": visits}
    call = {"name": "find_order", "args": {"number": 1207}, "id": "call_1"}
    return {"messages": [AIMessage("Let me see.", tool_calls=[call])], "visits": visits}


def tools(state):
    found = "delivered, 40 EUR\n" * 100
    return {"messages": [ToolMessage(found, tool_call_id="call_1", name="find_order")]}


def confirm(state):
    return {"messages": [HumanMessage(interrupt({"question": "Refund 40 EUR?"}))]}


def make_graph(saver):
    inner = StateGraph(State).add_node("confirm", confirm).add_edge(START, "confirm").compile()
    graph = StateGraph(State)
    for name, node in (("agent", agent), ("tools", tools), ("human", inner)):
        graph.add_node(name, node)
    graph.add_edge(START, "agent").add_edge("tools", "human").add_edge("human", "agent")
    graph.add_conditional_edges("agent", lambda s: END if s["visits"] > 1 else "tools")
    return graph.compile(checkpointer=saver)


@pytest.fixture(autouse=True)
def store(url):
    """Threads: `waits` for an answer, `forked` was answered and forked, `plain` has no messages."""
    with SqliteSaver(url) as saver:
        graph = make_graph(saver)
        for thread in ("waits", "forked"):
            config = {"configurable": {"thread_id": thread}}
            graph.invoke({"messages": [HumanMessage("A refund, please.")]}, config)
        graph.invoke(Command(resume="yes"), config)
        first = [s for s in graph.get_state_history(config) if s.next == ("agent",)][-1]
        graph.update_state(first.config, {"messages": [HumanMessage("Or not.")]}, as_node="tools")
        chain = Chain(saver, "plain")
        chain.put(list=[1, {"a": "b"}], text="x" * 500)
        chain.put(text="y")
    return url


@pytest.fixture
def refused(capsys):
    """Run a command that fails; return its exit code and its error line."""

    def run(*arguments):
        code = main([*arguments])
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        return code, said.err

    return run


# -- show ------------------------------------------------------------------------------


def test_a_conversation(told):
    lines = told("show", "waits")
    assert lines[0].startswith("thread waits  waiting  updated ")
    assert lines[1].endswith("loop 2  next: human")
    text = "\n".join(lines)
    assert "human\n  A refund, please.\n" in text
    assert 'ai\n  Let me see.\n  calls find_order {"number": 1207} [call_1]\n' in text
    assert "tool  find_order  [call_1]\n  delivered, 40 EUR\n" in text
    assert text.count("delivered") == 20
    assert "more characters (--full)" in text
    assert '{"question": "Refund 40 EUR?"}' in lines[-1]
    assert lines[-2].startswith("Waiting for an answer to ")
    assert lines[-4].split() == ["visits", "int", "1"]


def test_full_shortens_nothing(told):
    assert "\n".join(told("show", "waits", "--full")).count("delivered") == 100
    assert "\n".join(told("state", "plain", "--full")).count("y") == 1


def test_show_as_json(told):
    shown = told("show", "waits", "--json")
    assert [message["role"] for message in shown["messages"]] == ["human", "ai", "tool"]
    assert shown["messages"][1]["tool_calls"] == [
        {"name": "find_order", "args": {"number": 1207}, "id": "call_1"}
    ]
    assert shown["messages"][2]["text"].count("delivered") == 100
    assert shown["channels"] == {"visits": {"kind": "int", "bytes": 1}}
    assert [one["value"] for one in shown["waiting"]] == [{"question": "Refund 40 EUR?"}]
    assert shown["next"] == ["human"]


def test_a_failed_thread_begins_with_its_error(store, told):
    def charge(_):
        raise TimeoutError("the bank answered 504")

    with SqliteSaver(store) as saver, suppress(TimeoutError):
        graph = linear(saver, State, charge=charge)
        said = {"messages": [HumanMessage("A refund, please.")]}
        graph.invoke(said, {"configurable": {"thread_id": "order"}})
    lines = told("show", "order")
    assert lines[0].startswith("thread order  failed charge  updated ")
    assert lines[1].endswith("loop 0  next: charge")
    error = "TimeoutError('the bank answered 504')"
    assert lines[2:5] == ["", "Failed in charge", f"  {error}"]
    assert lines[6:8] == ["human", "  A refund, please."]
    assert told("show", "order", "--json")["failed"] == [error]


def test_an_answered_interrupt_does_not_wait(told):
    seen = told("history", "forked", "--json")["checkpoints"]
    asked = [one for one in seen if one["interrupted"]]
    assert [bool(one["namespace"]) for one in asked] == [True, False]  # where it asked, and above
    assert [one["waiting"] for one in asked] == [0, 0]
    for one in asked:
        place = ["--checkpoint", one["checkpoint"], "--ns", one["namespace"]]
        assert told("show", "forked", *place, "--json")["waiting"] == []
    waits = told("history", "waits", "--json")["checkpoints"]
    assert sum(one["waiting"] for one in waits) == 2


def test_a_subgraphs_checkpoint_by_its_namespace(told):
    all_of_them = told("history", "waits", "--json")["checkpoints"]
    inner = next(one for one in all_of_them if one["namespace"])
    shown = told("show", "waits", "--ns", inner["namespace"], "--json")
    assert (shown["checkpoint"], shown["next"]) == (inner["checkpoint"], ["confirm"])


def test_channels_that_only_the_graph_can_read_are_named(store, told):
    runs = pytest.importorskip("kit.runs", exc_type=ImportError)  # older LangGraphs have none
    with SqliteSaver(store) as saver:
        graph = linear(saver, runs.Delta, n=lambda _: {"log": ["b"]})
        graph.invoke({"log": ["a"]}, {"configurable": {"thread_id": "deltas"}})
    (line,) = [line for line in told("show", "deltas") if "DeltaChannel" in line]
    assert ": log. " in line


def test_a_thread_without_messages(told):
    assert told("show", "plain", "--json")["messages"] is None
    rows = [line.split() for line in told("show", "plain")]
    assert ["list", "list", "of", "2", "15"] in rows
    assert ["text", "str", "3"] in rows


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["show", "state"])
def test_classes_of_the_program(store, tmp_path, monkeypatch, name):
    (tmp_path / "planning.py").write_text(OWN)
    program = (
        "import planning; from kit.engine import Chain; from threadkeep import SqliteSaver;"
        "saver = SqliteSaver('threads.db'); Chain(saver, 'own').put(plan=planning.Plan([1]));"
        "saver.close()"
    )
    kit = Path(cli_kit.__file__).parents[1]
    places = [str(tmp_path), str(kit), str(kit.parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    subprocess.run([*python(), "-c", program], check=True, timeout=SECONDS, env=environment)
    code, said, wrong = threadkeep(name, "own")
    assert (code, said, len(wrong)) == (2, [], 1)
    assert "planning.Plan" in wrong[0]
    assert "--import MODULE" in wrong[0]
    assert "--raw" in wrong[0]
    code, said, wrong = threadkeep(name, "own", "--import", "planning")
    assert (code, wrong) == (0, [])
    assert "thread own" in said[0]
    assert threadkeep("history", "own")[0] == 0  # (no value is read)
    code, said, wrong = threadkeep(name, "own", "--raw")
    assert (code, wrong) == (0, [])
    assert [line for line in said if "planning.Plan (raw)" in line]
    code, _, (line,) = threadkeep(name, "own", "--import", "planing")
    assert (code, "'planing' cannot be imported" in line) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("show absent", "ThreadNotFoundError"),
        ("show plain --checkpoint absent", "CheckpointNotFoundError"),
        ("show plain --ns absent", "ThreadNotFoundError"),
        ("state absent", "ThreadNotFoundError"),
        ("state plain --channel absent", "NotFoundError"),
        ("history absent", "ThreadNotFoundError"),
        ("history plain --ns absent", "ThreadNotFoundError"),
        ("delete absent --yes", "ThreadNotFoundError"),
        ("delete plain absent --yes", "ThreadNotFoundError"),
        ("erase absent --yes", "ThreadNotFoundError"),
    ],
)
def test_nothing_of_that_name_is_exit_code_1(store, refused, arguments, error):
    arguments = arguments.split()
    code, line = refused(*arguments)
    assert (code, "absent" in line) == (1, True)
    code, line = refused(*arguments, "--json")
    assert (code, json.loads(line)["error"]["type"]) == (1, error)
    with SqliteSaver(store) as saver:
        assert saver.get_tuple({"configurable": {"thread_id": "plain"}})


# -- history and state -----------------------------------------------------------------


def test_the_tree_of_a_forked_thread(told):
    seen = told("history", "forked", "--json")
    own = [one for one in seen["checkpoints"] if not one["namespace"]]
    assert [one["source"] for one in own] == ["update", *["loop"] * 5, "input"]
    assert [one["head"] for one in own] == [True, *[False] * 6]
    assert own[0]["parent"] == own[5]["checkpoint"]
    assert seen["more"] is False
    timed = [one["seconds"] is not None for one in own]
    assert timed == [False, True, False, True, True, True, False], "an answer is no running time"
    lines = told("history", "forked")
    assert lines[0] == "thread forked"
    straight = [line.split()[0] for line in lines[1:] if line[0] not in "|`+ "]
    assert straight == [own[n]["checkpoint"] for n in (6, 5, 0)]
    assert lines[3] == "`-- fork"
    assert any("namespace human:" in line for line in lines)
    assert lines[-1].endswith("next: human  head")


def test_a_limit_shows_the_newest_and_says_so(told):
    seen = told("history", "forked", "--ns", "", "--limit", "2", "--json")
    assert [one["source"] for one in seen["checkpoints"]] == ["update", "loop"]
    assert seen["more"] is True
    lines = told("history", "forked", "--ns", "", "--limit", "2")
    assert lines[-1] == "... older checkpoints not shown (--limit)"
    assert sum("(not shown)" in line for line in lines) == 2


def test_state_as_json(told):
    lines = told("state", "plain", "--channel", "list", "--channel", "text")
    shown = ["[", "  1,", "  {", '    "a": "b"', "  }", "]"]
    assert lines[1:] == [
        "list (list of 2)",
        *(f"  {line}" for line in shown),
        "text (str)",
        '  "y"',
    ]
    assert told("state", "plain", "--json")["values"] == {"list": [1, {"a": "b"}], "text": "y"}


def test_a_channel_is_shown_though_another_is_damaged(store, told, refused):
    with SqliteSaver(store) as saver:
        Chain(saver, "damaged").put(good=[1, 2], bad=[random.Random(1).randbytes(20_000)])
    with closing(sqlite3.connect(store)) as db, db:
        assert db.execute("DELETE FROM tk_heap_segments WHERE length(data) > 10000").rowcount == 1
    assert told("state", "damaged", "--channel", "good", "--json")["values"] == {"good": [1, 2]}
    code, line = refused("state", "damaged", "--json")
    assert (code, json.loads(line)["error"]["type"]) == (2, "CorruptionError")


# -- stats and delete ------------------------------------------------------------------


def test_stats(store, told):
    seen = told("stats", "--json")
    with SqliteSaver(store) as saver:
        stats = saver.stats()
    assert (seen["threads"], seen["checkpoints"]) == (3, stats.checkpoints)
    assert {one["thread"]: one["bytes"] for one in seen["by_thread"]} == {
        one.thread: one.bytes for one in stats.by_thread
    }
    channels = {one["name"]: one["bytes"] for one in seen["channels"]}
    assert channels["messages"] > 0
    assert seen["bytes"] == sum(channels.values()) + sum(seen["parts"].values())
    assert seen["bytes"] == sum(one["bytes"] for one in seen["by_thread"])
    hours = [{**hour, "start": ANY} for hour in seen["hours"]]
    later = {"at": ANY, "hours": hours, "oldest_unfinished": ANY}
    assert told("stats", "--exact", "--json") == {**seen, **later}
    listed = {one["id"]: one["bytes"] for one in told("threads", "--json")["threads"]}
    deleted = told("delete", *listed, "--dry-run", "--json")["threads"]
    assert listed == {one["id"]: one["bytes"] for one in deleted}
    text = "\n".join(told("stats", "--top", "1"))
    assert "forked" in text
    assert "plain" not in text
    assert "more channels (--top)" in text
    assert told("stats")[-1].split()[:2] == ["total", f"{seen['bytes'] / 1000:.1f}"]


def test_stats_of_a_while_ago(store, told, refused):
    """`--max-age` stores statistics, and shows stored ones with their time."""
    first = told("stats", "--max-age", "1h", "--json")
    with SqliteSaver(store) as saver:
        Chain(saver, "new").put(log=["x"])
        assert told("stats", "--max-age", "1h", "--json") == first
        assert told("stats", "--json")["threads"] == first["threads"] + 1
        stored = saver.stats(max_age=3600)
        old = replace(stored, at=stored.at - timedelta(minutes=5))
        saver.backend.commit(last_statistics._change(saver._engine, old, None))
    line = f"As of {old.at:%Y-%m-%d %H:%M:%S} UTC"
    assert line in told("stats", "--max-age", "1h")
    assert not any(shown.startswith("As of") for shown in told("stats"))
    assert told("stats", "--max-age", "1m", "--json")["threads"] == first["threads"] + 1
    code, text = refused("stats", "--max-age", "1h", "--exact")
    assert (code, "Leave out --max-age." in text) == (2, True)


def test_deleting_is_told_before_and_done_once(store, told, refused):
    with SqliteSaver(store) as saver:
        before = everything(saver)
    code, line = refused("delete", "plain")
    assert (code, "--yes" in line) == (2, True)
    last = told("delete", "plain", "waits", "--dry-run")[-1]
    assert last.startswith("Would delete 2 threads (")
    dry = told("delete", "plain", "--dry-run", "--json")
    assert (dry["deleted"], dry["threads"][0]["id"]) == (False, "plain")
    with SqliteSaver(store) as saver:
        assert everything(saver) == before
    done = told("delete", "plain", "plain", "--yes", "--json")
    assert done == {**dry, "deleted": True}
    with SqliteSaver(store) as saver:
        assert everything(saver) == {k: v for k, v in before.items() if k[0] != "plain"}
    assert refused("delete", "plain", "--yes")[0] == 1


@pytest.mark.parametrize(
    ("answer", "code", "end"),
    [(b"y\n", 0, ""), (b"n\n", 2, "Nothing was deleted."), (b"\x04", 130, "interrupted")],
)
def test_deleting_at_a_terminal_asks(store, answer, code, end):
    found, out, shown = answering(answer, "delete", "plain")
    assert found == code
    assert "Delete plain? This cannot be undone. [y/N]" in shown
    assert shown.rstrip().endswith(end)
    assert ("Deleted 1 thread (" in out) is (code == 0)
    with SqliteSaver(store) as saver:
        there = saver.get_tuple({"configurable": {"thread_id": "plain"}})
        assert (there is None) is (code == 0)
