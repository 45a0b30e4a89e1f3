"""Spans and metrics of observed savers by OpenTelemetry's API, without an SDK.

Names are those of the semantic conventions for databases.
"""

from __future__ import annotations

from typing import Any

from threadkeep.backends.open import extra
from threadkeep.monitor.observe import error_type

with extra("OpenTelemetry", "monitor"):
    from opentelemetry import context, trace
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

BOUNDARIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
"""Bucket boundaries that the conventions recommend, in seconds."""


class DurationMetric:
    """The metric `db.client.operation.duration` of one observed saver."""

    def __init__(self, meter: Meter, backend: str) -> None:
        self._histogram = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self._backend = backend
        self._known: dict[str, dict[str, str]] = {}

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """See `Sink`."""
        attributes = self._known.get(operation)
        if attributes is None:
            attributes = self._known[operation] = attributes_of(self._backend, operation)
        if error is not None:
            attributes = {**attributes, "error.type": error_type(error)}
        self._histogram.record(seconds, attributes)


def attributes_of(backend: str, operation: str) -> dict[str, str]:
    """Return the attributes of an operation, for spans and metrics."""
    return {"db.system.name": backend, "db.operation.name": operation}


class Spans:
    """Spans of the operations of one observed saver, children of the current span."""

    def __init__(self, tracer: Tracer, backend: str) -> None:
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
            span.set_attribute("error.type", error_type(error))
            span.set_status(Status(StatusCode.ERROR))
        span.end()
