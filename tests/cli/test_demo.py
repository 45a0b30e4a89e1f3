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
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from demo.__main__ import main
from demo.model import Questions, decide, scripted
from demo.tools import MAX_HITS, MAX_LINES, MAX_NAMES, Stopwatch, make_tools

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
    assert shown.stdout.startswith("thread reader  active")


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


def test_a_search_does_not_follow_links_out_of_the_folder(tools):
    answer = tools["search"].invoke({"text": "secret"})
    assert answer == "secret is not in the first 400 files there"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("read_file", {"path": "gone.py"}, "there is no gone.py"),
        ("read_file", {"path": "pkg"}, "pkg is a folder: list it"),
        ("read_file", {"path": "binary.bin"}, "binary.bin is empty, not text, or too large"),
        ("list_files", {"directory": "readme.txt"}, "readme.txt is a file: read it"),
        ("search", {"text": "x", "directory": ".."}, ".. is outside of the folder"),
    ],
)
def test_a_mistake_of_the_model_is_told_to_it(tools, name, arguments, message):
    assert tools[name].invoke(arguments) == f"error: {message}"


def test_answers_are_bounded(tools, folder):
    (folder / "long.py").write_text("needle = 1\n" * 5_000)
    for number in range(MAX_NAMES + 10):
        (folder / f"many_{number:03}.py").write_text("x = 1\n")
    assert len(tools["list_files"].invoke({}).splitlines()) == MAX_NAMES + 1
    assert len(tools["search"].invoke({"text": "needle"}).splitlines()) == MAX_HITS
    read = tools["read_file"].invoke({"path": "long.py", "start": -3, "lines": 10**9})
    assert len(read.splitlines()) == MAX_LINES + 1


# -- the scripted model --------------------------------------------------------------


def test_the_script_reacts_to_what_the_tools_found():
    question = HumanMessage("Please search for `value` in `pkg`.")
    first = scripted([question])
    assert [(c["name"], c["args"]["text"]) for c in first.tool_calls] == [("search", "value")]
    found = ToolMessage("pkg/two.py:22: value = 1", tool_call_id="1", name="search")
    then = scripted([question, first, found])
    assert then.tool_calls[0]["args"] == {"path": "pkg/two.py", "start": 12, "lines": 30}
    nothing = ToolMessage("error: there is no pkg", tool_call_id="1", name="search")
    last = scripted([question, first, nothing])
    assert not last.tool_calls
    assert "search failed: there is no pkg" in last.content


def test_the_script_does_not_read_the_same_twice():
    asked = AIMessage("", tool_calls=decide("What does `a.py` do?", [], 3).tool_calls)
    read = ToolMessage("a.py, 1 lines\n1: def f(): ...", tool_call_id="1", name="read_file")
    for salt in range(6):
        turn = [asked, read]
        while (step := decide("What does `a.py` do?", turn, salt)).tool_calls:
            again = step.tool_calls[0]
            hit = ToolMessage("a.py:1: def f(): ...", tool_call_id="2", name=again["name"])
            turn += [step, hit if again["name"] == "search" else read]
        calls = [(c["name"], str(c["args"])) for m in turn if m.type == "ai" for c in m.tool_calls]
        assert len(calls) == len(set(calls))


def test_questions_are_the_same_in_every_process(folder):
    first, second = Questions(folder), Questions(folder)
    assert [first[n] for n in range(20)] == [second[n] for n in range(20)]
    assert "link.txt" not in " ".join(first[n] for n in range(50))
