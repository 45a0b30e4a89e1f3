"""Uses of values and calls by LangGraph and its users that storing changes must survive.

Each test is a promise of behaviour. Values that change are in `test_traps_of_values`, runs
that meet on one thread in `test_fences`.
"""

import asyncio
import inspect
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.backends import open_backend
from kit.graphs import linear
from kit.places import THREAD, at
from kit.rows import checkpoint, metadata, place, put, value_at
from kit.runs import Gate, HeldBack, Plain, Run, story, told
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.types import ERROR
from langgraph.graph import MessagesState

from threadkeep.errors import ClosedError, UnserializableError

# -- objects that are lent out come back changed -------------------------------------


def chat(saver: Any, gate: Gate | None = None) -> Any:
    def reply(state: Any) -> Any:
        if gate is not None:
            gate.pass_through()
        count = len(state["messages"])
        return {"messages": [AIMessage(content=f"answer {count}", id=f"ai-{count}")]}

    return linear(saver, MessagesState, reply=reply)


def say(graph: Any, number: int) -> Any:
    message = HumanMessage(content=f"secret {number}", id=f"human-{number}")
    return graph.invoke({"messages": [message]}, at(), durability="sync")


def redact(state: Any) -> None:
    """Change the objects that a page returned, as a program may."""
    for message in state["messages"]:
        message.content = "***"
        message.additional_kwargs["redacted"] = True
    state["messages"].clear()


def contents(saver: Any) -> list[str]:
    return [m.content for m in value_at(saver, place(), "messages")]


READS: dict[str, Callable[[Any, Any], Any]] = {
    "get_state": lambda graph, _: graph.get_state(at()).values,
    "history": lambda graph, _: next(iter(graph.get_state_history(at()))).values,
    "get_tuple": lambda _, saver: saver.get_tuple(place()).checkpoint["channel_values"],
    "list": lambda _, saver: next(iter(saver.list(place()))).checkpoint["channel_values"],
}


@pytest.mark.parametrize("read", READS)
def test_a_reader_that_redacts_during_a_run_changes_nothing_stored(saver: Any, read: str) -> None:
    say(chat(saver), 0)
    gate = Gate()
    graph = chat(saver, gate)
    run = Run(say, graph, 1)
    gate.wait_until_reached()
    redact(READS[read](graph, saver))
    gate.open()
    result = [m.content for m in run.finish()["messages"]]
    assert result == ["secret 0", "answer 1", "secret 1", "answer 3"]
    assert contents(saver) == result


@pytest.mark.parametrize("read", READS)
def test_a_reader_that_redacts_between_runs_changes_nothing_stored(saver: Any, read: str) -> None:
    graph = chat(saver)
    for turn in range(3):
        redact(say(graph, turn))  # the run's own result
        redact(READS[read](graph, saver))
    assert contents(saver) == [x for n in range(3) for x in (f"secret {n}", f"answer {2 * n + 1}")]


# -- the order of calls is not promised ----------------------------------------------


def test_writes_may_come_before_their_checkpoint(saver: Any) -> None:
    made = checkpoint({"value": 1})
    saver.put_writes(place(checkpoint=made["id"]), [("value", 2)], "task")
    assert saver.get_tuple(place()) is None
    assert saver.get_tuple(place(checkpoint=made["id"])) is None
    assert list(saver.list(None)) == list(saver.list(place())) == []
    saver.put(place(), made, metadata(), made["channel_versions"])
    assert saver.get_tuple(place()).pending_writes == [("task", "value", 2)]


def test_children_may_come_before_their_parents(saver: Any) -> None:
    parent = checkpoint({"value": ["a"], "same": "s" * 2000})
    child = checkpoint({"value": ["a", "b"], "same": "s" * 2000}, value=2)
    saver.put(place(checkpoint=parent["id"]), child, metadata(1), {"value": 2})
    saver.put(place(), parent, metadata(), parent["channel_versions"])
    found, older = saver.list(place())
    assert found.checkpoint["channel_values"] == {"value": ["a", "b"], "same": "s" * 2000}
    assert older.checkpoint["channel_values"] == {"value": ["a"], "same": "s" * 2000}
    assert found.parent_config["configurable"]["checkpoint_id"] == parent["id"]


def test_a_parent_that_never_comes_is_no_hindrance(saver: Any) -> None:
    config = put(saver, place(checkpoint="elsewhere"), {"value": ["a"]})
    found = saver.get_tuple(config)
    assert found.checkpoint["channel_values"] == {"value": ["a"]}
    assert found.parent_config["configurable"]["checkpoint_id"] == "elsewhere"


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


def test_a_run_goes_on_although_its_parent_was_pruned(saver: Any) -> None:
    graph = story(saver)
    graph.invoke({"log": ["base"]}, at())
    gate = Gate()
    run = Run(story(HeldBack(saver, gate)).invoke, {"log": ["slow"]}, at(), durability="sync")
    gate.wait_until_reached()
    graph.update_state(at(), {"log": ["updated"]})
    saver.prune([THREAD])
    gate.open()
    assert run.finish()["log"] == told("base", "slow")
    assert graph.get_state(at()).values["log"] == told("base", "slow")


def test_the_head_is_the_greatest_id_not_the_last_put(saver: Any) -> None:
    older, newer = checkpoint({"value": "older"}), checkpoint({"value": "newer"})
    for made in (newer, older):
        saver.put(place(), made, metadata(), made["channel_versions"])
    assert value_at(saver, place()) == "newer"
    assert [t.checkpoint["id"] for t in saver.list(place())] == [newer["id"], older["id"]]


# -- writes --------------------------------------------------------------------------


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


def test_tasks_that_write_at_once_from_many_threads(saver: Any) -> None:
    """Those that fail leave nothing, the others everything, in the order of their paths."""
    config = put(saver, place(), {"value": []})
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        if number < 8:
            start.wait()
        broken = threading.Lock() if number % 7 == 3 else None
        try:
            value = {"from": number, "text": "t" * 90, "broken": broken}
            saver.put_writes(config, [("value", [value])], f"task {number}", f"{number:04}")
        except UnserializableError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(write, range(40)))
    good = [n for n in range(40) if n % 7 != 3]
    assert [n for n, ok in enumerate(done) if ok] == good
    writes = saver.get_tuple(config).pending_writes
    assert [w[2][0]["from"] for w in writes] == good
    values = [item for w in writes for item in w[2]]
    put(saver, config, {"value": values}, value=2)
    assert value_at(saver, place()) == values
    assert saver.check().ok


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


def test_what_the_human_says_is_stored_once(tmp_path: Any) -> None:
    """LangGraph stores it in `__start__`, in the first task's write and in `messages`."""
    text = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789 ", k=400_000))
    with open_backend("sqlite", tmp_path) as saver:
        graph = chat(saver)
        say(graph, 0)
        before = saver.stats().bytes_on_disk
        graph.invoke({"messages": [HumanMessage(content=text, id="long")]}, at())
        assert saver.stats().bytes_on_disk - before < 1.5 * len(text)
        assert contents(saver)[-2] == text
