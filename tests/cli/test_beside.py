"""Commands on layered memory, streams, sessions, items and caches."""

import json
from dataclasses import dataclass
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage
from rich.console import Console

from threadkeep import SqliteSaver
from threadkeep._core.codec import DEFAULT_REGISTRY
from threadkeep._core.codec.registry import LocalClasses
from threadkeep.cache import NodeCache
from threadkeep.cli.terminal import table
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.sessions import CheckpointManager
from threadkeep.store import InMemoryStore, Store

URL = "threads.db"


@pytest.fixture
def told(here):
    """Run a command on the store; return its line, or its document with --json."""
    with SqliteSaver("threads.db") as saver:
        layered = LayeredCheckpointSaver(saver)
        layered.save("long", [HumanMessage(f"question {n}") for n in range(90)])
        for number in (90, 91):
            more = HumanMessage(f"question {number}")
            layered.save("long", [*layered.load({"configurable": {"thread_id": "long"}}), more])
        stream = saver.streaming("long").start()
        stream.update("half an answer")
        stream.stop("pending")
        CheckpointManager(saver).create_checkpoint("session", "flow", {"n": 1})
        with Store(saver.backend) as store, NodeCache(saver.backend) as cache:
            store.put(("users", "ann"), "drink", {"text": "tea " * 30})
            store.put(("users", "bob"), "food", {"text": "rice"})
            cache.set({(("node",), "key"): (1, None)})

    def run(*arguments, code=0) -> Any:
        found, out, err = here(arguments[0], URL, *arguments[1:])
        assert (found, err == []) == (code, code == 0), err
        if code:
            return err[0]
        return json.loads(out[0]) if "--json" in arguments else out

    return run


def test_show_tells_of_layers_and_partial_output(told):
    lines = told("show", "long", "--last", "2")
    assert "layered memory  70 older messages in 3 groups  (threadkeep messages long)" in lines
    assert "... the newest 2 of 22 messages (--last N, --full)" in lines
    assert [line for line in lines if line.startswith("  question 9")] == [
        "  question 90",
        "  question 91",
    ]
    assert lines[-5:] == [
        "",
        "ai",
        "  half an answer",
        "",
        "To discard it: threadkeep partial long --discard",
    ]
    document = told("show", "long", "--json")
    assert [one["layer"] for one in document["layers"]] == ["archive", "archive", "summary"]
    assert [one["status"] for one in document["partial"]] == ["pending"]


def test_archived_messages_are_shown_and_found(told):
    assert told("messages", "long", "--search", "question 3")[2:] == [
        "human  position 3",
        "  question 3",
    ]
    document = told("messages", "long", "--last", "2", "--json")
    assert (document["found"], [one["position"] for one in document["messages"]]) == (70, [68, 69])
    assert told("messages", "long", "--search", "absent")[-1].endswith(
        "No archived messages with absent"
    )
    assert "There is no such thread" in told("messages", "absent", code=1)


def test_partial_output_is_shown_and_discarded(told):
    (one,) = told("partial", "long", "--json")["streams"]
    assert (one["messages"][0]["role"], one["messages"][0]["text"]) == ("ai", "half an answer")
    assert "no such stream" in told("partial", "long", "--stream", "absent", code=1)
    discard = ("partial", "long", "--stream", one["id"], "--discard", "--yes")
    assert told(*discard) == ["Discarded 1 stream"]
    assert told(*discard) == ["Discarded 0 streams"]
    assert told("show", "long", "--json")["partial"] == []
    assert told("partial", "absent") == ["thread absent  No streams"]


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ("delete long", "delete"),
        ("erase long", "erase"),
        ("delete-account --metadata user_id=u1 --thread long", "erase"),
        ("items users.ann drink --delete", "delete"),
        ("cache --clear", "clear"),
        ("partial long --discard", "discard"),
    ],
)
def test_what_asks_asks_alike(told, words, verb):
    line = told(*words.split(), code=2)
    done = f"{verb.removesuffix('e')}ed"
    assert line.startswith(f"threadkeep: Nothing was {done}: cannot ask for confirmation without")
    assert f"Use --yes to {verb} without confirmation" in line
    assert told("threads", "--count") == ["2"]
    told(*words.split(), "--yes")


def test_a_thread_without_a_graph_names_its_namespaces(told):
    assert told("show", "session", code=1).endswith("Name one of its namespaces with --ns: flow")
    assert "flow" in told("show", "session", "--ns", "flow")[1]


def test_items_are_listed_shown_exported_and_deleted(told):
    assert told("items") == ["users.ann", "users.bob"]
    assert [line.split()[:2] for line in told("items", "users")] == [
        ["namespace", "key"],
        ["users.bob", "food"],  # (last updated first, as in a search)
        ["users.ann", "drink"],
    ]
    assert told("items", "users", "--limit", "1")[-1] == "... more items not shown (--limit)"
    assert told("items", "users.bob", "food", "--json")["item"]["value"] == {"text": "rice"}
    assert told("items", "--export", "items.jsonl") == ["Exported 2 items to items.jsonl"]
    assert "--yes" in told("items", "users.bob", "food", "--delete", code=2)
    assert told("items", "users.bob", "food", "--delete", "--yes") == ["Deleted 1 item"]
    assert "There is no item 'food'" in told("items", "users.bob", "food", code=1)
    assert "NAMESPACE KEY --delete" in told("items", "users.bob", "--delete", code=2)
    assert told("items", "nobody") == ["No items"]


def test_an_item_of_an_unknown_class_is_shown_raw(told, monkeypatch):
    @dataclass
    class Tea:
        kind: str

    with SqliteSaver("threads.db") as saver, Store(saver.backend) as store:
        store.put(("users", "ann"), "tea", {"tea": Tea("green")})
    monkeypatch.setattr(DEFAULT_REGISTRY, "local", LocalClasses())  # (as in another process)
    assert "--raw" in told("items", "users.ann", "tea", code=2)
    (found,) = told("items", "users.ann", "tea", "--raw", "--json")["item"]["value"].values()
    assert (found["__class__"].endswith("Tea"), found["kind"]) == (True, "green")
    assert len(told("items", "users.ann", "--raw")) == 3


def test_a_file_without_items_is_left_as_it_is(here):
    with SqliteSaver("threads.db"):
        pass
    assert here("items", URL) == (0, ["No items"], [])
    exported = ["Exported 0 items to items.jsonl"]
    assert here("items", URL, "--export", "items.jsonl") == (0, exported, [])
    with InMemoryStore() as store:
        assert store.import_items("items.jsonl") == 0
    with SqliteSaver("threads.db") as saver, saver.backend._connections.reading() as db:
        tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'tk_items'")
        assert tables.fetchone() == (0,)


def test_the_cache_is_cleared(told):
    (line,) = told("cache")
    assert line.startswith("1 result (")
    assert "Nothing was cleared: " in told("cache", "--clear", code=2)
    assert told("cache", "--clear", "--yes") == [f"Cleared {line}"]
    assert told("cache", "--json") == {"entries": 0, "bytes": 0, "cleared": False}
    with SqliteSaver("threads.db") as saver, NodeCache(saver.backend) as cache:
        assert cache.get([(("node",), "key")]) == {}


@pytest.mark.parametrize("width", [80, 120])
def test_ids_in_tables_are_never_broken(width):
    ids = [str(uuid4()) for _ in range(2)]
    row = (*ids, "2026-11-21 16:25:29", 1, "head")
    drawn = table(("tip", "forked at", "time", "checkpoints>", ""), [row])
    console = Console(file=StringIO(), width=width)
    console.print(drawn)
    said = console.file.getvalue()
    assert all(part in said for part in (*ids, "2026-11-21 16:25:29", "checkpoints"))
    assert max(map(len, said.splitlines())) <= width
    assert ("time 2026-11-21" in said) is (width == 80)  # (what does not fit stands below)


def test_migrate_says_what_it_made(here):
    assert here("migrate", "sqlite:///new.db") == (0, ["Created new.db"], [])
    assert here("migrate", "sqlite:///new.db") == (0, ["The tables are up to date"], [])


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("gc", "--keep-last", "0"), "--keep-last"),
        (("gc", "--keep", "no"), "--keep"),
        (("gc", "--max-age", "0s"), "--max-age"),
        (("threads", "--order", "up"), "--order"),
        (("create", "\udcff"), "THREAD"),
        (("monitor", "--max-error-rate", "2", "--once"), "--max-error-rate"),
    ],
)
def test_invalid_values_are_named_by_their_flags(told, words, flag):
    said = told(*words, code=2)
    assert said.startswith(f"threadkeep: Invalid value for {flag}: ")
    assert "None" not in said


def test_hints_speak_of_commands_and_options(told, here):
    assert told("show", "long", "--checkpoint", str(uuid4()), code=1).endswith(
        "It may have been pruned. threadkeep history lists the others."
    )
    assert here("create", URL, "long")[2][0].endswith("Use another id.")
    said = here("export", URL, "absent", "some.tkb")[2][0]
    assert said.endswith("Find its id: threadkeep threads.")
    SqliteSaver("backup.db").close()
    assert here("import", URL, "backup.db")[2][0].count("threadkeep export") == 1
