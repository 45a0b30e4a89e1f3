"""The commands that look into threads, on servers: as on a file, and nothing is made by looking."""

from __future__ import annotations

import json

import postgres_kit
import psycopg
import pytest
import redis_kit
from engine_kit import Chain

from threadkeep import open_saver
from threadkeep.__main__ import main

KITS = {"postgres": postgres_kit, "redis": redis_kit}


@pytest.fixture(params=KITS)
def url(request, tmp_path):
    return KITS[request.param].url_for(tmp_path)


@pytest.fixture
def told(capsys):
    def run(*arguments):
        code = main([*arguments, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out or said.err)

    return run


def test_a_server_is_looked_into_as_a_file_is(url, told):
    with open_saver(url) as saver:
        chain = Chain(saver, "t")
        for number in range(3):
            chain.put(messages=["hi"] * (number + 1), n=number)
    scheme = url.partition("://")[0]
    assert told("check", url) == (
        0,
        {"store": f"{scheme}://...", "ok": True, "threads": 1, "findings": []},
    )
    code, shown = told("show", "t", "--url", url)
    assert (code, [one["text"] for one in shown["messages"]]) == (0, ["hi"] * 3)
    code, listed = told("history", "t", "--url", url, "--limit", "2")
    assert (code, len(listed["checkpoints"]), listed["more"]) == (0, 2, True)
    assert told("state", "t", "--url", url)[1]["values"] == {"messages": ["hi"] * 3, "n": 2}
    assert told("stats", url)[1]["checkpoints"] == 3
    assert told("delete", "t", "--yes", "--url", url)[0] == 0
    assert told("show", "t", "--url", url)[0] == 1


def test_threads_of_a_server_are_found_and_changed(url, told):
    with open_saver(url) as saver:
        chain = Chain(saver, "t")
        first = chain.put(n=1)["configurable"]["checkpoint_id"]
        saver.put_writes(chain.put(n=2), [("__interrupt__", "?")], "task")
    at = ("--url", url)

    def ids(*options):
        return [one["id"] for one in told("threads", *options, *at)[1]["threads"]]

    assert ids("--has-interrupt", "--updated-after", "1h") == ["t"]
    assert told("create", "u", "--tag", "a", *at)[1]["thread"]["state"] == "created"
    assert told("tag", "u", "b", *at)[1]["thread"]["tags"] == ["a", "b"]
    assert told("pin", "u", *at)[1]["thread"]["pinned"] is True
    assert told("set", "u", "n=1", "--ttl", "1d", *at)[1]["thread"]["metadata"] == {"n": 1}
    assert ids("--pinned", "--metadata", "n=1", "--tag", "b") == ["u"]
    assert told("threads", "--count", *at)[1] == {"count": 2}
    assert told("copy", "t", "twin", *at)[0] == 0
    assert told("branches", "twin", *at)[1]["tips"][0]["waiting"] == 1
    assert len(told("versions", "twin", "n", *at)[1]["versions"]) == 2
    assert told("diff", "t", first, "--other", "twin", *at)[1]["same"] is False
    assert told("diff", "t", "--other", "twin", *at)[1]["same"] is True
    assert told("threads", "absent", *at)[0] == 1


def test_damage_is_exit_code_1(told, tmp_path):
    url = postgres_kit.url_for(tmp_path)
    with open_saver(url) as saver:
        Chain(saver, "t").put(m=["x" * 90])
    base, _, schema = url.partition("?schema=")
    with psycopg.connect(base) as db:
        assert db.execute(f"UPDATE {schema}.checkpoints SET manifest = '\\x00'").rowcount == 1
    code, report = told("check", url)
    assert (code, report["ok"], report["findings"][0]["thread"]) == (1, False, "t")


@pytest.mark.parametrize(
    "arguments",
    [
        *("check", "stats", "show t", "history t", "state t", "delete t --yes"),
        *("threads", "branches t", "versions t n", "diff t --other u"),
        *("create t", "tag t a", "pin t", "set t a=1", "copy t u"),
    ],
)
def test_no_table_is_made_by_looking(told, arguments):
    name, *rest = arguments.split()
    url = f"{postgres_kit.url()}?schema=tk_never_made"
    code, document = told(name, *rest, "--url", url)
    assert (code, document["error"]["type"]) == (2, "NotSetUpError")
    with psycopg.connect(postgres_kit.url()) as db:
        found = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'tk_never_made'")
        assert found.fetchone() is None
