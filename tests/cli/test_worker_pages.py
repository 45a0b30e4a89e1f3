"""The pages on runs and workers: their programs continue after deaths and stops."""

import re
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest
from kit.cli import SECONDS
from kit.forked import python
from kit.service import DOCS, for_service, programs, run, running, serving, uvicorn, wait_until

from threadkeep import open_saver

AGENT = """
import asyncio, os
from pathlib import Path
from langgraph.graph import START, MessagesState, StateGraph

def note(name):
    with Path("ran").open("a") as file:
        file.write(f"{name}\\n")

async def plan(state):
    note("plan")
    while not Path("go").exists():
        await asyncio.sleep(0.02)

async def answer(state):
    note("answer")
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    if Path("die").exists():
        Path("die").unlink()
        os.kill(os.getpid(), 9)
    return {"messages": [("ai", "done")]}

builder = StateGraph(MessagesState)
builder.add_sequence([plan, answer])
builder.add_edge(START, "plan")
"""
SUBMIT = """
import os
from agent import builder
from threadkeep import open_saver

with open_saver(os.environ["DATABASE_URL"]) as saver:
    graph = builder.compile(checkpointer=saver)
    saver.runs.submit(graph, "ann", {"messages": [("user", "hi")]})
"""
OPENED = """
import asyncio, tasks

async def main():
    async with tasks.app.open_async():
        await {}

asyncio.run(main())
"""


@pytest.fixture
def database(tmp_path, monkeypatch):
    """A database of the test's own, in a folder with the programs of the page on workers."""
    with for_service(tmp_path, monkeypatch, "workers.md") as url:
        Path("agent.py").write_text(AGENT)
        run("migrate", url)
        yield url


def change(file, old, new):
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


def ran():
    return Path("ran").read_text().split() if Path("ran").exists() else []


def thread_of(url, name="ann"):
    with open_saver(url) as saver:
        return saver.threads.get(name)


def listed(url):
    with open_saver(url) as saver:
        return [one.id for one in saver.runs.unfinished()]


def call(code):
    subprocess.run([*python(), "-W", "error", "-c", code], check=True, timeout=SECONDS)


def plain(text):
    """Return a text without the keys of tasks."""
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "KEY", text)


def test_the_programs_of_the_page_on_runs_print_its_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, program in programs("runs.md").items():
        Path(name).write_text(program)
    page = plain((DOCS / "runs.md").read_text(encoding="utf-8"))
    shown = re.search(r"^```\n(\$ python .*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    shell = shown.replace("$ sleep 1; ", "$ ").splitlines()
    printed = []
    for line in shell:
        if line.startswith("$ python "):
            command = [*python(), "-W", "error", *line.split()[2:]]
            if printed:
                wait_until(lambda: listed("sqlite:///refunds.db"))
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            printed += [line, *done.stdout.splitlines()]
            keys = re.findall(r"^pay (\S+)$", "\n".join(printed), re.MULTILINE)
    assert [plain(line) for line in printed] == shell
    assert len(keys) == 2
    assert len(set(keys)) == 1

    command = [*python(), "-W", "error", "guarded.py"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert f"```\n{plain(done.stdout)}```" in page


def test_an_accepted_input_survives_the_death_of_its_service(database):
    change("worker.py", "4, 30, 20", "4, 1, 20")
    message, key = {"json": {"text": "hi"}}, {"headers": {"Idempotency-Key": "request-1"}}
    with uvicorn("accepting") as (process, client, _):
        assert client.get("/threads/ann").status_code == 404
        answer = client.post("/threads/ann/messages", **message, **key)
        assert (answer.status_code, answer.json()) == (202, {"key": "request-1"})
        wait_until(ran)
        assert client.get("/threads/ann").json() == {"status": "running", "messages": ["hi"]}
        Path("die").touch()
        Path("go").touch()
        assert process.wait(SECONDS) == -signal.SIGKILL

    with serving("accepting") as client:
        done = {"status": "done", "messages": ["hi", "done"]}
        wait_until(lambda: client.get("/threads/ann").json() == done)
        assert client.post("/threads/ann/messages", **message, **key).status_code == 202
    assert thread_of(database).status == "done"
    assert ran() == ["plan", "answer", "answer"]


def test_a_run_is_drained_at_sigterm_and_continues_in_another_worker_at_once(database):
    call(SUBMIT)
    with running("-W", "error", "worker.py") as old:
        wait_until(ran)
        old.send_signal(signal.SIGTERM)
        Path("go").touch()
        assert old.wait(SECONDS) == 0
    assert ran() == ["plan"]
    assert (thread_of(database).status, thread_of(database).attempts) == ("unfinished", 0)
    assert listed(database) == ["ann"]

    with running("-W", "error", "worker.py") as new:
        wait_until(lambda: thread_of(database).status == "done", seconds=20)  # (no lease long)
        new.send_signal(signal.SIGTERM)
        assert new.wait(SECONDS) == 0
    assert ran() == ["plan", "answer"]


def test_a_step_that_takes_too_long_is_cancelled_and_may_run_again_at_once(database):
    change("worker.py", "4, 30, 20", "4, 30, 0.1")
    call(SUBMIT)
    with running("-W", "error", "worker.py") as worker:
        wait_until(ran)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0
    assert (thread_of(database).status, thread_of(database).attempts) == ("unfinished", 0)
    assert listed(database) == ["ann"]


def test_a_stalled_job_of_procrastinate_is_retried(database):
    pytest.importorskip("procrastinate")
    for old, new in [
        ("LEASE, GRACE = 30, 20", "LEASE, GRACE = 1, 20"),
        ("wait=10", "wait=1"),
        ("concurrency=4,", "concurrency=4, fetch_job_polling_interval=0.2,"),
    ]:
        change("tasks.py", old, new)
    Path("go").touch()
    Path("die").touch()
    call(OPENED.format("tasks.app.schema_manager.apply_schema_async()"))
    call(SUBMIT)
    call(OPENED.format("tasks.defer('ann')"))
    with running("tasks.py") as worker:
        assert worker.wait(SECONDS) == -signal.SIGKILL

    with psycopg.connect(database, autocommit=True) as server:
        jobs = "SELECT status FROM procrastinate_jobs WHERE task_name = 'resume'"
        assert server.execute(jobs).fetchall() == [("doing",)]
        server.execute("UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 h'")
        with running("tasks.py") as worker:
            call(OPENED.format("tasks.recover.defer_async(timestamp=0)"))
            wait_until(lambda: server.execute(jobs).fetchall() == [("succeeded",)])
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(SECONDS) == 0
    assert thread_of(database).status == "done"
    assert ran() == ["plan", "answer", "answer"]


def test_a_recovered_workflow_of_dbos_resumes_its_thread(database):
    pytest.importorskip("dbos")
    change("flows.py", "LEASE = 30", "LEASE = 1")
    with uvicorn("flows") as (process, client, _):
        assert client.post("/threads/ann/messages", json={"text": "hi"}).status_code == 202
        wait_until(ran)
        Path("die").touch()
        Path("go").touch()
        assert process.wait(SECONDS) == -signal.SIGKILL
    with serving("flows"), psycopg.connect(database, autocommit=True) as server:
        states = "SELECT status FROM dbos.workflow_status"
        wait_until(lambda: server.execute(states).fetchall() == [("SUCCESS",)])
    assert thread_of(database).status == "done"
    assert ran() == ["plan", "answer", "answer"]
