"""Every command on screens of 80 and 120 columns: its lines fit, and `docs/screens.md` shows them.

To write the page: `.venv/bin/python tests/cli/test_screens.py`.
"""

import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, TypedDict
from unittest import mock

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import interrupt

from threadkeep import SqliteSaver, Store
from threadkeep.__main__ import main
from threadkeep.cli.app import _PANELS

PAGE = Path(__file__).parents[2] / "docs" / "screens.md"
WIDTHS = (80, 120)

# In the order in which they run: each after what it needs.
LINES = """
threads threads.db
find threads.db refund
show threads.db order-7
state threads.db order-7 --channel total
history threads.db order-7
branches threads.db order-7
versions threads.db order-7 total
diff threads.db order-7 --other order-8
messages threads.db order-7
partial threads.db order-7
items threads.db users.ann
cache threads.db
stats threads.db
advise threads.db
create threads.db order-9 --metadata user_id=u1 --ttl 30d
set threads.db order-9 plan=pro
tag threads.db order-9 vip
pin threads.db order-9
release threads.db order-9
copy threads.db order-7 order-7-copy
fork threads.db order-7 --as what-if
merge threads.db what-if order-7 --dry-run
prune threads.db order-7-copy --keep-last 2
delete threads.db order-7-copy --yes
erase threads.db what-if --yes
delete-account threads.db --metadata user_id=u2 --yes
export threads.db order-7 refunds.tkb
import sqlite:///other.db refunds.tkb
adopt langgraph.db sqlite:///adopted.db
leave threads.db sqlite:///left.db
mirror threads.db sqlite:///mirror.db
check threads.db
repair threads.db
backup threads.db backup.db
restore new.db backup.db
gc threads.db --keep-last 2 --dry-run
tier threads.db --warm 1s --dry-run
index threads.db
heads threads.db
archive threads.db order-8
rotate -h
upgrade -h
ui -h
monitor -h
migrate sqlite:///empty.db
grant -h
views -h
"""
COMMANDS = {line.split()[0]: line.split() for line in LINES.strip().splitlines()}


INTRODUCTION = """# The commands on a screen

Each command on a terminal of 80 columns, and of 120 if it looks different there.
[The command line](command-line.md) explains the commands.
"""


class State(TypedDict):
    messages: Annotated[list[object], add_messages]
    total: int


def look_up(_: State) -> object:
    call = {"name": "find_order", "args": {"number": 1207}, "id": "call_1"}
    return {"messages": [AIMessage("Let me look that order up.", tool_calls=[call])], "total": 40}


def ask(_: State) -> object:
    interrupt({"question": "Refund 40 EUR?"})
    return {}


def fill(saver: object) -> None:
    """Run a graph on two threads; both wait for an answer."""
    graph = StateGraph(State).add_sequence([look_up, ask]).add_edge(START, "look_up")
    compiled = graph.compile(checkpointer=saver)  # type: ignore[arg-type]
    for thread, user in (("order-7", "u1"), ("order-8", "u1"), ("order-6", "u2")):
        said = {"messages": [HumanMessage("I want a refund for order 1207.")]}
        place = {"configurable": {"thread_id": thread}, "metadata": {"user_id": user}}
        compiled.invoke(said, place)  # type: ignore[call-overload]


def filled(folder: Path) -> Path:
    """Make the stores that the commands use."""
    folder.mkdir(exist_ok=True)
    with SqliteSaver(folder / "threads.db") as saver:
        fill(saver)
        with Store(saver.backend) as store:
            store.put(("users", "ann"), "drink", {"text": "tea"})
    with LangGraphSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        fill(saver)
    return folder


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def screens(folder: Path, columns: int) -> dict[str, str]:
    """Run all commands in a folder; return the screen of each."""
    found = {}
    kept = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm", "NO_COLOR": "1"}
    cold = {"THREADKEEP_COLD": (folder / "cold").as_uri(), "COLUMNS": str(columns)}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name, words in COMMANDS.items():
            with (
                mock.patch.dict(os.environ, {**kept, **cold}, clear=True),
                mock.patch.object(sys, "stdout", Screen()) as screen,
                mock.patch.object(sys, "stderr", io.StringIO()) as errors,
            ):
                code = main(words)
            assert (code, errors.getvalue()) == (0, ""), name
            found[name] = steady(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))
    finally:
        os.chdir(before)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("screens"))


@pytest.mark.parametrize("columns", WIDTHS)
def test_each_command_fits_the_screen(folder, tmp_path, columns):
    place = shutil.copytree(folder, tmp_path / "here")
    for name, screen in screens(place, columns).items():
        assert screen.strip(), name
        # (the terminal itself wraps sentences and commands, which may be copied whole)
        drawn = [line.rstrip() for line in screen.splitlines() if line[:1] in (" ", *"│╭╰")]
        wide = [line for line in drawn if len(line) > columns]
        assert wide == [], name


def test_the_page_shows_each_command():
    names = [name for panel in _PANELS.values() for name in panel.split()]
    assert sorted(COMMANDS) == sorted(names)
    assert re.findall(r"^### `(.*)`$", PAGE.read_text(), re.MULTILINE) == names


def page() -> str:
    """Return the page, with ids and times that do not change at each run."""
    with tempfile.TemporaryDirectory() as name:
        made = filled(Path(name, "made"))
        shown = [
            screens(Path(shutil.copytree(made, Path(name, f"at-{columns}"))), columns)
            for columns in WIDTHS
        ]
    parts = [INTRODUCTION]
    for panel, names in _PANELS.items():
        parts.append(f"## {panel}\n")
        for command in names.split():
            parts.append(f"### `{command}`\n")
            for columns, screen in zip(
                WIDTHS, dict.fromkeys(one[command] for one in shown), strict=False
            ):
                line = f"$ threadkeep {' '.join(COMMANDS[command])}"
                heading = f"{columns} columns:\n\n" if columns != WIDTHS[0] else ""
                lines = [one.rstrip() for one in screen.strip("\n").splitlines()]
                parts.append("\n".join([f"{heading}```", line, *lines, "```\n"]))
    return "\n".join(parts)


def steady(screen: str) -> str:
    """Replace times, and the ends of ids."""
    screen = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-11-27 16:16:44", screen)
    screen = re.sub(r"1f[0-9a-f]{6}-[0-9a-f]{4}", "1f1ea7df-0cbb", screen)
    screen = re.sub(r"T\d\d:\d\d:\d\d\.\d{6}", "T16:16:44.000000", screen)
    screen = re.sub(r"\d s ago", "1 s ago", screen)
    screen = re.sub(r"(loop \d)  <?\d+ ms", r"\1  5 ms", screen)
    hours = " ".join([f"{(17 + number) % 24:02}" for number in range(24)])
    screen = re.sub(r"UTC( \d\d){24}", f"UTC {hours}", screen)
    return re.sub(r"/\S+/at-\d+/", "", screen)


if __name__ == "__main__":
    PAGE.write_text(page())
