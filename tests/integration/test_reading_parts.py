"""`get_tuple` with `channels`, and lazy lists: on every store, and on savers in front of others."""

import itertools
import random
from typing import Any

import pytest
from kit.backends import open_backend
from kit.conversations import Chat, talk
from kit.places import THREAD, at
from kit.rows import checkpoint, metadata, place
from langchain_core.messages import RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from prometheus_client import CollectorRegistry

from threadkeep import Retention
from threadkeep.errors import CheckpointNotFoundError, InvalidArgumentError, NotFoundError
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.monitor import observe
from threadkeep.streaming import StreamingCheckpointSaver
from threadkeep.threads import LazyValues

CHANNELS = ("number", "list", "text", "dict", "never")


def fill(saver: Any, count: int = 4) -> None:
    """Checkpoints of one thread, some of whose channels are empty, with pending writes."""
    source, config = random.Random(7), place()
    for number in range(count):
        values: dict[str, Any] = {
            "number": number,
            "list": [f"element {n} " * 9 for n in range(number + 9)],
            "text": source.randbytes(5000).hex(),
        }
        if number % 2:
            values["dict"] = {f"key {n}": [n] * 50 for n in range(number + 9)}
        made = checkpoint(values, number=number, list=number, text=number, dict=number)
        config = saver.put(config, made, metadata(number), made["channel_versions"])
        saver.put_writes(config, [("number", number), ("text", "new " * 999)], f"task {number}")
        saver.put_writes(config, [("__interrupt__", ["why?"])], "asks")


def part_of(whole: Any, channels: Any) -> Any:
    """A whole checkpoint with these channels alone."""
    values = whole.checkpoint["channel_values"]
    few = {name: values[name] for name in values if name in channels}
    writes = [write for write in whole.pending_writes if write[1] in channels]
    made = {**whole.checkpoint, "channel_values": few}
    return whole._replace(checkpoint=made, pending_writes=writes)


SUBSETS = [
    [*some] for count in range(len(CHANNELS)) for some in itertools.combinations(CHANNELS, count)
]


def check_parts(saver: Any) -> None:
    configs = [None, *(one.config for one in saver.list(at()))]
    for config, channels in itertools.product(configs, [*SUBSETS, ["__interrupt__"]]):
        expected = part_of(saver.get_tuple(config or at()), channels)
        assert saver.get_tuple(config or at(), channels=channels) == expected


async def test_a_part_has_the_named_channels(saver: Any) -> None:
    assert saver.get_tuple(at(), channels=["number"]) is None
    fill(saver)
    check_parts(saver)
    channels = ("text", "number", "absent")
    expected = part_of(await saver.aget_tuple(at()), channels)
    assert await saver.aget_tuple(at(), channels=channels) == expected
    saver.delete_thread(at()["configurable"]["thread_id"])
    assert await saver.aget_tuple(at(), channels=channels) is None


@pytest.mark.parametrize("channels", ["number", 5, [5], [None], {"number": 1}])
async def test_what_is_no_list_of_names_is_refused(ours: Any, channels: Any) -> None:
    fill(ours)
    for saver in (ours, StreamingCheckpointSaver(ours), StreamingCheckpointSaver(InMemorySaver())):
        saver.put(place(), checkpoint(), metadata(), {})
        with pytest.raises(InvalidArgumentError, match="channels"):
            saver.get_tuple(at(), channels=channels)
        with pytest.raises(InvalidArgumentError, match="channels"):
            await saver.aget_tuple(at(), channels=channels)


FRONTS: dict[str, Any] = {
    "observed": lambda saver: observe(saver, registry=CollectorRegistry()),
    "streaming": StreamingCheckpointSaver,
    "layered": LayeredCheckpointSaver,
}


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("front", FRONTS)
async def test_through_a_saver_in_front(ours: Any, front: str, is_ours: bool) -> None:
    saver = FRONTS[front](ours if is_ours else InMemorySaver())
    fill(saver)
    check_parts(saver)
    expected = part_of(await saver.aget_tuple(at()), ["list"])
    assert await saver.aget_tuple(at(), channels=["list"]) == expected


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_part_of_a_layered_thread(ours: Any, is_ours: bool) -> None:
    memory = LayeredCheckpointSaver(
        ours if is_ours else InMemorySaver(),
        Layers(full_window=4, summary_window=10, archive_threshold=20, batch=1),
    )
    Chat(memory).talk("t", talk(40))
    for found in memory.list(at("t")):
        assert "threadkeep" not in str(found.metadata)
        for channels in (["messages"], [], ["messages", "branch:to:model"], ["branch:to:model"]):
            assert memory.get_tuple(found.config, channels=channels) == part_of(found, channels)


# -- lazy listings -------------------------------------------------------------------


def read_whole(lazy: Any) -> Any:
    """A lazy checkpoint with all that it has, each value read alone."""
    values = lazy.checkpoint["channel_values"]
    assert isinstance(values, LazyValues)
    made = {**lazy.checkpoint, "channel_values": {name: values[name] for name in values}}
    return lazy._replace(checkpoint=made, pending_writes=[*lazy.pending_writes])


async def aread_whole(lazy: Any) -> Any:
    """A lazy checkpoint of `alist` with all that it has."""
    values = lazy.checkpoint["channel_values"]
    for name in values:
        with pytest.raises(InvalidArgumentError, match="aload"):
            values[name]
    await values.aload()
    names = lazy.pending_writes.names
    await lazy.pending_writes.aload()
    assert names == tuple([write[:2] for write in lazy.pending_writes])
    return read_whole(lazy)


async def check_lazy_tuples(saver: Any) -> None:
    configs = [at(), *(one.config for one in saver.list(at()))]
    for config in configs:
        eager = saver.get_tuple(config)
        assert read_whole(saver.get_tuple(config, values="lazy")) == eager
        assert await aread_whole(await saver.aget_tuple(config, values="lazy")) == eager
        assert saver.get_tuple(config, values="eager") == eager
    part = saver.get_tuple(at(), channels=["number"])
    assert saver.get_tuple(at(), channels=["number"], values="lazy") == part
    for absent in (at("no such thread"), at(THREAD, "1f1c0000-0000-6000-8000-000000000000")):
        assert saver.get_tuple(absent, values="lazy") is None
        assert await saver.aget_tuple(absent, values="lazy") is None


async def check_lazy(saver: Any) -> None:
    for options in ({}, {"limit": 2}, {"filter": {"step": 1}}):
        eager = [*saver.list(at(), **options)]
        assert [*map(read_whole, saver.list(at(), values="lazy", **options))] == eager
        found = [one async for one in saver.alist(at(), values="lazy", **options)]
        assert [await aread_whole(one) for one in found] == eager
        assert [*saver.list(at(), values="eager", **options)] == eager


async def test_lazy_checkpoints_have_what_eager_ones_have(saver: Any) -> None:
    fill(saver, 40)
    await check_lazy(saver)
    await check_lazy_tuples(saver)


async def test_a_lazy_checkpoint_is_of_the_namespace_that_the_config_names(ours: Any) -> None:
    fill(ours, 2)
    made = checkpoint({"inner": 1}, inner=1)
    ours.put(place(ns="sub"), made, metadata(9), made["channel_versions"])
    for config in (at(), {"configurable": {"thread_id": THREAD}}):
        lazy = ours.get_tuple(config, values="lazy")
        assert lazy.checkpoint["id"] == ours.get_tuple(config).checkpoint["id"]
        assert lazy.config["configurable"]["checkpoint_ns"] == ""


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("front", FRONTS)
async def test_lazy_through_a_saver_in_front(ours: Any, front: str, is_ours: bool) -> None:
    saver = FRONTS[front](ours if is_ours else InMemorySaver())
    fill(saver)
    await check_lazy(saver)
    await check_lazy_tuples(saver)
    with pytest.raises(InvalidArgumentError, match="values"):
        [*saver.list(at(), values="late")]
    with pytest.raises(InvalidArgumentError, match="values"):
        saver.get_tuple(at(), values="late")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("is_ours", [True, False])
async def test_lazy_layers(ours: Any, is_ours: bool) -> None:
    inner = ours if is_ours else InMemorySaver()
    memory = LayeredCheckpointSaver(
        inner, Layers(full_window=4, summary_window=10, archive_threshold=20, batch=1)
    )
    Chat(memory).talk(THREAD, talk(40))
    await check_lazy(memory)
    if is_ours:
        ours.threads.gc(Retention(channels={"messages": "latest"}))
        await check_lazy(memory)
    removed = [RemoveMessage(REMOVE_ALL_MESSAGES)]
    Chat(memory).graph.update_state(place(), {"messages": removed})
    await check_lazy(memory)


def test_lengths_are_known_without_a_read(ours: Any) -> None:
    fill(ours)
    newest, *_ = ours.list(at(), values="lazy")
    values = newest.checkpoint["channel_values"]
    assert values.unread == {"list": 12, "text": None, "dict": 12}
    values.load("list")
    assert values.unread == {"text": None, "dict": 12}
    layered = LayeredCheckpointSaver(ours, channel="list")
    newest, *_ = layered.list(at(), values="lazy")
    assert newest.checkpoint["channel_values"].unread == {"list": None, "text": None, "dict": 12}


def names(lazy: Any) -> set[str]:
    return {*lazy.checkpoint["channel_values"]}


def test_what_is_no_channel(ours: Any) -> None:
    fill(ours)
    newest, older, *_ = ours.list(at(), values="lazy")
    assert names(newest) == {"number", "list", "text", "dict"}
    assert names(older) == {"number", "list", "text"}
    values = older.checkpoint["channel_values"]
    assert (values.get("dict"), "dict" in values, len(values)) == (None, False, 3)
    values.load("dict", "number")
    assert repr(values) == "<LazyValues: number, list (not read), text (not read)>"
    with pytest.raises(KeyError):
        values["dict"]


async def gone(call: Any, error: Any = CheckpointNotFoundError) -> None:
    with pytest.raises(error, match=r"after .* was listed") as caught:
        await call()
    assert caught.value.thread == THREAD
    assert caught.value.checkpoint


@pytest.mark.parametrize("how", ["deleted", "pruned", "replaced", "new"])
async def test_a_checkpoint_that_is_removed_after_it_was_listed(saver: Any, how: str) -> None:
    fill(saver)
    lazy = [*saver.list(at(), values="lazy")][1]
    awaited = [one async for one in saver.alist(at(), values="lazy")][1]
    values = lazy.checkpoint["channel_values"]
    text, number = values["text"], values["number"]
    if how == "pruned":
        saver.prune([THREAD])
    elif how == "replaced":
        made = {**checkpoint({"list": ["another"]}), "id": lazy.checkpoint["id"]}
        saver.put(lazy.parent_config, made, metadata(), made["channel_versions"])
    else:
        saver.delete_thread(THREAD)
    if how == "new":
        fill(saver)
    assert (values["text"], values["number"]) == (text, number)

    async def read_list() -> None:
        values["list"]

    async def read_writes() -> None:
        len(lazy.pending_writes)

    await gone(read_list)
    await gone(read_writes)
    await gone(lambda: awaited.checkpoint["channel_values"].aload("text", "number"))
    await gone(awaited.pending_writes.aload)


async def test_a_value_that_is_replaced_after_it_was_listed(ours: Any) -> None:
    fill(ours)
    lazy = [*ours.list(at(), values="lazy")][1]
    values = lazy.checkpoint["channel_values"]
    later = {**lazy.checkpoint["channel_versions"], "list": 99}
    again = {**lazy.checkpoint, "channel_values": {"list": ["another"]}, "channel_versions": later}
    ours.put(lazy.parent_config, again, lazy.metadata, later)
    await gone(lambda: values.aload("list"), NotFoundError)


async def test_a_value_that_retention_removes_after_it_was_listed(ours: Any) -> None:
    fill(ours)
    lazy = [*ours.list(at(), values="lazy")][1].checkpoint["channel_values"]
    ours.threads.gc(policy=Retention(channels={"text": "latest"}))
    assert len(lazy["list"]) == 11
    await gone(lambda: lazy.aload("text"), NotFoundError)


def test_a_thread_is_archived_and_sealed_after_it_was_listed(tmp_path: Any) -> None:
    cold = (tmp_path / "cold").as_uri()
    with open_backend("sqlite", tmp_path, cold=cold) as saver:
        fill(saver)
        eager, lazy = [*saver.list(at())], [*saver.list(at(), values="lazy")]
        saver.threads.offload(THREAD, over=1024)
        saver.threads.archive(THREAD)
        assert [*map(read_whole, lazy)] == eager
