"""The commands `archive` and `restore --thread`: move threads to the cold store and back."""

import json
from pathlib import Path

import pytest
from kit.engine import Chain

from threadkeep import SqliteSaver


@pytest.fixture(autouse=True)
def store(url):
    """The threads `order` and `chat`, in a working directory."""
    with SqliteSaver(url) as saver:
        for name in ("order", "chat"):
            Chain(saver, name).put(plan="free")


@pytest.fixture
def cold(tmp_path, monkeypatch):
    monkeypatch.setenv("THREADKEEP_COLD", (tmp_path / "cold").as_uri())
    return tmp_path / "cold"


def test_a_thread_goes_and_comes_back(told, cold):
    *_, line = told("archive", "order")
    assert line.startswith("Archived 1 thread (")
    assert line.endswith(" in the cold store)")
    assert len([*cold.rglob("*.tkb")]) == 1
    (shown,) = told("threads", "--state", "archived", "--json")["threads"]
    assert shown["archived_bytes"] == next(cold.rglob("*.tkb")).stat().st_size
    (line,) = told("restore", "--thread", "order")
    assert line.startswith("thread order  done  updated ")


READING = (
    *("show order", "state order", "history order", "branches order", "versions order plan"),
    *(
        "diff order 00000001 00000001",
        "export order out.tkb",
        "copy order new",
        "fork order --as new",
    ),
)


@pytest.mark.parametrize("arguments", READING)
def test_whatever_reads_a_thread_takes_the_cold_store(arguments, told, tmp_path):
    cold = ("--cold", (tmp_path / "there").as_uri())
    told("archive", "order", *cold)
    assert told(*arguments.split(), *cold)
    assert told("threads", "--state", "archived", "--json")["threads"] == []


@pytest.mark.parametrize("arguments", ["set order a=1", "tag order a", "pin order"])
def test_what_is_known_of_a_thread_is_changed_in_the_archive(arguments, told, tmp_path):
    cold = ("--cold", (tmp_path / "there").as_uri())
    told("archive", "order", *cold)
    assert told(*arguments.split(), "--json")["thread"]["state"] == "archived"


@pytest.mark.parametrize("file", ["backup.db", "backup.tkb"])
def test_a_backup_tells_what_it_does_not_hold(file, told, cold, here):
    told("archive", "order")
    code, out, errors = here("backup", "threads.db", file)
    assert (code, errors) == (1, [])
    assert out[1] == "Not included: values of 1 thread in the cold store"
    code, out, _ = here("backup", "threads.db", file, "--json")
    assert (code, json.loads("".join(out))["away"]) == (1, ["order"])
    told("restore", "--thread", "order")
    assert told("backup", "threads.db", file)[0].startswith(f"Backed up 2 threads to {file}")


def test_what_has_rested_goes(told, tmp_path):
    url = (tmp_path / "there").as_uri()
    document = told("archive", "--idle", "0.001s", "--cold", url, "--dry-run", "--json")
    assert (document["archived"], len(document["threads"])) == (False, 2)
    assert told("archive", "--idle", "30d", "--cold", url, "--json")["threads"] == []
    document = told("archive", "--idle", "0.001s", "--cold", url, "--json")
    assert [one["state"] for one in document["threads"]] == ["archived"] * 2
    assert told("restore", "--thread", "chat", "--cold", url, "--json")["thread"]["id"] == "chat"


def test_the_file_may_name_the_cold_store(told, tmp_path):
    cold = (tmp_path / "cold").as_uri()
    Path("threadkeep.toml").write_text(f"cold = {json.dumps(cold)}\n")
    told("archive", "order")
    assert [*(tmp_path / "cold").rglob("*.tkb")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archive", "order"), "A cold store is needed"),
        (("archive", "order", "--cold", "ftp://host"), "Invalid URL of a cold store"),
        (("tier", "--cold", "ftp://host"), "Invalid URL of a cold store"),
    ],
)
def test_without_a_cold_store_nothing_goes(here, arguments, said):
    code, out, errors = here(*arguments)
    assert (code, out) == (2, [])
    assert said in errors[0]


def test_nothing_goes_if_one_is_not_there(told, cold, here):
    code, out, errors = here("archive", "order", "nobody")
    assert (code, out) == (1, [])
    assert "no such thread" in errors[0]
    assert not cold.exists() or not [*cold.rglob("*.tkb")]
    assert told("threads", "--state", "archived", "--json")["threads"] == []


def test_what_is_archived_is_left_out_and_told(told, cold):
    told("archive", "order")
    *_, line = told("export", "--all", "all.tkb")
    assert line.startswith("Skipped 1 archived thread")
    assert told("export", "--all", "all.tkb", "--json")["archived"] == ["order"]
    with SqliteSaver("threads.db") as saver:
        for name in ("order", "chat"):
            saver.threads.tag(name, "vip")
    assert told("export", "--tag", "vip", "all.tkb", "--json")["archived"] == ["order"]
    done = told("mirror", "threads.db", "sqlite:///other.db", "--json")
    assert (done["archived"], done["added"]) == (["order"], ["chat"])


def test_looking_at_an_archived_thread_says_how_it_comes_back(told, cold, here):
    told("archive", "order")
    code, _, errors = here("show", "order")
    assert code == 2
    assert "archived" in errors[0]
    assert "threadkeep restore --thread" in "".join(errors)
