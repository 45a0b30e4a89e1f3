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
        {"store": f"{scheme}://...", "ok": True, "threads": 1, "findings": [], "notes": []},
    )
    code, shown = told("show", "t", "--url", url)
    assert (code, [one["text"] for one in shown["messages"]]) == (0, ["hi"] * 3)
    code, listed = told("history", "t", "--url", url, "--limit", "2")
    assert (code, len(listed["checkpoints"]), listed["more"]) == (0, 2, True)
    assert told("state", "t", "--url", url)[1]["values"] == {"messages": ["hi"] * 3, "n": 2}
    assert told("stats", url)[1]["checkpoints"] == 3
    assert told("delete", "t", "--yes", "--url", url)[0] == 0
    assert told("show", "t", "--url", url)[0] == 1


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
    ["check", "stats", "show t", "history t", "state t", "delete t --yes"],
)
def test_no_table_is_made_by_looking(told, arguments):
    name, *rest = arguments.split()
    url = f"{postgres_kit.url()}?schema=tk_never_made"
    code, document = told(name, *rest, "--url", url)
    assert (code, document["error"]["type"]) == (2, "NotSetUpError")
    with psycopg.connect(postgres_kit.url()) as db:
        found = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'tk_never_made'")
        assert found.fetchone() is None
