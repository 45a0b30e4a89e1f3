"""Programs that change one import line, and how savers are opened, used and closed."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from kit.backends import BACKENDS, open_backend
from kit.places import at
from kit.runs import story, told
from kit.selection import drawn

from threadkeep import AsyncSqliteSaver, InMemorySaver, MemorySaver, SqliteSaver, open_saver
from threadkeep.errors import InvalidArgumentError

TESTS = Path(__file__).parents[1]


def two_turns(saver: Any) -> Any:
    graph = story(saver)
    graph.invoke({"log": ["one"]}, at())
    assert graph.invoke({"log": ["two"]}, at())["log"] == told("one", "two")
    return graph


async def two_async_turns(saver: Any) -> Any:
    graph = story(saver)
    await graph.ainvoke({"log": ["one"]}, at())
    assert (await graph.ainvoke({"log": ["two"]}, at()))["log"] == told("one", "two")
    return graph


# -- the programs --------------------------------------------------------------------


def test_sqlite_saver_on_a_path(tmp_path: Path) -> None:
    for path in (tmp_path / "threads.db", str(tmp_path / "threads2.db")):
        two_turns(SqliteSaver(path)).checkpointer.close()
        with SqliteSaver(path) as saver:
            assert story(saver).get_state(at()).values["log"] == told("one", "two")


def test_sqlite_saver_on_a_connection(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    two_turns(saver)
    saver.close()
    connection.close()
    with SqliteSaver(path) as saver:
        assert story(saver).get_state(at()).values["log"] == told("one", "two")


def test_sqlite_saver_on_a_connection_to_memory() -> None:
    memory = sqlite3.connect(":memory:", check_same_thread=False)
    with closing(memory), SqliteSaver(memory) as saver:
        two_turns(saver)


@pytest.mark.parametrize("name", ["threads.db", "a b's \u00e9.db", ":memory:"])
def test_sqlite_saver_from_conn_string(tmp_path: Path, name: str) -> None:
    path = name if name == ":memory:" else str(tmp_path / name)
    with SqliteSaver.from_conn_string(path) as saver:
        two_turns(saver)
    assert name == ":memory:" or Path(path).exists()


async def test_async_sqlite_saver_from_conn_string(tmp_path: Path) -> None:
    path = str(tmp_path / "threads.db")
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        await saver.setup()
        await two_async_turns(saver)
    async with SqliteSaver.from_conn_string(path) as saver:
        state = await story(saver).aget_state(at())
        assert state.values["log"] == told("one", "two")


async def told_in(path: Path) -> Any:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        return (await story(saver).aget_state(at())).values["log"]


async def test_async_sqlite_saver_on_a_connection(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    async with aiosqlite.connect(str(path)) as connection:
        async with AsyncSqliteSaver(connection) as saver:
            await two_async_turns(saver)
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
    assert await told_in(path) == told("one", "two")


async def test_async_sqlite_saver_on_a_connection_that_is_not_awaited_yet(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    async with AsyncSqliteSaver(aiosqlite.connect(path)) as saver:
        await two_async_turns(saver)
    assert await told_in(path) == told("one", "two")


async def test_async_sqlite_saver_on_a_connection_to_memory() -> None:
    async with AsyncSqliteSaver(aiosqlite.connect(":memory:")) as saver:
        await two_async_turns(saver)


@pytest.mark.parametrize("kind", [InMemorySaver, MemorySaver])
async def test_memory_savers(kind: Any) -> None:
    two_turns(kind())
    await two_async_turns(kind())
    with kind() as saver:
        two_turns(saver)
    async with kind() as saver:
        await two_async_turns(saver)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///:memory:", "sqlite:///{}/threads.db"])
async def test_open_saver_under_with_and_async_with(tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    with open_saver(url) as saver:
        two_turns(saver)
    async with open_saver(url) as saver:
        found = await saver.aget_tuple(at())
        assert (found is None) == ("threads.db" not in url)


def test_a_relative_url_and_one_with_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_saver("sqlite:///here.db", synchronous="normal", busy_timeout=1.5) as saver:
        two_turns(saver)
    assert (tmp_path / "here.db").exists()


# -- what cannot be opened -----------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"synchronous": "off"},
        {"conflicts": "ignore"},
        {"conflicts": ["fork"]},
        {"busy_timeout": -1},
        {"busy_timeout": "3"},
        {"compression": "zstd"},
        {"serde": "json"},
        {"pickle_fallback": "no"},
        {"working_set_bytes": "x"},
        {"working_set_bytes": -1},
        {"no_such_option": 1},
    ],
)
def test_wrong_options_are_refused_before_anything_is_opened(tmp_path: Path, options: Any) -> None:
    path = tmp_path / "threads.db"
    name = next(iter(options))
    with pytest.raises(InvalidArgumentError, match=name):
        open_saver(f"sqlite:///{path}", **options)
    with pytest.raises(InvalidArgumentError, match=name):
        SqliteSaver(path, **options)
    with pytest.raises(InvalidArgumentError, match=name):
        MemorySaver(**options)
    with pytest.raises(InvalidArgumentError, match=name):
        open_saver("memory://", **options)
    assert list(tmp_path.iterdir()) == []


# -- whole programs, side by side ----------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
async def test_many_tasks_at_once_each_as_if_alone(backend: str, tmp_path: Path) -> None:
    async def talk(saver: Any, user: int) -> Any:
        graph = story(saver)
        for turn in range(3):
            await graph.ainvoke({"log": [f"{user}.{turn}"]}, at(f"user {user}"))
        return (await graph.aget_state(at(f"user {user}"))).values["log"]

    async with open_backend(backend, tmp_path) as saver:
        logs = await asyncio.gather(*(talk(saver, user) for user in range(12)))
    assert logs == [told(*(f"{user}.{turn}" for turn in range(3))) for user in range(12)]


STRICT = """
import sys
from pathlib import Path
from tempfile import mkdtemp
from langgraph.checkpoint.memory import InMemorySaver
from kit.backends import BACKENDS, open_backend
from integration.driver import play
from integration.scenarios import SCENARIOS

for name in sys.argv[1:]:
    options = {"durability": "sync", "listing": False}
    want = play(SCENARIOS[name], InMemorySaver(), api="sync", **options)
    for backend in BACKENDS:
        for api in ("sync", "async"):
            with open_backend(backend, Path(mkdtemp())) as saver:
                assert play(SCENARIOS[name], saver, api=api, **options) == want, name
print("the same")
"""
STRICTLY = ("pydantic_state", "dataclass_state", "agent_with_two_tools", "subgraph_with_a_memory")


def test_the_same_under_langgraphs_strict_allowlist() -> None:
    """Then LangGraph asks for a clone of the saver at every call."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STRICT, *drawn(STRICTLY, 1)],
        env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("the same\n", 0), done.stderr
