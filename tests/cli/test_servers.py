"""Reading commands on servers: the same output as on a file, and no tables are created."""

import json
import os
import re

import psycopg
import pytest
from kit import postgres as postgres_kit
from kit import redis as redis_kit
from kit.engine import Chain

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


def public(url):
    """Return the URL without its user and the options of Redis."""
    return re.sub(r"//\w+@", "//", url).partition("?prefix")[0]


def test_a_server_is_looked_into_as_a_file_is(url, told):
    with open_saver(url) as saver:
        chain = Chain(saver, "t")
        for number in range(3):
            chain.put(messages=["hi"] * (number + 1), n=number)
    assert told("check", url) == (
        0,
        {"store": public(url), "ok": True, "threads": 1, "findings": [], "notes": []},
    )
    code, shown = told("show", url, "t")
    assert (code, [one["text"] for one in shown["messages"]]) == (0, ["hi"] * 3)
    code, listed = told("history", url, "t", "--limit", "2")
    assert (code, len(listed["checkpoints"]), listed["more"]) == (0, 2, True)
    assert told("state", url, "t")[1]["values"] == {"messages": ["hi"] * 3, "n": 2}
    assert told("stats", url)[1]["checkpoints"] == 3
    assert told("delete", url, "t", "--yes")[0] == 0
    assert told("show", url, "t")[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *("check", "stats", "show t", "history t", "state t", "delete t --yes"),
        *("threads", "history t", "versions t n", "diff t --other u"),
        *("create t", "tag t a", "pin t", "set t a=1", "copy t u"),
        *("fork t", "merge t u", "merge t u --dry-run", "export t never.tkb"),
    ],
)
def test_no_table_is_made_by_looking(told, arguments):
    name, *rest = arguments.split()
    url = f"{postgres_kit.url()}?schema=tk_never_made"
    code, document = told(name, url, *rest)
    assert (code, document["error"]["type"]) == (2, "NotSetUpError")
    with psycopg.connect(postgres_kit.url()) as db:
        found = db.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'tk_never_made'")
        assert found.fetchone() is None


def test_migrate_says_that_it_created_tables(told):
    name = f"tk_made_{os.getpid()}"
    place = f"{postgres_kit.url()}?schema={name}"
    try:
        assert [told("migrate", place)[1]["created"] for _ in range(2)] == [True, False]
    finally:
        with psycopg.connect(postgres_kit.url(), autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
