"""Ids of threads and checkpoints may be shortened; names of stores show no secret."""

import pytest
from kit.engine import Chain

from threadkeep import SqliteSaver
from threadkeep.cli.stores import public_name

THREADS = ("order-1", "order-10", "support", *(f"user-{n}" for n in range(7)))


@pytest.fixture
def ids(url):
    """Fill the store. Return the ids of a thread's three checkpoints: 00000101, 00000102 ..."""
    with SqliteSaver(url) as saver:
        for name in THREADS:
            Chain(saver, name).put(n=1)
        chain = Chain(saver, "many", start=0x100)
        return [chain.put(n=n)["configurable"]["checkpoint_id"] for n in range(20)]


@pytest.mark.parametrize(
    "words",
    [
        "show sup",
        "threads supp",
        "state s",
        "history sup",
        "branches sup",
        "versions sup n",
        "tag sup x",
        "set sup n=1",
        "pin sup",
        "release sup",
        "copy sup new",
        "fork sup --as new",
        "archive sup",
        "delete sup --dry-run",
        "erase sup --dry-run",
        "export sup out.tkb",
    ],
)
def test_the_beginning_of_a_threads_id_is_enough(ids, told, monkeypatch, tmp_path, words):
    monkeypatch.setenv("THREADKEEP_COLD", (tmp_path / "cold").as_uri())
    assert told(*words.split(), "--json")


def test_a_whole_id_is_that_thread_and_an_ambiguous_one_an_error(ids, told, here):
    assert told("threads", "order-1", "--json")["thread"]["id"] == "order-1"
    code, _, (line,) = here("show", "user")
    assert code == 2
    told_names = "user-0, user-1, user-2, user-3, user-4 and more"
    assert f"Several threads begin with 'user': {told_names}. Use more of the id." in line
    assert here("show", "absent")[0] == 1
    assert here("diff", "order-1", "--other", "sup")[0] == 0


def test_what_removes_data_without_a_question_needs_whole_ids(ids, told, here):
    for words in ("delete sup --yes", "erase sup --yes", "prune sup"):
        here(*words.split())
    assert told("threads", "--count") == [str(len(THREADS) + 1)]
    assert here("delete", "sup", "--yes")[0] == 1


@pytest.mark.parametrize("command", ["show", "state", "versions"])
def test_the_beginning_of_a_checkpoints_id_is_enough(ids, told, here, command):
    channel = ["n"] if command == "versions" else []
    first, last = ids[0], ids[-1]
    short = next(last[:n] for n in range(1, 99) if sum(one.startswith(last[:n]) for one in ids) < 2)
    whole = told(command, "many", *channel, "--checkpoint", last, "--json")
    assert told(command, "many", *channel, "--checkpoint", short, "--json") == whole
    code, _, (line,) = here(command, "many", *channel, "--checkpoint", first[:1])
    assert code == 2
    assert f"Several checkpoints begin with {first[:1]!r}: {first}, " in line


def test_two_checkpoints_are_compared_by_their_beginnings(ids, told):
    found = told("diff", "many", ids[0], ids[-1], "--json")
    short = [
        ids[-1][:n] for n in range(1, 99) if sum(one.startswith(ids[-1][:n]) for one in ids) < 2
    ]
    assert told("diff", "many", ids[0], short[0], "--json") == found
    assert told("fork", "many", short[0], "--json")["thread"]["forked_from"] == ["many", ids[-1]]


def test_a_long_thread_is_shown_from_its_end(url, told):
    with SqliteSaver(url) as saver:
        Chain(saver, "long").put(messages=[("human", f"question {n}") for n in range(25)])
    lines = told("show", "long")
    assert "... the newest 10 of 25 messages (--last N, --full)" in lines
    assert [one for one in lines if "question" in one] == [f"  question {n}" for n in range(15, 25)]
    assert sum("question" in one for one in told("show", "long", "--full")) == 25
    assert sum("question" in one for one in told("show", "long", "--last", "3")) == 3
    assert len(told("show", "long", "--json")["messages"]) == 25


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("threads.db", "threads.db"),
        ("sqlite:////var/threads.db", "/var/threads.db"),
        (
            "postgresql://u:hunter2@db:5432/app?schema=a&password=hunter2",
            "postgresql://db:5432/app?schema=a",
        ),
        ("postgresql://u:hun/ter2@db/app", "postgresql://..."),
        ("postgresql://u:12/ter2@db/app", "postgresql://..."),
        ("postgresql://u:12#ter2@db/app", "postgresql://..."),
        ("postgresql://u:12?ter2@db/app", "postgresql://..."),
        ("postgresql:///app?host=/run&password=hunter2", "postgresql://..."),
        ("redis://:hunter2@[::1]:6379/0", "redis://[::1]:6379/0"),
    ],
)
def test_the_name_of_a_store_has_no_secret(url, shown):
    assert public_name(url) == shown
