"""Automatic saves: by steps, events and changes; decorated loops; many sessions at once."""

import asyncio
import gc
import sys
import threading
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import pytest
from kit.selection import some

import threadkeep
from threadkeep.errors import BackendError, InvalidArgumentError
from threadkeep.sessions import AutoSaver, CheckpointConfig, CheckpointManager, checkpointed

from .test_sessions import Data


@pytest.fixture(params=[True, False], ids=["sync", "async"])
def call(request):
    async def call(session: AutoSaver, name: str, *args: Any, **options: Any) -> Any:
        found = getattr(session, name if request.param else f"a{name}")(*args, **options)
        return await found if isawaitable(found) else found

    return call


def session(**values: Any) -> AutoSaver:
    manager = CheckpointManager(threadkeep.MemorySaver(), CheckpointConfig(**values))
    return AutoSaver(manager, "s", "flow")


@dataclass
class Unpicklable:
    """Stored by threadkeep as its fields."""

    number: int = 0

    def __getstate__(self):
        raise TypeError("It cannot be pickled.")


def saved(session: AutoSaver) -> list[Any]:
    """Each checkpoint's step, event and state, oldest first."""
    found = session.manager.list_checkpoints("s", workflow_id="flow")[::-1]
    return [(one.metadata["step"], one.metadata["event"], one.state_data) for one in found]


async def test_by_steps(call):
    one = session(save_interval=3, trigger_conditions=[])
    ids = [await call(one, "step", {"n": number}) for number in range(8)]
    assert [number for number, id in enumerate(ids) if id is not None] == [2, 5]
    assert saved(one) == [(3, "interval", {"n": 2}), (6, "interval", {"n": 5})]
    assert one.steps == 8


async def test_by_events(call):
    one = session(save_interval=3, trigger_conditions=["tool_call", "paid"], events=["paid", "x"])
    for number, event in enumerate(["message", "tool_call", None, "paid", None, "x", None, None]):
        await call(one, "step", number, event, {"extra": 1})
    # (the interval restarts with each save)
    assert saved(one) == [(2, "tool_call", 1), (4, "paid", 3), (7, "interval", 6)]
    with pytest.raises(InvalidArgumentError, match="event: 'tool_cal'") as caught:
        await call(one, "step", 9, "tool_cal")
    assert "paid" in caught.value.hint
    assert one.steps == 8


async def test_by_changes(call):
    one = session(save_interval=100)
    state = {"log": [Data(1)], "n": 1}
    await call(one, "step", state)
    await call(one, "step", state)
    await call(one, "step", {"log": [Data(1)], "n": 1})
    state["log"][0].items.append("in place")
    await call(one, "step", state)
    await call(one, "step", state, "tool_call")
    await call(one, "step", state)
    assert [(step, event) for step, event, _ in saved(one)] == [
        *((1, "state_change"), (4, "state_change"), (5, "tool_call"))
    ]
    assert saved(one)[0][2] == {"log": [Data(1)], "n": 1}


async def test_a_state_that_cannot_be_compared_counts_as_changed(call):
    state = Unpicklable()
    one = session(save_interval=100)
    for _ in range(2):
        await call(one, "step", state)
    assert len(one.manager.list_checkpoints("s")) == 2


async def test_when_asked(call):
    one = session(auto_save=False, save_interval=1)
    assert await call(one, "step", {"n": 1}, "tool_call") is None
    assert await call(one, "restore") is None
    own_id = await call(one, "save", {"n": 2}, {"why": "asked"})
    assert saved(one) == [(1, "manual", {"n": 2})]
    assert one.manager.get_checkpoint("s", own_id).metadata["why"] == "asked"
    assert await call(one, "restore") == {"n": 2}
    later = AutoSaver(one.manager, "s", "flow")
    assert await call(later, "restore", dict[str, str | int]) == {"n": 2}
    assert later.steps == 1
    off = session(enabled=False)
    assert await call(off, "step", {}) is await call(off, "save", {}) is None
    assert saved(off) == []


async def test_what_fails_is_tried_again_at_the_next_step(call, monkeypatch):
    one = session(save_interval=2, trigger_conditions=[])
    state = {"n": 0}
    await call(one, "step", state)

    def fail(*_):
        raise BackendError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(one.manager._records, "save", fail)
        with pytest.raises(BackendError):
            await call(one, "step", state)
    assert await call(one, "step", state) is not None
    assert saved(one) == [(3, "interval", {"n": 0})]


async def test_the_last_step_of_a_loop(call):
    one = session(save_interval=4, trigger_conditions=[])
    for number in range(6):
        await call(one, "step", number)
    await call(one, "finish", 5)
    await call(one, "finish", 5)
    assert saved(one) == [(4, "interval", 3), (6, "end", 5)]


@pytest.mark.parametrize("values", [(5, "flow"), ("s", None), ("s", "threadkeep$x"), ("", "flow")])
def test_bad_ids(values):
    with pytest.raises(InvalidArgumentError, match=r"session_id|workflow_id"):
        AutoSaver(CheckpointManager(threadkeep.MemorySaver()), *values)


def test_what_is_no_manager_or_session():
    with pytest.raises(InvalidArgumentError, match=r"manager.*\n.*CheckpointManager\(saver\)"):
        AutoSaver(threadkeep.MemorySaver(), "s", "flow")
    with pytest.raises(InvalidArgumentError, match="session"):
        checkpointed(len)


# -- decorated -------------------------------------------------------------------------


async def test_decorated_functions_and_loops():
    steps = {"save_interval": 2, "trigger_conditions": ["message"]}

    one = session(**steps)
    double = checkpointed(one)(lambda number: number * 2)
    assert [double(number) for number in range(3)] == [0, 2, 4]
    assert saved(one) == [(2, "interval", 2)]

    one = session(**steps)

    @checkpointed(one, "message")
    async def triple(number):
        return number * 3

    assert [await triple(number) for number in range(2)] == [0, 3]
    assert saved(one) == [(1, "message", 0), (2, "message", 3)]

    one = session(**steps)

    @checkpointed(one)
    def count(most):
        """Count."""
        for number in range(most):
            yield [number]

    assert count.__doc__ == "Count."
    assert [*count(3)] == [[0], [1], [2]]
    assert saved(one) == [(2, "interval", [1]), (3, "end", [2])]
    assert [*count(0)] == []
    assert len(saved(one)) == 2

    one = session(**steps)

    @checkpointed(one)
    async def acount(most):
        for number in range(most):
            yield number

    assert [number async for number in acount(3)] == [0, 1, 2]
    assert saved(one) == [(2, "interval", 1), (3, "end", 2)]


async def test_a_loop_that_is_left_saves_its_last_state():
    ended = []
    one = session(save_interval=100, trigger_conditions=[])

    @checkpointed(one)
    def count():
        try:
            yield 0
            yield 1
            raise BackendError("The loop fails.")
        finally:
            ended.append(len(saved(one)))

    for number in count():
        if number == 1:
            break
    assert (saved(one), ended) == ([(2, "end", 1)], [1])
    with pytest.raises(BackendError):
        list(count())
    assert len(saved(one)) == 1

    other = session(save_interval=100, trigger_conditions=[])

    @checkpointed(other)
    async def acount():
        try:
            yield 0
            yield 1
        finally:
            ended.append(len(saved(other)))

    async with aclosing(acount()) as numbers:
        async for _ in numbers:
            break
    assert (saved(other), ended[2:]) == ([(1, "end", 0)], [1])


async def test_a_state_that_was_restored_is_not_saved_again(call):
    first = session(trigger_conditions=["state_change"])
    await call(first, "step", {"n": [1]}, None, {"step": "of the user's own"})
    again = AutoSaver(first.manager, first.session_id, first.workflow_id)
    state = await call(again, "restore")
    assert again.steps == 1
    assert await call(again, "step", state) is None
    state["n"].append(2)
    assert await call(again, "step", state) is not None


# -- a service -------------------------------------------------------------------------


async def test_a_service_of_many_sessions(tmp_path):
    count = some(200, 1000)
    config = CheckpointConfig(save_interval=2, trigger_conditions=["tool_call"])
    saver = threadkeep.SqliteSaver(tmp_path / "threads.db", synchronous="normal")
    threads = threading.active_count()

    async def serve(name: str) -> None:
        session = AutoSaver(manager, name, "chat")
        state = {"messages": [], "name": name}
        for step in range(6):
            state["messages"].append({"role": "user", "text": f"{name} {step}"})
            await session.astep(state, "tool_call" if step == 2 else None)

    async with CheckpointManager(saver, config) as manager:
        await asyncio.gather(*(serve(f"session-{number}") for number in range(count)))
        for number in range(0, count, 97):
            found = await manager.alist_checkpoints(f"session-{number}")
            assert [len(one.state_data["messages"]) for one in found] == [5, 3, 2]
            assert found[0].state_data["name"] == f"session-{number}"
        assert len(asyncio.all_tasks()) == 1
        gc.collect()
        assert [one for one in gc.get_objects() if type(one) is AutoSaver] == []
        remembered = manager._records._remembered._values
        assert len(remembered._entries) == 2 * count  # a head and a number each; at most 20,000
        held = sum(map(sys.getsizeof, remembered._entries.values()))
        assert held < 2 * count * 100
    assert threading.active_count() < threads + 10  # workers that all sessions share
