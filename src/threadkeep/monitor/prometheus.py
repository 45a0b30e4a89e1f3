"""Metrics of observed savers in a registry of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from threadkeep.backends.open import extra
from threadkeep.errors import invalid
from threadkeep.monitor.counters import METRICS, Totals, made_once

with extra("Prometheus", "monitor"):
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of durations, in seconds."""


class Metrics:
    """Metrics of all observed savers of one registry. Their own counters are read at a scrape.

    Raises:
        InvalidArgumentError: it is no registry, or has other metrics of these names.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        if not isinstance(registry, CollectorRegistry):
            raise invalid("registry", registry, "Use a CollectorRegistry of prometheus_client.")
        try:
            self._durations = Histogram(
                "threadkeep_operation_duration_seconds",
                "Duration of operations of savers.",
                ("operation", "backend"),
                registry=registry,
                buckets=BUCKETS,
            )
            self._errors = Counter(
                "threadkeep_operation_errors",
                "Operations of savers that failed.",
                ("operation", "backend", "error"),
                registry=registry,
            )
            self.totals = Totals()
            registry.register(self)
        except ValueError as error:
            hint = f"Use one without other metrics of these names. {error}"
            raise invalid("registry", registry, hint) from error

    def sink(self, backend: str) -> PrometheusSink:
        """Return a sink for a saver."""
        return PrometheusSink(self._durations, self._errors, backend)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the counters that savers keep themselves."""
        totals = self.totals.read()
        for metric in METRICS:
            kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
            labels = ["backend", *metric.labels]
            family = kind(f"threadkeep_{metric.name}", metric.help, labels=labels)
            for backend, counters in totals.items():
                for values, attribute in metric.attributes.items():
                    family.add_metric([backend, *values], getattr(counters, attribute))
            yield family


metrics_of = made_once(Metrics)


class PrometheusSink:
    """Durations and errors of one observed saver."""

    def __init__(self, durations: Histogram, errors: Counter, backend: str) -> None:
        self._observing = cache(lambda operation: durations.labels(operation, backend).observe)
        self._errors = errors
        self._backend = backend

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """See `Sink`."""
        self._observing(operation)(seconds)
        if error is not None:
            self._errors.labels(operation, self._backend, type(error).__qualname__).inc()
