"""`threadkeep ui`: a process that serves the page until a signal."""

import base64
import fcntl
import json
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from kit import postgres_server
from kit.cli import SECONDS, command
from kit.forked import python
from kit.places import at
from kit.runs import Plain, story
from langgraph.checkpoint.postgres import PostgresSaver as OfficialPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver as OfficialSaver

from threadkeep import PostgresSaver, SqliteSaver
from threadkeep.cli.stores import Session
from threadkeep.errors import NotOursError, NotSetUpError
from threadkeep.keys import KeyRing
from threadkeep.ui.graphs import graph_of, load_graph


@pytest.fixture
def start(tmp_path):
    """Start the command; return the process and the link that it prints."""
    with SqliteSaver(tmp_path / "threads.db") as saver:
        saver.threads.create("one")
    started = []

    def run(*arguments):
        shown = command("ui", "threads.db", "--port", "0", "--json", *arguments)
        process = subprocess.Popen(
            shown, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process, json.loads(process.stdout.readline())["url"]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.drawn(1)
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
    live = urllib.request.Request(f"{address}/live?id=one", headers={"cookie": cookie})
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
    with Session(store=url, as_json=False).open_any(read_only="live") as saver:
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


# -- other processes, terminals, addresses -----------------------------------------------


def enter(link):
    """Enter by a link; return a function that reads a page or sends a change."""
    address, _, token = link.partition("/enter#")
    entry = urllib.request.Request(f"{address}/enter", data=token.encode(), method="POST")
    with urllib.request.urlopen(entry, timeout=SECONDS) as answer:
        cookie = answer.headers["set-cookie"].partition(";")[0]

    def ask(path, data=None, **headers):
        headers = {"cookie": cookie, **headers}
        request = urllib.request.Request(f"{address}{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read().decode()

    return ask


def test_a_page_that_is_left_open_sees_later_saves(start, tmp_path):
    """The file is at rest when the page opens, and looking does not change it."""
    file = tmp_path / "threads.db"
    assert not (tmp_path / "threads.db-wal").exists()
    before = file.read_bytes()
    _, link = start()
    ask = enter(link)
    assert "/thread?id=one" in ask("/")
    assert file.read_bytes() == before
    code = (
        "import sys, threadkeep\n"
        "with threadkeep.SqliteSaver(sys.argv[1]) as saver: saver.threads.create('two')"
    )
    for _ in range(2):  # (also after the WAL of the writer is gone)
        subprocess.run([*python(), "-c", code, str(file)], check=True, timeout=SECONDS)
        assert "/thread?id=two" in ask("/")
        code = code.replace("create('two')", "tag('two', 'late')")
    assert "late" in ask("/")


def test_a_file_in_a_folder_that_cannot_be_written_is_shown(tmp_path, monkeypatch):
    with SqliteSaver(tmp_path / "threads.db") as saver:
        saver.threads.create("one")
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK)
    with Session(as_json=True, store=str(tmp_path / "threads.db")).open(read_only="live") as saver:
        assert [one.id for one in saver.threads.scan()] == ["one"]
        assert saver.backend.location.mode == "immutable"
    assert [one.name for one in tmp_path.iterdir()] == ["threads.db"]


def test_changes_are_logged(start, tmp_path):
    process, link = start("--write", "--audit-log", "audit.jsonl")
    ask = enter(link)
    secret = re.search(r'"x-threadkeep": "([^"]+)"', ask("/")).group(1)
    ask("/actions?thread=one&action=tag", b"tag=a%0Ab", **{"x-threadkeep": secret})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask("/actions?thread=one&action=delete", b"name=two", **{"x-threadkeep": secret})
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    log = tmp_path / "audit.jsonl"
    lines = [json.loads(one) for one in log.read_text().splitlines()]
    assert said.decode() == log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert [(one["action"], one["user"], one["thread"], one["result"]) for one in lines] == [
        ("tag", "local", "one", "done"),
        ("delete", "local", "one", "refused: InvalidArgumentError"),
    ]
    assert lines[0]["tag"] == "a\nb"


AGENT = """
import os
import time
from langgraph.graph import START, MessagesState, StateGraph
def slow(state):
    if not os.path.exists("begun"):
        open("begun", "w").close()
        raise ValueError
    time.sleep(float(os.environ.get("NODE_SECONDS", 2)))
    return {}
graph = StateGraph(MessagesState).add_sequence([slow, ("last", lambda state: {})])
graph = graph.add_edge(START, "slow").compile()
"""


@pytest.fixture
def running(start, tmp_path, monkeypatch):
    """Start a page that runs a thread, and return its process, the saver and the graph."""
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    graph = graph_of(load_graph("agent.py:graph"))
    sys.modules.pop("agent")
    with SqliteSaver(tmp_path / "threads.db") as saver:
        bound = graph.copy(update={"checkpointer": saver})
        with suppress(ValueError):
            bound.invoke({"messages": ["Hello"]}, {"configurable": {"thread_id": "one"}})

        def run():
            process, link = start("--write", "--graph", "agent:graph")
            ask = enter(link)
            assert "slow(slow)" in ask("/graph")
            secret = re.search('"x-threadkeep": "([^"]+)"', ask("/"))[1]
            done = ask("/actions?thread=one&action=resume", b"", **{"x-threadkeep": secret})
            assert "under way" in done
            return process, saver, bound

        yield run


@pytest.mark.drawn(1)
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_command_though_a_node_does_not_return(
    running, ending, monkeypatch
):
    monkeypatch.setenv("NODE_SECONDS", "600")
    process, saver, _ = running()
    process.send_signal(ending)
    while b"Runs end their step" not in (line := process.stderr.readline()):
        assert line, "the command ended at once"
    process.send_signal(ending)
    _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, b"does not answer" in said) == (1, True)
    assert [one.id for one in saver.runs.unfinished()] == ["one"]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_run_ends_its_step_before_the_command_ends(running, ending):
    process, saver, bound = running()
    process.send_signal(ending)
    _, said = process.communicate(timeout=SECONDS)
    assert b"Runs end their step: 1." in said
    assert [one.id for one in saver.runs.unfinished()] == ["one"]
    assert bound.get_state({"configurable": {"thread_id": "one"}}).next == ("last",)


def test_a_graph_that_cannot_be_imported_is_refused(start, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("import no_such_library")
    got = refused("ui", "threads.db", "--port", "0", "--graph", "broken.py:graph")
    assert got == (2, "InvalidArgumentError")


def test_enter_prints_a_new_link_in_a_terminal(tmp_path):
    with SqliteSaver(tmp_path / "threads.db") as saver:
        saver.threads.create("one")
    keys, terminal = os.openpty()
    command = [sys.executable, "-m", "threadkeep", "ui", "threads.db", "--port", "0", "--json"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
    )
    try:
        first = json.loads(process.stdout.readline())["url"]
        assert b"Press Enter" in process.stderr.readline()
        os.write(keys, b"\n")
        second = json.loads(process.stdout.readline())["url"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            enter(first)
        assert "/thread?id=one" in enter(second)("/")
    finally:
        process.kill()
        process.communicate()
        os.close(keys)
        os.close(terminal)


@pytest.fixture
def terminal(tmp_path):
    """Start the command on a terminal, with a browser that writes its link into a pipe."""
    with SqliteSaver(tmp_path / "threads.db") as saver:
        saver.threads.create("one")
    opened, opener = tmp_path / "opened", tmp_path / "opener"
    os.mkfifo(opened)
    pipe = os.open(opened, os.O_RDWR)
    opener.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    opener.chmod(0o755)
    started = []

    def run(*arguments, **environment):
        keys, secondary = os.openpty()
        names = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200", "BROWSER": f"{opener} %s"}
        kept = {name: os.environ[name] for name in os.environ if name not in BROWSERS}
        process = subprocess.Popen(
            [sys.executable, "-m", "threadkeep", "ui", "threads.db", "--port", "0", *arguments],
            cwd=tmp_path,
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            env={**kept, **names, **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
        )
        os.close(secondary)
        started.append((process, keys))
        return keys

    yield run, pipe
    for process, keys in started:
        process.kill()
        process.wait()
        os.close(keys)
    os.close(pipe)


BROWSERS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def until(keys, text):
    """Return the output of a terminal up to a text."""
    shown = ""
    while text not in shown:
        ready, _, _ = select.select([keys], [], [], SECONDS)
        assert ready, shown
        shown += os.read(keys, 1 << 16).decode()
    return shown


def test_the_page_opens_in_the_browser_and_enter_prints_a_link(terminal):
    run, opened = terminal
    keys = run()
    shown = until(keys, "Press Enter for a new one.")
    (address,) = re.findall(r"^(http://127\.0\.0\.1:\d+) opens in the browser\.\r\n", shown)
    assert "Ctrl-C ends the page." in shown
    assert "#" not in shown, "the token is the browser's"
    link = until(opened, "\n").strip()
    assert link.startswith(f"{address}/enter#")
    assert "/thread?id=one" in enter(link)("/")
    os.write(keys, b"\n")
    (link,) = re.findall(rf"{address}/enter#\S+", until(keys, "Ctrl-C"))
    assert "/thread?id=one" in enter(link)("/")


@pytest.mark.parametrize(
    ("words", "names"), [(["--no-browser"], {}), ([], {"BROWSER": ""})], ids=["asked", "no display"]
)
def test_no_browser_is_opened(terminal, words, names):
    run, opened = terminal
    shown = until(run(*words, **names), "Press Enter for a new one.")
    assert re.match(r"http://127\.0\.0\.1:\d+/enter#\S+\r\nCtrl-C ends the page\.\r\n", shown)
    assert select.select([opened], [], [], 0)[0] == []


def test_a_browser_that_does_not_start_leaves_the_link(terminal):
    run, _ = terminal
    keys = run(BROWSER="/absent %s")
    shown = until(keys, "/enter#")
    if "\n" not in shown.partition("/enter#")[2]:  # (of the link, a part may have come)
        shown += until(keys, "\n")
    (link,) = re.findall(r"http://\S+/enter#\S+", shown)
    assert "/thread?id=one" in enter(link)("/")


def test_links_have_the_address_of_this_machine(start, tmp_path):
    _, link = start("--host", "::1")
    assert link.startswith("http://[::1]:")
    assert "/thread?id=one" in enter(link)("/")
    (tmp_path / "password").write_text("correct horse\n")
    process, link = start("--host", "0.0.0.0", "--password-file", "password")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/enter", link)
    assert b"HTTP is not encrypted" in process.stderr.readline()
    assert "/thread?id=one" in enter(f"{link}#correct horse")("/")


def test_a_port_in_use_is_refused(start, tmp_path, refused, monkeypatch):
    _, link = start()
    monkeypatch.chdir(tmp_path)
    port = link.partition("/enter")[0].rpartition(":")[2]
    assert refused("ui", "threads.db", "--port", port)[1] == "OpenError"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("keys", [None, base64.b64encode(b"k" * 32).decode()])
def test_a_missing_or_wrong_key_is_shown_as_an_error(start, tmp_path, monkeypatch, keys):
    (tmp_path / "threads.db").unlink()
    with SqliteSaver(tmp_path / "threads.db", keys=KeyRing.generate()) as saver:
        story(saver, Plain).invoke({"log": ["one"]}, at("one"))
    if keys is not None:
        monkeypatch.setenv("TK_KEYS", keys)
    _, link = start()
    with pytest.raises(urllib.error.HTTPError) as caught:
        enter(link)("/thread?id=one")
    assert "The stored value is encrypted with key" in caught.value.read().decode()


def test_a_key_file_that_cannot_be_read_is_named(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with OfficialSaver.from_conn_string("theirs.db") as saver:
        saver.setup()
    code, error = refused("ui", "theirs.db", "--port", "0", "--key-file", "away")
    assert (code, error) == (2, "OpenError")
