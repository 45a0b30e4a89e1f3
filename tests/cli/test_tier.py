"""The command `tier`: moves idle threads and old values into the cold store."""

import random
from pathlib import Path

import pytest
from kit.engine import Chain

from threadkeep import SqliteSaver


@pytest.fixture(autouse=True)
def store(url, tmp_path, monkeypatch):
    """The threads `order` with old pages, and `chat`, in a working directory."""
    monkeypatch.setenv("THREADKEEP_COLD", (tmp_path / "cold").as_uri())
    with SqliteSaver(url) as saver:
        Chain(saver, "chat").put(plan="free")
        chain = Chain(saver, "order")
        for number in range(3):
            chain.put(page=random.Random(number).randbytes(9000))


def test_threads_that_rest_go(told):
    would = told("tier", "--warm", "0.001s", "--dry-run", "--json")
    assert (would["dry_run"], [one["thread"] for one in would["archived"]]) == (
        *(True, ["chat", "order"]),
    )
    assert told("threads", "--state", "archived", "--json")["threads"] == []
    *_, line = told("tier", "--warm", "0.001s")
    assert line.startswith("Archived 2 threads (")
    assert len(told("threads", "--state", "archived", "--json")["threads"]) == 2
    assert told("tier")[-1] == "Checked 2 threads. Nothing to move."


def test_old_values_of_the_others_go(told, tmp_path):
    limits = ("--warm", "0.001s", "--no-archive", "--offload-over", "2000")
    *_, row, line = told("tier", *limits)
    assert row.split()[0] == "order"
    assert row.endswith("offload")
    assert line.startswith("Offloaded old values of 1 thread (")
    assert len([*(tmp_path / "cold").rglob("*.tkp")]) == 1
    (found,) = [one for one in told("threads", "--json")["threads"] if one["id"] == "order"]
    assert found["offloaded_bytes"] > 9000
    assert f"{found['offloaded_bytes']:,} in the cold store" in told("threads", "order")[0]
    told("restore", "--thread", "order")
    done = told("tier", "chat", *limits, "--no-offload", "--json")
    assert (done["examined"], done["offloaded"]) == (1, [])


def test_the_file_may_say_it(told):
    Path("threadkeep.toml").write_text('[tiering]\nwarm = "0.001s"\narchive = false\n')
    assert told("tier", "--json")["archived"] == []
    assert len(told("tier", "--archive", "--json")["archived"]) == 2


def test_what_is_typed_goes_before_the_file(told, here):
    Path("threadkeep.toml").write_text("[tiering]\noffload = false\narchive = false\n")
    limits = ("--warm", "0.001s")
    assert told("tier", *limits, "--json")["offloaded"] == []
    (one,) = told("tier", *limits, "--offload-over", "2000", "--json")["offloaded"]
    assert one["thread"] == "order"
    Path("threadkeep.toml").write_text('[tiering]\noffload = "no"\n')
    code, _, errors = here("tier")
    assert code == 2
    assert "Invalid offload: 'no'" in errors[0]


def test_a_key_that_is_unknown_is_one_line(here):
    Path("threadkeep.toml").write_text("[tiering]\nhot = 1\n")
    code, _, errors = here("tier")
    assert code == 2
    assert "tiering: unknown key 'hot'" in errors[0]


def test_what_is_away_is_a_note(told, monkeypatch):
    cold = ("--cold", Path("cold").absolute().as_uri())
    told("tier", "--warm", "0.001s", "--no-archive", "--offload-over", "2000")
    monkeypatch.delenv("THREADKEEP_COLD")
    (note,) = told("check", "threads.db", "--json")["notes"]
    assert (note["thread"], note["kind"]) == ("order", "away")
    assert told("check", "threads.db", *cold, "--json")["notes"] == []
    assert told("repair", *cold, "--json")["repaired"] == []
