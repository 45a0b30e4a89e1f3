"""Commands that look at a database of LangGraph's own savers, and change nothing in it."""

import json
from pathlib import Path

import pytest
from kit.engine import Chain
from kit.postgres_server import server
from langgraph.checkpoint.postgres import PostgresSaver as OfficialPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver as OfficialSaver

LOOK = [
    "show order-1",
    "show order-1 --checkpoint CHECKPOINT",
    "state order-1 --channel n",
    "history order-1",
    "branches order-1",
    "diff order-1 CHECKPOINT",
    "diff order-1 --other order-2",
]


def fill(saver):
    """Save two threads: one with a fork that waits for an answer. Return a checkpoint's id."""
    chain = Chain(saver, "order-1")
    chain.put(messages=["hi"], n=1)
    at = chain.put(messages=["hi", "there"], n=2)
    chain.put(messages=["hi", "there", "again"], n=3)
    fork = Chain(saver, "order-1", start=7)
    fork.at, fork.versions = at, dict(chain.versions)
    saver.put_writes(fork.put(n=4), [("__interrupt__", "?")], "task")
    Chain(saver, "order-2").put(messages=["bye"], n=5)
    return at["configurable"]["checkpoint_id"]


def documents(here, store, checkpoint):
    """Return the document of each command on a store, without the thread's registry entry."""
    found = []
    for words in LOOK:
        name, *more = words.replace("CHECKPOINT", checkpoint).split()
        code, said, wrong = here(name, store, *more, "--json")
        assert (code, wrong) == (0, [])
        found.append(json.loads(said[0]) | {"registry": None})
    return found


def test_it_is_shown_as_the_adopted_threads_are(here):
    with OfficialSaver.from_conn_string("langgraph.db") as saver:
        checkpoint = fill(saver)
    before = Path("langgraph.db").read_bytes()
    assert here("adopt", "langgraph.db", "sqlite:///threads.db")[0] == 0
    theirs = documents(here, "langgraph.db", checkpoint)
    assert theirs == documents(here, "threads.db", checkpoint)
    assert theirs[0]["waiting"][0]["value"] == "?"
    listed = json.loads(here("threads", "langgraph.db", "--json")[1][0])["threads"]
    assert {one["id"]: one["checkpoints"] for one in listed} == {"order-1": 4, "order-2": 1}
    assert here("threads", "langgraph.db", "--count") == (0, ["2"], [])
    counted = here("stats", "langgraph.db")[1]
    assert counted[0] == "langgraph.db  of LangGraph's own savers"
    assert counted[1].startswith("2 threads, 5 checkpoints, ")
    assert Path("langgraph.db").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("threads langgraph.db --tag vip", 2, "have no filters"),
        ("show langgraph.db absent", 1, "no such thread"),
        ("history langgraph.db absent", 1, "no such thread"),
        ("show langgraph.db order-1 --tenant acme", 2, "--tenant"),
        ("tag langgraph.db order-1 vip", 2, "threadkeep adopt"),
    ],
)
def test_what_it_cannot_do(here, words, code, told):
    with OfficialSaver.from_conn_string("langgraph.db") as saver:
        fill(saver)
    assert here(*words.split())[0] == code
    assert told in here(*words.split())[2][0]


def test_a_database_of_postgres_is_read_too(here):
    with server() as postgres:
        url = postgres.url()
        with OfficialPostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            checkpoint = fill(saver)
        url = f"{url}?schema=public"
        assert here("adopt", url, "sqlite:///threads.db")[0] == 0
        theirs = documents(here, url, checkpoint)
        assert theirs == documents(here, "threads.db", checkpoint)
