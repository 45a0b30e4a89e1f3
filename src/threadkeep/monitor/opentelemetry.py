"""Spans and metrics of observed savers by OpenTelemetry's API, without an SDK.

Names follow the semantic conventions for databases. Other names begin with "threadkeep.".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Token
from functools import cache, partial
from importlib import metadata

from threadkeep._stores.external import extra
from threadkeep.errors import invalid
from threadkeep.monitor import exports
from threadkeep.monitor.exports import GAUGES, METRICS, Totals, made_once

with extra("OpenTelemetry", "monitor"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
"""Bucket boundaries that the conventions recommend, in seconds."""

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions."""


@cache
def tracer_and_meter() -> tuple[Tracer, Meter]:
    """Return a tracer and a meter of the global providers."""
    name, version = "threadkeep", metadata.version("threadkeep")
    return (
        trace.get_tracer(name, version, schema_url=SCHEMA),
        metrics.get_meter(name, version, schema_url=SCHEMA),
    )


def attributes_of(backend: str, operation: str) -> dict[str, str]:
    """Return the attributes of an operation for spans and metrics."""
    return {"db.system.name": backend, "db.operation.name": operation}


# -- metrics ---------------------------------------------------------------------------


class OpenTelemetryMetrics:
    """Metrics of all observed savers of one meter. Callbacks read the counters of the savers.

    Raises:
        InvalidArgumentError: it is not a meter.
    """

    def __init__(self, meter: Meter) -> None:
        if not isinstance(meter, Meter):
            raise invalid("meter", meter, "Use a Meter of OpenTelemetry.")
        self._durations = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self.totals = Totals()
        for metric in METRICS:
            name, callbacks = f"threadkeep.{metric.name}", [partial(self._observe, metric)]
            unit = "By" if metric.name.endswith("_bytes") else "1"
            meter.create_observable_counter(name, callbacks, unit, metric.help)
        for metric in GAUGES:
            name, callbacks = f"threadkeep.{metric.name}", [partial(self._observe, metric)]
            unit = "s" if metric.name.endswith("_seconds") else "1"
            meter.create_observable_gauge(name, callbacks, unit, metric.help)

    def sink(self, backend: str) -> DurationSink:
        """Return the sink of one observed saver, store or cache."""
        return DurationSink(self._durations, backend)

    def _observe(self, metric: exports.Metric, _: CallbackOptions) -> Iterator[Observation]:
        totals = self.totals.statuses if metric in GAUGES else self.totals.read()
        for backend, found in totals.items():
            for values, attribute in metric.attributes.items():
                labels = dict(zip(metric.labels, values, strict=True))
                value = getattr(found, attribute) or 0
                yield Observation(value, {"db.system.name": backend, **labels})


metrics_of = made_once(OpenTelemetryMetrics)


class DurationSink:
    """Sink for the metric `db.client.operation.duration` of one observed saver."""

    def __init__(self, durations: Histogram, backend: str) -> None:
        self._record = durations.record
        self._attributes = cache(partial(attributes_of, backend))

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        attributes = self._attributes(operation)
        if error is not None:
            attributes = {**attributes, "error.type": type(error).__qualname__}
        self._record(seconds, attributes)


# -- spans -----------------------------------------------------------------------------


class Spans:
    """Spans of the operations of one observed saver, children of the current span."""

    def __init__(self, tracer: Tracer, backend: str) -> None:
        if not isinstance(tracer, Tracer):
            raise invalid("tracer", tracer, "Use a Tracer of OpenTelemetry.")
        self._tracer = tracer
        self._backend = backend
        # (the conventions ask for this if the database is in the process)
        self._kind = SpanKind.INTERNAL if backend == "memory" else SpanKind.CLIENT

    def start(
        self, operation: str, thread: str | None, *, is_current: bool
    ) -> Callable[[BaseException | None], None]:
        """Start a span, perhaps as the current one, and return the function that ends it."""
        attributes = attributes_of(self._backend, operation)
        if thread is not None:
            attributes["gen_ai.conversation.id"] = thread
        span = self._tracer.start_span(operation, kind=self._kind, attributes=attributes)
        token = context.attach(trace.set_span_in_context(span)) if is_current else None
        return partial(_end, span, token)


def _end(span: Span, token: Token[context.Context] | None, error: BaseException | None) -> None:
    if token is not None:
        context.detach(token)
    if error is not None:  # (only its type: its text may quote content)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR))
    span.end()
