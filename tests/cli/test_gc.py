"""`threadkeep gc` and `threadkeep prune`: their report of removals, before and after."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.cli import SECONDS, command
from kit.engine import Chain, everything

from threadkeep import Retention, SqliteSaver
from threadkeep.__main__ import main
from threadkeep.cli.commands.retention import policy_of

STORE = "threads.db"


@pytest.fixture(autouse=True)
def store(url: str) -> None:
    """Three threads of three checkpoints each: alpha, beta (tagged), gamma (with a pinned one)."""
    with SqliteSaver(url) as saver:
        for name in ("alpha", "beta", "gamma"):
            chain = Chain(saver, name)
            for number in range(3):
                chain.put(text=f"{number}" * 900, kept=name)
        saver.threads.tag("beta", "vip")
        saver.threads.pin("gamma", checkpoint_id="00000001")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command; return its exit code, and its document, lines or error."""

    def call(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments])
        said = capsys.readouterr()
        if code == 2:
            assert (said.out, said.err.count("\n")) == ("", 1)
            return code, said.err
        assert said.err == ""
        return code, json.loads(said.out) if "--json" in arguments else said.out.splitlines()

    return call


def left() -> dict[str, int]:
    with SqliteSaver(STORE) as saver:
        places = [place[0] for place in everything(saver)]
    return {name: places.count(name) for name in sorted(set(places))}


def test_what_goes_is_told_before_and_after(run: Any) -> None:
    before = Path(STORE).read_bytes()
    code, dry = run("gc", "--keep-last", "1", "--dry-run", "--json")
    assert (code, dry["dry_run"], dry["checkpoints"]) == (0, True, 5)
    assert Path(STORE).read_bytes() == before
    code, done = run("gc", "--keep-last", "1", "--json")
    assert done == {**dry, "dry_run": False}
    assert left() == {"alpha": 1, "beta": 1, "gamma": 2}
    assert run("gc", "--keep-last", "1") == (0, ["Checked 3 threads. Nothing to remove."])


def test_each_thread_is_a_line(run: Any) -> None:
    code, lines = run("gc", "--ttl", "0.000001s", "--dry-run")
    assert (code, len(lines)) == (0, 4)
    assert lines[1].split()[0] == "alpha"
    assert lines[1].endswith("deleted: ttl")
    assert lines[3].startswith("Would delete 2 threads (")
    _, lines = run("gc", "--ttl", "0.000001s", "--drop-tagged")
    assert lines[-1].startswith("Deleted 3 threads (")
    assert left() == {}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("--max-age 7d", {"alpha": 1, "beta": 1, "gamma": 2}),
        ("--max-bytes 0", {"alpha": 1, "beta": 1, "gamma": 2}),
        ("--keep turn_ends", {"alpha": 1, "beta": 1, "gamma": 2}),
        ("--max-count 2", {"beta": 3, "gamma": 3}),
        ("--latest text", {"alpha": 3, "beta": 3, "gamma": 3}),
        ("", {"alpha": 3, "beta": 3, "gamma": 3}),
    ],
)
def test_each_limit(run: Any, options: str, kept: dict[str, int]) -> None:
    assert run("gc", *options.split())[0] == 0
    assert left() == kept
    with SqliteSaver(STORE) as saver:
        values = [one["values"] for one in everything(saver).values()]
    assert len([one for one in values if "text" in one]) == (
        4 if "text" in options else len(values)
    )


def test_the_configuration_counts_where_nothing_is_given(run: Any) -> None:
    Path("threadkeep.toml").write_text(
        '[retention]\nkeep_last = 2\nttl = "90d"\nmax_age = 1e9\nchannels = { text = "latest" }\n'
    )
    assert policy_of({}) == Retention(
        keep_last=2, ttl=timedelta(days=90), max_age=1e9, channels={"text": "latest"}
    )
    assert run("gc", "--dry-run", "--json")[1]["checkpoints"] == 2
    assert run("gc", "--dry-run", "--json", "--keep-last", "1")[1]["checkpoints"] == 5


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("what = 1", "unknown key 'what'"),
        ("keep_last = 0", "keep_last"),
        ('ttl = "soon"', "ttl"),
        ("max_age = -1", "max_age"),
    ],
)
def test_mistakes_of_the_configuration(run: Any, table: str, told: str) -> None:
    Path("threadkeep.toml").write_text(f"[retention]\n{table}\n")
    code, line = run("gc")
    assert code == 2
    assert told in line
    assert left()["alpha"] == 3


def test_a_thread_that_cannot_be_read_is_a_finding(run: Any) -> None:
    with SqliteSaver(STORE) as saver:
        saver.threads.retain("alpha", Retention(keep_last=1))
    with closing(sqlite3.connect(STORE)) as db, db:
        db.execute("UPDATE tk_labels SET label = replace(label, '\"v\":1', '\"v\":9')")
    code, lines = run("gc", "--keep-last", "1")
    assert code == 1
    assert "alpha" in lines[1]
    assert "newer release" in lines[1]
    assert left() == {"alpha": 3, "beta": 1, "gamma": 2}


def test_pruning_threads_by_name(run: Any) -> None:
    _, dry = run("prune", "alpha", "gamma", "--dry-run", "--json")
    assert (dry["checkpoints"], dry["examined"]) == (3, 2)
    assert run("prune", "alpha", "gamma")[0] == 0
    assert left() == {"alpha": 1, "beta": 3, "gamma": 2}
    assert run("prune", "beta", "--keep-last", "2")[0] == 0
    assert left()["beta"] == 2


def test_pruning_what_is_not_there_does_nothing(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", "alpha", "absent"]) == 1
    assert "absent" in capsys.readouterr().err
    assert left()["alpha"] == 3


def test_again_and_again_until_it_is_interrupted() -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    arguments = command("gc", "--keep-last", "1", "--every", "0.01s", "--json")
    with subprocess.Popen(arguments, **pipes) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert (first["checkpoints"], second["checkpoints"]) == (5, 0)
    assert process.returncode == 130


def test_a_store_that_fails_is_tried_again(tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    later = tmp_path / "later.db"
    arguments = command("gc", str(later), "--keep-last", "1", "--every", "0.01s", "--json")
    environment = {"env": {k: v for k, v in os.environ.items() if k != "THREADKEEP_URL"}}
    with subprocess.Popen(arguments, **pipes, **environment) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert "There is no file" in process.stderr.readline()
        with SqliteSaver(str(tmp_path / "made.db")) as saver:
            Chain(saver).put(text="x")
        (tmp_path / "made.db").rename(later)
        assert json.loads(process.stdout.readline())["examined"] == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)


def test_a_run_without_a_limit_says_so(run: Any) -> None:
    last = run("gc")[1][-1]
    assert last.startswith("No limit was given: checked only threads with a policy")
    assert not run("gc", "--keep-last", "5")[1][-1].startswith("No limit")
