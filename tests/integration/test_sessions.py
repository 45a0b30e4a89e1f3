"""Checkpoints of sessions: over every saver of ours, over LangGraph's, and over stores."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from inspect import isawaitable
from typing import Any

import pytest
from kit.backends import BACKENDS, open_backend
from kit.places import at
from kit.runs import story
from pydantic import BaseModel

import threadkeep
from threadkeep.errors import (
    BackendError,
    CheckpointNotFoundError,
    ClosedError,
    InvalidArgumentError,
    OpenError,
    ThreadDeletedError,
    UnserializableError,
)
from threadkeep.sessions import (
    CheckpointConfig,
    CheckpointManager,
    CheckpointStore,
    MemoryCheckpointStore,
    SQLiteCheckpointStore,
)

from .foreign import FOREIGN, foreign

UNLIMITED = CheckpointConfig(max_checkpoints=None, retention_days=None)
ABSENT = "1f1c0000-0000-6000-8000-000000000000"


class OwnStore:
    """A store as programs write it: dicts by id, and async methods."""

    def __init__(self) -> None:
        self.saved: dict[str, dict[str, Any]] = {}
        self.answer: Any = True
        self.is_closed = False

    async def save(self, checkpoint):
        self.saved[checkpoint["id"]] = {**checkpoint, "of its own": 1}
        return self.answer

    async def load(self, checkpoint_id):
        return self.saved.get(checkpoint_id)

    async def list_by_session(self, session_id):
        return [one for one in self.saved.values() if one["session_id"] == session_id]

    async def delete(self, checkpoint_id):
        return self.saved.pop(checkpoint_id, None) is not None

    async def get_latest(self, session_id):
        found = await self.list_by_session(session_id)
        return max(found, key=lambda one: one["created_at"], default=None)

    async def cleanup_old_checkpoints(self, session_id, max_count):
        found = await self.list_by_session(session_id)
        found.sort(key=lambda one: one["created_at"], reverse=True)
        for one in found[max_count:]:
            del self.saved[one["id"]]
        return len(found[max_count:])

    async def close(self):
        self.is_closed = True


class Caller:
    """A manager whose methods are called by one of the two APIs."""

    def __init__(self, manager: CheckpointManager, *, sync: bool) -> None:
        self.manager = manager
        self.sync = sync

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        found = getattr(self.manager, name if self.sync else f"a{name}")(*args, **options)
        return await found if isawaitable(found) else found


REMOVING = (*BACKENDS, "OwnStore", "SQLiteCheckpointStore")
BENEATH = (*REMOVING, *(f"LangGraph {name}" for name in FOREIGN))
SYNC = ("LangGraph sqlite", "LangGraph postgres")
ASYNC = ("OwnStore", "LangGraph aiosqlite", "LangGraph aiopostgres")


@pytest.fixture(params=[True, False], ids=["sync", "async"])
def sync(request):
    return request.param


@pytest.fixture
async def beneath(request, tmp_path, sync):
    """A saver or store, which the manager closes."""
    name = request.param
    if name in (ASYNC if sync else SYNC):
        pytest.skip("it has the other API alone")
    if name == "OwnStore":
        yield OwnStore()
    elif name == "SQLiteCheckpointStore":
        async with SQLiteCheckpointStore(tmp_path / "store.db") as store:
            yield store
    elif name.startswith("LangGraph "):
        async with foreign(name.removeprefix("LangGraph "), tmp_path) as saver:
            yield saver
    else:
        async with open_backend(name, tmp_path) as saver:
            yield saver


@pytest.fixture
def call(beneath, sync):
    return Caller(CheckpointManager(beneath, UNLIMITED), sync=sync)


on = pytest.mark.parametrize


@on("beneath", BENEATH, indirect=True)
async def test_checkpoints_are_listed_newest_first_by_session_and_workflow(call):
    ids = []
    for number in range(6):
        workflow = f"flow-{number % 2}"
        state = {"number": number, "log": [*range(number)]}
        ids.append(await call("create_checkpoint", "s", workflow, state, {"number": number}))
    await call("create_checkpoint", "other", "flow-0", {"number": 9})

    found = await call("list_checkpoints", "s")
    assert [one.id for one in found] == ids[::-1]
    assert [one.metadata for one in found] == [{"number": number} for number in range(5, -1, -1)]
    assert [one.state_data for one in found] == [
        {"number": number, "log": [*range(number)]} for number in range(5, -1, -1)
    ]
    assert {(one.session_id, one.workflow_id) for one in found} == {
        ("s", "flow-0"),
        ("s", "flow-1"),
    }
    assert datetime.now(UTC) - found[0].created_at < timedelta(minutes=1)

    found = await call("list_checkpoints", "s", workflow_id="flow-0")
    assert [one.id for one in found] == [ids[4], ids[2], ids[0]]
    found = await call("list_checkpoints", "s", workflow_id="flow-1", limit=2)
    assert [one.id for one in found] == [ids[5], ids[3]]
    assert [one.id for one in await call("list_checkpoints", "s", limit=1)] == ids[5:]

    assert (await call("get_latest_checkpoint", "s")).id == ids[5]
    assert (await call("get_latest_checkpoint", "s", workflow_id="flow-0")).id == ids[4]
    assert await call("get_latest_checkpoint", "s", workflow_id="flow-2") is None
    assert await call("get_latest_checkpoint", "nobody") is None
    assert await call("list_checkpoints", "nobody") == []


@on("beneath", BENEATH, indirect=True)
async def test_a_checkpoint_of_another_session_is_never_returned(call):
    own_id = await call("create_checkpoint", "s", "flow", {"a": 1})
    assert (await call("get_checkpoint", "s", own_id)).state_data == {"a": 1}
    assert await call("get_checkpoint", "other", own_id) is None
    assert await call("get_checkpoint", "s", ABSENT) is None
    for session, id in (("other", own_id), ("s", ABSENT)):
        with pytest.raises(CheckpointNotFoundError, match="no such checkpoint"):
            await call("restore_from_checkpoint", session, id)


@on("beneath", BENEATH, indirect=True)
async def test_an_id_that_is_saved_again_keeps_its_time(call):
    for own_id in ("mine", None):
        first = await call(
            "create_checkpoint", "s", "flow", {"a": [1]}, {"x": 1}, checkpoint_id=own_id
        )
        before = await call("get_checkpoint", "s", first)
        newer = await call("create_checkpoint", "s", "flow", {"a": [2]})
        again = await call("create_checkpoint", "s", "flow", {"a": [3]}, checkpoint_id=first)
        found = await call("get_checkpoint", "s", first)
        assert again == first == found.id == (own_id or first)
        assert (await call("get_checkpoint", "s", newer)).state_data == {"a": [2]}
        assert (found.state_data, found.metadata) == ({"a": [3]}, {})
        assert found.created_at == before.created_at <= before.updated_at < found.updated_at
        assert (await call("get_latest_checkpoint", "s")).id == newer
    last = await call("create_checkpoint", "s", "flow", {"a": [3, 4]})
    assert (await call("get_checkpoint", "s", last)).state_data == {"a": [3, 4]}
    assert (await call("get_checkpoint", "s", first)).state_data == {"a": [3]}
    assert len(await call("list_checkpoints", "s")) == 5
    with pytest.raises(InvalidArgumentError, match="has the id 'mine' already"):
        await call("create_checkpoint", "s", "another", {}, checkpoint_id="mine")


@on("beneath", REMOVING, indirect=True)
async def test_checkpoints_are_removed(call, beneath):
    ids = [await call("create_checkpoint", "s", f"flow-{n % 2}", {"n": n}) for n in range(8)]
    other = await call("create_checkpoint", "other", "flow-0", {"n": 9})
    assert await call("delete_checkpoint", "other", ids[7]) is False
    assert await call("delete_checkpoint", "s", ids[7]) is True
    assert await call("delete_checkpoint", "s", ids[7]) is False
    assert await call("cleanup_old_checkpoints", "s", 2, workflow_id="flow-0") == 2
    assert [one.id for one in await call("list_checkpoints", "s")] == [
        ids[n] for n in (6, 5, 4, 3, 1)
    ]
    assert await call("cleanup_old_checkpoints", "s", 2) == 3
    assert await call("cleanup_old_checkpoints", "s", 2) == 0
    assert await call("cleanup_old_checkpoints", "nobody", 0) == 0
    assert [one.state_data for one in await call("list_checkpoints", "s")] == [{"n": 6}, {"n": 5}]
    last = await call("create_checkpoint", "s", "flow-1", {"n": 10})
    assert (await call("get_checkpoint", "s", last)).state_data == {"n": 10}
    assert await call("cleanup_old_checkpoints", "s", 0) == 3
    assert await call("list_checkpoints", "s") == []
    assert (await call("get_latest_checkpoint", "other")).id == other
    if isinstance(beneath, threadkeep.Saver):
        assert beneath.check().ok


@on("beneath", ["LangGraph memory"], indirect=True)
async def test_a_saver_that_cannot_remove_says_so(call):
    own_id = await call("create_checkpoint", "s", "flow", {})
    for name, args in (("delete_checkpoint", own_id), ("cleanup_old_checkpoints", 0)):
        with pytest.raises(InvalidArgumentError, match="InMemorySaver cannot remove"):
            await call(name, "s", args)
    assert await call("get_checkpoint", "s", own_id) is not None


# -- states ----------------------------------------------------------------------------


@dataclass
class Data:
    number: int = 0
    items: list[Any] = field(default_factory=list)


class Model(BaseModel):
    data: Data


STATES = [
    {"z": 1, "a": [Data(1)], "m": {"deep": {"er": (1, 2)}}},
    {},
    {"__root__": 1, "b": 2},
    {1: "one", "two": 2},
    {f"key {number}": number for number in range(100)},
    OrderedDict(b=1, a=2),
    Data(3, [1, {"a": b"bytes"}]),
    Model(data=Data(1)),
    [1, (2, 3), {4}],
    "text",
    None,
]


@on("state", STATES, ids=lambda state: type(state).__name__)
@on("beneath", ["sqlite"], indirect=True)
async def test_the_object_itself_is_restored(call, state):
    before = dict(reversed(state.items())) if isinstance(state, dict) else {"before": 1}
    await call("create_checkpoint", "s", "flow", before)
    own_id = await call("create_checkpoint", "s", "flow", state)
    found = await call("restore_from_checkpoint", "s", own_id)
    assert found == state
    assert type(found) is type(state)
    assert found is not state or state in ("text", None)
    if isinstance(state, dict):
        assert [*found] == [*state]


@on("beneath", ["memory"], indirect=True)
async def test_a_state_is_restored_as_a_type(call):
    own_id = await call("create_checkpoint", "s", "flow", {"number": 1, "items": [2]})
    assert await call("restore_from_checkpoint", "s", own_id, Data) == Data(1, [2])
    with pytest.raises(InvalidArgumentError, match="is not a valid Model: data: Field required"):
        await call("restore_from_checkpoint", "s", own_id, Model)
    with pytest.raises(UnserializableError):
        await call("create_checkpoint", "s", "flow", {"open": (n for n in ())})
    assert len(await call("list_checkpoints", "s")) == 1


class Plain:
    """An object that no saver can store."""

    def __init__(self, number: int) -> None:
        self.number = number

    def to_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    @classmethod
    def from_dict(cls, values: dict[str, Any]):
        return cls(values["number"])


class OneWay:
    """An object whose class does not read its dict."""

    def to_dict(self) -> dict[str, Any]:
        return {"number": 8}


@dataclass
class Numbered:
    number: int


@on("beneath", ["memory", "LangGraph memory"], indirect=True)
async def test_an_object_is_stored_as_its_dict(call):
    own_id = await call("create_checkpoint", "s", "flow", Plain(7))
    assert await call("restore_from_checkpoint", "s", own_id) == {"number": 7}
    restored = await call("restore_from_checkpoint", "s", own_id, Plain)
    assert (type(restored), restored.number) == (Plain, 7)
    own_id = await call("create_checkpoint", "s", "flow", OneWay())
    assert await call("restore_from_checkpoint", "s", own_id) == {"number": 8}
    assert await call("restore_from_checkpoint", "s", own_id, Numbered) == Numbered(8)
    for state in (Plain, Plain(object())):
        with pytest.raises((UnserializableError, TypeError)):
            await call("create_checkpoint", "s", "flow", state)
    assert len(await call("list_checkpoints", "s")) == 2


def test_only_what_changed_is_stored(tmp_path):
    with CheckpointManager(threadkeep.SqliteSaver(tmp_path / "threads.db"), UNLIMITED) as manager:
        state = {"messages": [f"{n} " + "x" * 1000 for n in range(50)], "step": 0}
        for step in range(50):
            state["messages"].append(f"message {step}")
            state["step"] = step
            manager.create_checkpoint("s", "flow", state)
        found = manager._records.saver.stats()
        assert found.full_copy_bytes > 2_000_000
        assert found.by_thread[0].bytes < 20_000


# -- limits ----------------------------------------------------------------------------


@on("beneath", REMOVING, indirect=True)
async def test_old_checkpoints_are_removed_once_in_so_many_saves(beneath, sync):
    config = CheckpointConfig(max_checkpoints=10)
    call = Caller(CheckpointManager(beneath, config), sync=sync)
    every = Caller(CheckpointManager(beneath, UNLIMITED), sync=sync)
    records, cleanups = call.manager._records, []
    removing, records.remove = records.remove, lambda *args: cleanups.append(1) or removing(*args)
    for number in range(43):
        await call("create_checkpoint", "s", f"flow-{number % 2}", {"number": number})
        found = await call("list_checkpoints", "s")
        assert [one.state_data["number"] for one in found] == [*range(number, -1, -1)][:10]
    assert len(cleanups) == 43 // 10
    assert len(await every("list_checkpoints", "s")) == 13


async def test_limits_leave_what_they_have_to(ours, sync):
    call = Caller(CheckpointManager(ours, CheckpointConfig(max_checkpoints=2)), sync=sync)
    graph = story(ours)
    graph.invoke({"log": ["a"]}, at("s"))
    turns = len(list(graph.get_state_history(at("s"))))
    seldom = await call("create_checkpoint", "s", "seldom", {"n": 0})
    pinned = await call("create_checkpoint", "s", "flow", {"n": 1})
    ours.threads.pin("s", checkpoint_id=pinned, checkpoint_ns="flow")
    for number in range(20):
        await call("create_checkpoint", "s", "flow", {"n": number})
    assert (await call("get_latest_checkpoint", "s", workflow_id="seldom")).id == seldom
    assert (await call("get_checkpoint", "s", pinned)).state_data == {"n": 1}
    listed = await call("list_checkpoints", "s")
    assert [one.workflow_id for one in listed] == ["flow", "flow", "flow", "seldom"]
    assert listed[2].id == pinned
    assert len(list(graph.get_state_history(at("s")))) == turns  # a graph's are no session's
    assert await call("cleanup_old_checkpoints", "s", 0) == 4
    assert len(list(graph.get_state_history(at("s")))) == turns
    assert ours.check().ok


@on("beneath", BENEATH, indirect=True)
async def test_a_workflow_lists_what_the_limits_of_the_session_leave(beneath, sync):
    call = Caller(CheckpointManager(beneath, CheckpointConfig(max_checkpoints=10)), sync=sync)
    for number in range(19):
        workflow = "first" if number < 9 else "second"
        await call("create_checkpoint", "s", workflow, number, checkpoint_id=f"id-{number}")
    for workflow, left in ((None, [*range(18, 7, -1)]), ("first", [8])):
        found = await call("list_checkpoints", "s", workflow_id=workflow)
        assert [one.state_data for one in found] == left


async def test_retention_days(sync):
    store = MemoryCheckpointStore()
    call = Caller(
        CheckpointManager(store, CheckpointConfig(max_checkpoints=4, retention_days=30)), sync=sync
    )
    now = datetime.now(UTC)
    for days in (50, 40, 20):
        old = {"created_at": now - timedelta(days=days), "state_data": days}
        store.save({"session_id": "s", "workflow_id": "flow", **old})
    for days in (50, 40):
        old = {"created_at": now - timedelta(days=days), "state_data": days}
        store.save({"session_id": "idle", "workflow_id": "flow", **old})
    assert [one.state_data for one in await call("list_checkpoints", "s")] == [20]
    assert [one.state_data for one in await call("list_checkpoints", "idle")] == [40]
    assert len(store.list_by_session("s")) == 3
    await call("create_checkpoint", "s", "flow", 0)
    assert [one["state_data"] for one in store.list_by_session("s")] == [0, 20]


async def test_a_failure_to_remove_is_logged_and_the_save_stays(ours, sync, caplog, monkeypatch):
    call = Caller(CheckpointManager(ours, CheckpointConfig(max_checkpoints=1)), sync=sync)

    def fail(*_):
        raise OSError("The disk is on fire.")

    monkeypatch.setattr(call.manager._records, "places", fail)
    own_id = await call("create_checkpoint", "s", "flow", {})
    assert (await call("get_latest_checkpoint", "s")).id == own_id
    assert "were not removed" in caplog.text


async def test_a_config_that_is_not_enabled_saves_nothing(ours, sync):
    own_id = CheckpointManager(ours).create_checkpoint("s", "flow", {"a": 1})
    call = Caller(CheckpointManager(ours, CheckpointConfig(enabled=False)), sync=sync)
    assert await call("create_checkpoint", "s", "flow", {"a": 2}) is None
    assert [one.id for one in await call("list_checkpoints", "s")] == [own_id]
    assert await call("delete_checkpoint", "s", own_id) is True


# -- others at the same time -----------------------------------------------------------


async def test_a_session_that_was_deleted_is_refused_once(ours, sync):
    call = Caller(CheckpointManager(ours), sync=sync)
    await call("create_checkpoint", "s", "flow", {"a": 1})
    ours.delete_thread("s")
    with pytest.raises(ThreadDeletedError):
        await call("create_checkpoint", "s", "flow", {"a": 2})
    await call("create_checkpoint", "s", "flow", {"a": 3})
    assert [one.state_data for one in await call("list_checkpoints", "s")] == [{"a": 3}]


async def test_two_managers_of_one_workflow(tmp_path, sync):
    managers = [SQLiteCheckpointStore(tmp_path / "store.db") for _ in range(2)]
    calls = [Caller(CheckpointManager(one), sync=sync) for one in managers]
    for number in range(10):
        log = [{"number": n} for n in range(number)]
        await calls[number % 2]("create_checkpoint", "s", "flow", {"log": log})
    for call in calls:
        found = await call("list_checkpoints", "s")
        assert [len(one.state_data["log"]) for one in found] == [*range(9, -1, -1)]
        await call("close")


async def test_saves_of_one_workflow_at_once(ours):
    manager = CheckpointManager(ours)
    await asyncio.gather(
        *(manager.acreate_checkpoint("s", "flow", {"n": n, "log": [n] * n}) for n in range(20))
    )
    found = await manager.alist_checkpoints("s")
    assert sorted(one.state_data["n"] for one in found) == [*range(20)]
    assert all(
        one.state_data["log"] == [one.state_data["n"]] * len(one.state_data["log"]) for one in found
    )
    assert ours.check().ok


async def test_an_id_that_is_saved_twice_at_once_is_one_checkpoint(ours):
    manager = CheckpointManager(ours, CheckpointConfig(max_checkpoints=5))
    await asyncio.gather(
        *(manager.acreate_checkpoint("s", "flow", {"n": n}, checkpoint_id="x") for n in range(20))
    )
    (found,) = await manager.alist_checkpoints("s")
    assert found == await manager.aget_checkpoint("s", "x")
    assert await manager.adelete_checkpoint("s", "x")
    assert await manager.aget_checkpoint("s", "x") is None
    assert ours.check().ok


async def test_limits_hold_for_saves_at_once(ours):
    for _ in range(3):
        manager = CheckpointManager(ours, CheckpointConfig(max_checkpoints=5))
        saves = [manager.acreate_checkpoint("s", "flow", {"n": n}) for n in range(20)]
        await asyncio.gather(*saves)
    assert len(await CheckpointManager(ours, UNLIMITED).alist_checkpoints("s")) <= 25


def test_a_session_goes_on_in_another_process(tmp_path):
    for number in range(4):
        with CheckpointManager(
            config=CheckpointConfig(url=f"sqlite:///{tmp_path / 'threads.db'}", max_checkpoints=2)
        ) as manager:
            manager.create_checkpoint("s", "flow", {"n": number})
            assert manager.get_latest_checkpoint("s").state_data == {"n": number}
    with threadkeep.SqliteSaver(tmp_path / "threads.db") as saver:
        steps = [one.metadata["step"] for one in saver.list({"configurable": {"thread_id": "s"}})]
    assert steps == [4, 3]


# -- stores ----------------------------------------------------------------------------


def stores(tmp_path):
    return [SQLiteCheckpointStore(tmp_path / "store.db"), MemoryCheckpointStore()]


@on("number", [0, 1])
async def test_a_store_by_both_apis(number, tmp_path):
    store = stores(tmp_path)[number]
    assert isinstance(store, CheckpointStore)
    async with store:
        made = store.save({"session_id": "s", "workflow_id": "flow", "state_data": Data(1)})
        own = {"id": "own", "session_id": "t", "workflow_id": "flow", "state_data": 2}
        assert await store.asave(own) == "own"
        assert store.load(made)["state_data"] == Data(1)
        assert await store.aload("own", session_id="t") == store.load("own")
        assert store.load("own", session_id="s") is None
        assert await store.aload("absent") is None
        assert (await store.aget_latest("s"))["id"] == store.get_latest("s")["id"] == made
        assert store.get_latest("nobody") is None
        again = await store.asave({**store.load(made), "state_data": 3})
        assert again == made
        assert [one["state_data"] for one in await store.alist_by_session("s")] == [3]
        assert store.delete("own", session_id="s") is False
        assert await store.adelete("own") is True
        assert store.delete("own") is False
        assert store.cleanup_old_checkpoints("s", 1) == 0
        assert await store.acleanup_old_checkpoints("s", 0) == 1
        assert store.list_by_session("s") == []
    with pytest.raises(ClosedError):
        store.save({"session_id": "s", "workflow_id": "flow", "state_data": 1})


async def test_a_store_in_memory_is_cleared():
    with MemoryCheckpointStore() as store, CheckpointManager(checkpoint_store=store) as manager:
        for session in "st":
            manager.create_checkpoint(session, "flow", {"n": 1})
        store.clear()
        assert store.list_by_session("s") == store.list_by_session("t") == []
        made = manager.create_checkpoint("s", "flow", {"n": 2})
        assert [one["id"] for one in store.list_by_session("s")] == [made]
        await store.aclear()
        assert manager.get_latest_checkpoint("s") is None


def test_a_store_fails_loudly(tmp_path):
    with pytest.raises(OpenError):
        SQLiteCheckpointStore(tmp_path / "absent" / "store.db")
    with MemoryCheckpointStore() as store:
        with pytest.raises(InvalidArgumentError, match="state_data is missing"):
            store.save({"session_id": "s", "workflow_id": "flow"})
        with pytest.raises(UnserializableError):
            store.save({"session_id": "s", "workflow_id": "flow", "state_data": object()})
        with pytest.raises(InvalidArgumentError, match="max_count: -1"):
            store.cleanup_old_checkpoints("s", -1)


async def test_what_a_store_of_ones_own_does_wrong(sync):
    store = OwnStore()
    manager = CheckpointManager(store)
    with pytest.raises(InvalidArgumentError, match=r"OwnStore\.\w+ is async"):
        manager.create_checkpoint("s", "flow", {})
    store.answer = False
    with pytest.raises(BackendError, match=r"save returned False"):
        await manager.acreate_checkpoint("s", "flow", {})
    store.answer = None
    own_id = await manager.acreate_checkpoint("t", "flow", {})
    with pytest.raises(InvalidArgumentError, match="Another session"):
        await manager.acreate_checkpoint("s", "flow", {}, checkpoint_id=own_id)
    del store.saved[own_id]["workflow_id"]
    with pytest.raises(InvalidArgumentError, match="workflow_id is missing"):
        await manager.aget_checkpoint("t", own_id)
    with pytest.raises(InvalidArgumentError, match=r"OwnStore\.close is async"):
        manager.close()
    await manager.aclose()
    assert store.is_closed


# -- bad input, and the end ------------------------------------------------------------


@on(
    ("name", "args", "options", "named"),
    [
        ("create_checkpoint", (5, "flow", {}), {}, "session_id: 5"),
        ("create_checkpoint", ("", "flow", {}), {}, "session_id: ''"),
        ("create_checkpoint", ("s", None, {}), {}, "workflow_id: None"),
        ("create_checkpoint", ("s", "threadkeep$x", {}), {}, "workflow_id"),
        ("create_checkpoint", ("s", "flow", {}, ["a"]), {}, "metadata"),
        ("create_checkpoint", ("s", "flow", {}), {"checkpoint_id": 5}, "checkpoint_id: 5"),
        ("create_checkpoint", ("s", "fl\0w", {}), {}, "workflow_id"),
        ("get_checkpoint", ("s", "\ud800"), {}, "checkpoint_id"),
        ("list_checkpoints", ("s",), {"limit": -1}, "limit: -1"),
        ("list_checkpoints", ("s",), {"workflow_id": 5}, "workflow_id: 5"),
        ("get_latest_checkpoint", (None,), {}, "session_id: None"),
        ("restore_from_checkpoint", ("s", None), {}, "checkpoint_id: None"),
        ("delete_checkpoint", ("s", 5), {}, "checkpoint_id: 5"),
        ("cleanup_old_checkpoints", ("s", -1), {}, "max_count: -1"),
        ("cleanup_old_checkpoints", ("s", "5"), {}, "max_count: '5'"),
    ],
)
async def test_bad_arguments_are_named(name, args, options, named, sync):
    with CheckpointManager(threadkeep.MemorySaver()) as manager:
        with pytest.raises(InvalidArgumentError) as caught:
            await Caller(manager, sync=sync)(name, *args, **options)
        assert named in caught.value.message
        assert caught.value.hint


async def test_a_closed_manager(sync):
    call = Caller(CheckpointManager(threadkeep.MemorySaver()), sync=sync)
    await call("close")
    await call("close")
    with pytest.raises(ClosedError, match="manager is closed"):
        await call("create_checkpoint", "s", "flow", {})
    with pytest.raises(ClosedError):
        await call("get_latest_checkpoint", "s")


def test_what_a_manager_does_not_take():
    with pytest.raises(InvalidArgumentError, match="neither a LangGraph saver nor"):
        CheckpointManager({})
    with pytest.raises(InvalidArgumentError, match="Use a CheckpointConfig"):
        CheckpointManager(threadkeep.MemorySaver(), {"enabled": True})
    with pytest.raises(OpenError):
        CheckpointManager(config=CheckpointConfig(url="sqlite:////absent/folder/threads.db"))
