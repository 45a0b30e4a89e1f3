"""The command `threadkeep monitor`."""

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from kit.cli import SECONDS, command
from kit.engine import Chain
from kit.places import at
from langgraph.graph import START, MessagesState, StateGraph

from threadkeep import SqliteSaver, guard
from threadkeep.__main__ import main


@pytest.fixture
def store(url):
    with SqliteSaver(url) as saver:
        Chain(saver, "1").put(n=1)
    return url


def get(url, method="GET"):
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_as_a_service(store):
    arguments = ["monitor", store, "--json", "--listen", "127.0.0.1:0", "--interval", "1h"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*arguments), **pipes) as process:
        try:
            address = json.loads(process.stdout.readline())["address"]
            assert json.loads(process.stdout.readline())["healthy"]  # it has measured once
            status, body = get(f"{address}/healthz")
            assert (status, json.loads(body)["measurements"]) == (200, 1)
            status, body = get(f"{address}/metrics")
            assert status == 200
            assert "\nthreadkeep_monitor_healthy 1.0\n" in body
            assert 'threadkeep_monitor_latency_seconds{percentile="95"}' in body
            assert 'operation="put"' in body
            assert get(f"{address}/other")[0] == 404
            assert (
                get(f"{address}/healthz", "HEAD") == get(f"{address}/metrics", "HEAD") == (200, "")
            )
            assert get(f"{address}/metrics", "POST")[0] == 405
            with socket.create_connection(address.removeprefix("http://").split(":")) as gone:
                gone.sendall(b"GET /metrics")  # (a client that leaves in the middle is ignored)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_once(store, told, capsys):
    assert told("monitor", store, "--once")[0].endswith("UTC  healthy")
    document = told("monitor", store, "--once", "--json")
    assert document["storage"]["threads"][0]["thread"] == "1"
    with SqliteSaver(store) as saver:
        assert saver.threads.count() == 1
    assert main(["monitor", store, "--once", "--max-thread-bytes", "1"]) == 1
    assert "raised: thread '1' holds" in capsys.readouterr().out
    assert main(["monitor", "absent.db", "--once"]) == 2


def test_limits_of_statuses(store, told, capsys):
    graph = StateGraph(MessagesState).add_node("stops", lambda _: {}).add_edge(START, "stops")
    with SqliteSaver(store) as saver:
        compiled = graph.compile(checkpointer=saver, interrupt_before=["stops"])
        compiled.invoke({"messages": []}, at("idle"))
        with suppress(ValueError), guard(saver, "held", max_attempts=1) as held:
            compiled.invoke({"messages": []}, held.config)
            raise ValueError
    counts = "0 running, 0 waiting, 0 failed, 1 held, 1 unfinished"
    assert f"threads  {counts}" in told("monitor", store, "--once")
    assert f"Status: {counts}" in told("stats", store)[2]
    told("monitor", store, "--once", "--max-unfinished-seconds", "0", "--max-held", "1")
    assert main(["monitor", store, "--once", "--max-held", "0"]) == 1
    assert "raised: 1 thread held at" in capsys.readouterr().out
    limits = ["--max-unfinished-seconds", "1e-6", "--max-failures-per-minute", "1"]
    assert main(["monitor", store, "--once", *limits]) == 1
    assert "raised: 1 thread unfinished, thread 'idle' idle for" in capsys.readouterr().out


def test_it_ends_with_the_reader_of_its_output(store):
    arguments = ["monitor", store, "--json", "--listen", "127.0.0.1:0", "--interval", "0.01s"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*arguments), **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(SECONDS) == 141
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "9464"],
        ["--listen", "127.0.0.1:99999"],
        ["--max-thread-bytes", "much"],
        ["--max-error-rate", "2"],
        ["--interval", "sixty", "--once"],
        ["--alert", "nonsense", "--once"],
    ],
)
def test_invalid_options_are_refused(store, refused, arguments):
    assert refused("monitor", store, *arguments) == (2, "InvalidArgumentError")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # (apprise's, as it loads its plugins)
def test_channels_may_be_configured_and_are_not_repeated(store, capsys):
    Path("threadkeep.toml").write_text("alerts = ['nonsense://user:hunter2@host']\n")
    assert main(["monitor", store, "--listen", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err
    assert "Invalid alert" in said
    assert "hunter2" not in said
