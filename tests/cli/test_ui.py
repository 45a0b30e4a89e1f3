"""`threadkeep ui`: a process that serves the page until a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from kit.cli import SECONDS

from threadkeep import SqliteSaver


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
    process.send_signal(ending)
    _, said = process.communicate(timeout=SECONDS)
    assert said == b""
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
