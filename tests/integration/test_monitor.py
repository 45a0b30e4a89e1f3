"""A monitor in front of savers: canaries leave nothing, and alerts arrive."""

import asyncio
import json
import os
import queue
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from aiosmtpd.controller import Controller
from kit.backends import BACKENDS, open_backend
from kit.engine import Chain
from kit.places import at
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from typing_extensions import TypedDict

from threadkeep import MemorySaver, Retention, guard
from threadkeep._run import driver
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.monitor import Monitor, Thresholds, monitor, observe, probes, stats
from threadkeep.monitor.exports import GAUGES
from threadkeep.monitor.probes import _THREADS, Canary, _config


class Clock:
    """A clock that tests move."""

    now = 1_000_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of monitors."""
    clock = Clock()
    monkeypatch.setattr(monitor, "monotonic", clock)
    return clock


class Failing(InMemorySaver):
    """A saver that fails, hangs or forgets on request."""

    mode = ""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()

    def get_tuple(self, config):
        if self.mode == "fail":
            raise ConnectionError("no route to host")
        if self.mode == "hang":
            self.go_on.wait(60)
        found = super().get_tuple(config)
        if self.mode == "forget" and found is not None:
            return found._replace(pending_writes=[])
        return found


def traces(saver):
    """Everything that a saver returns about threads."""
    if not hasattr(saver, "threads"):
        return [*saver.list(None)]
    every = ("created", "active", "forked", "archived", "deleted")
    return [*saver.list(None), *saver.threads.search(state=every), *saver.threads.scan()]


# -- the canary --------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
async def test_a_canary_leaves_nothing(name, tmp_path):
    with open_backend(name, tmp_path) as saver:
        saver.setup()
        watch = Monitor(saver)
        assert watch.measure().healthy
        assert traces(saver) == []
    async with open_backend(name, tmp_path) as saver:
        watch = Monitor(observe(saver))
        assert (await watch.ameasure()).last_error is None
        assert await saver.threads.acount(state="deleted") == 0


async def test_a_canary_in_savers_of_langgraph(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "lg.db")) as saver:
        Chain(saver, "real").put(n=1)
        assert Monitor(saver).measure().healthy
        assert [one.config["configurable"]["thread_id"] for one in saver.list(None)] == ["real"]
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "lg.db")) as saver:
        assert (await Monitor(saver).ameasure()).healthy
        assert len([one async for one in saver.alist(None)]) == 1


def test_nobody_sees_a_canary_that_is_under_way():
    with MemorySaver() as saver:
        steps = Canary(saver).probe()
        reply = next(steps).call()
        while True:
            assert traces(saver) == []
            try:
                reply = steps.send(reply).call()
            except StopIteration:
                break


@pytest.mark.parametrize("make", [MemorySaver, InMemorySaver])
def test_what_a_crash_left_is_removed_by_the_next_monitor(make, monkeypatch):
    saver, clock = make(), Clock()
    monkeypatch.setattr(probes, "_now", clock)
    Chain(saver, "real").put(n=1)
    for _ in range(3):  # (each on a thread of 32)
        driver.run(_begin(Canary(saver)))
    left = [thread for thread in _THREADS if saver.get_tuple(_config(thread))]
    assert left
    assert stats(saver).threads == 1
    clock.now += 500
    driver.run(Canary(saver).remove_abandoned())  # a young one may be under way elsewhere
    assert [thread for thread in _THREADS if saver.get_tuple(_config(thread))] == left
    clock.now += 500
    Monitor(saver).measure()
    assert [thread for thread in _THREADS if saver.get_tuple(_config(thread))] == []
    assert len([*saver.list(None)]) == 1


def test_what_a_crash_left_is_not_collected():
    with MemorySaver() as saver:
        Chain(saver, "real").put(n=1)
        driver.run(_begin(Canary(saver)))
        assert saver.threads.gc(Retention(keep_last=1), dry_run=True).examined == 1


def _begin(canary):
    """The first two steps of a canary."""
    steps = canary.probe()
    stored = yield next(steps)
    yield steps.send(stored)
    steps.close()


# -- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("fail", "ConnectionError: no route to host"),
        ("forget", "CorruptionError: The canary was not read back as it was written."),
    ],
)
def test_a_saver_that_fails_is_told_and_measured_again_soon(mode, error):
    saver, sent = Failing(), []
    saver.mode = mode
    watch = Monitor(saver, alerts=[sent.append])
    cycle = watch._cycle(threading.Event())
    for _ in range(3):
        assert measured(cycle).call.args == (10,)
    found = watch.snapshot()
    assert (found.healthy, found.measurements, found.failed) == (False, 3, 3)
    assert error == found.last_error
    saver.mode = ""
    for _ in range(3):
        assert measured(cycle).call.args == (60,)
        assert watch.snapshot().healthy
    watch.stop()
    assert [one.state for one in sent] == ["raised", "cleared"]
    assert f"the canary failed 3 times: {error} at 20" in sent[0].text


def measured(cycle):
    """Carry out one measurement of a cycle; return the pause that follows."""
    waiting = cycle.send(next(cycle).call())
    return cycle.send(waiting.call())


@pytest.fixture
def brief(monkeypatch):
    """Measurements that end soon, and come one after the other."""
    monkeypatch.setattr(monitor, "_TIMEOUT", 0.05)
    monkeypatch.setattr(monitor, "_RETRY", 0.01)


def test_beside_measurements_that_hang_others_start_ever_more_seldom(clock, monkeypatch):
    monkeypatch.setattr(monitor, "_TIMEOUT", 0)
    saver, under_way = Failing(), []
    saver.mode = "hang"
    watch = Monitor(saver)
    for _ in range(9):
        driver.run(watch._probe_in_background())
        under_way.append(len(watch._under_way))
        clock.now += 41
    assert under_way == [1, 2, 3, 3, 4, 4, 4, 4, 5]
    saver.go_on.set()


@pytest.mark.usefixtures("brief")
def test_a_saver_that_hangs_is_told_and_measured_anew():
    saver, seen = Failing(), queue.Queue()
    saver.mode = "hang"
    with Monitor(saver, on_snapshot=seen.put):
        found = seen.get(timeout=60)
        assert found.last_error == "The store has not answered for 0.05 s."
        assert not found.healthy
        saver.mode = ""  # (the first measurement still hangs)
        while not seen.get(timeout=60).healthy:
            pass
    saver.go_on.set()


@pytest.mark.parametrize("mode", ["hang", "cancel"])
@pytest.mark.usefixtures("brief")
async def test_an_async_saver_that_hangs_or_is_cancelled_is_told_and_measured_anew(mode):
    class Stuck(InMemorySaver):
        is_stuck = True

        async def aput(self, *args):
            if self.is_stuck:
                await (asyncio.Event().wait() if mode == "hang" else cancelled)
            return await super().aput(*args)

    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    saver, seen = Stuck(), asyncio.Queue()
    async with Monitor(saver, on_snapshot=seen.put_nowait):
        found = await asyncio.wait_for(seen.get(), 60)
        assert (found.failed, found.healthy) == (1, False)
        saver.is_stuck = False
        while not (await asyncio.wait_for(seen.get(), 60)).healthy:
            pass


def test_monitors_that_meet_on_a_thread_try_another_one():
    class Crowded(InMemorySaver):
        others = 2

        def get_tuple(self, config):
            if self.others:
                self.others -= 1
                self.delete_thread(config["configurable"]["thread_id"])
            return super().get_tuple(config)

    assert Monitor(Crowded()).measure().last_error is None


def test_a_monitor_whose_thread_is_gone_is_unhealthy_and_starts_again():
    """As in a forked process."""
    with MemorySaver() as saver:
        seen = queue.Queue()
        watch = Monitor(saver, on_snapshot=seen.put)
        assert watch.measure().healthy
        watch._thread = threading.Thread()
        assert not watch.snapshot().healthy
        seen.get(timeout=60)
        with watch:
            assert seen.get(timeout=60).healthy


# -- in the background -------------------------------------------------------------------


async def test_it_measures_in_a_thread_and_in_a_task():
    with MemorySaver() as saver:
        seen = threading.Event()
        with Monitor(saver, on_snapshot=lambda found: seen.set()) as watch:
            assert await asyncio.to_thread(seen.wait, 60)
        assert watch.snapshot().measurements == 1
    async with MemorySaver() as saver:
        began = asyncio.Event()

        def fails(found):
            began.set()
            raise ValueError

        async with Monitor(saver, on_snapshot=fails) as watch:
            await asyncio.wait_for(began.wait(), 60)
        assert watch.snapshot().healthy


def test_operations_of_an_observed_saver_count_until_it_stops(clock):
    with observe(MemorySaver()) as saver:
        watch = Monitor(saver, Thresholds(min_ops_per_second=5))
        chain = Chain(saver, "real")
        for number in range(20):
            chain.put(n=number)
        clock.now += 1
        assert watch.measure().rates.operations > 20
        assert watch.measure().rates.per_second > 20
        clock.now += 300
        for _ in range(3):
            found = watch.measure()
        assert [one.name for one in found.alerts] == ["min_ops_per_second"]
        watch.stop()
        before = watch.snapshot().rates.operations
        chain.put(n=20)
        assert watch.snapshot().rates.operations == before
        assert watch.measure().rates.operations > before


# -- storage -----------------------------------------------------------------------------


def test_growth_and_the_largest_thread(tmp_path, clock):
    limits = Thresholds(max_thread_bytes=20_000, max_growth_per_day=1000)
    with open_backend("sqlite", tmp_path) as saver:
        watch, chain = Monitor(saver, limits), Chain(saver, "big")
        Chain(saver, "small").put(n=1)
        for _ in range(8):
            chain.put(text=noise())
            found = watch.measure()
            clock.now += 600
        assert [one.thread for one in found.storage.threads] == ["big", "small"]
        assert found.storage.threads[0].growth_per_day > 100_000
        assert 0 < found.storage.threads[0].days_left < 1
        assert found.storage.growth_per_day > 1000
        assert "thread big" in found.report()
        assert "max_thread_bytes in 0." in found.report()
        for _ in range(8):
            chain.put(text=noise())
            found = watch.measure()
            clock.now += 600
        assert {one.name for one in found.alerts} == {"max_thread_bytes", "max_growth_per_day"}
        assert "thread 'big' holds" in found.report()
        assert found.healthy
        assert json.loads(json.dumps(found.as_json()))["storage"]["threads"][0]["thread"] == "big"
        saver.delete_thread("big")
        for left in (2, 2, 1):
            clock.now += 600
            assert len(watch.measure().alerts) == left


def test_a_size_is_judged_once_and_growth_is_known_at_any_interval(clock):
    limits = Thresholds(max_thread_bytes=1, max_growth_per_day=10**9)
    with MemorySaver() as saver:
        Chain(saver, "big").put(n=1)
        watch = Monitor(saver, limits, interval=0.1)
        for _ in range(5):  # (within a second: the size is read once)
            clock.now += 0.1
            assert watch.measure().alerts == ()
        for _ in range(310):
            clock.now += 15
            found = watch.measure()
        assert [one.name for one in found.alerts] == ["max_thread_bytes"]
        assert found.storage.growth_per_day is not None


def test_one_reading_may_be_enough():
    limits = Thresholds(max_latency_ms=1e-6, max_thread_bytes=1)
    with MemorySaver() as saver:
        Chain(saver, "big").put(n=1)
        watch = Monitor(saver, limits, in_a_row=1)
        assert "not measured yet" in watch.snapshot().report()
        found = watch.measure()
    assert [one.name for one in found.alerts] == ["max_latency_ms", "max_thread_bytes"]
    assert not found.healthy


def noise():
    """2,000 bytes that cannot be compressed."""
    return os.urandom(2000)


# -- statuses ----------------------------------------------------------------------------


class State(TypedDict, total=False):
    """A state without values."""


def nothing(_):
    """Change no value."""


def fails(_):
    raise ValueError("the model answered 502")


def runs(saver, threads):
    """Run one node in each thread: "fails", "asks", "ends", or one before which the graph stops."""
    nodes = {
        "fails": fails,
        "asks": lambda _: interrupt("May I?"),
        "ends": nothing,
        "stops": nothing,
    }
    for thread, name in threads.items():
        graph = StateGraph(State).add_node(name, nodes[name]).add_edge(START, name)
        stops = ["stops"] if name == "stops" else None
        with suppress(ValueError):
            graph.compile(checkpointer=saver, interrupt_before=stops).invoke({}, at(thread))


NONE = dict.fromkeys(("running", "waiting", "failed", "held", "unfinished"), 0)
RUNS = {"s1": "stops", "f1": "fails", "d": "ends", "a": "asks", "s2": "stops", "f2": "fails"}


@pytest.mark.parametrize("name", BACKENDS)
def test_statuses_are_counted_and_judged(name, tmp_path, monkeypatch):
    monkeypatch.setattr("threadkeep._stores.redis.threads._FEW", 1)
    later = Clock()
    limits = Thresholds(max_failures_per_minute=1, max_unfinished_seconds=600)
    with open_backend(name, tmp_path) as saver:
        runs(saver, RUNS)
        found = saver.stats()
        assert found.statuses == {**NONE, "waiting": 1, "failed": 2, "unfinished": 2}
        assert 0 <= found.oldest_unfinished < 60
        stored = saver.stats(max_age=3600)
        assert saver.stats(max_age=3600).oldest_unfinished == stored.oldest_unfinished
        assert json.loads(json.dumps(stored.as_json()))["statuses"] == found.statuses

        watch = Monitor(saver, limits, in_a_row=1)
        shown = watch.measure()
        statuses = shown.statuses
        assert (statuses.waiting, statuses.failed, statuses.unfinished) == (1, 2, 2)
        assert (statuses.failures_per_minute, statuses.oldest_thread) == (2, "s1")
        assert "threads  0 running, 1 waiting, 2 failed, 0 held, 2 unfinished" in shown.report()
        assert json.loads(json.dumps(shown.as_json()))["statuses"]["oldest_thread"] == "s1"
        (alert,) = shown.alerts
        assert alert.text.startswith("raised: 2 threads failed in the last minute (max_failures")
        assert shown.healthy

        later.now = time.time() + 700
        monkeypatch.setattr(probes, "_now", later)
        shown = watch.measure()
        assert shown.statuses.failures_per_minute == 0
        assert 700 <= shown.statuses.oldest_unfinished < 800
        (alert,) = shown.alerts
        text = (
            "raised: 2 threads unfinished, thread 's1' idle for 12 min (max_unfinished_seconds=600)"
        )
        assert alert.text.startswith(text)
        saver.delete_thread("s1")
        assert watch.measure().statuses.oldest_thread == "s2"
        saver.delete_thread("s2")
        shown = watch.measure()
        assert (shown.statuses.unfinished, shown.statuses.oldest_unfinished) == (0, None)
        assert shown.alerts == ()


@pytest.mark.parametrize("name", BACKENDS)
def test_running_and_held_threads_are_counted(name, tmp_path, monkeypatch):
    monkeypatch.setattr("threadkeep._stores.redis.threads._FEW", 1)
    with open_backend(name, tmp_path) as saver:
        runs(saver, {"s": "stops", "r": "stops", "h": "fails", "d": "ends", "w": "ends"})
        with suppress(ValueError), guard(saver, "h", max_attempts=1):
            raise ValueError
        saver.threads.create("c")
        watch = Monitor(saver, Thresholds(max_unfinished_seconds=600, max_held=0), in_a_row=1)
        with guard(saver, "r"), guard(saver, "c"), guard(saver, "w"):
            counted = {**NONE, "running": 3, "held": 1, "unfinished": 1}
            assert saver.stats().statuses == counted
            shown = watch.measure()
            assert shown.statuses.oldest_thread == "s"
            assert shown.statuses.failures_per_minute == 0
            assert "threads  3 running, 0 waiting, 0 failed, 1 held, 1 unf" in shown.report()
            assert [one.text.partition(" at ")[0] for one in shown.alerts] == [
                "raised: 1 thread held"
            ]
            for status in ("running", "held", "unfinished"):
                assert saver.threads.count(status=status) == counted[status]
        saver.runs.release("h")
        assert saver.stats().statuses == {**NONE, "failed": 1, "unfinished": 2}
        assert watch.measure().alerts == ()


async def test_statuses_of_async_tenants_layers_and_other_savers():
    async with MemorySaver() as saver:
        acme = saver.for_tenant("acme")
        await asyncio.to_thread(runs, acme, {"f": "fails"})
        await asyncio.to_thread(runs, saver, {"s": "stops"})
        for one, failed, unfinished in ((saver, 1, 1), (acme, 1, 0), (observe(saver), 1, 1)):
            found = (await Monitor(LayeredCheckpointSaver(one)).ameasure()).statuses
            assert (found.failed, found.unfinished) == (failed, unfinished)
            assert (await one.astats()).statuses["unfinished"] == unfinished
    other = InMemorySaver()
    runs(other, {"s": "stops"})
    assert Monitor(other).measure().statuses is None
    assert (stats(other).statuses, stats(other).oldest_unfinished) == ({}, None)


def test_archived_threads_do_not_count(tmp_path):
    with open_backend("sqlite", tmp_path, cold=(tmp_path / "cold").as_uri()) as saver:
        runs(saver, {"s": "stops", "f": "fails"})
        saver.threads.archive("s")
        assert saver.stats().statuses == {**NONE, "failed": 1}
        assert saver.stats().oldest_unfinished is None


def test_statuses_are_exported_while_a_monitor_measures():
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("program")
    with observe(MemorySaver(), registry=registry, meter=meter, backend="b") as saver:
        runs(saver, RUNS)
        assert exported(registry, reader) == ({}, {})
        watch = Monitor(saver)
        watch.measure()
        expected = {**NONE, "waiting": 1, "failed": 2, "unfinished": 2, "failures_per_minute": 2}
        for found in exported(registry, reader):
            assert 0 < found.pop("oldest_unfinished_seconds") < 60
            assert found == expected
        watch.stop()
        assert exported(registry, reader) == ({}, {})
        watch.measure()
        del watch
        assert exported(registry, reader) == ({}, {})


def exported(registry, reader):
    """The gauges in Prometheus' registry and in OpenTelemetry's reader, of the backend "b"."""
    prometheus, telemetry = {}, {}
    for metric in registry.collect():
        for one in metric.samples if metric.type == "gauge" else ():
            name = one.name.removeprefix("threadkeep_")
            if name in GAUGE_NAMES and one.labels["backend"] == "b":
                prometheus[one.labels.get("status", name)] = one.value
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    for metric in scope.metrics:
        name = metric.name.removeprefix("threadkeep.")
        for point in metric.data.data_points if name in GAUGE_NAMES else ():
            assert point.attributes["db.system.name"] == "b"
            telemetry[point.attributes.get("status", name)] = point.value
    return prometheus, telemetry


GAUGE_NAMES = {one.name for one in GAUGES}


# -- channels ----------------------------------------------------------------------------


@contextmanager
def webhook():
    """A server on this machine, and the requests posted to it."""
    posted, came = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            came.set()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], posted
        finally:
            server.shutdown()
            thread.join()


class Mails:
    """The messages that an SMTP server accepted."""

    def __init__(self):
        self.all = []

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd's name
        self.all.append((envelope.rcpt_tos, envelope.content.decode()))
        return "250 OK"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # (apprise's, as it loads its plugins)
def test_alerts_go_to_a_webhook_and_by_mail_though_another_channel_fails(unused_tcp_port):
    mails, saver = Mails(), Failing()
    smtp = Controller(mails, hostname="127.0.0.1", port=unused_tcp_port)
    smtp.start()
    try:
        with webhook() as (port, posted):
            mail = "from=watch@example.org&to=ops@example.org&mode=insecure"
            urls = [
                "json://127.0.0.1:1/",
                f"mailto://127.0.0.1:{smtp.port}?{mail}",
                f"json://127.0.0.1:{port}/hook",
            ]
            watch = Monitor(saver, alerts=urls)
            saver.mode = "fail"
            for _ in range(4):
                watch.measure()
            watch.stop()
    finally:
        smtp.stop()
    assert len(posted) == len(mails.all) == 1
    assert posted[0]["title"] == "threadkeep: canary raised"
    assert "no route to host at 20" in posted[0]["message"]
    assert mails.all[0][0] == ["ops@example.org"]
    assert "threadkeep: canary raised" in mails.all[0][1]
