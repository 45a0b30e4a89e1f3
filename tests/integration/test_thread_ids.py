"""Threads are named by their ids, or by configs that have one; what names none is refused."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit.rows import place as at
from kit.rows import say
from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.errors import InvalidArgumentError, InvalidConfigError, ThreadkeepError
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.monitor import observe
from threadkeep.sessions import CheckpointManager
from threadkeep.streaming import StreamingCheckpointSaver

ANN = {"configurable": {"thread_id": "ann", "checkpoint_ns": ""}}
NO_IDS: list[Any] = [None, True, b"ann", {}, {"configurable": {}}, ["ann"], object()]


def calls(saver: Any, file: str) -> dict[str, Callable[[Any], Any]]:
    """All methods of a saver and its registry that name a thread, those that remove it last."""
    threads = saver.threads
    return {
        "get": threads.get,
        "create": lambda t: threads.create(t, exist_ok=True),
        "update": lambda t: threads.update(t, metadata={"a": 1}),
        "tag": lambda t: threads.tag(t, "x"),
        "untag": lambda t: threads.untag(t, "x"),
        "pin": threads.pin,
        "unpin": threads.unpin,
        "retain": lambda t: threads.retain(t, None),
        "branches": threads.branches,
        "branches_by_ns": threads.branches_by_ns,
        "diff": lambda t: threads.diff(t, None),
        "versions": lambda t: threads.versions(t, "messages"),
        "gc": lambda t: threads.gc(thread_ids=[t]),
        "tier": lambda t: threads.tier(thread_ids=[t], dry_run=True),
        "repair": lambda t: threads.repair([t], dry_run=True),
        "export_bundle": lambda t: threads.export_bundle([t], file),
        "fork": lambda t: threads.fork(t, new_thread_id=f"fork {t!r:.9}"),
        "archive": threads.archive,
        "restore": threads.restore,
        "offload": threads.offload,
        "erase": lambda t: threads.erase(t, dry_run=True),
        "partial": saver.partial,
        "discard_partial": saver.discard_partial,
        "clear_cache": saver.clear_cache,
        "delete_checkpoints": lambda t: saver.delete_checkpoints(t, ["none"]),
        "copy_thread": lambda t: saver.copy_thread(t, {"configurable": {"thread_id": "copy"}}),
        "prune": lambda t: saver.prune([t]),
        "delete_thread": saver.delete_thread,
    }


def outcome(call: Callable[[Any], Any], given: Any) -> Any:
    try:
        return type(call(given))
    except ThreadkeepError as error:
        return type(error)


def test_a_config_does_what_its_id_does(tmp_path: Path) -> None:
    """Each call in turn, so that some refuse: with the id and the config alike."""
    results = []
    for name, given in (("id", "ann"), ("config", ANN)):
        with SqliteSaver(":memory:", cold=(tmp_path / name).as_uri()) as saver:
            say(saver, "ann")
            each = calls(saver, str(tmp_path / f"{name}.tkb"))
            results.append({key: outcome(call, given) for key, call in each.items()})
            assert saver.get_tuple(ANN) is None
            assert saver.get_tuple(at("copy")) is not None
    assert results[0] == results[1]
    assert ThreadkeepError not in {base for one in results[1].values() for base in one.__bases__}


@pytest.mark.parametrize("given", NO_IDS, ids=lambda one: repr(one).partition(" at ")[0])
def test_what_names_no_thread_is_refused(given: Any, tmp_path: Path) -> None:
    with SqliteSaver(":memory:", cold=(tmp_path / "cold").as_uri()) as saver:
        say(saver, "ann")
        for name, call in calls(saver, str(tmp_path / "x.tkb")).items():
            if given is None and name in {"clear_cache", "erase"}:
                continue
            assert outcome(call, given) in {InvalidArgumentError, InvalidConfigError}, name
        assert saver.get_tuple(ANN) is not None


def test_a_list_is_needed_where_several_are_meant() -> None:
    saver = MemorySaver()
    for given in ("ann", ANN, None):
        with pytest.raises(InvalidArgumentError, match="a list, even for a single one"):
            saver.prune(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("thread", [7, uuid.UUID(int=7), "", "é"], ids=repr)
def test_ids_of_any_kind(thread: Any) -> None:
    saver = MemorySaver()
    for given in (thread, at(thread)):
        say(saver, thread)
        saver.delete_thread(given)
        assert saver.get_tuple(at(thread)) is None


IN_FRONT: dict[str, Callable[[Any], Any]] = {
    "observe": observe,
    "streaming": StreamingCheckpointSaver,
    "layered": lambda inner: LayeredCheckpointSaver(inner, summarizer=lambda *_: "short"),
}


@pytest.mark.parametrize("inner", [InMemorySaver, MemorySaver])
@pytest.mark.parametrize("kind", IN_FRONT)
def test_in_front_of_any_saver(kind: str, inner: Any) -> None:
    saver = IN_FRONT[kind](inner())
    for thread in ("ann", 7):
        say(saver, thread)
        saver.delete_thread(at(thread))
        assert saver.get_tuple(at(thread)) is None
        saver.delete_thread(at(thread))
    with pytest.raises(InvalidArgumentError):
        saver.delete_thread({"configurable": {}})
    with suppress(NotImplementedError):  # (as the saver inside)
        say(saver, "ann")
        saver.copy_thread(ANN, at("copy"))
        assert saver.get_tuple(at("copy")) is not None
        with pytest.raises(InvalidArgumentError, match="a list, even for a single one"):
            saver.prune("ann")
        saver.prune([ANN], strategy="delete")
        assert saver.get_tuple(ANN) is None


def test_a_session_is_a_thread() -> None:
    manager = CheckpointManager(MemorySaver())
    made = manager.create_checkpoint(ANN, "workflow", {"n": 1})  # type: ignore[arg-type]
    assert made is not None
    found = manager.get_latest_checkpoint("ann")
    assert found is not None
    assert found.session_id == "ann"
    assert manager.get_checkpoint(ANN, made) is not None  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        manager.list_checkpoints({"configurable": {}})  # type: ignore[arg-type]
