"""The pages on web services: their programs serve, move over, and stop in mid-answer."""

import json
import os
import re
import shlex
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from kit.engine import Chain
from kit.forked import python
from kit.service import for_service, programs, run, serving

from threadkeep import KeyRing, PostgresSaver, SqliteSaver

DOCS = Path(__file__).parents[2] / "docs"
SLOW = """
import asyncio
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
import agent

class Slow(GenericFakeChatModel):  # (stops in mid-answer)
    async def _astream(self, *given, **options):
        async for chunk in super()._astream(*given, **options):
            yield chunk
            if chunk.text == "said":
                await asyncio.Event().wait()

agent.GenericFakeChatModel = Slow
from service import app
"""


def changed(program):
    """Return the program of the page on FastAPI after the change that the page shows."""
    page = (DOCS / "fastapi.md").read_text(encoding="utf-8")
    for minus, plus in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", page, re.MULTILINE):
        before, after = (re.sub(r"(?m)^.", "", lines) for lines in (minus, plus))
        assert before in program
        program = program.replace(before, after)
    return program


@pytest.fixture
def database(tmp_path, monkeypatch):
    """A database of the test's own, and a folder with the pages' programs."""
    (tmp_path / "after.py").write_text(changed(programs("fastapi.md")["before.py"]))
    (tmp_path / "slow.py").write_text(SLOW)
    with for_service(tmp_path, monkeypatch, "web-service.md", "fastapi.md") as url:
        yield url


def events(lines):
    """Yield the events of a stream and their data."""
    for line in lines:
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield event, json.loads(line.removeprefix("data: "))


def say(client, thread, text):
    with client.stream("POST", f"/threads/{thread}/messages", json={"text": text}) as answer:
        assert answer.status_code == 200
        yield from events(answer.iter_lines())


def ask(client, thread, text):
    return client.post(f"/threads/{thread}/messages", json={"text": text}).json()


def answers(number):
    return f"You have said {number} things."


def test_workers_are_replaced_one_by_one_and_back(database, monkeypatch):
    with serving("before") as old:
        assert ask(old, "ann", "one") == answers(1)
        run("migrate", database)
        with monkeypatch.context() as environment:
            environment.setenv("THREADKEEP_MIGRATE_FROM", database)
            environment.setenv("THREADKEEP_MIRROR_BACK", "true")
            with serving("after") as new:
                assert ask(new, "ann", "two") == answers(2)
        assert ask(old, "ann", "three") == answers(3)
        ask(old, "unused", "one")

    run("adopt", database, database)
    with serving("service") as new:
        assert new.get("/ready").json() == "ok"
        texts = [message["text"] for message in new.get("/threads/ann").json()["messages"]]
        assert texts == ["one", answers(1), "two", answers(2), "three", answers(3)]
        assert len(new.get("/threads/unused").json()["messages"]) == 2
        answer = list(say(new, "later", "one"))
        assert "".join(data for kind, data in answer if kind == "token") == answers(1)
        assert answer[-1] == ("end", "")

    run("leave", database, f"{database}?schema=public")
    with serving("before") as old:
        assert ask(old, "ann", "four") == answers(4)
        assert ask(old, "later", "two") == answers(2)


def test_output_survives_a_client_that_leaves_and_a_shutdown(database):
    run("migrate", database)
    with serving("slow") as client:
        leaving = say(client, "leaves", "hi")
        while next(leaving) != ("token", "said"):
            pass
        leaving.close()
        staying = say(client, "stays", "hi")
        while next(staying) != ("token", "said"):
            pass

    with PostgresSaver(database) as saver:
        for thread in ("leaves", "stays"):
            (left,) = saver.partial(thread)
            assert (thread, left.status, left.text) == (thread, "pending", "You have said")


def test_the_program_for_a_laptop_continues_its_thread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.py").write_text(programs("laptop.md")["chat.py"])
    for number in (1, 2):
        command = [*python(), "-W", "error", "chat.py", "hello"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        assert done.stdout == f"{answers(number)}\n"
    assert "1" in run("threads", "threads.db")


def test_the_messages_of_a_file_are_read_without_threadkeep(tmp_path):
    page = (DOCS / "file-format.md").read_text(encoding="utf-8")
    program = programs("file-format.md")["read.py"]
    assert "threadkeep" not in program
    for text in ("hello", "again"):
        command = [*python(), "-c", programs("laptop.md")["chat.py"], text]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
    command = [*python(), "-W", "error", "-c", program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert f"```\n{done.stdout}```" in page
    with closing(sqlite3.connect(tmp_path / "threads.db")) as db:
        tables = [
            name
            for (name,) in db.execute(
                "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%'"
            )
        ]
    assert [name for name in tables if f"`{name}`" not in page] == []


def test_the_blocks_of_the_checklist_run_as_they_are_pasted(tmp_path, monkeypatch):
    page = (DOCS / "production.md").read_text(encoding="utf-8")
    commands = {
        "pip": "true",
        "python": shlex.join([*python(), "-W", "error"]),
        "threadkeep": shlex.join([*python(), "-m", "threadkeep"]),
    }
    for name, words in commands.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (tmp_path / name).chmod(0o700)
    (tmp_path / "production.py").write_text(programs("production.md")["production.py"])
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for _ in range(2):  # (a second time, the key is kept)
        shell = ["sh", "-eu", "-c", "".join(blocks)]
        done = subprocess.run(shell, check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        assert done.stdout.startswith("0 threads\n")
        assert "Checked 0 threads. No problems found." in done.stdout
        assert "Nothing to remove" in done.stdout
    assert "```\n0 threads\n```" in page
    keys = KeyRing.from_file(tmp_path / "keys.txt")
    with SqliteSaver(tmp_path / "threads.db", keys=keys) as saver:
        Chain(saver).put(n=1)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("agents.py", "langchain"),
        ("supervisor.py", "langgraph_supervisor"),
        ("deep.py", "deepagents"),  # (too large for an environment of tests)
    ],
)
def test_a_program_of_agents_prints_the_output_of_its_page(name, package, tmp_path):
    pytest.importorskip(package)
    for file, program in programs("agents.md").items():
        (tmp_path / file).write_text(program)
    # (langgraph_supervisor calls a deprecated function of LangGraph)
    strict = [] if package == "langgraph_supervisor" else ["-W", "error"]
    command = [*python(), *strict, name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert f"```\n{done.stdout}```" in (DOCS / "agents.md").read_text(encoding="utf-8")
