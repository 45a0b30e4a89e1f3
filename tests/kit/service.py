"""The programs of the pages on services, as processes over a database of the test's own."""

import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg

from kit import postgres
from kit.cli import SECONDS
from kit.forked import python

DOCS = Path(__file__).parents[2] / "docs"


def programs(page):
    """Return the programs of a page by the names in their first lines."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return dict(
        re.findall(r"^```python\n# (\w+\.py)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    )


@contextmanager
def for_service(folder, monkeypatch, *pages):
    """Yield the URL of a new database, in a folder with the programs of these pages."""
    for page in pages:
        for name, program in programs(page).items():
            (folder / name).write_text(program)
    name = f"service_{os.getpid()}"
    url = postgres.url()
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {name}")
        server.execute(f"CREATE DATABASE {name}")
        # (the role of the tests has the name of threadkeep's schema)
        server.execute(f"ALTER DATABASE {name} SET search_path = public")
        own = re.sub(r"/[^/?]+(\?|$)", rf"/{name}\1", url)
        monkeypatch.setenv("DATABASE_URL", own)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
        yield own
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running(*command, **options):
    """Run Python as a process, which is killed in the end if it has not ended."""
    with subprocess.Popen([*python(), *command], text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def uvicorn(module):
    """Run a program of a page; yield its process, a client, and the log until now."""
    command = ["-W", "error", "-m", "uvicorn", f"{module}:app", "--port", "0"]
    command += ["--timeout-graceful-shutdown", "1"]
    with running(*command, stderr=subprocess.PIPE) as worker:
        log = ""
        while not (found := re.search(r"running on (http\S+)", log)):
            line = worker.stderr.readline()
            assert line, log
            log += line
        with httpx.Client(base_url=found[1], timeout=SECONDS) as client:
            yield worker, client, log


@contextmanager
def serving(module):
    """Run a program of a page as one worker; SIGTERM must stop it cleanly."""
    with uvicorn(module) as (worker, client, start):
        yield client
        worker.send_signal(signal.SIGTERM)
        log = start + worker.communicate(timeout=SECONDS)[1]
    assert "Application shutdown complete" in log, log
    assert "could not be saved" not in log


def run(*arguments):
    """Run a command of threadkeep that succeeds; return its output."""
    command = [*python(), "-m", "threadkeep", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(condition, seconds=SECONDS):
    """Wait for a true result, and return it."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return result
