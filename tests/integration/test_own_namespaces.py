"""Data beside a thread's checkpoints, in threadkeep's own namespaces."""

import random
from typing import Any

import pytest
from kit.places import at
from kit.runs import story
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep import Retention
from threadkeep._core.engine.model import OWN_NS
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads.repair.check import CheckReport

BESIDE = f"{OWN_NS}test"


def _put(saver: Any, ns: str, text: str, parents: dict[str, str] | None = None) -> str:
    config = {"configurable": {"thread_id": "thread", "checkpoint_ns": ns}}
    checkpoint = {**empty_checkpoint(), "channel_values": {"text": text}}
    checkpoint["channel_versions"] = {"text": 1}
    metadata = {"source": "update", "step": 1, "parents": parents or {}}
    return saver.put(config, checkpoint, metadata, {"text": 1})["configurable"]["checkpoint_id"]


def _texts(saver: Any, thread: str = "thread", **place: str) -> list[str]:
    found = saver.list({"configurable": {"thread_id": thread, **place}})
    return [one.checkpoint["channel_values"]["text"] for one in found]


def test_they_are_listed_only_by_name(saver: Any) -> None:
    root = _put(saver, "", "root")
    for number in range(3):
        _put(saver, BESIDE, f"beside {number}")
    assert _texts(saver) == ["root"]
    config = {"configurable": {"thread_id": "thread"}}
    assert len(list(saver.list(config, limit=1))) == 1
    assert [one.config["configurable"]["checkpoint_id"] for one in saver.list(None)] == [root]
    assert _texts(saver, checkpoint_ns=BESIDE) == ["beside 2", "beside 1", "beside 0"]


def test_no_policy_removes_them(saver: Any) -> None:
    for number in range(4):
        _put(saver, "", f"root {number}")
        _put(saver, BESIDE, f"beside {number}")
    saver.threads.gc(Retention(keep_last=1))
    saver.prune(["thread"])
    saver.delete_for_runs(["run"])
    assert _texts(saver) == ["root 3"]
    assert len(_texts(saver, checkpoint_ns=BESIDE)) == 4
    saver.threads.gc(Retention(max_bytes=1))
    assert len(_texts(saver, checkpoint_ns=BESIDE)) == 4
    assert saver.check().ok


def test_they_go_where_their_thread_goes(saver: Any) -> None:
    first = _put(saver, "", "root")
    _put(saver, BESIDE, "beside", {"": first})
    _put(saver, BESIDE, "later", {"": "2f1c0000-0000-6000-8000-000000000000"})
    saver.copy_thread("thread", "copy")
    saver.threads.fork("thread", first, "fork")
    assert _texts(saver, "copy", checkpoint_ns=BESIDE) == ["later", "beside"]
    assert _texts(saver, "fork", checkpoint_ns=BESIDE) == ["beside"]
    saver.delete_thread("thread")
    assert _texts(saver, checkpoint_ns=BESIDE) == []


async def test_single_checkpoints_are_deleted(saver: Any) -> None:
    ids = [_put(saver, BESIDE, f"{number} " + "x" * 5000) for number in range(4)]
    root = _put(saver, "", "root")
    assert saver.delete_checkpoints("thread", [ids[0], ids[2], root], BESIDE) == 2
    assert await saver.adelete_checkpoints("thread", [ids[0], "absent"], BESIDE) == 0
    assert await saver.adelete_checkpoints("absent", ids) == 0
    assert [text[0] for text in _texts(saver, checkpoint_ns=BESIDE)] == ["3", "1"]
    assert saver.delete_checkpoints("thread", [ids[1], root], None) == 1
    assert saver.get_tuple({"configurable": {"thread_id": "thread"}}) is None
    assert saver.check().ok
    segments = saver.stats().by_thread[0]
    assert segments.unreferenced == 0


def test_a_thread_goes_on_where_checkpoints_before_its_head_were_deleted(saver: Any) -> None:
    graph = story(saver)
    graph.invoke({"log": ["a"]}, at("thread"))
    ids = [one.config["configurable"]["checkpoint_id"] for one in saver.list(at("thread"))]
    assert saver.delete_checkpoints("thread", ids[1:]) == len(ids) - 1
    graph.invoke({"log": ["b"]}, at("thread"))
    assert graph.get_state(at("thread")).values["log"][0] == "a"
    assert saver.check().ok


def test_rows_go_without_a_sweep(saver: Any) -> None:
    texts = [f"{number} {random.Random(number).randbytes(2500).hex()}" for number in range(4)]
    ids = [_put(saver, BESIDE, text) for text in texts]
    before = saver.threads.get("thread").bytes
    assert saver.delete_checkpoints("thread", [*ids[:3], "absent"], BESIDE, sweep=False) == 3
    assert [text[0] for text in _texts(saver, checkpoint_ns=BESIDE)] == ["3"]
    assert saver.threads.get("thread").bytes < before
    assert saver.check() == CheckReport(1, (), ())  # (a note: the registry counts other bytes)
    saver.prune(["thread"])
    assert saver.threads.get("thread").bytes < 5000
    with pytest.raises(InvalidArgumentError):
        saver.delete_checkpoints("thread", ids, sweep=False)
