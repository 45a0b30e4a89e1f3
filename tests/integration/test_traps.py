"""Uses of values and calls by LangGraph and its users that storing changes must survive.

Each test is a promise of behaviour. Values that change are in `test_traps_of_values`, runs
that meet on one thread in `test_fences`.
"""

import asyncio
import inspect
import threading
from collections import deque
from typing import Any

import pytest
from kit.graphs import linear
from kit.places import THREAD, at
from kit.rows import checkpoint, metadata, place, put, value_at
from kit.runs import Plain
from langgraph.checkpoint.serde.types import ERROR

from threadkeep.errors import ClosedError

# -- the order of calls is not promised ----------------------------------------------


def test_children_may_come_before_their_parents(saver: Any) -> None:
    parent = checkpoint({"value": ["a"], "same": "s" * 2000})
    child = checkpoint({"value": ["a", "b"], "same": "s" * 2000}, value=2)
    saver.put(place(checkpoint=parent["id"]), child, metadata(1), {"value": 2})
    saver.put(place(), parent, metadata(), parent["channel_versions"])
    found, older = saver.list(place())
    assert found.checkpoint["channel_values"] == {"value": ["a", "b"], "same": "s" * 2000}
    assert older.checkpoint["channel_values"] == {"value": ["a"], "same": "s" * 2000}
    assert found.parent_config["configurable"]["checkpoint_id"] == parent["id"]


# -- writes --------------------------------------------------------------------------


def test_a_channel_counts_as_changed_by_its_version_alone(saver: Any) -> None:
    """A migrated channel changes its version without being told in `new_versions`."""
    made = checkpoint({"value": "old"})
    first = saver.put(place(), made, metadata(), made["channel_versions"])
    made = checkpoint({"value": "new", "other": 1}, value=2)
    saver.put(first, made, metadata(1), {})
    assert saver.get_tuple(place()).checkpoint["channel_values"] == {"value": "new", "other": 1}


def test_a_channel_left_out_keeps_its_value_while_its_version_stays(saver: Any) -> None:
    first = put(saver, place(), {"value": "kept", "other": 1})
    put(saver, first, {"other": 2}, value=1, other=2)
    assert saver.get_tuple(place()).checkpoint["channel_values"] == {"value": "kept", "other": 2}


def test_the_head_is_the_greatest_id_not_the_last_put(saver: Any) -> None:
    older, newer = checkpoint({"value": "older"}), checkpoint({"value": "newer"})
    for made in (newer, older):
        saver.put(place(), made, metadata(), made["channel_versions"])
    assert value_at(saver, place()) == "newer"
    assert [t.checkpoint["id"] for t in saver.list(place())] == [newer["id"], older["id"]]


def test_writes_may_be_a_deque_that_is_emptied_afterwards(saver: Any) -> None:
    config = put(saver, place(), {"value": 0})
    writes = deque([("value", 1), ("other", [2])])
    saver.put_writes(config, writes, "task")
    writes.clear()
    assert saver.get_tuple(config).pending_writes == [("task", "value", 1), ("task", "other", [2])]


class UnstorableError(Exception):
    """An error that holds what cannot be stored."""

    def __init__(self) -> None:
        super().__init__("with a lock")
        self.lock = threading.Lock()


ERRORS = [ValueError("bad"), UnstorableError(), asyncio.CancelledError("stopped"), "a text", None]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_errors_come_back_as_their_repr(saver: Any, error: Any) -> None:
    config = put(saver, place(), {"value": 0})
    saver.put_writes(config, [(ERROR, error)], "task")
    wanted = repr(error) if isinstance(error, BaseException) else error
    assert saver.get_tuple(config).pending_writes == [("task", ERROR, wanted)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_nodes_own_error_is_not_masked(saver: Any, durability: str) -> None:
    def bad(_: Any) -> Any:
        raise UnstorableError

    graph = linear(saver, Plain, bad=bad)
    with pytest.raises(UnstorableError):
        graph.invoke({"log": ["in"]}, at(), durability=durability)
    (task,) = graph.get_state(at()).tasks
    assert "UnstorableError" in str(task.error)


# -- the saver as LangGraph looks at it ----------------------------------------------


def test_put_writes_shows_its_task_path(saver: Any) -> None:
    clone = saver.with_allowlist({("some.module", "Name")})
    for method in (saver.put_writes, saver.aput_writes, clone.put_writes, clone.aput_writes):
        assert "task_path" in inspect.signature(method).parameters


def test_clones_with_an_allowlist_share_everything(saver: Any) -> None:
    clone = saver.with_allowlist({("some.module", "Name")})
    config = put(clone, place(), {"value": [1]})
    assert value_at(saver, config) == [1]
    put(saver, config, {"value": [1, 2]}, value=2)
    assert value_at(clone, place()) == [1, 2]
    clone.delete_thread(THREAD)
    assert saver.get_tuple(place()) is None
    saver.close()
    with pytest.raises(ClosedError):
        clone.get_tuple(place())
