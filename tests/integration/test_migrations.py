"""Graphs whose classes and channels changed since their threads were stored."""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from kit.engine import Chain
from kit.generations import release, withdraw
from kit.graphs import linear
from kit.stores import DIMS, embed
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Send, interrupt

from threadkeep import (
    KeyRing,
    LayeredCheckpointSaver,
    Layers,
    Migrations,
    open_all,
    open_saver,
    open_store,
)
from threadkeep.errors import (
    InvalidArgumentError,
    NewerShapeError,
    StateMigrationError,
    UnknownTypeError,
)
from threadkeep.sessions import CheckpointManager
from threadkeep.threads.diff import plain

CONFIG = {"configurable": {"thread_id": "1"}}
ORDERS = """
@dataclass
class Order:
    name: str
    cents: int
"""
NEW_ORDERS = """
@dataclass
class Order:
    name: str
    euros: float
"""


class State(TypedDict, total=False):
    orders: Annotated[list, operator.add]
    last: Any
    answer: Any


def to_euros(fields):
    return {"name": fields["name"], "euros": fields["cents"] / 100}


def euros() -> Migrations:
    migrations = Migrations()
    migrations.type("shop.Order", 2)(to_euros)
    return migrations


@pytest.fixture(params=["memory", "sqlite"])
def opened(request, tmp_path):
    """A function that opens the test's store as another process would."""
    name = request.param
    first = open_saver("memory://") if name == "memory" else None
    if first is not None:
        first.backend.close = lambda: None  # (closing it would remove its rows)

    def _open(**options):
        if first is None:
            return open_saver(f"sqlite:///{tmp_path}/threads.db", **options)
        return type(first)(first.backend, **options)

    return _open


def orders_graph(saver, order):
    """A graph that appends an order, keeps the last, and waits."""

    def add(state):
        new = order(f"order {len(state.get('orders', []))}")
        return {"orders": [new], "last": new}

    def ask(state):
        return {"answer": interrupt({"order": state["last"]})}

    return linear(saver, State, add=add, ask=ask)


def run_old(monkeypatch, saver):
    shop = release(monkeypatch, ORDERS)
    graph = orders_graph(saver, lambda name: shop.Order(name, 250))
    graph.invoke({"orders": [shop.Order("first", 100)]}, CONFIG)
    return shop


def test_values_writes_and_interrupts_are_read_in_the_new_shape(opened, monkeypatch):
    with opened() as saver:
        run_old(monkeypatch, saver)
    shop = release(monkeypatch, NEW_ORDERS)
    with opened(migrations=euros()) as saver:
        graph = orders_graph(saver, lambda name: shop.Order(name, 7.0))
        state = graph.get_state(CONFIG)
        orders = [shop.Order("first", 1.0), shop.Order("order 1", 2.5)]
        assert state.values["orders"] == orders
        assert state.interrupts[0].value == {"order": orders[1]}
        history = [each.values.get("orders") for each in graph.get_state_history(CONFIG)]
        assert history[:2] == [orders, orders[:1]]
        lazy = next(iter(saver.list(CONFIG, limit=1, values="lazy")))
        assert lazy.checkpoint["channel_values"]["last"] == orders[1]
        part = saver.get_tuple(CONFIG, channels=["last"])
        assert part.checkpoint["channel_values"] == {"last": orders[1]}
        graph.invoke(Command(resume=shop.Order("answer", 9.0)), CONFIG)
        graph.invoke({"orders": [shop.Order("more", 3.0)]}, CONFIG)
        after = graph.get_state(CONFIG).values
        names = ["first", "order 1", "more", "order 3"]
        assert [order.name for order in after["orders"]] == names
        assert after["last"] == shop.Order("order 3", 7.0)
        diff = saver.threads.diff("1", state.config["configurable"]["checkpoint_id"])
        assert {"orders", "last"} <= diff.channels.keys()
    with opened(migrations=euros()) as saver:
        assert orders_graph(saver, None).get_state(CONFIG).values == after


def test_an_older_program_is_refused_with_the_place(opened, monkeypatch):
    with opened() as saver:
        run_old(monkeypatch, saver)
    shop = release(monkeypatch, NEW_ORDERS)
    with opened(migrations=euros()) as saver:
        graph = orders_graph(saver, lambda name: shop.Order(name, 7.0))
        graph.invoke(Command(resume=1), CONFIG)
        before = graph.get_state(CONFIG).config["configurable"]["checkpoint_id"]
        graph.invoke({"orders": [shop.Order("more", 3.0)]}, CONFIG)
    release(monkeypatch, ORDERS)
    with opened() as saver:
        with pytest.raises(NewerShapeError, match=r"shape 2 of shop\.Order.*knows shape 1") as info:
            saver.get_tuple(CONFIG)
        error = info.value
        assert (error.thread, error.channel) == ("1", "orders")
        assert error.checkpoint
        assert "migrations=" in error.hint
        old = {"configurable": {"thread_id": "1", "checkpoint_id": before}}
        assert saver.get_tuple(old).checkpoint["channel_values"]["last"].cents == 250
        raw = saver.raw(CONFIG).checkpoint["channel_values"]
        assert plain(raw["last"]) == {
            "__class__": "shop.Order",
            "__shape__": 2,
            "name": "order 3",
            "euros": 7.0,
        }
        assert plain(raw["orders"][0])["__class__"] == "shop.Order"


@pytest.mark.parametrize("why", ["gone", "raises", "does not fit"])
def test_values_that_cannot_be_loaded_are_named_and_read_raw(opened, monkeypatch, why):
    with opened() as saver:
        run_old(monkeypatch, saver)
    migrations, error = None, UnknownTypeError
    if why == "gone":
        withdraw(monkeypatch)
    else:
        release(monkeypatch, NEW_ORDERS)
        migrations, error = Migrations(), StateMigrationError
        function = (lambda fields: 1 / 0) if why == "raises" else (lambda fields: {"name": "a"})
        migrations.type("shop.Order", 2)(function)
    with opened(migrations=migrations) as saver:
        with pytest.raises(error) as info:
            saver.get_tuple(CONFIG)
        assert (info.value.thread, info.value.channel) == ("1", "orders")
        assert info.value.checkpoint
        raw = saver.raw(CONFIG)
        shown = plain(raw.checkpoint["channel_values"])
        order = {"__class__": "shop.Order", "name": "order 1", "cents": 250}
        assert shown["last"] == order
        assert shown["orders"][1] == order
        (write,) = [value for _, channel, value in raw.pending_writes if "interrupt" in channel]
        assert plain(write[0].value) == {"order": order}
        assert raw.metadata["step"] == 1


def test_sends_and_messages_are_migrated(opened, monkeypatch):
    shop = release(monkeypatch, ORDERS)
    message = AIMessage("yes", additional_kwargs={"order": shop.Order("in a message", 300)})
    with opened() as saver:
        graph = orders_graph(saver, None)
        graph.update_state(CONFIG, {"orders": [message]}, as_node="ask")
        at = graph.get_state(CONFIG).config
        saver.put_writes(at, [("__pregel_tasks", Send("add", shop.Order("sent", 5)))], "task")
    shop = release(monkeypatch, NEW_ORDERS)
    with opened(migrations=euros()) as saver:
        found = saver.get_tuple(CONFIG)
        (loaded,) = found.checkpoint["channel_values"]["orders"]
        assert loaded.additional_kwargs == {"order": shop.Order("in a message", 3.0)}
        assert found.pending_writes[-1][2].arg == shop.Order("sent", 0.05)


def test_items_are_migrated(tmp_path, monkeypatch):
    shop = release(monkeypatch, ORDERS)
    url = f"sqlite:///{tmp_path}/threads.db"
    with open_all(url) as opened:
        opened.store.put(("orders",), "1", {"order": shop.Order("tea", 250)})
    shop = release(monkeypatch, NEW_ORDERS)
    with open_all(url, migrations=euros()) as opened:
        assert opened.store.get(("orders",), "1").value == {"order": shop.Order("tea", 2.5)}
        opened.store.put(("orders",), "1", {"order": shop.Order("tea", 2.5)})
    with open_all(url) as opened, pytest.raises(NewerShapeError):
        opened.store.get(("orders",), "1")


def test_items_are_upgraded(tmp_path, monkeypatch):
    shop = release(monkeypatch, ORDERS)
    url = f"sqlite:///{tmp_path}/threads.db"
    with open_store(url, history=5) as store:
        for number in range(3):
            store.put(("orders",), str(number), {"order": shop.Order("tea", number)}, ttl=60)
        store.put(("orders",), "plain", {"text": "tea"})
        with pytest.raises(InvalidArgumentError, match="without migrations="):
            store.upgrade()
    release(monkeypatch, NEW_ORDERS)
    index = {"dims": DIMS, "embed": embed, "fields": ["text"]}
    with open_store(url, migrations=euros(), history=5, index=index) as store:
        before = sorted(store.search(("orders",)), key=lambda one: one.key)
        assert store.upgrade(dry_run=True) == 3
        assert store.upgrade() == 3
        assert store.upgrade() == 0
        after = sorted(store.search(("orders",)), key=lambda one: one.key)
        assert [one.value for one in after] == [one.value for one in before]
        assert [one.updated_at for one in after] == [one.updated_at for one in before]
        versions = store.versions(("orders",), "1")
        assert [one.value for one in versions] == [after[1].value] * 2
    done = Migrations()
    done.type("shop.Order", 2)
    with open_store(url, migrations=done) as store:
        assert store.get(("orders",), "2").value["order"].euros == 0.02


def test_results_of_nodes_are_migrated(tmp_path, monkeypatch):
    shop = release(monkeypatch, ORDERS)
    url, key = f"sqlite:///{tmp_path}/threads.db", (("n",), "1")
    with open_all(url) as opened:
        opened.cache.set({key: ({"order": shop.Order("tea", 250)}, None)})
    shop = release(monkeypatch, NEW_ORDERS)
    with open_all(url, migrations=euros()) as opened:
        assert opened.cache.get([key]) == {key: {"order": shop.Order("tea", 2.5)}}
        opened.cache.set({key: ({"order": shop.Order("tea", 2.5)}, None)})
    with open_all(url) as opened:
        assert opened.cache.get([key]) == {}


def test_migrations_need_our_codec(opened):
    serde = JsonPlusSerializer()
    with pytest.raises(InvalidArgumentError, match="cannot be combined with serde="):
        opened(serde=serde, migrations=euros())
    saver = opened(migrations=euros())
    with saver, pytest.raises(InvalidArgumentError, match="cannot be combined with serde="):
        saver.serde = serde
    with pytest.raises(InvalidArgumentError, match="Invalid migrations"):
        opened(migrations={"shop.Order": 2})


# -- channels ----------------------------------------------------------------------------


class Before(TypedDict, total=False):
    msgs: Annotated[list, operator.add]
    total: int
    kept: str


class After(TypedDict, total=False):
    messages: Annotated[list, operator.add]
    total: str
    kept: str


def before_graph(saver):
    def think(state):
        return {"msgs": [f"thought {len(state['msgs'])}"], "total": state.get("total", 0) + 1}

    def ask(state):
        return {"msgs": [interrupt("more?")]}

    return linear(saver, Before, think=think, ask=ask)


def after_graph(saver):
    def reason(state):
        count = int(state.get("total", "0 times").split()[0]) + 1
        return {"messages": [f"thought {len(state['messages'])}"], "total": f"{count} times"}

    def ask(state):
        return {"messages": [interrupt("more?")]}

    return linear(saver, After, reason=reason, ask=ask)


def renames() -> Migrations:
    migrations = Migrations()
    migrations.channel("msgs", "messages", version=2)
    migrations.node("think", "reason", version=2)

    @migrations.channel("total", version=3)
    def as_text(total):
        return f"{total} times"

    return migrations


def test_a_thread_goes_on_after_its_channels_and_nodes_were_renamed(opened):
    with opened() as saver:
        before_graph(saver).invoke({"msgs": ["hi"], "kept": "as it is"}, CONFIG)
        stored = saver.get_tuple(CONFIG).checkpoint
    with opened(migrations=renames()) as saver:
        graph = after_graph(saver)
        found = saver.get_tuple(CONFIG)
        assert found.checkpoint["channel_values"] == {
            "messages": ["hi", "thought 1"],
            "total": "1 times",
            "kept": "as it is",
            "branch:to:ask": None,
        }
        names = {"msgs": "messages", "branch:to:think": "branch:to:reason"}
        expected = {names.get(k, k): v for k, v in stored["channel_versions"].items()}
        assert found.checkpoint["channel_versions"] == expected
        assert found.checkpoint["versions_seen"].keys() == {"__input__", "__start__", "reason"}
        assert set(found.checkpoint["versions_seen"]["reason"]) == {"branch:to:reason"}
        assert "messages" in found.checkpoint["updated_channels"]
        state = graph.get_state(CONFIG)
        assert (state.next, state.interrupts[0].value) == (("ask",), "more?")
        graph.invoke(Command(resume="yes"), CONFIG)
        graph.invoke({"messages": ["again"]}, CONFIG)
        state = graph.get_state(CONFIG)
        said = ["hi", "thought 1", "yes", "again", "thought 4"]
        assert state.values == {"messages": said, "total": "2 times", "kept": "as it is"}
        assert state.next == ("ask",)
        history = [each.values for each in graph.get_state_history(CONFIG)]
        assert [set(values) - {"kept"} for values in history[-2:-1]] == [{"messages"}]
        assert history[-3]["total"] == "1 times"
        versions = saver.threads.versions("1", "messages", limit=None)
        assert [each.has_value for each in versions] == [True] * len(versions)
        assert len(versions) >= 5
        first = {"configurable": {"thread_id": "1", "checkpoint_id": stored["id"]}}
        diff = saver.threads.diff_checkpoints(first, state.config)
        assert diff.channels["total"].changes[0].before == "1 times"
        assert "msgs" not in diff.channels
        assert saver.threads.diff("1", stored["id"], stored["id"]).is_same
        lazy = next(iter(saver.list(first, limit=1, values="lazy")))
        assert dict(lazy.checkpoint["channel_values"])["total"] == "1 times"
        part = saver.get_tuple(first, channels=["messages", "total"])
        assert part.checkpoint["channel_values"] == {
            "messages": ["hi", "thought 1"],
            "total": "1 times",
        }
    with opened(migrations=renames()) as saver:
        assert after_graph(saver).get_state(CONFIG).values == state.values
        saver.threads.fork("1", None, "fork")
        assert after_graph(saver).get_state({"configurable": {"thread_id": "fork"}}) is not None


def test_pending_writes_and_sends_of_a_renamed_channel_and_node(opened):
    with opened() as saver:
        graph = before_graph(saver)
        graph.update_state(CONFIG, {"msgs": ["hi"]}, as_node="ask")
        at = graph.get_state(CONFIG).config
        saver.put_writes(at, [("msgs", ["w"]), ("total", 4)], "task 1")
        saver.put_writes(at, [("__pregel_tasks", Send("think", 5))], "task 2")
        saver.put_writes(at, [("join:think+ask:think", "think")], "task 3")
    with opened(migrations=renames()) as saver:
        writes = saver.get_tuple(CONFIG).pending_writes
        assert [write[1:] for write in writes] == [
            ("messages", ["w"]),
            ("total", "4 times"),
            ("__pregel_tasks", Send("reason", 5)),
            ("join:reason+ask:reason", "reason"),
        ]
        saver.put_writes(at, [("messages", ["x"])], "task 4")
        assert saver.get_tuple(CONFIG).pending_writes[-1][1:] == ("messages", ["x"])
    with opened() as saver:
        with pytest.raises(NewerShapeError, match=r"shape 3 of the channels.*knows shape 1"):
            saver.get_tuple(CONFIG)
        assert saver.raw(CONFIG).pending_writes[-1][1:] == ("messages", ["x"])
        assert saver.raw(CONFIG).pending_writes[0][1:] == ("msgs", ["w"])


def test_an_older_program_is_refused_after_channels_were_renamed(opened):
    with opened(migrations=renames()) as saver:
        after_graph(saver).invoke({"messages": ["hi"]}, CONFIG)
    two = Migrations()
    two.channel("msgs", "messages", version=2)
    for migrations, known in ((None, 1), (two, 2)):
        with opened(migrations=migrations) as saver:
            for read in (
                saver.get_tuple,
                lambda config, saver=saver: [*saver.list(config)],
                lambda config, saver=saver: saver.get_tuple(config, channels=["messages"]),
                lambda config, saver=saver: before_graph(saver).invoke({"msgs": ["a"]}, config),
            ):
                with pytest.raises(NewerShapeError, match=f"knows shape {known}") as info:
                    read(CONFIG)
                assert info.value.thread == "1"
                assert info.value.checkpoint
            raw = saver.raw(CONFIG).checkpoint["channel_values"]
            assert raw["messages"] == ["hi", "thought 1"]
    three = Migrations(shape=3)
    with opened(migrations=three) as saver:
        assert after_graph(saver).get_state(CONFIG).values["messages"] == ["hi", "thought 1"]


def test_input_that_was_stored_before_a_run_began_is_renamed(opened):
    with opened() as saver:
        graph = before_graph(saver)
        graph.update_state(CONFIG, {"msgs": ["hi"]}, as_node="ask")
        at = saver.get_tuple(CONFIG)
        checkpoint = {**at.checkpoint, "id": at.checkpoint["id"][:-1] + "f"}
        checkpoint["channel_values"] = {"__start__": {"msgs": ["more"], "total": 7}}
        checkpoint["channel_versions"] = {"__start__": 9}
        saver.put(at.config, checkpoint, {"source": "input", "step": 5}, {"__start__": 9})
    with opened(migrations=renames()) as saver:
        values = saver.get_tuple(CONFIG).checkpoint["channel_values"]
        assert values == {"__start__": {"messages": ["more"], "total": "7 times"}}


def test_two_channels_of_one_name_are_refused(opened):
    with opened() as saver:
        before_graph(saver).invoke({"msgs": ["hi"], "kept": "a"}, CONFIG)
    migrations = Migrations()
    migrations.channel("kept", "msgs", version=2)
    with opened(migrations=migrations) as saver:
        with pytest.raises(StateMigrationError, match="channel 'msgs' and another") as info:
            saver.get_tuple(CONFIG)
        assert (info.value.thread, info.value.channel) == ("1", "msgs")
    swapped = Migrations()
    swapped.channel("msgs", "log", version=2)
    swapped.channel("kept", "msgs", version=2)
    with opened(migrations=swapped) as saver:
        values = saver.get_tuple(CONFIG).checkpoint["channel_values"]
        assert (values["log"], values["msgs"]) == (["hi", "thought 1"], "a")


def test_a_channel_s_migration_that_fails_is_named(opened):
    with opened() as saver:
        before_graph(saver).invoke({"msgs": ["hi"]}, CONFIG)
    migrations = Migrations()
    migrations.channel("total", version=2)(lambda total: total["no"])
    with opened(migrations=migrations) as saver:
        with pytest.raises(StateMigrationError, match="channel 'total' to shape 2 failed") as info:
            saver.get_tuple(CONFIG)
        assert (info.value.thread, info.value.channel) == ("1", "total")
        assert saver.raw(CONFIG).checkpoint["channel_values"]["total"] == 1


# -- beside other options ----------------------------------------------------------------


def test_forks_of_two_shapes_are_merged(opened):
    with opened() as saver:
        before_graph(saver).invoke({"msgs": ["hi"]}, CONFIG)
        saver.threads.fork("1", None, "fork")
    fork = {"configurable": {"thread_id": "fork"}}
    with opened(migrations=renames()) as saver:
        graph = after_graph(saver)
        graph.invoke(Command(resume="in the fork"), fork)
        report = saver.threads.merge_fork("fork", "1")
        assert report.channels == ("messages",)
        assert graph.get_state(CONFIG).values["messages"] == ["hi", "thought 1", "in the fork"]
        graph.invoke({"messages": ["again"]}, fork)
        graph.invoke({"messages": ["too"]}, CONFIG)
        merged = saver.threads.merge_fork("fork", "1", graph)
        assert {conflict.channel for conflict in merged.conflicts} == {"messages", "total"}
        assert "again" in graph.get_state(CONFIG).values["messages"]


def test_the_history_of_a_renamed_delta_channel(opened):
    with opened() as saver:
        chain = Chain(saver, "1")
        chain.put(log=["seed"])
        for number in range(3):
            saver.put_writes(chain.at, [("log", [f"write {number}"])], f"task {number}")
            chain.values.pop("log", None)
            chain.versions["log"] += 1
            chain.put(n=number)
        expected = saver.get_delta_channel_history(config=chain.at, channels=["log"])["log"]
        assert (expected["seed"], len(expected["writes"])) == (["seed"], 3)
    migrations = Migrations()
    migrations.channel("log", "lines", version=2)
    with opened(migrations=migrations) as saver:
        for _ in range(2):
            found = saver.get_delta_channel_history(config=chain.at, channels=["lines"])["lines"]
            assert found["seed"] == expected["seed"]
            assert found["writes"] == [(t, "lines", v) for t, _, v in expected["writes"]]
            saver.threads.upgrade()


def test_layered_memory_and_sessions_migrate_objects(opened, monkeypatch):
    shop = release(monkeypatch, ORDERS)

    def said(order):
        return [HumanMessage(f"{n}", additional_kwargs={"order": order}) for n in range(30)]

    with opened() as saver:
        LayeredCheckpointSaver(saver, Layers(full_window=4)).save("1", said(shop.Order("a", 100)))
        sessions = CheckpointManager(saver=saver)
        sessions.create_checkpoint("s", "w", {"order": shop.Order("b", 200)})
    shop = release(monkeypatch, NEW_ORDERS)
    with opened(migrations=euros()) as saver:
        messages = LayeredCheckpointSaver(saver, Layers(full_window=4)).full_messages("1")
        orders = [message.additional_kwargs["order"] for message in messages]
        assert orders == [shop.Order("a", 1.0)] * 30
        assert saver.threads.upgrade().ok
        again = LayeredCheckpointSaver(saver, Layers(full_window=4)).full_messages("1")
        assert again == messages
        assert saver.threads.upgrade().upgraded == ()
        latest = CheckpointManager(saver=saver).get_latest_checkpoint("s")
        assert latest.state_data == {"order": shop.Order("b", 2.0)}


def test_an_encrypted_store_is_upgraded(tmp_path, monkeypatch):
    url, keys = f"sqlite:///{tmp_path}/threads.db", KeyRing([b"k" * 32])
    shop = release(monkeypatch, ORDERS)
    with open_saver(url, keys=keys) as saver:
        graph = orders_graph(saver, lambda name: shop.Order(name + "x" * 100, 250))
        graph.invoke({"orders": [shop.Order("first", 100)]}, CONFIG)
        saver.threads.fork("1", None, "fork")
    release(monkeypatch, NEW_ORDERS)
    migrations = euros()
    migrations.channel("orders", "basket", version=2)
    with open_saver(url, keys=keys, migrations=migrations) as saver:
        before = [saver.get_tuple(CONFIG).checkpoint, [*saver.list(None)]]
        assert saver.threads.upgrade().ok
        assert [saver.get_tuple(CONFIG).checkpoint, [*saver.list(None)]] == before
        assert saver.threads.upgrade().upgraded == ()
        assert saver.check().ok
    assert b"euros" not in (tmp_path / "threads.db").read_bytes()
