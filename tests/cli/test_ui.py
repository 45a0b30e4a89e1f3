"""`threadkeep ui`: a process that serves the page until a signal."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from kit import postgres_server
from kit.cli import SECONDS
from kit.places import at
from kit.runs import Plain, story
from langgraph.checkpoint.postgres import PostgresSaver as OfficialPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver as OfficialSaver

from threadkeep import PostgresSaver, SqliteSaver
from threadkeep.cli.commands.ui import _opened
from threadkeep.cli.stores import Session
from threadkeep.errors import NotOursError, NotSetUpError


@pytest.fixture
def start(tmp_path):
    """Start the command; return the process and the link that it prints."""
    with SqliteSaver(tmp_path / "threads.db") as saver:
        saver.threads.create("one")
    started = []

    def run(*arguments):
        command = [sys.executable, "-m", "threadkeep", "ui", "threads.db", "--port", "0", "--json"]
        process = subprocess.Popen(
            [*command, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process, json.loads(process.stdout.readline())["url"]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_page_answers_until_a_signal(start, ending):
    process, link = start()
    address, _, token = link.partition("/enter#")
    entry = urllib.request.Request(f"{address}/enter", data=token.encode(), method="POST")
    with urllib.request.urlopen(entry, timeout=SECONDS) as answer:
        cookie = answer.headers["set-cookie"].partition(";")[0]
    page = urllib.request.Request(f"{address}/", headers={"cookie": cookie})
    with urllib.request.urlopen(page, timeout=SECONDS) as answer:
        assert "/thread?id=one" in answer.read().decode()
    live = urllib.request.Request(f"{address}/thread/live?id=one", headers={"cookie": cookie})
    with urllib.request.urlopen(live, timeout=SECONDS) as events:
        process.send_signal(ending)
        assert events.read() == b"", "the stream ends"
    _, said = process.communicate(timeout=SECONDS)
    assert said == b"", "the server did not wait for the stream"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page, timeout=SECONDS)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_need_a_password(start, tmp_path, refused, monkeypatch, host):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THREADKEEP_URL", "threads.db")
    with SqliteSaver("threads.db"):
        pass
    assert refused("ui", "--host", host, "--port", "0") == (2, "InvalidArgumentError")


def test_a_short_password_is_refused(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SqliteSaver("threads.db"):
        pass
    (tmp_path / "password").write_text("short\n")
    got = refused("ui", "threads.db", "--port", "0", "--password-file", "password")
    assert got == (2, "InvalidArgumentError")


# -- stores of LangGraph's own -------------------------------------------------------------


def langgraph_file(folder):
    with OfficialSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        story(saver, Plain).invoke({"log": ["a"]}, at("theirs"))


def test_a_file_of_langgraph_is_only_shown(tmp_path, here):
    langgraph_file(tmp_path)
    for option in (["--write"], ["--tenant", "acme"]):
        code, _, said = here("ui", "langgraph.db", "--port", "0", *option)
        assert code == 2
        assert "threadkeep adopt langgraph.db sqlite:///new.db" in " ".join(said)


def opened(url):
    with _opened(Session(url=url, as_json=False), "URL", None, write=False) as saver:
        return type(saver).__name__, [one.id for one in saver.threads.search()]


def test_each_store_gets_its_reader(tmp_path):
    langgraph_file(tmp_path)
    with SqliteSaver(tmp_path / "ours.db") as saver:
        saver.threads.create("ours")
    assert opened(str(tmp_path / "langgraph.db")) == ("LangGraphReader", ["theirs"])
    assert opened(str(tmp_path / "ours.db")) == ("Saver", ["ours"])
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE notes (text)")
    other.close()
    with pytest.raises(NotOursError, match="another program"):
        opened(str(tmp_path / "other.db"))


def test_each_schema_gets_its_reader():
    with postgres_server.server() as server:
        url = server.url()
        with pytest.raises(NotSetUpError):
            opened(url)
        with OfficialPostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            story(saver, Plain).invoke({"log": ["a"]}, at("theirs"))
        assert opened(f"{url}?schema=public") == ("LangGraphReader", ["theirs"])
        with PostgresSaver.from_conn_string(f"{url}?schema=ours") as saver:
            saver.setup()
            saver.threads.create("ours")
        assert opened(f"{url}?schema=ours") == ("Saver", ["ours"])
        assert opened(url)[0] == "LangGraphReader"
