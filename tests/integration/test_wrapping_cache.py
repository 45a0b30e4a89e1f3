"""Another saver's newest checkpoints kept at hand: never old ones, and within limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kit.engine import config
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep import ReadCache, wrap
from threadkeep.savers.wrap_langgraph.head_cache import HeadCache, head_key

from .foreign import SELDOM
from .inner import Inner, arguments, avalues, put, values
from .test_processes_and_loops import in_fork

ALONE = {"cache": ReadCache(), "sole_writer": True}


def cached(inner: Any, **options: Any) -> Any:
    return wrap(inner, **{**ALONE, **options})


def reads(inner: Any) -> int:
    return inner.asked.count("get_tuple")


def test_a_head_is_loaded_once_and_nobody_changes_it() -> None:
    inner = Inner()
    saver = cached(inner)
    given = [HumanMessage("hello", id="1"), AIMessage("you", id="2"), {"a": [1.5, None, b"x"]}]
    answer = put(saver, m=given)
    saver.put_writes(answer, [("m", given), ("n", 5)], "task")
    want = inner.get_tuple(config())
    for _ in range(3):
        found = saver.get_tuple(config())
        assert found == want
        assert type(found.pending_writes[0]) is tuple
        found.checkpoint["channel_values"]["m"].append("late")
        found.pending_writes.clear()
        found.config["configurable"]["thread_id"] = "late"
        found.metadata["source"] = "late"
    assert reads(inner) == 2


async def test_awaited() -> None:
    inner = Inner()
    saver = cached(inner)
    await saver.aput(*arguments("t", 1, a=1))
    assert [await avalues(saver) for _ in range(3)] == [{"a": 1}] * 3
    assert reads(inner) == 1
    await saver.aclear_cache("t")
    assert await avalues(saver) == {"a": 1}
    assert reads(inner) == 2


def test_each_namespace_has_its_head_and_each_kind_of_id() -> None:
    saver = cached(Inner())
    places = ({"thread_id": 1}, {"thread_id": "1"}, {"thread_id": "1", "checkpoint_ns": "b"})
    for at in places:
        _, *rest = arguments("", 1, a=str(at))
        saver.put({"configurable": {"checkpoint_ns": "", **at}}, *rest)
    for at in places * 2:
        found = saver.get_tuple({"configurable": at})
        assert found.checkpoint["channel_values"] == {"a": str(at)}
        own = {"checkpoint_ns": "", **at, "checkpoint_id": "00000001"}
        assert found.config == {"configurable": own}


def test_an_older_checkpoint_is_none_of_it() -> None:
    saver = cached(Inner())
    first = put(saver, a=1)
    put(saver, number=2, a=2)
    assert values(saver) == {"a": 2}
    assert saver.get_tuple(first).checkpoint["channel_values"] == {"a": 1}
    assert values(saver) == {"a": 2}


CHANGES: dict[str, Callable[[Any], Any]] = {
    "put": lambda saver: put(saver, number=2, a=2),
    "put_writes": lambda saver: saver.put_writes(HEAD, [("a", 3)], "task"),
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "prune": lambda saver: saver.prune(["t"], strategy="delete"),
    "copy_thread": lambda saver: saver.copy_thread("u", "t"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["run of t"]),
}
HEAD = config("t", "", "00000001")
ACHANGES: dict[str, Callable[[Any], Any]] = {
    "aput": lambda saver: saver.aput(*arguments("t", 2, a=2)),
    "aput_writes": lambda saver: saver.aput_writes(HEAD, [("a", 3)], "task"),
    "adelete_thread": lambda saver: saver.adelete_thread("t"),
    "aprune": lambda saver: saver.aprune(["t"], strategy="delete"),
    "acopy_thread": lambda saver: saver.acopy_thread("u", "t"),
    "adelete_for_runs": lambda saver: saver.adelete_for_runs(["run of t"]),
}
KEEPS = ({}, {"write_behind": SELDOM})


def filled(**options: Any) -> tuple[Inner, Any]:
    inner = Inner()
    saver = cached(inner, **options)
    put(saver, "u", 7, a="u")
    put(saver, a=1)
    saver.flush()
    return inner, saver


@pytest.mark.parametrize("options", KEEPS)
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change: str, options: Any) -> None:
    inner, saver = filled(**options)
    before = saver.get_tuple(config())
    assert before == saver.get_tuple(config())
    assert reads(inner) == 1
    CHANGES[change](saver)
    after = saver.get_tuple(config())
    assert after != before
    assert after == inner.get_tuple(config())


@pytest.mark.parametrize("options", KEEPS)
@pytest.mark.parametrize("change", ACHANGES)
async def test_every_awaited_change_is_seen(change: str, options: Any) -> None:
    inner, saver = filled(**options)
    before = await saver.aget_tuple(config())
    await ACHANGES[change](saver)
    after = await saver.aget_tuple(config())
    assert after != before
    assert after == inner.get_tuple(config())


@pytest.mark.parametrize("options", KEEPS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_the_middle_of_a_read_is_seen(change: str, options: Any) -> None:
    inner, saver = filled(**options)
    inner.meanwhile = lambda: CHANGES[change](saver)
    before = saver.get_tuple(config())
    after = saver.get_tuple(config())
    assert after != before
    assert after == inner.get_tuple(config())


def test_a_change_just_after_a_read_is_seen() -> None:
    inner, heads = Inner(), HeadCache(ReadCache())
    put(inner, a=1)
    key = head_key(config(), frozenset())
    for changed in (["t"], None, []):
        changes, found = heads.changes(key), inner.get_tuple(config())
        heads.changed(changed)
        heads.keep(key, found, changes, inner.serde)
        assert heads.find(key, inner.serde) == (found if changed == [] else None)


def test_what_two_load_at_once_is_kept_once() -> None:
    inner, heads = Inner(), HeadCache(ReadCache())
    put(inner, a=1)
    key, sizes = head_key(config(), frozenset()), []
    for _ in range(2):
        heads.keep(key, inner.get_tuple(config()), heads.changes(key), inner.serde)
        sizes.append(heads.size)
    assert sizes[0] == sizes[1] < 2000


def test_a_change_of_one_thread_leaves_the_others() -> None:
    inner, saver = filled()
    assert [values(saver, thread) for thread in "tu"] == [{"a": 1}, {"a": "u"}]
    put(saver, "t", 2, a=2)
    saver.delete_thread("")
    assert values(saver, "u") == {"a": "u"}
    assert reads(inner) == 2


def test_exactly_that_thread_is_cleared() -> None:
    inner = Inner()
    saver = cached(inner)
    for thread in ("a", "ab", "b"):
        put(saver, thread, a=thread)
        values(saver, thread)
    saver.clear_cache("a")
    assert [values(saver, thread) for thread in ("a", "ab", "b")] == [
        {"a": thread} for thread in ("a", "ab", "b")
    ]
    assert reads(inner) == 4
    saver.clear_cache()
    assert saver._heads.size == 0
    values(saver, "ab")
    assert reads(inner) == 5


def test_no_more_is_kept_than_told() -> None:
    for limits in (ReadCache(bytes=5_000), ReadCache(threads=3)):
        inner = Inner()
        saver = cached(inner, cache=limits)
        for number in range(20):
            put(saver, f"t{number}", a="x" * 300)
            values(saver, f"t{number}")
            assert saver._heads.size <= min(limits.bytes, 5_000)
        assert reads(inner) == 20
        assert values(saver, "t19") == {"a": "x" * 300}
        assert reads(inner) == 20
        values(saver, "t0")
        assert reads(inner) == 21


# -- what nobody knows -------------------------------------------------------------------


def test_after_a_write_that_failed_the_thread_is_left_alone() -> None:
    """Who knows whether it was carried out, or will be yet?"""
    inner, saver = filled()
    inner.bad = {"t"}
    with pytest.raises(OSError, match="t is bad"):
        put(saver, number=2, a=2)
    before = reads(inner)
    assert [values(saver), values(saver)] == [{"a": 1}] * 2
    assert [values(saver, "u"), values(saver, "u")] == [{"a": "u"}] * 2
    assert reads(inner) == before + 3


async def test_a_write_that_was_cancelled_may_come_later() -> None:
    class Late(Inner):
        async def aput(self, *_given: Any) -> Any:
            await asyncio.Event().wait()

    inner = Late()
    saver = cached(inner)
    put(saver, a=1)
    task = asyncio.create_task(saver.aput(*arguments("t", 2, a=2)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert values(saver) == {"a": 1}
    put(inner, number=2, a=2)
    assert values(saver) == {"a": 2}


def test_after_a_failure_in_unknown_threads_nothing_is_kept() -> None:
    inner, saver = filled()
    inner.delete_for_runs = None  # type: ignore[assignment,method-assign] # calling it fails
    with pytest.raises(TypeError):
        saver.delete_for_runs(["any"])
    values(saver)
    values(saver)
    assert reads(inner) == 2


def test_what_a_saver_cannot_do_costs_nothing() -> None:
    inner, saver = filled()
    inner.delete_for_runs = lambda _ids: (_ for _ in ()).throw(NotImplementedError())  # type: ignore[method-assign] # as the base class
    with pytest.raises(NotImplementedError):
        saver.delete_for_runs(["any"])
    values(saver)
    values(saver)
    assert reads(inner) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads, on purpose
def test_a_forked_child_is_another_process() -> None:
    inner, saver = filled()
    values(saver)

    def in_child() -> bool:
        values(saver)
        values(saver)
        return reads(inner) == 3

    assert in_fork(in_child)
    values(saver)
    assert reads(inner) == 1


# -- what cannot be kept -----------------------------------------------------------------


def test_what_its_serializer_cannot_take_is_loaded_each_time() -> None:
    class Picky(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> Any:
            if type(obj) is list and len(obj) == 6:
                raise TypeError
            return super().dumps_typed(obj)

    inner = Inner(Picky())
    saver = cached(inner)
    put(saver, a=1)
    assert [values(saver), values(saver)] == [{"a": 1}] * 2
    assert reads(inner) == 2


def test_what_belongs_to_its_reader_is_not_kept() -> None:
    class Personal(Inner):
        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            return None if found is None else found._replace(config=config)

    inner = Personal()
    saver = cached(inner)
    put(saver, a=1)
    for who in "ab":
        asked = {**config(), "metadata": {"who": who}}
        assert saver.get_tuple(asked).config == asked


@dataclass
class Mine:
    """A class that only an allowlist lets in."""

    a: int


def test_each_allowlist_sees_its_own(caplog: pytest.LogCaptureFixture) -> None:
    inner = Inner(JsonPlusSerializer(allowed_msgpack_modules=[]))
    strict = cached(inner)
    put(strict, a=Mine(1))
    wide = strict.with_allowlist([(Mine.__module__, "Mine")])
    assert wide.with_allowlist([]) is not None
    for _ in range(2):
        assert values(strict) == inner_values(inner)
        assert values(wide) == {"a": Mine(1)}
    assert "Mine" in caplog.text


def inner_values(inner: Inner) -> Any:
    found = inner.get_tuple(config())
    return found.checkpoint["channel_values"]
