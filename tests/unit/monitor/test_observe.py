"""Observed savers: each operation exports its measurement and nothing else."""

import asyncio
import gc
import logging
import re
from contextlib import suppress
from typing import Any

import pytest
import structlog
from kit.engine import checkpoint, config
from kit.graphs import linear
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, Counter

from threadkeep import MemorySaver, PostgresSaver, RedisSaver
from threadkeep import SqliteSaver as OwnSqliteSaver
from threadkeep.errors import ClosedError, ConflictError, InvalidArgumentError
from threadkeep.memory import LayeredCheckpointSaver
from threadkeep.monitor import observe
from threadkeep.monitor.observe import backend_of
from threadkeep.streaming import StreamingCheckpointSaver

DURATION = "threadkeep_operation_duration_seconds_count"
ERRORS = "threadkeep_operation_errors_total"
SECRET = "nobody may read this"


class Recorder:
    """A sink that keeps its measurements."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | None]] = []

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        assert seconds > 0
        self.told.append((operation, None if error is None else type(error).__name__))


class Broken(InMemorySaver):
    """A saver that fails, or never answers."""

    def put(self, *args: Any) -> Any:
        raise RuntimeError(SECRET)

    async def aput(self, *args: Any) -> Any:
        await asyncio.Event().wait()


def count(registry: CollectorRegistry, operation: str, **labels: str) -> float:
    found = registry.get_sample_value(DURATION, {"operation": operation, **labels})
    return found or 0


def graph_on(saver: BaseCheckpointSaver[Any]) -> Any:
    return linear(saver, MessagesState, bot=lambda state: {"messages": [("ai", f"{SECRET} " * 40)]})


TURN = {"messages": [("user", SECRET)]}


# -- sinks -----------------------------------------------------------------------------


def test_every_method_is_told_to_sinks_by_its_name() -> None:
    sink = Recorder()
    saver = observe(MemorySaver(), sinks=[sink])
    stored = saver.put(config("1"), checkpoint("a", {}, {}), {}, {})
    saver.put_writes(stored, [("x", 1)], "task")
    saver.get_tuple(stored)
    saver.get(stored)
    list(saver.list(None))
    saver.get_delta_channel_history(config=stored, channels=["x"])
    saver.copy_thread("1", "2")
    saver.prune(["2"])
    saver.delete_for_runs(["r"])
    saver.delete_thread("1")
    saver.close()

    names = ["put", "put_writes", "get_tuple", "get_tuple", "list", "get_delta_channel_history"]
    names += ["copy_thread", "prune", "delete_for_runs", "delete_thread"]
    assert sink.told == [(name, None) for name in names]


async def test_async_variants_have_the_same_names() -> None:
    sink = Recorder()
    async with observe(MemorySaver(), sinks=[sink]) as saver:
        stored = await saver.aput(config("1"), checkpoint("a", {}, {}), {}, {})
        await saver.aput_writes(stored, [("x", 1)], "task")
        await saver.aget_tuple(stored)
        assert [one async for one in saver.alist(None)]
        await saver.aget_delta_channel_history(config=stored, channels=["x"])
        await saver.adelete_thread("1")

    names = ["put", "put_writes", "get_tuple", "list", "get_delta_channel_history"]
    assert sink.told == [(name, None) for name in [*names, "delete_thread"]]


async def test_a_cancelled_operation_is_told_with_its_error() -> None:
    sink = Recorder()
    saver = observe(Broken(), sinks=[sink])
    task = asyncio.create_task(saver.aput(config("1"), checkpoint("a", {}, {}), {}, {}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.told == [("put", "CancelledError")]


def test_a_listing_that_is_left_is_told_once_and_is_no_error() -> None:
    sink = Recorder()
    saver = observe(MemorySaver(), sinks=[sink])
    for name in "ab":
        saver.put(config("1"), checkpoint(name, {}, {}), {}, {})
    listing = saver.list(config("1"))
    next(listing)
    assert sink.told == [("put", None)] * 2
    listing.close()
    assert sink.told == [("put", None)] * 2 + [("list", None)]


def test_a_sink_that_fails_harms_no_operation_and_no_other_sink(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Bad:
        def record(self, *_: Any) -> None:
            raise ZeroDivisionError

    sink = Recorder()
    saver = observe(MemorySaver(), sinks=[Bad(), sink])
    assert saver.get_tuple(config("1")) is None
    assert sink.told == [("get_tuple", None)]
    assert "A sink of an observed saver failed" in caplog.text


def test_sinks_come_and_go_also_for_clones() -> None:
    sink = Recorder()
    saver = observe(MemorySaver())
    clone = saver.with_allowlist([("some.module", "Class")])
    saver.add_sink(sink)
    clone.get_tuple(config("1"))
    saver.remove_sink(sink)
    clone.get_tuple(config("1"))
    assert sink.told == [("get_tuple", None)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"saver": 1},
        {"sinks": [1]},
        {"sinks": 1},
        {"logger": 1},
        {"backend": 1},
        {"backend": ""},
        {"registry": 1},
        {"meter": 1},
        {"tracer": 1},
        {"opentelemetry": "yes"},
    ],
    ids=str,
)
def test_invalid_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"Invalid {next(iter(wrong))[:4]}"):
        observe(**{"saver": MemorySaver(), **wrong})


# -- Prometheus ------------------------------------------------------------------------


def test_counts_and_errors_by_operation_and_backend() -> None:
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite")
    registry = CollectorRegistry()
    graph = graph_on(observe(InMemorySaver(), registry=registry))
    graph.invoke(TURN, config("1"))
    with sqlite.SqliteSaver.from_conn_string(":memory:") as other:
        graph_on(observe(other, registry=registry)).invoke(TURN, config("1"))
    with pytest.raises(RuntimeError):
        observe(Broken(), registry=registry, backend="broken").put({}, {}, {}, {})

    for backend in ("memory", "sqlite"):
        assert count(registry, "put", backend=backend) == 3
        assert count(registry, "get_tuple", backend=backend) == 1
    labels = {"operation": "put", "backend": "broken", "error": "RuntimeError"}
    assert registry.get_sample_value(ERRORS, labels) == 1


def test_counters_of_a_saver_are_read_when_they_are_scraped() -> None:
    registry = CollectorRegistry()
    saver = observe(MemorySaver(), registry=registry)
    graph = graph_on(saver)
    for _ in range(10):
        graph.invoke(TURN, config("1"))
    graph.get_state(config("1"))

    def scraped(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"threadkeep_{name}", {"backend": "memory", **labels})

    counters = saver.counters()
    assert scraped("written_bytes_total") == counters.written_bytes
    assert scraped("saved_bytes_total") == counters.saved_bytes > 2 * counters.written_bytes
    assert scraped("cache_hits_total", cache="working_set") == 8
    assert scraped("cache_misses_total", cache="working_set") == 1
    assert scraped("conflicts_total") == scraped("retries_total") == 0

    del graph, saver
    gc.collect()
    MemorySaver().close()
    assert scraped("written_bytes_total") == counters.written_bytes


def test_a_saver_that_is_closed_and_gone_before_a_scrape_counts() -> None:
    registry = CollectorRegistry()
    for _ in range(3):
        with MemorySaver() as inner:
            saver = observe(inner, registry=registry)
            saver.put(config("1"), checkpoint("a", {}, {}), {}, {})
            written = saver.counters().written_bytes
        del saver, inner
        gc.collect()
    labels = {"backend": "memory"}
    total = registry.get_sample_value("threadkeep_written_bytes_total", labels)
    assert total == 3 * written > 0


def test_a_saver_that_is_observed_twice_is_counted_once() -> None:
    registry = CollectorRegistry()
    saver = observe(observe(MemorySaver(), registry=registry), registry=registry)
    again = observe(LayeredCheckpointSaver(saver), registry=registry)
    saver.put(config("1"), checkpoint("a", {}, {}), {}, {})
    written = registry.get_sample_value("threadkeep_written_bytes_total", {"backend": "memory"})
    assert written == again.counters().written_bytes > 0


def test_a_registry_with_other_metrics_of_these_names_is_refused() -> None:
    registry = CollectorRegistry()
    Counter("threadkeep_operation_errors", "Not ours.", registry=registry)
    with pytest.raises(InvalidArgumentError, match="without other metrics of these names"):
        observe(MemorySaver(), registry=registry)


def test_refused_conflicts_are_counted() -> None:
    saver = MemorySaver(conflicts="raise")
    saver.put(config("1"), checkpoint("a", {}, {}), {}, {})
    runs = [saver.get_tuple(config("1")) for _ in range(2)]
    for run, name in zip(runs, "bc", strict=True):
        assert run is not None
        with suppress(ConflictError):
            saver.put(run.config, checkpoint(name, {}, {}), {}, {})
    assert saver.counters().conflicts == 1


@pytest.mark.parametrize(
    ("saver", "name"),
    [
        (PostgresSaver("postgresql://nobody@localhost/none"), "postgresql"),
        (RedisSaver("redis://localhost:1"), "redis"),
        (StreamingCheckpointSaver(InMemorySaver()), "memory"),
        (type("AsyncShallowPostgresSaver", (Broken,), {})(), "postgresql"),
        (type("Elsewhere", (BaseCheckpointSaver,), {})(), "Elsewhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_name_of_the_store(saver: Any, name: str) -> None:
    assert backend_of(saver) == name


# -- OpenTelemetry ---------------------------------------------------------------------


def test_spans_are_children_of_the_current_one() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("program")
    saver = observe(OwnSqliteSaver(":memory:"), tracer=tracer)
    with tracer.start_as_current_span("turn") as turn:
        graph_on(saver).invoke(TURN, config("thread-1"))
        list(saver.list(config("thread-1")))
    saver.close()
    with pytest.raises(ClosedError):
        saver.get_tuple(config("thread-1"))

    *spans, outer, failed = exporter.get_finished_spans()
    assert outer.name == "turn"
    assert {span.name for span in spans} == {"get_tuple", "put", "put_writes", "list"}
    for span in spans:
        assert span.parent is not None
        assert span.parent.span_id == turn.get_span_context().span_id
        assert span.kind is SpanKind.CLIENT
        assert span.attributes == {
            "db.system.name": "sqlite",
            "db.operation.name": span.name,
            "gen_ai.conversation.id": "thread-1",
        }
        assert span.status.status_code is StatusCode.UNSET
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ClosedError"
    assert failed.status.status_code is StatusCode.ERROR
    assert not failed.events


def test_a_tracer_that_fails_harms_no_operation(caplog: pytest.LogCaptureFixture) -> None:
    class Bad(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise ZeroDivisionError

    provider = TracerProvider()
    provider.add_span_processor(Bad())
    saver = observe(Broken(), tracer=provider.get_tracer("program"))
    assert saver.get_tuple(config("1")) is None
    with pytest.raises(RuntimeError):
        saver.put({}, {}, {}, {})
    assert "The tracer of an observed saver failed" in caplog.text


async def test_a_span_is_the_current_one_for_what_the_saver_does() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("program")

    class Driver(InMemorySaver):
        async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
            with tracer.start_as_current_span("query"):
                return super().get_tuple(config)

        def delete_thread(self, thread_id: str) -> None:
            with tracer.start_as_current_span("query"):
                super().delete_thread(thread_id)

    saver = observe(Driver(), tracer=tracer)
    await saver.aget_tuple(config("1"))
    saver.delete_thread("1")
    inner, outer, inner_2, outer_2 = exporter.get_finished_spans()
    for query, operation in ((inner, outer), (inner_2, outer_2)):
        assert query.parent is not None
        assert operation.context is not None
        assert query.parent.span_id == operation.context.span_id
        assert operation.kind is SpanKind.INTERNAL
    assert outer_2.name == "delete_thread"


def test_metrics_have_the_names_of_the_conventions_and_no_thread() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("program")
    saver = observe(MemorySaver(), meter=meter)
    second = observe(Broken(), meter=meter)
    graph_on(saver).invoke(TURN, config("1"))
    with pytest.raises(RuntimeError):
        second.put({}, {}, {}, {})

    data = reader.get_metrics_data()
    assert data is not None
    scope = data.resource_metrics[0].scope_metrics[0]
    found = {metric.name: metric for metric in scope.metrics}
    duration = found["db.client.operation.duration"]
    assert duration.unit == "s"
    points = {str(dict(point.attributes or {})): point for point in duration.data.data_points}
    put = {"db.system.name": "memory", "db.operation.name": "put"}
    assert points[str(put)].count == 3
    assert points[str({**put, "error.type": "RuntimeError"})].count == 1
    bounds = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
    assert tuple(points[str(put)].explicit_bounds) == bounds
    (written,) = found["threadkeep.written_bytes"].data.data_points
    assert written.value == saver.counters().written_bytes
    assert len(found["threadkeep.cache_hits"].data.data_points) == 3


def test_the_programs_own_providers_are_asked_when_wanted() -> None:
    saver = observe(MemorySaver(), opentelemetry=True)  # (no SDK is set up: nothing is recorded)
    assert saver.get_tuple(config("1")) is None


# -- logs ------------------------------------------------------------------------------


def test_logs_of_structlog_hold_fields_and_no_content() -> None:
    with structlog.testing.capture_logs() as events:
        saver = observe(Broken(), logger=structlog.get_logger())
        saver.get_tuple(config("thread-1"))
        with pytest.raises(RuntimeError):
            saver.put(config("thread-1"), {}, {}, {})
    seconds = [event.pop("seconds") for event in events]
    assert all(0 < one < 5 for one in seconds)
    common = {"event": "checkpoint operation", "backend": "memory", "thread_id": "thread-1"}
    assert events == [
        {**common, "operation": "get_tuple", "log_level": "debug"},
        {**common, "operation": "put", "log_level": "warning", "error": "RuntimeError"},
    ]


def test_logs_of_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    class Adapter(logging.LoggerAdapter[logging.Logger]):
        def process(self, msg: str, kwargs: Any) -> tuple[str, Any]:
            return super().process(f"[7] {msg}", kwargs)

    logger = Adapter(logging.getLogger("program"), {"tenant": "t"})
    saver = observe(Broken(), logger=logger)
    saver.get_tuple(config("1\nforged"))
    with pytest.raises(RuntimeError):
        saver.put(config("1"), {}, {}, {})
    saver.delete_thread(thread_id="1")
    first, second, third = caplog.records
    assert (first.levelno, second.levelno) == (logging.DEBUG, logging.WARNING)
    assert (first.__dict__["operation"], first.__dict__["tenant"]) == ("get_tuple", "t")
    assert first.getMessage().endswith(r", thread '1\nforged'")
    assert re.fullmatch(
        r"\[7\] put on memory took 0\.\d{6} s, thread 1: RuntimeError", second.getMessage()
    )
    assert third.__dict__["thread_id"] == "1"
    assert SECRET not in caplog.text


# -- the saver inside ------------------------------------------------------------------


def test_the_saver_is_the_one_inside_in_all_else() -> None:
    registry = CollectorRegistry()
    with observe(OwnSqliteSaver(":memory:"), registry=registry) as saver:
        graph_on(saver).invoke(TURN, config("1"))
        assert saver.threads.search()[0].id == "1"
        assert saver.stats().checkpoints == 3
        assert saver.get_next_version(None, None) == 1
    layered = observe(LayeredCheckpointSaver(OwnSqliteSaver(":memory:")), registry=registry)
    with layered:
        graph_on(layered).invoke(TURN, config("1"))
        assert len(layered.load("1")) == 2
    assert count(registry, "put", backend="sqlite") == 6
