"""Files that are opened at their first use, as programs construct savers in an event loop."""

import asyncio
import contextlib
import os
from typing import Any

import aiosqlite
import pytest

from threadkeep import SqliteSaver, open_all
from threadkeep._run import driver
from threadkeep._stores.process_forks import running_loop
from threadkeep.cache import SqliteCache
from threadkeep.errors import ClosedError, InvalidArgumentError, OpenError
from threadkeep.store import SqliteStore

AT: Any = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}
KEY = (("node",), "key")


def checkpoint(id: str = "1") -> Any:
    return {
        "v": 4, "id": id, "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {}, "channel_versions": {}, "versions_seen": {},
    }  # fmt: skip


USES = {
    "a load": (SqliteSaver, lambda it: it.aget_tuple(AT)),
    "a save": (SqliteSaver, lambda it: it.aput(AT, checkpoint(), {}, {})),
    "a setup": (SqliteSaver, lambda it: it.asetup()),
    "an operation on threads": (SqliteSaver, lambda it: it.threads.acount()),
    "a get of a store": (SqliteStore, lambda it: it.aget(("a",), "k")),
    "a put of a store": (SqliteStore, lambda it: it.aput(("a",), "k", {})),
    "a setup of a store": (SqliteStore, lambda it: it.asetup()),
    "a setup of a cache": (SqliteCache, lambda it: it.asetup()),
}


@pytest.mark.parametrize("use", USES)
async def test_the_first_use_says_what_opening_would_until_it_can_open(tmp_path, use):
    make, call = USES[use]
    opened = make(tmp_path / "folder" / "t.db")
    for _ in range(2):
        with pytest.raises(OpenError, match="folder"):
            await call(opened)
    (tmp_path / "folder").mkdir()
    await call(opened)
    await opened.aclose()


async def test_a_cache_that_cannot_be_opened_misses(tmp_path, caplog):
    cache = SqliteCache(tmp_path / "folder" / "t.db")
    await cache.aset({KEY: (1, None)})
    assert await cache.aget([KEY]) == {}
    assert {str(one.args[1]).splitlines()[1] for one in caplog.records} == {  # type: ignore[index]
        "Create the folder first, or correct the path."
    }
    await cache.aclose()


@pytest.mark.parametrize("make", [SqliteSaver, SqliteStore, SqliteCache])
async def test_a_block_opens_first(tmp_path, make):
    with pytest.raises(OpenError):
        async with make(tmp_path / "folder" / "t.db"):
            pytest.fail("begun")
    with pytest.raises(OpenError), make(tmp_path / "folder" / "t.db"):
        pytest.fail("begun")
    async with make(tmp_path / "t.db"):
        assert (tmp_path / "t.db").exists()


@pytest.mark.parametrize("make", [SqliteSaver, SqliteStore, SqliteCache])
def test_without_an_event_loop_opening_fails_at_once(tmp_path, make):
    with pytest.raises(OpenError):
        make(tmp_path / "folder" / "t.db")


async def test_arguments_are_checked_at_once():
    with pytest.raises(InvalidArgumentError):
        SqliteSaver("")


async def test_the_path_is_that_of_the_folder_of_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saver = SqliteSaver("t.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    await saver.aget_tuple(AT)
    await saver.aclose()
    assert (tmp_path / "t.db").exists()
    assert not (tmp_path / "other" / "t.db").exists()


async def test_what_is_never_used_is_never_made(tmp_path):
    opened = open_all(f"sqlite:///{tmp_path / 't.db'}")
    await opened.aclose()
    assert not (tmp_path / "t.db").exists()
    with pytest.raises(ClosedError):
        await opened.saver.aget_tuple(AT)


async def test_an_aiosqlite_connection_names_the_file_at_the_first_use(tmp_path):
    async with aiosqlite.connect(tmp_path / "t.db") as connection:
        saver = SqliteSaver(connection)
        await saver.aput(AT, checkpoint(), {}, {})
        await saver.aclose()
    with SqliteSaver(tmp_path / "t.db") as again:
        assert again.get_tuple(AT) is not None


async def test_a_connection_that_cannot_tell_its_file(tmp_path):
    saver = SqliteSaver(aiosqlite.connect(tmp_path / "folder" / "t.db"))
    with pytest.raises(OpenError, match="connection is unknown"):
        await saver.aget_tuple(AT)


async def test_first_uses_at_once(tmp_path):
    """Loads, saves, items and results, of threads and of the event loop."""
    opened = open_all(f"sqlite:///{tmp_path / 't.db'}")
    calls: list[Any] = []
    for n in range(4):
        config = {"configurable": {"thread_id": str(n), "checkpoint_ns": ""}}
        calls += [opened.saver.aput(config, checkpoint(), {}, {}), opened.saver.aget_tuple(AT)]
        calls += [opened.store.aput(("a",), str(n), {"n": n}), opened.store.aget(("a",), "0")]
        calls += [opened.cache.aset({(("node",), str(n)): (n, None)}), opened.cache.aget([KEY])]
        calls += [asyncio.to_thread(opened.saver.get_tuple, config)]
    await asyncio.gather(*calls)
    assert await opened.saver.threads.acount() == 4
    assert len(await opened.store.asearch(("a",))) == 4
    assert len(await opened.cache.aget([(("node",), str(n)) for n in range(4)])) == 4
    await opened.aclose()


async def test_a_saver_works_beside_a_store_that_cannot_open(tmp_path):
    index = {"embed": lambda texts: [[1.0, 0.0] for _ in texts], "dims": 2}
    url = f"sqlite:///{tmp_path / 't.db'}"
    async with open_all(url, store={"index": index}) as opened:
        await opened.store.aput(("a",), "k", {"text": "x"})
    other = {"embed": lambda texts: [[1.0] for _ in texts], "dims": 1}
    opened = open_all(url, store={"index": other})
    with pytest.raises(InvalidArgumentError, match="The vectors in the store have 2"):
        await opened.store.aget(("a",), "k")
    await opened.saver.aput(AT, checkpoint(), {}, {})
    await opened.aclose()


def test_a_child_opens_what_its_parent_did_not(tmp_path):
    async def construct() -> SqliteSaver:
        return SqliteSaver(tmp_path / "t.db")

    saver = asyncio.run(construct())
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            saver.put(AT, checkpoint(), {}, {})
            saver.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert saver.get_tuple(AT) is not None
    saver.close()


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, None])
async def test_files_are_left_elsewhere(error):
    """The stack of a workflow is left in a worker thread, and knows the error."""
    stack, left = contextlib.ExitStack(), []

    def leave(kind: Any, *_: Any) -> None:
        assert not running_loop()
        left.append(kind)

    def work() -> driver.Operation[int]:
        stack.push(leave)
        if error is not None:
            raise error
        return (yield from driver.external(lambda: 1))

    with contextlib.nullcontext() if error is None else pytest.raises(error):
        assert await driver.arun(driver.within(stack, work())) == 1
    assert left == [error]
