"""`threadkeep erase`: its report of erased and remaining data, before and after."""

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from kit.cli import SECONDS, answering
from kit.engine import Chain
from kit.forked import python

from threadkeep import SqliteSaver
from threadkeep.__main__ import main
from threadkeep._core.codec.frame import Compression

STORE = "threads.db"
MARKER = "marker-94ab1c7730"


@pytest.fixture(autouse=True)
def store(url: str) -> None:
    """Two threads of u1, one with a fork, and a thread of u2."""
    with SqliteSaver(STORE, compression=Compression(level=0)) as saver:
        for name, user in (("alpha", "u1"), ("beta", "u1"), ("gamma", "u2")):
            chain = Chain(saver, name)
            for number in range(3):
                chain.put(text=f"{number} {MARKER if user == 'u1' else 'else'}" * 40)
            saver.threads.update(name, metadata={"user_id": user, "n": 1})
        saver.threads.fork("alpha", new_thread_id="fork")
        saver.threads.update("fork", metadata={"user_id": "u3"})


def holds() -> list[str]:
    """The files that contain the marker."""
    return [file.name for file in Path().iterdir() if MARKER.encode() in file.read_bytes()]


def names() -> list[str]:
    with SqliteSaver(STORE) as saver:
        return [one.id for one in saver.threads.scan()]


def test_before_and_after(here) -> None:
    before = Path(STORE).read_bytes()
    words = ("erase", "--metadata", "user_id=u1", "--metadata", "n=1")
    code, lines, errors = here(*words, "--dry-run")
    assert (code, errors) == (0, [])
    assert lines[0].split() == ["thread", "checkpoints", "writes", "segments", "bytes"]
    assert [line.split()[:2] for line in lines[1:3]] == [["alpha", "3"], ["beta", "3"]]
    assert lines[3].startswith("Would erase 2 threads (")
    assert lines[4:] == ["Forks still hold the data: fork (--forks erases them)"]
    assert Path(STORE).read_bytes() == before
    code, done, errors = here(*words, "--forks", "--yes")
    assert (code, errors) == (0, [])
    assert [line.split()[0] for line in done[1:4]] == ["fork", "alpha", "beta"]
    assert done[4].startswith("Erased 3 threads (")
    assert "Cleared: the SQLite file and its WAL, rewritten" in done
    assert sum(line.startswith("Remaining: ") for line in done) >= 4
    assert (names(), holds()) == (["gamma"], [])


def test_what_it_was_forked_from_is_told(here) -> None:
    code, lines, _ = here("erase", "fork", "--forks", "--yes")
    assert code == 0
    assert "Shared history with: alpha" in lines
    assert names() == ["alpha", "beta", "gamma"]


def test_json_is_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["erase", "beta", "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert not told["dry_run"]
    assert [(one["thread"], one["checkpoints"]) for one in told["threads"]] == [("beta", 3)]
    assert (told["forks"], told["shared_with"], told["unfinished"]) == ([], [], [])
    assert told["cleared"]
    assert told["remains"]
    assert main(["erase", "beta", "--yes", "--json"]) == 0  # (once more: nothing is wrong)
    assert json.loads(capsys.readouterr().out)["threads"][0]["checkpoints"] == 0


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_without_a_terminal_nothing_is_erased(here, more: tuple[str, ...]) -> None:
    code, out, errors = here("erase", "alpha", *more)
    assert (code, out) == (2, [])
    assert "cannot ask for confirmation" in "".join(errors)
    assert names() == ["alpha", "beta", "fork", "gamma"]


def test_a_place_that_is_not_cleared_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        SqliteSaver(STORE) as saver,
        closing(sqlite3.connect(STORE, isolation_level=None)) as other,
    ):
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM tk_checkpoints").fetchone()
        saver.threads.tag("gamma", "new")  # (else the old state is the present one)
        environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        program = (
            "import sys\nfrom threadkeep.cli.stores import Session\n"
            "from threadkeep import SqliteSaver\nfrom threadkeep.__main__ import main\n"
            "Session.open = lambda self, **_: SqliteSaver(self.store_url(), busy_timeout=0.05)\n"
            "sys.exit(main(['erase', 'beta', '--yes']))"
        )
        run = [*python(), "-c", program]
        done = subprocess.run(
            run, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert (done.returncode, done.stderr) == (1, "")
        assert "Not done: " in done.stdout
        assert "beta" in done.stdout
        other.execute("ROLLBACK")
    assert main(["erase", "beta", "--yes"]) == 0
    assert "Not done" not in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["y", "n"])
def test_at_a_terminal_it_asks(answer: str) -> None:
    code, out, _ = answering(f"{answer}\n".encode(), "erase", "beta")
    assert code == (0 if answer == "y" else 2)
    assert ("Erased 1 thread (" in out) == (answer == "y")
    assert ("beta" in names()) == (answer == "n")
