"""Metrics of observed savers in a registry of prometheus_client."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias

from threadkeep.backends.open import extra
from threadkeep.errors import invalid
from threadkeep.monitor.counters import EXPORTED, EXPORTED_GAUGES, Totals

with extra("Prometheus", "monitor"):
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of durations, in seconds."""

_Observe: TypeAlias = Callable[[float], None]


class _Durations(dict[str, _Observe]):
    """Histograms of one backend by operation, made when they are first needed."""

    def __init__(self, histogram: Histogram, backend: str) -> None:
        super().__init__()
        self._histogram = histogram
        self._backend = backend

    def __missing__(self, operation: str) -> _Observe:
        observe = self._histogram.labels(operation, self._backend).observe
        self[operation] = observe
        return observe


class PrometheusSink:
    """Durations and errors of one observed saver."""

    def __init__(self, durations: Histogram, errors: Counter, backend: str) -> None:
        self._durations = _Durations(durations, backend)
        self._errors = errors
        self._backend = backend

    def record(self, operation: str, seconds: float, error: BaseException | None) -> None:
        """See `Sink`."""
        self._durations[operation](seconds)
        if error is not None:
            self._errors.labels(operation, self._backend, type(error).__qualname__).inc()


class Metrics:
    """Metrics of all observed savers of one registry. Their own counters are read at a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
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

    def sink(self, saver: object, backend: str) -> PrometheusSink:
        """Return a sink for a saver, and export the saver's own counters, if it has any."""
        self.totals.add(saver, backend)
        return PrometheusSink(self._durations, self._errors, backend)

    def collect(self) -> Iterator[Metric]:
        """Yield the counters that savers keep themselves."""
        totals = self.totals.read()
        for name, (text, attributes) in EXPORTED.items():
            labels = ["backend"] if "" in attributes else ["backend", "cache"]
            counter = CounterMetricFamily(f"threadkeep_{name}", text, labels=labels)
            for backend, counters in totals.items():
                for cache, attribute in attributes.items():
                    values = [backend, cache][: len(labels)]
                    counter.add_metric(values, getattr(counters, attribute))
            yield counter
        for name, (text, attribute) in EXPORTED_GAUGES.items():
            gauge = GaugeMetricFamily(f"threadkeep_{name}", text, labels=["backend"])
            for backend, counters in totals.items():
                gauge.add_metric([backend], getattr(counters, attribute))
            yield gauge


_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[CollectorRegistry, weakref.ref[Metrics]]
_known = weakref.WeakKeyDictionary()


def metrics_of(registry: CollectorRegistry) -> Metrics:
    """Return the metrics of a registry, made at the first call.

    Raises:
        InvalidArgumentError: it is no registry, or has other metrics of these names.
    """
    if not isinstance(registry, CollectorRegistry):
        raise invalid("registry", registry, "Use a CollectorRegistry of prometheus_client.")
    with _lock:
        ref = _known.get(registry)
        found = None if ref is None else ref()  # (the registry holds it)
        if found is None:
            try:
                found = Metrics(registry)
            except ValueError as error:
                hint = f"Use one without other metrics of these names. {error}"
                raise invalid("registry", registry, hint) from error
            _known[registry] = weakref.ref(found)
        return found
