r"""NUL and its neighbours in ids and metadata: PostgreSQL's text cannot hold one."""

import asyncio
import json

import pytest
from kit.postgres import empty_schema, url
from kit.rows import checkpoint, metadata, place, put, value_at

from threadkeep import PostgresSaver
from threadkeep._core.engine.model import Batch, FindThreads, ScanCheckpoints
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep.testing import records

ODD = [
    "",
    "\0",
    "\0\0",
    "\1",
    "\1\1",
    "\1\2",
    "\0\1",
    "\1\0",
    "\2",
    "a",
    "a\0",
    "a\0b",
    "a\1",
    "ab",
]
LITERAL = ["\\u0000", "\\\0", "\\\\u0000", "\\\\\0\\u0001\1", '"\0"', "\0\0\0u0000", "\\\\\\\0"]
BEYOND = ["\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "\uffff", "\ue000"]
ALL = ODD + LITERAL + BEYOND


@pytest.fixture
def saver():
    with PostgresSaver(url(), schema=empty_schema()) as saver:
        yield saver


def put_with(saver, config, **said):
    made = checkpoint({"value": 1})
    return saver.put(config, made, metadata(**said), made["channel_versions"])


def test_ids_of_threads_namespaces_tasks_and_checkpoints(saver):
    for text in ALL:
        made = {**checkpoint({"value": text}), "id": f"1{text}"}
        at = place(f"t{text}", ns=text)
        config = saver.put(at, made, metadata(), made["channel_versions"])
        saver.put_writes(config, [("value", text)], f"task{text}", f"path{text}")
    for text in ALL:
        found = saver.get_tuple(place(f"t{text}", ns=text))
        assert found.config["configurable"]["checkpoint_id"] == f"1{text}"
        assert found.checkpoint["channel_values"]["value"] == text
        assert found.pending_writes == [(f"task{text}", "value", text)]
        assert saver.get_tuple(place(f"t{text}", f"1{text}", ns=text)).config == found.config
    listed = [one.config["configurable"]["checkpoint_id"] for one in saver.list(None)]
    assert listed == sorted((f"1{text}" for text in ALL), reverse=True)  # by code point
    assert [one.thread for one in saver.stats().by_thread] == sorted(f"t{text}" for text in ALL)
    assert saver.check().ok
    for text in ALL:
        saver.delete_thread(f"t{text}")
        assert saver.get_tuple(place(f"t{text}", ns=text)) is None


def test_a_thread_is_paged_through_in_the_order_of_its_ids(saver):
    ids = sorted(f"1{text}" for text in ALL)
    config = place("thread")
    for key in ids:
        made = {**checkpoint({"value": key}), "id": key}
        config = saver.put(config, made, metadata(), made["channel_versions"])
    for number, key in enumerate(ids):
        before = place("thread", key)
        found = [one.checkpoint["id"] for one in saver.list(place("thread"), before=before)]
        assert found == ids[:number][::-1]
        (one,) = saver.list(place("thread", key))
        assert one.checkpoint["id"] == key
        parent = one.parent_config and one.parent_config["configurable"]["checkpoint_id"]
        assert parent == (ids[number - 1] if number else None)


def kept(text):
    """A text of the metadata's first level as LangGraph hands it to savers."""
    return text.replace("\0", "")


def test_metadata_values_and_keys(saver):
    config = place()
    for number, text in enumerate(ALL):
        more = {f"key{text}": [text, {text: text}]}
        config = put_with(saver, config, said=text, number=number, **more)
    for text in ALL:
        same = [number for number, other in enumerate(ALL) if kept(other) == kept(text)]
        found = list(saver.list(None, filter={"said": kept(text)}))
        assert [one.metadata["number"] for one in found] == same[::-1]
        for one in found:
            other = ALL[one.metadata["number"]]
            assert one.metadata["said"] == kept(other)
            assert one.metadata[f"key{other}"] == [other, {other: other}]
    config = put_with(saver, config, **{f"flag{text}": "yes" for text in ALL})
    for text in ALL:
        (one,) = saver.list(None, filter={f"flag{text}": "yes"})
        assert one.config == config
        assert list(saver.list(None, filter={f"flag{text}": "no"})) == []


def test_a_backend_is_asked_for_metadata_with_nul():
    """LangGraph removes it from texts; direct callers of the backend do not."""
    backend = PostgresBackend(url(), schema=empty_schema())
    for number, text in enumerate(ALL):
        said = json.dumps({"run_id": text, "number": number, text: 1})
        row = records.checkpoint(number + 1, metadata=said)
        backend.commit(Batch(f"thread {number:02}", records.NOW, checkpoints=(row,)))
        thread = f"thread {number:02}"
        assert backend.fetch([FindThreads(None, 9, (text,))]) == [[thread]]
        for wanted in ({"run_id": text}, {text: 1, "run_id": text}):
            scan = ScanCheckpoints(None, None, None, None, wanted, None, 9)
            assert [found.row for found in backend.fetch([scan])[0]] == [row]
    (found,) = backend.fetch([FindThreads("thread 01", 99, tuple(ALL))])
    assert found == [f"thread {number:02}" for number in range(2, len(ALL))]
    backend.close()


def test_deleting_runs_of_such_ids(saver):
    runs = sorted({kept(text) for text in ALL})
    for number, text in enumerate(runs):
        config = put_with(saver, place(f"{number}\0"), run_id=text)
        put_with(saver, config, run_id=f"another {number}")
    left = 2 * len(runs)
    for number, text in enumerate(runs):
        saver.delete_for_runs([text, "\0", "no\0ne"])
        left -= 1
        assert len(list(saver.list(None))) == left
        (one,) = saver.list(place(f"{number}\0"))
        assert one.metadata["run_id"] == f"another {number}"


def test_copies_of_such_threads(saver):
    put(saver, place("a\0"), {"value": 1})
    saver.copy_thread("a\0", "a\1\1")
    saver.copy_thread("a\0", "a\1")
    saver.delete_thread("a\0")
    assert value_at(saver, place("a\1\1")) == 1
    assert value_at(saver, place("a\1")) == 1
    assert saver.get_tuple(place("a\0")) is None


ODD_VALUES = [float("nan"), float("inf"), 10**400, -0.0, 1e308, "\ud800", "x\udfff", 2**63, True]


@pytest.mark.parametrize("value", ODD_VALUES, ids=ascii)
def test_metadata_that_is_no_plain_json(saver, value):
    """It comes back as it was, and is found."""
    config = put_with(saver, place(), odd=value)
    found = saver.get_tuple(config).metadata["odd"]
    assert repr(found) == repr(value)
    if value == value:  # noqa: PLR0124 - not a NaN
        (one,) = saver.list(None, filter={"odd": value})
        assert one.config == config


def test_awaited(saver):
    async def use():
        made = checkpoint({"value": "\0"})
        at = place("\0", ns="\0")
        config = await saver.aput(at, made, metadata(**{"\0": "\1"}), made["channel_versions"])
        await saver.aput_writes(config, [("value", "\0")], "\0", "\0")
        (found,) = [one async for one in saver.alist(None, filter={"\0": "\1"})]
        assert found.config == config
        assert found.pending_writes == [("\0", "value", "\0")]
        await saver.adelete_for_runs(["\0", "\1"])
        await saver.aclose()

    asyncio.run(use())
