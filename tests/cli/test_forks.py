"""The commands `fork` and `merge`: output and refusals."""

import json

import pytest
from kit.engine import Chain

from threadkeep import SqliteSaver
from threadkeep.__main__ import main


@pytest.fixture(autouse=True)
def store(url):
    """The thread `order` with two checkpoints, in a working directory."""
    with SqliteSaver(url) as saver:
        chain = Chain(saver, "order")
        chain.put(plan="free", seats=1)
        chain.put(plan="free", seats=2)
        saver.threads.tag("order", "vip")
        saver.threads.update("order", metadata={"user": "u1"})


def ids():
    """The checkpoints of `order`, oldest first."""
    with SqliteSaver("threads.db") as saver:
        return list(saver.threads.branches("order").checkpoints)


def put(thread, **values):
    """Add a checkpoint to a thread."""
    with SqliteSaver("threads.db") as saver:
        Chain(saver, thread, start=50).follow().put(**values)


def values(thread):
    with SqliteSaver("threads.db") as saver:
        return saver.get({"configurable": {"thread_id": thread}})["channel_values"]


def test_a_fork_of_the_head_and_one_of_a_checkpoint(told):
    first, last = ids()
    made = told("fork", "order", "--json")["thread"]
    assert made["state"] == "forked"
    assert made["metadata"] == {"user": "u1"}
    assert made["tags"] == []
    assert made["forked_from"] == ["order", last]
    assert values(made["id"]) == {"plan": "free", "seats": 2}
    (line,) = told("fork", "order", first, "--as", "what if")
    assert line.startswith("thread what if  done  forked  ")
    assert "  forked from order  " in line
    assert values("what if") == {"plan": "free", "seats": 1}
    assert [line.split()[0] for line in told("threads", "--forked-from", "order", "--count")] == [
        "2"
    ]


@pytest.fixture
def fork(told):
    """A fork with two changed channels, one of them also changed in `order`."""
    told("fork", "order", "--as", "branch")
    put("branch", plan="pro", note="discount")
    put("order", plan="trial", seats=3)
    return "branch"


def test_conflicts_are_listed_and_nothing_is_merged(fork, capsys):
    before = ids()
    for more in ([], ["--dry-run"]):
        assert main(["merge", fork, "order", *more]) == 1
        said = capsys.readouterr()
        assert said.err == ""
        lines = said.out.splitlines()
        assert [line.split() for line in lines[1:3]] == [
            ["note", "fork", "theirs"],
            ["plan", "both", "conflict"],
        ]
        assert lines[3].startswith("Nothing was merged: 1 conflict")
        assert main(["merge", fork, "order", "--json", *more]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document["channels"] == ["note"]
        assert document["conflicts"] == [{"channel": "plan", "resolution": None}]
        assert document["checkpoint"] is None
    assert ids() == before


@pytest.mark.parametrize(("strategy", "plan"), [("theirs", "pro"), ("ours", "trial")])
def test_a_strategy_resolves_them(fork, told, strategy, plan):
    before = ids()
    arguments = ("merge", fork, "order", "--strategy", strategy)
    planned = told(*arguments, "--dry-run", "--json")
    assert planned["conflicts"] == [{"channel": "plan", "resolution": strategy}]
    assert told(*arguments, "--dry-run")[-1] == "Would merge branch into order"
    assert ids() == before
    done = told(*arguments, "--json")
    assert {**planned, "checkpoint": done["checkpoint"]} == done
    assert ids() == [*before, done["checkpoint"]]
    assert values("order") == {"plan": plan, "seats": 3, "note": "discount"}


def test_without_conflicts_no_strategy_is_needed(told):
    told("fork", "order", "--as", "branch")
    assert told("merge", "branch", "order") == ["Nothing to merge: order is up to date with branch"]
    put("branch", plan="pro")
    *rows, line = told("merge", "branch", "order")
    assert rows[1].split() == ["plan", "fork", "theirs"]
    assert line == f"Merged branch into order: {ids()[-1]}"
    assert values("order") == {"plan": "pro", "seats": 2}
