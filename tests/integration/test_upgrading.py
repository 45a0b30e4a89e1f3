"""`threads.upgrade` rewrites threads in the shapes of the program, and changes nothing else."""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from kit.backends import BACKENDS, url_of
from kit.generations import release
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from threadkeep import Migrations, Retention, open_saver
from threadkeep._core.engine.model import ReadThread
from threadkeep._core.engine.operation import fetch
from threadkeep._core.engine.registration import read_snapshot
from threadkeep.errors import (
    InvalidArgumentError,
    NewerShapeError,
    StateMigrationError,
    ThreadNotFoundError,
)

OLD = """
@dataclass
class Order:
    name: str
    cents: int

class Colour(enum.Enum):
    RED = 1
"""
NEW = """
@dataclass
class Order:
    name: str
    euros: float

class Colour(enum.Enum):
    CRIMSON = 1
"""
LONG = "x" * 3000


def to_euros(fields):
    return {"name": fields["name"], "euros": fields["cents"] / 100}


def changes(*, channels: bool = False) -> Migrations:
    migrations = Migrations()
    migrations.type("shop.Order", 2)(to_euros)
    migrations.type("shop.Colour", 2)(lambda _: {"value": "CRIMSON"})
    if channels:
        migrations.channel("orders", "basket", version=2)
        migrations.node("add", "put", version=2)
        migrations.channel("count", version=3)(lambda count: f"{count} " + "orders " * 30)
    return migrations


def without_functions(*, channels: bool = False) -> Migrations:
    """The migrations after the functions were removed: only stored shapes of today are read."""
    migrations = Migrations(shape=3 if channels else 1)
    migrations.type("shop.Order", 2)
    migrations.type("shop.Colour", 2)
    return migrations


class State(TypedDict, total=False):
    orders: Annotated[list, operator.add]
    last: Any
    report: Any
    colour: Any
    count: Any


def fill(saver, shop, thread="1", turns=3):
    """Run turns that append orders, change a long value, and wait."""
    made = iter(range(100))

    def add(state):
        new = shop.Order(f"order {next(made)} {LONG if len(state['orders']) % 3 else ''}", 250)
        report = {"text": LONG, "best": new, "n": len(state["orders"])}
        count = (state.get("count") or 0) + 1
        return {
            "orders": [new],
            "last": new,
            "report": report,
            "colour": shop.Colour.RED,
            "count": count,
        }

    def ask(state):
        return {"last": interrupt({"order": state["last"], "colour": state["colour"]})}

    graph = StateGraph(State)
    graph.add_node("add", add)
    graph.add_node("ask", ask)
    graph.add_edge(START, "add")
    graph.add_edge("add", "ask")
    graph = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": thread}}
    for turn in range(turns):
        graph.invoke({"orders": [shop.Order("first", 100)]}, config)
        if turn < turns - 1:
            graph.invoke(Command(resume=shop.Order("resumed", 100)), config)
    return graph


def everything(saver, threads=("1",)):
    """All that readers see of the threads."""
    found = []
    for thread in threads:
        found += [one._replace(config=None, parent_config=None) for one in whole(saver, thread)]
    return found


def whole(saver, thread):
    found = list(saver.list({"configurable": {"thread_id": thread}}))
    return [saver.get_tuple(one.config) for one in found]


@pytest.fixture(params=BACKENDS)
def opened(request, tmp_path):
    """A function that opens the test's store as another process would."""
    name = request.param
    url = "memory://" if name == "memory" else url_of(name, tmp_path)
    first = open_saver(url)
    first.setup()
    if name == "memory":
        first.backend.close = lambda: None  # (closing it would remove its rows)

    def _open(**options):
        if name == "memory":
            return type(first)(first.backend, **options)
        return open_saver(url, **options)

    yield _open
    first.close()


@pytest.mark.parametrize("channels", [False, True])
def test_an_upgrade_changes_shapes_and_nothing_else(opened, monkeypatch, channels):
    with opened() as saver:
        fill(saver, release(monkeypatch, OLD))
        raw = saver.raw({"configurable": {"thread_id": "1"}})
    release(monkeypatch, NEW)
    with opened(migrations=changes(channels=channels)) as saver:
        before, entry = everything(saver), saver.threads.get("1")
        dry = saver.threads.upgrade(dry_run=True)
        assert saver.raw({"configurable": {"thread_id": "1"}}).checkpoint == raw.checkpoint
        calls = []
        report = saver.threads.upgrade(progress=lambda *call: calls.append(call))
        assert (report.ok, report.threads, len(report.upgraded)) == (True, 1, 1)
        (done,) = report.upgraded
        assert done.values > 10
        assert done.writes > 0
        assert (done.checkpoints > 0) is True
        assert dry == report
        assert calls == [("threads upgraded", 1, 1)]
        assert everything(saver) == before
        after = saver.threads.get("1")
        assert (after.state, after.updated_at) == (entry.state, entry.updated_at)
        assert after.bytes == saver._store.run(read_snapshot("1")).size
        assert saver.threads.upgrade().upgraded == ()
        assert saver.check().ok
    with opened(migrations=without_functions(channels=channels)) as saver:
        assert everything(saver) == before
        assert saver.check().ok
    with opened() as saver, pytest.raises(NewerShapeError):
        saver.get_tuple({"configurable": {"thread_id": "1"}})


@pytest.mark.parametrize("channels", [False, True])
def test_forks_share_their_values_after_an_upgrade(opened, monkeypatch, channels):
    with opened() as saver:
        graph = fill(saver, release(monkeypatch, OLD))
        saver.threads.fork("1", None, "fork")
        graph.invoke(Command(resume=1), {"configurable": {"thread_id": "fork"}})
    release(monkeypatch, NEW)
    names = ("1", "fork")
    with opened(migrations=changes(channels=channels)) as saver:
        before = everything(saver, names)
        family = _family(saver)
        report = saver.threads.upgrade()
        assert report.failed == ()
        assert {one.thread for one in report.upgraded} == set(names)
        assert everything(saver, names) == before
        assert _family(saver) == family
        assert saver.check().ok
        assert saver.threads.upgrade().upgraded == ()


def _family(saver):
    return saver._store.run(fetch(ReadThread("1"))).family


def test_archives_and_offloaded_values_are_upgraded(opened, monkeypatch, tmp_path):
    cold = f"file://{tmp_path}/cold"
    names = ("1", "2")
    with opened(cold=cold) as saver:
        shop = release(monkeypatch, OLD)
        for name in names:
            fill(saver, shop, name)
        saver.threads.archive("1")
        moved = saver.threads.offload("2", over=1024)
        assert moved.segments
    release(monkeypatch, NEW)
    with opened(migrations=changes()) as saver:
        report = saver.threads.upgrade()
        assert {type(error).__name__ for error in report.failed} == {"ThreadArchivedError"}
        assert {error.thread for error in report.failed} == set(names)
    with opened(migrations=changes(), cold=cold) as saver:
        dry = saver.threads.upgrade(dry_run=True)
        report = saver.threads.upgrade()
        assert report.failed == ()
        assert [one.thread for one in report.upgraded] == [*names]
        assert saver.threads.get("1").state == "archived"
        assert [one.thread for one in dry.upgraded] == [*names]
        assert saver.threads.upgrade().upgraded == ()
    with opened(migrations=without_functions(), cold=cold) as saver:
        found = everything(saver, names)
        assert found[0].checkpoint["channel_values"]["last"].euros == 2.5
        assert saver.check().ok


def test_hidden_checkpoints_and_orders_of_runs_stay(opened, monkeypatch):
    with opened() as saver:
        shop = release(monkeypatch, OLD)
        fill(saver, shop)
        saver.threads.gc(Retention(keep_last=2))
    release(monkeypatch, NEW)
    with opened(migrations=changes(channels=True)) as saver:
        before = everything(saver)
        rows = _flags(saver)
        assert saver.threads.upgrade().ok
        assert everything(saver) == before
        assert _flags(saver) == rows


def _flags(saver):
    rows = saver._store.run(fetch(ReadThread("1")))
    return [(s.row[:7], s.row.metadata, len(s.writes)) for s in rows.checkpoints]


def test_a_thread_that_cannot_be_migrated_stays_as_it_is_and_is_named(opened, monkeypatch):
    with opened() as saver:
        shop = release(monkeypatch, OLD)
        fill(saver, shop, "bad", 1)
        fill(saver, shop, "good", 1)
        raw = saver.raw({"configurable": {"thread_id": "bad"}}).checkpoint

    def picky(fields):
        if fields["name"].startswith("order") and fails:
            raise ValueError("no such order")
        return to_euros(fields)

    release(monkeypatch, NEW)
    migrations = Migrations()
    migrations.type("shop.Order", 2)(picky)
    migrations.type("shop.Colour", 2)(lambda _: {"value": "CRIMSON"})
    fails = True
    with opened(migrations=migrations) as saver:
        report = saver.threads.upgrade()
        assert not report.ok
        assert [error.thread for error in report.failed] == ["bad", "good"]
        assert all(type(error) is StateMigrationError for error in report.failed)
        assert all(error.checkpoint and error.channel for error in report.failed)
        assert saver.raw({"configurable": {"thread_id": "bad"}}).checkpoint == raw
        with pytest.raises(ThreadNotFoundError):
            saver.threads.upgrade(["good", "none"])
        fails = False
        assert [one.thread for one in saver.threads.upgrade(["good"]).upgraded] == ["good"]
        assert [one.thread for one in saver.threads.upgrade().upgraded] == ["bad"]


def test_a_run_goes_on_while_its_thread_is_upgraded(opened, monkeypatch):
    with opened() as saver:
        fill(saver, release(monkeypatch, OLD))
    shop = release(monkeypatch, NEW)
    config = {"configurable": {"thread_id": "1"}}
    both = opened(migrations=changes()), opened(migrations=changes())
    with both[0] as saver, both[1] as other:

        def add(state):
            assert other.threads.upgrade().ok
            new = shop.Order(f"late {LONG}", 1.0)
            return {"orders": [new], "report": {**state["report"], "best": new}}

        graph = StateGraph(State)
        graph.add_node("add", add)
        graph.add_node("ask", lambda state: {"last": interrupt("more?")})
        graph.add_edge(START, "add")
        graph.add_edge("add", "ask")
        graph = graph.compile(checkpointer=saver)
        before = graph.get_state(config).values["orders"]
        graph.invoke(Command(resume=1), config)
        graph.invoke({"orders": []}, config)
        values = graph.get_state(config).values
        assert values["orders"] == [*before, shop.Order(f"late {LONG}", 1.0)]
        assert values["report"]["text"] == LONG
        assert other.threads.upgrade().ok
        assert saver.check().ok
    with opened(migrations=without_functions()) as saver:
        assert len(everything(saver)) > 10


def test_an_upgrade_needs_migrations(opened):
    with opened() as saver, pytest.raises(InvalidArgumentError, match="without migrations="):
        saver.threads.upgrade()
