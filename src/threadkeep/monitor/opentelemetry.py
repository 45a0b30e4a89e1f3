"""Spans and metrics of observed savers by OpenTelemetry's API, without an SDK.

Names are those of the semantic conventions for databases; beyond them "threadkeep.".
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import threadkeep
from threadkeep.backends.open import extra
from threadkeep.errors import invalid
from threadkeep.monitor.counters import EXPORTED, EXPORTED_GAUGES, Totals

with extra("OpenTelemetry", "monitor"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
"""Bucket boundaries that the conventions recommend, in seconds."""


SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions whose names are used."""


@cache
def tracer_and_meter() -> tuple[Tracer, Meter]:
    """Return those of the program's own providers."""
    name, version = "threadkeep", threadkeep.__version__
    return (
        trace.get_tracer(name, version, schema_url=SCHEMA),
        metrics.get_meter(name, version, schema_url=SCHEMA),
    )


def attributes_of(backend: str, operation: str) -> dict[str, str]:
    """Return the attributes of an operation, for spans and metrics."""
    return {"db.system.name": backend, "db.operation.name": operation}


# -- metrics ---------------------------------------------------------------------------


class Metrics:
    """Metrics of all observed savers of one meter. Their own counters are read by callbacks."""

    def __init__(self, meter: Meter) -> None:
        self.durations = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self.totals = Totals()
        for name, (text, attributes) in EXPORTED.items():
            meter.create_observable_counter(
                f"threadkeep.{name}", [self._observing(attributes)], _unit(name), text
            )
        for name, (text, attribute) in EXPORTED_GAUGES.items():
            meter.create_observable_up_down_counter(
                f"threadkeep.{name}", [self._observing({"": attribute})], _unit(name), text
            )

    def _observing(
        self, attributes: Mapping[str, str]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for backend, counters in self.totals.read().items():
                labels = {"db.system.name": backend}
                for cache_name, attribute in attributes.items():
                    value = getattr(counters, attribute)
                    own = {**labels, "cache": cache_name} if cache_name else labels
                    yield Observation(value, own)

        return observe


def _unit(name: str) -> str:
    return "By" if name.endswith("_bytes") else "1"


_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[Meter, Metrics] = weakref.WeakKeyDictionary()


def metrics_of(meter: Meter) -> Metrics:
    """Return the metrics of a meter, made at the first call.

    Raises:
        InvalidArgumentError: it is no meter.
    """
    if not isinstance(meter, Meter):
        raise invalid("meter", meter, "Use a Meter of OpenTelemetry.")
    with _lock:
        found = _known.get(meter)
        if found is None:
            found = _known[meter] = Metrics(meter)
        return found


class DurationSink:
    """Sink for the metric `db.client.operation.duration` of one observed saver."""

    def __init__(self, meter: Meter, saver: object, backend: str) -> None:
        found = metrics_of(meter)
        self.totals = found.totals
        self.totals.add(saver, backend)
        self._record = found.durations.record
        self._backend = backend
        self._known: dict[str, dict[str, str]] = {}

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """See `Sink`."""
        attributes = self._known.get(operation)
        if attributes is None:
            attributes = self._known[operation] = attributes_of(self._backend, operation)
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
        # (as the conventions have it for databases in the memory of the process)
        self._kind = SpanKind.INTERNAL if backend == "memory" else SpanKind.CLIENT

    def start(self, operation: str, thread: str | None, *, is_current: bool) -> tuple[Span, Any]:
        """Start a span, perhaps as the current one; return what `end` needs."""
        attributes = attributes_of(self._backend, operation)
        if thread is not None:
            attributes["gen_ai.conversation.id"] = thread
        span = self._tracer.start_span(operation, kind=self._kind, attributes=attributes)
        token = context.attach(trace.set_span_in_context(span)) if is_current else None
        return span, token

    def end(self, started: tuple[Span, Any], error: BaseException | None) -> None:
        """End a span. Of an error only its type is recorded: its text may quote content."""
        span, token = started
        if token is not None:
            context.detach(token)
        if error is not None:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR))
        span.end()
