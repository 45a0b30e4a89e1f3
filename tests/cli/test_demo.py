"""The demo as a newcomer runs it: a process, a small folder, a few turns."""

import re
import shlex
import signal
import sqlite3
import subprocess
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest
from kit.forked import python

from demo.__main__ import main
from demo.tools import Stopwatch, make_tools

ROOT = Path(__file__).parents[2]
TURNS = 6


@pytest.fixture
def folder(tmp_path):
    """A few files to read, a secret beside them, and a link that points at it."""
    root = tmp_path / "folder"
    (root / "pkg").mkdir(parents=True)
    (root / "readme.txt").write_text("A folder with two modules.\n")
    (root / "pkg" / "one.py").write_text("import os\n\n\ndef first(name):\n    return name\n")
    (root / "pkg" / "two.py").write_text("class Second:\n    value = 1\n")
    (root / "binary.bin").write_bytes(b"\0\1\2")
    (tmp_path / "secret.txt").write_text("secret\n")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    return root


def command(*arguments):
    return [*python(), "-m", "demo", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(
        command(*arguments), check=False, cwd=ROOT, capture_output=True, text=True
    )


def test_the_whole_story(folder, tmp_path):
    done = run("--dir", folder, "--turns", TURNS, "--work", tmp_path / "work")
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"Killed with SIGKILL in the middle of turn {TURNS // 2 + 1}" in done.stdout
    assert re.search(r"All \d+ acknowledged checkpoints are in the file", done.stdout)
    assert "Resumed by a new process: node 'tools' was next" in done.stdout
    assert "Forked at the end of turn 2" in done.stdout
    rows = dict(re.findall(r"│ (\w[^│]*?) +│ +([\d.,]+)", done.stdout))
    assert rows["turns"] == str(TURNS)
    with closing(sqlite3.connect(tmp_path / "work" / "threadkeep.db")) as connection:
        (stored,) = connection.execute("SELECT count(*) FROM tk_checkpoints").fetchone()
    assert stored > int(rows["checkpoints"].replace(",", ""))  # the fork's come on top
    assert not list((tmp_path / "work").glob("langgraph.db*"))
    *story, command, page = done.stdout.splitlines()
    assert max(map(len, story)) <= 100
    assert shlex.split(page)[1] == "ui"
    command = shlex.split(command)
    shown = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    assert shown.stdout.startswith("thread reader  done")


def test_the_demos_environment_has_what_it_names():
    """The extra `ui`: the demo ends with commands of threadkeep."""
    locked = (ROOT / "requirements" / "demo.txt").read_text()
    for line in metadata.requires("threadkeep"):
        name, _, condition = line.partition(";")
        if "ui" in condition:
            assert re.search(rf"^{re.split('[<>=]', name)[0]}==", locked, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dir", "no/such/folder"), "DIR=no/such/folder is not a folder"),
        (("--dir", "EMPTY"), "holds no files to read"),
        (("--turns", "2"), "TURNS=2 is too few"),
        (("--model", "gpt"), "MODEL=gpt is not of the form provider:name"),
        (("--model", "openai:gpt-4o", "--turns", "4"), "langchain"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments, message, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    given = [argument.replace("EMPTY", str(tmp_path / "empty")) for argument in arguments]
    assert main(["--work", str(tmp_path), *given]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith("demo: ")
    assert message in errors[0]


def test_ctrl_c_ends_it_cleanly(folder, tmp_path):
    arguments = command("--dir", folder, "--turns", 100_000, "--work", tmp_path / "work")
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert "An agent answers" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.startswith("demo: stopped")
    assert len(errors.splitlines()) == 1


# -- the tools -----------------------------------------------------------------------


@pytest.fixture
def tools(folder):
    return {tool.name: tool for tool in make_tools(folder, Stopwatch())}


def test_tools_read_what_is_there(tools):
    listed = tools["list_files"].invoke({"directory": "."})
    assert listed.splitlines() == ["binary.bin", "link.txt", "pkg/", "readme.txt"]
    assert "4: def first(name):" in tools["read_file"].invoke({"path": "pkg/one.py"})
    assert tools["search"].invoke({"text": "value"}) == "pkg/two.py:2: value = 1"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "link.txt", "pkg/../../secret.txt", "/etc/hosts"]
)
def test_nothing_outside_the_folder_is_read(tools, path):
    answer = tools["read_file"].invoke({"path": path})
    assert answer == f"error: {path} is outside of the folder"


# -- the scripted model --------------------------------------------------------------
