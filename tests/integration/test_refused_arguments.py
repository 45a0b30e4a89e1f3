"""Arguments that cannot be stored as they are: a clear error, the same on every backend.

And values whose own code fails while they are stored.
"""

import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from kit.places import THREAD
from kit.rows import checkpoint, metadata, place, put
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep import register
from threadkeep.errors import (
    CodecError,
    InvalidArgumentError,
    InvalidConfigError,
    UnserializableError,
)

LONE = "half \ud800"


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def made(**parts: Any) -> Any:
    return {**empty_checkpoint(), **parts}


CHECKPOINTS: dict[str, Any] = {
    "no checkpoint": None,
    "an empty id": made(id=""),
    "half a character in the id": made(id=LONE),
    "values that are a list": made(channel_values=[1]),
    "a number for a channel": made(channel_values={0: "v"}, channel_versions={0: 1}),
    "a number for a channel, without a version": made(channel_values={0: "v"}),
    "None for a channel": made(channel_versions={None: 1}),
    "half a character in a channel": made(channel_values={LONE: 1}, channel_versions={LONE: 1}),
    "a version over 64 bits": made(channel_versions={"a": 2**63}),
    "a version under 64 bits": made(channel_versions={"a": -(2**63) - 1}),
    "a tuple as a version": made(channel_versions={"a": (1, 2)}),
    "half a character in a version": made(channel_versions={"a": LONE}),
    "an odd format": made(v=object()),
    "nothing seen": made(versions_seen=None),
    "a node that has seen nothing": made(versions_seen={"node": None}),
    "half a character in a node": made(versions_seen={LONE: {"a": 1}}),
    "half a character in what was seen": made(versions_seen={"node": {LONE: 1}}),
    "a number seen": made(versions_seen={"node": {1: 1}}),
    "a large version seen": made(versions_seen={"node": {"a": 1 << 20_000}}),
    "no time": made(ts=None),
    "a number as time": made(ts=5),
    "half a character in the time": made(ts=LONE),
    "a number updated": made(updated_channels=3),
    "a text updated": made(updated_channels="abc"),
    "half a character updated": made(updated_channels=[LONE]),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
async def test_a_checkpoint_that_cannot_be_stored_is_refused(saver: Any, kind: str) -> None:
    kept = put(saver, place(), {"value": "kept"})
    for call in (saver.put, saver.aput):
        with pytest.raises((InvalidArgumentError, InvalidConfigError)) as caught:
            await call(kept, CHECKPOINTS[kind], metadata(), {})
        assert caught.value.hint
        assert caught.value.thread == THREAD
    assert [t.checkpoint["channel_values"] for t in saver.list(place())] == [{"value": "kept"}]
    assert saver.check().ok


def test_the_error_names_the_part(saver: Any) -> None:
    bad = made(versions_seen={"node": {LONE: 1}})
    with pytest.raises(InvalidArgumentError, match=r"versions_seen.*node.*ud800") as caught:
        saver.put(place(), bad, metadata(), {})
    assert caught.value.checkpoint == bad["id"]


ODD: dict[str, Any] = {
    "other letters": made(channel_values={"é": 1}, channel_versions={"é": 1}),
    "all of 64 bits": made(channel_versions={"a": -(2**63), "b": 2**63 - 1}),
    "fractions": made(channel_versions={"a": 1.5, "b": "0007.5"}),
    "seen": made(versions_seen={"node": {"a": 2**63 - 1, "é": "ü"}, "none": {}}),
    "another format": made(v=None),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_merely_odd_is_stored(saver: Any, kind: str) -> None:
    config = saver.put(place(), ODD[kind], metadata(), {})
    found = saver.get_tuple(config).checkpoint
    assert {key: found[key] for key in ODD[kind]} == ODD[kind]


METADATA: dict[str, Any] = {
    "none": (None, InvalidArgumentError),
    "a list": ([], InvalidArgumentError),
    "deep": ({"deep": deep(100_000)}, CodecError),
}


@pytest.mark.parametrize("kind", METADATA)
def test_metadata_that_cannot_be_stored_is_refused(saver: Any, kind: str) -> None:
    given, error = METADATA[kind]
    with pytest.raises(error) as caught:
        saver.put(place(), checkpoint({"value": 1}), given, {})
    assert caught.value.thread == THREAD
    assert saver.get_tuple(place()) is None


WRITES: dict[str, tuple[Any, ...]] = {
    "half a character in a channel": ([(LONE, 1)], "task"),
    "a number as a channel": ([(1, 1)], "task"),
    "None as a channel": ([(None, 1)], "task"),
    "no pairs": ([1], "task"),
    "no writes": (None, "task"),
    "no task": ([("a", 1)], None),
    "a number as a task": ([("a", 1)], 7),
    "half a character in the task": ([("a", 1)], LONE),
    "a number as a path": ([("a", 1)], "task", 7),
    "half a character in the path": ([("a", 1)], "task", LONE),
}


@pytest.mark.parametrize("kind", WRITES)
async def test_writes_that_cannot_be_stored_are_refused(saver: Any, kind: str) -> None:
    config = put(saver, place(), {"value": 1})
    for call in (saver.put_writes, saver.aput_writes):
        with pytest.raises(InvalidArgumentError) as caught:
            await call(config, *WRITES[kind])
        assert caught.value.thread == THREAD
    assert saver.get_tuple(config).pending_writes == []


def test_no_task_path_is_an_empty_one(saver: Any) -> None:
    config = put(saver, place(), {"value": 1})
    saver.put_writes(config, [("value", 2)], "task", None)
    assert saver.get_tuple(config).pending_writes == [("task", "value", 2)]
    assert saver.check().ok


def test_a_uuid_names_the_checkpoint_of_its_text(saver: Any) -> None:
    first = put(saver, place(), {"value": 1})
    text = first["configurable"]["checkpoint_id"]
    named = place(checkpoint=uuid.UUID(text))  # type: ignore[arg-type]
    second = put(saver, named, {"value": 2}, value=2)
    saver.put_writes(named, [("value", 3)], "task")
    assert saver.get_tuple(named).config == first
    assert saver.get_tuple(named).pending_writes == [("task", "value", 3)]
    assert saver.get_tuple(second).parent_config == first
    before = uuid.UUID(second["configurable"]["checkpoint_id"])
    older = saver.list(place(), before=place(checkpoint=before))  # type: ignore[arg-type]
    assert [t.config for t in older] == [first]


BAD_PLACES: dict[str, Any] = {
    "checkpoint_id": place(checkpoint=5),  # type: ignore[arg-type]
    "Invalid checkpoint_id": place(checkpoint=LONE),
    "checkpoint_ns": place(checkpoint="1", ns=LONE),
    "thread_id": place(LONE, checkpoint="1"),
}


@pytest.mark.parametrize("part", BAD_PLACES)
def test_other_places_are_refused(saver: Any, part: str) -> None:
    bad = BAD_PLACES[part]
    for call in (
        lambda: saver.get_tuple(bad),
        lambda: saver.put(bad, checkpoint({"value": 1}), metadata(), {}),
        lambda: saver.put_writes(bad, [("value", 1)], "task"),
        lambda: list(saver.list(bad)),
    ):
        with pytest.raises(InvalidArgumentError, match=part):
            call()
    if part.startswith("checkpoint_id"):
        with pytest.raises(InvalidArgumentError, match=part):
            list(saver.list(place(), before=bad))
    assert list(saver.list(None)) == []


@pytest.mark.parametrize("options", [{"limit": "3"}, {"limit": 1.5}, {"filter": [1]}])
def test_a_list_of_no_meaning_is_refused(saver: Any, options: Any) -> None:
    for config in (place(), None):
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            list(saver.list(config, **options))


@pytest.mark.parametrize("ids", ["abc", b"abc", None, 7])
def test_several_ids_are_a_list(saver: Any, ids: Any) -> None:
    put(saver, place(), {"value": 1})
    with pytest.raises(InvalidArgumentError, match="run_ids"):
        saver.delete_for_runs(ids)
    with pytest.raises(InvalidArgumentError, match="thread_ids"):
        saver.prune(ids, strategy="delete")
    saver.delete_for_runs([uuid.uuid4()])
    assert saver.get_tuple(place()) is not None


@pytest.mark.parametrize("allowed", [[1], "models", [("a", 1)], None, 7])
def test_an_allowlist_is_pairs(saver: Any, allowed: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="allowlist"):
        saver.with_allowlist(allowed)
    assert saver.with_allowlist([["a", "B"]]) is saver.with_allowlist({("a", "B")})


# -- code that is not ours -----------------------------------------------------------


@dataclass
class Record:
    """Looks like a message that has no id yet."""

    text: str

    @property
    def id(self) -> None:
        raise RuntimeError("own error")

    def __repr__(self) -> str:
        raise RuntimeError("own error")


def test_a_property_named_id_is_not_asked(saver: Any) -> None:
    config = put(saver, place(), {"value": [Record("a" * 100)]})
    saver.put_writes(
        config, [("value", [Record("b" * 100)]), ("__start__", {"a": Record("c")})], "t"
    )
    found = saver.get_tuple(config)
    assert found.checkpoint["channel_values"]["value"][0].text == "a" * 100
    assert next(value for _, _, value in found.pending_writes)[0].text == "b" * 100


def test_metadata_that_cannot_be_shown_is_stored(saver: Any) -> None:
    config = saver.put(place(), checkpoint({"value": 1}), {"record": Record("a")}, {})
    assert saver.get_tuple(config).metadata["record"].text == "a"


class Foreign:
    pass


def fail(_: object) -> Any:
    raise ValueError("own error")


register(Foreign, encode=fail, decode=fail)


@pytest.mark.parametrize("value", [Foreign(), [Foreign()] * 20, {"a": (Foreign(),)}])
def test_an_encode_that_fails_is_told_with_its_channel(saver: Any, value: Any) -> None:
    first = put(saver, place(), {"value": 1})
    for store in (
        lambda: put(saver, first, {"fine": 1, "bad": value}),
        lambda: saver.put_writes(first, [("fine", 1), ("bad", value)], "task"),
    ):
        with pytest.raises(UnserializableError, match="own error") as caught:
            store()
        assert (caught.value.thread, caught.value.channel) == (THREAD, "bad")
        assert isinstance(caught.value.__cause__, ValueError)
    assert saver.get_tuple(place()).config == first
    assert saver.get_tuple(first).pending_writes == []
