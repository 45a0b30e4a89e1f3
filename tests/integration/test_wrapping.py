"""Another saver's saves that return at once: what waits, what fails, who is told."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.conversations import Chat, talk
from kit.engine import config
from kit.forked import python
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from threadkeep import MemorySaver, ReadCache, WriteBehind, wrap
from threadkeep.errors import (
    BackendError,
    ClosedError,
    InvalidArgumentError,
    InvalidConfigError,
)
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.streaming import StreamingCheckpointSaver

from .foreign import FOREIGN, SELDOM, foreign
from .inner import Inner, OnlyAwaited, aput, arguments, avalues, put, values
from .test_processes_and_loops import in_fork

QUICK = WriteBehind(flush_interval=0.01)


def relaxed(inner: Any, how: WriteBehind = SELDOM) -> Any:
    return wrap(inner, write_behind=how)


# -- saves that wait ---------------------------------------------------------------------


def test_a_save_returns_before_it_is_stored() -> None:
    inner = Inner()
    saver = relaxed(inner)
    answer = put(saver, a=[1])
    saver.put_writes(answer, [("a", 2)], "task", "path")
    assert inner.asked == []
    assert answer == InMemorySaver().put(*arguments("t", 1, a=[1]))
    found = saver.get_tuple(config())
    assert inner.asked == ["put t", "put_writes t", "get_tuple"]
    assert found.checkpoint["channel_values"] == {"a": [1]}
    assert found.pending_writes == [("task", "a", 2)]


def test_every_read_sees_what_was_saved() -> None:
    reads = [
        lambda saver: len([*saver.list(config("t"))]),
        lambda saver: len([*saver.list(None)]),
        lambda saver: len([saver.get(config("t"))]),
        lambda saver: saver.get_delta_channel_history(config=config("t"), channels=["a"]) and 1,
    ]
    for read in reads:
        inner = Inner()
        saver = relaxed(inner)
        put(saver, a=1)
        assert read(saver) == 1
        assert inner.asked[0] == "put t"


async def test_every_awaited_read_sees_what_was_saved() -> None:
    saver = relaxed(Inner())
    await aput(saver, a=1)
    assert [one.checkpoint["id"] async for one in saver.alist(None)] == ["00000001"]
    await saver.aput_writes(config("t", "", "00000001"), [("a", 2)], "task")
    assert (await saver.aget_tuple(config())).pending_writes == [("task", "a", 2)]
    await aput(saver, number=2, a=3)
    history = await saver.aget_delta_channel_history(config=config(), channels=["a"])
    assert set(history) == {"a"}
    assert await avalues(saver) == {"a": 3}


def test_a_read_stores_its_own_thread_alone() -> None:
    inner = Inner()
    saver = relaxed(inner)
    put(saver, "t", a=1)
    put(saver, "u", a=2)
    assert values(saver, "t") == {"a": 1}
    assert inner.asked == ["put t", "get_tuple"]
    saver.flush()
    assert inner.asked == ["put t", "get_tuple", "put u"]


def test_values_may_be_changed_afterwards() -> None:
    inner = Inner()
    saver = relaxed(inner)
    at, made, metadata, versions = arguments("t", 1, a=[1, {"deep": []}])
    at["metadata"] = {"who": "me"}
    answer = saver.put(at, made, metadata, versions)
    written = [("a", [5])]
    saver.put_writes(answer, written, "task")
    made["channel_values"]["a"][1]["deep"].append("late")
    made["channel_values"]["a"].append("late")
    metadata["source"] = at["metadata"]["who"] = "late"
    at["configurable"]["thread_id"] = answer["configurable"]["checkpoint_id"] = "late"
    versions["late"] = 1
    written[0][1].append("late")
    written.append(("late", 1))
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"a": [1, {"deep": []}]}
    assert found.metadata == {"source": "loop", "run_id": "run of t", "who": "me"}
    assert found.pending_writes == [("task", "a", [5])]
    assert [name for _, _, name, _ in inner.blobs] == ["a"]


def test_it_is_stored_before_long() -> None:
    inner = Inner()
    saver = relaxed(inner, QUICK)
    put(saver, a=1)
    assert inner.stored.wait(10)
    saver.close()


def test_a_saver_that_is_let_go_of_loses_nothing() -> None:
    inner = Inner()
    put(relaxed(inner, QUICK), a=1)
    gc.collect()
    assert inner.stored.wait(10)


def test_what_waits_is_bounded() -> None:
    inner = Inner()
    saver = relaxed(inner, replace(SELDOM, max_pending_bytes=5000))
    for number in range(1, 60):
        put(saver, number=number, a="x" * 200)
        assert saver._queue._size < 6000
    assert inner.asked
    assert len([*saver.list(config())]) == 59


async def test_a_full_list_is_waited_for_elsewhere() -> None:
    inner = Inner()
    saver = relaxed(inner, replace(SELDOM, max_pending_bytes=1))
    for number in range(1, 5):
        await aput(saver, number=number, a=number)
    assert len(inner.asked) == 3
    assert await avalues(saver) == {"a": 4}


def test_housekeeping_comes_after_what_was_saved() -> None:
    saver = relaxed(Inner())
    put(saver, "t", a=1)
    saver.copy_thread("t", "u")
    assert values(saver, "u") == {"a": 1}
    put(saver, "u", 2, a=2)
    saver.prune(["u"], strategy="delete")
    put(saver, "v", a=1)
    saver.delete_for_runs(["run of v"])
    put(saver, "w", a=1)
    saver.delete_thread("w")
    assert [values(saver, thread) for thread in "tuvw"] == [{"a": 1}, None, None, None]


async def test_awaited_housekeeping_comes_after_what_was_saved() -> None:
    saver = relaxed(Inner())
    await aput(saver, "t", a=1)
    await saver.acopy_thread("t", "u")
    assert await avalues(saver, "u") == {"a": 1}
    await aput(saver, "u", 2, a=2)
    await saver.aprune(["u"], strategy="delete")
    await aput(saver, "v", a=1)
    await saver.adelete_for_runs(["run of v"])
    await aput(saver, "w", a=1)
    await saver.adelete_thread("w")
    await saver.aflush()
    assert [await avalues(saver, thread) for thread in "tuvw"] == [{"a": 1}, None, None, None]


# -- a saver that fails ------------------------------------------------------------------


def test_a_background_failure_is_told_at_the_next_call_and_nothing_is_lost() -> None:
    inner = Inner()
    saver = relaxed(inner)
    inner.bad = {"bad"}
    for number in (1, 2):
        put(saver, "bad", number, a=number)
        put(saver, "t", number, a=number)
    saver._queue.flush_quietly()
    assert inner.asked == ["put t", "put t"]
    assert values(saver) == {"a": 2}
    with pytest.raises(BackendError, match=r"Inner\.put failed: OSError: bad is bad") as caught:
        put(saver, "bad", 3, a=3)
    assert caught.value.thread == "bad"
    assert isinstance(caught.value.__cause__, OSError)
    inner.bad = set()
    assert values(saver, "bad") == {"a": 2}
    assert len([*saver.list(config("bad"))]) == 2


def test_those_before_one_that_fails_are_stored_once() -> None:
    inner = Inner()
    saver = relaxed(inner)
    answer = put(saver, a=1)
    saver.put_writes(answer, [("a", 1)], "task")
    inner.put_writes = raising  # type: ignore[method-assign] # it fails at the second call
    for _ in range(2):
        with pytest.raises(BackendError, match="no room"):
            saver.flush()
    del inner.put_writes
    saver.flush()
    assert inner.asked == ["put t", "put_writes t"]


def raising(*_given: Any, **_named: Any) -> None:
    message = "no room"
    raise OSError(message)


def test_a_full_list_says_why() -> None:
    inner = Inner()
    saver = relaxed(inner, replace(SELDOM, max_pending_bytes=1))
    inner.bad = {"bad"}
    put(saver, "bad", a=1)
    with pytest.raises(BackendError, match="bad is bad"):
        put(saver, "t", a=1)
    inner.bad = set()
    put(saver, "t", a=1)
    assert values(saver, "bad") == {"a": 1}  # stored meanwhile: nothing is left to tell


def test_what_can_never_be_stored_goes_with_its_thread() -> None:
    inner = Inner()
    saver = relaxed(inner)
    put(saver, "bad", a=1)
    inner.bad = {"bad"}
    saver._queue.flush_quietly()
    saver.delete_thread("bad")
    saver.flush()
    inner.bad = set()
    assert values(saver, "bad") is None


@pytest.mark.parametrize(
    "how", [{"write_behind": SELDOM}, {"cache": ReadCache(), "sole_writer": True}]
)
def test_values_are_kept_each_on_its_own(how: Any) -> None:
    """LangGraph's serializer keeps a `bytearray`, but not one within a list."""
    saver = wrap(InMemorySaver(), **how)
    at = put(saver, a=bytearray(b"x"), b=[1])
    saver.put_writes(at, [("a", bytearray(b"w"))], "task")
    for _ in range(2):
        found = saver.get_tuple(at if "cache" not in how else config())
        assert found.checkpoint["channel_values"] == {"a": bytearray(b"x"), "b": [1]}
        assert type(found.checkpoint["channel_values"]["a"]) is bytearray
        assert [type(value) for *_, value in found.pending_writes] == [bytearray]


def test_a_value_that_cannot_be_stored_is_refused_at_once() -> None:
    saver = relaxed(Inner())
    with pytest.raises(TypeError):
        put(saver, a=threading.Lock())
    assert values(saver) is None


def test_a_config_that_names_nothing_is_refused_at_once() -> None:
    saver = relaxed(Inner())
    _, *rest = arguments("t", 1, a=1)
    with pytest.raises(InvalidConfigError, match="thread_id"):
        saver.put({"configurable": {}}, *rest)
    with pytest.raises(InvalidConfigError, match="checkpoint_id"):
        saver.put_writes(config(), [("a", 1)], "task")
    with pytest.raises(KeyError):
        saver.put(config(), {}, {}, {})
    assert saver._queue.is_settled(None)


# -- savers that can only be awaited -----------------------------------------------------


@pytest.mark.parametrize("name", FOREIGN)
async def test_what_waits_is_stored_while_the_loop_runs(name: str, tmp_path: Path) -> None:
    async with foreign(name, tmp_path) as inner:
        async with relaxed(inner, QUICK) as saver:
            for number in range(1, 30):
                await aput(saver, number=number, a=[number])
                await asyncio.sleep(0)
            found = None
            while found is None or found.checkpoint["channel_values"] != {"a": [29]}:
                found = await asyncio.to_thread(inner.get_tuple, config())
        assert await asyncio.to_thread(values, inner) == {"a": [29]}


async def test_a_saver_without_blocking_methods() -> None:
    inner = OnlyAwaited()
    async with relaxed(inner) as saver:
        await aput(saver, a=1)
        await saver.aput_writes(config("t", "", "00000001"), [("a", 2)], "task")
        assert await avalues(saver) == {"a": 1}
        assert inner.threads == {threading.current_thread().name}


async def test_a_blocking_call_in_the_loop_is_refused(tmp_path: Path) -> None:
    async with foreign("aiosqlite", tmp_path) as inner, relaxed(inner) as saver:
        await aput(saver, a=1)
        for call in (saver.flush, saver.close, lambda: values(saver), lambda: [*saver.list(None)]):
            with pytest.raises(InvalidArgumentError, match="async"):
                call()
        with pytest.raises(InvalidArgumentError, match="async"):
            saver.delete_thread("t")
        assert await avalues(saver) == {"a": 1}


async def test_a_full_list_in_the_loop_is_refused(tmp_path: Path) -> None:
    full = replace(SELDOM, max_pending_bytes=1)
    async with foreign("aiosqlite", tmp_path) as inner, relaxed(inner, full) as saver:
        put(saver, number=1, a=1)
        with pytest.raises(InvalidArgumentError, match="async"):
            put(saver, number=2, a=2)


async def test_a_thread_is_deleted_before_there_are_tables(tmp_path: Path) -> None:
    """LangGraph's saver makes them at the first put, and not for a delete."""
    file = str(tmp_path / "new.db")
    async with AsyncSqliteSaver.from_conn_string(file) as inner, relaxed(inner) as saver:
        await aput(saver, a=1)
        await saver.adelete_thread("t")
        assert await avalues(saver) is None


def test_a_loop_that_has_ended_is_told_of() -> None:
    async def begin() -> Any:
        async with AsyncSqliteSaver.from_conn_string(":memory:") as inner:
            saver = relaxed(inner)
            await aput(saver, a=1)
            return saver

    saver = asyncio.run(begin())
    with pytest.raises(BackendError, match="event loop") as caught:
        saver.flush()
    assert "aclose()" in caught.value.hint
    saver._queue.forget("t")


def test_a_loop_that_stops_meanwhile_is_told_of() -> None:
    class Slow(OnlyAwaited):
        async def aput(self, *_given: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

    async def begin() -> Any:
        saver = relaxed(Slow(), QUICK)
        await aput(saver, a=1)
        await asyncio.to_thread(begun.wait, 10)
        return saver, [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    begun, loop = threading.Event(), asyncio.new_event_loop()
    saver, tasks = loop.run_until_complete(begin())
    with pytest.raises(BackendError, match="event loop"):
        saver.flush()
    saver._queue.forget("t")
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


# -- the end -----------------------------------------------------------------------------


def test_the_saver_inside_is_closed_after_what_waits_is_stored() -> None:
    inner = Inner()
    saver = relaxed(inner)
    put(saver, a=1)
    saver.close()
    assert (inner.asked, inner.ended) == (["put t"], ["closed"])
    with pytest.raises(ClosedError):
        put(saver, number=2, a=2)


async def test_awaited_closing() -> None:
    inner = Inner()
    saver = relaxed(inner)
    put(saver, a=1)
    await saver.aclose()
    assert (inner.asked, inner.ended) == (["put t"], ["closed"])


async def test_with_leaves_the_saver_inside() -> None:
    inner = Inner()
    with relaxed(inner) as saver:
        put(saver, a=1)
    async with relaxed(inner) as saver:
        put(saver, number=2, a=1)
    assert inner.asked == ["put t", "put t"]
    assert inner.ended == [None, None]


def test_with_on_a_saver_that_has_none(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "a.db")) as inner:
        with relaxed(inner) as saver:
            put(saver, a=1)
        assert values(inner) == {"a": 1}


AT_EXIT = """
import sqlite3, sys
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from threadkeep import WriteBehind, wrap
from integration.inner import put
inner = SqliteSaver(sqlite3.connect(sys.argv[1], check_same_thread=False))
saver = wrap(inner, write_behind=WriteBehind(flush_interval=60))
put(saver, a=["kept"])
"""


def test_the_end_of_the_program_stores_it(tmp_path: Path) -> None:
    file, folder = str(tmp_path / "exit.db"), Path(__file__).parents[1]
    subprocess.run([*python(), "-c", AT_EXIT, file], cwd=folder, check=True, timeout=60)
    with SqliteSaver.from_conn_string(file) as inner:
        assert values(inner) == {"a": ["kept"]}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_what_waits_is_the_parents_to_store() -> None:
    inner = Inner()
    saver = relaxed(inner)
    put(saver, a=1)

    def in_child() -> bool:
        saver.flush()
        put(saver, "child", a=1)
        saver.flush()
        return inner.asked == ["put child"]

    assert in_fork(in_child)
    saver.flush()
    assert inner.asked == ["put t"]


# -- what is refused, what is handed through ---------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        (object(), {}, "no LangGraph saver"),
        (SqliteSaver.from_conn_string(":memory:"), {}, "under `with`"),
        (wrap(Inner()), {}, "of its own"),
        (Inner(), {"write_behind": True}, "Invalid write_behind: True"),
        (Inner(), {"cache": ReadCache()}, "sole_writer=True"),
        (Inner(), {"cache": ReadCache(), "sole_writer": 1}, "sole_writer=True"),
        (Inner(), {"cache": 5, "sole_writer": True}, "Invalid cache: 5"),
    ],
)
def test_what_cannot_be_had_is_refused(given: Any, options: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        wrap(given, **options)


def test_our_own_savers_do_it_themselves() -> None:
    with MemorySaver() as saver, pytest.raises(InvalidArgumentError, match="of its own"):
        wrap(saver)


@pytest.mark.parametrize("front", [LayeredCheckpointSaver, StreamingCheckpointSaver])
@pytest.mark.parametrize(
    "how", [{"write_behind": SELDOM}, {"cache": ReadCache(), "sole_writer": True}]
)
def test_savers_with_more_methods_go_in_front(front: Any, how: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Wrap the saver inside"):
        wrap(front(InMemorySaver()), **how)


def test_layers_in_front_see_the_saves_that_wait() -> None:
    memory = LayeredCheckpointSaver(relaxed(InMemorySaver()), Layers(full_window=4, batch=1))
    chat, said = Chat(memory), talk(12)
    chat.talk("t", said)
    assert memory.full_messages("t") == said
    assert [one.message for one in memory.search_messages("t", query="message 3")] == [said[3]]
    memory.remove("t", ["m0", "m11"])
    assert memory.full_messages("t") == said[1:11]
    new = memory.split("t")
    told = memory.summary(new["configurable"]["thread_id"]).content
    assert "message 10" in told
    assert "message 11" not in told
    memory.close()


def test_the_rest_is_as_the_saver_inside_has_it() -> None:
    inner = Inner()
    saver = wrap(inner)
    assert saver.storage is inner.storage
    assert saver.serde is inner.serde
    assert saver.config_specs == inner.config_specs
    assert isinstance(saver.get_next_version(None, None), str)
    assert not hasattr(saver, "setup")
    saver.flush()
    put(saver, a=1)
    assert inner.asked == ["put t"]


def test_a_clone_shares_what_waits() -> None:
    inner = Inner(JsonPlusSerializer(allowed_msgpack_modules=[]))
    saver = relaxed(inner)
    clone = saver.with_allowlist([("somewhere", "Something")])
    assert clone.serde is not saver.serde
    put(saver, a=1)
    put(clone, number=2, a=2)
    assert inner.asked == []
    assert values(saver) == values(clone) == {"a": 2}
    assert len([*saver.list(config())]) == 2
