"""`get_tuple` with `channels`: on every store, and on savers in front of others."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from kit.backends import open_backend
from kit.conversations import Chat, talk
from kit.places import at
from kit.rows import checkpoint, metadata, place
from langgraph.checkpoint.memory import InMemorySaver
from prometheus_client import CollectorRegistry

from threadkeep import WriteBehind
from threadkeep.errors import InvalidArgumentError
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.monitor import observe
from threadkeep.streaming import StreamingCheckpointSaver

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


def test_what_waits_to_be_written_is_read(tmp_path: Any) -> None:
    with open_backend("sqlite", tmp_path, write_behind=WriteBehind()) as saver:
        fill(saver)
        check_parts(saver)
        saver.flush()
        check_parts(saver)


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
