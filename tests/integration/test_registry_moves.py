"""A thread's entry moves with the thread."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kit.places import at
from langgraph.checkpoint.memory import InMemorySaver

import threadkeep

from .test_threads_forks import HELLO, QUESTION, _chat


def _filled(saver: Any) -> Any:
    graph = _chat(saver)
    graph.invoke(QUESTION, at("one", user_id="u1"))
    graph.invoke(HELLO, at("two"))
    saver.threads.tag("one", "vip")
    saver.threads.pin("one")
    saver.threads.update("one", ttl=60)
    saver.threads.create("three", tags=["new"])
    return graph


@pytest.fixture
def other() -> Any:
    with threadkeep.MemorySaver() as saver:
        yield saver


def test_with_a_bundle(saver: Any, other: Any, tmp_path: Path) -> None:
    _filled(saver)
    saver.threads.export_bundle(["one", "two"], tmp_path / "some.tkb")
    other.threads.import_bundle(tmp_path / "some.tkb")
    for name in ("one", "two"):
        assert other.threads.get(name) == saver.threads.get(name)
    saver.threads.export_bundle(["one"], tmp_path / "one.tkb")
    other.threads.import_bundle(tmp_path / "one.tkb", "renamed")
    assert other.threads.get("renamed").tags == ("vip",)
    assert [t.id for t in other.threads.search(metadata={"user_id": "u1"}).threads]


def test_a_fork_takes_its_own_along(saver: Any, other: Any, tmp_path: Path) -> None:
    graph = _filled(saver)
    fork = saver.threads.fork("two").id
    graph.invoke({"said": ["secret" * 99]}, at("two"))
    saver.threads.export_bundle([fork], tmp_path / "fork.tkb")
    other.threads.import_bundle(tmp_path / "fork.tkb")
    assert other.threads.get(fork).forked_from == saver.threads.get(fork).forked_from
    assert other.check().ok
    values = _chat(other).get_state(at(fork)).values
    assert values == graph.get_state(at(fork)).values
    held = other.threads.get(fork).bytes
    assert held < saver.threads.get("two").bytes


def test_with_a_sync(saver: Any, other: Any) -> None:
    graph = _filled(saver)
    saver.threads.mirror(other)
    for name in ("one", "two"):
        assert other.threads.get(name) == saver.threads.get(name)
    saver.threads.tag("two", "late")
    graph.invoke(HELLO, at("one"))
    synced = saver.threads.mirror(other)
    assert sorted(synced.extended) == ["one", "two"]
    assert other.threads.get("two").tags == ("late",)
    assert other.threads.get("one").state == "active"
    assert other.threads.get("one").bytes == saver.threads.get("one").bytes
    assert saver.threads.mirror(other).unchanged == 3
    other.threads.tag("one", "theirs")
    assert saver.threads.mirror(other).unchanged == 3
    assert set(other.threads.get("one").tags) == {"vip", "theirs"}


def test_adopted_threads_are_as_old_as_they_are(saver: Any) -> None:
    source = InMemorySaver()
    before = datetime.now(UTC)
    _chat(source).invoke(QUESTION, at("one", user_id="u1"))
    after = datetime.now(UTC)
    saver.threads.adopt(source)
    found = saver.threads.get("one")
    assert (found.state, found.status) == ("active", "waiting")
    assert found.metadata == {"user_id": "u1"}
    assert before <= found.created_at <= found.updated_at <= after
